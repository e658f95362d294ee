//! The state of a run, folded from its events.

use crate::beads::schedule::{self, Schedule};
use crate::event::trace_context::Context;
use crate::event::trace_ids;
use crate::event::{Event, Record};
use crate::spec_run::event::*;
use crate::spec_run::judge::{JudgeResult, Observation};
use crate::{daemon_events, dispatch_events, task_list_events};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub started: RunStarted,
    /// How many times the run has been resumed.
    pub sitting: u32,
    /// The trace context of the last start or resume.
    pub trace: Option<String>,
    pub settings: RunSettings,
    pub started_at: Timestamp,
    pub updated_at: Timestamp,
    pub seq: u64,
    pub phase: Phase,
    /// When the run last started or resumed, and how long it ran before that.
    pub running_since: Timestamp,
    pub ran_ms: i64,
    pub frozen: Option<Frozen>,
    pub sealed: Option<Sealed>,
    pub iteration: u32,
    /// The beads of the run, of all iterations.
    pub beads: BTreeMap<String, TaskState>,
    /// The ids in order of appearance; the schedule is built from it.
    pub order: Vec<String>,
    pub schedule: Schedule,
    pub edges: u32,
    /// The beads are accepted; until then they may be staged.
    pub accepted: bool,
    /// The run was resumed before any bead was begun, so the beads are read again.
    pub anew: bool,
    pub approved: bool,
    /// Agents that were started and have not ended, by their number.
    pub jobs: BTreeMap<u32, Job>,
    /// Agents started so far; part of the ids of their dispatches.
    pub spawns: u32,
    /// Consecutive counted failures of agents that the run needs, by purpose.
    pub failures: BTreeMap<Purpose, u32>,
    /// Consecutive failures that do not count (rate limits), by purpose.
    pub uncounted: BTreeMap<Purpose, u32>,
    /// Why the last agent of each purpose failed; part of the next agent's prompt.
    pub complaint: BTreeMap<Purpose, String>,
    /// The decomposition agent has succeeded; its beads are not read yet.
    pub decomposed: bool,
    /// Beads that were completed in this iteration, and in all iterations.
    pub done_now: u32,
    pub done: u32,
    /// The value of `done_now` when maintenance was last triggered.
    pub maintained_at: u32,
    /// The last maintenance run was stopped with the run, so maintenance is triggered again.
    pub maintenance_due: bool,
    pub maintenance: Vec<Maintenance>,
    pub coalesced: u32,
    /// Beads that the last verdict created and no iteration has planned. No iteration may be left.
    pub left_open: usize,
    pub observations: BTreeSet<String>,
    pub promoted: BTreeSet<String>,
    pub dismissed: BTreeSet<String>,
    pub judge: JudgeStage,
    /// How many times judging has begun.
    pub judgings: u32,
    pub verdicts: Vec<JudgeFinished>,
    /// After a rate limit, no agent starts before this time.
    pub not_before: Option<Timestamp>,
    /// The reason for `not_before`.
    pub slowed: Option<String>,
    pub slowdowns: u32,
    pub cost_usd: f64,
    pub published: Option<String>,
    /// Why the published branch is in the user's repository only.
    pub unpushed: Option<String>,
    pub pr_url: Option<String>,
    /// Where the branch was pushed without a pull request.
    pub pushed: Option<Pushed>,
    /// The preserved work of a run that ended without a pass.
    pub kept: Option<KeptWork>,
    pub stopping: Option<Stopping>,
    /// The status of a resting run, and the reason.
    pub resting: Option<(RunStatus, String)>,
    /// The run rests because it was stopped.
    pub stopped: bool,
    pub outcome: Option<RunStatus>,
    pub error: Option<Stopping>,
    pub iterations: Vec<Iteration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    pub sha256: String,
    pub base_branch: String,
    pub base_commit: String,
    pub target_branch: String,
}

/// A branch at the remote, and the web page for a pull request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    pub branch: String,
    pub page: Option<String>,
    /// Why `gh` made no pull request, if it was asked to.
    pub trouble: Option<String>,
}

/// Acceptance criteria, hashed before the first coding agent starts. An empty path means no
/// criteria.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    pub path: String,
    pub sha256: String,
}

/// The statistics of one iteration, for the run log.
#[derive(Debug, Clone, PartialEq)]
pub struct Iteration {
    pub started_at: Timestamp,
    pub beads: u32,
    pub completed: u32,
    pub failed: u32,
    pub spawns: u32,
    pub maintenance: u32,
    pub observations: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskState {
    pub planned: Planned,
    pub iteration: u32,
    /// Attempts so far, which is also the number of the next one.
    pub attempts: u32,
    /// Failures that count.
    pub failures: u32,
    /// Worktrees created for the bead so far.
    pub worktrees: u32,
    /// The next attempt continues in the last worktree.
    pub reuse: bool,
    /// Notes about the last attempt for the next one's prompt.
    pub note: String,
    /// Why the last attempt failed; empty before the first failure and after a reopening.
    pub failure: String,
    pub stage: Stage,
    /// Open dependencies outside the run.
    pub outside: BTreeSet<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    Taken,
    Done,
    Blocked,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub start: AgentStarted,
    pub started_at: Timestamp,
    /// The iteration in which the agent started.
    pub iteration: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    pub id: String,
    pub bead_id: String,
    pub trigger_completed_count: u32,
    /// `running`, `success`, `failure`, `timeout` or `stopped`.
    pub state: String,
    pub at: Timestamp,
}

/// The judge's progress in this iteration.
#[derive(Debug, Clone, PartialEq)]
pub enum JudgeStage {
    /// The judge evaluates: round 1, or one more after it changed files.
    Reason { round: u32 },
    /// An agent structures the evaluation of that round; `tries` of its results could not be
    /// parsed.
    Structure { round: u32, tries: u32 },
    /// The verdict is ready to be applied to the bead store.
    Apply(Box<JudgeResult>),
}

/// A decision to end or rest. It takes effect when no agent is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopping {
    /// An error code, or empty for a rest.
    pub code: String,
    pub message: String,
}

/// An open bead that cannot be worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    pub bead: String,
    /// From that bead to the blocker at the end of the chain.
    pub chain: Vec<String>,
}

impl Run {
    /// Creates the state from the first event of a run's log.
    pub fn begin(record: &Record) -> Option<Self> {
        let Event::RunStarted(started) = &record.entry.event else { return None };
        Some(Self {
            settings: started.settings.clone(),
            started: (**started).clone(),
            started_at: record.ts,
            updated_at: record.ts,
            seq: record.seq,
            phase: Phase::Freeze,
            running_since: record.ts,
            ran_ms: 0,
            frozen: None,
            sealed: None,
            sitting: 0,
            trace: started.trace.clone(),
            iteration: 1,
            beads: BTreeMap::new(),
            order: vec![],
            schedule: Schedule::default(),
            edges: 0,
            accepted: false,
            anew: false,
            approved: false,
            jobs: BTreeMap::new(),
            spawns: 0,
            failures: BTreeMap::new(),
            uncounted: BTreeMap::new(),
            complaint: BTreeMap::new(),
            decomposed: false,
            done_now: 0,
            done: 0,
            maintained_at: 0,
            maintenance_due: false,
            maintenance: vec![],
            coalesced: 0,
            left_open: 0,
            observations: BTreeSet::new(),
            promoted: BTreeSet::new(),
            dismissed: BTreeSet::new(),
            judge: JudgeStage::Reason { round: 1 },
            judgings: 0,
            verdicts: vec![],
            not_before: None,
            slowed: None,
            slowdowns: 0,
            cost_usd: 0.0,
            published: None,
            unpushed: None,
            pushed: None,
            kept: None,
            pr_url: None,
            stopping: None,
            resting: None,
            stopped: false,
            outcome: None,
            error: None,
            iterations: vec![Iteration::new(record.ts)],
        })
    }

    /// Folds a whole log.
    pub fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<Self> {
        let mut records = records.into_iter();
        let mut run = Self::begin(records.next()?)?;
        for record in records {
            run.apply(record);
        }
        Some(run)
    }

    pub fn id(&self) -> &str {
        &self.started.run_id
    }

    /// Returns the random part of the run's id.
    pub fn hash(&self) -> &str {
        self.started.run_id.rsplit('-').next().unwrap_or_default()
    }

    pub fn status(&self) -> RunStatus {
        match (&self.outcome, &self.resting) {
            (Some(outcome), _) => *outcome,
            (None, Some((status, _))) => *status,
            (None, None) => RunStatus::InProgress,
        }
    }

    /// Returns the trace context of the last start or resume; `None` if there was none.
    pub fn trace_context(&self) -> Option<Context> {
        Context::parse(self.trace.as_deref()?)
    }

    /// Returns the trace context of a dispatch for this bead, or for no bead (see
    /// `muleteer_telemetry::run`).
    pub fn context(&self, bead: Option<&str>) -> Option<Context> {
        let (run, sitting, iteration) = (self.id(), self.sitting, self.iteration);
        let span = match bead {
            Some(bead) => trace_ids::bead(run, sitting, iteration, bead),
            None => trace_ids::iteration(run, sitting, iteration),
        };
        Some(self.trace_context()?.below(span))
    }

    /// Returns whether the run has neither ended nor rests.
    pub fn is_live(&self) -> bool {
        self.outcome.is_none() && self.resting.is_none()
    }

    pub fn target(&self) -> String {
        match &self.frozen {
            Some(frozen) => frozen.target_branch.clone(),
            None if self.started.target == "auto" => format!("muleteer/{}", self.id()),
            None => self.started.target.clone(),
        }
    }

    /// Returns the number of beads of the run, including the unplanned ones of the last verdict.
    pub fn total(&self) -> usize {
        self.beads.len() + self.left_open
    }

    pub fn count(&self, stage: Stage) -> usize {
        self.beads.values().filter(|task| task.stage == stage).count()
    }

    /// Returns the number of coding agents, which `max_concurrency` limits.
    pub fn coding(&self) -> usize {
        self.jobs.values().filter(|job| job.start.purpose == Purpose::Implement).count()
    }

    pub fn job_of(&self, purpose: Purpose) -> Option<&Job> {
        self.jobs.values().find(|job| job.start.purpose == purpose)
    }

    pub fn job_by_dispatch(&self, dispatch: &str) -> Option<&Job> {
        self.jobs.values().find(|job| job.start.dispatch == dispatch)
    }

    /// Returns how long the run has run, without its rests.
    pub fn ran_for_ms(&self, now: Timestamp) -> i64 {
        let now = if self.is_live() {
            (now.as_millisecond() - self.running_since.as_millisecond()).max(0)
        } else {
            0
        };
        self.ran_ms + now
    }

    /// Returns the lowest agent number that is free.
    pub fn next_agent(&self) -> u32 {
        (1..).find(|number| !self.jobs.contains_key(number)).unwrap_or(1)
    }

    /// Returns the open beads with their chains of blockers.
    pub fn stuck(&self) -> Vec<Blocked> {
        let mut found = vec![];
        for task in self.beads.values().filter(|task| task.stage == Stage::Open) {
            let mut chain = vec![task.planned.id.clone()];
            let mut at = task;
            // Follow the first open blocker. The graph has no cycle, but the fold does not rely on
            // it.
            while chain.len() <= self.beads.len() {
                if let Some(outside) = at.outside.iter().next() {
                    chain.push(outside.clone());
                    break;
                }
                let next = at
                    .planned
                    .depends_on
                    .iter()
                    .filter_map(|on| self.beads.get(on))
                    .find(|on| on.stage != Stage::Done);
                let Some(next) = next else { break };
                chain.push(next.planned.id.clone());
                at = next;
            }
            found.push(Blocked { bead: task.planned.id.clone(), chain });
        }
        found
    }

    /// Returns all unfinished beads that depend on a bead, directly or not.
    pub fn dependants(&self, id: &str) -> Vec<String> {
        let graph = self.schedule.graph();
        let below = graph.index(id).map(|at| graph.downstream(at)).unwrap_or_default();
        let ids = below.into_iter().map(|at| graph.id(at).to_string());
        ids.filter(|id| self.beads.get(id).is_some_and(|task| task.stage != Stage::Done))
            .collect()
    }

    /// Returns the observations on which a verdict decides, the first decision for each. Only
    /// pending observations and repeated decisions count, never a bead that is worked on.
    pub fn triaged<'a>(&self, result: &'a JudgeResult) -> Vec<&'a Observation> {
        let mut said = BTreeSet::new();
        let own = |one: &Observation| {
            let id = &one.bead_id;
            let again = match one.action.as_str() {
                "promote" => self.promoted.contains(id),
                _ => self.dismissed.contains(id),
            };
            !self.beads.contains_key(id) && (self.observations.contains(id) || again)
        };
        result.observations.iter().filter(|one| said.insert(&one.bead_id) && own(one)).collect()
    }

    /// Folds one durable record.
    pub fn apply(&mut self, record: &Record) {
        self.seq = record.seq;
        self.updated_at = record.ts;
        self.apply_event(&record.entry.event, record.ts);
    }

    pub(super) fn apply_event(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::RunResumed { settings, trace, .. } => {
                self.anew = self.phase == Phase::Decompose && self.accepted;
                self.sitting += 1;
                self.trace = trace.clone().or(self.trace.take());
                self.ran_ms = self.ran_for_ms(ts);
                self.settings = (**settings).clone();
                self.resting = None;
                self.stopping = None;
                self.error = None;
                self.outcome = None;
                self.running_since = ts;
                self.not_before = None;
                self.stopped = false;
                self.failures.clear();
                self.uncounted.clear();
            }
            Event::PhaseChanged { phase } => {
                self.phase = *phase;
                self.anew = false;
                if *phase == Phase::Judge {
                    self.judge = JudgeStage::Reason { round: 1 };
                    self.judgings += 1;
                }
            }
            Event::SpecFrozen { sha256, base_branch, base_commit, target_branch } => {
                self.frozen = Some(Frozen {
                    sha256: sha256.clone(),
                    base_branch: base_branch.clone(),
                    base_commit: base_commit.clone(),
                    target_branch: target_branch.clone(),
                });
            }
            Event::AcceptanceSealed { path, sha256 } => {
                self.sealed = Some(Sealed { path: path.clone(), sha256: sha256.clone() });
            }
            Event::BeadsCreated { dependency_edges, beads, .. } => {
                self.edges = *dependency_edges;
                if std::mem::take(&mut self.anew) {
                    let before =
                        self.beads.values().filter(|task| task.stage != Stage::Done).count() as u32;
                    self.log(|iteration| iteration.beads = iteration.beads.saturating_sub(before));
                    self.beads.clear();
                    self.order.clear();
                }
                self.plan(beads);
            }
            Event::BeadsAccepted {} => self.accepted = true,
            Event::RunApproved { .. } => self.approved = true,
            Event::BeadAssigned { bead_id, .. } => self.set_stage(bead_id, Stage::Taken),
            Event::AgentStarted(start) => self.start(start, ts),
            Event::AgentFinished(end) => {
                self.jobs.remove(&end.agent);
                self.cost_usd += end.cost_usd;
                if end.status == crate::event::Outcome::Success {
                    // Later events of the same batch may set these again.
                    self.failures.remove(&end.purpose);
                    self.uncounted.remove(&end.purpose);
                    self.complaint.remove(&end.purpose);
                }
                if end.purpose == Purpose::Maintain
                    && let Some(last) = self.maintenance.last_mut()
                {
                    last.state = status_of(end.status).into();
                    last.at = ts;
                }
            }
            Event::AgentRetried { purpose, reason, counted } => {
                self.complaint.insert(*purpose, reason.clone());
                let count = if *counted { &mut self.failures } else { &mut self.uncounted };
                *count.entry(*purpose).or_default() += 1;
                if *purpose == Purpose::Decompose {
                    self.decomposed = false;
                }
            }
            Event::Decomposed {} => self.decomposed = true,
            Event::BeadCompleted { bead_id, .. }
                if self.beads.get(bead_id).is_some_and(|task| task.stage != Stage::Done) =>
            {
                self.set_stage(bead_id, Stage::Done);
                self.done += 1;
                self.done_now += 1;
                self.slowdowns = 0;
                self.log(|iteration| iteration.completed += 1);
            }
            Event::BeadRetried { bead_id, reuse, counted, note, reason, .. } => {
                if let Some(task) = self.beads.get_mut(bead_id) {
                    task.failure.clone_from(reason);
                    task.reuse = *reuse;
                    task.note.clone_from(note);
                    task.failures += u32::from(*counted);
                }
                self.set_stage(bead_id, Stage::Open);
                self.log(|iteration| iteration.failed += 1);
            }
            Event::BeadBlocked { bead_id, reason, .. } => {
                if let Some(task) = self.beads.get_mut(bead_id) {
                    task.failure.clone_from(reason);
                }
                self.set_stage(bead_id, Stage::Blocked);
            }
            Event::BeadReopened { bead_id, .. } => {
                if let Some(task) = self.beads.get_mut(bead_id) {
                    (task.failures, task.reuse) = (0, false);
                    task.failure.clear();
                }
                self.set_stage(bead_id, Stage::Open);
            }
            Event::OutsideClosed { bead_id, on } => {
                if let Some(task) = self.beads.get_mut(bead_id)
                    && task.outside.remove(on)
                {
                    self.schedule.close_outside(bead_id);
                }
            }
            Event::PoolSlowed { until, reason } => {
                self.not_before = Some(*until);
                self.slowed = Some(reason.clone());
                self.slowdowns += 1;
            }
            Event::ObservationCreated { bead_id, .. }
                if self.observations.insert(bead_id.clone()) =>
            {
                self.log(|iteration| iteration.observations += 1);
            }
            Event::MaintenanceStarted { maintenance, bead_id, trigger_completed_count } => {
                self.maintained_at = *trigger_completed_count;
                self.maintenance_due = false;
                self.maintenance.push(Maintenance {
                    id: maintenance.clone(),
                    bead_id: bead_id.clone(),
                    trigger_completed_count: *trigger_completed_count,
                    state: "running".into(),
                    at: ts,
                });
                self.log(|iteration| iteration.maintenance += 1);
            }
            Event::MaintenanceFinished { status, .. } if status == STOPPED => {
                self.maintenance_due = true;
                if let Some(last) = self.maintenance.last_mut() {
                    last.state = STOPPED.into();
                }
            }
            Event::MaintenanceCoalesced { completed_count } => {
                self.maintained_at = *completed_count;
                self.coalesced += 1;
            }
            Event::JudgeReasoned { round } => {
                self.judge = JudgeStage::Structure { round: *round, tries: 0 };
            }
            Event::JudgeFinished(end) => {
                self.verdicts.push((**end).clone());
                self.judge = match (&end.verdict, &end.result, &self.judge) {
                    (Verdict::Discarded, _, JudgeStage::Reason { round }) => {
                        JudgeStage::Reason { round: round + 1 }
                    }
                    (Verdict::Unreadable, _, JudgeStage::Structure { round, tries }) => {
                        JudgeStage::Structure { round: *round, tries: tries + 1 }
                    }
                    (_, Some(result), _) => JudgeStage::Apply(Box::new(result.clone())),
                    (_, None, stage) => stage.clone(),
                };
            }
            Event::VerdictApplied { triage, .. } => {
                for id in triage.promoted.iter().chain(&triage.dismissed) {
                    self.observations.remove(id);
                }
                self.left_open =
                    triage.beads.iter().filter(|bead| !self.beads.contains_key(&bead.id)).count();
                self.promoted.extend(triage.promoted.iter().cloned());
                self.dismissed.extend(triage.dismissed.iter().cloned());
            }
            Event::IterationStarted { iteration, beads } => {
                self.iteration = *iteration;
                self.left_open = 0;
                self.done_now = 0;
                self.maintained_at = 0;
                self.maintenance_due = false;
                self.phase = Phase::Implement;
                self.iterations.push(Iteration::new(ts));
                self.plan(beads);
            }
            Event::BranchPublished { branch, unpushed, .. } => {
                self.published = Some(branch.clone());
                self.unpushed.clone_from(unpushed);
                self.kept = None;
            }
            Event::BranchPushed { branch, page, trouble } => {
                let (page, trouble) = (page.clone(), trouble.clone());
                self.pushed = Some(Pushed { branch: branch.clone(), page, trouble });
            }
            Event::RunWorkKept(kept) => self.kept = Some(kept.clone()),
            Event::PrCreated { url } => self.pr_url = Some(url.clone()),
            Event::RunStopping { code, message } => {
                self.stopping = Some(Stopping { code: code.clone(), message: message.clone() });
            }
            Event::RunRested { status, reason } => {
                self.rest(ts);
                self.resting = Some((*status, reason.clone()));
                self.stopped = self.stopping.take().is_some();
            }
            Event::RunCompleted { status, .. } => {
                self.rest(ts);
                self.outcome = Some(*status);
            }
            Event::RunFailed { code, message, status } => {
                self.rest(ts);
                self.outcome = Some(*status);
                self.error = Some(Stopping { code: code.clone(), message: message.clone() });
                self.stopping = None;
            }
            // The run has counted it, or learns of it by other events.
            Event::RunStarted { .. }
            | Event::BeadCompleted { .. }
            | Event::ObservationCreated { .. }
            | Event::PushUndone { .. }
            | Event::MaintenanceFinished { .. }
            | Event::JudgeStarted { .. } => {}
            daemon_events!()
            | dispatch_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    fn rest(&mut self, ts: Timestamp) {
        self.ran_ms = self.ran_for_ms(ts);
        self.running_since = ts;
    }

    fn log(&mut self, note: impl FnOnce(&mut Iteration)) {
        if let Some(iteration) = self.iterations.last_mut() {
            note(iteration);
        }
    }

    fn start(&mut self, start: &AgentStarted, ts: Timestamp) {
        self.spawns += 1;
        self.log(|iteration| iteration.spawns += 1);
        if let Some(task) = start.bead_id.as_ref().and_then(|id| self.beads.get_mut(id)) {
            task.attempts = start.attempt + 1;
            task.worktrees += u32::from(!start.reuse);
        }
        self.jobs.insert(
            start.agent,
            Job { start: start.clone(), started_at: ts, iteration: self.iteration },
        );
    }

    /// Adds beads to the plan. Known beads are opened again.
    fn plan(&mut self, beads: &[Planned]) {
        let iteration = self.iteration;
        for planned in beads {
            if !self.beads.contains_key(&planned.id) {
                self.order.push(planned.id.clone());
            }
            self.beads.insert(
                planned.id.clone(),
                TaskState {
                    outside: planned.outside.iter().cloned().collect(),
                    stage: if planned.closed { Stage::Done } else { Stage::Open },
                    planned: planned.clone(),
                    iteration,
                    attempts: 0,
                    failures: 0,
                    worktrees: 0,
                    reuse: false,
                    note: String::new(),
                    failure: String::new(),
                },
            );
        }
        self.log(|iteration| {
            iteration.beads += beads.iter().filter(|bead| !bead.closed).count() as u32
        });
        let tasks: Vec<schedule::Task> = self
            .order
            .iter()
            .filter_map(|id| self.beads.get(id))
            .map(|task| schedule::Task {
                id: task.planned.id.clone(),
                priority: task.planned.priority,
                created_at: task.planned.created_at.clone(),
                depends_on: task.planned.depends_on.iter().chain(&task.outside).cloned().collect(),
                closed: task.stage == Stage::Done,
                withheld: matches!(task.stage, Stage::Taken | Stage::Blocked),
            })
            .collect();
        let open: BTreeSet<&String> = self.beads.values().flat_map(|task| &task.outside).collect();
        self.schedule = Schedule::new(&tasks, |id| !open.contains(&id.to_string()));
    }

    fn set_stage(&mut self, id: &str, stage: Stage) {
        let Some(task) = self.beads.get_mut(id) else { return };
        task.stage = stage;
        match stage {
            Stage::Open => self.schedule.release(id),
            Stage::Taken | Stage::Blocked => self.schedule.withhold(id),
            Stage::Done => self.schedule.close(id),
        }
    }
}

impl Iteration {
    fn new(started_at: Timestamp) -> Self {
        Self {
            started_at,
            beads: 0,
            completed: 0,
            failed: 0,
            spawns: 0,
            maintenance: 0,
            observations: 0,
        }
    }
}

/// The state of a maintenance run that was stopped with its run.
pub(super) const STOPPED: &str = "stopped";

pub(super) fn status_of(outcome: crate::event::Outcome) -> &'static str {
    match outcome {
        crate::event::Outcome::Success => "success",
        crate::event::Outcome::Failure => "failure",
        crate::event::Outcome::Timeout => "timeout",
    }
}
