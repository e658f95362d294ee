//! The crash campaign of a spec run: every named point, and seeded moments.
//! `cargo xtask crash --runs` does more.
//!
//! `MULETEER_RUN_POINT` picks one point (with `:nth`), `MULETEER_CRASH_SEED` one seed,
//! `MULETEER_CRASH_SEEDS` how many.

#![allow(clippy::unwrap_used)]

use muleteer_process::fault::{ASIDE_POINTS, KEEP_POINTS, POINTS, RUN_POINTS};
use muleteer_tests::crash::runs;
use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::wait_until;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SEEDS_IN_CI: u64 = 50;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One run, whose daemon dies at each point in the order of its life.
#[test]
fn run_killed_at_every_point_ends_the_same() {
    let points: Vec<String> = match variable("MULETEER_RUN_POINT") {
        Some(one) => vec![one],
        None => RUN_POINTS.iter().map(|point| (*point).to_string()).collect(),
    };
    runs::through(&points);
}

/// The person has checked out the branch that the run works on.
#[test]
fn run_killed_during_its_checkout_update_ends_the_same() {
    runs::home_through(&["run.before_publish", "git.before_forward"].map(String::from));
}

/// One run, one of whose shims dies at each point in the order of its life.
#[test]
fn run_with_shims_killed_at_every_point_ends_the_same() {
    let points: Vec<&str> =
        POINTS.iter().copied().filter(|point| point.starts_with("shim.")).collect();
    runs::shims_through(&points);
}

/// Another program stores the beads. Calls that it has carried out are not repeated.
#[test]
fn tbd_run_killed_around_its_calls_ends_the_same() {
    let points = [
        "tbd.after_call:1",
        "tbd.before_call:2",
        "tbd.after_call:5",
        "tbd.before_call:4",
        "tbd.after_call:6",
    ];
    runs::through_with_tbd(
        "tbd_run_killed_around_its_calls_ends_the_same",
        &points.map(String::from),
    );
}

/// Each point alone, and at later passings, for `cargo xtask crash --runs`.
#[test]
#[ignore = "takes minutes; `cargo xtask crash --runs` runs it"]
fn run_killed_at_each_single_point_ends_the_same() {
    let passings =
        |point: &str| if point.contains("commit") || point.contains("checkpoint") { 30 } else { 1 };
    let trials: Vec<String> = RUN_POINTS
        .iter()
        .flat_map(|point| (1..=passings(point)).map(move |nth| format!("{point}:{nth}")))
        .collect();
    try_all(&trials, |point| runs::through(std::slice::from_ref(point)));
}

#[test]
fn run_killed_at_seeded_moments_ends_the_same() {
    let seeds: Vec<u64> = match variable("MULETEER_CRASH_SEED") {
        Some(seed) => vec![seed.parse().expect("a seed is a number")],
        None => {
            let number = |name, otherwise| {
                variable(name).map_or(otherwise, |value| value.parse().expect("a number"))
            };
            let from = number("MULETEER_CRASH_FROM", 0);
            (from..from + number("MULETEER_CRASH_SEEDS", SEEDS_IN_CI)).collect()
        }
    };
    try_all(&seeds, |seed| runs::seeded(*seed));
}

/// Power cuts found this.
#[test]
fn verdict_lost_with_the_machine_is_requested_again() {
    for (nth, purpose) in [(1, "acceptance"), (7, "judge"), (8, "structure")] {
        runs::a_word_that_the_machine_lost(nth, purpose);
    }
}

#[test]
fn one_of_two_resumes_of_a_hostless_run_wins() {
    runs::two_resumes_of_a_stopped_host();
}

/// Tries all, several at once (`MULETEER_CRASH_JOBS`), because a trial mostly waits.
fn try_all<T: Sync + std::fmt::Debug>(trials: &[T], trial: impl Fn(&T) + Sync) {
    let jobs = variable("MULETEER_CRASH_JOBS").map_or(2, |jobs| jobs.parse().expect("a number"));
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(one) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if catch_unwind(AssertUnwindSafe(|| trial(one))).is_err() {
                        eprintln!("{one:?} broke something");
                        broken
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .push(format!("{one:?}"));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(broken.is_empty(), "broken: {broken:?}; repeat one: cargo xtask crash --runs --seed S");
}

/// Something in the run may crash each daemon that resumes it, and all other runs and agents would
/// wait for ever.
#[test]
fn run_that_crashed_two_daemons_is_suspended_until_resumed() {
    let stage = Stage::new(AGENT);
    let fault = ("MULETEER_FAULT", "run.before_worktree=abort");
    let killed = ("MULETEER_FAULT", "run.before_worktree");
    let mut daemon = stage.world.daemon_with(&[killed]);
    let begun = stage.begin(&["--detach"]).start();
    daemon.ended();
    drop(begun);
    // Two daemons crash, and between them two are killed, which do not count.
    for fault in [fault, killed, killed, fault] {
        stage.world.daemon_unready(&[fault]).ended();
    }
    let daemon = stage.world.daemon();
    let document = stage.status();
    let run = document["run_id"].as_str().unwrap().to_string();
    assert_eq!(document["status"], "failed", "{document}");
    let shown = stage.muleteer(&["run", "--status", &run]).run();
    assert!(shown.stdout.contains("2 daemons crashed"), "{shown:?}");
    let over =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(over["status"], "completed", "{over}");
    stage.world.finish(Some(daemon));
}

/// There are no criteria and no judge, and beads have no second attempt.
const ALONE: &str = "run: {acceptance: {generate: false}, agent: {max_retries_per_bead: 0}, \
                     phases: {judge: {enabled: false}}}\n";

/// Waits until the run's document names the branch with the work of the bead `Base`.
fn kept(stage: &Stage, run: &str) -> Value {
    let document = wait_until("the work of the run", PATIENCE, || {
        let document = stage.muleteer(&["run", "--status", run, "--json"]).json();
        document["work"]["branch"].is_string().then_some(document)
    });
    let branch = document["work"]["branch"].as_str().unwrap();
    assert_eq!(branch, format!("muleteer/{run}"), "{document}");
    assert_eq!(stage.repo.git(&["show", &format!("{branch}:Base.txt")]), "Base");
    document
}

#[test]
fn failed_run_killed_around_keeping_its_work_names_the_branch() {
    // `Right` waits for `Left`, which cannot succeed, so the run ends before its judge.
    let agent = AGENT.replace("bead dep add \"$c\" \"$a\"", "bead dep add \"$c\" \"$b\"").replace(
        "  echo \"$title\" > ",
        "  test \"$title\" = Base || exit 3\n  echo \"$title\" > ",
    );
    for point in KEEP_POINTS {
        let stage = Stage::new(&agent);
        stage.configure(ALONE);
        let mut daemon = stage.world.daemon_with(&[("MULETEER_FAULT", point)]);
        let run = stage.begin(&["--detach"]).ok();
        wait_until("the daemon to die", PATIENCE, || (!daemon.is_alive()).then_some(()));
        daemon.ended();
        let daemon = stage.world.daemon();
        let document = stage.over(&run);
        assert_eq!(document["status"], "failed", "{point}: {document}");
        kept(&stage, &run);
        let names = stage.names(&run);
        assert_eq!(names[names.len() - 2..], ["run_work_kept", "run_failed"], "{point}");
        assert_eq!(names.iter().filter(|name| *name == "run_work_kept").count(), 1, "{point}");
        stage.world.finish(Some(daemon));
    }
}

/// One daemon is killed while it sets the run aside, and another while it brings the run's work
/// home.
#[test]
fn run_suspended_by_killed_daemons_names_its_branch() {
    for point in
        ASIDE_POINTS.iter().chain(KEEP_POINTS.iter().filter(|point| **point != "run.before_rest"))
    {
        let stage = Stage::new(AGENT);
        stage.configure(ALONE);
        // The agent that decomposes and the one of `Base` have their worktrees by then.
        let mut daemon = stage.world.daemon_with(&[("MULETEER_FAULT", "run.before_worktree:3")]);
        let run = stage.begin(&["--detach"]).ok();
        wait_until("the daemon to die", PATIENCE, || (!daemon.is_alive()).then_some(()));
        daemon.ended();
        for fault in ["run.before_worktree=abort", "run.before_worktree=abort", point] {
            stage.world.daemon_unready(&[("MULETEER_FAULT", fault)]).ended();
        }
        let daemon = stage.world.daemon();
        let document = kept(&stage, &run);
        assert_eq!(document["status"], "failed", "{point}: {document}");
        assert!(
            document["reason"].as_str().unwrap().contains("2 daemons crashed"),
            "{point}: {document}"
        );
        assert_eq!(
            stage.names(&run).iter().filter(|name| *name == "run_rested").count(),
            1,
            "{point}"
        );
        let over =
            last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
        assert_eq!(over["status"], "completed", "{point}: {over}");
        stage.world.finish(Some(daemon));
    }
}

/// Bringing the run's work home may itself crash daemons. Muleteer stops trying then, and the run
/// can still be resumed.
#[test]
fn suspended_run_with_crashing_work_is_left_alone() {
    let stage = Stage::new(AGENT);
    stage.configure(ALONE);
    let mut daemon = stage.world.daemon_with(&[("MULETEER_FAULT", "run.before_worktree:3")]);
    let run = stage.begin(&["--detach"]).ok();
    wait_until("the daemon to die", PATIENCE, || (!daemon.is_alive()).then_some(()));
    daemon.ended();
    let (going_on, keeping) = ("run.before_worktree=abort", "run.before_kept=abort");
    for fault in [going_on, going_on, keeping, keeping] {
        stage.world.daemon_unready(&[("MULETEER_FAULT", fault)]).ended();
    }
    let daemon = stage.world.daemon_with(&[("MULETEER_FAULT", keeping)]);
    assert!(!stage.names(&run).iter().any(|name| name == "run_work_kept"));
    let events = stage.world.events();
    let is_told =
        |event: &Value| event["message"].as_str().is_some_and(|text| text.contains("keep.git"));
    assert!(events.iter().any(is_told), "{events:?}");
    let over =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(over["status"], "completed", "{over}");
    stage.world.finish(Some(daemon));
}

/// The suspect may wait for minutes, but a person who stops it must not.
#[test]
fn suspect_run_that_waits_for_its_trial_is_stopped_at_once() {
    let stage = Stage::new(&AGENT.replace("decompose)\n", "decompose)\n  sleep 600\n"));
    stage.configure(ALONE);
    let mut daemon = stage.world.daemon();
    let runs = [stage.begin(&["--detach"]).ok(), stage.begin(&["--detach"]).ok()];
    for run in &runs {
        wait_until("an agent", PATIENCE, || {
            stage.names(run).iter().any(|name| name == "agent_started").then_some(())
        });
    }
    daemon.kill_9();
    let mark = |run: &str| stage.world.state().join("runs").join(run).join("recovering");
    for run in &runs {
        // A crash leaves this mark.
        std::fs::write(mark(run), "1 waiting").unwrap();
    }
    let daemon = stage.world.daemon();
    let read = |run: &str| std::fs::read_to_string(mark(run)).unwrap_or_default();
    let (tried, waiting) = wait_until("one of the trials", PATIENCE, || {
        let [one, other] = &runs;
        match (read(one).as_str(), read(other).as_str()) {
            ("1", "1 waiting") => Some((one, other)),
            ("1 waiting", "1") => Some((other, one)),
            _ => None,
        }
    });
    stage.muleteer(&["run", "stop", waiting]).ok();
    assert_eq!(stage.over(waiting)["error"]["code"], "E_RUN_STOPPED");
    assert_eq!(read(tried), "1", "the other one's trial was not over");
    stage.muleteer(&["run", "stop", tried]).ok();
    stage.world.finish(Some(daemon));
}
