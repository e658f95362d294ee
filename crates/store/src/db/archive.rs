//! The table of finished dispatches: the place of those that are archived.
//!
//! A dispatch gets its row when it ends, and is archived later. The row stays when a message
//! restores the dispatch, so a reader looks into the fleet first.

use crate::db::{Projection, error, schema};
use crate::error::StoreError;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{EventsRemoved, Record, Restored};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use std::io;

impl Projection {
    /// Reads the seq of the newest record in the database, which another process may write.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn applied_now(&self) -> Result<u64, StoreError> {
        schema::applied(&self.connection, &self.path)
    }

    /// Returns whether the database has all records through `seq`, and is not being filled again.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn has_all(&self, seq: u64) -> Result<bool, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT complete != 0 AND applied_seq >= ?1 FROM meta";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        statement.query_row([seq_of(seq)], |row| row.get(0)).map_err(&fail)
    }

    /// Returns a dispatch that has finished; its state is the one at its newest end.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn finished(&self, id: &DispatchId) -> Result<Option<Dispatch>, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT dispatch FROM finished WHERE id = ?1";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        statement.query_row([id.as_str()], |row| decoded(row, 0)).optional().map_err(&fail)
    }

    /// Returns the ids of the finished dispatches that begin with `prefix`.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn finished_with(&self, prefix: &str) -> Result<Vec<DispatchId>, StoreError> {
        let fail = error(&self.path);
        // No id has a character after `{`.
        let sql = "SELECT id FROM finished WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let rows = statement.query_map([prefix], |row| id_of(row, 0)).map_err(&fail)?;
        rows.collect::<Result<_, _>>().map_err(&fail)
    }

    /// Returns the event that restores a finished dispatch with its family; `None` for an unknown
    /// one. `last` is the seq of the newest record about any of them.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn restoring(&self, id: &DispatchId) -> Result<Option<Restored>, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT id, first_seq, last_seq, dispatch FROM finished WHERE family =
                   (SELECT family FROM finished WHERE id = ?1) ORDER BY first_seq";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let mut rows = statement.query([id.as_str()]).map_err(&fail)?;
        let mut restored: Option<Restored> = None;
        while let Some(row) = rows.next().map_err(&fail)? {
            let id = id_of(row, 0).map_err(&fail)?;
            let [first, last] = [1, 2].map(|at| row.get::<_, i64>(at).map(i64::unsigned_abs));
            let (first, last) = (first.map_err(&fail)?, last.map_err(&fail)?);
            match &mut restored {
                Some(restored) => {
                    restored.ids.push(id);
                    restored.last_seq = restored.last_seq.max(last);
                }
                None => {
                    let boot_id = decoded(row, 3).map_err(&fail)?.boot_id.to_string();
                    let ids = vec![id];
                    restored = Some(Restored { ids, first_seq: first, last_seq: last, boot_id });
                }
            }
        }
        Ok(restored)
    }

    /// Passes on all finished dispatches that were created before or at `through`, each with the
    /// seq that created its oldest ancestor.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn each_family(
        &self,
        through: u64,
        mut each: impl FnMut(u64, &Dispatch),
    ) -> Result<(), StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT family, dispatch FROM finished WHERE first_seq <= ?1 ORDER BY first_seq";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let mut rows = statement.query([seq_of(through)]).map_err(&fail)?;
        while let Some(row) = rows.next().map_err(&fail)? {
            let family = row.get::<_, i64>(0).map_err(&fail)?.unsigned_abs();
            each(family, &decoded(row, 1).map_err(&fail)?);
        }
        Ok(())
    }

    /// Passes on all finished dispatches that were created at `from_seq` or later, in the order of
    /// their creation, until `each` returns false. With `states`, only those in one of them.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn each_finished(
        &self,
        from_seq: u64,
        states: Option<&[&str]>,
        mut each: impl FnMut(Dispatch) -> bool,
    ) -> Result<(), StoreError> {
        let fail = error(&self.path);
        let sql = match states {
            None => "SELECT dispatch FROM finished WHERE first_seq >= ?1 ORDER BY first_seq",
            Some(_) => {
                "SELECT dispatch FROM finished WHERE first_seq >= ?1
                 AND state IN (SELECT value FROM json_each(?2)) ORDER BY first_seq"
            }
        };
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let from = seq_of(from_seq);
        let mut rows = match states {
            None => statement.query([from]),
            Some(states) => {
                let states = serde_json::to_string(states).unwrap_or_default();
                statement.query(params![from, states])
            }
        }
        .map_err(&fail)?;
        while let Some(row) = rows.next().map_err(&fail)? {
            if !each(decoded(row, 0).map_err(&fail)?) {
                break;
            }
        }
        Ok(())
    }
}

/// Stores a dispatch that has finished. `family` is the seq that created its oldest ancestor.
pub(super) fn put(
    transaction: &Transaction<'_>,
    dispatch: &Dispatch,
    family: u64,
) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO finished (first_seq, id, last_seq, family, state, dispatch)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let seq = seq_of;
    transaction.prepare_cached(sql)?.execute(params![
        seq(dispatch.created_seq),
        dispatch.id.as_str(),
        seq(dispatch.last_seq),
        seq(family),
        dispatch.state(),
        encoded(dispatch)?,
    ])?;
    Ok(())
}

/// Folds an event about an archived dispatch, such as the removal of its files, into its row.
pub(super) fn add_late(
    transaction: &Transaction<'_>,
    id: &DispatchId,
    record: &Record,
) -> rusqlite::Result<()> {
    let sql = "SELECT dispatch, family FROM finished WHERE id = ?1";
    let found = transaction.prepare_cached(sql)?.query_row([id.as_str()], |row| {
        Ok((decoded(row, 0)?, row.get::<_, i64>(1)?.unsigned_abs()))
    });
    let Some((mut dispatch, family)) = found.optional()? else { return Ok(()) };
    if record.seq > dispatch.last_seq {
        dispatch.apply(record);
        put(transaction, &dispatch, family)?;
    }
    Ok(())
}

/// Removes the dispatches whose events are removed. The sums of their use stay.
pub(super) fn forget(
    transaction: &Transaction<'_>,
    removed: &EventsRemoved,
) -> rusqlite::Result<()> {
    let kept = serde_json::to_string(&removed.kept).unwrap_or_default();
    let sql = "DELETE FROM finished WHERE first_seq <= ?1
               AND id NOT IN (SELECT value FROM json_each(?2))";
    transaction.execute(sql, params![seq_of(removed.through), kept]).map(drop)
}

fn seq_of(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn encoded(dispatch: &Dispatch) -> rusqlite::Result<Vec<u8>> {
    serde_json::to_vec(dispatch)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

pub(super) fn decoded(row: &Row<'_>, at: usize) -> rusqlite::Result<Dispatch> {
    let bytes = row.get_ref(at)?.as_blob()?;
    serde_json::from_slice(bytes)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(at, Type::Blob, Box::new(error)))
}

fn id_of(row: &Row<'_>, at: usize) -> rusqlite::Result<DispatchId> {
    DispatchId::try_from(row.get::<_, String>(at)?).map_err(|error| {
        let error = io::Error::other(error.to_string());
        rusqlite::Error::FromSqlConversionFailure(at, Type::Text, Box::new(error))
    })
}
