//! The payloads of a run's events. External readers use their names and documented fields
//! (docs/events.md); the other fields serve the fold.

use crate::event::Outcome;
use crate::spec_run::judge::JudgeResult;
use serde::{Deserialize, Serialize};

/// The identity of a run. A resume never changes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    pub run_id: String,
    /// As the user gave it; the frozen copy is authoritative.
    pub spec: String,
    /// The spec's first heading, for people.
    pub title: String,
    /// Absolute path of the repository's top.
    pub repo: String,
    /// `auto`, or the branch the agents push to.
    pub target: String,
    /// The label that selects existing beads for the run.
    #[serde(default)]
    pub bead_label: Option<String>,
    pub settings: RunSettings,
    /// The trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The settings that a resume may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    pub backend: String,
    #[serde(default)]
    pub model: Option<String>,
    pub max_concurrency: u32,
    pub max_retries: u32,
    /// The timeout of one agent, in awake seconds.
    pub timeout_s: u64,
    /// A maintenance run starts after this many beads; 0 for none.
    pub maintain_every: u32,
    pub maintain_after_all: bool,
    /// Coding agents start while maintenance runs.
    #[serde(default = "yes")]
    pub maintain_parallel: bool,
    pub judge: bool,
    pub spec_drift: bool,
    pub acceptance: bool,
    /// Acceptance criteria written by a person.
    #[serde(default)]
    pub acceptance_path: Option<String>,
    /// The user vouches for links from these criteria to files outside the repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acceptance_links: bool,
    pub max_iterations: u32,
    /// Only the judge was requested: no further iteration begins, whatever it finds.
    #[serde(default)]
    pub judge_only: bool,
    pub human_review: bool,
    /// The acceptance criteria must be approved before the decomposition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preview_acceptance: bool,
    pub dry_run: bool,
    pub pull_request: bool,
    /// The branch is pushed, and a person opens the pull request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    pub cleanup: bool,
    /// The kernel restricts what the agents may read and write.
    #[serde(default)]
    pub confined: bool,
    /// Why there is no sandbox. With `confined`: why the sandbox does not hide the criteria.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unconfined: String,
    /// Why confined agents can still write files of the repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exposed: String,
    #[serde(default)]
    pub budget_usd: Option<f64>,
    #[serde(default)]
    pub max_runtime_s: Option<u64>,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Freeze,
    Decompose,
    /// With maintenance in parallel.
    Implement,
    Judge,
    Finish,
    #[serde(other)]
    Unknown,
}

impl Phase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Freeze => "freeze",
            Self::Decompose => "decompose",
            Self::Implement => "implement",
            Self::Judge => "judge",
            Self::Finish => "finish",
            Self::Unknown => "unknown",
        }
    }
}

/// The purpose of an agent of a run: `MULETEER_PURPOSE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    Acceptance,
    Decompose,
    Implement,
    Maintain,
    Judge,
    Structure,
    #[serde(other)]
    Unknown,
}

impl Purpose {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acceptance => "acceptance",
            Self::Decompose => "decompose",
            Self::Implement => "implement",
            Self::Maintain => "maintain",
            Self::Judge => "judge",
            Self::Structure => "structure",
            Self::Unknown => "unknown",
        }
    }
}

/// A bead in the plan of the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    pub id: String,
    pub title: String,
    pub priority: u8,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Open dependencies outside the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<String>,
    /// The bead was closed before the run planned it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// The start of one agent of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStarted {
    /// Counted from 1; reused after the agent has ended.
    pub agent: u32,
    pub purpose: Purpose,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bead_id: Option<String>,
    /// Relative to the repository.
    pub workdir: String,
    /// The id of its dispatch.
    pub dispatch: String,
    pub attempt: u32,
    /// The agent continues in the worktree of the previous attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentFinished {
    pub agent: u32,
    pub purpose: Purpose,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bead_id: Option<String>,
    pub status: Outcome,
    pub duration_ms: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default)]
    pub cost_usd: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Pass,
    Fail,
    /// The judge changed files that it judged, so its verdict does not count.
    Discarded,
    /// The verdict could not be parsed.
    Unreadable,
    #[serde(other)]
    Unknown,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Discarded => "discarded",
            Self::Unreadable => "unreadable",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgeFinished {
    pub iteration: u32,
    pub verdict: Verdict,
    pub new_beads: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JudgeResult>,
}

/// The result of applying a verdict to the bead store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Triage {
    /// Beads of the next iteration, including promoted observations.
    #[serde(default)]
    pub beads: Vec<Planned>,
    #[serde(default)]
    pub promoted: Vec<String>,
    #[serde(default)]
    pub dismissed: Vec<String>,
}

/// The preserved work of a run that was stopped or ended without a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeptWork {
    /// The branch in the user's repository; null if the run made no commit, or if the branch could
    /// not be fetched into the repository.
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// Commits since the start of the run.
    pub commits: u32,
    /// The directory of the agents' clones, which may hold unpushed work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<String>,
    /// Why the branch could not be fetched, and where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How a run ended, or why it rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Pending,
    InProgress,
    AwaitingApproval,
    Completed,
    Failed,
    Partial,
    #[serde(other)]
    Unknown,
}

impl RunStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::InProgress => "in_progress",
            Self::AwaitingApproval => "awaiting_approval",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Partial => "partial",
            Self::Unknown => "unknown",
        }
    }
}
