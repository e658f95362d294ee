//! The content of the events of meetings.

use crate::conversation::event::MessageFile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A meeting in a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeetingStarted {
    /// The id of the thread.
    pub thread: String,
    /// The id of the meeting.
    pub meeting: String,
    /// The topic.
    pub topic: String,
    /// The roles that take turns, in their order.
    pub roles: Vec<String>,
    /// The rule by which turns are given.
    pub chair: ChairName,
    /// The role that chairs; present only if `chair` is `role`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chair_role: Option<String>,
    /// The most turns. The turn for the minutes is not among them.
    pub max_turns: u32,
    /// The most US dollars that the agents of the thread may use. It is checked before each turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<f64>,
    /// The time in seconds after which an unanswered turn is lost.
    pub turn_limit_s: u64,
    /// The user that started it.
    pub by: String,
}

/// The rule by which the turns of a meeting are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChairName {
    /// Each role in its order.
    RoundRobin,
    /// The role that is mentioned.
    Mention,
    /// An agent of a role decides.
    Role,
    /// A rule of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

/// A turn of a meeting. Its message is accepted in the same batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeetingTurn {
    /// The id of the thread.
    pub thread: String,
    /// The id of the meeting.
    pub meeting: String,
    /// The number of the turn, from 1.
    pub turn: u32,
    /// The purpose of the turn.
    pub kind: TurnKind,
    /// The role that gets the turn.
    pub role: String,
    /// The id of the message that gives the turn to the role's agent.
    pub message: String,
    /// The open messages of people that the role hears in this turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hears: Vec<String>,
    /// The reason why this role gets the turn, for people.
    pub why: String,
}

/// The purpose of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MeetingTurnKind")]
pub enum TurnKind {
    /// The role speaks.
    Speak,
    /// The chair names the next speaker, or ends the meeting.
    Choose,
    /// The role writes the minutes.
    Minutes,
    /// A purpose of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl TurnKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Speak => "speak",
            Self::Choose => "choose",
            Self::Minutes => "minutes",
            Self::Newer => "newer",
        }
    }
}

/// The end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeetingTurnDone {
    /// The id of the thread.
    pub thread: String,
    /// The id of the meeting.
    pub meeting: String,
    /// The number of the turn.
    pub turn: u32,
    /// The reason why the role lost the turn; absent if it spoke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// A meeting gives no more turns, except for the minutes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeetingEnding {
    /// The id of the thread.
    pub thread: String,
    /// The id of the meeting.
    pub meeting: String,
    /// The reason.
    pub reason: EndReason,
    /// The user that ended it; absent if the meeting ended by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The reason why a meeting ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MeetingEndReason")]
pub enum EndReason {
    /// A person ended it.
    Requested,
    /// The chair ended it.
    ChairEnded,
    /// It had all its turns.
    MaxTurns,
    /// Its budget is used up.
    Budget,
    /// Nobody mentioned a role for as long as a turn may take.
    NobodyMentioned,
    /// Every role lost too many turns in a row.
    EveryRoleFailed,
    /// Its thread was archived.
    Archived,
    /// A reason of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl EndReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requested => "requested",
            Self::ChairEnded => "chair_ended",
            Self::MaxTurns => "max_turns",
            Self::Budget => "budget",
            Self::NobodyMentioned => "nobody_mentioned",
            Self::EveryRoleFailed => "every_role_failed",
            Self::Archived => "archived",
            Self::Newer => "newer",
        }
    }

    /// Says the reason, for people.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Requested => "a person ended it",
            Self::ChairEnded => "the chair ended it",
            Self::MaxTurns => "it had all its turns",
            Self::Budget => "its budget is used up",
            Self::NobodyMentioned => "nobody mentioned a role",
            Self::EveryRoleFailed => "every role failed",
            Self::Archived => "its thread was archived",
            Self::Newer => "a newer version of Muleteer ended it",
        }
    }
}

/// A meeting is over. Its minutes are durable before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeetingEnded {
    /// The id of the thread.
    pub thread: String,
    /// The id of the meeting.
    pub meeting: String,
    /// The reason.
    pub reason: EndReason,
    /// The cost of the thread's agents during the meeting, in US dollars.
    pub spent_usd: f64,
    /// The path of the minutes; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minutes: Option<String>,
    /// The minutes in the thread's folder; absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<MessageFile>,
}
