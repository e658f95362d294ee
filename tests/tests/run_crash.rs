//! The crash campaign of a spec run: every named point, and seeded moments. `cargo xtask crash --runs` does more.
//!
//! `MULETEER_RUN_POINT` picks one point (with `:nth`), `MULETEER_CRASH_SEED` one seed, `MULETEER_CRASH_SEEDS` how
//! many.

#![allow(clippy::unwrap_used)]

use muleteer_process::fault::{POINTS, RUN_POINTS};
use muleteer_tests::crash::runs;
use muleteer_tests::spec_stage::{AGENT, SpecStage as Stage, last};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SEEDS_IN_CI: u64 = 50;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// One run, whose daemon dies at each point in the order of its life.
#[test]
fn a_run_killed_at_every_named_point_comes_to_the_same() {
    let points: Vec<String> = match variable("MULETEER_RUN_POINT") {
        Some(one) => vec![one],
        None => RUN_POINTS.iter().map(|point| (*point).to_string()).collect(),
    };
    runs::through(&points);
}

/// The person stands on the branch that the run works on.
#[test]
fn a_run_killed_as_it_comes_home_to_what_is_checked_out_comes_to_the_same() {
    runs::home_through(&["run.before_publish", "git.before_forward"].map(String::from));
}

/// One run, one of whose shims dies at each point in the order of its life.
#[test]
fn a_run_whose_shims_die_at_every_named_point_comes_to_the_same() {
    let points: Vec<&str> = POINTS.iter().copied().filter(|point| point.starts_with("shim.")).collect();
    runs::shims_through(&points);
}

/// Its beads are kept by another program: what was asked of that is there, and is not asked for twice.
#[test]
fn a_run_on_tbd_killed_around_its_calls_comes_to_the_same() {
    let points = ["tbd.after_call:1", "tbd.before_call:2", "tbd.after_call:5", "tbd.before_call:4", "tbd.after_call:6"];
    runs::through_with_tbd("a_run_on_tbd_killed_around_its_calls_comes_to_the_same", &points.map(String::from));
}

/// Each point alone, and at later passings: for `cargo xtask crash --runs`.
#[test]
#[ignore = "takes minutes; `cargo xtask crash --runs` runs it"]
fn a_run_killed_at_each_point_alone_comes_to_the_same() {
    let passings = |point: &str| if point.contains("commit") || point.contains("checkpoint") { 30 } else { 1 };
    let trials: Vec<String> = RUN_POINTS
        .iter()
        .flat_map(|point| (1..=passings(point)).map(move |nth| format!("{point}:{nth}")))
        .collect();
    try_all(&trials, |point| runs::through(std::slice::from_ref(point)));
}

#[test]
fn a_run_killed_at_seeded_moments_comes_to_the_same() {
    let seeds: Vec<u64> = match variable("MULETEER_CRASH_SEED") {
        Some(seed) => vec![seed.parse().expect("a seed is a number")],
        None => {
            let number = |name, otherwise| variable(name).map_or(otherwise, |value| value.parse().expect("a number"));
            let from = number("MULETEER_CRASH_FROM", 0);
            (from..from + number("MULETEER_CRASH_SEEDS", SEEDS_IN_CI)).collect()
        }
    };
    try_all(&seeds, |seed| runs::seeded(*seed));
}

/// Found by power cuts.
#[test]
fn a_word_that_the_machine_lost_is_asked_for_again() {
    for (nth, purpose) in [(1, "acceptance"), (7, "judge"), (8, "structure")] {
        runs::a_word_that_the_machine_lost(nth, purpose);
    }
}

#[test]
fn of_two_who_resume_a_run_with_a_stopped_host_one_gets_it() {
    runs::two_resumes_of_a_stopped_host();
}

/// Several side by side (`MULETEER_CRASH_JOBS`): a trial mostly waits.
fn try_all<T: Sync + std::fmt::Debug>(trials: &[T], trial: impl Fn(&T) + Sync) {
    let jobs = variable("MULETEER_CRASH_JOBS").map_or(2, |jobs| jobs.parse().expect("a number"));
    let (next, broken) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(one) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if catch_unwind(AssertUnwindSafe(|| trial(one))).is_err() {
                        eprintln!("{one:?} broke something");
                        broken.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{one:?}"));
                    }
                }
            });
        }
    });
    let broken = broken.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(broken.is_empty(), "broken: {broken:?}; repeat one: cargo xtask crash --runs --seed S");
}

/// What is in it may end each daemon that goes on with it, and all other runs and agents would wait for ever.
#[test]
fn a_run_that_crashed_two_daemons_is_set_aside_and_goes_on_when_a_person_says_so() {
    let stage = Stage::new(AGENT);
    let fault = ("MULETEER_FAULT", "run.before_worktree=abort");
    let killed = ("MULETEER_FAULT", "run.before_worktree");
    let mut daemon = stage.world.daemon_with(&[killed]);
    let begun = stage.begin(&["--detach"]).start();
    daemon.ended();
    drop(begun);
    // Two that crash, and between them two that are killed, which count for nothing.
    for fault in [fault, killed, killed, fault] {
        stage.world.daemon_unready(&[fault]).ended();
    }
    let daemon = stage.world.daemon();
    let document = stage.status();
    let run = document["run_id"].as_str().unwrap().to_string();
    assert_eq!(document["status"], "failed", "{document}");
    let shown = stage.muleteer(&["run", "--status", &run]).run();
    assert!(shown.stdout.contains("2 daemons crashed"), "{shown:?}");
    let over = last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(over["status"], "completed", "{over}");
    stage.world.finish(Some(daemon));
}
