//! The requests and documents of meetings (contract.md, "JSON").

use serde::{Deserialize, Serialize};

/// A meeting to start in a thread. The client chooses `meeting`: if it repeats the request after a
/// lost reply, the same id is answered and not carried out again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct MeetingStart {
    pub meeting: String,
    /// A unique prefix of the thread's id.
    pub thread: String,
    pub topic: String,
    pub roles: Vec<String>,
    /// `round-robin`, `mention`, or the role that chairs.
    pub chair: String,
    #[serde(default)]
    pub max_turns: Option<u32>,
    #[serde(default)]
    pub budget_usd: Option<f64>,
    #[serde(default)]
    pub turn_limit_s: Option<u64>,
}

/// One meeting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct MeetingDoc {
    pub id: String,
    pub thread_id: String,
    pub topic: String,
    /// `talking`, `ending` (the minutes are written) or `ended`.
    pub state: String,
    /// `requested`, `chair_ended`, `max_turns`, `budget`, `nobody_mentioned`,
    /// `every_role_failed` or `archived`; null while it talks.
    pub reason: Option<String>,
    /// The user that started it.
    pub started_by: String,
    /// The user that ended it, if a person did.
    pub ended_by: Option<String>,
    pub started: String,
    pub ended: Option<String>,
    /// The roles that take turns.
    pub roles: Vec<String>,
    /// Those that lost too many turns in a row, and take no more.
    pub left: Vec<String>,
    /// `round-robin`, `mention`, or the role that chairs.
    pub chair: String,
    /// The turns so far, without those for the minutes; null if an ended one has left the memory.
    pub turn_count: Option<u64>,
    pub max_turns: u32,
    pub spent_usd: f64,
    pub budget_usd: Option<f64>,
    pub turn_limit_s: u64,
    /// The role whose turn it is.
    pub speaker: Option<String>,
    /// The path of the minutes.
    pub minutes: Option<String>,
    /// The turns; only with one meeting.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<Vec<MeetingTurnDoc>>,
}

/// A turn of a meeting that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct MeetingTurnDoc {
    pub number: u32,
    /// `speak`, `choose` or `minutes`.
    pub kind: String,
    pub role: String,
    /// `spoke` or `lost`.
    pub outcome: String,
    pub reason: Option<String>,
    pub message_id: String,
    /// The beginning of what was said.
    pub text: String,
}
