//! A dispatch as `status` shows it, with its result.

use crate::v1::WorkDoc;
use serde::{Deserialize, Serialize};

/// One dispatch as `status --json` shows it (contract.md, "Output").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct DispatchStatus {
    pub id: String,
    pub role: String,
    pub project: String,
    pub feature: String,
    pub state: String,
    /// RFC 3339.
    pub since: String,
    pub backend: String,
    pub model: Option<String>,
    /// The layer that the model came from: `flag`, `role`, `category`, `default`, or null.
    #[serde(default)]
    pub model_source: Option<String>,
    pub session_id: Option<String>,
    pub turns: u32,
    pub attempts: u32,
    pub last_activity: Option<String>,
    pub cost_usd: f64,
    pub tokens: Tokens,
    pub worktree: Option<String>,
    pub journal: Option<String>,
    pub pid: Option<u32>,
    /// The reason for this state, in a few words.
    #[serde(default)]
    pub reason: Option<String>,
    /// When a dispatch that waits for the model API continues by itself, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// The mechanisms that tie the agent to its shim here (`cgroup`, `pdeathsig+sweep`, …).
    #[serde(default)]
    pub containment: Option<String>,
    /// The asks of its agent that nobody has answered, oldest first.
    #[serde(default)]
    pub waiting_for: Vec<AskStatus>,
    pub result: Option<ResultDoc>,
    /// The work that was fetched from its clone when it ended last; null without `--worktree`.
    #[serde(default)]
    pub work: Option<WorkDoc>,
    /// The title of its task, on one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The file that its task is from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<String>,
    /// The beginning of its task; only where one dispatch was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The permissions of its agent and its place, on one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
}

/// A permission or question for which an agent waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct AskStatus {
    pub request_id: String,
    /// `permission` or `question`; in a conversation also the other kinds of questions.
    pub kind: String,
    pub tool: String,
    /// The target of the tool.
    pub target: String,
    /// The question, or the agent's reason.
    pub text: String,
    /// The answers that the agent offers.
    #[serde(default)]
    pub options: Vec<String>,
    /// RFC 3339.
    pub since: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

/// The validated result of a dispatch (contract.md, "States and outcomes").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ResultDoc {
    pub status: String,
    pub summary: String,
    #[serde(default)]
    pub changes: Vec<String>,
    #[serde(default)]
    pub issues: Vec<String>,
    #[serde(default)]
    pub questions: Vec<String>,
    #[serde(default)]
    pub pr_url: Option<String>,
}
