#![allow(clippy::unwrap_used)]

use super::archive::{LEAST, Part, due};
use super::*;
use crate::dispatch::tests::created;
use crate::event::{Entry, FinalState, PromptKind, Restored, VERSION};
use jiff::Timestamp;
use proptest::prelude::*;

pub(super) fn id(number: usize) -> DispatchId {
    DispatchId::try_from(format!("id{number:06}")).unwrap()
}

/// A log and its fold.
#[derive(Default)]
pub(super) struct Log {
    pub records: Vec<Record>,
    pub fleet: Fleet,
}

impl Log {
    pub fn add(&mut self, of: Option<usize>, event: Event) -> u64 {
        let seq = self.fleet.seq + 1;
        let entry =
            Entry { id: String::new(), dispatch_id: of.map(id), at: None, more: false, event };
        let record = Record { v: VERSION, seq, ts: Timestamp::UNIX_EPOCH, entry };
        self.fold(&record);
        seq
    }

    pub fn fold(&mut self, record: &Record) {
        if let Event::DispatchesRestored(restored) = &record.entry.event {
            self.fleet.restore(self.part(restored));
        }
        self.fleet.apply(record);
        self.records.push(record.clone());
    }

    fn part(&self, restored: &Restored) -> Part {
        let mut part = Part::new(restored);
        let range = restored.first_seq..=restored.last_seq;
        let records = self.records.iter().filter(|record| range.contains(&record.seq));
        records.for_each(|record| part.apply(record));
        part.check().unwrap();
        part
    }

    pub fn create(&mut self, number: usize, parent: Option<usize>) {
        let created = Created { parent: parent.map(id), ..created() };
        self.add(Some(number), Event::DispatchCreated(Box::new(created)));
    }

    pub fn end(&mut self, number: usize) {
        let state = FinalState::Success;
        let reason = String::new();
        self.add(Some(number), Event::DispatchFinished { state, reason, result: None });
    }

    pub fn spend(&mut self, number: usize) {
        let used = Event::UsageRecorded {
            model: "m".into(),
            input: 1,
            output: 1,
            cache_read: 0,
            cache_write: 0,
            cost_usd: 0.5,
            cumulative: false,
            total_usd: None,
        };
        self.add(Some(number), used);
    }

    fn say(&mut self, number: usize) {
        let key = format!("k{}", self.fleet.seq);
        let by = "operator".into();
        let event = Event::PromptQueued { key, kind: PromptKind::Send, by, trace: None };
        self.add(Some(number), event);
    }

    pub fn boot(&mut self, boot: usize) {
        let event = Event::DaemonStarted {
            pid: 1,
            generation: 1,
            version: String::new(),
            boot_id: format!("boot {boot}"),
            settings: None,
        };
        self.add(None, event);
    }

    /// Archives the family of a dispatch, as if the decision was made now.
    pub fn archive(&mut self, numbers: &[usize]) {
        let one = |number: &usize| Archived {
            id: id(*number),
            last_seq: self.fleet.get(&id(*number)).map_or(0, |dispatch| dispatch.last_seq),
        };
        let families = vec![numbers.iter().map(one).collect()];
        self.add(None, Event::DispatchesArchived { families });
    }

    fn restore(&mut self, numbers: &[usize]) {
        let ids: Vec<DispatchId> = numbers.iter().map(|number| id(*number)).collect();
        let ours =
            |record: &&Record| record.entry.dispatch_id.as_ref().is_some_and(|of| ids.contains(of));
        let first_seq = self.records.iter().find(ours).unwrap().seq;
        let last_seq = self.records.iter().rfind(ours).unwrap().seq;
        let boots = self.records.iter().filter(|record| record.seq < first_seq);
        let boot_id = boots
            .rev()
            .find_map(|record| match &record.entry.event {
                Event::DaemonStarted { boot_id, .. } => Some(boot_id.clone()),
                _ => None,
            })
            .unwrap_or_default();
        let restored = Restored { ids, first_seq, last_seq, boot_id };
        self.add(None, Event::DispatchesRestored(restored));
    }

    fn names(&self) -> String {
        self.fleet.iter().map(|dispatch| dispatch.id.as_str()[7..].to_string()).collect()
    }
}

#[test]
fn archived_dispatch_leaves_the_fleet_and_returns_unchanged() {
    let mut log = Log::default();
    log.boot(1);
    log.create(1, None);
    log.create(2, Some(1));
    log.create(3, None);
    log.spend(2);
    log.boot(2);
    [1, 2, 3].into_iter().for_each(|number| log.end(number));
    let before = log.fleet.clone();
    log.archive(&[1, 2]);
    assert_eq!((log.names(), log.fleet.archived(), log.fleet.finished()), ("3".into(), 2, 1));
    assert_eq!(log.fleet.archived_until(), before.get(&id(2)).unwrap().last_seq);
    log.restore(&[1, 2]);
    assert_eq!((log.names(), log.fleet.archived()), ("123".into(), 0), "at their old places");
    for number in [1, 2] {
        assert_eq!(log.fleet.get(&id(number)), before.get(&id(number)));
        assert_eq!(log.fleet.family_usd(&id(number)), 0.5);
    }
    assert!(log.fleet.get(&id(1)).unwrap().files.unsynced, "a reboot happened while it worked");
    log.say(2);
    assert_eq!(log.fleet.unfinished().count(), 1);
}

#[test]
fn family_that_changed_since_the_decision_stays() {
    let ended = |log: &mut Log| {
        log.create(1, None);
        log.create(2, Some(1));
        log.end(1);
        log.end(2);
    };
    let decision = |log: &Log| -> Vec<Archived> {
        let one = |it: &Arc<Dispatch>| Archived { id: it.id.clone(), last_seq: it.last_seq };
        log.fleet.iter().map(one).collect()
    };
    for (what, change) in [
        ("a message", (|log: &mut Log| log.say(2)) as fn(&mut Log)),
        ("a later event", |log: &mut Log| log.spend(1)),
        ("a child", |log: &mut Log| log.create(3, Some(2))),
    ] {
        let mut log = Log::default();
        ended(&mut log);
        let families = vec![decision(&log)];
        change(&mut log);
        log.add(None, Event::DispatchesArchived { families });
        assert_eq!(log.fleet.archived(), 0, "{what}");
        assert!(log.fleet.get(&id(1)).is_some(), "{what}");
    }
}

#[test]
fn newest_dispatches_and_unfinished_families_are_not_due() {
    let mut log = Log::default();
    let all = 4 * LEAST;
    for number in 0..all {
        // The second is a child of the first, the fourth one of the third, and so on.
        log.create(number, number.checked_sub(1).filter(|parent| parent % 2 == 0));
    }
    (0..all).filter(|number| *number != 5).for_each(|number| log.end(number));
    let due_ids = |log: &Log, keep: usize, held: usize| -> Vec<String> {
        let families = due(&log.fleet, keep, |dispatch| dispatch.id == id(held));
        families.into_iter().flatten().map(|one| one.id.to_string()).collect()
    };
    let wanted: Vec<String> = (0..all - LEAST)
        .filter(|number| ![4, 5, 8, 9].contains(number))
        .map(|number| id(number).to_string())
        .collect();
    assert_eq!(due_ids(&log, 0, 8), wanted, "one is unfinished, and one is held");
    assert!(due_ids(&log, all, 8).is_empty());
    assert!(due_ids(&log, all - 2, 8).is_empty(), "too few for an event");
}

#[test]
fn dispatch_whose_events_are_gone_is_not_restored() {
    let mut log = Log::default();
    log.create(1, None);
    log.end(1);
    let restored = Restored { ids: vec![id(1)], first_seq: 2, last_seq: 2, boot_id: String::new() };
    let mut part = Part::new(&restored);
    part.apply(&log.records[1]);
    assert_eq!(part.check().unwrap_err().0, id(1));
}

#[derive(Debug, Clone)]
enum Step {
    Create(Option<usize>),
    Say(usize),
    Spend(usize),
    End(usize),
    Boot(usize),
    Archive(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..6_usize;
    let step = prop_oneof![
        prop::option::of(number.clone()).prop_map(Step::Create),
        number.clone().prop_map(Step::Say),
        number.clone().prop_map(Step::Spend),
        number.clone().prop_map(Step::End),
        (0..3_usize).prop_map(Step::Boot),
        number.prop_map(Step::Archive),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Whatever happens in between, a fleet that archives and restores has the same dispatches as
    /// one that keeps all.
    #[test]
    fn archiving_changes_no_dispatch(steps in steps()) {
        let mut log = Log::default();
        let mut made = 0;
        let mut archived: Vec<Vec<usize>> = vec![];
        for step in steps {
            let is_live = |log: &Log, number: usize| log.fleet.get(&id(number)).is_some();
            match step {
                Step::Create(parent) => {
                    // An agent that has ended dispatches nobody.
                    let parent = parent.filter(|parent| {
                        log.fleet.get(&id(*parent)).is_some_and(|it| !it.is_finished())
                    });
                    log.create(made, parent);
                    made += 1;
                }
                Step::Boot(boot) => log.boot(boot),
                Step::Spend(number) if number < made => log.spend(number),
                Step::End(number) if is_live(&log, number) => log.end(number),
                Step::Say(number) if number < made => {
                    if let Some(at) = archived.iter().position(|family| family.contains(&number)) {
                        let family = archived.swap_remove(at);
                        log.restore(&family);
                    }
                    log.say(number);
                }
                Step::Archive(number) if is_live(&log, number) => {
                    let root = |number: usize| {
                        let dispatch = log.fleet.get(&id(number))?;
                        Some(archive::ancestor(&log.fleet, dispatch).id.clone())
                    };
                    let family: Vec<usize> =
                        (0..made).filter(|other| root(*other) == root(number)).collect();
                    log.archive(&family);
                    if !is_live(&log, number) {
                        archived.push(family);
                    }
                }
                _ => {}
            }
        }
        let mut whole = Fleet::with_archived();
        log.records.iter().for_each(|record| whole.apply(record));
        prop_assert_eq!(whole.archived(), 0);
        for family in std::mem::take(&mut archived) {
            log.restore(&family);
        }
        let states = |fleet: &Fleet| -> Vec<Dispatch> {
            fleet.iter().map(|dispatch| (**dispatch).clone()).collect()
        };
        prop_assert_eq!(states(&log.fleet), states(&whole));
        let ids = |fleet: &Fleet| fleet.unfinished().map(|it| it.id.clone()).collect::<Vec<_>>();
        prop_assert_eq!(ids(&log.fleet), ids(&whole));
        for dispatch in whole.iter() {
            let both = [&log.fleet, &whole].map(|fleet| fleet.family_usd(&dispatch.id));
            prop_assert!((both[0] - both[1]).abs() < 1e-9);
        }
    }
}
