//! The content of the events of schedules.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The daemon follows a schedule from a moment on, or follows it no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleSet {
    /// The name of the schedule.
    pub schedule: String,
    /// The cron pattern; absent if the schedule is disabled or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// The time zone; absent for that of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// Moments up to this one are not due.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// The configuration has the schedule no more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

/// A schedule is due. Written before its message is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDue {
    /// The name of the schedule.
    pub schedule: String,
    /// The due moment; the time of the request if a person started it.
    #[schemars(with = "String")]
    pub due: Timestamp,
    /// The key of the message.
    pub key: String,
    /// The thread that gets the message: an id, or `ADAPTER:PLACE`; absent for one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The role that gets the message.
    pub role: String,
    /// The project of a thread of its own, as the configuration names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The backend of the agents of a thread of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// The text of the message.
    pub prompt: String,
    /// The user that started it now; absent if the time came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The reason why nothing is written this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

/// The message of a due schedule is accepted, or cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ScheduleDone {
    /// The name of the schedule.
    pub schedule: String,
    /// The key of the message.
    pub key: String,
    /// The id of the thread; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The id of the message; absent if it could not be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The reason why it could not be written; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
