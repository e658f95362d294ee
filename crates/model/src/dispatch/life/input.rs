//! The inputs of the life of a dispatch.

use crate::admission::api_error::Trouble;
use crate::agent::ask::Answer;
use crate::agent::event::AgentEvent;
use crate::agent::transcript::Reading;
use crate::dispatch::work::WorkHome;
use crate::dispatch::{Exit, Ticket};
use crate::event::{LeftProcess, Limit, Position};
use crate::monitor::Finding;

/// Something that happened to a dispatch, as the actors report it.
#[derive(Debug, Clone)]
pub enum Input {
    /// The pool gave it a slot.
    Admitted(Ticket),
    /// All events of one line of output. `at` is the position after the line; a line that is read
    /// again is ignored.
    Line {
        at: Position,
        events: Vec<AgentEvent>,
    },
    Spawned {
        at: Position,
        pid: u32,
        shim_pid: u32,
        containment: String,
        /// The shim's clock of awake time.
        awake_ms: u64,
    },
    StartFailed {
        at: Option<Position>,
        epoch: u32,
        error: String,
        permanent: bool,
    },
    Blocked {
        at: Position,
        on: bool,
    },
    Exited {
        at: Position,
        epoch: u32,
        exit: Exit,
        /// The shim's clock of awake time.
        awake_ms: u64,
    },
    /// The shim's lock is free, and its spool ends without `exited`.
    ShimLost {
        epoch: u32,
        spawned: bool,
        killed: u32,
        clean: bool,
        /// The shim's clock in the last record of its spool.
        awake_ms: u64,
        /// The shim's own error message, if it left one. It is reported together with the exit.
        said: String,
        /// The processes that were killed.
        left: Vec<LeftProcess>,
    },
    Adopted {
        shim_pid: u32,
        epoch: u32,
    },
    /// The transcript was searched for a prompt whose process is gone.
    Probed {
        epoch: u32,
        key: String,
        reading: Reading,
    },
    /// Its clone exists, and nobody has worked in it. With `again`, it replaces an earlier clone.
    WorktreeMade {
        path: String,
        base: String,
        again: bool,
    },
    WorkFetched(WorkHome),
    Limit {
        limit: Limit,
        detail: String,
    },
    /// The agent of `epoch` gave no sign of life for too long.
    Stalled {
        epoch: u32,
        silent_s: u64,
        evidence: String,
    },
    /// A monitor found a problem in the behaviour of the working agent of `epoch`.
    Sick {
        epoch: u32,
        finding: Finding,
    },
    /// The model API has only made this trouble for so long, while the process of `epoch` tried.
    ApiDown {
        epoch: u32,
        trouble: Trouble,
        for_s: u64,
    },
    /// A call of ours, other than a prompt, has been unanswered for so long.
    CallOverdue {
        epoch: u32,
        call: String,
        waited_s: u64,
    },
    /// The shim has written this prompt to the agent's stdin. `at` is the position of its record,
    /// if that was read.
    Written {
        at: Option<Position>,
        epoch: u32,
        key: String,
    },
    /// The shim has written the answer to this request to the agent's stdin.
    AnswerWritten {
        at: Position,
        epoch: u32,
        id: String,
    },
    /// The process of `epoch` has waited for an answer as long as the hold.
    HoldOver {
        epoch: u32,
    },
    /// The agent of `epoch` is producing a message; the message is reported when it is complete.
    Speaks {
        epoch: u32,
    },
    /// A stretch of output was read that holds no event worth recording.
    Read {
        at: Position,
    },
    Send {
        key: String,
        by: String,
    },
    /// Somebody with the right to do so answered a request of the agent.
    Answer {
        id: String,
        answer: Answer,
        by: String,
        /// The key of the client's request; empty if the client gave none.
        key: String,
    },
    Interrupt {
        key: String,
        by: String,
    },
    Kill {
        reason: String,
        by: String,
    },
}
