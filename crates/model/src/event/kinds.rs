//! The enumerations of events: kinds of prompts, limits, causes, outcomes and states.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A process that an agent left, and that Muleteer killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftProcess {
    /// The process id.
    pub pid: u32,
    /// The name of its program, as `ps` shows it.
    pub name: String,
}

impl LeftProcess {
    /// Describes processes in one line: `node (pid 12), sleep (pid 13) and 3 more`.
    pub fn describe(all: &[Self]) -> String {
        const NAMED: usize = 8;
        let named: Vec<_> = all
            .iter()
            .take(NAMED)
            .map(|process| format!("{} (pid {})", process.name, process.pid))
            .collect();
        match all.len().saturating_sub(NAMED) {
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }
}

/// The reason for a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptKind {
    /// The first prompt of the dispatch.
    Initial,
    /// A client sent it later.
    Send,
    /// Asks for the result again and names its faults.
    Repair,
    /// Asks the agent to continue, in a session that was resumed after a crash.
    Continue,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "LimitKind")]
pub enum Limit {
    /// The budget of the dispatch, or one that it shares.
    Budget,
    /// The number of turns.
    Turns,
    /// The awake time of all attempts together.
    Timeout,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Limit {
    /// Describes the stop at this limit: `stopped at its limit of 4 turns`.
    pub fn describe(self, detail: &str) -> String {
        match self {
            Self::Timeout => format!("stopped after {detail} (`timeout`)"),
            Self::Budget | Self::Turns | Self::Unknown => format!("stopped at {detail}"),
        }
    }

    /// Whether the reason of a dispatch is a stop at its time limit. The log of an older version
    /// has `timeout: …` there. Use it only if the log has no end of an attempt
    /// ([`crate::dispatch::AttemptEnd`]), because an agent's own words can be in the reason.
    pub fn is_timeout(reason: &str) -> bool {
        reason.ends_with("(`timeout`)") || reason.starts_with("timeout: ")
    }
}

/// The cause of the end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// The process exited by itself, or by a signal that Muleteer did not send.
    Exited,
    /// Muleteer asked the shim to terminate it.
    Terminated,
    /// The shim's own deadline or limit ended it.
    ShimPolicy,
    /// No daemon renewed the lease; the agent did not fail.
    LeaseExpired,
    /// The shim died; nobody knows how the agent ended.
    ShimLost,
    /// The shim died before it released the agent: nothing ran.
    NeverRan,
    /// The program could not be executed, and a retry would not help.
    CannotStart,
    /// A cause of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The outcome of an attempt, or of an agent of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It succeeded.
    Success,
    /// It failed.
    Failure,
    /// It exceeded its time limit or went silent.
    Timeout,
}

/// The final state of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FinalState {
    /// The agent succeeded.
    Success,
    /// The agent did a part of the work.
    Partial,
    /// The agent failed, or its attempts are used up.
    Failed,
    /// A person has to decide or to help.
    Blocked,
    /// A client killed the agent.
    Killed,
    /// The agent gave no sign of life.
    Stalled,
}

impl FinalState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Killed => "killed",
            Self::Stalled => "stalled",
        }
    }
}

/// A mode to set in a session, and the method (`by`) that sets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ModeStep {
    /// The agent's id of the mode.
    pub mode: String,
    /// The method that sets the mode.
    pub by: String,
    /// The mode to request if the agent refuses the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_left_processes_names_the_first_ones() {
        let all: Vec<_> =
            (1..=10).map(|pid| LeftProcess { pid, name: format!("p{pid}") }).collect();
        assert_eq!(LeftProcess::describe(&all[..2]), "p1 (pid 1), p2 (pid 2)");
        assert!(LeftProcess::describe(&all).ends_with("p8 (pid 8) and 2 more"));
        assert_eq!(LeftProcess::describe(&[]), "");
    }
}
