//! Tables and a simulator: daemons that are killed, clocks that jump, configurations that change.

use super::*;
use crate::conversation::event::{Author, AuthorKind, MessageAccepted, State, ThreadOpened};
use crate::conversation::schedule::event::ScheduleDone;
use crate::conversation::schedule::fold::Outcome;
use crate::event::{Entry, Record, VERSION};
use std::collections::BTreeSet;

fn at(text: &str) -> Timestamp {
    text.parse().expect(text)
}

fn schedule(cron: &str) -> Schedule {
    Schedule {
        cron: cron.into(),
        time_zone: Some("UTC".into()),
        role: "reporter".into(),
        prompt: "Report.".into(),
        project: Some("/p".into()),
        thread: None,
        backend: None,
        enabled: true,
        on_busy: OnBusy::Skip,
    }
}

/// The durable events and their fold.
#[derive(Default)]
struct World {
    state: Conversations,
    seq: u64,
}

impl World {
    fn add(&mut self, event: Event, now: Timestamp) {
        self.seq += 1;
        let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
        self.state.apply(&Record { v: VERSION, seq: self.seq, ts: now, entry });
    }

    /// One pass of the daemon. Returns the moments that became due.
    fn pass(&mut self, all: &BTreeMap<String, Schedule>, now: &str) -> Vec<String> {
        let events = next(all, &self.state, at(now));
        let due = events.iter().filter_map(|event| match event {
            Event::ScheduleDue(due) if due.skipped.is_none() => Some(due.due.to_string()),
            _ => None,
        });
        let due = due.collect();
        for event in events {
            self.add(event, at(now));
        }
        due
    }

    /// Ends the pending starts.
    fn finish(&mut self, now: &str) {
        let pending: Vec<_> = self.state.schedules().pending().cloned().collect();
        for due in pending {
            let done = ScheduleDone {
                schedule: due.schedule,
                message: Some(format!("m{}", self.seq)),
                thread: Some("thrd2345".into()),
                key: due.key,
                reason: String::new(),
            };
            self.add(Event::ScheduleDone(Box::new(done)), at(now));
        }
    }
}

fn one(schedule: Schedule) -> BTreeMap<String, Schedule> {
    BTreeMap::from([("daily".to_string(), schedule)])
}

#[test]
fn new_schedule_is_not_due_for_the_past() {
    let (mut world, all) = (World::default(), one(schedule("0 9 * * *")));
    assert_eq!(world.pass(&all, "2026-03-01T10:00:00Z"), [""; 0]);
    assert_eq!(world.pass(&all, "2026-03-02T08:59:59Z"), [""; 0]);
    assert_eq!(world.pass(&all, "2026-03-02T09:00:00Z"), ["2026-03-02T09:00:00Z"]);
    assert_eq!(world.pass(&all, "2026-03-02T09:00:00Z"), [""; 0], "it is under way");
    world.finish("2026-03-02T09:00:01Z");
    assert_eq!(world.pass(&all, "2026-03-02T09:00:30Z"), [""; 0], "it was started");
}

#[test]
fn pauses_between_tries_grow_to_a_bound() {
    let pauses = [1, 2, 3, 4, 8, 9, 31, 32, 33, 34, u32::MAX].map(|it| pause(it).as_secs());
    assert_eq!(pauses, [2, 4, 8, 16, 256, 300, 300, 300, 300, 300, 300]);
    assert!((1..100).all(|failures| pause(failures) <= pause(failures + 1)));
}

#[test]
fn edited_place_of_a_schedule_is_another_thread() {
    use crate::conversation::schedule::thread_id;
    let all = [
        thread_id("a", "r", "/p", None),
        thread_id("a", "r", "/p", Some("codex")),
        thread_id("a", "r", "/p", Some("claude-code")),
        thread_id("a", "s", "/p", None),
        thread_id("a", "r", "/q", None),
        thread_id("b", "r", "/p", None),
    ];
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");
    assert_eq!(thread_id("a", "r", "/p", Some("codex")), all[1]);
}

#[test]
fn moments_that_were_missed_are_started_once() {
    let (mut world, all) = (World::default(), one(schedule("0 9 * * *")));
    world.pass(&all, "2026-03-01T10:00:00Z");
    assert_eq!(world.pass(&all, "2026-03-08T12:00:00Z"), ["2026-03-08T09:00:00Z"]);
    world.finish("2026-03-08T12:00:01Z");
    assert_eq!(world.pass(&all, "2026-03-08T12:00:02Z"), [""; 0]);
    assert_eq!(
        wake(&all, &world.state, at("2026-03-08T12:00:02Z")),
        Some(at("2026-03-09T09:00:00Z"))
    );
}

#[test]
fn edited_disabled_and_removed_schedules_are_not_due_for_the_past() {
    let (mut world, all) = (World::default(), one(schedule("0 9 * * *")));
    world.pass(&all, "2026-03-01T10:00:00Z");
    assert!(world.state.schedules().is_followed());
    // Eight o'clock is over when the configuration is edited at ten.
    let edited = one(schedule("0 8 * * *"));
    assert_eq!(world.pass(&edited, "2026-03-02T08:30:00Z"), [""; 0]);
    assert_eq!(world.pass(&edited, "2026-03-03T08:00:00Z"), ["2026-03-03T08:00:00Z"]);
    world.finish("2026-03-03T08:00:01Z");
    let disabled = one(Schedule { enabled: false, ..schedule("0 8 * * *") });
    assert_eq!(world.pass(&disabled, "2026-03-03T09:00:00Z"), [""; 0]);
    assert!(!world.state.schedules().is_followed());
    assert_eq!(world.pass(&edited, "2026-03-05T09:00:00Z"), [""; 0]);
    assert_eq!(world.pass(&edited, "2026-03-05T09:00:01Z"), [""; 0]);
    assert_eq!(world.pass(&BTreeMap::new(), "2026-03-05T10:00:00Z"), [""; 0]);
    assert_eq!(world.state.schedules().iter().count(), 0, "it is forgotten");
    assert_eq!(next(&BTreeMap::new(), &world.state, at("2026-03-05T10:00:00Z")), []);
}

#[test]
fn removed_schedule_ends_its_start_first() {
    let (mut world, all) = (World::default(), one(schedule("0 9 * * *")));
    world.pass(&all, "2026-03-01T10:00:00Z");
    assert_eq!(world.pass(&all, "2026-03-02T09:00:00Z").len(), 1);
    world.pass(&BTreeMap::new(), "2026-03-02T09:00:01Z");
    assert_eq!(next(&BTreeMap::new(), &world.state, at("2026-03-02T09:00:02Z")), []);
    assert_eq!(world.state.schedules().pending().count(), 1);
    assert!(world.state.schedules().is_followed(), "the daemon stays for it");
    world.finish("2026-03-02T09:00:03Z");
    assert_eq!(world.state.schedules().iter().count(), 0);
}

#[test]
fn clock_that_is_set_back_starts_no_moment_twice_and_ends_no_schedule() {
    let (mut world, all) = (World::default(), one(schedule("*/10 * * * *")));
    world.pass(&all, "2026-03-01T10:01:00Z");
    assert_eq!(world.pass(&all, "2026-03-01T10:10:00Z").len(), 1);
    world.finish("2026-03-01T10:10:01Z");
    // A small step: the clock catches up.
    assert_eq!(world.pass(&all, "2026-03-01T10:05:00Z"), [""; 0]);
    assert_eq!(world.pass(&all, "2026-03-01T10:10:00Z"), [""; 0]);
    assert_eq!(world.pass(&all, "2026-03-01T10:20:00Z").len(), 1);
    world.finish("2026-03-01T10:20:01Z");
    // The clock was in the wrong year for a moment.
    assert_eq!(world.pass(&all, "2040-01-01T00:00:00Z"), ["2040-01-01T00:00:00Z"]);
    world.finish("2040-01-01T00:00:01Z");
    assert_eq!(world.pass(&all, "2026-03-01T10:21:00Z"), [""; 0]);
    assert_eq!(world.pass(&all, "2026-03-01T10:30:00Z"), ["2026-03-01T10:30:00Z"]);
}

#[test]
fn busy_schedule_is_skipped_or_queued() {
    let (mut world, all) = (World::default(), one(schedule("0 9 * * *")));
    let now = at("2026-03-01T10:00:00Z");
    world.pass(&all, "2026-03-01T10:00:00Z");
    let opened = ThreadOpened {
        thread: "thrd2345".into(),
        role: "reporter".into(),
        project: "/p".into(),
        title: None,
        adapter: "cli".into(),
        external: None,
        by: "schedule/daily".into(),
        bang: None,
    };
    world.add(Event::ThreadOpened(Box::new(opened)), now);
    assert_eq!(world.pass(&all, "2026-03-02T09:00:00Z").len(), 1);
    let accepted = MessageAccepted {
        thread: "thrd2345".into(),
        message: "msga2345".into(),
        author: Author { kind: AuthorKind::Operator, id: "operator".into(), name: "x".into() },
        text: "Report.".into(),
        key: key("daily", at("2026-03-02T09:00:00Z")),
        files: vec![],
        shown: false,
        command: None,
    };
    world.add(Event::MessageAccepted(Box::new(accepted)), now);
    world.finish("2026-03-02T09:00:01Z");
    for day in ["2026-03-03T09:00:00Z", "2026-03-04T09:00:00Z"] {
        assert_eq!(world.pass(&all, day), [""; 0]);
        let last = world.state.schedules().get("daily").and_then(|it| it.last.clone());
        let outcome = last.map(|last| (last.due, last.outcome));
        assert!(
            matches!(&outcome, Some((due, Outcome::Skipped(why)))
                if *due == at(day) && why.contains("msga2345")),
            "{outcome:?}"
        );
    }
    let queued = one(Schedule { on_busy: OnBusy::Queue, ..schedule("0 9 * * *") });
    assert_eq!(world.pass(&queued, "2026-03-05T09:00:00Z").len(), 1);
    world.finish("2026-03-05T09:00:01Z");
    world.add(
        Event::MessageState {
            thread: "thrd2345".into(),
            message: "msga2345".into(),
            state: State::Answered,
            reason: String::new(),
            dispatch: None,
        },
        now,
    );
    assert_eq!(world.pass(&all, "2026-03-06T09:00:00Z").len(), 1);
}

/// A small generator of pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }
}

/// Daemons that are killed between any two steps, pauses of any length and small steps of the clock
/// back: each moment is started at most once, in order, and after each pass nothing is due that
/// is older than the pass.
#[test]
fn simulated_daemons_start_each_moment_at_most_once() {
    let seeds = std::env::var("MULETEER_SIM_SEEDS").ok().and_then(|it| it.parse().ok());
    for seed in 0..seeds.unwrap_or(200u64) {
        let mut random = Random(seed);
        let crons = ["*/7 * * * *", "0 9 * * 1-5", "30 2 * * *", "15,45 */3 * * *"];
        let zones = ["Europe/Berlin", "America/New_York", "UTC"];
        let all: BTreeMap<_, _> = (0..3)
            .map(|number| {
                let cron = crons[random.below(4) as usize];
                let zone = Some(zones[random.below(3) as usize].into());
                (format!("s{number}"), Schedule { time_zone: zone, ..schedule(cron) })
            })
            .collect();
        let (mut world, mut seen) = (World::default(), BTreeSet::new());
        let mut now = at("2026-10-20T00:00:00Z");
        let mut newest = now.as_second();
        for _ in 0..300 {
            let step = match random.below(10) {
                0 => -i64::try_from(random.below(1_800)).expect("small"),
                1 => i64::try_from(random.below(200_000)).expect("small"),
                _ => i64::try_from(random.below(600)).expect("small"),
            };
            newest = newest.max(now.as_second());
            // All steps back together stay below the limit of a clock that catches up.
            let second = (now.as_second() + step).max(newest - 3_000);
            now = Timestamp::from_second(second).expect("a time");
            let events = next(&all, &world.state, now);
            // A kill in the middle of the batch: what follows is decided again.
            let durable = match random.below(3) {
                0 => random.below(events.len() as u64 + 1) as usize,
                _ => events.len(),
            };
            let is_whole = durable == events.len();
            for event in events.into_iter().take(durable) {
                if let Event::ScheduleDue(due) = &event {
                    assert!(due.due <= now, "seed {seed}: {due:?} is early");
                    assert!(seen.insert(due.key.clone()), "seed {seed}: {due:?} again");
                }
                world.add(event, now);
            }
            if is_whole {
                assert_eq!(next(&all, &world.state, now), [], "seed {seed}");
                let next = wake(&all, &world.state, now).expect("a due moment");
                assert!(next > now, "seed {seed}: it would spin");
            }
            if random.below(3) > 0 {
                world.finish(&now.to_string());
            }
        }
        assert!(!seen.is_empty(), "seed {seed}: nothing was due");
    }
}
