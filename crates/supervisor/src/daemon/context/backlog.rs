//! The records of each unfinished dispatch that its journal does not have yet.

use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use muleteer_store::events::tail::Start;
use std::collections::HashMap;

/// The records of each unfinished dispatch from before its journal follows it. They are read once
/// for all dispatches, and the ledger adds new ones. If each journal read the log itself, a start
/// with many agents would be quadratic.
#[derive(Debug, Default)]
pub struct Backlog {
    records: HashMap<DispatchId, Vec<Record>>,
    /// A ledger adds new records. A restarted ledger cannot know which ones its predecessor still
    /// wrote.
    followed: bool,
}

impl Backlog {
    /// The limit of records for one dispatch. Beyond it, the journal reads the log.
    const LIMIT: usize = 256;

    /// Adds a record that `fleet` has just folded, until its dispatch has finished or its journal
    /// follows it.
    pub fn take(&mut self, fleet: &Fleet, record: &Record) {
        let Some(id) = &record.entry.dispatch_id else { return };
        if matches!(record.entry.event, Event::DispatchCreated(_)) {
            self.records.insert(id.clone(), vec![record.clone()]);
        } else if let Some(known) = self.records.get_mut(id) {
            // The journal of a dispatch that was finished and resumes reads the log itself.
            if known.len() == Self::LIMIT
                || fleet.get(id).is_some_and(|dispatch| dispatch.is_finished())
            {
                self.records.remove(id);
            } else {
                known.push(record.clone());
            }
        }
    }

    /// Returns the records of a dispatch so far, or the place in the log to read them from. The
    /// caller must already receive the events that follow, because no more records are collected
    /// for it.
    pub fn history(&mut self, dispatch: &Dispatch) -> Result<Vec<Record>, Start> {
        match self.records.remove(&dispatch.id) {
            Some(records) => Ok(records),
            // The dispatch had finished and resumes, or its journal restarted, so it reads all
            // records again.
            None => Err(Start::Seq(dispatch.created_seq)),
        }
    }

    /// Says that a ledger adds records from now on.
    pub fn follow(&mut self) {
        if std::mem::replace(&mut self.followed, true) {
            self.records.clear();
        }
    }

    /// Adds durable records that `fleet` has folded, before any actor gets them.
    pub fn keep(&mut self, fleet: &Fleet, records: &[Record]) {
        records.iter().for_each(|record| self.take(fleet, record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_model::event::Entry;
    use muleteer_model::event::FinalState;

    fn record(seq: u64, id: &DispatchId, event: Event) -> Record {
        let entry = Entry {
            id: format!("e{seq}"),
            dispatch_id: Some(id.clone()),
            at: None,
            more: false,
            event,
        };
        Record { v: 1, seq, ts: jiff::Timestamp::UNIX_EPOCH, entry }
    }

    #[test]
    fn restart_events_are_kept_until_read_or_dropped() {
        let id = DispatchId::try_from("abcd2345".to_string()).expect("an id");
        let created: Vec<_> = muleteer_store::events::catalog::samples()
            .into_iter()
            .map(|record| record.entry.event)
            .filter(|event| matches!(event, Event::DispatchCreated(_)))
            .collect();
        let (mut fleet, mut backlog) = (Fleet::default(), Backlog::default());
        let mut seq = 0;
        let mut next = |backlog: &mut Backlog, event: &Event| {
            seq += 1;
            let record = record(seq, &id, event.clone());
            fleet.apply(&record);
            backlog.take(&fleet, &record);
        };
        let said = Event::JournalEntry { text: "x".into() };
        let kept = |backlog: &Backlog| backlog.records.get(&id).map(Vec::len);

        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), None, "its beginning was not seen");
        next(&mut backlog, &created[0]);
        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), Some(2));
        // Its journal has these records now, and gets later ones itself.
        backlog.records.remove(&id);
        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), None);

        next(&mut backlog, &created[0]);
        for _ in 0..Backlog::LIMIT {
            next(&mut backlog, &said);
        }
        assert_eq!(kept(&backlog), None, "too much");

        next(&mut backlog, &created[0]);
        let finished = Event::DispatchFinished {
            state: FinalState::Killed,
            reason: String::new(),
            result: None,
        };
        next(&mut backlog, &finished);
        assert_eq!(kept(&backlog), None, "finished");
    }
}
