//! The state of one dispatch, folded from its events. Folding only records;
//! [`crate::dispatch::life`] decides.
//!
//! ```text
//!            AttemptStarted        AgentSpawned              turn done, nothing queued,
//!  Queued ───────────────▶ Starting ──────────▶ Working ─┐  stdin closed, process gone
//!    ▲                        ▲                  │  │    │
//!    │ PromptQueued           │ AttemptStarted   │  │    ▼
//!    │ (a further turn)       └────── Backoff ◀──┘  │  Closing ──▶ Finished
//!    │                          RestartScheduled    │  (work fetched)   │
//!    └──────────────────────────────────────────────┴──────────────────┘
//! ```
//!
//! A dispatch that waits for the model API (`ApiWaiting`) is `Queued` too. It has no process and
//! holds no pool slot, and the pool knows when others may ask the same API again.
//!
//! A phase owns the data that is true only in it: `Working` and `Gone` own the [`Process`]. The
//! modules `records` and `spend` have the parts that outlive the phases.
//!
//! The states of a prompt:
//!
//! ```text
//!            PromptSent       receipt           turn ended
//!  Queued ───────────────▶ Sent ──────▶ Taken ──────────────▶ Done
//!    ▲                      │             │
//!    └── process gone ──────┘             └── process gone ──▶ Superseded (by a `Continue`)
//! ```
//!
//! If the CLI keeps a transcript, the transcript decides in both cases once the process is gone
//! ([`crate::agent::transcript`]). A prompt that was not taken goes back to `Queued`, a taken one
//! is `Taken`. If the transcript cannot tell, the prompt is `Doubtful`, and the dispatch ends as
//! `blocked`.

pub mod child_limits;
pub mod closing;
pub mod cost;
pub mod fleet;
pub mod life;
pub mod retention;
pub mod work;

mod attempt_end;
mod calls;
mod fold;
mod process;
mod records;
mod spend;

pub use attempt_end::AttemptEnd;
pub use calls::{
    AskedCall, OpenCalls, Permitted, SessionMode, ToldCall, WHOLE_LIMIT, answer_prompt,
};
pub use process::Process;
pub use records::{
    Files, ModelChange, ModelChoice, ResultState, Retries, SessionContent, SessionState, Stop,
    TurnFailure, Usage, Warnings,
};
pub use spend::{ProcessUsage, Spend};

use crate::admission::api_error::Outage;
use crate::agent::ask::Asks;
use crate::agent::backend::Traits;
use crate::agent::capability::Agent;
use crate::agent::event::TurnError;
use crate::agent::transcript::Standing;
use crate::event::id::DispatchId;
use crate::event::{Created, ExitCause, FinalState, LeftProcess, Position, PromptKind};
use crate::monitor::healing::state::HealingState;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dispatch {
    pub id: DispatchId,
    /// The request as it was recorded. It is shared because it never changes, and each event copies
    /// everything else.
    pub created: Arc<Created>,
    /// The properties of its CLI, as this build knows them.
    #[serde(skip)]
    pub traits: Traits,
    pub created_at: Timestamp,
    /// The sequence number of the record that created it: no record about it is older.
    pub created_seq: u64,
    /// The boot id of the machine when it was created.
    pub boot_id: Arc<str>,
    /// The sequence number of the newest record about it.
    pub last_seq: u64,
    pub phase: Phase,
    pub since: Timestamp,
    pub last_activity: Option<Timestamp>,
    pub reason: Option<String>,
    pub attempts: u32,
    /// How its newest attempt ended, if one has ended since it was last reopened.
    pub ended: Option<AttemptEnd>,
    /// The newest spool epoch; 0 before the first start.
    pub epoch: u32,
    pub turns: u32,
    pub retries: Retries,
    pub session: SessionState,
    pub model: ModelChoice,
    pub prompts: Vec<Prompt>,
    pub position: Position,
    /// The sequence number of the record that began the newest turn, and the position there.
    #[serde(default)]
    pub turn_began: Option<(u64, Position)>,
    pub stop: Option<Stop>,
    /// The keys of the newest interrupts, oldest first: a repeated request interrupts no later
    /// turn.
    #[serde(default)]
    pub interrupts: Vec<String>,
    /// The requests for which the agent waits for an answer, and the newest answers.
    pub asks: Asks,
    /// Its calls of Muleteer's MCP server.
    #[serde(default)]
    pub mcp: crate::event::mcp::Calls,
    pub result: ResultState,
    pub warnings: Warnings,
    pub spend: Spend,
    pub usage: Usage,
    /// The trouble of the model API since it last answered.
    pub outage: Option<Outage>,
    /// How the newest process is contained; `None` before the first one.
    pub containment: Option<String>,
    pub files: Files,
    /// The healing of its last trouble.
    #[serde(default)]
    pub healing: HealingState,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    /// The dispatch is durable and waits for the pool.
    Queued,
    /// The intent to start epoch `epoch` is durable; the agent may or may not run yet.
    Starting {
        attempt: u32,
        epoch: u32,
        /// See [`Process::rebooted`].
        rebooted: bool,
    },
    Working {
        attempt: u32,
        epoch: u32,
        pid: u32,
        shim_pid: u32,
        turn: Turn,
        process: Box<Process>,
    },
    /// The process of `attempt` is gone; the outcome of the attempt is not recorded yet.
    Gone {
        attempt: u32,
        epoch: u32,
        exit: Exit,
        turn: Turn,
        process: Box<Process>,
        /// The awake time that the process lived, in milliseconds.
        lived_ms: u64,
        /// The reason why the fate of a prompt is unknown.
        doubt: Option<String>,
    },
    Backoff {
        attempt: u32,
        until: Timestamp,
        delay_ms: u64,
    },
    /// The final state is decided. With `spoken_to`, a message arrived too late for that decision,
    /// and the dispatch is reopened when it ends.
    Closing {
        state: FinalState,
        reason: String,
        spoken_to: bool,
        /// The fetch of its work is on record.
        fetched: bool,
    },
    Finished {
        state: FinalState,
    },
}

/// Identifies what a pool slot is promised for. A dispatch that used its slot, or that ended and
/// waits again, needs a new promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    epoch: u32,
    reopened: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Turn {
    /// The process has not worked on a prompt since it began.
    None,
    Running {
        key: String,
    },
    /// The last turn ended so. With `leaving`, no prompt was left for this process and its stdin is
    /// being closed; further prompts go to its successor.
    Done {
        ok: bool,
        error: Option<TurnError>,
        status: Option<u16>,
        text: String,
        leaving: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: ExitCause,
    pub stderr_tail: String,
    /// The processes that it left and its shim killed.
    pub left: Vec<LeftProcess>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    pub key: String,
    pub kind: PromptKind,
    pub state: PromptState,
    /// The prompt was sent, and the shim acknowledged that it wrote it to the agent's stdin.
    pub written: bool,
    /// The transcript's finding since the prompt was last sent.
    pub standing: Option<Standing>,
}

impl Prompt {
    /// Whether this is a follow-up that the agent has not received: a kill withdraws it.
    pub fn is_waiting(&self) -> bool {
        self.kind == PromptKind::Send && self.state == PromptState::Queued
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PromptState {
    Queued,
    /// The prompt is on its way to this process; there is no receipt yet.
    Sent,
    /// The CLI has the prompt: its turn runs.
    Taken,
    Done,
    /// Its turn was cut. After a crash, a `Continue` prompt replaces it; after the end of the
    /// dispatch, the next message in its session does.
    Superseded,
    /// Somebody killed the agent while the prompt was queued behind a turn, or was to be sent
    /// again. No agent receives it any more.
    Withdrawn,
    /// The dispatch of a thread ended before an agent got the prompt. No agent of this dispatch
    /// receives it any more: the thread gives it to another one, or tells its author.
    Returned,
    /// Even the CLI's transcript does not tell whether the prompt was taken: a person is asked.
    Doubtful,
}

impl Turn {
    pub fn was_interrupted(&self) -> bool {
        matches!(self, Self::Done { error: Some(TurnError::Interrupted), .. })
    }

    /// Whether the session is intact and takes a further prompt.
    pub fn ended_well(&self) -> bool {
        matches!(self, Self::Done { ok: true, .. }) || self.was_interrupted()
    }
}

impl Dispatch {
    pub fn new(id: DispatchId, created: Created, at: Timestamp) -> Self {
        Self {
            id,
            created: Arc::new(created),
            traits: Traits::default(),
            created_at: at,
            created_seq: 0,
            boot_id: Arc::default(),
            last_seq: 0,
            phase: Phase::Queued,
            since: at,
            last_activity: None,
            reason: None,
            attempts: 0,
            ended: None,
            epoch: 0,
            turns: 0,
            retries: Retries::default(),
            session: SessionState::default(),
            model: ModelChoice::default(),
            prompts: vec![],
            position: Position::default(),
            turn_began: None,
            stop: None,
            interrupts: vec![],
            asks: Asks::default(),
            mcp: crate::event::mcp::Calls::default(),
            result: ResultState::default(),
            warnings: Warnings::default(),
            spend: Spend::default(),
            usage: Usage::default(),
            outage: None,
            containment: None,
            files: Files::default(),
            healing: HealingState::default(),
        }
    }

    /// The state as `status` shows it (contract.md, "States and outcomes").
    pub fn state(&self) -> &'static str {
        match &self.phase {
            _ if self.waits_for_api() => "waiting",
            Phase::Queued if self.awaits_answer() => "waiting",
            Phase::Queued => "queued",
            Phase::Starting { .. } | Phase::Backoff { .. } => "starting",
            Phase::Working { turn, .. } if turn.was_interrupted() && !self.has_unheard() => {
                "waiting"
            }
            Phase::Working { .. } if self.waits_for_an_answer() || self.waits_for_agents() => {
                "waiting"
            }
            Phase::Working { .. } if self.holds_idle() => "idle",
            Phase::Working { .. } | Phase::Gone { .. } | Phase::Closing { .. } => "running",
            // A conversation that owes nothing goes on with the next message.
            Phase::Finished { state: FinalState::Success | FinalState::Partial }
                if self.created.thread().is_some() =>
            {
                "idle"
            }
            Phase::Finished { state } => state.as_str(),
        }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }

    /// Whether somebody killed it and it has not ended yet: no agent receives a message sent now.
    pub fn is_being_killed(&self) -> bool {
        matches!(self.stop, Some(Stop::Kill { .. })) && !self.is_finished()
    }

    /// Whether somebody killed or closed it: no message revives it. The stop of a daemon with its
    /// agents is different, because nobody judged this agent: a message continues its session.
    pub fn was_killed_for_good(&self) -> bool {
        matches!(self.phase, Phase::Finished { state: FinalState::Killed })
            && !self.stop.as_ref().is_some_and(Stop::is_with_daemon)
    }

    /// Whether its agent was interrupted and waits for a message.
    pub fn is_idle(&self) -> bool {
        matches!(&self.phase, Phase::Working { turn, .. } if turn.was_interrupted())
            && !self.has_unheard()
            && self.stop.is_none()
    }

    /// Whether it has a prompt that is about to be taken, with nothing but a short delay before
    /// that.
    pub fn is_about_to_turn(&self) -> bool {
        let between = match &self.phase {
            Phase::Queued => !self.waits_for_api(),
            Phase::Starting { .. } => true,
            Phase::Working { turn, .. } => !matches!(turn, Turn::Running { .. }),
            _ => false,
        };
        between && self.stop.is_none() && self.has_unheard()
    }

    /// Whether it can take a further prompt after it has ended.
    pub fn can_go_on(&self) -> bool {
        self.created.resumable && !self.files.removed && !self.files.clone_removed
    }

    /// Whether the model API owes it an answer and has only made trouble since the request.
    pub fn waits_for_api(&self) -> bool {
        let asks = self.phase == Phase::Queued || self.owes_an_answer().is_some();
        asks && self.stop.is_none() && self.outage.is_some()
    }

    /// Whether it has begun, or is about to end, and has not ended.
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::Finished { .. })
    }

    /// Whether the pool counts it: it has an agent, or will have one without another admission. A
    /// closing dispatch has no agent any more, or never had one. So a dispatch that is killed in
    /// the queue does not get a slot by that.
    pub fn is_at_work(&self) -> bool {
        self.is_active() && !matches!(self.phase, Phase::Closing { .. })
    }

    /// Whether its clone may be incomplete while nobody has worked in it: it must be made again.
    pub fn distrusts_clone(&self) -> bool {
        self.files.unsynced && self.containment.is_none()
    }

    /// Returns the epoch of the process that has a prompt and is not done with it.
    /// [`crate::monitor::stall`] watches that process.
    pub fn owes_an_answer(&self) -> Option<u32> {
        match &self.phase {
            Phase::Working { epoch, turn, .. } if self.stop.is_none() => {
                let sent = self.prompts.iter().any(|p| p.state == PromptState::Sent);
                (sent || matches!(turn, Turn::Running { .. })).then_some(*epoch)
            }
            _ => None,
        }
    }

    /// Whether an answer to its requests reaches an agent: the one that asked, or the next one.
    pub fn takes_answers(&self) -> bool {
        self.stop.is_none() && !matches!(self.phase, Phase::Closing { .. } | Phase::Finished { .. })
    }

    /// Returns the known agent that it runs, by the name that the agent gave itself. The agent must
    /// give its exact name.
    pub fn agent(&self) -> Option<&'static Agent> {
        let is_named = |name: &&str| {
            let (start, rest) = self.session.agent.split_at_checked(name.len()).unwrap_or_default();
            start.eq_ignore_ascii_case(name) && (rest.is_empty() || is_version(rest))
        };
        self.traits.agents.iter().find(|agent| agent.names.iter().any(&is_named))
    }

    /// Returns the known agent that it runs: by the name that the agent gave itself, else by the
    /// program that was started.
    pub fn known_agent(&self) -> Option<&'static Agent> {
        self.agent().or_else(|| self.created.known_agent(self.traits))
    }

    /// The model that its next process is started with; `None` leaves the choice to the CLI.
    pub fn model(&self) -> Option<&String> {
        self.model.wanted.as_ref().or(self.created.model.as_ref())
    }

    /// The model that its process uses, or that its next process will use, as far as it is known.
    pub fn model_in_use(&self) -> Option<&String> {
        let runs = matches!(self.phase, Phase::Starting { .. } | Phase::Working { .. });
        let next = self.model.change.as_ref().filter(|_| !runs).and(self.model.wanted.as_ref());
        next.or_else(|| self.model_of_process())
    }

    /// The model that its newest process uses or used, as far as it is known.
    pub fn model_of_process(&self) -> Option<&String> {
        self.session.model.as_ref().or_else(|| match &self.model.change {
            Some(change) => change.before.as_ref().or(self.created.model.as_ref()),
            None => self.model(),
        })
    }

    pub fn next_prompt(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.state == PromptState::Queued)
    }

    /// The prompt that was sent to this process and whose writing is not acknowledged.
    pub fn unwritten(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.state == PromptState::Sent && !p.written)
    }

    /// Whether there is a prompt that no agent is known to have taken.
    pub fn has_unheard(&self) -> bool {
        self.prompts.iter().any(|p| matches!(p.state, PromptState::Queued | PromptState::Sent))
    }

    /// Returns the next prompt that has to be probed in the transcript, now that its process is
    /// gone. A turn that the agent or a person ended needs no probe.
    pub fn to_probe(&self) -> Option<&Prompt> {
        let Phase::Gone { turn, process, .. } = &self.phase else { return None };
        if !self.created.transcripts {
            return None;
        }
        let told = matches!(turn, Turn::Done { .. }) || process.interrupt.is_some();
        self.prompts.iter().find(|p| match p.state {
            PromptState::Sent => true,
            PromptState::Taken => p.standing.is_none() && !told,
            _ => false,
        })
    }

    /// Whether the end of its process cut the turn of a prompt.
    pub fn is_cut_short(&self) -> bool {
        self.prompts.iter().any(|p| p.state == PromptState::Taken)
    }

    /// Returns where the turn that is to be continued was cut, according to the transcript.
    pub fn cut_at(&self) -> Option<Standing> {
        let mut cut = self
            .prompts
            .iter()
            .rev()
            .filter(|p| matches!(p.state, PromptState::Superseded | PromptState::Taken));
        cut.find_map(|p| p.standing)
    }

    /// Whether its session holds anything: a prompt was taken in it.
    pub fn has_history(&self) -> bool {
        let heard = |p: &Prompt| {
            matches!(p.state, PromptState::Taken | PromptState::Done | PromptState::Superseded)
        };
        self.prompts.iter().any(heard)
    }

    pub fn prompt(&self, key: &str) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.key == key)
    }

    pub fn pid(&self) -> Option<u32> {
        match self.phase {
            Phase::Working { pid, .. } => Some(pid),
            _ => None,
        }
    }

    /// The ticket for the slot that it waits for now, or waited for last.
    pub fn ticket(&self) -> Ticket {
        Ticket { epoch: self.epoch, reopened: self.retries.reopened }
    }
}

fn is_version(text: &str) -> bool {
    text.strip_prefix(' ').is_some_and(|version| {
        version.starts_with(|c: char| c.is_ascii_digit() || c == 'v')
            && !version.contains(char::is_whitespace)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use crate::event::{Created, Limits};

    /// Returns the request of an ordinary dispatch, for tests.
    pub fn created() -> Created {
        let limits = Limits {
            budget_usd: None,
            max_turns: None,
            timeout_s: None,
            inactivity_timeout_s: 300,
            max_restarts: 3,
        };
        let text = |text: &str| text.to_string();
        Created {
            role: text("developer"),
            category: text("coding"),
            project: text("/p"),
            repository: None,
            feature: text("f"),
            title: None,
            spec: None,
            backend: text("rehearsal"),
            model: None,
            model_source: None,
            limits,
            purse: None,
            worktree: None,
            branch: None,
            journal: text("/p/j.md"),
            parent: None,
            by: text("operator"),
            multi_turn: true,
            resumable: true,
            wants_result: true,
            calls: None,
            program: None,
            trace: None,
            ask_on_crash: false,
            permissions: crate::agent::permission::Policy::default(),
            confined: false,
            can_ask: true,
            unattended_s: None,
            hold_s: None,
            mcp: None,
            idle_hold_s: None,
            role_fault: None,
            thread_verbosity: None,
            transcripts: false,
            folds: false,
            api: crate::admission::api_error::Terms::default(),
            watched: crate::monitor::Terms::default(),
            fingerprint: text("x"),
        }
    }
}
