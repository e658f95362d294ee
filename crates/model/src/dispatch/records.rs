//! The parts of a dispatch's state that outlive its phases.

use crate::agent::event::TurnError;
use crate::agent::result::AgentResult;
use crate::dispatch::work::WorkHome;
use crate::event::Limit;
use crate::monitor::Monitor;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Restarts and further turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Retries {
    pub restarts: u32,
    /// The number of shims in a row that died before they released their agent.
    pub start_failures: u32,
    /// The number of times the dispatch had ended and was reopened by a message.
    pub reopened: u32,
}

/// The session of the agent's CLI.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionState {
    pub id: Option<String>,
    /// When the session was made, as far as it is known.
    pub made_at: Option<Timestamp>,
    pub model: Option<String>,
    /// The name that the agent gave itself in its greeting.
    pub agent: String,
    /// The tools that a person has allowed permanently, by the agent's own names.
    pub allowed_tools: Vec<String>,
    /// The number of sessions that were begun under ids of our choosing and cannot be used.
    pub spoiled: u32,
    pub content: SessionContent,
    /// The prompts that were sent in this session while it had no content.
    pub unanswered: Vec<String>,
    /// The CLI no longer has the session with its history, and no new one has begun.
    #[serde(default)]
    pub lost: bool,
}

/// The content of a session, as far as the events show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SessionContent {
    /// The agent has reported the failure of each prompt that was sent in the session, and nothing
    /// else: no tool has run, and no model has answered.
    #[default]
    Nothing,
    /// A prompt is on its way or its turn runs, and the agent has reported nothing about it.
    Awaited,
    /// The agent has answered or acted in the session, or a prompt in it has an unknown fate.
    Something,
}

/// The model that somebody requested after the dispatch was created.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ModelChoice {
    /// The next process gets this model.
    pub wanted: Option<String>,
    /// The method that changes the model of the open session, if the agent speaks by calls and
    /// offers one.
    pub set_by: Option<String>,
    /// The change that the CLI has not answered.
    pub change: Option<ModelChange>,
    /// The change that a process uses, and with which no turn has ended well.
    pub on_trial: Option<ModelChange>,
}

/// A requested change of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelChange {
    pub key: String,
    /// The model that was wanted before; it is wanted again if the change is refused.
    pub before: Option<String>,
    /// The model that the session used before, as far as it is known.
    pub used: Option<String>,
    /// The newest turn when the change took effect: a later turn proves it.
    pub turn: u32,
}

/// The agent's answer and its validated result.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ResultState {
    /// The last message of the current turn, if messages are this agent's answer.
    pub said: Option<String>,
    pub value: Option<AgentResult>,
    pub faults: Vec<String>,
    pub repair_used: bool,
    /// The failure of the last turn that a one-shot agent reported. Its process goes on after it.
    pub failure: Option<TurnFailure>,
}

/// A turn that failed by the agent's own report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnFailure {
    pub error: Option<TurnError>,
    pub status: Option<u16>,
    pub text: String,
}

/// Warnings for people.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Warnings {
    /// The agent's notices in this attempt.
    pub notices: Vec<String>,
    /// The newest warning of a monitor since somebody last spoke to the agent.
    pub monitor: Option<String>,
}

/// The use of time and of model turns, by all processes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The awake time of all processes that have ended, in milliseconds.
    pub awake_ms: u64,
    /// The number of model turns, as far as the events tell: one for a prompt, and one for each
    /// round of tool results.
    pub model_turns: u32,
    /// The next output of the model begins another model turn.
    pub owes_model_turn: bool,
}

/// The clone and the other files of the dispatch.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Files {
    /// The creation of its clone is on record.
    pub cloned: bool,
    /// The commit from which its clone was made.
    pub base: Option<String>,
    /// The work that was fetched when it ended last. The value stays when the dispatch is reopened.
    pub work: Option<WorkHome>,
    /// Its files are removed, or about to be: it cannot be sent a further prompt.
    pub removed: bool,
    /// Its clone is removed, or about to be: it cannot be sent a further prompt.
    pub clone_removed: bool,
    /// The machine was rebooted while this dispatch was unfinished, and its agent has not ended a
    /// turn since. The newest files, by the agent or for it, may be lost.
    pub unsynced: bool,
}

/// The reason why an agent is being terminated. `spoken_to` means that somebody has sent a message
/// since then, so the dispatch is reopened when it ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        spoken_to: bool,
    },
    /// Muleteer gave up on the model API.
    Api {
        reason: String,
        spoken_to: bool,
    },
    /// The agent used a tool without asking, although its policy asks about it or refuses it.
    Policy {
        reason: String,
    },
    /// A monitor stopped a working agent.
    Monitor {
        monitor: Monitor,
        reason: String,
        spoken_to: bool,
    },
}

impl Stop {
    /// The reason of the kill by a daemon that stops with its agents. No other field of the event
    /// tells it from the kill by a person.
    pub const WITH_DAEMON: &str = "the daemon was stopped with its agents";

    /// Whether a daemon that stopped has stopped this agent too. Older versions wrote another end
    /// of the sentence.
    pub fn is_with_daemon(&self) -> bool {
        matches!(self, Self::Kill { reason } if reason.starts_with("the daemon was stopped"))
    }

    /// Records a message to the agent. A message does not revoke a kill, a limit or the policy.
    pub(super) fn speak_to(&mut self) {
        match self {
            Self::Stall { spoken_to, .. }
            | Self::Api { spoken_to, .. }
            | Self::Monitor { spoken_to, .. } => *spoken_to = true,
            Self::Kill { .. } | Self::Limit { .. } | Self::Policy { .. } => {}
        }
    }

    pub(super) fn is_spoken_to(&self) -> bool {
        match self {
            Self::Stall { spoken_to, .. }
            | Self::Api { spoken_to, .. }
            | Self::Monitor { spoken_to, .. } => *spoken_to,
            Self::Kill { .. } | Self::Limit { .. } | Self::Policy { .. } => false,
        }
    }
}
