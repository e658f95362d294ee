//! The effect of each event on the state of a run.

use crate::beads::schedule::{self, Schedule};
use crate::event::{Event, Outcome, Record};
use crate::spec_run::event::*;
use crate::spec_run::state::{
    Decomposition, Frozen, Iteration, Job, JudgeStage, Maintenance, MaintenanceRun, Observations,
    Pause, PhaseState, Publication, Pushed, Run, RunStanding, Runtime, Sealed, Slowdown, Stage,
    Stopping, TaskState, Versions, status_of,
};
use crate::{conversation_events, daemon_events, dispatch_events, task_list_events};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

impl Run {
    /// Creates the state from the first event of a run's log.
    pub fn begin(record: &Record) -> Option<Self> {
        let Event::RunStarted(started) = &record.entry.event else { return None };
        Some(Self {
            settings: started.settings.clone(),
            trace: started.trace.clone(),
            started: (**started).clone(),
            sitting: 0,
            started_at: record.ts,
            updated_at: record.ts,
            seq: record.seq,
            end_seq: 0,
            runtime: Runtime { since: record.ts, before_ms: 0 },
            phase: PhaseState::Freeze,
            standing: RunStanding::Running,
            versions: Versions::default(),
            review: None,
            frozen: None,
            sealed: None,
            approved: false,
            merge_approved: false,
            iteration: 1,
            iterations: vec![Iteration::new(record.ts)],
            beads: BTreeMap::new(),
            order: vec![],
            schedule: Schedule::default(),
            left_open: 0,
            jobs: BTreeMap::new(),
            spawns: 0,
            trials: BTreeMap::new(),
            maintenance: Maintenance::default(),
            observations: Observations::default(),
            judgings: 0,
            verdicts: vec![],
            slowdown: Slowdown::default(),
            judge_cli_changed: false,
            cost_usd: 0.0,
            publication: Publication::default(),
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

    /// Folds one durable record.
    pub fn apply(&mut self, record: &Record) {
        self.seq = record.seq;
        self.updated_at = record.ts;
        let was_live = self.is_live();
        self.apply_event(&record.entry.event, record.ts);
        if was_live && !self.is_live() {
            self.end_seq = record.seq;
        }
    }

    fn apply_event(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::RunResumed { settings, trace, .. } => self.resume(settings, trace.clone(), ts),
            Event::RunApproved { .. } => {
                self.approved = true;
                self.merge_approved |= self.phase == PhaseState::Finish;
            }
            Event::PlanChangeRequested { text, .. } => self.drop_plan(text),
            Event::RunStopping { code, message } => self.stop(code, message),
            Event::RunRested { status, reason, question } => {
                self.rest(*status, reason, question.as_deref(), ts);
            }
            Event::RunCompleted { status, .. } => self.end(*status, None, ts),
            Event::RunFailed { code, message, status } => {
                let error = Stopping { code: code.clone(), message: message.clone() };
                self.end(*status, Some(error), ts);
            }
            Event::PhaseChanged { phase } => {
                self.phase = PhaseState::begun(*phase);
                self.merge_approved = false;
                self.judgings += u32::from(*phase == Phase::Judge);
            }
            Event::IterationStarted { iteration, beads } => {
                self.begin_iteration(*iteration, beads, ts);
            }
            Event::SpecAmended(amended) => self.amend(amended),
            Event::BeadsReplanned { beads } => self.replan(beads),
            Event::SpecReviewed { findings } => self.review = Some(findings.clone()),
            Event::SpecFrozen { sha256, base_branch, base_commit, target_branch } => {
                self.versions.unfrozen = false;
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
            Event::Decomposed {} => self.set_decomposed(true),
            Event::BeadsCreated { beads, .. } => self.create_beads(beads),
            Event::BeadsAccepted {} => self.accept_beads(),
            Event::AgentStarted(start) => self.start(start, ts),
            Event::AgentFinished(end) => self.finish(end, ts),
            Event::AgentRetried { purpose, reason, counted } => {
                self.retry_agent(*purpose, reason, *counted);
            }
            Event::PoolSlowed { until, reason } => {
                self.slowdown.pause = Some(Pause { until: *until, reason: reason.clone() });
                self.slowdown.count += 1;
            }
            Event::BeadAssigned { bead_id, .. } => self.set_stage(bead_id, Stage::Taken),
            Event::BeadCompleted { bead_id, .. } => self.complete(bead_id),
            Event::BeadRetried { .. } => self.retry_bead(event),
            Event::BeadBlocked { bead_id, reason, kind, .. } => {
                self.maintenance.note(*kind);
                self.block(bead_id, reason);
            }
            Event::BeadReopened { bead_id, .. } => self.reopen(bead_id),
            Event::OutsideClosed { bead_id, on } => self.close_outside(bead_id, on),
            Event::ObservationCreated { bead_id, title, .. } => {
                if !title.is_empty() {
                    self.observations.titles.insert(bead_id.clone(), title.clone());
                }
                if self.observations.pending.insert(bead_id.clone()) {
                    self.log(|iteration| iteration.observations += 1);
                }
            }
            Event::MaintenanceStarted { maintenance, bead_id, trigger_completed_count } => {
                self.start_maintenance(maintenance, bead_id, *trigger_completed_count, ts);
            }
            Event::MaintenanceCoalesced { completed_count } => {
                self.maintenance.triggered_at = *completed_count;
                self.maintenance.coalesced += 1;
                self.maintenance.in_a_row = None;
            }
            Event::MaintenanceFinished { status, .. } => self.maintenance.finish(status),
            Event::JudgeReasoned { round } => {
                if let PhaseState::Judge(stage) = &mut self.phase {
                    *stage = JudgeStage::Structure { round: *round, tries: 0 };
                }
            }
            Event::JudgeFinished(end) => self.judged(end),
            Event::VerdictApplied { triage, .. } => self.triage(triage),
            Event::BranchPublished { branch, unpushed, .. } => {
                self.publication.branch = Some(branch.clone());
                self.publication.unpushed.clone_from(unpushed);
                self.publication.preserved = None;
            }
            Event::BranchPushed { branch, page, trouble } => {
                let (page, trouble) = (page.clone(), trouble.clone());
                self.publication.pushed = Some(Pushed { branch: branch.clone(), page, trouble });
            }
            Event::RunWorkKept(kept) => self.publication.preserved = Some(kept.clone()),
            Event::PrCreated { url } => self.publication.pr_url = Some(url.clone()),
            // These change no state: `begin` has read the first, and the others are for people.
            Event::RunStarted(_) | Event::JudgeStarted { .. } | Event::PushUndone { .. } => {}
            daemon_events!()
            | dispatch_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    fn retry_bead(&mut self, event: &Event) {
        let Event::BeadRetried { bead_id, reuse, counted, note, reason, kind, .. } = event else {
            return;
        };
        self.maintenance.note(*kind);
        self.change(bead_id, |task| {
            task.failure.clone_from(reason);
            task.reuse = *reuse;
            task.note.clone_from(note);
            task.failures += u32::from(*counted);
        });
        self.set_stage(bead_id, Stage::Open);
        self.log(|iteration| iteration.failed += 1);
    }

    /// A bead is blocked by a failure: the last one counts as the others do.
    fn block(&mut self, bead_id: &str, reason: &str) {
        self.change(bead_id, |task| {
            task.failure = reason.into();
            task.failures += 1;
        });
        self.set_stage(bead_id, Stage::Blocked);
        self.log(|iteration| iteration.failed += 1);
    }

    fn resume(&mut self, settings: &RunSettings, trace: Option<String>, ts: Timestamp) {
        self.sitting += 1;
        self.settings = settings.clone();
        self.trace = trace.or(self.trace.take());
        self.runtime = Runtime { since: ts, before_ms: self.ran_for_ms(ts) };
        self.standing = RunStanding::Running;
        if let PhaseState::Decompose(Decomposition::Accepted { reread }) = &mut self.phase {
            // Beads that were planned in part by an amendment are not planned as a whole again.
            *reread = self.versions.current == 0;
        }
        self.slowdown.pause = None;
        self.trials.retain(|_, trials| {
            (trials.failures, trials.uncounted) = (0, 0);
            !trials.complaint.is_empty()
        });
    }

    fn stop(&mut self, code: &str, message: &str) {
        match self.standing {
            RunStanding::Running | RunStanding::Stopping(_) => {
                self.standing =
                    RunStanding::Stopping(Stopping { code: code.into(), message: message.into() });
            }
            RunStanding::Resting { .. } | RunStanding::Ended { .. } => {}
        }
    }

    fn rest(&mut self, status: RunStatus, reason: &str, question: Option<&str>, ts: Timestamp) {
        self.pause_clock(ts);
        let stopped = match self.standing {
            RunStanding::Running | RunStanding::Resting { .. } => false,
            RunStanding::Stopping(_) => true,
            RunStanding::Ended { .. } => return,
        };
        let (reason, question) = (reason.into(), question.map(String::from));
        self.standing = RunStanding::Resting { status, reason, stopped, question };
    }

    fn end(&mut self, outcome: RunStatus, error: Option<Stopping>, ts: Timestamp) {
        self.pause_clock(ts);
        self.standing = RunStanding::Ended { outcome, error };
    }

    fn pause_clock(&mut self, ts: Timestamp) {
        self.runtime = Runtime { since: ts, before_ms: self.ran_for_ms(ts) };
    }

    fn log(&mut self, note: impl FnOnce(&mut Iteration)) {
        if let Some(iteration) = self.iterations.last_mut() {
            note(iteration);
        }
    }

    fn begin_iteration(&mut self, iteration: u32, beads: &[Planned], ts: Timestamp) {
        self.iteration = iteration;
        self.left_open = 0;
        self.maintenance.begin_iteration();
        self.phase = PhaseState::Implement;
        self.iterations.push(Iteration::new(ts));
        self.plan(beads);
    }

    /// Takes a new version of the spec. Beads of a plan that nobody has accepted are dropped.
    fn amend(&mut self, amended: &SpecAmended) {
        self.versions.current = amended.number;
        self.versions.sha256 = Some(amended.sha256.clone());
        self.versions.unfrozen = true;
        self.started.spec.clone_from(&amended.spec);
        self.started.title.clone_from(&amended.title);
        self.review = None;
        self.sealed = None;
        (self.approved, self.merge_approved) = (false, false);
        self.left_open = 0;
        self.trials.clear();
        let mut dropped = amended.withdrawn.clone();
        if self.versions.planned.is_none() {
            dropped = self.order.clone();
        }
        let mut count = 0;
        for id in dropped {
            let task = self.beads.get(&id);
            if task.is_some_and(|task| task.stage == Stage::Done) {
                continue;
            }
            let title = task.map(|task| task.planned.title.clone()).unwrap_or_default();
            if self.beads.remove(&id).is_some_and(|task| task.iteration == self.iteration) {
                count += 1;
            }
            if self.versions.planned.is_some() {
                self.versions.withdrawn.insert(id, title);
            }
        }
        self.versions.outdated.extend(amended.outdated.iter().cloned());
        self.order.retain(|id| self.beads.contains_key(id));
        self.log(|iteration| iteration.beads = iteration.beads.saturating_sub(count));
        self.plan(&[]);
    }

    /// Withdraws the plan that a person wants changed. Its beads are closed before the agent plans
    /// again, which gets the words of the person.
    fn drop_plan(&mut self, text: &str) {
        let left = self.beads.iter().filter(|(_, task)| task.stage != Stage::Done);
        let titles: Vec<_> =
            left.map(|(id, task)| (id.clone(), task.planned.title.clone())).collect();
        let count = titles.len() as u32;
        for (id, title) in titles {
            self.beads.remove(&id);
            self.versions.withdrawn.insert(id, title);
        }
        self.order.retain(|id| self.beads.contains_key(id));
        self.log(|iteration| iteration.beads = iteration.beads.saturating_sub(count));
        self.plan(&[]);
        self.approved = false;
        self.phase = PhaseState::Decompose(Decomposition::Pending { decomposed: false });
        let trials = self.trials.entry(Purpose::Decompose).or_default();
        trials.complaint = format!("A person reviewed the plan and asks for changes: {text}");
    }

    fn accept_beads(&mut self) {
        self.versions.planned = Some(self.versions.current);
        self.versions.withdrawn.clear();
        self.versions.outdated.clear();
        if self.phase == PhaseState::Decompose(Decomposition::Planned) {
            self.phase = PhaseState::Decompose(Decomposition::Accepted { reread: false });
        }
    }

    /// Changes the dependencies of known beads.
    fn replan(&mut self, beads: &[Planned]) {
        for planned in beads {
            self.change(&planned.id, |task| {
                task.planned.depends_on.clone_from(&planned.depends_on)
            });
        }
    }

    fn set_decomposed(&mut self, done: bool) {
        if let PhaseState::Decompose(Decomposition::Pending { decomposed }) = &mut self.phase {
            *decomposed = done;
        }
    }

    /// Plans the beads of the first iteration. If they are read again, they replace those that were
    /// planned before.
    fn create_beads(&mut self, beads: &[Planned]) {
        let before = self.beads.values().filter(|task| task.stage != Stage::Done).count() as u32;
        if let PhaseState::Decompose(progress) = &mut self.phase {
            match progress {
                Decomposition::Pending { .. } if beads.is_empty() => {}
                Decomposition::Pending { .. } => *progress = Decomposition::Planned,
                Decomposition::Accepted { reread: true } => {
                    *progress = Decomposition::Accepted { reread: false };
                    self.beads.clear();
                    self.order.clear();
                    self.log(|iteration| iteration.beads = iteration.beads.saturating_sub(before));
                }
                Decomposition::Planned | Decomposition::Accepted { reread: false } => {}
            }
        }
        self.plan(beads);
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

    fn finish(&mut self, end: &AgentFinished, ts: Timestamp) {
        self.jobs.remove(&end.agent);
        self.cost_usd += end.cost_usd;
        self.judge_cli_changed |= end.cli_changed && end.purpose == Purpose::Judge;
        if end.status == Outcome::Success {
            // Later events of the same batch may record a failure again.
            self.trials.remove(&end.purpose);
        }
        if end.purpose == Purpose::Maintain
            && let Some(last) = self.maintenance.runs.last_mut()
        {
            last.state = status_of(end.status).into();
            last.at = ts;
        }
    }

    fn retry_agent(&mut self, purpose: Purpose, reason: &str, counted: bool) {
        let trials = self.trials.entry(purpose).or_default();
        trials.complaint = reason.into();
        let count = if counted { &mut trials.failures } else { &mut trials.uncounted };
        *count += 1;
        if purpose == Purpose::Decompose {
            self.set_decomposed(false);
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut TaskState)) {
        if let Some(task) = self.beads.get_mut(id) {
            change(task);
        }
    }

    fn reopen(&mut self, id: &str) {
        self.change(id, |task| {
            (task.failures, task.reuse) = (0, false);
            task.failure.clear();
        });
        self.set_stage(id, Stage::Open);
    }

    fn close_outside(&mut self, id: &str, on: &str) {
        if let Some(task) = self.beads.get_mut(id)
            && task.outside.remove(on)
        {
            self.schedule.close_outside(id);
        }
    }

    fn complete(&mut self, id: &str) {
        if self.beads.get(id).is_some_and(|task| task.stage != Stage::Done) {
            self.set_stage(id, Stage::Done);
            self.slowdown.count = 0;
            self.maintenance.in_a_row = None;
            self.log(|iteration| iteration.completed += 1);
        }
    }

    fn start_maintenance(&mut self, id: &str, bead_id: &str, completed: u32, at: Timestamp) {
        self.maintenance.triggered_at = completed;
        self.maintenance.interrupted = false;
        self.maintenance.in_a_row = None;
        let failures = std::mem::take(&mut self.maintenance.failures);
        self.maintenance.runs.push(MaintenanceRun {
            id: id.into(),
            bead_id: bead_id.into(),
            trigger_completed_count: completed,
            state: "running".into(),
            at,
            failures,
        });
        self.log(|iteration| iteration.maintenance += 1);
    }

    fn judged(&mut self, end: &JudgeFinished) {
        self.verdicts.push(end.clone());
        let PhaseState::Judge(stage) = &mut self.phase else { return };
        *stage = match (&end.verdict, &end.result, &*stage) {
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

    fn triage(&mut self, triage: &Triage) {
        let Observations { pending, promoted, dismissed, .. } = &mut self.observations;
        for id in triage.promoted.iter().chain(&triage.dismissed) {
            pending.remove(id);
        }
        promoted.extend(triage.promoted.iter().cloned());
        dismissed.extend(triage.dismissed.iter().cloned());
        let is_new = |bead: &&Planned| !self.beads.contains_key(&bead.id);
        self.left_open = triage.beads.iter().filter(is_new).count();
    }

    /// Adds beads to the plan. Known beads are opened again.
    fn plan(&mut self, beads: &[Planned]) {
        let iteration = self.iteration;
        for planned in beads {
            if !self.beads.contains_key(&planned.id) {
                self.order.push(planned.id.clone());
            }
            self.beads.insert(planned.id.clone(), TaskState::new(planned, iteration));
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
