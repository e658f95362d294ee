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
