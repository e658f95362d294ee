//! Estimates how long the beads of this iteration will still take, from the critical path.
//!
//! Future beads are assumed to last as long as finished ones. The work takes at least as long as
//! its longest chain, and at least as long as all work divided by the number of agents. With greedy
//! scheduling it takes at most the longest chain plus the rest of the work divided by the number of
//! agents (Graham's bound). The low estimate is the larger of the two lower bounds with quick
//! beads; the high one is the upper bound with slow beads. Retries, maintenance and the judge are
//! not included, because nothing predicts them.

use crate::spec_run::event::{Phase, Purpose};
use crate::spec_run::report::history::Chronicle;
use crate::spec_run::state::{Run, Stage};
use jiff::Timestamp;

/// A bead that takes longer than expected is assumed to need this part of its expected time.
const LEFT: f64 = 0.1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Estimate {
    /// There are no measurements: no bead is done, or the run is in another phase.
    Unknown,
    /// No bead is left to work on.
    Nothing,
    /// Milliseconds from now.
    Between { low_ms: u64, high_ms: u64 },
}

/// The remaining work of one bead, and the unfinished beads that it waits for.
#[derive(Debug, Clone, PartialEq)]
pub struct Rest {
    /// How long the current attempt has run; `None` if no agent works on the bead.
    pub since_ms: Option<u64>,
    /// Indices into the same list, all smaller than this bead's own.
    pub after: Vec<usize>,
}

/// Estimates a running run.
pub fn of(chronicle: &Chronicle, now: Timestamp) -> Estimate {
    let run = &chronicle.run;
    if run.phase() != Phase::Implement || !run.is_live() {
        return Estimate::Unknown;
    }
    estimate(&rests(run, now), &chronicle.measured_ms(), run.settings.max_concurrency)
}

/// Returns the beads that can still be worked on: neither blocked, nor behind a blocked bead or a
/// blocker outside the run.
fn rests(run: &Run, now: Timestamp) -> Vec<Rest> {
    let graph = run.schedule.graph();
    let mut place: Vec<Option<usize>> = vec![None; graph.len()];
    let mut hopeless = vec![false; graph.len()];
    let mut rests = vec![];
    for at in graph.topological() {
        let id = graph.id(at);
        let Some(task) = run.beads.get(id) else { continue };
        match task.stage {
            Stage::Done => continue,
            Stage::Blocked => hopeless[at] = true,
            Stage::Open | Stage::Taken => {
                hopeless[at] =
                    !task.outside.is_empty() || graph.blockers(at).iter().any(|on| hopeless[*on]);
            }
        }
        if hopeless[at] {
            continue;
        }
        let job = run.jobs.values().find(|job| {
            job.start.purpose == Purpose::Implement && job.start.bead_id.as_deref() == Some(id)
        });
        let since = job.map(|job| {
            (now.as_millisecond() - job.started_at.as_millisecond()).max(0).unsigned_abs()
        });
        place[at] = Some(rests.len());
        rests.push(Rest {
            since_ms: since,
            after: graph.blockers(at).iter().filter_map(|on| place[*on]).collect(),
        });
    }
    rests
}

/// Estimates from the remaining work, the measured times and the number of agents.
pub fn estimate(rests: &[Rest], measured_ms: &[u64], agents: u32) -> Estimate {
    if rests.is_empty() {
        return Estimate::Nothing;
    }
    let mut measured = measured_ms.to_vec();
    measured.sort_unstable();
    let [.., slowest] = measured.as_slice() else { return Estimate::Unknown };
    // The extremes of few measurements; the quartiles of many.
    let quick = measured[measured.len() / 4];
    let slow = if measured.len() < 4 { *slowest } else { measured[measured.len() * 3 / 4] };
    let agents = f64::from(agents.max(1));
    let (path, work) = length(rests, quick);
    let low = path.max(work / agents);
    let (path, work) = length(rests, slow);
    let high = path + (work - path) / agents;
    Estimate::Between { low_ms: millis(low), high_ms: millis(high.max(low)) }
}

/// Returns the longest chain and the total work, if a bead takes `each`.
#[allow(clippy::cast_precision_loss)] // Times of beads fit into an `f64`.
fn length(rests: &[Rest], each: u64) -> (f64, f64) {
    let each = each as f64;
    let mut ends: Vec<f64> = Vec::with_capacity(rests.len());
    let mut work = 0.0;
    for rest in rests {
        let left = rest.since_ms.map_or(each, |since| (each - since as f64).max(each * LEFT));
        let begins = rest.after.iter().filter_map(|on| ends.get(*on)).copied().fold(0.0, f64::max);
        ends.push(begins + left);
        work += left;
    }
    (ends.into_iter().fold(0.0, f64::max), work)
}

// Not negative, and the conversion saturates.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn millis(time: f64) -> u64 {
    time.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn open(after: &[usize]) -> Rest {
        Rest { since_ms: None, after: after.to_vec() }
    }

    fn at_work(since: u64) -> Rest {
        Rest { since_ms: Some(since), after: vec![] }
    }

    fn between(low_ms: u64, high_ms: u64) -> Estimate {
        Estimate::Between { low_ms, high_ms }
    }

    #[test]
    fn estimate_without_data_is_empty() {
        assert_eq!(estimate(&[open(&[])], &[], 4), Estimate::Unknown);
        assert_eq!(estimate(&[], &[10], 4), Estimate::Nothing);
        assert_eq!(estimate(&[], &[], 4), Estimate::Nothing);
    }

    #[test]
    fn estimate_of_chains_and_parallel_beads() {
        let chain = [open(&[]), open(&[0]), open(&[1])];
        assert_eq!(estimate(&chain, &[100], 4), between(300, 300), "nobody can help with a chain");
        let flat: Vec<Rest> = (0..8).map(|_| open(&[])).collect();
        // Four agents share eight beads in two rounds. In the worst case the last bead begins when
        // all others are done.
        assert_eq!(estimate(&flat, &[100], 4), between(200, 275));
        assert_eq!(estimate(&flat, &[100], 1), between(800, 800));
        assert_eq!(estimate(&flat, &[100], 100), between(100, 107), "no more than there are");
        assert_eq!(estimate(&flat, &[100], 0), between(800, 800), "no agents is one");
    }

    #[test]
    fn quick_and_slow_beads_make_a_range() {
        let one = [open(&[])];
        assert_eq!(estimate(&one, &[300, 100], 1), between(100, 300));
        let measured: Vec<u64> = (1..=100).map(|n| n * 10).collect();
        assert_eq!(estimate(&one, &measured, 1), between(260, 760), "a stray one does not count");
    }

    #[test]
    fn running_beads_count_in_part() {
        assert_eq!(estimate(&[at_work(40)], &[100], 2), between(60, 60));
        assert_eq!(estimate(&[at_work(5000)], &[100], 2), between(10, 10));
        assert_eq!(estimate(&[at_work(40), open(&[0])], &[100], 2), between(160, 160));
    }

    proptest! {
        /// Any greedy schedule ends within the estimate.
        #[test]
        fn estimate_bounds_the_work_on_ready_beads(
            edges in prop::collection::vec((0usize..20, 0usize..20), 0..40),
            agents in 1u32..6,
        ) {
            let mut rests: Vec<Rest> = (0..20).map(|_| open(&[])).collect();
            for (a, b) in edges {
                if b < a && !rests[a].after.contains(&b) {
                    rests[a].after.push(b);
                }
            }
            let each = 100u64;
            let mut ends: Vec<Option<u64>> = vec![None; 20];
            let mut now = 0;
            loop {
                let done = |on: &usize| ends[*on].is_some_and(|end| end <= now);
                let busy = ends.iter().flatten().filter(|end| **end > now).count();
                let free = (agents as usize).saturating_sub(busy);
                let ready: Vec<usize> =
                    (0..20).rev().filter(|at| ends[*at].is_none()
                        && rests[*at].after.iter().all(done)).take(free).collect();
                for at in ready {
                    ends[at] = Some(now + each);
                }
                match ends.iter().flatten().filter(|end| **end > now).min() {
                    Some(next) => now = *next,
                    None => break,
                }
            }
            let Estimate::Between { low_ms, high_ms } =
                estimate(&rests, &[each], agents) else { panic!("a range") };
            prop_assert!(low_ms <= now && now <= high_ms + 1, "{low_ms} ≤ {now} ≤ {high_ms}");
        }
    }
}
