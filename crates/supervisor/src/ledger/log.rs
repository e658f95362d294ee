//! The event log, open for appending.

use jiff::Timestamp;
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Record};
use muleteer_store::AppendError;
use muleteer_store::StoreError;
use muleteer_store::events::{EventLog, RecentIds, Recovery};
use std::path::Path;

/// The log, open for appending, with its fold.
#[derive(Debug)]
pub struct Opened {
    log: EventLog,
    pub fleet: Fleet,
    pub(super) ids: RecentIds,
}

impl Opened {
    /// Opens the log, which is recovery. `each` is called with every record and the fleet after it.
    /// `applied_seq` is as for [`EventLog::open`].
    ///
    /// # Errors
    /// Those of [`EventLog::open`].
    pub fn open(
        path: &Path,
        applied_seq: u64,
        mut each: impl FnMut(&Fleet, &Record),
    ) -> Result<(Self, Recovery), StoreError> {
        let (mut fleet, mut ids) = (Fleet::new(TRAITS), RecentIds::default());
        let (log, recovery) = EventLog::open(path, applied_seq, |record| {
            fleet.apply(&record);
            ids.insert(&record.entry.id, record.seq);
            each(&fleet, &record);
        })?;
        Ok((Self { log, fleet, ids }, recovery))
    }

    /// Appends entries, and folds the durable records.
    ///
    /// # Errors
    /// Those of [`EventLog::append`]; nothing was folded.
    pub fn append(&mut self, entries: &[Entry]) -> Result<Vec<Record>, AppendError> {
        let records = self.log.append(entries, Timestamp::now())?;
        for record in &records {
            self.fleet.apply(record);
            self.ids.insert(&record.entry.id, record.seq);
        }
        Ok(records)
    }
}
