//! The messages of the actors of one dispatch.

use muleteer_model::agent::event::AgentEvent;
use muleteer_model::dispatch::Ticket;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::{Position, Record};
use muleteer_model::journal::writer_detection::Touches;
use ractor::RpcReplyPort;

#[derive(Debug)]
pub enum JournalMsg {
    Boot,
    /// Durable events of this dispatch.
    Records(Vec<Record>),
    FileChanged(Touches),
    /// The file had to be replaced, and this was its state `Hand::patience` ago.
    Still(Option<FileState>),
    WatchAgain,
    /// Answered once the file exists. It must exist before the agent starts, because the agent may
    /// write to it at once.
    Ready(RpcReplyPort<()>),
    /// Answered when the file has everything that is durable.
    Flush(RpcReplyPort<()>),
}

/// The identity, length and last change of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    pub inode: u64,
    pub len: u64,
    pub changed: (i64, i64),
}

#[derive(Debug)]
pub enum LifeMsg {
    Boot,
    /// The pool has a slot.
    Admitted(Ticket),
    Input(Input),
    /// A command of a person or an agent. It is answered once it is durable and carried out as far
    /// as possible at once. The answer says whether it had an effect in this state.
    Command(Input, RpcReplyPort<bool>),
    /// A bounded batch of output, answered with the durable position.
    Output(Vec<Step>, RpcReplyPort<Position>),
    /// The link may be tried again after a failure: earlier requests to it are lost.
    LinkUp,
    /// The link's task for this epoch has ended, with its error if it failed.
    LinkEnded(u32, Option<String>),
    Wake,
    /// The shim of this epoch acknowledged that it wrote the bytes of this key.
    Written(u32, String),
    /// The agent of this epoch should have exited by now.
    Overdue(u32),
    /// It is time to check for signs of life again.
    Look,
    /// The call with this number should have been answered by now.
    CallDue(u64),
    /// The wait with this number has lasted as long as the hold, unless the machine slept.
    HoldDue(u64),
    /// An owned task has failed.
    Failed(String),
}

#[derive(Debug, Clone)]
pub struct Step {
    /// Everything before this position is accounted for once the step is.
    pub at: Position,
    pub input: StepInput,
    /// The shim's clock of awake time, at its last record.
    pub awake_ms: u64,
    /// The wall clock at the shim's last record, in Unix milliseconds; 0 if there is none.
    pub wall_ms: u64,
}

#[derive(Debug, Clone)]
pub enum StepInput {
    /// All events of one line, in order; empty for a line or stretch without events.
    Agent(Vec<AgentEvent>),
    Shim(Box<Input>),
    /// The shim wrote the bytes of this key (in hex) to the agent's stdin.
    Written(String),
}
