//! The crash campaign: every named point once, and seeded moments. `cargo xtask crash` does more.
//!
//! `MULETEER_CRASH_POINT` picks one point, `MULETEER_CRASH_SEED` one seed, `MULETEER_CRASH_SEEDS` how many.

use muleteer_process::fault::POINTS;
use muleteer_tests::crash;
use std::panic::catch_unwind;

const SEEDS_IN_CI: u64 = 20;

/// The points of the ledger are passed first while the daemon itself starts; later passings hit
/// the dispatch.
fn passings(point: &str) -> &'static [u32] {
    if point.starts_with("ledger.") { &[1, 2, 4] } else { &[1] }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[test]
fn every_named_point() {
    let only = variable("MULETEER_CRASH_POINT");
    let chosen: Vec<_> = POINTS.iter().filter(|point| only.as_deref().is_none_or(|only| only == **point)).collect();
    assert!(!chosen.is_empty(), "no point is named {only:?}; there are {POINTS:?}");
    let mut broken = vec![];
    for point in chosen {
        for nth in passings(point) {
            eprintln!("point {point}:{nth}");
            if catch_unwind(|| crash::at_point(point, *nth)).is_err() {
                broken.push(format!("{point}:{nth}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken at {broken:?}; repeat one: cargo xtask crash --point NAME");
}

/// The daemon's own points once more, with a panic in place of the kill.
#[test]
fn a_panic_at_every_named_point_of_the_daemon() {
    let mut broken = vec![];
    for point in POINTS.iter().filter(|point| !point.starts_with("shim.")) {
        // The first passing of a ledger's point belongs to the start itself.
        let nth = if point.starts_with("ledger.") { 2 } else { 1 };
        eprintln!("panic at {point}:{nth}");
        if catch_unwind(|| crash::panic_at(point, nth)).is_err() {
            broken.push(*point);
        }
    }
    assert!(broken.is_empty(), "broken by a panic at {broken:?}");
}

fn seeds() -> Vec<u64> {
    if let Some(seed) = variable("MULETEER_CRASH_SEED") {
        return vec![seed.parse().expect("a seed is a number")];
    }
    let count = variable("MULETEER_CRASH_SEEDS").map_or(SEEDS_IN_CI, |count| count.parse().expect("a number"));
    let from = variable("MULETEER_CRASH_FROM").map_or(0, |from| from.parse().expect("a number"));
    (from..from + count).collect()
}

#[test]
fn seeded_moments() {
    let broken: Vec<u64> = seeds()
        .into_iter()
        .filter(|seed| catch_unwind(|| crash::seeded(*seed)).is_err())
        .collect();
    assert!(broken.is_empty(), "broken with seeds {broken:?}; repeat one: cargo xtask crash --seed S");
}

#[test]
fn seeded_moments_of_an_agent_that_can_resume() {
    let broken: Vec<u64> = seeds()
        .into_iter()
        .filter(|seed| catch_unwind(|| crash::seeded_resumable(*seed)).is_err())
        .collect();
    assert!(broken.is_empty(), "broken with seeds {broken:?}; repeat one: cargo xtask crash --seed S");
}
