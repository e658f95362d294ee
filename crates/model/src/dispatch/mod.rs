//! The state of one dispatch, folded from its events. Folding only records; deciding is
//! [`crate::dispatch::life`]'s.
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
//! A dispatch that waits for the model API (`ApiWaiting`) is `Queued` too: it has no process and
//! holds no place, and the pool knows when others may ask the same API again.
//!
//! What happens to a prompt:
//!
//! ```text
//!            PromptSent       receipt           turn ended
//!  Queued ───────────────▶ Sent ──────▶ Taken ──────────────▶ Done
//!    ▲                      │             │
//!    └── process gone ──────┘             └── process gone ──▶ Superseded (by a `Continue`)
//! ```
//!
//! Where the CLI keeps a transcript, that decides instead, for both, once the process is gone
//! ([`crate::agent::transcript`]): not taken goes back to `Queued`, taken is `Taken`, and what
//! cannot be told is `Doubtful`, which ends the dispatch as `blocked`.

pub mod child_limits;
pub mod cost;
pub mod fleet;
pub mod life;
pub mod retention;
pub mod work;

mod calls;
mod fold;

pub use calls::{AskedCall, Permitted, SessionMode, ToldCall, WHOLE_LIMIT};

use crate::admission::api_error::Outage;
use crate::agent::acp_handshake::{CallFailure, Opening};
use crate::agent::ask::Asks;
use crate::agent::event::TurnError;
use crate::agent::result::AgentResult;
use crate::agent::transcript::Standing;
use crate::dispatch::work::WorkHome;
use crate::event::id::DispatchId;
use crate::event::{Created, ExitCause, FinalState, Limit, Position, PromptKind};
use crate::monitor::Monitor;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    pub id: DispatchId,
    /// As it was asked for. Shared: it never changes, and each event makes a copy of all else.
    pub created: Arc<Created>,
    pub created_at: Timestamp,
    /// Of the record that created it: nothing about it is older.
    pub created_seq: u64,
    pub phase: Phase,
    pub since: Timestamp,
    pub last_activity: Option<Timestamp>,
    pub reason: Option<String>,
    pub attempts: u32,
    /// The newest spool epoch; 0 before the first start.
    pub epoch: u32,
    pub turns: u32,
    pub restarts: u32,
    /// Shims in a row that died before they released their agent.
    pub start_failures: u32,
    pub session_id: Option<String>,
    pub session_model: Option<String>,
    /// How many sessions were begun under ids of our choosing and came to nothing.
    pub sessions_spoiled: u32,
    /// The session that was to go on and that its CLI no longer has.
    pub session_lost: Option<String>,
    /// Why it is not known what became of a prompt.
    pub doubt: Option<String>,
    /// How far the opening of its session has come, of an agent spoken to by calls.
    pub opening: Opening,
    /// Why the present process is being ended.
    pub call_failed: Option<CallFailure>,
    /// What the agent said last in its turn, where nothing but that is its answer.
    pub said: Option<String>,
    pub containment: Option<String>,
    /// That the clone it works in was made is on record.
    pub cloned: bool,
    pub prompts: Vec<Prompt>,
    pub spend: Spend,
    pub position: Position,
    pub stop: Option<Stop>,
    /// The model somebody asked for after it was made: the next process gets it.
    pub model_wanted: Option<String>,
    /// How its open session changes models, where it is spoken to by calls and can.
    pub model_by: Option<String>,
    /// That its running CLI is to be told, under this key; and what it had before.
    pub model_change: Option<(String, Option<String>)>,
    /// What its agent waits to be told.
    pub asks: Asks,
    /// Calls of tools that have not come to an end, as far as it is known.
    pub calls: Vec<String>,
    /// Those among them that subagents made.
    pub subcalls: Vec<String>,
    /// What its agent has told people in this attempt.
    pub notices: Vec<String>,
    /// What a monitor has warned of since somebody last spoke to it.
    pub warned: Option<String>,
    /// The newest interrupt that was asked for and has not ended a turn.
    pub interrupt: Option<String>,
    /// The name its agent gave itself when it was greeted.
    pub agent: String,
    /// Calls told in this turn, and what was asked for in it, of an agent that is spoken to by
    /// calls.
    pub told: Vec<ToldCall>,
    pub asked: Vec<AskedCall>,
    /// The mode of the session in its present process, where its agent has such.
    pub mode: SessionMode,
    /// Tools that a person has allowed for good, in the agent's own words.
    pub leaves: Vec<String>,
    /// In the running turn a person, or the agent's parent, has refused something it asked for.
    pub refused: bool,
    pub result: Option<AgentResult>,
    pub result_faults: Vec<String>,
    /// In this attempt it gave a result that no text stood in front of.
    pub own_result: bool,
    pub repair_used: bool,
    pub blocked_by_us: bool,
    pub first_started: Option<Timestamp>,
    /// The model API's trouble, since it last answered.
    pub outage: Option<Outage>,
    /// Awake time of all its processes that have ended.
    pub used_ms: u64,
    /// Of the newest process: the shim's clock when it began, and how long it lived once that is
    /// over.
    pub began_ms: u64,
    pub lived_ms: u64,
    /// How often the model has spoken, as far as the events tell: once for a prompt, and once for
    /// the results of its tools.
    pub model_turns: u32,
    /// What is said next is another model turn.
    pub model_owes: bool,
    /// Somebody spoke to it while it was being ended for its silence.
    pub spoken_to: bool,
    /// The machine was started anew since its newest attempt began: nothing of that lives, and what
    /// was not synced may be lost. So nobody can tell by what is there that its agent has not run.
    pub rebooted: bool,
    /// The machine was started anew while this was unfinished, and its agent has not ended a turn
    /// since: what was written last, by the agent or for it, may be lost.
    pub unsynced: bool,
    /// How often it had ended and was spoken to again.
    pub reopened: u32,
    pub fetched: Option<String>,
    /// What came home when it ended last. It stays while the dispatch is spoken to again.
    pub work: Option<WorkHome>,
    /// The commit that its clone began at.
    pub base: Option<String>,
    /// What its agent left is removed, or about to be: it cannot be spoken to again.
    pub files_removed: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Durable; waits for the pool.
    Queued,
    /// The intent to start epoch `epoch` is durable; its agent may or may not run yet.
    Starting {
        attempt: u32,
        epoch: u32,
    },
    Working {
        attempt: u32,
        epoch: u32,
        pid: u32,
        shim_pid: u32,
        turn: Turn,
    },
    /// The process of `attempt` is gone; how the attempt ended is not yet recorded.
    Gone {
        attempt: u32,
        epoch: u32,
        exit: Exit,
        turn: Turn,
    },
    Backoff {
        attempt: u32,
        until: Timestamp,
        delay_ms: u64,
    },
    /// `spoken_to`: somebody spoke too late for the decision to end, so the end is a beginning.
    Closing {
        state: FinalState,
        reason: String,
        spoken_to: bool,
    },
    Finished {
        state: FinalState,
    },
}

/// What a place in the pool is promised for: a dispatch that has had it, or has ended and waits
/// anew, needs another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    epoch: u32,
    reopened: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// No prompt is being worked on since the process began.
    None,
    Running {
        key: String,
    },
    /// The last turn ended so. `leaving`: nothing was left to say to this process, so its stdin is
    /// being closed; who speaks from now on speaks to its successor.
    Done {
        ok: bool,
        error: Option<TurnError>,
        status: Option<u16>,
        text: String,
        leaving: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: ExitCause,
    pub stderr_tail: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub key: String,
    pub kind: PromptKind,
    pub state: PromptState,
    /// Sent, and the shim has acknowledged that the agent's stdin holds it.
    pub written: bool,
    /// What the transcript said, since it was last sent.
    pub standing: Option<Standing>,
}

impl Prompt {
    /// Somebody's further word that the agent is still to be given: a kill withdraws it.
    pub fn is_waiting(&self) -> bool {
        self.kind == PromptKind::Send && self.state == PromptState::Queued
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptState {
    Queued,
    /// On its way to this process; no receipt yet.
    Sent,
    /// The CLI has it: its turn runs.
    Taken,
    Done,
    /// Its turn was cut by a crash and a `Continue` prompt stands for it; or by the end of the
    /// dispatch, and what was said next in its session does.
    Superseded,
    /// It was queued behind a turn, or was to be sent again, and somebody killed the agent: nobody
    /// is given it any more.
    Withdrawn,
    /// Not even the CLI's transcript tells whether it was taken: a person is asked.
    Doubtful,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    Kill {
        reason: String,
    },
    Limit {
        limit: Limit,
        detail: String,
    },
    Stall {
        silent_s: u64,
        evidence: String,
    },
    /// The model API is not asked any more.
    Api {
        reason: String,
    },
    /// It used a tool without asking, which its policy would have asked about or refused.
    Policy {
        reason: String,
    },
    /// It was at work, and sick.
    Monitor {
        monitor: Monitor,
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spend {
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub per_model: BTreeMap<String, crate::agent::event::ModelUsage>,
    /// What the current OS process has reported and is already counted, by model.
    pub process: BTreeMap<String, crate::agent::event::ModelUsage>,
    /// What the current process told call by call. Its total, if it tells one, has that in it.
    pub calls_usd: f64,
    /// What the current process told last as the cost of the whole session.
    pub told_usd: Option<f64>,
    /// The same of all processes its session has had.
    pub session: BTreeMap<String, crate::agent::event::ModelUsage>,
}

impl Turn {
    pub fn was_interrupted(&self) -> bool {
        matches!(self, Self::Done { error: Some(TurnError::Interrupted), .. })
    }

    /// The session is whole and can be spoken to.
    pub fn ended_well(&self) -> bool {
        matches!(self, Self::Done { ok: true, .. }) || self.was_interrupted()
    }
}

impl Dispatch {
    pub fn new(id: DispatchId, created: Created, at: Timestamp) -> Self {
        Self {
            id,
            created: Arc::new(created),
            created_at: at,
            created_seq: 0,
            phase: Phase::Queued,
            since: at,
            last_activity: None,
            reason: None,
            attempts: 0,
            epoch: 0,
            turns: 0,
            restarts: 0,
            start_failures: 0,
            session_id: None,
            session_model: None,
            sessions_spoiled: 0,
            session_lost: None,
            doubt: None,
            opening: Opening::Ready,
            call_failed: None,
            said: None,
            containment: None,
            cloned: false,
            prompts: vec![],
            spend: Spend::default(),
            position: Position::default(),
            stop: None,
            model_wanted: None,
            model_by: None,
            model_change: None,
            asks: Asks::default(),
            calls: vec![],
            subcalls: vec![],
            notices: vec![],
            warned: None,
            interrupt: None,
            agent: String::new(),
            told: vec![],
            asked: vec![],
            mode: SessionMode::default(),
            leaves: vec![],
            refused: false,
            result: None,
            result_faults: vec![],
            own_result: false,
            repair_used: false,
            blocked_by_us: false,
            first_started: None,
            outage: None,
            used_ms: 0,
            began_ms: 0,
            lived_ms: 0,
            model_turns: 0,
            model_owes: false,
            spoken_to: false,
            rebooted: false,
            unsynced: false,
            reopened: 0,
            fetched: None,
            work: None,
            base: None,
            files_removed: false,
        }
    }

    /// The state as `status` shows it (contract.md, "States and outcomes").
    pub fn state(&self) -> &'static str {
        match &self.phase {
            _ if self.waits_for_api() => "waiting",
            Phase::Queued => "queued",
            Phase::Starting { .. } | Phase::Backoff { .. } => "starting",
            Phase::Working { turn, .. } if turn.was_interrupted() && !self.has_unheard() => {
                "waiting"
            }
            Phase::Working { .. } if self.waits_for_an_answer() => "waiting",
            Phase::Working { .. } | Phase::Gone { .. } | Phase::Closing { .. } => "running",
            Phase::Finished { state } => state.as_str(),
        }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }

    /// Somebody killed it, and it has not ended yet: what is said to it now, nobody hears.
    pub fn is_being_killed(&self) -> bool {
        matches!(self.stop, Some(Stop::Kill { .. })) && !self.is_finished()
    }

    /// It was told something that it has not taken yet, and nothing but a moment is between.
    pub fn is_about_to_turn(&self) -> bool {
        let between = match &self.phase {
            Phase::Queued => !self.waits_for_api(),
            Phase::Starting { .. } => true,
            Phase::Working { turn, .. } => !matches!(turn, Turn::Running { .. }),
            _ => false,
        };
        between && self.stop.is_none() && self.has_unheard()
    }

    /// Having ended, it can be spoken to again.
    pub fn can_go_on(&self) -> bool {
        self.created.resumable && !self.files_removed
    }

    /// The model API owes it an answer and has only made trouble since it was asked.
    pub fn waits_for_api(&self) -> bool {
        let asks = self.phase == Phase::Queued || self.owes_an_answer().is_some();
        asks && self.stop.is_none() && self.outage.is_some()
    }

    /// It has begun, or is about to end, and has not ended.
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::Finished { .. })
    }

    /// At work, as the pool counts: it has an agent, or will have one without being let in again.
    /// One that closes has none any more, or never had one: being killed while it waited is no way
    /// in.
    pub fn is_at_work(&self) -> bool {
        self.is_active() && !matches!(self.phase, Phase::Closing { .. })
    }

    /// Its clone may be there in part, and nobody has worked in it: it is to be made again.
    pub fn distrusts_clone(&self) -> bool {
        self.unsynced && self.containment.is_none()
    }

    /// The process of this epoch has been given something to do and is not done with it: what
    /// [`crate::monitor::stall`] watches.
    pub fn owes_an_answer(&self) -> Option<u32> {
        match &self.phase {
            Phase::Working { epoch, turn, .. } if self.stop.is_none() => {
                let sent = self.prompts.iter().any(|p| p.state == PromptState::Sent);
                (sent || matches!(turn, Turn::Running { .. })).then_some(*epoch)
            }
            _ => None,
        }
    }

    /// Somebody has to say something before its agent goes on.
    pub fn waits_for_an_answer(&self) -> bool {
        matches!(self.phase, Phase::Working { .. })
            && self.stop.is_none()
            && self.asks.open().next().is_some()
    }

    /// The model its next process is started with; `None` leaves it to the CLI.
    pub fn model(&self) -> Option<&String> {
        self.model_wanted.as_ref().or(self.created.model.as_ref())
    }

    pub fn next_prompt(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.state == PromptState::Queued)
    }

    /// The prompt that was sent to this process and that nobody has acknowledged to be written.
    pub fn unwritten(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.state == PromptState::Sent && !p.written)
    }

    /// There is a prompt that no agent is known to have taken.
    pub fn has_unheard(&self) -> bool {
        self.prompts.iter().any(|p| matches!(p.state, PromptState::Queued | PromptState::Sent))
    }

    /// The next prompt whose fate only the transcript can tell, now that its process is gone. A
    /// turn that ended by the agent's own word, or by a person's, needs no other.
    pub fn to_probe(&self) -> Option<&Prompt> {
        let Phase::Gone { turn, .. } = &self.phase else { return None };
        if !self.created.transcripts {
            return None;
        }
        let told = matches!(turn, Turn::Done { .. }) || self.interrupt.is_some();
        self.prompts.iter().find(|p| match p.state {
            PromptState::Sent => true,
            PromptState::Taken => p.standing.is_none() && !told,
            _ => false,
        })
    }

    /// A prompt's turn was cut by the end of its process.
    pub fn is_cut_short(&self) -> bool {
        self.prompts.iter().any(|p| p.state == PromptState::Taken)
    }

    /// Where the turn was cut that is to be gone on with, as the transcript tells.
    pub fn cut_at(&self) -> Option<Standing> {
        let mut cut = self
            .prompts
            .iter()
            .rev()
            .filter(|p| matches!(p.state, PromptState::Superseded | PromptState::Taken));
        cut.find_map(|p| p.standing)
    }

    /// Its session holds something: a prompt was taken in it.
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

    /// For the place it waits for now, or waited for last.
    pub fn ticket(&self) -> Ticket {
        Ticket { epoch: self.epoch, reopened: self.reopened }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use crate::event::{Created, Limits};

    /// A dispatch of no particular kind, for tests.
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
            can_ask: true,
            unattended_s: None,
            transcripts: false,
            folds: false,
            api: crate::admission::api_error::Terms::default(),
            watched: crate::monitor::Terms::default(),
            fingerprint: text("x"),
        }
    }
}
