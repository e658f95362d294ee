//! The event log, open for appending.

use crate::ledger::parts::Parts;
use jiff::Timestamp;
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Record, Restored};
use muleteer_store::AppendError;
use muleteer_store::StoreError;
use muleteer_store::events::tail::Cursor;
use muleteer_store::events::{EventLog, RecentIds, Recovery, fold, fold_with, part, snapshot};
use std::path::{Path, PathBuf};

/// The log, open for appending, with its fold.
#[derive(Debug)]
pub struct Opened {
    path: PathBuf,
    log: EventLog,
    pub fleet: Fleet,
    pub(super) ids: RecentIds,
}

impl Opened {
    /// Opens the log, which is recovery, beginning with its snapshot if that fits. `each` is called
    /// with every record that is folded and the fleet after it, and before them with the newest
    /// records of the snapshot's unfinished dispatches and the fleet of the snapshot. `applied_seq`
    /// is as for [`EventLog::open`].
    ///
    /// # Errors
    /// Those of [`EventLog::open`].
    pub fn open(
        path: &Path,
        applied_seq: u64,
        mut each: impl FnMut(&Fleet, &Record),
    ) -> Result<(Self, Recovery), StoreError> {
        let (mut fleet, mut ids, at) = folded(path, &mut each)?;
        let mut folded = Ok(());
        let (log, recovery) = EventLog::open_after(path, applied_seq, at, |record| {
            if folded.is_ok() {
                folded = fold(&mut fleet, path, &record);
            }
            ids.insert(&record.entry.id, record.seq);
            each(&fleet, &record);
        })?;
        folded?;
        let log = log.with_segments(segment_bytes());
        Ok((Self { path: path.into(), log, fleet, ids }, recovery))
    }

    /// Returns why a long file could not be closed the last time.
    pub(super) fn take_trouble(&mut self) -> Option<StoreError> {
        self.log.take_trouble()
    }

    /// Appends entries, and folds the durable records. `parts` has the archived dispatches that the
    /// entries restore; the log is read for those that it lacks.
    ///
    /// # Errors
    /// Those of [`EventLog::append`]; nothing was folded. The records are durable if they could not
    /// be folded: this process must end, as after a failed fsync, and the next start names the
    /// damage.
    pub fn append(&mut self, entries: &[Entry], parts: &Parts) -> Result<Vec<Record>, AppendError> {
        let records = self.log.append(entries, Timestamp::now())?;
        for record in &records {
            let path = &self.path;
            let given = |restored: &Restored| match parts.take(restored) {
                Some(part) => Ok(part),
                None => part(path, restored),
            };
            let folded = fold_with(&mut self.fleet, record, given);
            folded.map_err(|error| AppendError::Poisoned {
                file: self.path.clone(),
                why: error.to_string(),
                source: None,
            })?;
            self.ids.insert(&record.entry.id, record.seq);
        }
        Ok(records)
    }
}

/// Returns the length at which the file is closed, and of the pieces in which it is compressed.
pub(super) fn segment_bytes() -> u64 {
    /// A search reads one segment, and a start the last few.
    const USUAL: u64 = 8 * 1024 * 1024;
    muleteer_process::fault::segment_bytes(USUAL)
}

/// How far before a snapshot the records of unfinished dispatches are read for all of them at once.
/// A journal that needs older ones reads the log.
const READ_AGAIN: u64 = 8 * 1024 * 1024;

/// Returns the fleet of the snapshot, the ids that were appended before it, and where the log
/// continues; without a usable snapshot, the beginning.
fn folded(
    path: &Path,
    each: &mut impl FnMut(&Fleet, &Record),
) -> Result<(Fleet, RecentIds, Cursor), StoreError> {
    let (fleet, at) = match snapshot::read(path) {
        Ok(found) => (found.fleet.with_traits(TRAITS), found.at),
        Err(why) => {
            if why.is_fault() {
                tracing::warn!(%why, "the snapshot of the events cannot be used: reading them all");
            }
            // Else it would count as the newest one, and the next would come late.
            let _ = std::fs::remove_file(snapshot::path_of(path));
            return Ok((Fleet::new(TRAITS), RecentIds::default(), Cursor::default()));
        }
    };
    let ids = snapshot::ids_before(path, at)?;
    let oldest = fleet.unfinished().map(|dispatch| dispatch.created_seq).min();
    if let Some(oldest) = oldest {
        let records = snapshot::records_before(path, at, oldest, READ_AGAIN)?;
        records.iter().for_each(|record| each(&fleet, record));
    }
    Ok((fleet, ids, at))
}
