//! The archive of the simulated daemon: finished families leave its fleet at any moment, and return
//! when somebody speaks to one of them. The batches of both wait for the slow disk like all others,
//! and die with the daemon.

use crate::daemon::Daemon;
use crate::rng::Rng;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::fleet::archive::{Part, families};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record, Restored};

impl Daemon {
    /// Decides to archive some of the finished families. Like the real daemon it does so while no
    /// message is on its way to one of them.
    pub fn archive(&mut self, rng: &mut Rng) {
        let mut families = families(&self.fleet, u64::MAX, |it| self.is_held(&it.id));
        families.retain(|_| rng.one_in(2));
        if !families.is_empty() {
            self.note(Event::DispatchesArchived { families });
        }
    }

    /// Returns the ids of the archived dispatches.
    pub fn archived(&self) -> Vec<DispatchId> {
        let all = self.ledger.iter().filter_map(|record| {
            let is_creation = matches!(record.entry.event, Event::DispatchCreated(_));
            record.entry.dispatch_id.clone().filter(|_| is_creation)
        });
        all.filter(|id| self.fleet.get(id).is_none()).collect()
    }

    /// Restores a dispatch with its family, if it is archived or is about to be.
    pub fn restore(&mut self, id: &DispatchId) {
        self.settle();
        if self.fleet.get(id).is_some() {
            return;
        }
        let family = self.ledger.iter().rev().find_map(|record| match &record.entry.event {
            Event::DispatchesArchived { families } => {
                families.iter().find(|family| family.iter().any(|one| one.id == *id))
            }
            _ => None,
        });
        let Some(family) = family else { return };
        let ids: Vec<DispatchId> = family.iter().map(|one| one.id.clone()).collect();
        let is_ours =
            |record: &&Record| record.entry.dispatch_id.as_ref().is_some_and(|of| ids.contains(of));
        let first_seq = self.ledger.iter().find(is_ours).unwrap().seq;
        let last_seq = self.ledger.iter().rfind(is_ours).unwrap().seq;
        let boot_id = String::new();
        self.note(Event::DispatchesRestored(Restored { ids, first_seq, last_seq, boot_id }));
        self.sync(self.unsynced.len());
        assert!(self.fleet.get(id).is_some(), "{id} did not return");
    }

    /// Waits for the end of an archival, as each request to a dispatch does.
    pub fn settle(&mut self) {
        let is_going = |(_, batch): &(_, Vec<Entry>)| {
            batch.iter().any(|entry| matches!(entry.event, Event::DispatchesArchived { .. }))
        };
        if self.unsynced.iter().any(is_going) {
            self.sync(self.unsynced.len());
        }
    }

    fn note(&mut self, event: Event) {
        let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
        self.unsynced.push_back((None, vec![entry]));
    }

    /// Folds the ledger as if nothing had ever been archived.
    pub fn never_archived(&self) -> Fleet {
        let mut fleet = Fleet::default();
        for record in &self.ledger {
            let (archived, restored) = (
                matches!(record.entry.event, Event::DispatchesArchived { .. }),
                matches!(record.entry.event, Event::DispatchesRestored(_)),
            );
            if !archived && !restored {
                fleet.apply(record);
            }
        }
        fleet
    }
}

/// Folds a record of the ledger; one that restores dispatches needs their earlier records.
pub fn fold(fleet: &mut Fleet, ledger: &[Record], record: &Record) {
    if let Event::DispatchesRestored(restored) = &record.entry.event {
        let mut part = Part::new(restored);
        let range = restored.first_seq..=restored.last_seq;
        ledger.iter().filter(|one| range.contains(&one.seq)).for_each(|one| part.apply(one));
        part.check().unwrap();
        fleet.restore(part);
    }
    fleet.apply(record);
}
