use crate::beads::{BLOCKS, Bead, Dependency, Status};
use crate::event::{Entry, Event, Outcome, Record};
use crate::spec_run::checkpoint;
use crate::spec_run::decide::{GoOn, Input, JobEnd, Settled, advance, blocks, decide, may_go_on};
use crate::spec_run::effects::{Effect, effects};
use crate::spec_run::event::*;
use crate::spec_run::judge::{
    self, Acceptance, Issue, JudgeResult, NewBead, Observation, SpecDrift,
};
use crate::spec_run::report::work_place::Whereabouts;
use crate::spec_run::state::{PhaseState, Run, Stage};
use crate::spec_run::{Frozen, PullRequest, unpushed};
use jiff::Timestamp;

pub(in crate::spec_run) fn settings() -> RunSettings {
    RunSettings {
        backend: "subprocess".into(),
        model: None,
        max_concurrency: 2,
        max_retries: 1,
        timeout_s: 900,
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
        preview_acceptance: false,
        dry_run: false,
        pull_request: false,
        push: false,
        cleanup: true,
        confined: false,
        unconfined: String::new(),
        exposed: String::new(),
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

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).expect("a time")
}

pub(in crate::spec_run) struct Play {
    pub(in crate::spec_run) run: Run,
    pub(in crate::spec_run) log: Vec<Record>,
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
            trace: None,
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

    fn fold(&mut self, events: Vec<Event>) {
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

    fn working_on(&self) -> Vec<&str> {
        self.run.jobs.values().filter_map(|job| job.start.bead_id.as_deref()).collect()
    }
}

fn record(seq: u64, event: Event) -> Record {
    let entry = Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more: false, event };
    Record { v: 1, seq, ts: now(), entry }
}

#[test]
fn beads_start_when_a_slot_is_free_and_dependencies_are_done() {
    let mut play = Play::with(
        settings(),
        vec![bead("a", &[]), bead("b", &["a"]), bead("c", &["a"]), bead("d", &[])],
    );
    assert_eq!(play.working_on(), ["a", "d"]);
    play.done("a");
    assert_eq!(play.working_on(), ["b", "d"]);
    play.done("b");
    // Two beads are done: maintenance runs beside the coding agents, and uses none of their slots.
    assert_eq!(play.run.coding(), 2);
    assert!(play.run.job_of(Purpose::Maintain).is_some());
}

#[test]
fn closed_without_its_commits_on_the_target_is_not_done() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.end("a", Outcome::Success, |end| {
        (end.closed, end.commits, end.on_target) = (true, 1, false)
    });
    let task = &play.run.beads["a"];
    assert!(
        task.stage == Stage::Taken && task.reuse && task.failures == 1,
        "tried again, in the same worktree"
    );
    assert_eq!(
        play.run.jobs.values().next().expect("again").start.workdir,
        ".muleteer/worktrees/run-2026-02-12-a1b2c3/bead-a-1"
    );
}

#[test]
fn crashed_bead_gets_a_fresh_worktree_then_blocks() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.end("a", Outcome::Failure, |_| ());
    let again = play.run.jobs.values().next().expect("again").start.clone();
    assert!(!again.reuse && again.workdir.ends_with("bead-a-2") && again.attempt == 1);
    play.end("a", Outcome::Timeout, |_| ());
    assert_eq!(play.run.beads["a"].stage, Stage::Blocked);
    let error = play.run.error().cloned().expect("an error");
    assert!(error.code == "E_DEADLOCK" && error.message.contains("b → a"), "{error:?}");
}

#[test]
fn interrupted_agent_that_pushed_everything_completes_its_bead() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &[])]);
    let pushed = |end: &mut JobEnd| (end.commits, end.on_target, end.whole) = (2, true, true);
    play.end("a", Outcome::Failure, |end| {
        pushed(end);
        end.unknown = true;
    });
    assert_eq!(play.run.beads["a"].stage, Stage::Done);
    play.end("b", Outcome::Failure, pushed);
    assert_eq!(play.run.beads["b"].failures, 1);
}

/// An agent was killed in the middle of a rebase: its clone was at the commits of others, and its
/// own commit was lost.
#[test]
fn interrupted_agent_with_unpushed_work_does_not_complete_its_bead() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &[])]);
    let stands = |end: &mut JobEnd| (end.commits, end.on_target, end.unknown) = (1, true, true);
    play.end("a", Outcome::Failure, stands);
    assert_eq!(play.run.beads["a"].failures, 1);
    play.end("b", Outcome::Failure, |end| {
        stands(end);
        end.closed = true;
    });
    assert_eq!(play.run.beads["b"].failures, 1);
    // An agent that ended by itself and closed its bead has left nothing unintentionally.
    let mut play = Play::with(settings(), vec![bead("c", &[])]);
    play.end("c", Outcome::Success, |end| {
        stands(end);
        end.closed = true;
    });
    assert_eq!(play.run.beads["c"].stage, Stage::Done);
}

/// An attempt pushed its work and then failed; the next one found nothing to commit.
#[test]
fn commits_of_an_earlier_attempt_count_only_for_a_closed_bead() {
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
    let until = play.run.not_before().expect("a pause");
    assert!(!advance(&play.run, until).is_empty(), "it goes on then");
}

#[test]
fn a_cycle_is_refused_with_its_chain() {
    let mut play = Play::new(settings());
    play.feed(Input::Gathered {
        beads: vec![bead("a", &["b"]), bead("b", &["a"])],
        closed_outside: vec![],
    });
    let error = play.run.error().expect("an error");
    assert!(
        error.code == "E_GRAPH_CYCLE" && error.message.contains("a (Do a) → b (Do b) → a"),
        "{error:?}"
    );
}

#[test]
fn beads_blocked_outside_the_run_are_checked_then_reported() {
    let mut play = Play::with(settings(), vec![bead("a", &["elsewhere"])]);
    play.feed(Input::Outside { closed: vec![] });
    assert_eq!(play.run.error().map(|error| error.code.as_str()), Some("E_EXTERNAL_BLOCKED"));
    let mut play = Play::with(settings(), vec![bead("a", &["elsewhere"])]);
    play.feed(Input::Outside { closed: vec!["elsewhere".into()] });
    assert_eq!(play.working_on(), ["a"]);
}

#[test]
fn empty_plan_dry_run_and_review_stop_after_planning() {
    let mut play = Play::new(settings());
    play.feed(Input::Gathered { beads: vec![], closed_outside: vec![] });
    assert_eq!(play.run.error().map(|error| error.code.as_str()), Some("E_GRAPH_EMPTY"));
    let mut play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!((play.run.status(), play.working_on().len()), (RunStatus::Pending, 0));
    play.feed(Input::Resume {
        settings: Box::new(settings()),
        by: "o".into(),
        approve: false,
        from: None,
        settled: vec![],
        trace: None,
    });
    assert_eq!(play.working_on(), Vec::<&str>::new(), "somebody may have changed them");
    play.feed(Input::Gathered {
        beads: vec![bead("a", &["b"]), bead("b", &[])],
        closed_outside: vec![],
    });
    assert_eq!((play.working_on(), play.run.count(Stage::Open)), (vec!["b"], 1));
    play.done("b");
    assert_eq!(play.working_on(), ["a"]);
    let review = RunSettings { human_review: true, ..settings() };
    let mut play = Play::with(review.clone(), vec![bead("a", &[])]);
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval);
    play.feed(Input::Resume {
        settings: Box::new(review),
        by: "o".into(),
        approve: true,
        from: None,
        settled: vec![],
        trace: None,
    });
    play.feed(Input::Gathered {
        beads: vec![bead("a", &["b"]), bead("b", &["a"])],
        closed_outside: vec![],
    });
    assert_eq!(play.run.error().map(|error| error.code.as_str()), Some("E_GRAPH_CYCLE"));
    play.feed(resume(settings(), None));
    play.feed(Input::Gathered { beads: vec![bead("c", &[])], closed_outside: vec![] });
    assert_eq!((play.working_on(), play.run.beads.len()), (vec!["c"], 1), "what is gone is gone");
}

#[test]
fn approval_of_criteria_does_not_approve_the_beads() {
    let preview = RunSettings {
        acceptance: true,
        preview_acceptance: true,
        human_review: true,
        ..settings()
    };
    let mut play = Play::new(preview.clone());
    let sealed = crate::spec_run::state::Sealed { path: "/criteria".into(), sha256: "s".into() };
    play.needed(Purpose::Acceptance, Outcome::Success, |end| end.sealed = Some(sealed));
    assert_eq!((play.run.status(), play.run.phase()), (RunStatus::AwaitingApproval, Phase::Freeze));
    play.feed(resume(preview.clone(), None));
    assert_eq!(play.run.status(), RunStatus::AwaitingApproval, "nobody has approved them");
    let approved = Box::new(RunSettings { preview_acceptance: false, ..preview });
    play.feed(Input::Resume {
        settings: approved,
        by: "o".into(),
        approve: true,
        from: None,
        settled: vec![],
        trace: None,
    });
    assert_eq!(
        (play.run.status(), play.run.phase(), play.run.approved),
        (RunStatus::InProgress, Phase::Decompose, false)
    );
    play.feed(Input::Gathered { beads: vec![bead("a", &[])], closed_outside: vec![] });
    play.feed(Input::BeadsAccepted);
    assert_eq!(
        (play.run.status(), play.run.phase()),
        (RunStatus::AwaitingApproval, Phase::Decompose)
    );
}

#[test]
fn snapshots_have_the_fields_of_the_reference_and_read_back() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.end("a", Outcome::Failure, |_| ());
    let written = checkpoint::checkpoint(&play.run, |_| Some(12345));
    let text = checkpoint::to_yaml(&written).expect("yaml");
    assert_eq!(checkpoint::parse(&text).expect("reads back"), written);
    insta::assert_snapshot!("checkpoint", text);
    insta::assert_snapshot!(
        "run_log",
        checkpoint::to_yaml(&checkpoint::run_log(&play.run)).expect("yaml")
    );
    let newer = text.replace("schema_version: 1", "schema_version: 2");
    assert!(checkpoint::parse(&newer).expect_err("newer").to_string().contains("newer muleteer"));
    assert!(checkpoint::parse("beads: [").is_err());
}

/// The example of the checkpoint's format, with its mistakes corrected, can be parsed.
#[test]
fn the_references_checkpoint_is_read() {
    let text = "schema_version: 1\nrun_id: run-2026-02-12-a1b2c3\
                \nspec_path: docs/specs/plan-2026-02-12-feature-x.md\
                \nfrozen_spec_path: .muleteer/runs/run-2026-02-12-a1b2c3/frozen-spec.md\
                \nfrozen_spec_sha256: a1b2c3d4e5f6\
                \nacceptance_path: /home/user/.cache/muleteer/run-2026-02-12-a1b2c3/acceptance/\
                \ntarget_branch: muleteer/run-2026-02-12-a1b2c3\nbase_branch: main\
                \nstate: implementing\niteration: 1\nbeads:\n  total: 12\
                \n  completed: [scr-a1b2, scr-c3d4]\n  in_progress: [scr-e5f6]\n  blocked: []\
                \n  retry_counts:\n    scr-g7h8: 1\n  claims:\
                \n    scr-e5f6: \"run-2026-02-12-a1b2c3:1:0\"\nagents:\n  max_concurrency: 4\
                \n  active:\n    - agent_id: 1\n      bead_id: scr-e5f6\
                \n      worktree: .muleteer/worktrees/agent-1\
                \n      started_at: 2026-02-12T10:15:00Z\n      pid: 12345\nmaintenance:\
                \n  last_run_at: 2026-02-12T11:00:00Z\n  worktree: .muleteer/worktrees/maint-2\
                \n  bead_id: scr-m1n2\n  run_count: 2\n  runs:\n    - id: maint-1\
                \n      trigger_completed_count: 5\n      state: success\n    - id: maint-2\
                \n      trigger_completed_count: 10\n      state: running\nobservations:\
                \n  pending: [scr-x9y8, scr-z1w2]\n  promoted: []\n  dismissed: []\n";
    let read = checkpoint::parse(text).expect("reads");
    assert_eq!(
        (read.beads.claims.len(), read.maintenance.runs.len(), read.agents.active[0].pid),
        (1, 2, Some(12345))
    );
}

fn resume(settings: RunSettings, from: Option<GoOn>) -> Input {
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

    fn structured(&mut self, result: JudgeResult) {
        self.needed(Purpose::Structure, Outcome::Success, |end| end.verdict = Some(Ok(result)));
    }

    fn error(&self) -> Option<&str> {
        self.run.error().map(|error| error.code.as_str())
    }
}

fn finds(title: &str) -> JudgeResult {
    JudgeResult {
        status: "success".into(),
        spec_drift: Some(SpecDrift { detected: true, issues: vec![] }),
        acceptance: Some(Acceptance { passed: true, results: vec![] }),
        new_beads: vec![NewBead { title: title.into(), ..NewBead::default() }],
        ..JudgeResult::default()
    }
}

fn content() -> JudgeResult {
    JudgeResult { spec_drift: Some(SpecDrift::default()), new_beads: vec![], ..finds("") }
}

#[test]
fn incomplete_verdict_is_requested_again_and_never_passes() {
    let judged = || {
        let mut play = Play::with(settings(), vec![bead("a", &[])]);
        play.done("a");
        play
    };
    let bare = JudgeResult {
        status: "success".into(),
        new_beads: vec![NewBead { title: "This must be done".into(), ..NewBead::default() }],
        ..JudgeResult::default()
    };
    let mut play = judged();
    play.verdict(bare.clone());
    assert_eq!(play.run.phase(), Phase::Judge);
    assert!(
        play.run.complaint(Purpose::Structure).contains("specDrift"),
        "it is told what was missing"
    );
    play.structured(content());
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(play.run.phase(), Phase::Finish);
    let mut play = judged();
    play.verdict(bare.clone());
    play.structured(bare);
    assert_eq!(play.error(), Some("E_JUDGE_PARSE_FAILED"));
    // Sealed criteria must be judged too.
    let mut play = judged();
    play.run.settings.acceptance = true;
    play.run.sealed =
        Some(crate::spec_run::state::Sealed { path: "/criteria".into(), sha256: "s".into() });
    play.verdict(JudgeResult { acceptance: None, ..content() });
    assert!(play.run.complaint(Purpose::Structure).contains("acceptance"));
}

/// The contract defines a pass without regard to `newBeads`.
#[test]
fn pass_with_new_beads_is_requested_again_once() {
    let spare = JudgeResult {
        new_beads: vec![NewBead { title: "Tidy the tests".into(), ..NewBead::default() }],
        ..content()
    };
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.done("a");
    play.verdict(spare.clone());
    assert_eq!((play.run.phase(), play.error()), (Phase::Judge, None));
    assert!(
        play.run.complaint(Purpose::Structure).contains("Tidy the tests"),
        "it is told what contradicts"
    );
    play.structured(spare);
    let last = play.run.verdicts.last().expect("a verdict");
    assert_eq!((last.verdict, last.new_beads), (Verdict::Pass, 0));
    assert!(last.reason.contains("Tidy the tests"), "{}", last.reason);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!((play.run.phase(), play.error()), (Phase::Finish, None));
}

/// Plays a pass that `with` modifies, twice: the first time it is rejected.
fn told_twice(with: impl Fn(&Play) -> JudgeResult) -> Play {
    let mut play = noted();
    let result = with(&play);
    play.verdict(result.clone());
    assert_eq!(
        (play.run.phase(), play.run.verdicts.len()),
        (Phase::Judge, 1),
        "it is asked for once more"
    );
    assert!(play.run.job_of(Purpose::Structure).is_some());
    play.structured(result);
    play
}

/// A run before its judge: one bead is blocked, and an agent has noted an observation.
fn noted() -> Play {
    let mut play = Play::with(
        RunSettings { max_retries: 0, ..settings() },
        vec![bead("a", &[]), bead("bad", &[])],
    );
    play.end("bad", Outcome::Failure, |_| ());
    play.end("a", Outcome::Success, |end| {
        (end.closed, end.commits, end.on_target) = (true, 1, true);
        end.observations = vec!["noted".into()];
    });
    play
}

fn triages(id: &str, action: &str) -> Vec<Observation> {
    vec![Observation { bead_id: id.into(), action: action.into(), ..Observation::default() }]
}

/// The verdict once dismissed a blocked bead; the bead was closed, and the run completed.
#[test]
fn verdict_about_a_bead_in_progress_is_ignored() {
    for action in ["dismiss", "merge", "promote"] {
        for id in ["bad", "unknown"] {
            let play =
                told_twice(|_| JudgeResult { observations: triages(id, action), ..content() });
            assert_eq!(
                (play.error(), play.run.iteration),
                (Some("E_JUDGE_PARSE_FAILED"), 1),
                "{action} {id}"
            );
        }
    }
    // An older version may have recorded such a verdict. It has no effect.
    let mut play = Play::with(settings(), vec![bead("bad", &[])]);
    play.run.observations.pending.insert("noted".into());
    let result = JudgeResult {
        observations: [
            triages("bad", "dismiss"),
            triages("noted", "dismiss"),
            triages("noted", "promote"),
        ]
        .concat(),
        ..content()
    };
    let told: Vec<_> = play
        .run
        .triaged(&result)
        .iter()
        .map(|one| (one.bead_id.as_str(), one.action.as_str()))
        .collect();
    assert_eq!(told, [("noted", "dismiss")]);
}

#[test]
fn contradictory_pass_fails_and_a_missing_observation_is_named() {
    let issue = Issue { severity: "critical".into(), ..Issue::default() };
    let play = told_twice(|_| JudgeResult {
        spec_drift: Some(SpecDrift { detected: false, issues: vec![issue.clone()] }),
        observations: triages("noted", "dismiss"),
        ..content()
    });
    assert_eq!(
        (play.error(), play.run.status()),
        (Some("E_JUDGE_PARSE_FAILED"), RunStatus::Failed)
    );

    let mut play = noted();
    play.verdict(content());
    assert!(
        play.run.verdicts[0].verdict == Verdict::Pass
            && play.run.verdicts[0].reason.contains("noted")
    );
    assert_eq!(play.run.complaints().count(), 0);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(
        (play.run.phase(), checkpoint::document(&play.run).observations),
        (Phase::Finish, vec!["noted".into()])
    );
}

#[test]
fn no_phase_skips_the_judge_or_an_approval() {
    let mut play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!(
        may_go_on(&play.run, GoOn::Judge, false, &[]).expect_err("a is open").code,
        "E_BAD_INPUT"
    );
    play.feed(resume(settings(), Some(GoOn::Judge)));
    assert_eq!(
        (play.run.status(), play.run.jobs.len()),
        (RunStatus::Pending, 0),
        "nothing of it is recorded"
    );
    play.feed(resume(settings(), Some(GoOn::Implement)));
    assert_eq!(play.working_on(), ["a"]);
    assert_eq!(
        may_go_on(&play.run, GoOn::Judge, false, &[]).expect_err("it is at work").code,
        "E_RUN_LOCKED"
    );

    let play = Play::new(settings());
    assert_eq!(
        may_go_on(&play.run, GoOn::Implement, false, &[]).expect_err("there are no beads").code,
        "E_BAD_INPUT"
    );
    let play = Play::with(RunSettings { human_review: true, ..settings() }, vec![bead("a", &[])]);
    assert!(
        may_go_on(&play.run, GoOn::Implement, false, &[]).is_err()
            && may_go_on(&play.run, GoOn::Implement, true, &[]).is_ok()
    );
}

#[test]
fn run_with_open_beads_ends_partial() {
    let mut play = Play::with(settings(), vec![bead("a", &[]), bead("b", &["a"])]);
    play.done("a");
    // An older version allowed this state.
    play.run.jobs.clear();
    play.run.phase = PhaseState::Finish;
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    assert_eq!(play.run.outcome(), Some(RunStatus::Partial));
    let told = checkpoint::document(&play.run).error.expect("it never exits 0, and says why");
    assert!(told.code == "E_BEADS_BLOCKED" && told.message.contains("are not done: "), "{told:?}");
}

#[test]
fn a_branch_that_is_not_pushed_says_why() {
    let frozen = |branch: &str| Frozen {
        sha256: String::new(),
        base_branch: branch.into(),
        base_commit: "c0".into(),
        target_branch: "t".into(),
    };
    let mut play = Play::with(RunSettings { judge: false, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.run.frozen = Some(frozen("main"));
    assert_eq!(unpushed(&play.run), None);
    let mut of = play.run.clone();
    of.frozen = Some(frozen("HEAD"));
    assert!(unpushed(&of).is_some_and(|why| why.contains("on no branch")));
    let mut of = play.run.clone();
    of.started.target = "feature".into();
    assert!(unpushed(&of).is_some_and(|why| why.contains("push it yourself")));
    let mut of = play.run.clone();
    of.beads.values_mut().for_each(|task| task.stage = Stage::Blocked);
    assert_eq!(unpushed(&of).as_deref(), Some("1 of 1 beads are blocked"));
    let pr = Some(PullRequest::Unpushed("nobody may".into()));
    play.feed(Input::Published { branch: "b".into(), commit: "c".into(), merge: "m".into(), pr });
    assert_eq!(play.run.outcome(), Some(RunStatus::Completed), "it is no failure");
    assert_eq!(play.run.publication.unpushed.as_deref(), Some("nobody may"));
}

#[test]
fn a_branch_without_a_pull_request_names_the_page_for_one() {
    let finish = |pr: Option<PullRequest>| {
        let mut play = Play::with(RunSettings { judge: false, ..settings() }, vec![bead("a", &[])]);
        play.done("a");
        play.feed(Input::Published {
            branch: "b".into(),
            commit: "c".into(),
            merge: "m".into(),
            pr,
        });
        assert_eq!(play.run.outcome(), Some(RunStatus::Completed));
        Whereabouts::of(&play.run).expect("it is over")
    };
    let pushed = |page: Option<&str>| PullRequest::Pushed {
        branch: "t".into(),
        page: page.map(String::from),
        trouble: page.is_none().then(|| "gh: not logged in".to_string()),
    };
    let told = finish(Some(pushed(Some("https://h/new"))));
    assert_eq!((told.branch.as_deref(), told.pushed.as_deref()), (Some("b"), Some("t")));
    assert_eq!(told.next.as_deref(), Some("make a pull request: https://h/new"));
    assert_eq!(told.pr_trouble, None);
    let told = finish(Some(pushed(None)));
    assert!(told.next.is_some_and(|next| next.contains("the branch t at the remote")));
    assert_eq!(told.pr_trouble.as_deref(), Some("gh: not logged in"));
    assert!(
        finish(Some(PullRequest::Made("u".into())))
            .next
            .is_some_and(|next| next.contains("merge u"))
    );
}

#[test]
fn early_end_names_the_work_and_the_next_step() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    assert_eq!(Whereabouts::of(&play.run), None, "it is under way");
    play.run.jobs.clear();
    let kept = KeptWork { branch: Some("muleteer/x".into()), commits: 2, ..KeptWork::default() };
    play.run.publication.preserved = Some(kept);
    play.feed(Input::Fatal { code: "E_GIT".into(), message: "no".into() });
    let told = Whereabouts::of(&play.run).expect("it is over");
    assert_eq!((told.branch.as_deref(), told.commits), (Some("muleteer/x"), Some(2)));
    assert!(told.next.is_some_and(|next| next.starts_with("muleteer run --resume ")));
}

#[test]
fn going_on_from_maintenance_maintains_at_once_and_then_judges() {
    let mut play = Play::with(
        RunSettings { judge: false, maintain_every: 0, ..settings() },
        vec![bead("a", &[])],
    );
    play.done("a");
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    assert_eq!(play.run.outcome(), Some(RunStatus::Completed));
    play.feed(resume(RunSettings { maintain_every: 0, ..settings() }, Some(GoOn::Maintain)));
    assert!(
        play.run.job_of(Purpose::Maintain).is_some() && play.run.job_of(Purpose::Judge).is_none()
    );
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    assert!(play.run.job_of(Purpose::Judge).is_some());
}

/// The store returns an existing bead for a known key, so two verdicts must not share a key.
#[test]
fn each_verdict_creates_its_own_beads() {
    let mut play =
        Play::with(RunSettings { max_iterations: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    let number = |play: &Play| match effects(&play.run).as_slice() {
        [Effect::ApplyVerdict { verdict, .. }] => *verdict,
        other => panic!("{other:?}"),
    };
    play.verdict(finds("First"));
    let first = number(&play);
    play.feed(Input::Applied { iteration: 1, triage: Triage::default() });
    assert_eq!(play.error(), Some("E_MAX_ITERATIONS"));
    play.feed(resume(settings(), Some(GoOn::Judge)));
    play.verdict(finds("Second"));
    let second = number(&play);
    let key = |verdict| {
        (
            judge::remedy_key(play.run.id(), verdict, 0),
            judge::remedy_id(play.run.hash(), verdict, 0),
        )
    };
    assert_ne!((key(first).0, key(first).1), key(second));
}

#[test]
fn raised_iteration_limit_continues_open_beads() {
    let mut play =
        Play::with(RunSettings { max_iterations: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.verdict(finds("First"));
    let applied = || {
        let beads = ["r", "s"].map(|id| plan_of(&bead(id, &[]))).into();
        Input::Applied { iteration: 1, triage: Triage { beads, ..Triage::default() } }
    };
    play.feed(applied());
    assert_eq!((play.error(), play.run.beads.len()), (Some("E_MAX_ITERATIONS"), 1));
    let told = |play: &Play| checkpoint::document(&play.run).beads;
    assert_eq!(
        (told(&play).total, told(&play).open, told(&play).closed),
        (3, 2, 1),
        "what is left is told"
    );
    play.feed(resume(settings(), None));
    assert!(matches!(
        effects(&play.run).as_slice(),
        [Effect::ApplyVerdict { iteration: 1, verdict: 1, .. }]
    ));
    play.feed(applied());
    assert_eq!(told(&play).total, 3, "each once");
    assert_eq!((play.run.iteration, play.working_on()), (2, vec!["r", "s"]));
}

fn told(bead: &str, closed: bool) -> Settled {
    Settled { bead: bead.into(), closed, no_change: false }
}

/// `a` is blocked, and `b` depends on it.
fn deadlocked() -> Play {
    let mut play = Play::with(
        RunSettings { max_retries: 0, ..settings() },
        vec![bead("a", &[]), bead("b", &["a"])],
    );
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!(play.error(), Some("E_DEADLOCK"));
    play
}

fn resumed_after(settled: Vec<Settled>) -> Input {
    Input::Resume {
        settings: Box::new(settings()),
        by: "o".into(),
        approve: false,
        from: None,
        settled,
        trace: None,
    }
}

#[test]
fn resume_uses_changes_to_blocked_beads() {
    let mut play = deadlocked();
    play.feed(resumed_after(vec![told("a", true)]));
    assert_eq!((play.run.beads["a"].stage, play.working_on()), (Stage::Done, vec!["b"]));

    let mut play = deadlocked();
    play.feed(resumed_after(vec![told("a", false)]));
    let task = &play.run.beads["a"];
    assert_eq!(
        (task.stage, task.failures, task.reuse, play.working_on()),
        (Stage::Taken, 0, false, vec!["a"])
    );
    // The bead has all its attempts again.
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!(play.working_on(), ["a"]);

    let mut play = deadlocked();
    play.feed(resumed_after(vec![]));
    assert_eq!(play.error(), Some("E_DEADLOCK"), "nothing was done about it");
    let both = [told("a", true), told("b", true)];
    assert!(may_go_on(&play.run, GoOn::Judge, false, &[]).is_err());
    assert!(may_go_on(&play.run, GoOn::Judge, false, &both).is_ok(), "nothing is left to do");
}

#[test]
fn invalid_plan_is_repeated_with_its_fault() {
    let mut play = Play::new(settings());
    play.run.started.bead_label = None;
    play.feed(Input::Frozen {
        sha256: String::new(),
        base_branch: String::new(),
        base_commit: String::new(),
        target_branch: String::new(),
    });
    play.needed(Purpose::Decompose, Outcome::Success, |_| ());
    let circle = || vec![bead("a", &["b"]), bead("b", &["a"])];
    play.feed(Input::Gathered { beads: circle(), closed_outside: vec![] });
    assert_eq!(play.error(), Some("E_GRAPH_CYCLE"));
    play.feed(resume(settings(), None));
    assert!(play.run.job_of(Purpose::Decompose).is_some(), "somebody plans again");
    assert!(play.run.complaint(Purpose::Decompose).contains("depend on each other"));
    play.needed(Purpose::Decompose, Outcome::Success, |_| ());
    play.feed(Input::Gathered { beads: vec![bead("a", &[])], closed_outside: vec![] });
    play.feed(Input::BeadsAccepted);
    assert_eq!(play.working_on(), ["a"]);
}

#[test]
fn rate_limits_delay_a_needed_agent_only_for_a_time() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.done("a");
    for _ in 0..100 {
        if play.run.outcome().is_some() {
            break;
        }
        play.run.slowdown.pause = None;
        play.fold(advance(&play.run, now()));
        play.needed(Purpose::Judge, Outcome::Failure, |end| end.rate_limited = true);
    }
    assert_eq!(play.error(), Some("E_AGENT_FAILED"));
}

#[test]
fn only_consecutive_failures_count_and_old_complaints_are_dropped() {
    let mut play = Play::with(RunSettings { max_retries: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    for iteration in 1..=2 {
        play.needed(Purpose::Judge, Outcome::Success, |_| ());
        play.needed(Purpose::Structure, Outcome::Failure, |_| ());
        assert!(play.run.is_live(), "one crash an iteration is not two in a row");
        play.structured(finds("Again"));
        assert!(play.run.trials.is_empty());
        let found = format!("f{iteration}");
        let planned = Planned { id: found.clone(), ..plan_of(&bead(&found, &[])) };
        play.feed(Input::Applied {
            iteration,
            triage: Triage { beads: vec![planned], ..Triage::default() },
        });
        play.done(&found);
    }
    assert_eq!(play.run.iteration, 3);
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

#[test]
fn maintenance_that_is_not_parallel_has_the_run_to_itself() {
    let alone = RunSettings { maintain_parallel: false, maintain_every: 1, ..settings() };
    let mut play = Play::with(alone, vec![bead("a", &[]), bead("b", &[]), bead("c", &[])]);
    play.done("a");
    assert_eq!(play.working_on(), ["b"], "nobody begins, and maintenance waits for who is at work");
    play.done("b");
    assert_eq!((play.run.coding(), play.run.job_of(Purpose::Maintain).is_some()), (0, true));
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    assert_eq!(play.working_on(), ["c"]);
}

/// After Ctrl-C the maintenance once counted as failed, and was never repeated.
#[test]
fn maintenance_stopped_with_its_run_is_repeated() {
    let mut play =
        Play::with(RunSettings { maintain_every: 1, ..settings() }, vec![bead("a", &[])]);
    play.done("a");
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    assert_eq!(
        (play.run.status(), play.run.maintenance.runs[0].state.as_str()),
        (RunStatus::Pending, "stopped")
    );
    play.feed(resume(RunSettings { maintain_every: 1, ..settings() }, None));
    assert!(
        play.run.job_of(Purpose::Maintain).is_some() && play.run.job_of(Purpose::Judge).is_none()
    );
    // Maintenance that failed by itself is not repeated, nor is one that succeeded while the run
    // stopped.
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    assert!(play.run.job_of(Purpose::Judge).is_some());
    assert_eq!(
        play.run.maintenance.runs.iter().map(|one| one.state.as_str()).collect::<Vec<_>>(),
        ["stopped", "failure"]
    );

    let forced = RunSettings { judge: false, maintain_every: 0, ..settings() };
    let mut play = Play::with(forced.clone(), vec![bead("a", &[])]);
    play.done("a");
    play.feed(Input::Published {
        branch: "b".into(),
        commit: "c".into(),
        merge: "m".into(),
        pr: None,
    });
    play.feed(resume(forced.clone(), Some(GoOn::Maintain)));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    play.feed(resume(forced.clone(), None));
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    play.feed(resume(forced, None));
    assert_eq!((play.run.phase(), play.run.jobs.len()), (Phase::Finish, 0), "it had ended well");
}

#[test]
fn stopped_run_has_an_error_and_waiting_run_has_none() {
    let mut play = Play::with(settings(), vec![bead("a", &[])]);
    play.feed(Input::Stop { reason: "it was stopped".into() });
    play.end("a", Outcome::Failure, |_| ());
    let code = |play: &Play| checkpoint::document(&play.run).error.map(|error| error.code);
    assert_eq!(
        (play.run.status(), code(&play)),
        (RunStatus::Pending, Some("E_RUN_STOPPED".into()))
    );
    assert_eq!(
        checkpoint::run_log(&play.run).error.map(|error| error.code),
        Some("E_RUN_STOPPED".into())
    );
    play.feed(resume(settings(), None));
    assert_eq!(code(&play), None);
    let play = Play::with(RunSettings { dry_run: true, ..settings() }, vec![bead("a", &[])]);
    assert_eq!((play.run.status(), code(&play)), (RunStatus::Pending, None));
}

/// The store is updated before the run, so the outcome must be known before it is recorded.
#[test]
fn blocking_is_predicted_before_the_last_retry() {
    let play = Play::with(RunSettings { max_retries: 0, ..settings() }, vec![bead("a", &[])]);
    let dispatch = play.run.jobs.values().next().expect("its agent").start.dispatch.clone();
    let end = JobEnd::new(Outcome::Failure, "exit code 1");
    assert!(blocks(&play.run, &dispatch, &end));
    assert!(!blocks(&play.run, &dispatch, &JobEnd { rate_limited: true, ..end.clone() }));
    let done = JobEnd { closed: true, commits: 1, on_target: true, whole: true, ..end };
    assert!(!blocks(&play.run, &dispatch, &done) && !blocks(&play.run, "nobody", &done));
}
