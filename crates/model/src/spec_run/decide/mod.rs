//! Decides which events an input causes, and which follow from the state without an input.

mod advance;
mod ended;
mod failure;
pub mod gate;
mod replan;

pub use advance::advance;
pub use ended::blocks;
pub use gate::{Gate, GateAnswer};

use crate::agent::event::cut;
use crate::beads::Bead;
use crate::beads::graph::Graph;
use crate::event::{Event, Outcome};
use crate::spec_run::event::*;
use crate::spec_run::judge::{JudgeResult, VerdictError};
use crate::spec_run::state::{Decomposition, JudgeStage, PhaseState, Run, Sealed, Stage};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use std::collections::BTreeMap;

/// A request, or the result of an effect.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Frozen {
        sha256: String,
        base_branch: String,
        base_commit: String,
        target_branch: String,
    },
    Sealed(Sealed),
    /// The beads of the run, as the store has them.
    Gathered {
        beads: Vec<Bead>,
        closed_outside: Vec<String>,
    },
    BeadsAccepted,
    JobEnded {
        dispatch: String,
        end: Box<JobEnd>,
    },
    /// Those of the awaited ids outside the run that are closed.
    Outside {
        closed: Vec<String>,
    },
    Applied {
        iteration: u32,
        triage: Triage,
    },
    Published {
        branch: String,
        commit: String,
        merge: String,
        /// `None` if none was requested, or if there is no remote.
        pr: Option<PullRequest>,
    },
    Resume {
        settings: Box<RunSettings>,
        by: String,
        approve: bool,
        from: Option<GoOn>,
        /// Changes that a person made to unfinished beads while the run rested.
        settled: Vec<Settled>,
        /// The trace context of the request.
        trace: Option<String>,
    },
    /// Resume with a new version of the spec.
    Amend {
        amended: Box<SpecAmended>,
        /// An [`Input::Resume`].
        resume: Box<Input>,
    },
    /// The answer of a person to the question for which the run rests.
    Answered {
        question: String,
        answer: GateAnswer,
        /// An [`Input::Resume`].
        resume: Box<Input>,
    },
    Stop {
        reason: String,
    },
    /// The run cannot continue: an `E_…` code and the reason.
    Fatal {
        code: String,
        message: String,
    },
}

/// The result of the pull request at the end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullRequest {
    /// Its URL.
    Made(String),
    /// There is a remote; the reason why nothing was pushed to it.
    Unpushed(String),
    /// The branch was pushed under this name. A person opens the pull request, on this page if it
    /// is known.
    Pushed {
        branch: String,
        page: Option<String>,
        /// Why `gh` made no pull request, if it was asked to.
        trouble: Option<String>,
    },
}

/// The phase from which a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoOn {
    Implement,
    /// Start a maintenance run immediately, regardless of its trigger.
    Maintain,
    Judge,
}

/// A bead of the run that a person closed or reopened while no agent worked on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub bead: String,
    pub closed: bool,
    pub no_change: bool,
}

/// Why a run cannot be resumed from that phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    pub code: ErrorCode,
    pub message: String,
}

/// The end of an agent, with all facts about it that were collected then.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEnd {
    pub outcome: Outcome,
    pub reason: String,
    /// The last lines of its output.
    pub last_lines: String,
    pub duration_ms: u64,
    pub cost_usd: f64,
    /// The model's provider had no capacity, so the failure does not count.
    pub rate_limited: bool,
    /// The agent was stopped because the run has spent this many US dollars of its budget. That
    /// failure does not count either.
    pub penniless: Option<f64>,
    /// It is unknown whether the agent had finished.
    pub unknown: bool,
    /// Whether the agent's bead is closed, and whether as needing no change.
    pub closed: bool,
    pub no_change: bool,
    /// The agent's commits since its base, and whether the target has all of them.
    pub commits: u32,
    pub on_target: bool,
    /// Some of the commits are the agent's own, and its clone holds nothing that the target lacks
    /// (such as an unfinished rebase).
    pub whole: bool,
    /// The agent made no commits, but those of an earlier attempt are on the target.
    pub pushed_before: bool,
    /// Why a push of the agent was undone: it was no fast-forward.
    pub undone: Option<String>,
    /// The agent's commits are on the base branch of the real remote, to which it must not push.
    pub trespassed: Option<String>,
    /// The open observation beads of the run.
    pub observations: Vec<String>,
    /// The titles of these beads.
    pub titles: BTreeMap<String, String>,
    pub sealed: Option<Sealed>,
    /// The findings of the agent that reviewed the spec.
    pub findings: Vec<SpecFinding>,
    /// A decomposition agent succeeded but created no beads.
    pub empty: bool,
    /// The agent changed files that it may only read.
    pub wrote: bool,
    /// The program of its CLI was changed after the run began.
    pub cli_changed: bool,
    pub verdict: Option<Result<JudgeResult, VerdictError>>,
}

impl JobEnd {
    pub fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Self {
            outcome,
            reason: reason.into(),
            last_lines: String::new(),
            duration_ms: 0,
            cost_usd: 0.0,
            rate_limited: false,
            penniless: None,
            unknown: false,
            closed: false,
            no_change: false,
            commits: 0,
            on_target: false,
            whole: false,
            pushed_before: false,
            undone: None,
            trespassed: None,
            observations: vec![],
            titles: BTreeMap::new(),
            sealed: None,
            findings: vec![],
            empty: false,
            wrote: false,
            cli_changed: false,
            verdict: None,
        }
    }

    /// Returns whether the bead's work is on the target, from whichever attempt. An agent that
    /// ended by itself may have left rejected work behind; an agent that was cut off must have left
    /// nothing.
    pub fn has_pushed(&self) -> bool {
        let all = self.whole || self.outcome == Outcome::Success;
        (self.commits > 0 && self.on_target && all) || (self.commits == 0 && self.pushed_before)
    }
}

/// Returns the event that stops a run because its budget is spent.
fn broke(spent: f64, budget: f64) -> Event {
    Event::RunStopping {
        code: ErrorCode::Budget.into(),
        message: format!("spent ${spent:.2} of its budget of ${budget:.2}"),
    }
}

/// Returns the events that record `input`; none if the input is obsolete or has no effect.
pub fn decide(run: &Run, input: Input, now: Timestamp) -> Vec<Event> {
    if let Input::Amend { amended, resume } = input {
        return amend(run, amended, *resume, now);
    }
    if let Input::Answered { question, answer, resume } = input {
        return gate::answered(run, &question, answer, *resume, now);
    }
    if let Input::Resume { settings, by, approve, from, settled, trace } = input {
        return resume(run, (settings, trace), &by, approve, from, &settled);
    }
    if !run.is_live() {
        return vec![];
    }
    match input {
        Input::Frozen { sha256, base_branch, base_commit, target_branch }
            if run.is_unfrozen() && !run.awaits_review() =>
        {
            vec![Event::SpecFrozen { sha256, base_branch, base_commit, target_branch }]
        }
        Input::Sealed(sealed) if run.sealed.is_none() => {
            vec![Event::AcceptanceSealed { path: sealed.path, sha256: sealed.sha256 }]
        }
        Input::Gathered { beads, closed_outside } if run.awaits_beads() => {
            gathered(run, &beads, &closed_outside)
        }
        Input::BeadsAccepted if run.phase == PhaseState::Decompose(Decomposition::Planned) => {
            vec![Event::BeadsAccepted {}]
        }
        Input::JobEnded { dispatch, end } => match run.job_by_dispatch(&dispatch) {
            Some(job) => ended::job_ended(run, job, &end, now),
            None => vec![],
        },
        Input::Outside { closed } => outside(run, &closed),
        Input::Applied { iteration, triage } if iteration == run.iteration => applied(run, triage),
        Input::Published { branch, commit, merge, pr } if run.phase() == Phase::Finish => {
            published(run, branch, commit, merge, pr)
        }
        Input::Stop { reason } if run.stopping().is_none() => {
            vec![Event::RunStopping { code: String::new(), message: reason }]
        }
        Input::Fatal { code, message }
            if run.stopping().is_none_or(|stop| stop.code.is_empty()) =>
        {
            vec![Event::RunStopping { code, message }]
        }
        _ => vec![],
    }
}

/// Checks whether a run can be resumed from a phase. No phase and no approval can be skipped.
///
/// # Errors
/// The missing step.
pub fn may_go_on(run: &Run, from: GoOn, approve: bool, settled: &[Settled]) -> Result<(), Barred> {
    let bad = |message: String| Err(Barred { code: ErrorCode::BadInput, message });
    if !run.jobs.is_empty() {
        let message = format!("{} of its agents are running", run.jobs.len());
        return Err(Barred { code: ErrorCode::RunLocked, message });
    }
    if !run.has_accepted_beads() {
        return bad(format!(
            "it has not finished planning its beads (phase {})",
            run.phase().as_str()
        ));
    }
    if run.settings.human_review && !run.approved && !approve {
        return bad("its beads are not approved".into());
    }
    let left: Vec<&str> = run
        .beads
        .values()
        .filter(|task| match settled.iter().find(|one| one.bead == task.planned.id) {
            Some(one) => task.stage != Stage::Done && !one.closed,
            None => matches!(task.stage, Stage::Open | Stage::Taken),
        })
        .map(|task| task.planned.id.as_str())
        .collect();
    if from == GoOn::Judge && !left.is_empty() {
        let shown: Vec<_> = left.iter().take(10).map(|id| run.named(id)).collect();
        let shown = shown.join(", ");
        return bad(format!(
            "{} beads are not done ({shown}), so the judge cannot start",
            left.len()
        ));
    }
    Ok(())
}

fn resume(
    run: &Run,
    (settings, trace): (Box<RunSettings>, Option<String>),
    by: &str,
    approve: bool,
    from: Option<GoOn>,
    settled: &[Settled],
) -> Vec<Event> {
    if from.is_some_and(|from| may_go_on(run, from, approve, settled).is_err()) {
        return vec![];
    }
    let mut settings = settings;
    // An approval of the spec does not approve the criteria, which do not exist yet.
    let of_spec = run.awaits_review();
    settings.preview_acceptance |= of_spec && run.settings.preview_acceptance;
    let mut events =
        vec![Event::RunResumed { run_id: run.id().into(), settings, by: by.into(), trace }];
    // An approval of the criteria does not approve the beads, which do not exist yet.
    let criteria = run.phase() == Phase::Freeze && run.settings.preview_acceptance;
    if approve && (run.awaits_merge() || (!run.approved && !criteria && !of_spec)) {
        events.push(Event::RunApproved { by: by.into() });
    }
    // The graph was rejected, so the decomposition is repeated; the agent gets the reason in its
    // prompt.
    let refused = [ErrorCode::GraphCycle, ErrorCode::GraphEmpty, ErrorCode::GraphDangling];
    if let Some(error) = run.error().filter(|error| refused.iter().any(|code| error.code == *code))
        && run.phase == PhaseState::Decompose(Decomposition::Pending { decomposed: true })
    {
        let reason = cut(&error.message, 500);
        events.push(Event::AgentRetried { purpose: Purpose::Decompose, reason, counted: false });
    }
    let mut reopened = false;
    for one in settled {
        let Some(task) = run.beads.get(&one.bead) else { continue };
        match task.stage {
            Stage::Open | Stage::Blocked if one.closed => events.push(Event::BeadCompleted {
                bead_id: one.bead.clone(),
                by: by.into(),
                no_change: one.no_change,
                commits: 0,
            }),
            // A bead must not be reopened while the judge runs.
            Stage::Blocked if run.phase() == Phase::Implement || run.jobs.is_empty() => {
                events.push(Event::BeadReopened { bead_id: one.bead.clone(), by: by.into() });
                reopened = true;
            }
            _ => {}
        }
    }
    // A run that an amendment took back to an earlier phase gets there by itself.
    if reopened && from.is_none() && matches!(run.phase(), Phase::Judge | Phase::Finish) {
        events.push(Event::PhaseChanged { phase: Phase::Implement });
    }
    match from {
        Some(GoOn::Implement) => events.push(Event::PhaseChanged { phase: Phase::Implement }),
        Some(GoOn::Maintain) => {
            events.push(Event::PhaseChanged { phase: Phase::Implement });
            events.extend(advance::start_maintenance(run));
        }
        Some(GoOn::Judge) => events.push(Event::PhaseChanged { phase: Phase::Judge }),
        None => {}
    }
    events
}

/// Describes the first dependency cycle among some beads.
pub fn circle(graph: &Graph, work: &[&Bead]) -> Option<String> {
    let cycles = graph.cycles();
    let named = cycles.first()?.iter().map(|id| {
        let title = work.iter().find(|bead| bead.id == *id).map_or("", |bead| bead.title.as_str());
        format!("{id} ({})", cut(title, 60))
    });
    Some(format!("beads depend on each other: {}", named.collect::<Vec<_>>().join(" → ")))
}

/// Resumes a run at rest with a new version of the spec, from its freeze on.
fn amend(run: &Run, amended: Box<SpecAmended>, resume: Input, now: Timestamp) -> Vec<Event> {
    if run.is_live() || !run.jobs.is_empty() || amended.number != run.versions.current + 1 {
        return vec![];
    }
    let mut events = decide(run, resume, now);
    // The approval, if there is one, was of other beads, and a bead may be reopened that is
    // withdrawn.
    events.retain(|event| {
        matches!(event, Event::RunResumed { .. } | Event::BeadCompleted { .. })
            || matches!(event, Event::BeadReopened { bead_id, .. }
                if !amended.withdrawn.contains(bead_id))
    });
    if !events.is_empty() {
        events.push(Event::SpecAmended(amended));
        events.push(Event::PhaseChanged { phase: Phase::Freeze });
    }
    events
}

fn gathered(run: &Run, beads: &[Bead], closed_outside: &[String]) -> Vec<Event> {
    let fatal =
        |code: ErrorCode, message: String| vec![Event::RunStopping { code: code.into(), message }];
    let work: Vec<&Bead> = beads.iter().filter(|bead| !bead.is_observation()).collect();
    if work.is_empty() {
        return fatal(ErrorCode::GraphEmpty, "the decomposition has no beads".into());
    }
    let graph = Graph::of_beads(work.iter().copied());
    if let Some(message) = circle(&graph, &work) {
        return fatal(ErrorCode::GraphCycle, message);
    }
    let waited_for = |on: &str| !closed_outside.iter().any(|id| id == on);
    let known = |on: &str| run.is_amending() && run.beads.contains_key(on);
    let planned: Vec<Planned> = work
        .iter()
        .map(|bead| Planned::of(bead, |on| graph.index(on).is_some() || known(on), waited_for))
        .collect();
    let replanned = replan::replanned(run, &planned);
    let mut events = vec![];
    if !replanned.is_empty() {
        events.push(Event::BeadsReplanned { beads: replanned });
    }
    events.push(Event::BeadsCreated {
        count: planned.len() as u32,
        dependency_edges: graph.edges() as u32,
        beads: planned,
    });
    events
}

fn outside(run: &Run, closed: &[String]) -> Vec<Event> {
    let mut events = Vec::new();
    for task in run.beads.values() {
        for on in task.outside.iter().filter(|on| closed.contains(on)) {
            events.push(Event::OutsideClosed { bead_id: task.planned.id.clone(), on: on.clone() });
        }
    }
    if events.is_empty() && run.jobs.is_empty() && run.schedule.next().is_none() {
        let stuck: Vec<_> =
            run.stuck().into_iter().map(|blocked| run.chain(&blocked.chain)).take(20).collect();
        if !stuck.is_empty() {
            let message = format!(
                "all remaining beads depend on beads outside the run: {}",
                stuck.join("; ")
            );
            events.push(Event::RunStopping { code: ErrorCode::ExternalBlocked.into(), message });
        }
    }
    events
}

fn applied(run: &Run, triage: Triage) -> Vec<Event> {
    let Some(JudgeStage::Apply(result)) = run.judge() else { return vec![] };
    let mut events =
        vec![Event::VerdictApplied { iteration: run.iteration, triage: Box::new(triage.clone()) }];
    if result.passed() {
        events.push(Event::PhaseChanged { phase: Phase::Finish });
    } else if run.settings.judge_only {
        let message = format!(
            "the judge found faults, and only the judge was requested; {} beads are open",
            triage.beads.len()
        );
        events.push(Event::RunStopping { code: ErrorCode::MaxIterations.into(), message });
    } else if run.iteration >= run.settings.max_iterations {
        let message = format!(
            "the judge found faults in each of {} iterations; {} beads are open: raise \
             run.phases.judge.max_iterations and resume the run to work on them",
            run.iteration,
            triage.beads.len()
        );
        events.push(Event::RunStopping { code: ErrorCode::MaxIterations.into(), message });
    } else {
        events.push(Event::IterationStarted { iteration: run.iteration + 1, beads: triage.beads });
        events.push(Event::PhaseChanged { phase: Phase::Implement });
    }
    events
}

/// Returns why the branch of a run is not pushed, or `None` if it may be pushed.
pub fn unpushed(run: &Run) -> Option<String> {
    let blocked = run.count(Stage::Blocked);
    if run.started.target != "auto" {
        return Some(format!(
            "the configuration names {} as its target, so push it yourself",
            run.target()
        ));
    }
    if blocked > 0 {
        return Some(format!("{blocked} of {} beads are blocked", run.beads.len()));
    }
    // The run began from a detached commit, so there is no base branch for a pull request.
    let detached = run.frozen.as_ref().is_none_or(|frozen| frozen.base_branch == "HEAD");
    (detached && !run.settings.push).then(|| {
        "the run started from a commit that is on no branch, so no pull request is possible".into()
    })
}

fn published(
    run: &Run,
    branch: String,
    commit: String,
    merge: String,
    pr: Option<PullRequest>,
) -> Vec<Event> {
    let (pr, unpushed) = match pr {
        Some(PullRequest::Unpushed(why)) => (None, Some(why)),
        pr => (pr, None),
    };
    let mut events = vec![Event::BranchPublished { branch, commit, merge, unpushed }];
    match pr {
        Some(PullRequest::Pushed { branch, page, trouble }) => {
            events.push(Event::BranchPushed { branch, page, trouble });
        }
        Some(PullRequest::Made(url)) if run.publication.pr_url.is_none() => {
            events.push(Event::PrCreated { url })
        }
        _ => {}
    }
    let all = run.count(Stage::Done) == run.beads.len();
    let status = if all { RunStatus::Completed } else { RunStatus::Partial };
    events.push(Event::RunCompleted { status, total_beads: run.beads.len() as u32 });
    events
}
