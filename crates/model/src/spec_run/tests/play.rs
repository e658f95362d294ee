//! A run that tests play: it is fed with inputs and folds its own events.

use crate::beads::{BLOCKS, Bead, Dependency, Status};
use crate::event::{Entry, Event, Outcome, Record};
use crate::spec_run::decide::{GoOn, Input, JobEnd, Settled, advance, decide};
use crate::spec_run::event::*;
use crate::spec_run::judge::{Acceptance, JudgeResult, NewBead, SpecDrift};
use crate::spec_run::state::Run;
use jiff::Timestamp;

pub(in crate::spec_run) fn settings() -> RunSettings {
    RunSettings {
        backend: "subprocess".into(),
        model: None,
        max_concurrency: 2,
        max_retries: 1,
        timeout_s: 900,
        canary: 0,
        maintain_every: 2,
        maintain_after_all: false,
        maintain_parallel: true,
        judge: true,
        spec_drift: true,
        acceptance: false,
        acceptance_path: None,
        acceptance_links: false,
        max_iterations: 3,
        judge_only: false,
        human_review: false,
        review_merge: false,
        preview_acceptance: false,
        review_spec: false,
        review_approved: false,
        dry_run: false,
        pull_request: false,
        push: false,
        cleanup: true,
        confined: false,
        unconfined: String::new(),
        exposed: String::new(),
        private_home: false,
        weakened: String::new(),
        budget_usd: None,
        max_runtime_s: None,
    }
}

pub(in crate::spec_run) fn bead(id: &str, on: &[&str]) -> Bead {
    let dependencies = on
        .iter()
        .map(|on| Dependency {
            issue_id: id.into(),
            depends_on_id: (*on).into(),
            kind: BLOCKS.into(),
            extra: serde_json::Map::new(),
        })
        .collect();
    Bead {
        id: id.into(),
        title: format!("Do {id}"),
        description: String::new(),
        status: Status::Open,
        priority: 2,
        issue_type: "task".into(),
        labels: vec![],
        dependencies,
        created_at: "2026-02-12T10:00:00Z".into(),
        updated_at: String::new(),
        closed_at: None,
        close_reason: None,
        no_change: false,
        key: None,
        staged: None,
        extra: serde_json::Map::new(),
    }
}

pub(in crate::spec_run) fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a time")
}

pub(in crate::spec_run) struct Play {
    pub(in crate::spec_run) run: Run,
    pub(in crate::spec_run) log: Vec<Record>,
}

impl Play {
    pub(in crate::spec_run) fn new(settings: RunSettings) -> Self {
        let started = RunStarted {
            run_id: "run-2026-02-12-a1b2c3".into(),
            spec: "plan.md".into(),
            title: "T".into(),
            repo: "/repo".into(),
            target: "auto".into(),
            bead_label: Some("v2".into()),
            settings,
            trace: None,
            thread: None,
        };
        let first = record(1, Event::RunStarted(Box::new(started)));
        let run = Run::begin(&first).expect("a run");
        let mut play = Self { run, log: vec![first] };
        play.feed(Input::Frozen {
            sha256: "s".into(),
            base_branch: "main".into(),
            base_commit: "c".into(),
            target_branch: "muleteer/run-2026-02-12-a1b2c3".into(),
        });
        play
    }

    pub(in crate::spec_run) fn with(settings: RunSettings, beads: Vec<Bead>) -> Self {
        let mut play = Self::new(settings);
        play.feed(Input::Gathered { beads, closed_outside: vec![] });
        play.feed(Input::BeadsAccepted);
        play
    }

    pub(in crate::spec_run) fn feed(&mut self, input: Input) {
        let events = decide(&self.run, input, now());
        self.fold(events);
        loop {
            let events = advance(&self.run, now());
            if events.is_empty() {
                return;
            }
            self.fold(events);
        }
    }

    pub(in crate::spec_run) fn fold(&mut self, events: Vec<Event>) {
        for event in events {
            let record = record(self.run.seq + 1, event);
            self.run.apply(&record);
            self.log.push(record);
        }
    }

    /// Ends the agent of `bead`.
    pub(in crate::spec_run) fn end(
        &mut self,
        bead: &str,
        outcome: Outcome,
        change: impl FnOnce(&mut JobEnd),
    ) {
        let job = self
            .run
            .jobs
            .values()
            .find(|job| job.start.bead_id.as_deref() == Some(bead))
            .expect("its agent");
        let dispatch = job.start.dispatch.clone();
        let mut end = JobEnd::new(outcome, "exit code 1");
        change(&mut end);
        self.feed(Input::JobEnded { dispatch, end: Box::new(end) });
    }

    pub(in crate::spec_run) fn done(&mut self, bead: &str) {
        self.end(bead, Outcome::Success, |end| {
            (end.closed, end.commits, end.on_target) = (true, 1, true)
        });
    }

    pub(in crate::spec_run) fn working_on(&self) -> Vec<&str> {
        self.run.jobs.values().filter_map(|job| job.start.bead_id.as_deref()).collect()
    }
}

fn record(seq: u64, event: Event) -> Record {
    let entry = Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more: false, event };
    Record { v: 1, seq, ts: now(), entry }
}

pub(in crate::spec_run) fn resume(settings: RunSettings, from: Option<GoOn>) -> Input {
    Input::Resume {
        settings: Box::new(settings),
        by: "o".into(),
        approve: false,
        from,
        settled: vec![],
        trace: None,
    }
}

impl Play {
    /// Ends the agent without which the run cannot continue.
    pub(in crate::spec_run) fn needed(
        &mut self,
        purpose: Purpose,
        outcome: Outcome,
        change: impl FnOnce(&mut JobEnd),
    ) {
        let dispatch = self.run.job_of(purpose).expect("its agent").start.dispatch.clone();
        let mut end = JobEnd::new(outcome, "exit code 1");
        change(&mut end);
        self.feed(Input::JobEnded { dispatch, end: Box::new(end) });
    }

    /// Ends the judge's passes with this verdict.
    pub(in crate::spec_run) fn verdict(&mut self, result: JudgeResult) {
        self.needed(Purpose::Judge, Outcome::Success, |_| ());
        self.structured(result);
    }

    pub(in crate::spec_run) fn structured(&mut self, result: JudgeResult) {
        self.needed(Purpose::Structure, Outcome::Success, |end| end.verdict = Some(Ok(result)));
    }

    pub(in crate::spec_run) fn error(&self) -> Option<&str> {
        self.run.error().map(|error| error.code.as_str())
    }
}

pub(in crate::spec_run) fn finds(title: &str) -> JudgeResult {
    JudgeResult {
        status: "success".into(),
        spec_drift: Some(SpecDrift { detected: true, issues: vec![] }),
        acceptance: Some(Acceptance { passed: true, results: vec![] }),
        new_beads: vec![NewBead { title: title.into(), ..NewBead::default() }],
        ..JudgeResult::default()
    }
}

pub(in crate::spec_run) fn content() -> JudgeResult {
    JudgeResult { spec_drift: Some(SpecDrift::default()), new_beads: vec![], ..finds("") }
}

pub(in crate::spec_run) fn told(bead: &str, closed: bool) -> Settled {
    Settled { bead: bead.into(), closed, no_change: false }
}

pub(in crate::spec_run) fn plan_of(bead: &Bead) -> Planned {
    Planned {
        id: bead.id.clone(),
        title: bead.title.clone(),
        priority: bead.priority,
        created_at: bead.created_at.clone(),
        depends_on: vec![],
        outside: vec![],
        closed: false,
    }
}
