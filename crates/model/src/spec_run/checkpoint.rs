//! `checkpoint.yml` and `run-log.yml`: the documented fields of a run's state and history. Both are
//! snapshots for people and scripts; `events.jsonl` is authoritative.

use crate::config::Span;
use crate::spec_run::event::{Phase, Purpose, RunStatus, SpecFinding, Verdict};
use crate::spec_run::judge::enforced::Enforced;
use crate::spec_run::price::Price;
pub use crate::spec_run::report::document::{Report, ReportBead, report};
use crate::spec_run::report::status::{Standing, why};
use crate::spec_run::report::work_place::Whereabouts;
use crate::spec_run::state::{Run, RunStanding, Stage};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub schema_version: u32,
    pub run_id: String,
    /// The sequence number of the last folded event.
    #[serde(default)]
    pub seq: u64,
    pub spec_path: String,
    pub frozen_spec_path: String,
    #[serde(default)]
    pub frozen_spec_sha256: Option<String>,
    #[serde(default)]
    pub acceptance_path: Option<String>,
    #[serde(default)]
    pub acceptance_sha256: Option<String>,
    pub target_branch: String,
    #[serde(default)]
    pub base_branch: Option<String>,
    /// `freezing decomposing implementing maintaining judging completed failed`.
    pub state: String,
    pub iteration: u32,
    pub beads: Beads,
    pub agents: Agents,
    pub maintenance: Upkeep,
    pub observations: Observations,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Beads {
    pub total: u32,
    pub completed: Vec<String>,
    pub in_progress: Vec<String>,
    pub blocked: Vec<String>,
    #[serde(default)]
    pub retry_counts: BTreeMap<String, u32>,
    #[serde(default)]
    pub claims: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Agents {
    pub max_concurrency: u32,
    pub active: Vec<Active>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Active {
    pub agent_id: u32,
    #[serde(default)]
    pub bead_id: Option<String>,
    #[serde(default)]
    pub purpose: Option<String>,
    pub worktree: String,
    pub started_at: Timestamp,
    #[serde(default)]
    pub dispatch_id: Option<String>,
    #[serde(default)]
    pub pid: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Upkeep {
    #[serde(default)]
    pub last_run_at: Option<Timestamp>,
    #[serde(default)]
    pub worktree: Option<String>,
    #[serde(default)]
    pub bead_id: Option<String>,
    pub run_count: u32,
    pub runs: Vec<UpkeepRun>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpkeepRun {
    pub id: String,
    pub trigger_completed_count: u32,
    pub state: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Observations {
    pub pending: Vec<String>,
    pub promoted: Vec<String>,
    pub dismissed: Vec<String>,
}

/// Returns the value of `state` in the checkpoint.
pub fn state_word(run: &Run) -> &'static str {
    match (run.outcome(), run.phase()) {
        (Some(RunStatus::Completed), _) => "completed",
        // The run came to its regular end; `blocked` lists the unfinished beads.
        (Some(RunStatus::Partial), _) if run.error().is_none() => "completed",
        (Some(_), _) => "failed",
        (None, Phase::Freeze | Phase::Unknown) => "freezing",
        (None, Phase::Decompose) => "decomposing",
        (None, Phase::Implement)
            if run.coding() == 0 && run.job_of(Purpose::Maintain).is_some() =>
        {
            "maintaining"
        }
        (None, Phase::Implement) => "implementing",
        (None, Phase::Judge | Phase::Finish) => "judging",
    }
}

pub fn checkpoint(run: &Run, pid_of: impl Fn(&str) -> Option<u32>) -> Checkpoint {
    let ids = |stage: Stage| {
        run.beads
            .values()
            .filter(|task| task.stage == stage)
            .map(|task| task.planned.id.clone())
            .collect()
    };
    let retried = run.beads.values().filter(|task| task.failures > 0);
    let taken = run.beads.values().filter(|task| task.stage == Stage::Taken);
    let maintaining = run.job_of(Purpose::Maintain);
    // An empty path means that the run has no criteria.
    let sealed = run.sealed.as_ref().filter(|sealed| !sealed.path.is_empty());
    Checkpoint {
        schema_version: SCHEMA_VERSION,
        run_id: run.id().into(),
        seq: run.seq,
        spec_path: run.started.spec.clone(),
        frozen_spec_path: format!(".muleteer/runs/{}/frozen-spec.md", run.id()),
        frozen_spec_sha256: run.frozen.as_ref().map(|frozen| frozen.sha256.clone()),
        acceptance_path: sealed.map(|sealed| sealed.path.clone()),
        acceptance_sha256: sealed.map(|sealed| sealed.sha256.clone()),
        target_branch: run.target(),
        base_branch: run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()),
        state: state_word(run).into(),
        iteration: run.iteration,
        beads: Beads {
            total: run.beads.len() as u32,
            completed: ids(Stage::Done),
            in_progress: ids(Stage::Taken),
            blocked: ids(Stage::Blocked),
            retry_counts: retried.map(|task| (task.planned.id.clone(), task.failures)).collect(),
            claims: taken
                .map(|task| {
                    let attempt = task.attempts.saturating_sub(1);
                    (task.planned.id.clone(), format!("{}:{}:{attempt}", run.id(), run.iteration))
                })
                .collect(),
        },
        agents: Agents {
            max_concurrency: run.settings.max_concurrency,
            active: run
                .jobs
                .values()
                .map(|job| Active {
                    agent_id: job.start.agent,
                    bead_id: job.start.bead_id.clone(),
                    purpose: Some(job.start.purpose.as_str().into()),
                    worktree: job.start.workdir.clone(),
                    started_at: job.started_at,
                    dispatch_id: Some(job.start.dispatch.clone()),
                    pid: pid_of(&job.start.dispatch),
                })
                .collect(),
        },
        maintenance: Upkeep {
            last_run_at: run.maintenance.runs.last().map(|last| last.at),
            worktree: maintaining.map(|job| job.start.workdir.clone()),
            bead_id: maintaining.and_then(|job| job.start.bead_id.clone()),
            run_count: run.maintenance.runs.len() as u32,
            runs: run
                .maintenance
                .runs
                .iter()
                .map(|one| UpkeepRun {
                    id: one.id.clone(),
                    trigger_completed_count: one.trigger_completed_count,
                    state: one.state.clone(),
                })
                .collect(),
        },
        observations: Observations {
            pending: run.observations.pending.iter().cloned().collect(),
            promoted: run.observations.promoted.iter().cloned().collect(),
            dismissed: run.observations.dismissed.iter().cloned().collect(),
        },
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunLog {
    pub run_id: String,
    pub spec: String,
    pub started_at: Timestamp,
    pub status: String,
    pub target_branch: String,
    pub iterations: Vec<LogIteration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_duration: Option<String>,
    pub total_beads: u32,
    pub total_agent_spawns: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pr_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<LogError>,
}

/// The error that ended the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogError {
    pub code: String,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogIteration {
    pub iteration: u32,
    pub started_at: Timestamp,
    pub phase: String,
    pub beads_total: u32,
    pub beads_completed: u32,
    #[serde(default)]
    pub beads_failed: u32,
    #[serde(default)]
    pub beads_blocked: u32,
    #[serde(default)]
    pub agents_spawned: u32,
    #[serde(default)]
    pub maintenance_runs: u32,
    #[serde(default)]
    pub observations_created: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge_result: Option<LogVerdict>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogVerdict {
    pub spec_drift: String,
    pub acceptance: String,
    #[serde(default)]
    pub observations_promoted: u32,
    #[serde(default)]
    pub observations_dismissed: u32,
    #[serde(default)]
    pub new_beads_created: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<LogIssue>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogIssue {
    pub section: String,
    pub description: String,
    pub severity: String,
}

pub fn run_log(run: &Run) -> RunLog {
    let iterations = run.iterations.iter().zip(1u32..).map(|(one, number)| {
        let verdict = run.verdicts.iter().rev().find(|end| end.iteration == number);
        let blocked = run
            .beads
            .values()
            .filter(|task| task.iteration == number && task.stage == Stage::Blocked)
            .count();
        let last = number as usize == run.iterations.len();
        LogIteration {
            iteration: number,
            started_at: one.started_at,
            phase: if last { run.phase().as_str().into() } else { "judge".into() },
            beads_total: one.beads,
            beads_completed: one.completed,
            beads_failed: one.failed,
            beads_blocked: blocked as u32,
            agents_spawned: one.spawns,
            maintenance_runs: one.maintenance,
            observations_created: one.observations,
            judge_result: verdict.and_then(|end| {
                let result = end.result.as_ref()?;
                let count = |action: &str| {
                    result.observations.iter().filter(|one| one.action == action).count() as u32
                };
                let passed = result.criteria().iter().any(|criterion| criterion.passed);
                Some(LogVerdict {
                    spec_drift: if result.drifted() { "fail" } else { "pass" }.into(),
                    acceptance: match (result.accepted(), passed) {
                        (true, _) => "pass",
                        (false, true) => "partial",
                        (false, false) => "fail",
                    }
                    .into(),
                    observations_promoted: count("promote"),
                    observations_dismissed: count("dismiss"),
                    new_beads_created: if end.verdict == Verdict::Fail { end.new_beads } else { 0 },
                    issues: result
                        .issues()
                        .iter()
                        .map(|issue| LogIssue {
                            section: issue.section.clone(),
                            description: issue.description.clone(),
                            severity: issue.severity.clone(),
                        })
                        .collect(),
                })
            }),
        }
    });
    let ended = run.outcome().is_some();
    RunLog {
        run_id: run.id().into(),
        spec: run.started.spec.clone(),
        started_at: run.started_at,
        status: run.status().as_str().into(),
        target_branch: run.target(),
        iterations: iterations.collect(),
        completed_at: ended.then_some(run.updated_at),
        total_duration: ended
            .then(|| Span::from_secs((run.runtime.before_ms / 1000).max(0) as u64).to_string()),
        total_beads: run.beads.len() as u32,
        total_agent_spawns: run.spawns,
        pr_url: run.publication.pr_url.clone(),
        error: error(run).map(|error| LogError { code: error.code, message: error.message }),
    }
}

/// Why a snapshot of a run cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    Write(#[from] serde_saphyr::ser::Error),
    #[error(transparent)]
    Read(#[from] serde_saphyr::Error),
    #[error(
        "it has schema_version {0}, and this muleteer knows {SCHEMA_VERSION}: a newer muleteer \
         wrote it"
    )]
    Newer(u32),
}

/// Returns the snapshot files of a run: names and texts.
pub fn snapshots(
    run: &Run,
    pid_of: impl Fn(&str) -> Option<u32>,
) -> [(&'static str, Result<String, SnapshotError>); 2] {
    [("checkpoint.yml", to_yaml(&checkpoint(run, pid_of))), ("run-log.yml", to_yaml(&run_log(run)))]
}

/// Serializes a value as YAML.
///
/// # Errors
/// Never for the types of this module.
pub fn to_yaml(value: &impl Serialize) -> Result<String, SnapshotError> {
    Ok(serde_saphyr::to_string(value)?)
}

/// Parses a checkpoint.
///
/// # Errors
/// It is no checkpoint, or a newer version wrote it.
pub fn parse(text: &str) -> Result<Checkpoint, SnapshotError> {
    #[derive(Deserialize)]
    struct Version {
        schema_version: u32,
    }
    let version: Version = serde_saphyr::from_str(text)?;
    if version.schema_version > SCHEMA_VERSION {
        return Err(SnapshotError::Newer(version.schema_version));
    }
    Ok(serde_saphyr::from_str(text)?)
}

/// The document of `run --json` and `run --status --json` (contract.md, "Output").
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Document {
    pub run_id: String,
    pub status: RunStatus,
    pub phase: Phase,
    pub iteration: u32,
    pub beads: BeadCounts,
    pub target_branch: String,
    pub pr_url: Option<String>,
    pub enforced: Enforced,
    pub cost_usd: f64,
    pub spec: String,
    pub title: String,
    /// The branch in the user's repository that holds the result, once it exists.
    pub branch: Option<String>,
    pub agents: u32,
    pub observations: Vec<String>,
    pub maintenance_runs: u32,
    pub maintenance_coalesced: u32,
    /// Why the run rests, waits, or did not end with a pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The question whose answer continues the resting run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The thread in which the run asks its questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Only in the status of a run that is read from outside.
    #[serde(flatten)]
    pub standing: Option<Standing>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<DocumentError>,
    /// Once the run has ended or rests: where its work is, and the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work: Option<Whereabouts>,
    /// The findings of the agent that reviewed the spec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_review: Option<Vec<SpecFinding>>,
    /// Only for a dry run that has not been resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
}

/// The planned work and its order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    pub beads: Vec<PlanBead>,
    /// One bead at a time.
    pub order: Vec<String>,
    /// Each wave waits for those before it.
    pub waves: Vec<Vec<String>>,
    /// The most agents that work at once.
    pub agents: usize,
    /// The expected cost, if earlier runs tell. The client adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanBead {
    pub id: String,
    pub title: String,
    pub priority: u8,
    pub depends_on: Vec<String>,
}

impl Plan {
    /// Returns the plan of a finished dry run that has not been resumed, otherwise `None`.
    pub fn of(run: &Run) -> Option<Self> {
        let rests = run.rest_reason().is_some();
        (run.settings.dry_run && rests && run.has_accepted_beads()).then(|| {
            let waves = run.schedule.waves();
            let beads = run.order.iter().filter_map(|id| run.beads.get(id)).map(|task| PlanBead {
                id: task.planned.id.clone(),
                title: task.planned.title.clone(),
                priority: task.planned.priority,
                depends_on: task.planned.depends_on.clone(),
            });
            Self {
                beads: beads.collect(),
                order: run.schedule.order(),
                agents: run.schedule.widest().min(run.settings.max_concurrency as usize),
                waves,
                price: None,
            }
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct BeadCounts {
    pub total: usize,
    pub open: usize,
    pub in_progress: usize,
    pub closed: usize,
    pub blocked: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DocumentError {
    pub code: String,
    pub message: String,
    pub run_id: String,
}

/// Returns the error that ended or stopped a run. `None` while it runs or waits for a person.
pub fn error(run: &Run) -> Option<DocumentError> {
    let (code, message) = match &run.standing {
        RunStanding::Ended { error, .. } => error.clone().map(|error| (error.code, error.message)),
        RunStanding::Resting { reason, stopped, .. } => {
            stopped.then(|| (ErrorCode::RunStopped.into(), reason.clone()))
        }
        RunStanding::Running | RunStanding::Stopping(_) => None,
    }?;
    Some(DocumentError { code, message, run_id: run.id().into() })
}

/// Returns why a run that ended or rests is not fully done: its error, or the unfinished beads of a
/// run that the judge has passed.
pub fn shortfall(run: &Run) -> Option<DocumentError> {
    const NAMED: usize = 5;
    error(run).or_else(|| {
        let undone = run.beads.values().filter(|task| task.stage != Stage::Done);
        let left: Vec<_> = undone.map(|task| run.named(&task.planned.id)).collect();
        (run.status() == RunStatus::Partial).then(|| DocumentError {
            code: ErrorCode::BeadsBlocked.into(),
            message: format!(
                "the judge passed the run, but {} of {} beads are not done: {}{}",
                left.len(),
                run.beads.len(),
                left[..left.len().min(NAMED)].join(", "),
                if left.len() > NAMED { ", …" } else { "" }
            ),
            run_id: run.id().into(),
        })
    })
}

/// Like [`document`], with the standing of the run: its age and the things that it waits for.
pub fn document_at(run: &Run, standing: &Standing) -> Document {
    let mut document = document(run);
    document.reason = document.reason.or_else(|| standing.reason());
    if standing.abandoned {
        // It is unknown whether the agents are alive.
        document.agents = 0;
    }
    document.standing = Some(standing.clone());
    document
}

pub fn document(run: &Run) -> Document {
    Document {
        run_id: run.id().into(),
        status: run.status(),
        phase: run.phase(),
        iteration: run.iteration,
        beads: BeadCounts {
            total: run.total(),
            open: run.count(Stage::Open) + run.left_open,
            in_progress: run.count(Stage::Taken),
            closed: run.count(Stage::Done),
            blocked: run.count(Stage::Blocked),
        },
        target_branch: run.target(),
        pr_url: run.publication.pr_url.clone(),
        enforced: run.enforced(),
        cost_usd: run.cost_usd,
        spec: run.started.spec.clone(),
        title: run.started.title.clone(),
        branch: run.publication.preserved_branch().or(run.publication.branch.as_ref()).cloned(),
        agents: run.jobs.len() as u32,
        observations: run.observations.pending.iter().cloned().collect(),
        maintenance_runs: run.maintenance.runs.len() as u32,
        maintenance_coalesced: run.maintenance.coalesced,
        reason: run.rest_reason().map(str::to_string).or_else(|| why(run)),
        standing: None,
        error: shortfall(run),
        work: Whereabouts::of(run),
        question: run.question().map(String::from),
        thread_id: run.started.thread.clone(),
        spec_review: run.review.clone(),
        plan: Plan::of(run),
    }
}
