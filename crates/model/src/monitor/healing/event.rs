//! The events of the healing of a dispatch.

use crate::event::id::DispatchId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The trouble of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HealingTrouble")]
pub enum Trouble {
    /// It gave no sign of life.
    Stall,
    /// A monitor stopped it, because it made no progress.
    Monitor,
    /// It failed, or crashed more often than it is restarted.
    Failure,
    /// A trouble of a newer version.
    #[serde(other)]
    Newer,
}

impl Trouble {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stall => "stall",
            Self::Monitor => "monitor",
            Self::Failure => "failure",
            Self::Newer => "newer",
        }
    }
}

/// The consequence of a trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "HealingChoice")]
pub enum Choice {
    /// The work is begun again where it stopped.
    Respawn,
    /// The agent goes on with a message that leads it elsewhere.
    Redirect,
    /// Another dispatch does the same task with a better model.
    BetterModel,
    /// A person decides.
    Escalate,
    /// A choice of a newer version.
    #[serde(other)]
    Newer,
}

impl Choice {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Respawn => "respawn",
            Self::Redirect => "redirect",
            Self::BetterModel => "better_model",
            Self::Escalate => "escalate",
            Self::Newer => "newer",
        }
    }
}

/// A dispatch is to be healed. Written before its light agent is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HealingBegun {
    /// Counts the choices for this dispatch, from 1.
    pub number: u32,
    /// The trouble.
    pub trouble: Trouble,
    /// The reason why the dispatch ended, for people.
    pub reason: String,
    /// The dispatch of the light agent that chooses; absent if the configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healer: Option<DispatchId>,
}

/// The choice for a dispatch. Written before it is carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HealingChosen {
    /// The number of the choice.
    pub number: u32,
    /// The choice.
    pub choice: Choice,
    /// The reason, for people.
    pub reason: String,
    /// `agent/` and the id of the light agent, or `muleteer`.
    pub by: String,
    /// The message of a redirected agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The dispatch that does the same task again, if the old one cannot go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<DispatchId>,
    /// The model of that dispatch, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// The choice for a dispatch was carried out, or cannot be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HealingDone {
    /// The number of the choice.
    pub number: u32,
    /// The reason why it was not carried out; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
