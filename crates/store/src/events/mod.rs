//! The event log `events.jsonl`, the truth: append, recover, fold.
//!
//! ```text
//!  append:  encode and read back ─▶ write ─▶ fdatasync ─▶ mark ─▶ Ok: durable
//!                                    │           └ failed ─▶ Poisoned: exit; the next open copies
//!                                    └ no room ─▶ cut back to the last good byte ─▶ Full: retry
//!  open:    scan ─▶ (copy anew, if poisoned) ─▶ cut the torn tail ─▶ fdatasync ─▶ mark
//! ```
//!
//! A long file is closed and becomes a segment in `events/` (`chain`); readers see one log. The
//! oldest segments may be removed, but for the records that are still needed.
//!
//! Files beside `events.jsonl`: `events.mark` (the highest seq known to be durable),
//! `events.snapshot` ([`snapshot`]), `events.poisoned` (only after a failed fsync, until the next
//! start) and `events.cut-<offset>` (a tail that was cut and was more than an unfinished write).

pub mod catalog;
pub mod snapshot;
pub mod tail;

mod back;
mod chain;
mod fold;
mod line;
mod mark;
mod medium;
mod recent;
mod recover;
mod scan;
#[cfg(test)]
mod tests;

pub use chain::{
    Removable, Removed, compress_next, length, plain_segments, removable, remove_through,
    removed_through, stored_bytes,
};
pub use fold::{fold, fold_with, part};
pub use line::{MAX_LINE, sealed_again};
pub use recent::RecentIds;
pub use recover::{Recovery, check, fold_everything, fold_fleet, read};

use crate::error::{AppendError, StoreError, is_full};
use crate::events::line::Cursor;
use chain::{Failed, Name};
use jiff::Timestamp;
use mark::Mark;
use medium::Medium;
use muleteer_model::event::{Entry, Record};
use muleteer_process::fault;
use std::io;
use std::path::{Path, PathBuf};

/// The only writer of an `events.jsonl`. The caller must hold a lock that ensures this.
///
/// All calls block for as long as the disk takes.
#[derive(Debug)]
pub struct EventLog {
    path: PathBuf,
    file: Box<dyn Medium>,
    /// The length of the valid, durable part of the file: the next batch goes here.
    len: u64,
    seq: u64,
    /// Where the file begins in the whole log.
    begin: Cursor,
    /// The file is closed, and becomes a segment, when it is so long.
    limit: u64,
    /// Why the file could not be closed.
    trouble: Option<StoreError>,
    mark: Mark,
    /// Set after [`AppendError::Poisoned`]: the reason why this process may not append any more.
    poisoned: Option<String>,
}

impl EventLog {
    /// Opens (or creates, 0600) the log for appending. It passes every valid record to `each`, in
    /// order, cuts a torn tail, and makes the rest durable before it returns, so that nobody acts
    /// on an event that a power failure could still remove. `applied_seq` is how far the database
    /// has come ([`Projection::applied_seq`](crate::db::Projection::applied_seq); 0 without one):
    /// those events were durable. The whole file is never in memory.
    ///
    /// # Errors
    /// `E_EVENTS_CORRUPT`, `E_EVENTS_GAP`, `E_EVENTS_VERSION`, `E_EVENTS_UNKNOWN`,
    /// `E_EVENTS_SHORT`, `E_DB_AHEAD`, `E_STORE_IO`. Then nothing was cut, and the caller must drop
    /// the records that `each` got.
    pub fn open(
        path: &Path,
        applied_seq: u64,
        each: impl FnMut(Record),
    ) -> Result<(Self, Recovery), StoreError> {
        Self::open_after(path, applied_seq, Cursor::default(), each)
    }

    /// Does the same as [`EventLog::open`], but reads and checks only what follows `from`, which is
    /// the end of a batch that the log is known to have ([`snapshot::read`]).
    ///
    /// # Errors
    /// Those of [`EventLog::open`].
    pub fn open_after(
        path: &Path,
        applied_seq: u64,
        from: Cursor,
        each: impl FnMut(Record),
    ) -> Result<(Self, Recovery), StoreError> {
        let recover::Opened { file, begin, recovery } =
            recover::open(path, applied_seq, from, each)?;
        let mut mark = Mark::new(path);
        mark.write(recovery.last_seq);
        let log = Self {
            path: path.into(),
            file: Box::new(file),
            len: recovery.len - begin.offset,
            seq: recovery.last_seq,
            begin,
            limit: u64::MAX,
            trouble: None,
            mark,
            poisoned: None,
        };
        Ok((log, recovery))
    }

    /// Closes the file whenever it has `limit` bytes: it becomes a segment, which [`compress_next`]
    /// compresses. Without a limit the log stays one file.
    pub fn with_segments(self, limit: u64) -> Self {
        Self { limit: limit.max(1), ..self }
    }

    /// Closes the file, however short it is, so that [`compress_next`] compresses it. The log is
    /// read and appended to as before. An empty file stays.
    ///
    /// # Errors
    /// `E_STORE_IO`: the log is as before, but this process may not append to it any more.
    pub fn close_file(mut self) -> Result<(), StoreError> {
        if self.len == 0 {
            return Ok(());
        }
        self.limit = 0;
        if let Err(error) = self.close_long_file() {
            return Err(StoreError::io(&self.path, "close")(io::Error::other(error)));
        }
        self.trouble.take().map_or(Ok(()), Err)
    }

    /// Returns why the file could not be closed the last time. The log is as before, and the next
    /// try comes when it has grown by as much again.
    pub fn take_trouble(&mut self) -> Option<StoreError> {
        self.trouble.take()
    }

    /// Returns the newest durable record's seq; 0 if there is none.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// Appends all entries, in order, with one write and one fdatasync; group commit means to pass
    /// many. Entries joined by [`Entry::more`] are recovered all or not at all; one call may have
    /// several such batches, and the last entry must end one. `now` is truncated to milliseconds.
    /// Returns their durable records, as a later start will read them. The caller must know whether
    /// an id was appended before ([`RecentIds`]).
    ///
    /// # Errors
    /// [`AppendError::Full`]: nothing was appended, retry later. [`AppendError::Refused`]: nothing
    /// was appended, leave that entry out. [`AppendError::Poisoned`]: exit.
    pub fn append(
        &mut self,
        entries: &[Entry],
        now: Timestamp,
    ) -> Result<Vec<Record>, AppendError> {
        if let Some(why) = &self.poisoned {
            return Err(AppendError::Poisoned {
                file: self.path.clone(),
                why: why.clone(),
                source: None,
            });
        }
        if entries.is_empty() {
            return Ok(vec![]);
        }
        self.close_long_file()?;
        let now = Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now);
        let (bytes, records) = self.encode(entries, now)?;
        fault::point("ledger.before_write");
        self.check_file()?;
        self.write(&bytes)?;
        fault::point("ledger.after_write");
        if let Err(error) = self.file.sync() {
            return Err(self.poison("fsync failed", Some(error)));
        }
        fault::point("ledger.after_fsync");
        self.len += bytes.len() as u64;
        self.seq += records.len() as u64;
        self.mark.write(self.seq);
        Ok(records)
    }

    fn close_long_file(&mut self) -> Result<(), AppendError> {
        if self.len < self.limit {
            return Ok(());
        }
        let after = Cursor { offset: self.begin.offset + self.len, seq: self.seq };
        let name = Name {
            first: self.begin.seq + 1,
            last: after.seq,
            begin: self.begin.offset,
            end: after.offset,
        };
        match chain::rotate(&self.path, name) {
            Ok(file) => {
                self.file = Box::new(file);
                (self.begin, self.len) = (after, 0);
                Ok(())
            }
            Err(Failed::Before(error)) => {
                self.limit = self.limit.saturating_add(self.len);
                self.trouble = Some(error);
                Ok(())
            }
            Err(Failed::Between(error)) => {
                Err(self.poison("failed to close the file", Some(io::Error::other(error))))
            }
        }
    }

    fn encode(
        &self,
        entries: &[Entry],
        now: Timestamp,
    ) -> Result<(Vec<u8>, Vec<Record>), AppendError> {
        let mut bytes = Vec::with_capacity(entries.len() * 256);
        let mut records = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let seq = self.seq + 1 + index as u64;
            let record = line::encode(entry, seq, now, &mut bytes).map_err(|error| {
                AppendError::Refused { index, id: entry.id.clone(), why: error.to_string() }
            })?;
            records.push(record);
        }
        match entries.last() {
            Some(last) if last.more => {
                let why = "the rest of its batch is missing".into();
                Err(AppendError::Refused { index: entries.len() - 1, id: last.id.clone(), why })
            }
            _ => Ok((bytes, records)),
        }
    }

    /// Checks that the file is ours. After a second writer or a deletion we would acknowledge
    /// records that no start will ever read.
    fn check_file(&mut self) -> Result<(), AppendError> {
        match self.file.stat() {
            Ok((len, true)) if len == self.len => Ok(()),
            Ok((_, false)) => Err(self.poison("the file was deleted", None)),
            Ok((len, true)) => {
                let why = format!(
                    "it has {len} bytes, but {} were written: another program changed it",
                    self.len
                );
                Err(self.poison(&why, None))
            }
            Err(error) => Err(self.poison("its length cannot be read", Some(error))),
        }
    }

    /// Writes all of `bytes` at the end, or nothing.
    fn write(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        let mut done = 0;
        while done < bytes.len() {
            let error = match self.file.write_at(&bytes[done..], self.len + done as u64) {
                Ok(0) => io::ErrorKind::StorageFull.into(),
                Ok(written) => {
                    done += written;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            // Without the cut, the next batch would begin on the line of the torn one. Without the
            // fsync, a power failure could bring back records that we are about to report as not
            // appended.
            if let Err(error) = self.file.truncate(self.len).and_then(|()| self.file.sync()) {
                return Err(self.poison("failed to remove an incomplete write", Some(error)));
            }
            if is_full(&error) {
                return Err(AppendError::Full { file: self.path.clone(), source: error });
            }
            return Err(self.poison("writing failed", Some(error)));
        }
        Ok(())
    }

    /// Stops appending. After a failed fsync the kernel marks the pages as clean although they are
    /// not on disk, and a second fsync would succeed. So no further write of this process to the
    /// file can be trusted.
    fn poison(&mut self, why: &str, source: Option<io::Error>) -> AppendError {
        recover::leave_poison_marker(&self.path, why);
        self.poisoned = Some(why.into());
        AppendError::Poisoned { file: self.path.clone(), why: why.into(), source }
    }
}
