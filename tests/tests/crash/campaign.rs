//! The crash campaign: every named point once, and seeded moments. `cargo xtask crash` does more.
//!
//! `MULETEER_CRASH_POINT` picks one point, `MULETEER_CRASH_SEED` one seed, `MULETEER_CRASH_SEEDS`
//! how many.

use muleteer_process::fault::{ADAPTER_POINTS, POINTS, THREAD_POINTS};
use muleteer_tests::crash::{
    self,
    corruption::Scene,
    syscalls::{Injection, Tried},
};
use muleteer_tests::skip::skip;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const SEEDS_IN_CI: u64 = 20;
/// A conversation takes longer than a dispatch.
const CONVERSATIONS_IN_CI: u64 = 8;
/// Closing a file for each append takes its time.
const STORING_IN_CI: u64 = 8;
/// One scene is for all of them.
const DAMAGES_IN_CI: u64 = 16;

/// The daemon's own start reaches the ledger's points first; the dispatch reaches them later.
fn passings(point: &str) -> &'static [u32] {
    if point.starts_with("ledger.") { &[1, 2, 4] } else { &[1] }
}

/// A dispatch that asks nothing and has no clone does not reach the points of task lists, clones
/// and answers. `tests/tests/task_list/`, the files beside this one and
/// [`answer_is_delivered_exactly_once`] try them, and
/// [`zygote_death_ends_no_agent`] the zygote's.
fn dispatch_points() -> impl Iterator<Item = &'static &'static str> {
    let elsewhere = |point: &str| {
        ["tasks.", "git.", "zygote.", "prune.", "clone."].iter().any(|of| point.starts_with(of))
            || point.ends_with("_answer")
    };
    POINTS.iter().filter(move |point| !elsewhere(point))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[test]
fn every_named_point_of_the_daemon() {
    try_points(|point| !point.starts_with("shim."));
}

#[test]
fn every_named_point_of_a_shim() {
    try_points(|point| point.starts_with("shim."));
}

/// Tries each of the points that `is_mine` selects.
fn try_points(is_mine: impl Fn(&str) -> bool) {
    let only = variable("MULETEER_CRASH_POINT");
    let is_elsewhere = |only| THREAD_POINTS.contains(&only) || ADAPTER_POINTS.contains(&only);
    if only.as_deref().is_some_and(is_elsewhere) {
        return;
    }
    let chosen: Vec<_> = dispatch_points()
        .filter(|point| only.as_deref().is_none_or(|only| only == **point))
        .collect();
    assert!(!chosen.is_empty(), "no point is named {only:?}; there are {POINTS:?}");
    let mut broken = vec![];
    for point in chosen.into_iter().filter(|point| is_mine(point)) {
        for nth in passings(point) {
            eprintln!("point {point}:{nth}");
            if catch_unwind(|| crash::at_point(point, *nth)).is_err() {
                broken.push(format!("{point}:{nth}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken at {broken:?}; repeat one: cargo xtask crash --point NAME");
}

#[test]
fn every_named_point_of_a_conversation() {
    let only = variable("MULETEER_CRASH_POINT");
    let is_chosen = |point: &&&str| only.as_deref().is_none_or(|it| it == **point);
    let chosen = THREAD_POINTS.iter().filter(is_chosen);
    let mut broken = vec![];
    for point in chosen {
        let passings: &[u32] = if point.starts_with("thread.archive") { &[1] } else { &[1, 5] };
        for nth in passings {
            eprintln!("point {point}:{nth} of a conversation");
            if catch_unwind(|| crash::conversations::at_point(point, *nth)).is_err() {
                broken.push(format!("{point}:{nth}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken at {broken:?}; repeat one: cargo xtask crash --point NAME");
}

/// The points of questions that are no requests of an agent's CLI, and of commands, are tried in
/// `tests/tests/conversation`.
#[test]
fn every_named_point_of_a_conversation_over_an_adapter() {
    let only = variable("MULETEER_CRASH_POINT");
    let is_chosen = |point: &&&str| only.as_deref().is_none_or(|it| it == **point);
    let below = ["thread.accepted", "thread.decided", "thread.delivered"];
    // The scene's adapter interrupts no turn.
    let passed = ADAPTER_POINTS.iter().filter(|point| **point != "adapter.interrupted");
    let mut broken = vec![];
    for point in passed.chain(&below).filter(is_chosen) {
        let passings: &[u32] = if *point == "adapter.started" { &[1] } else { &[1, 2] };
        for nth in passings {
            eprintln!("point {point}:{nth} of a conversation over an adapter");
            if catch_unwind(|| crash::adapters::at_point(point, *nth)).is_err() {
                broken.push(format!("{point}:{nth}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken at {broken:?}; repeat one: cargo xtask crash --point NAME");
}

/// The daemon panics at each of its own points, instead of being killed.
#[test]
fn a_panic_at_every_named_point_of_the_daemon() {
    let mut broken = vec![];
    for point in dispatch_points().filter(|point| !point.starts_with("shim.")) {
        // The daemon's start reaches a ledger's point first.
        let nth = if point.starts_with("ledger.") { 2 } else { 1 };
        eprintln!("panic at {point}:{nth}");
        if catch_unwind(|| crash::panic_at(point, nth)).is_err() {
            broken.push(*point);
        }
    }
    assert!(broken.is_empty(), "broken by a panic at {broken:?}");
}

#[test]
fn zygote_death_ends_no_agent() {
    let points: Vec<_> = POINTS.iter().filter(|point| point.starts_with("zygote.")).collect();
    assert_eq!(points.len(), 2);
    for point in points {
        for how in ["kill", "stop"] {
            eprintln!("{how} at {point}");
            crash::zygote_at(point, how);
        }
    }
}

#[test]
fn answer_is_delivered_exactly_once() {
    let points: Vec<_> = POINTS.iter().filter(|point| point.ends_with("_answer")).collect();
    assert_eq!(points.len(), 2);
    for point in points {
        for how in ["kill", "panic"] {
            eprintln!("{how} at {point}");
            crash::answering(point, how);
        }
    }
}

fn seeds(in_ci: u64) -> Vec<u64> {
    if let Some(seed) = variable("MULETEER_CRASH_SEED") {
        return vec![seed.parse().expect("a seed is a number")];
    }
    let count =
        variable("MULETEER_CRASH_SEEDS").map_or(in_ci, |count| count.parse().expect("a number"));
    let from = variable("MULETEER_CRASH_FROM").map_or(0, |from| from.parse().expect("a number"));
    (from..from + count).collect()
}

/// Tries every seed, several at once (`MULETEER_CRASH_JOBS`), because a trial mostly waits.
fn try_seeds<T: Send>(trial: impl Fn(u64) -> T + Sync) -> Vec<(u64, Option<T>)> {
    try_these(&seeds(SEEDS_IN_CI), trial)
}

fn try_these<T: Send>(seeds: &[u64], trial: impl Fn(u64) -> T + Sync) -> Vec<(u64, Option<T>)> {
    let jobs = variable("MULETEER_CRASH_JOBS").map_or(1, |jobs| jobs.parse().expect("a number"));
    let (next, tried) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = catch_unwind(AssertUnwindSafe(|| trial(*seed))).ok();
                    if outcome.is_none() {
                        eprintln!("seed {seed} broke something");
                    }
                    tried.lock().unwrap_or_else(PoisonError::into_inner).push((*seed, outcome));
                }
            });
        }
    });
    tried.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn broken<T>(tried: &[(u64, Option<T>)]) -> Vec<u64> {
    tried.iter().filter(|(_, outcome)| outcome.is_none()).map(|(seed, _)| *seed).collect()
}

#[test]
fn seeded_moments() {
    let broken = broken(&try_seeds(crash::seeded));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --seed S"
    );
}

#[test]
fn seeded_moments_of_an_agent_that_can_resume() {
    let broken = broken(&try_seeds(crash::seeded_resumable));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --seed S"
    );
}

#[test]
fn seeded_moments_of_conversations() {
    let broken = broken(&try_these(&seeds(CONVERSATIONS_IN_CI), crash::conversations::seeded));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --conversations --seed S"
    );
}

#[test]
fn seeded_moments_of_storing() {
    let broken = broken(&try_these(&seeds(STORING_IN_CI), crash::stored::seeded));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --seed S"
    );
}

/// Each job has a scene of its own.
#[test]
fn seeded_damage_is_named_or_mended() {
    thread_local! {
        static SCENE: RefCell<Option<Scene>> = const { RefCell::new(None) };
    }
    let trial = |seed| {
        SCENE.with_borrow_mut(|scene| {
            crash::corruption::seeded(scene.get_or_insert_with(Scene::begin), seed);
        });
    };
    let broken = broken(&try_these(&seeds(DAMAGES_IN_CI), trial));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --corruption --seed S"
    );
}

#[test]
fn seeded_moments_of_conversations_over_adapters() {
    let broken = broken(&try_these(&seeds(CONVERSATIONS_IN_CI), crash::adapters::seeded));
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --conversations --seed S"
    );
}

/// A slow machine found this: the agent began again under its old session id, and its CLI refused
/// it.
#[test]
fn unreported_session_is_resumed() {
    crash::session_nobody_heard_of();
}

/// The campaign found this: a runtime that got no threads hung while it unwound, and held the
/// daemon's lock.
#[test]
fn a_daemon_that_gets_no_threads_ends_and_is_started_again() {
    if let Err(why) = crash::syscalls::available() {
        return skip("a_daemon_that_gets_no_threads_ends_and_is_started_again", &why);
    }
    for nth in 1..=3 {
        let fault = crash::syscalls::Fault::Error("EAGAIN");
        let tried =
            crash::syscalls::inject(Injection { at_shim: false, call: "clone3", nth, fault });
        assert_eq!(tried, Tried::Held, "clone3 is passed {nth} times");
    }
}

/// Power cuts at any step of a recorded dispatch. They need `strace` and the right to trace.
#[test]
fn seeded_power_cuts() {
    if let Err(why) = crash::power::available() {
        return skip("seeded_power_cuts", &why);
    }
    // Odd seeds cut the dispatch that works in a clone.
    let recorded = [false, true].map(crash::power::Recorded::new);
    eprintln!("{} and {} steps to cut after", recorded[0].len(), recorded[1].len());
    let tried = try_seeds(|seed| recorded[usize::from(seed % 2 == 1)].cut(seed));
    let broken = broken(&tried);
    eprintln!("{} power cuts tried, {} violations", tried.len(), broken.len());
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --power --seed S"
    );
}

/// Power cuts in a task list with one worker and with two.
#[test]
fn seeded_power_cuts_of_a_task_list() {
    if let Err(why) = crash::power::available() {
        return skip("seeded_power_cuts_of_a_task_list", &why);
    }
    let recorded = [1, 2].map(crash::power::RecordedTasks::new);
    eprintln!("{} and {} steps to cut after", recorded[0].len(), recorded[1].len());
    let tried = try_seeds(|seed| recorded[usize::from(seed % 2 == 1)].cut(seed));
    let broken = broken(&tried);
    eprintln!("{} power cuts of task lists tried, {} violations", tried.len(), broken.len());
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --power --seed S"
    );
}

/// Power cuts in a spec run with its judge, its remote and its pull request.
#[test]
fn seeded_power_cuts_of_a_spec_run() {
    if let Err(why) = crash::power::available() {
        return skip("seeded_power_cuts_of_a_spec_run", &why);
    }
    let recorded = crash::power::RecordedRun::new();
    eprintln!("{} steps to cut after", recorded.len());
    let tried = try_seeds(|seed| recorded.cut(seed));
    let broken = broken(&tried);
    eprintln!("{} power cuts of spec runs tried, {} violations", tried.len(), broken.len());
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --power --seed S"
    );
}

/// Faults at system calls. They need `strace` and the right to trace.
#[test]
fn seeded_system_calls() {
    if let Err(why) = crash::syscalls::available() {
        return skip("seeded_system_calls", &why);
    }
    let tried = try_seeds(crash::syscalls::seeded);
    let count = |what: Tried| tried.iter().filter(|(_, outcome)| *outcome == Some(what)).count();
    let broken = broken(&tried);
    eprintln!(
        "system calls: {} faults held, {} were not reached, {} broke something",
        count(Tried::Held),
        count(Tried::NotPassed),
        broken.len()
    );
    assert!(
        broken.is_empty(),
        "broken with seeds {broken:?}; repeat one: cargo xtask crash --calls --seed S"
    );
}
