//! Reads a spool in batches, and decides when it counts as unreadable.

use crate::dispatch::error::chain;
use muleteer_shim::spool::{Cursor, ReadError, Reader, Record, State as BatchState};
use rustix::io::Errno;
use std::time::Duration;

/// The number of spool bytes per read, which limits an agent's share of the daemon's memory.
const BATCH_BYTES: usize = 256 * 1024;
/// After this many refused reads the spool counts as unreadable.
const REFUSALS: u32 = 5;
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The place of a link in the spool of its epoch.
pub(super) struct Spool {
    reader: Reader,
    cursor: Cursor,
    /// The number of reads in a row that the system refused.
    refused: u32,
}

impl Spool {
    pub(super) fn new(reader: Reader, cursor: Cursor) -> Self {
        Self { reader, cursor, refused: 0 }
    }

    /// Returns records, the damage that was found, and whether there is more.
    pub(super) async fn read(&mut self) -> Result<(Vec<Record>, Option<String>, bool), ReadError> {
        let epoch = self.cursor.epoch;
        let read = loop {
            let read = tokio::task::block_in_place(|| self.reader.read(self.cursor, BATCH_BYTES));
            self.refused =
                if matches!(read, Err(ReadError::Io { .. })) { self.refused + 1 } else { 0 };
            if self.refused == 0 || self.refused >= REFUSALS {
                break read;
            }
            tokio::time::sleep(REFUSED_PAUSE).await;
        };
        let batch = match read {
            Ok(batch) => batch,
            Err(error @ ReadError::Io { .. }) => return Ok((vec![], self.refusal(error)?, false)),
            Err(error) => {
                let lost = error.to_string();
                let Some(next) = error.resume().filter(|next| next.epoch == epoch) else {
                    // Nothing more of this epoch can be read, and its end is unknown.
                    return Ok((vec![], Some(lost), false));
                };
                self.cursor = next;
                return Ok((vec![], Some(lost), true));
            }
        };
        // A newer epoch belongs to another session.
        let records: Vec<_> =
            batch.records.into_iter().filter(|record| record.start.epoch == epoch).collect();
        if batch.next.epoch == epoch {
            self.cursor = batch.next;
        } else if let Some(last) = records.last() {
            self.cursor = last.end;
        }
        Ok((records, None, batch.state == BatchState::More && batch.next.epoch == epoch))
    }

    /// Returns the fault message for a spool that the system refused to read repeatedly. It is
    /// reported once, and reading is retried for as long as the shim lives.
    ///
    /// # Errors
    /// A temporary failure is no evidence about the spool, and must not count as the end of a dead
    /// shim's spool. The link restarts instead.
    fn refusal(&self, error: ReadError) -> Result<Option<String>, ReadError> {
        const PASSING: [Errno; 5] =
            [Errno::AGAIN, Errno::INTR, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
        if let ReadError::Io { source, .. } = &error
            && Errno::from_io_error(source).is_some_and(|errno| PASSING.contains(&errno))
        {
            return Err(error);
        }
        Ok((self.refused == REFUSALS).then(|| chain(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that is short of descriptors for a moment has lost no output of an agent.
    #[test]
    fn temporary_error_does_not_make_a_spool_unreadable() {
        let spool = |refused| Spool {
            reader: Reader::open("/nowhere".as_ref()),
            cursor: Cursor { epoch: 1, offset: 0 },
            refused,
        };
        let error = |errno: Errno| ReadError::Io { dir: "/spool".into(), source: errno.into() };
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR, Errno::AGAIN] {
            let refusal = spool(REFUSALS).refusal(error(errno));
            assert!(matches!(refusal, Err(ReadError::Io { .. })), "{errno}");
        }
        for errno in [Errno::IO, Errno::ACCESS, Errno::LOOP, Errno::STALE] {
            assert!(
                spool(REFUSALS).refusal(error(errno)).is_ok_and(|told| told.is_some()),
                "{errno}"
            );
            let again = spool(REFUSALS + 1).refusal(error(errno));
            assert!(matches!(again, Ok(None)), "it was told");
        }
    }
}
