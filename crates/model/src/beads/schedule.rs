//! Orders the beads of a run. Of the unblocked beads, the one that unblocks the most comes first;
//! then the priority and the age decide.
//!
//! The order is updated incrementally, so the cost of closing a bead depends only on its direct
//! dependants.

use crate::beads::graph::Graph;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The data of a bead that the schedule needs.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub id: String,
    pub priority: u8,
    pub created_at: String,
    pub depends_on: Vec<String>,
    pub closed: bool,
    /// Blocked for good, or taken by an agent: not scheduled.
    pub withheld: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    graph: Graph,
    impact: Vec<u64>,
    priority: Vec<u8>,
    age: Vec<Age>,
    /// For each bead, the number of open blockers in the graph.
    waiting: Vec<usize>,
    /// For each bead, the number of open blockers outside the graph.
    outside: Vec<usize>,
    closed: Vec<bool>,
    withheld: Vec<bool>,
    /// Only the beads that could be worked on now. Sorting all beads would be most of the work.
    ready: BTreeSet<Rank>,
}

type Rank = (Reverse<u64>, u8, Age, usize);

/// The creation time of a bead, the oldest first. Equal times compare equal in any spelling. Texts
/// that are no time come first, in alphabetical order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    Said(Box<str>),
    Since(Timestamp),
}

impl Age {
    pub fn of(text: &str) -> Self {
        let zoneless = || {
            text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp())
        };
        text.parse().ok().or_else(zoneless).map_or_else(|| Self::Said(text.into()), Self::Since)
    }
}

impl Schedule {
    /// Creates a schedule. `closed_outside` returns whether an id that is not in `tasks` is closed.
    pub fn new(tasks: &[Task], closed_outside: impl Fn(&str) -> bool) -> Self {
        let graph = Graph::new(
            tasks.iter().map(|task| (task.id.as_str(), task.depends_on.iter().map(String::as_str))),
        );
        let closed: Vec<bool> = tasks.iter().map(|task| task.closed).collect();
        let waiting = (0..tasks.len())
            .map(|at| graph.blockers(at).iter().filter(|on| !closed[**on]).count())
            .collect();
        let mut outside = vec![0; tasks.len()];
        for (id, on) in graph.outside() {
            if !closed_outside(on)
                && let Some(at) = graph.index(id)
            {
                outside[at] += 1;
            }
        }
        let mut schedule = Self {
            impact: graph.impact(),
            priority: tasks.iter().map(|task| task.priority).collect(),
            age: tasks.iter().map(|task| Age::of(&task.created_at)).collect(),
            waiting,
            outside,
            closed,
            withheld: tasks.iter().map(|task| task.withheld).collect(),
            ready: BTreeSet::new(),
            graph,
        };
        schedule.ready = (0..tasks.len())
            .filter(|at| schedule.is_ready(*at))
            .map(|at| schedule.rank(at))
            .collect();
        schedule
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the bead to be worked on next.
    pub fn next(&self) -> Option<&str> {
        self.ready().next()
    }

    /// Returns all beads that could be worked on now, in order.
    pub fn ready(&self) -> impl Iterator<Item = &str> {
        self.ready.iter().map(|rank| self.graph.id(rank.3))
    }

    /// Excludes a bead that is taken or blocked for good, until [`Self::release`].
    pub fn withhold(&mut self, id: &str) {
        if let Some(at) = self.graph.index(id) {
            self.withheld[at] = true;
            self.consider(at);
        }
    }

    pub fn release(&mut self, id: &str) {
        if let Some(at) = self.graph.index(id) {
            self.withheld[at] = false;
            self.consider(at);
        }
    }

    /// Closes a bead and unblocks its dependants.
    pub fn close(&mut self, id: &str) {
        let Some(at) = self.graph.index(id) else { return };
        if std::mem::replace(&mut self.closed[at], true) {
            return;
        }
        self.consider(at);
        for next in self.graph.dependants(at).to_vec() {
            self.waiting[next] -= 1;
            self.consider(next);
        }
    }

    /// Records that a blocker of `id` outside the graph was closed.
    pub fn close_outside(&mut self, id: &str) {
        if let Some(at) = self.graph.index(id) {
            self.outside[at] = self.outside[at].saturating_sub(1);
            self.consider(at);
        }
    }

    /// Returns whether a bead waits for a blocker outside the run.
    pub fn waits_outside(&self, id: &str) -> bool {
        self.graph.index(id).is_some_and(|at| self.outside[at] > 0)
    }

    /// Returns the whole order in which the beads would be worked on, one by one.
    pub fn order(&self) -> Vec<String> {
        let mut rest = self.clone();
        let mut order = Vec::new();
        while let Some(id) = rest.next().map(str::to_string) {
            rest.close(&id);
            order.push(id);
        }
        order
    }

    /// Returns the beads in waves: all that are ready at once, then those that they unblock, and so
    /// on.
    pub fn waves(&self) -> Vec<Vec<String>> {
        let mut rest = self.clone();
        let mut waves = Vec::new();
        loop {
            let wave: Vec<String> = rest.ready().map(str::to_string).collect();
            if wave.is_empty() {
                return waves;
            }
            for id in &wave {
                rest.close(id);
            }
            waves.push(wave);
        }
    }

    /// Returns the most beads that could be worked on at once.
    pub fn widest(&self) -> usize {
        self.waves().iter().map(Vec::len).max().unwrap_or_default()
    }

    fn is_ready(&self, at: usize) -> bool {
        !self.closed[at] && !self.withheld[at] && self.waiting[at] == 0 && self.outside[at] == 0
    }

    fn consider(&mut self, at: usize) {
        let rank = self.rank(at);
        if self.is_ready(at) {
            self.ready.insert(rank);
        } else {
            self.ready.remove(&rank);
        }
    }

    fn rank(&self, at: usize) -> Rank {
        (Reverse(self.impact[at]), self.priority[at], self.age[at].clone(), at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task(id: &str, priority: u8, depends_on: &[&str]) -> Task {
        Task {
            id: id.into(),
            priority,
            created_at: String::new(),
            depends_on: depends_on.iter().map(|on| (*on).to_string()).collect(),
            closed: false,
            withheld: false,
        }
    }

    #[test]
    fn schedule_orders_by_impact_then_priority_then_age() {
        let tasks = [
            task("late", 2, &[]),
            task("urgent", 0, &[]),
            task("base", 4, &[]),
            task("x", 2, &["base"]),
            task("y", 1, &["x"]),
            task("older", 2, &[]),
        ];
        let mut tasks = tasks.to_vec();
        tasks[0].created_at = "2026-02-02".into();
        tasks[5].created_at = "2026-02-01".into();
        let schedule = Schedule::new(&tasks, |_| false);
        assert_eq!(schedule.order(), ["base", "x", "urgent", "y", "older", "late"]);
        assert_eq!(schedule.widest(), 4);
    }

    #[test]
    fn outside_dependency_blocks_until_closed() {
        let mut schedule = Schedule::new(&[task("a", 2, &["elsewhere"])], |_| false);
        assert_eq!((schedule.next(), schedule.waits_outside("a")), (None, true));
        schedule.close_outside("a");
        assert_eq!(schedule.next(), Some("a"));
        assert_eq!(Schedule::new(&[task("a", 2, &["elsewhere"])], |_| true).next(), Some("a"));
    }

    /// The times must not be compared as texts.
    #[test]
    fn oldest_bead_is_first_in_every_time_format() {
        let sorted = [
            "",
            "é",
            "2026-02-11",
            "2026-02-12T10:00:00+05:00",
            "2026-02-12T09:00:00Z",
            "2026-02-12T09:00:00.25Z",
            "2026-02-12T10:00:00.5+01:00",
            "2026-02-12T04:00:01-05:00",
        ];
        let mut tasks: Vec<Task> = sorted
            .iter()
            .rev()
            .map(|time| Task { created_at: (*time).into(), ..task(time, 2, &[]) })
            .collect();
        assert_eq!(Schedule::new(&tasks, |_| false).order(), sorted);
        tasks.reverse();
        assert_eq!(Schedule::new(&tasks, |_| false).order(), sorted);
        // At equal times, the earlier position wins.
        let same =
            ["2026-02-12T11:00:00+01:00", "2026-02-12T10:00:00Z", "2026-02-12T10:00:00.000Z"];
        let tasks: Vec<Task> = same
            .iter()
            .map(|time| Task { created_at: (*time).into(), ..task(time, 2, &[]) })
            .collect();
        assert_eq!(Schedule::new(&tasks, |_| false).order(), same);
    }

    proptest! {
        /// Incremental updates give the same order as a new schedule of the same beads.
        #[test]
        fn incremental_schedule_equals_a_rebuilt_one(
            edges in prop::collection::vec((1usize..20, 0usize..20), 0..40),
            steps in prop::collection::vec((0usize..20, 0u8..3), 0..40),
        ) {
            let mut tasks: Vec<Task> = (0..20).map(|n| task(&n.to_string(), (n % 5) as u8, &[]))
                .collect();
            for (a, b) in edges {
                if b < a {
                    tasks[a].depends_on.push(b.to_string());
                }
            }
            let mut schedule = Schedule::new(&tasks, |_| false);
            for (at, what) in steps {
                match what {
                    0 => { tasks[at].closed = true; schedule.close(&at.to_string()); }
                    1 => { tasks[at].withheld = true; schedule.withhold(&at.to_string()); }
                    _ => { tasks[at].withheld = false; schedule.release(&at.to_string()); }
                }
                let anew = Schedule::new(&tasks, |_| false);
                prop_assert_eq!(schedule.ready().collect::<Vec<_>>(),
                    anew.ready().collect::<Vec<_>>());
            }
        }
    }
}
