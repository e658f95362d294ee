//! The removal of the oldest events: which of them a fold still needs.
//!
//! ```text
//!   fold(all events) ─▶ EventsRemoved ─▶ the same fleet as fold(needed events) ─▶ EventsRemoved
//! ```
//!
//! A dispatch whose events go must be archived. The event has the few facts that would else follow
//! from removed events.

use crate::conversation_events;
use crate::dispatch::fleet::Fleet;
use crate::event::id::DispatchId;
use crate::event::{Created, Event, EventsRemoved, Record};
use crate::{dispatch_events, spec_run_events, task_list_events};
use jiff::Timestamp;
use std::collections::BTreeSet;

/// The longest list of dispatches whose events stay: the line of the event has a limit.
pub const MOST_KEPT: usize = 100_000;

/// The removal that is requested.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The sequence number of the last event to remove.
    pub through: u64,
    /// All of them are from before this time.
    pub before: Timestamp,
    /// Archived dispatches from the time before whose events must stay.
    pub needed: BTreeSet<DispatchId>,
    /// The number of archived dispatches that are left.
    pub archived: u64,
    pub by: String,
}

/// Returns the event of a removal; `None` if too many dispatches would have to stay.
pub fn event(fleet: &Fleet, asked: Asked) -> Option<EventsRemoved> {
    let in_fleet = fleet.iter().take_while(|dispatch| dispatch.created_seq <= asked.through);
    let kept: BTreeSet<DispatchId> =
        in_fleet.map(|dispatch| dispatch.id.clone()).chain(asked.needed).collect();
    (kept.len() <= MOST_KEPT).then(|| EventsRemoved {
        through: asked.through,
        before: asked.before,
        kept: kept.into_iter().collect(),
        archived: asked.archived,
        purses: fleet.purses.iter().map(|(of, usd)| (of.clone(), *usd)).collect(),
        by: asked.by,
    })
}

/// Whether something follows yet in a thread from the events of its dispatches: a post that the
/// adapter has not acknowledged, or an answer that is not recorded. They are in no other event.
pub fn is_owed_by_thread(fleet: &Fleet, created: &Created) -> bool {
    let thread = created.thread().and_then(|id| fleet.conversations.get(id));
    thread.is_some_and(|thread| thread.is_busy() || !thread.outbox.is_empty())
}

/// Decides which of the removed events stay.
#[derive(Debug)]
pub struct Needed<'a>(BTreeSet<&'a DispatchId>);

impl<'a> Needed<'a> {
    pub fn new(removed: &'a EventsRemoved) -> Self {
        Self(removed.kept.iter().collect())
    }

    /// Whether a fold still needs a record: it is about a dispatch that stays, a thread or a task
    /// list, it changes a setting, or it begins a boot.
    pub fn has(&self, record: &Record) -> bool {
        match &record.entry.event {
            Event::DaemonStarted { .. } | Event::SettingChanged(_) => true,
            Event::DispatchesArchived { families } => {
                families.iter().flatten().any(|one| self.0.contains(&one.id))
            }
            Event::DispatchesRestored(restored) => {
                restored.ids.iter().any(|id| self.0.contains(id))
            }
            Event::DaemonStopping { .. }
            | Event::LogRecovered { .. }
            | Event::ActorRestarted { .. }
            | Event::ActorEscalated { .. }
            | Event::Fault { .. }
            | Event::EventsRemoved(_) => false,
            conversation_events!() | task_list_events!() | spec_run_events!() => true,
            dispatch_events!() | Event::Unknown => {
                record.entry.dispatch_id.as_ref().is_some_and(|id| self.0.contains(id))
            }
        }
    }
}

impl Fleet {
    /// Forgets what followed from removed events only.
    pub(super) fn forget(&mut self, removed: &EventsRemoved) {
        let kept: BTreeSet<&DispatchId> = removed.kept.iter().collect();
        let gone: Vec<(u64, DispatchId)> = self
            .iter()
            .take_while(|it| it.created_seq <= removed.through)
            .filter(|it| it.is_finished() && !kept.contains(&it.id))
            .map(|it| (it.created_seq, it.id.clone()))
            .collect();
        for (seq, id) in gone {
            self.order.remove_mut(&seq);
            self.dispatches.remove_mut(&id);
            self.families.remove_mut(&id);
        }
        self.questions.forget_removed(removed.through, self.seq, |id| kept.contains(id));
        if !self.keeps_archived {
            self.archived = removed.archived;
        }
        // A dispatch that is gone may have had a later event. Nobody looks for it in the database,
        // so that a fold that has not seen it may have the lower number.
        self.archived_until = self.archived_until.max(removed.through);
        self.purses = removed.purses.iter().map(|(of, usd)| (of.clone(), *usd)).collect();
        self.pressures.retain(|_, pressure| pressure.until >= removed.before);
        self.removed_through = removed.through;
    }

    /// Returns the sequence number of the last event that was removed; 0 if none was. The files may
    /// still have it, if a daemon was killed meanwhile.
    pub fn removed_through(&self) -> u64 {
        self.removed_through
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::agent::ask::Ask;
    use crate::conversation::adapter::outbox::{Outcome, acknowledged, sent};
    use crate::conversation::event::ThreadOpened;
    use crate::dispatch::fleet::archive_tests::{Log, id};
    use crate::dispatch::tests::created;
    use proptest::prelude::*;

    /// Folds only the records that stay, as a start without a snapshot does.
    fn fold_again(log: &Log, removed: &EventsRemoved) -> Fleet {
        let mut again = Log::default();
        let needed = Needed::new(removed);
        for record in &log.records {
            if record.seq > removed.through || needed.has(record) {
                again.fold(record);
            }
        }
        again.fleet
    }

    fn remove(log: &mut Log, through: u64, archived: u64) -> EventsRemoved {
        let asked = Asked {
            through,
            before: Timestamp::UNIX_EPOCH,
            needed: BTreeSet::new(),
            archived,
            by: "operator".into(),
        };
        let event = event(&log.fleet, asked).unwrap();
        log.add(None, Event::EventsRemoved(Box::new(event.clone())));
        event
    }

    fn text(fleet: &Fleet) -> serde_json::Value {
        serde_json::to_value(fleet).unwrap()
    }

    const THREAD: &str = "thrdabcd";

    fn open_thread(log: &mut Log, external: Option<&str>) {
        let opened = ThreadOpened {
            thread: THREAD.into(),
            role: "developer".into(),
            project: "/p".into(),
            title: None,
            adapter: if external.is_some() { "demo" } else { "cli" }.into(),
            external: external.map(String::from),
            by: "operator".into(),
            bang: None,
        };
        log.add(None, Event::ThreadOpened(Box::new(opened)));
    }

    fn create_in_thread(log: &mut Log, number: usize) {
        let by = format!("{}{THREAD}", crate::conversation::thread::limits::BY);
        let created = Created { by, multi_turn: true, ..created() };
        log.add(Some(number), Event::DispatchCreated(Box::new(created)));
    }

    fn request(log: &mut Log, number: usize) {
        let request_id = format!("r{}", log.fleet.seq);
        let input = serde_json::json!({ "command": format!("make {request_id}") });
        let ask = Box::new(Ask::tool("Bash", input));
        let asked =
            Event::PermissionRequested { request_id, answered: false, question: false, ask };
        log.add(Some(number), asked);
    }

    fn close(log: &mut Log, number: usize) {
        let dispatch = log.fleet.get(&id(number)).cloned();
        let open = dispatch.and_then(|it| it.asks.all().next().map(|one| one.id.clone()));
        if let Some(request_id) = open {
            log.add(Some(number), Event::PermissionClosed { request_id });
        }
    }

    #[test]
    fn dispatch_is_needed_while_its_thread_owes_a_post() {
        let mut log = Log::default();
        open_thread(&mut log, Some("channel/1"));
        create_in_thread(&mut log, 0);
        let created = log.fleet.get(&id(0)).unwrap().created.clone();
        assert!(!is_owed_by_thread(&log.fleet, &created));
        request(&mut log, 0);
        close(&mut log, 0);
        log.end(0);
        log.archive(&[0]);
        assert!(is_owed_by_thread(&log.fleet, &created));
        for _ in 0..2 {
            let thread = log.fleet.conversations.get(THREAD).unwrap();
            let post = thread.outbox.first().unwrap().1.clone();
            for event in sent(thread, &post) {
                log.add(None, event);
            }
            let thread = log.fleet.conversations.get(THREAD).unwrap();
            let posted = Outcome::Posted { external_ref: None };
            for event in acknowledged(thread, &post.key, &posted) {
                log.add(None, event);
            }
        }
        assert!(!is_owed_by_thread(&log.fleet, &created), "both were posted");
    }

    #[test]
    fn removed_events_are_not_needed_for_the_same_fleet() {
        let mut log = Log::default();
        log.boot(1);
        for number in 0..4 {
            log.create(number, None);
            log.spend(number);
        }
        [0, 1, 2].into_iter().for_each(|number| log.end(number));
        log.archive(&[0]);
        log.archive(&[1]);
        log.boot(2);
        let through = log.fleet.seq;
        log.create(5, None);
        log.end(5);
        log.archive(&[5]);
        let removed = remove(&mut log, through, 1);
        assert_eq!(removed.kept, [id(2), id(3)]);
        let again = fold_again(&log, &removed);
        assert_eq!(text(&again), text(&log.fleet));
        assert_eq!((again.archived(), again.removed_through()), (1, through));
    }

    proptest! {
        /// Whatever happens before and after, the events that stay give the same fleet.
        #[test]
        fn any_removal_keeps_the_fleet(
            steps in prop::collection::vec((0..6_usize, 0..7_u8), 1..60),
            at in 0..60_usize,
            part in 0..100_u64,
        ) {
            let mut log = Log::default();
            let (mut archived, mut last) = (vec![], None);
            open_thread(&mut log, None);
            for (index, (number, step)) in steps.into_iter().enumerate() {
                let is_live = log.fleet.get(&id(number)).is_some();
                let is_at_work = log.fleet.get(&id(number)).is_some_and(|it| !it.is_finished());
                match step {
                    _ if archived.contains(&number) => {}
                    0 if !is_live && number % 2 == 0 => create_in_thread(&mut log, number),
                    0 if !is_live => log.create(number, None),
                    5 if is_at_work => request(&mut log, number),
                    6 if is_at_work => close(&mut log, number),
                    1 if is_live => log.spend(number),
                    2 if is_live => {
                        // The end of a process closes its requests.
                        while log.fleet.get(&id(number)).is_some_and(|it| !it.asks.is_empty()) {
                            close(&mut log, number);
                        }
                        log.end(number);
                    }
                    3 => log.boot(number),
                    4 if log.fleet.get(&id(number)).is_some_and(|it| it.is_finished()) => {
                        log.archive(&[number]);
                        archived.push(number);
                    }
                    _ => {}
                }
                if index == at {
                    // A dispatch that spans the end of the removed part stays.
                    let through = log.fleet.seq * part / 100;
                    let spans = |number: &&usize| {
                        let last = log.records.iter().rfind(
                            |record| record.entry.dispatch_id == Some(id(**number)),
                        );
                        last.is_some_and(|record| record.seq > through)
                    };
                    let needed = archived.iter().filter(spans).map(|n| id(*n));
                    let needed: BTreeSet<_> = needed.collect();
                    let asked = Asked {
                        through,
                        before: Timestamp::UNIX_EPOCH,
                        archived: needed.len() as u64,
                        needed,
                        by: String::new(),
                    };
                    let event = event(&log.fleet, asked).unwrap();
                    log.add(None, Event::EventsRemoved(Box::new(event.clone())));
                    last = Some(event);
                }
            }
            if let Some(removed) = last {
                let again = fold_again(&log, &removed);
                prop_assert_eq!(text(&again), text(&log.fleet));
            }
        }
    }
}
