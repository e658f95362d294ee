//! `muleteer.db`, a projection of the events for queries by id, day or model, which would be slow
//! to fold each time.
//!
//! Architecture invariant: the database has nothing that is not in the events. So a damaged
//! database is moved aside, one of an older schema is emptied, and both are filled again; there are
//! no migrations. The seq applied so far is stored in the same transaction as its effects, so no
//! record is counted twice or left out, whenever the process dies.

mod archive;
mod messages;
mod schema;
mod sums;

pub use sums::{Grouped, Open};

use crate::error::StoreError;
use crate::events;
use crate::events::tail::{self, Cursor, Reader, Start};
use crate::metrics;
use jiff::Timestamp;
use muleteer_model::agent::event::ModelUsage;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::cost::Use;
use muleteer_model::dispatch::fleet::archive::ancestor;
use muleteer_model::dispatch::fleet::{FOLD_VERSION, Fleet};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use muleteer_process::fault;
use rusqlite::{Connection, ErrorCode, OpenFlags, Row, Transaction, params};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The schema that this version writes. Raise its thousands with any change of the tables *or* of
/// the values that [`Projection::apply`] stores: older databases are then regenerated. The states
/// of dispatches have the form of the fold.
pub const SCHEMA_VERSION: i64 = 6_000 + FOLD_VERSION as i64;

/// The number of records per transaction when catching up.
const BATCH: usize = 1024;

#[derive(Debug)]
pub struct Projection {
    path: PathBuf,
    connection: Connection,
    applied: u64,
    /// How far this process has read the log.
    read: Option<Cursor>,
}

/// The result of opening.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Opened {
    pub created: bool,
    /// The old database was damaged (reason, new place); the new one is empty.
    pub moved_aside: Option<(String, PathBuf)>,
    /// It had an older schema and was emptied.
    pub emptied: bool,
}

impl Projection {
    /// Opens or creates the database (WAL, `synchronous=FULL`). Afterwards open the events with its
    /// [`applied_seq`](Self::applied_seq), then call [`catch_up`](Self::catch_up).
    ///
    /// # Errors
    /// `E_DB_VERSION`, `E_DB_FULL`, `E_DB`, `E_STORE_IO`. Not `E_DB_CORRUPT`: see [`Opened`].
    pub fn open(path: &Path) -> Result<(Self, Opened), StoreError> {
        let mut opened = Opened { created: !path.exists(), ..Opened::default() };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let (connection, applied) = match schema::open(path, flags, &mut opened) {
            Err(StoreError::DbCorrupt { why, .. }) => {
                opened.moved_aside = Some((why, move_aside(path)?));
                schema::open(path, flags, &mut opened)?
            }
            other => other?,
        };
        Ok((Self { path: path.into(), connection, applied, read: None }, opened))
    }

    /// Opens the database read-only, for clients. `None` if there is none, or if its daemon will
    /// regenerate it.
    ///
    /// # Errors
    /// `E_DB_VERSION`, `E_DB_CORRUPT`, `E_DB`.
    pub fn open_read_only(path: &Path) -> Result<Option<Self>, StoreError> {
        if !path.try_exists().map_err(StoreError::io(path, "inspect"))? {
            return Ok(None);
        }
        let found = schema::open_read_only(path)?;
        Ok(found.map(|(connection, applied)| Self {
            path: path.into(),
            connection,
            applied,
            read: None,
        }))
    }

    /// Returns how far a database has come, also while it is filled again; `None` if it cannot be
    /// read.
    pub fn progress(path: &Path) -> Option<u64> {
        schema::progress(path)
    }

    /// Returns the seq of the newest record in the database.
    pub fn applied_seq(&self) -> u64 {
        self.applied
    }

    /// Applies records and stores their seq in one transaction. Records that were applied before
    /// are skipped. `fleet` must contain at least these records: states and totals come from it, so
    /// that there is only one fold. Usage per model and day is summed from the records.
    ///
    /// # Errors
    /// `E_DB_GAP` if records between are missing; `E_DB_FULL` (a state: events continue, catch up
    /// later); `E_DB_CORRUPT`, `E_DB`: reopen. Nothing was applied then.
    pub fn apply(&mut self, records: &[Record], fleet: &Fleet) -> Result<(), StoreError> {
        let new = records.partition_point(|record| record.seq <= self.applied);
        let records = &records[new..];
        let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
        if first.seq != self.applied + 1 {
            return Err(StoreError::DbGap {
                file: self.path.clone(),
                applied: self.applied,
                given: first.seq,
            });
        }
        self.put(records, last.seq, fleet)
    }

    fn put(&mut self, records: &[Record], last: u64, fleet: &Fleet) -> Result<(), StoreError> {
        write(&mut self.connection, records, last, fleet).map_err(error(&self.path))?;
        self.applied = last;
        Ok(())
    }

    /// Applies missing records from the log in bounded batches; returns how many. `fleet` must be
    /// folded to the end of the log. Only new records are read.
    ///
    /// # Errors
    /// `E_DB_AHEAD` if the log ends before [`applied_seq`](Self::applied_seq); as [`Self::apply`],
    /// [`events::read`] and [`Reader::next_line`].
    pub fn catch_up(&mut self, events: &Path, fleet: &Fleet) -> Result<u64, StoreError> {
        let before = self.applied;
        // A log that became shorter is read completely, to find out what is wrong with it.
        let there = events::length(events);
        let read = self.read.take().filter(|read| read.offset <= there);
        if before > tail::newest_seq(events)? {
            events::read(events, |_| {})?;
            return Err(StoreError::DbAhead {
                file: events.into(),
                applied: before,
                last: tail::newest_seq(events)?,
            });
        }
        if before < fleet.archived_until() {
            self.fill_again(events, fleet.seq)?;
            return Ok(self.applied);
        }
        // The daemon has checked what is older, or has confirmed it by a snapshot.
        let start = read.map_or(Start::Seq(before + 1), Start::Cursor);
        let mut reader = Reader::follow(events, start)?;
        let mut batch = Vec::with_capacity(BATCH);
        // The state after a later record is not in this fleet.
        while reader.cursor().seq < fleet.seq
            && let Some(line) = reader.next_line()?
        {
            batch.push(line.record);
            if batch.len() == BATCH {
                self.apply(&batch, fleet)?;
                batch.clear();
            }
        }
        let read = Some(reader.cursor());
        fault::point("database.before_batch");
        self.apply(&batch, fleet)?;
        fault::point("database.after_batch");
        self.read = read;
        Ok(self.applied - before)
    }

    /// Empties the tables, and fills them with the records through `last`. The states of archived
    /// dispatches are in no other fold, so this one begins at the beginning of the log.
    fn fill_again(&mut self, events: &Path, last: u64) -> Result<(), StoreError> {
        schema::create(&mut self.connection).map_err(error(&self.path))?;
        self.complete(false)?;
        self.applied = 0;
        fault::point("database.emptied");
        let mut fleet = Fleet::default();
        let mut reader = Reader::follow(events, Start::Beginning)?;
        let mut batch = Vec::with_capacity(BATCH);
        while reader.cursor().seq < last
            && let Some(line) = reader.next_line()?
        {
            let archives = matches!(line.record.entry.event, Event::DispatchesArchived { .. });
            if archives || batch.len() == BATCH {
                self.put_read(&mut batch, &fleet)?;
            }
            events::fold(&mut fleet, events, &line.record)?;
            batch.push(line.record);
        }
        let read = Some(reader.cursor());
        self.put_read(&mut batch, &fleet)?;
        if fleet.removed_through() > 0 {
            self.add_measured(&events.with_file_name("metrics"))?;
        }
        fault::point("database.filled");
        self.complete(true)?;
        self.read = read;
        Ok(())
    }

    /// Applies records that were read in sequence. Where events are removed, seqs are missing.
    fn put_read(&mut self, batch: &mut Vec<Record>, fleet: &Fleet) -> Result<(), StoreError> {
        let Some(last) = batch.last().map(|record| record.seq) else { return Ok(()) };
        self.put(batch, last, fleet)?;
        batch.clear();
        Ok(())
    }

    /// Adds the use of dispatches whose events are removed, from their metrics.
    fn add_measured(&mut self, folder: &Path) -> Result<(), StoreError> {
        let fail = error(&self.path);
        let transaction = self.connection.transaction().map_err(&fail)?;
        let mut failed = Ok(());
        metrics::each_dispatch(folder, |at, end| {
            if failed.is_ok() {
                failed = sums::add_measured(&transaction, at, end);
            }
        })?;
        failed.and_then(|()| transaction.commit()).map_err(&fail)
    }

    /// Records whether the tables have everything up to the applied seq.
    fn complete(&self, complete: bool) -> Result<(), StoreError> {
        let done = self.connection.execute("UPDATE meta SET complete = ?1", [complete]);
        done.map(drop).map_err(error(&self.path))
    }

    /// Returns tokens and cost of a dispatch, per model.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn usage_of(&self, id: &DispatchId) -> Result<Vec<ModelUsage>, StoreError> {
        let sql = "SELECT model, sum(input), sum(output), sum(cache_read), sum(cache_write), \
            sum(cost_usd)
                   FROM usage WHERE dispatch_id = ?1 GROUP BY model ORDER BY model";
        let mut statement = self.connection.prepare_cached(sql).map_err(error(&self.path))?;
        let rows =
            statement.query_map([id.as_str()], |row| usage(row, 0)).map_err(error(&self.path))?;
        rows.collect::<Result<_, _>>().map_err(error(&self.path))
    }

    /// Returns the dispatches whose CLI reports the cost of its session, apart from its tokens.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn with_totals(&self) -> Result<Vec<DispatchId>, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT DISTINCT dispatch_id FROM usage WHERE has_total";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).map_err(&fail)?;
        let ids = rows.collect::<Result<Vec<_>, _>>().map_err(&fail)?;
        Ok(ids.into_iter().filter_map(|id| id.try_into().ok()).collect())
    }

    /// Passes on the id, the role and the project of each dispatch.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn each_role(
        &self,
        mut each: impl FnMut(DispatchId, &str, &str),
    ) -> Result<(), StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT id, role, project FROM dispatches";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let mut rows = statement.query([]).map_err(&fail)?;
        while let Some(row) = rows.next().map_err(&fail)? {
            let text = |at| -> rusqlite::Result<&str> { Ok(row.get_ref(at)?.as_str()?) };
            let id = DispatchId::try_from(text(0).map_err(&fail)?.to_string());
            if let Ok(id) = id {
                each(id, text(1).map_err(&fail)?, text(2).map_err(&fail)?);
            }
        }
        Ok(())
    }

    /// Passes on the use in each hour from `from` on, which begins an hour: dispatch, begin of the
    /// hour, and the sum of its use of one model in it. The use of one dispatch comes together.
    /// Returns the seq of the newest record that the sums include.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn use_since(
        &self,
        from: Timestamp,
        mut each: impl FnMut(&DispatchId, Timestamp, &Use<'_>),
    ) -> Result<u64, StoreError> {
        let fail = error(&self.path);
        // Another process may write meanwhile; sums and seq must be of one moment.
        let moment = self.connection.unchecked_transaction().map_err(&fail)?;
        let applied = schema::applied(&moment, &self.path)?;
        let sql = "SELECT dispatch_id, hour, model, input, output, cache_read, cache_write,
                       cost_usd, has_total
                   FROM usage WHERE hour >= ?1 ORDER BY dispatch_id, hour, model";
        let mut statement = moment.prepare_cached(sql).map_err(&fail)?;
        let mut rows = statement.query([hour_of(from)]).map_err(&fail)?;
        while let Some(row) = rows.next().map_err(&fail)? {
            let text = |at| row.get::<_, String>(at).map_err(&fail);
            let found = usage(row, 2).map_err(&fail)?;
            let (id, hour) = (text(0)?, text(1)?);
            let corrupt = || {
                let why = format!("its table of use has the row {id:?} {hour:?}");
                StoreError::DbCorrupt { file: self.path.clone(), why }
            };
            let at = format!("{hour}:00:00Z").parse().map_err(|_| corrupt())?;
            let of = DispatchId::try_from(id.clone()).map_err(|_| corrupt())?;
            let has_total = row.get::<_, i64>(8).map_err(&fail)? != 0;
            each(&of, at, &used(&found, has_total));
        }
        Ok(applied)
    }
}

/// Returns the name of an hour in UTC; names have the order of the hours.
fn hour_of(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H").to_string()
}

fn usage(row: &Row<'_>, at: usize) -> rusqlite::Result<ModelUsage> {
    let count = |at| row.get::<_, i64>(at).map(i64::unsigned_abs);
    Ok(ModelUsage {
        model: row.get(at)?,
        input: count(at + 1)?,
        output: count(at + 2)?,
        cache_read: count(at + 3)?,
        cache_write: count(at + 4)?,
        cost_usd: row.get(at + 5)?,
    })
}

fn used(found: &ModelUsage, has_total: bool) -> Use<'_> {
    Use {
        model: &found.model,
        input: found.input,
        output: found.output,
        cache_read: found.cache_read,
        cache_write: found.cache_write,
        cost_usd: found.cost_usd,
        has_total,
    }
}

fn write(
    connection: &mut Connection,
    records: &[Record],
    last: u64,
    fleet: &Fleet,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    let mut touched = BTreeMap::new();
    let concerned: BTreeSet<&DispatchId> = records.iter().flat_map(concerned).collect();
    sums::reopen(&transaction, &concerned)?;
    for record in records {
        if let Event::EventsRemoved(removed) = &record.entry.event {
            archive::forget(&transaction, removed)?;
        }
        messages::add(&transaction, record)?;
        let Some(id) = &record.entry.dispatch_id else { continue };
        add_usage(&transaction, id, record)?;
        match fleet.get(id) {
            Some(dispatch) => drop(touched.insert(id, dispatch)),
            None => archive::add_late(&transaction, id, record)?,
        }
    }
    for dispatch in touched.values() {
        put_dispatch(&transaction, dispatch)?;
        if dispatch.is_finished() {
            archive::put(&transaction, dispatch, ancestor(fleet, dispatch).created_seq)?;
        }
    }
    sums::settle(&transaction, &concerned, fleet)?;
    transaction.execute("UPDATE meta SET applied_seq = ?1", [count(last)])?;
    transaction.commit()
}

/// Returns the dispatches whose use, or whose place in the fleet, a record may change.
fn concerned(record: &Record) -> Vec<&DispatchId> {
    if let Event::DispatchesArchived { families } = &record.entry.event {
        families.iter().flatten().map(|one| &one.id).collect()
    } else if let Event::DispatchesRestored(restored) = &record.entry.event {
        restored.ids.iter().collect()
    } else {
        record.entry.dispatch_id.iter().collect()
    }
}

fn add_usage(
    transaction: &Transaction<'_>,
    id: &DispatchId,
    record: &Record,
) -> rusqlite::Result<()> {
    match Use::of(&record.entry.event) {
        Some(used) => put_usage(transaction, id, record.ts, &used),
        None => Ok(()),
    }
}

fn put_usage(
    transaction: &Transaction<'_>,
    id: &DispatchId,
    at: Timestamp,
    used: &Use<'_>,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO usage (dispatch_id, model, hour, input, output, cache_read, \
        cache_write, cost_usd, has_total)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
               ON CONFLICT (dispatch_id, model, hour) DO UPDATE SET
                   input = input + excluded.input,
                   output = output + excluded.output,
                   cache_read = cache_read + excluded.cache_read,
                   cache_write = cache_write + excluded.cache_write,
                   cost_usd = cost_usd + excluded.cost_usd,
                   has_total = max(has_total, excluded.has_total)";
    let tokens = [used.input, used.output, used.cache_read, used.cache_write].map(count);
    transaction.prepare_cached(sql)?.execute(params![
        id.as_str(),
        used.model,
        hour_of(at),
        tokens[0],
        tokens[1],
        tokens[2],
        tokens[3],
        // A bill counts no negative amounts either.
        used.cost_usd.max(0.0),
        used.has_total
    ])?;
    Ok(())
}

fn put_dispatch(transaction: &Transaction<'_>, dispatch: &Dispatch) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO dispatches (id, role, category, project, feature, backend, \
        model, parent,
                   state, created_at, since, turns, attempts, cost_usd, input, output, \
                   cache_read, cache_write)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, \
               ?17, ?18)";
    let (created, spend) = (&dispatch.created, &dispatch.spend);
    transaction.prepare_cached(sql)?.execute(params![
        dispatch.id.as_str(),
        created.role,
        created.category,
        created.project_name(),
        created.feature,
        created.backend,
        dispatch.model_in_use(),
        created.parent.as_ref().map(DispatchId::as_str),
        dispatch.state(),
        format!("{:.3}", dispatch.created_at),
        format!("{:.3}", dispatch.since),
        dispatch.turns,
        dispatch.attempts,
        spend.cost_usd,
        count(spend.input),
        count(spend.output),
        count(spend.cache_read),
        count(spend.cache_write),
    ])?;
    Ok(())
}

/// Limits a number: SQLite's integers are signed, and their sums must not overflow whatever an
/// agent claims.
fn count(value: u64) -> i64 {
    const LARGEST: u64 = 1 << 53;
    i64::try_from(value.min(LARGEST)).unwrap_or(i64::MAX)
}

fn error(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    move |source| {
        let file = path.to_path_buf();
        match source.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                StoreError::DbCorrupt { file, why: source.to_string() }
            }
            None if matches!(source, rusqlite::Error::FromSqlConversionFailure(..)) => {
                StoreError::DbCorrupt { file, why: source.to_string() }
            }
            Some(ErrorCode::DiskFull) => StoreError::DbFull { file, source },
            _ => StoreError::Db { file, source },
        }
    }
}

/// Moves the database with its WAL to `muleteer.db.corrupt-N`. SQLite would replay a WAL that
/// stayed into the new database.
fn move_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let with = |suffix: &str| {
        let mut name = path.as_os_str().to_os_string();
        name.push(suffix);
        PathBuf::from(name)
    };
    let mut n = 1;
    while with(&format!(".corrupt-{n}")).exists() {
        n += 1;
    }
    // The database comes last: after a death in between, the next start finds it damaged again.
    for part in ["-wal", "-shm", ""] {
        let from = with(part);
        match fs::rename(&from, with(&format!(".corrupt-{n}{part}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io(&from, "move aside")(error));
            }
            _ => {}
        }
    }
    Ok(with(&format!(".corrupt-{n}")))
}
