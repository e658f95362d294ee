//! The payloads of a run's events. Their names and documented fields are for readers outside
//! (docs/events.md); the other fields serve the fold.

use crate::event::Outcome;
use crate::spec_run::judge::JudgeResult;
use serde::{Deserialize, Serialize};

/// Who a run is, decided once: never changed by a resume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunStarted {
    pub run_id: String,
    /// As given; the frozen copy is what counts.
    pub spec: String,
    /// The spec's first heading, for people.
    pub title: String,
    /// Absolute path of the repository's top.
    pub repo: String,
    /// `auto`, or the branch the agents push to.
    pub target: String,
    /// The label of the beads that make up the run, if they exist already.
    #[serde(default)]
    pub bead_label: Option<String>,
    pub settings: RunSettings,
    /// Its place in a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// What may change from one resume to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    pub backend: String,
    #[serde(default)]
    pub model: Option<String>,
    pub max_concurrency: u32,
    pub max_retries: u32,
    /// Of one agent, in awake seconds.
    pub timeout_s: u64,
    /// A maintenance run after every so many beads; 0 for none.
    pub maintain_every: u32,
    pub maintain_after_all: bool,
    /// Coding agents are started beside it.
    #[serde(default = "yes")]
    pub maintain_parallel: bool,
    pub judge: bool,
    pub spec_drift: bool,
    pub acceptance: bool,
    /// Criteria written by hand.
    #[serde(default)]
    pub acceptance_path: Option<String>,
    pub max_iterations: u32,
    /// Only the judge was asked for: whatever it finds, no further iteration begins.
    #[serde(default)]
    pub judge_only: bool,
    pub human_review: bool,
    /// The acceptance criteria wait for approval before anything is planned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preview_acceptance: bool,
    pub dry_run: bool,
    pub pull_request: bool,
    /// The branch is pushed, and a pull request is a person's to make.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    pub cleanup: bool,
    /// The kernel holds its agents to what they may see and write.
    #[serde(default)]
    pub confined: bool,
    /// Why it does not; beside `confined`, why the criteria are hidden from nobody.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unconfined: String,
    /// Why they may write files of the repository all the same.
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
    /// With maintenance beside it.
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

/// What an agent of a run is for: `MULETEER_PURPOSE`.
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

/// A bead as the run plans with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    pub id: String,
    pub title: String,
    pub priority: u8,
    pub created_at: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends_on: Vec<String>,
    /// Of these, the ones that are no beads of the run and not closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside: Vec<String>,
    /// It was closed before the run took it over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub closed: bool,
}

/// One agent of a run, as it was decided to start it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStarted {
    /// Counted from 1; free again when its agent has ended.
    pub agent: u32,
    pub purpose: Purpose,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bead_id: Option<String>,
    /// Relative to the repository.
    pub workdir: String,
    /// The id of its dispatch.
    pub dispatch: String,
    pub attempt: u32,
    /// Goes on in the worktree of the attempt before.
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
    /// The judge changed what it judged: what it said counts for nothing.
    Discarded,
    /// Nobody could read it.
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

/// What the judge's word has come to in the store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Triage {
    /// Beads to be worked on next, promoted observations among them.
    #[serde(default)]
    pub beads: Vec<Planned>,
    #[serde(default)]
    pub promoted: Vec<String>,
    #[serde(default)]
    pub dismissed: Vec<String>,
}

/// What there is of a run that ended before it passed, or was stopped.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KeptWork {
    /// The branch in the person's repository; null where the run made no commit, or it could not be
    /// brought.
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// Since where the run began.
    pub commits: u32,
    /// Where clones of its agents are, which may hold what nobody pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<String>,
    /// Why the branch could not be brought, and where it is.
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
