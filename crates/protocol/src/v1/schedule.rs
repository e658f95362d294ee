//! The documents of schedules (contract.md, "Schedules").

use serde::{Deserialize, Serialize};

/// One configured schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ScheduleDoc {
    pub name: String,
    pub cron: String,
    /// Null for the time zone of the system.
    pub time_zone: Option<String>,
    pub role: String,
    pub project: Option<String>,
    pub enabled: bool,
    /// The next due moment (RFC 3339); null while it is disabled.
    pub next: Option<String>,
    /// A start is under way.
    pub running: bool,
    /// Why the start under way cannot be carried out now; absent unless it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time of the next try of that start (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<String>,
    /// The newest start that is over.
    pub last: Option<ScheduleStartDoc>,
}

/// One start of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ScheduleStartDoc {
    /// The due moment (RFC 3339).
    pub due: String,
    /// `started`, `skipped` or `failed`.
    pub state: String,
    pub reason: Option<String>,
    pub thread_id: Option<String>,
    pub message_id: Option<String>,
    /// The state of the message, if it is in the daemon's memory.
    pub message_state: Option<String>,
}
