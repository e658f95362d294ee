//! The payloads of a run's events. External readers use their names and documented fields
//! (docs/events.md); the other fields serve the fold.

use crate::event::Outcome;
use crate::spec_run::judge::JudgeResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The identity of a run. A resume never changes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunStarted {
    /// The id of the run.
    pub run_id: String,
    /// The path of the spec as the user gave it; the frozen copy is authoritative.
    pub spec: String,
    /// The title of the spec: its first heading.
    pub title: String,
    /// The absolute path of the repository's top.
    pub repo: String,
    /// `auto`, or the branch to which the agents push.
    pub target: String,
    /// The label that selects existing beads for the run; null plans new ones.
    #[serde(default)]
    pub bead_label: Option<String>,
    /// The settings that a resume may change.
    pub settings: RunSettings,
    /// The W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The thread in which the run asks its questions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// The settings that a resume may change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunSettings {
    /// The name of the backend.
    pub backend: String,
    /// The requested model; null leaves the choice to the backend.
    #[serde(default)]
    pub model: Option<String>,
    /// The most agents that run at the same time.
    pub max_concurrency: u32,
    /// The most retries of a bead, and of an agent that the run needs.
    pub max_retries: u32,
    /// The time limit of one agent, in awake seconds.
    pub timeout_s: u64,
    /// This many beads are done one at a time before others start; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub canary: u32,
    /// A maintenance run starts after this many beads; 0 for none.
    pub maintain_every: u32,
    /// A maintenance run starts after the last bead.
    pub maintain_after_all: bool,
    /// Coding agents start while maintenance runs.
    #[serde(default = "yes")]
    pub maintain_parallel: bool,
    /// The judge judges the result.
    pub judge: bool,
    /// The judge compares the result with the spec.
    pub spec_drift: bool,
    /// The judge checks the acceptance criteria.
    pub acceptance: bool,
    /// The path of acceptance criteria that a person wrote.
    #[serde(default)]
    pub acceptance_path: Option<String>,
    /// The user vouches for links from these criteria to files outside the repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acceptance_links: bool,
    /// The most iterations.
    pub max_iterations: u32,
    /// Only the judge was requested: no further iteration begins, whatever it finds.
    #[serde(default)]
    pub judge_only: bool,
    /// A person must approve the beads.
    pub human_review: bool,
    /// The acceptance criteria must be approved before the decomposition.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preview_acceptance: bool,
    /// An agent reviews the spec before it is frozen.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub review_spec: bool,
    /// The findings of this review need no approval.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub review_approved: bool,
    /// A person must approve the result before it is published.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub review_merge: bool,
    /// The run pauses after its beads are planned.
    pub dry_run: bool,
    /// The run creates a pull request.
    pub pull_request: bool,
    /// The branch is pushed, and a person opens the pull request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub push: bool,
    /// The worktrees are removed at the end.
    pub cleanup: bool,
    /// The kernel restricts what the agents may read and write.
    #[serde(default)]
    pub confined: bool,
    /// The reason why there is no sandbox. With `confined`, the reason why the sandbox does not
    /// hide the criteria.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unconfined: String,
    /// The reason why confined agents can still write files of the repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub exposed: String,
    /// Each confined agent has a HOME of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private_home: bool,
    /// Further reasons why the sandbox guarantees less than it could.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub weakened: String,
    /// The most that the run may cost, in US dollars; null has no limit.
    #[serde(default)]
    pub budget_usd: Option<f64>,
    /// The most seconds for which the run may work; null has no limit.
    #[serde(default)]
    pub max_runtime_s: Option<u64>,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A phase of a run.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The spec and the criteria are frozen.
    Freeze,
    /// An agent plans the beads.
    Decompose,
    /// Agents implement the beads, with maintenance in parallel.
    Implement,
    /// The judge judges the result.
    Judge,
    /// The branch is published.
    Finish,
    /// A phase of a newer version.
    #[serde(other)]
    #[schemars(skip)]
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
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// It reviews the spec.
    Review,
    /// It writes acceptance criteria.
    Acceptance,
    /// It plans the beads.
    Decompose,
    /// It implements a bead.
    Implement,
    /// It does maintenance.
    Maintain,
    /// It judges the result.
    Judge,
    /// It structures the judge's verdict.
    Structure,
    /// A purpose of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Purpose {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Review => "review",
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// The id of the bead.
    pub id: String,
    /// The title.
    pub title: String,
    /// The priority; 0 is the most urgent.
    pub priority: u8,
    /// The time of its creation, in RFC 3339.
    pub created_at: String,
    /// The beads of the run on which it depends.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentStarted {
    /// The number of the agent, from 1; reused after the agent has ended.
    pub agent: u32,
    /// The purpose of the agent.
    pub purpose: Purpose,
    /// The bead of the agent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bead_id: Option<String>,
    /// The path of its worktree, relative to the repository.
    pub workdir: String,
    /// The id of its dispatch.
    pub dispatch: String,
    /// The number of earlier tries of the bead.
    pub attempt: u32,
    /// The agent continues in the worktree of the previous attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse: bool,
}

/// The end of one agent of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AgentFinished {
    /// The number of the agent.
    pub agent: u32,
    /// The purpose of the agent.
    pub purpose: Purpose,
    /// The bead of the agent, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bead_id: Option<String>,
    /// The outcome.
    pub status: Outcome,
    /// The duration in milliseconds.
    pub duration_ms: u64,
    /// The reason of a failure, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The cost in US dollars.
    #[serde(default)]
    pub cost_usd: f64,
    /// The program of its CLI was changed after the run began.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cli_changed: bool,
}

/// The kind of an attempt's failure.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// Its commits conflict with those of others.
    Conflict,
    /// The code does not compile.
    Build,
    /// Tests fail.
    Test,
    /// The linter or the formatter has complaints.
    Lint,
    /// Another failure, or nothing tells its kind.
    Other,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl FailureKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Build => "build",
            Self::Test => "test",
            Self::Lint => "lint",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether maintenance can repair the cause of such failures.
    pub fn is_repairable(self) -> bool {
        matches!(self, Self::Conflict | Self::Build | Self::Test | Self::Lint)
    }
}

/// How much a finding about the spec matters.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The spec cannot be implemented, or contradicts itself.
    Critical,
    /// Two readers would implement different things.
    Major,
    /// A detail is vague.
    Minor,
    /// A severity of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Major => "major",
            Self::Minor => "minor",
            Self::Unknown => "unknown",
        }
    }
}

/// A finding of the agent that reviews the spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecFinding {
    /// The heading of the section; empty for the whole spec.
    #[serde(default)]
    pub section: String,
    /// The finding.
    pub description: String,
    /// How much it matters.
    pub severity: Severity,
}

/// How a section of the spec differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// Its text changed.
    Changed,
    /// It is new.
    Added,
    /// It was removed.
    Removed,
    /// A change of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl ChangeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Unknown => "unknown",
        }
    }
}

/// A section of the spec that differs from the version before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SectionChange {
    /// The headings of the section, joined by ` > `; empty for the beginning of the spec.
    pub section: String,
    /// How it differs.
    pub kind: ChangeKind,
}

/// A new version of the spec for a run that rested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SpecAmended {
    /// The number of the amendment, from 1.
    pub number: u32,
    /// The path of the new spec as the user gave it.
    pub spec: String,
    /// The title of the new spec.
    pub title: String,
    /// The SHA-256 of the new spec, in hex.
    pub sha256: String,
    /// The sections that differ.
    pub changes: Vec<SectionChange>,
    /// The beads whose sections did not change.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Unfinished beads of changed sections. They are closed, and an agent plans others.
    #[serde(default)]
    pub withdrawn: Vec<String>,
    /// Finished beads of changed sections. They stay done, and an agent plans what changes.
    #[serde(default)]
    pub outdated: Vec<String>,
}

/// The judge's verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JudgeVerdict")]
pub enum Verdict {
    /// The result is accepted.
    Pass,
    /// The result has faults, which become beads.
    Fail,
    /// The judge changed files that it judged, so its verdict does not count.
    Discarded,
    /// The verdict could not be parsed.
    Unreadable,
    /// A verdict of a newer version.
    #[serde(other)]
    #[schemars(skip)]
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

/// The end of a judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JudgeFinished {
    /// The number of the iteration.
    pub iteration: u32,
    /// The verdict.
    pub verdict: Verdict,
    /// The number of beads that follow from the verdict.
    pub new_beads: u32,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The judge's result, if it could be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JudgeResult>,
}

/// The result of applying a verdict to the bead store.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Triage {
    /// Beads of the next iteration, including promoted observations.
    #[serde(default)]
    pub beads: Vec<Planned>,
    /// The observations that became beads.
    #[serde(default)]
    pub promoted: Vec<String>,
    /// The observations that were dismissed.
    #[serde(default)]
    pub dismissed: Vec<String>,
}

/// The preserved work of a run that was stopped or ended without a pass.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct KeptWork {
    /// The branch in the user's repository; null if the run made no commit, or if the branch could
    /// not be fetched into the repository.
    pub branch: Option<String>,
    /// The tip of the branch.
    pub commit: Option<String>,
    /// The number of commits since the start of the run.
    pub commits: u32,
    /// The directory of the agents' clones, which may hold unpushed work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clones: Option<String>,
    /// The reason why the branch could not be fetched, and its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// The status of a run that ended or rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// It waits to be resumed.
    Pending,
    /// It runs.
    InProgress,
    /// It waits for the approval of its beads or criteria.
    AwaitingApproval,
    /// It is completed.
    Completed,
    /// It failed.
    Failed,
    /// A part of its work is done.
    Partial,
    /// A status of a newer version.
    #[serde(other)]
    #[schemars(skip)]
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
