//! The beads of a run: when their agents start, end, retry and block; and the snapshots of a run.

use crate::event::Outcome;
use crate::spec_run::checkpoint;
use crate::spec_run::decide::{Input, JobEnd, advance, blocks};
use crate::spec_run::event::*;
use crate::spec_run::prompts::{self, Commands, Scene};
use crate::spec_run::state::{Run, Stage};
use crate::spec_run::tests::play::{Play, bead, finds, now, plan_of, resume, settings};
use crate::text::data_block::DataBlocks;

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
    let chain = format!("{} → {}", play.run.named("b"), play.run.named("a"));
    assert!(error.code == "E_DEADLOCK" && error.message.contains(&chain), "{error:?}");
    assert!(error.message.contains("muleteer bead reopen a`"), "{error:?}");
    // The failure that blocked the bead counts as those before it.
    let (failures, failed) = (play.run.beads["a"].failures, play.run.iterations[0].failed);
    assert_eq!((failures, failed), (2, 2));
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

/// A gate that names a command without `--yes` leads back to itself.
#[test]
fn gate_names_the_command_that_approves() {
    let command = |settings: RunSettings| {
        let mut play = Play::with(settings, vec![bead("a", &[])]);
        let waits = play.run.resume_command();
        play.feed(resume(RunSettings { human_review: false, ..play.run.settings.clone() }, None));
        (waits.ends_with(" --yes"), play.run.resume_command().ends_with(" --yes"))
    };
    let review = RunSettings { human_review: true, ..settings() };
    assert_eq!(command(review.clone()), (true, false));
    assert_eq!(command(RunSettings { dry_run: true, ..review }), (true, false));
    assert_eq!(command(RunSettings { dry_run: true, ..settings() }), (false, false));
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
    assert!(play.run.resume_command().ends_with(" --yes"), "{}", play.run.resume_command());
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

#[test]
fn canary_beads_run_alone_until_they_pass() {
    let settings = RunSettings { canary: 2, maintain_every: 0, ..settings() };
    let beads = ["a", "b", "c", "d"].map(|id| bead(id, &[]));
    let mut play = Play::with(settings, beads.to_vec());
    assert_eq!(play.working_on(), ["a"]);
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!(play.working_on(), ["a"], "a canary is retried alone");
    play.done("a");
    assert_eq!((play.working_on(), play.run.canaries_left()), (vec!["b"], 1));
    play.done("b");
    assert_eq!((play.working_on(), play.run.canaries_left()), (vec!["c", "d"], 0));
}

#[test]
fn blocked_canary_stops_the_run_before_the_fan_out() {
    let settings = RunSettings { canary: 1, max_retries: 0, maintain_every: 0, ..settings() };
    let beads = ["a", "b", "c"].map(|id| bead(id, &[]));
    let mut play = Play::with(settings.clone(), beads.to_vec());
    play.end("a", Outcome::Failure, |_| ());
    assert_eq!((play.error(), play.run.spawns), (Some("E_AGENT_FAILED"), 1));
    // Without a reopening, the next bead is the canary.
    play.feed(resume(settings, None));
    assert_eq!(play.working_on(), ["b"]);
    play.done("b");
    assert_eq!(play.working_on(), ["c"]);
}

#[test]
fn repeated_failures_of_one_kind_start_maintenance_that_names_them() {
    let beads = ["a", "b", "c"].map(|id| bead(id, &[]));
    let fail = |play: &mut Play, id: &str, line: &str| {
        play.end(id, Outcome::Failure, |end| end.last_lines = line.into());
    };
    let maintains = |play: &Play| play.run.job_of(Purpose::Maintain).is_some();
    let plenty =
        RunSettings { max_concurrency: 3, max_retries: 9, maintain_every: 5, ..settings() };
    let mut play = Play::with(plenty.clone(), beads.to_vec());
    for (id, line) in [("a", "the tests failed"), ("b", "the build failed"), ("a", ""), ("a", "")] {
        fail(&mut play, id, line);
        assert!(!maintains(&play), "{id}: {line}");
    }
    fail(&mut play, "a", "the tests failed");
    play.done("b");
    fail(&mut play, "a", "the tests failed");
    assert!(!maintains(&play), "a bead was completed in between");
    fail(&mut play, "c", "test result: FAILED");
    assert!(maintains(&play));
    let failures = play.run.maintenance.runs[0].failures.clone();
    let (build, test) = (FailureKind::Build, FailureKind::Test);
    assert_eq!(failures, [(build, 1), (test, 4), (FailureKind::Other, 2)].into());
    let prompt = prompts::maintain(
        &Scene {
            run_id: "r",
            title: "T",
            spec: "",
            target: "t",
            muleteer: "m",
            note: "",
            data: &DataBlocks::new("7k2p"),
        },
        "m1",
        &Commands::default(),
        &failures,
    );
    assert!(prompt.contains("\n- failures of the build: 1\n- failures of tests: 4\n\nCommit"));
    // Triggers beside a maintenance run are combined, and what it was about is over.
    fail(&mut play, "a", "clippy failed");
    fail(&mut play, "c", "clippy failed");
    assert_eq!((play.run.maintenance.runs.len(), play.run.maintenance.coalesced), (1, 1));
    play.needed(Purpose::Maintain, Outcome::Success, |_| ());
    assert_eq!(play.run.maintenance.failures, [(FailureKind::Lint, 2)].into());
    assert_eq!(Run::fold(&play.log).as_ref(), Some(&play.run));

    let never = RunSettings { maintain_every: 0, ..plenty };
    let mut play = Play::with(never, beads.to_vec());
    fail(&mut play, "a", "the tests failed");
    fail(&mut play, "b", "the tests failed");
    assert!(!maintains(&play), "the run has no maintenance");
}

/// Its last lines are from the middle of its work, where a rejected push is nothing unusual.
#[test]
fn agents_that_vanished_start_no_maintenance() {
    let settings = RunSettings { max_retries: 9, maintain_every: 5, ..settings() };
    for (unknown, maintains) in [(true, false), (false, true)] {
        let mut play = Play::with(settings.clone(), vec![bead("a", &[])]);
        for _ in 0..2 {
            play.end("a", Outcome::Failure, |end| {
                (end.last_lines, end.unknown) = ("CONFLICT in a.rs".into(), unknown);
            });
        }
        assert_eq!(play.run.job_of(Purpose::Maintain).is_some(), maintains, "{unknown}");
    }
}

#[test]
fn stopped_maintenance_leaves_its_failures_to_the_next() {
    let settings = RunSettings { max_retries: 9, ..settings() };
    let mut play = Play::with(settings.clone(), vec![bead("a", &[]), bead("b", &[])]);
    for id in ["a", "b"] {
        play.end(id, Outcome::Failure, |end| end.last_lines = "the tests failed".into());
    }
    play.feed(Input::Stop { reason: "it was stopped".into() });
    for id in ["a", "b"] {
        play.end(id, Outcome::Failure, |_| ());
    }
    play.needed(Purpose::Maintain, Outcome::Failure, |_| ());
    play.feed(resume(settings, None));
    let failures: Vec<_> =
        play.run.maintenance.runs.iter().map(|one| one.failures.clone()).collect();
    assert_eq!(failures, [[(FailureKind::Test, 2)].into(), [(FailureKind::Test, 2)].into()]);
}
