use super::checkpoint;
use super::decide::{Input, JobEnd, advance, decide};
use super::event::*;
use super::state::{Run, Stage};
use crate::bead::{BLOCKS, Bead, Dependency, Status};
use crate::event::{Entry, Event, Outcome, Record};
use jiff::Timestamp;

pub(super) fn settings() -> RunSettings {
    RunSettings {
        backend: "subprocess".into(),
        model: None,
        max_concurrency: 2,
        max_retries: 1,
        timeout_s: 900,
        maintain_every: 2,
        maintain_after_all: false,
        judge: true,
        spec_drift: true,
        acceptance: false,
        acceptance_path: None,
        max_iterations: 3,
        judge_only: false,
        human_review: false,
        dry_run: false,
        pull_request: false,
        cleanup: true,
        confined: false,
        unconfined: String::new(),
        budget_usd: None,
        max_runtime_s: None,
    }
}

pub(super) fn bead(id: &str, on: &[&str]) -> Bead {
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

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a time")
}

struct Play {
    run: Run,
    names: Vec<String>,
}

impl Play {
    fn new(settings: RunSettings) -> Self {
        let started = RunStarted {
            run_id: "run-2026-02-12-a1b2c3".into(),
            spec: "plan.md".into(),
            title: "T".into(),
            repo: "/repo".into(),
            target: "auto".into(),
            bead_label: Some("v2".into()),
            settings,
        };
        let run = Run::begin(&record(1, Event::RunStarted(Box::new(started)))).expect("a run");
        let mut play = Self { run, names: vec![] };
        play.feed(Input::Frozen {
            sha256: "s".into(),
            base_branch: "main".into(),
            base_commit: "c".into(),
            target_branch: "muleteer/run-2026-02-12-a1b2c3".into(),
        });
        play
    }

    fn with(settings: RunSettings, beads: Vec<Bead>) -> Self {
        let mut play = Self::new(settings);
        play.feed(Input::Gathered { beads, closed_outside: vec![] });
        play.feed(Input::BeadsAccepted);
        play
    }

    fn feed(&mut self, input: Input) {
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

    fn fold(&mut self, events: Vec<Event>) {
        for event in events {
            self.names.push(event.name());
            let seq = self.run.seq + 1;
            self.run.apply(&record(seq, event));
        }
    }

    /// The agent of `bead` ends.
    fn end(&mut self, bead: &str, outcome: Outcome, change: impl FnOnce(&mut JobEnd)) {
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

    fn done(&mut self, bead: &str) {
        self.end(bead, Outcome::Success, |end| (end.closed, end.commits, end.on_target) = (true, 1, true));
    }

    fn working_on(&self) -> Vec<&str> {
        self.run.jobs.values().filter_map(|job| job.start.bead_id.as_deref()).collect()
    }
}

fn record(seq: u64, event: Event) -> Record {
    let entry = Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more: false, event };
    Record { v: 1, seq, ts: now(), entry }
}

#[test]
fn beads_go_out_as_soon_as_a_place_is_free_and_what_they_wait_for_is_done() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"]), bead("c", &["a"]), bead("d", &[])]);
    assert_eq!(play.working_on(), ["a", "d"]);
    play.done("a");
    assert_eq!(play.working_on(), ["b", "d"]);
    play.done("b");
    // Two are done: maintenance runs beside the coding agents, and takes none of their places.
    assert_eq!(play.run.coding(), 2);
    assert!(play.run.job_of(Purpose::Maintain).is_some());
}

#[test]
fn closed_without_its_commits_on_the_target_is_not_done() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.end("a", Outcome::Success, |end| (end.closed, end.commits, end.on_target) = (true, 1, false));
    let task = &play.run.beads["a"];
    assert!(task.stage == Stage::Taken && task.reuse && task.failures == 1, "tried again, in the same worktree");
    assert_eq!(
        play.run.jobs.values().next().expect("again").start.workdir,
        ".muleteer/worktrees/run-2026-02-12-a1b2c3/bead-a-1"
    );
}

#[test]
fn a_crash_goes_to_a_fresh_worktree_and_then_blocks() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.end("a", Outcome::Failure, |_| ());
    let again = play.run.jobs.values().next().expect("again").start.clone();
    assert!(!again.reuse && again.workdir.ends_with("bead-a-2") && again.attempt == 1);
    play.end("a", Outcome::Timeout, |_| ());
    assert_eq!(play.run.beads["a"].stage, Stage::Blocked);
    let error = play.run.error.clone().expect("an error");
    assert!(error.code == "E_DEADLOCK" && error.message.contains("b → a"), "{error:?}");
}

#[test]
fn who_pushed_everything_and_was_cut_off_has_done_it_and_who_said_it_failed_has_not() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &[])]);
    let pushed = |end: &mut JobEnd| (end.commits, end.on_target) = (2, true);
    play.end("a", Outcome::Failure, |end| {
        pushed(end);
        end.unknown = true;
    });
    assert_eq!(play.run.beads["a"].stage, Stage::Done);
    play.end("b", Outcome::Failure, pushed);
    assert_eq!(play.run.beads["b"].failures, 1);
}

/// Found by the crash campaign: an attempt pushed, then failed; the next found nothing left to commit.
#[test]
fn what_an_earlier_attempt_pushed_counts_for_who_closes_but_not_for_who_says_nothing() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &[])]);
    play.end("a", Outcome::Success, |end| (end.closed, end.pushed_before) = (true, true));
    assert_eq!(play.run.beads["a"].stage, Stage::Done);
    play.end("b", Outcome::Success, |end| end.pushed_before = true);
    assert_eq!(play.run.beads["b"].failures, 1);
}

#[test]
fn a_rate_limit_is_not_the_beads_failure_and_slows_everyone() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.end("a", Outcome::Failure, |end| end.rate_limited = true);
    assert_eq!((play.run.beads["a"].failures, play.run.jobs.len()), (0, 0));
    let until = play.run.not_before.expect("a pause");
    assert!(!advance(&play.run, until).is_empty(), "it goes on then");
}

#[test]
fn a_cycle_is_refused_with_its_chain() {
    let mut play = Play::new(settings());
    play.feed(Input::Gathered { beads: vec![bead("a", &["b"]), bead("b", &["a"])], closed_outside: vec![] });
    let error = play.run.error.expect("an error");
    assert!(error.code == "E_GRAPH_CYCLE" && error.message.contains("a (Do a) → b (Do b) → a"), "{error:?}");
}

#[test]
fn what_waits_for_somebody_outside_is_looked_at_and_then_said() {
    let mut play = Play::with(settings(), vec![bead("a", &["elsewhere"])]);
    play.feed(Input::Outside { closed: vec![] });
    assert_eq!(play.run.error.as_ref().map(|error| error.code.as_str()), Some("E_EXTERNAL_BLOCKED"));
    let mut play = Play::with(settings(), vec![bead("a", &["elsewhere"])]);
    play.feed(Input::Outside { closed: vec!["elsewhere".into()] });
    assert_eq!(play.working_on(), ["a"]);
}

#[test]
fn an_empty_decomposition_a_dry_run_and_a_review_stop_where_they_should() {
    let mut play = Play::new(settings());
    play.feed(Input::Gathered { beads: vec![], closed_outside: vec![] });
    assert_eq!(play.run.error.as_ref().map(|error| error.code.as_str()), Some("E_GRAPH_EMPTY"));
    let mut play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!((play.run.status(), play.working_on().len()), (RunStatus::Pending, 0));
    play.feed(Input::Resume { settings: Box::new(settings()), by: "o".into(), approve: false, from: None });
    assert_eq!(play.working_on(), ["a"]);
    let review = RunSettings { human_review: true, ..settings() };
    let mut play = Play::with(review.clone(), vec![bead("a", &[])]);
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval);
    play.feed(Input::Resume { settings: Box::new(review), by: "o".into(), approve: true, from: None });
    assert_eq!(play.working_on(), ["a"]);
}

#[test]
fn snapshots_have_the_fields_of_the_reference_and_read_back() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.end("a", Outcome::Failure, |_| ());
    let written = checkpoint::checkpoint(&play.run, |_| Some(12345));
    let text = checkpoint::to_yaml(&written).expect("yaml");
    assert_eq!(checkpoint::parse(&text).expect("reads back"), written);
    insta::assert_snapshot!("checkpoint", text);
    insta::assert_snapshot!("run_log", checkpoint::to_yaml(&checkpoint::run_log(&play.run)).expect("yaml"));
    let newer = text.replace("schema_version: 1", "schema_version: 2");
    assert!(checkpoint::parse(&newer).expect_err("newer").contains("newer muleteer"));
    assert!(checkpoint::parse("beads: [").is_err());
}

/// The reference's own example, its slips mended, is read.
#[test]
fn the_references_checkpoint_is_read() {
    let text = "schema_version: 1\nrun_id: run-2026-02-12-a1b2c3\nspec_path: docs/specs/plan-2026-02-12-feature-x.md\nfrozen_spec_path: .muleteer/runs/run-2026-02-12-a1b2c3/frozen-spec.md\nfrozen_spec_sha256: a1b2c3d4e5f6\nacceptance_path: /home/user/.cache/muleteer/run-2026-02-12-a1b2c3/acceptance/\ntarget_branch: muleteer/run-2026-02-12-a1b2c3\nbase_branch: main\nstate: implementing\niteration: 1\nbeads:\n  total: 12\n  completed: [scr-a1b2, scr-c3d4]\n  in_progress: [scr-e5f6]\n  blocked: []\n  retry_counts:\n    scr-g7h8: 1\n  claims:\n    scr-e5f6: \"run-2026-02-12-a1b2c3:1:0\"\nagents:\n  max_concurrency: 4\n  active:\n    - agent_id: 1\n      bead_id: scr-e5f6\n      worktree: .muleteer/worktrees/agent-1\n      started_at: 2026-02-12T10:15:00Z\n      pid: 12345\nmaintenance:\n  last_run_at: 2026-02-12T11:00:00Z\n  worktree: .muleteer/worktrees/maint-2\n  bead_id: scr-m1n2\n  run_count: 2\n  runs:\n    - id: maint-1\n      trigger_completed_count: 5\n      state: success\n    - id: maint-2\n      trigger_completed_count: 10\n      state: running\nobservations:\n  pending: [scr-x9y8, scr-z1w2]\n  promoted: []\n  dismissed: []\n";
    let read = checkpoint::parse(text).expect("reads");
    assert_eq!((read.beads.claims.len(), read.maintenance.runs.len(), read.agents.active[0].pid), (1, 2, Some(12345)));
}
