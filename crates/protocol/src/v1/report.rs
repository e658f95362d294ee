//! The answer to `status`.

use crate::v1::{DispatchStatus, QuestionDoc};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    pub daemon: DaemonStatus,
    pub dispatches: Vec<DispatchStatus>,
    /// The number of archived dispatches that are not among them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub archived: u64,
    /// The open questions of runs, oldest first. A question of a dispatch is in its entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run_questions: Vec<QuestionDoc>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    pub running: bool,
    pub pid: Option<u32>,
    pub version: Option<String>,
    pub socket: Option<String>,
    /// The faults of configuration files whose last valid version is in force instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config_faults: Vec<String>,
    /// The faults of role files whose last valid version is in force instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub role_faults: Vec<String>,
}
