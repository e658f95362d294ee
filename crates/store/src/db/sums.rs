//! The sums of the use of archived dispatches, so that a bill of all time reads a few rows.
//!
//! A dispatch is settled while it is archived: then its use does not change, and the tables `sums`
//! and `unpriced` include it. A transaction that touches a settled dispatch takes it out of them
//! first, and adds it again afterwards if it still is archived.

use crate::db::{Projection, count, error, schema, used};
use crate::error::StoreError;
use jiff::Timestamp;
use muleteer_model::agent::event::ModelUsage;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::cost::metric::DispatchEnd;
use muleteer_model::dispatch::cost::{Bill, By, Sums, Use};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use rusqlite::{OptionalExtension, Transaction, params};
use std::collections::BTreeSet;

/// The groupings that have sums, with their names in the tables.
const KINDS: [(By, &str); 4] =
    [(By::Role, "role"), (By::Model, "model"), (By::Day, "day"), (By::Project, "project")];
/// The name of the total, which counts each dispatch once.
const TOTAL: &str = "total";
/// The category of a dispatch that only the metrics have.
const MEASURED: &str = "(removed)";
/// SQLite would make a larger sum a number without a last digit.
const LARGEST: i64 = 1 << 60;

/// The sums of one grouping.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Grouped {
    pub rows: Vec<(String, Sums)>,
    pub total: Sums,
}

/// A dispatch with use that is in no sums.
#[derive(Debug, Clone, PartialEq)]
pub struct Open {
    pub id: DispatchId,
    pub role: String,
    pub project: String,
}

impl Projection {
    /// Returns the sums by `by` over all settled dispatches; `None` if there are no such sums.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn settled(&self, by: By) -> Result<Option<Grouped>, StoreError> {
        let Some((_, kind)) = KINDS.iter().find(|(of, _)| *of == by) else { return Ok(None) };
        let read = |kind: &str| self.sums_of(kind).map_err(error(&self.path));
        let total = read(TOTAL)?.pop().map(|(_, total)| total).unwrap_or_default();
        Ok(Some(Grouped { rows: read(kind)?, total }))
    }

    fn sums_of(&self, kind: &str) -> rusqlite::Result<Vec<(String, Sums)>> {
        let sql = "SELECT key, cost_usd, input, output, cache_read, cache_write, dispatches, \
                   unpriced FROM sums WHERE kind = ?1 AND dispatches > 0";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([kind], |row| {
            let count = |at| row.get::<_, i64>(at).map(|value| value.max(0).unsigned_abs());
            let mut sums = Sums {
                cost_usd: row.get(1)?,
                input: count(2)?,
                output: count(3)?,
                cache_read: count(4)?,
                cache_write: count(5)?,
                dispatches: count(6)?,
                ..Sums::default()
            };
            sums.unpriced.tokens = count(7)?;
            Ok((row.get(0)?, sums))
        })?;
        let mut found = rows.collect::<rusqlite::Result<Vec<(String, Sums)>>>()?;
        let sql = "SELECT model FROM unpriced WHERE kind = ?1 AND key = ?2 AND dispatches > 0";
        let mut statement = self.connection.prepare_cached(sql)?;
        for (key, sums) in found.iter_mut().filter(|(_, sums)| sums.unpriced.tokens > 0) {
            let models = statement.query_map([kind, key.as_str()], |row| row.get(0))?;
            sums.unpriced.models = models.collect::<rusqlite::Result<_>>()?;
        }
        Ok(found)
    }

    /// Passes on all use of the dispatches that are not settled, by hour, and returns these
    /// dispatches.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn open_use(
        &self,
        mut each: impl FnMut(&DispatchId, Timestamp, &Use<'_>),
    ) -> Result<Vec<Open>, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT id, role, project FROM dispatches WHERE settled = 0";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let rows =
            statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get(1)?, row.get(2)?)));
        let mut open = vec![];
        for row in rows.map_err(&fail)? {
            let (id, role, project) = row.map_err(&fail)?;
            let Ok(id) = DispatchId::try_from(id) else { continue };
            each_use(&self.connection, &id, |at, used| each(&id, at, used)).map_err(&fail)?;
            open.push(Open { id, role, project });
        }
        Ok(open)
    }

    /// Runs `read` with one state of the tables, and returns the seq of its newest record as well:
    /// another process may write meanwhile.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`; those of `read`.
    pub fn at_one_moment<T>(
        &self,
        read: impl FnOnce(&Self) -> Result<T, StoreError>,
    ) -> Result<(u64, T), StoreError> {
        let moment = self.connection.unchecked_transaction().map_err(error(&self.path))?;
        let applied = schema::applied(&moment, &self.path)?;
        Ok((applied, read(self)?))
    }
}

/// Passes on the use of one dispatch by hour and model.
fn each_use(
    connection: &rusqlite::Connection,
    id: &DispatchId,
    mut each: impl FnMut(Timestamp, &Use<'_>),
) -> rusqlite::Result<()> {
    let sql = "SELECT hour, model, input, output, cache_read, cache_write, cost_usd, has_total
               FROM usage WHERE dispatch_id = ?1 ORDER BY hour, model";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([id.as_str()])?;
    while let Some(row) = rows.next()? {
        let hour: String = row.get(0)?;
        let Ok(at) = format!("{hour}:00:00Z").parse() else { continue };
        let has_total = row.get::<_, i64>(7)? != 0;
        each(at, &used(&super::usage(row, 1)?, has_total));
    }
    Ok(())
}

/// Takes those of the dispatches out of the sums that are in them.
pub(super) fn reopen(
    transaction: &Transaction<'_>,
    ids: &BTreeSet<&DispatchId>,
) -> rusqlite::Result<()> {
    let sql = "UPDATE dispatches SET settled = 0 WHERE id = ?1 AND settled = 1";
    for id in ids {
        if transaction.prepare_cached(sql)?.execute([id.as_str()])? > 0 {
            add(transaction, id, -1)?;
        }
    }
    Ok(())
}

/// Adds those of the dispatches to the sums that `fleet` has archived.
pub(super) fn settle(
    transaction: &Transaction<'_>,
    ids: &BTreeSet<&DispatchId>,
    fleet: &Fleet,
) -> rusqlite::Result<()> {
    let sql = "UPDATE dispatches SET settled = 1 WHERE id = ?1 AND settled = 0";
    for id in ids.iter().filter(|id| fleet.get(id).is_none()) {
        if transaction.prepare_cached(sql)?.execute([id.as_str()])? > 0 {
            add(transaction, id, 1)?;
        }
    }
    Ok(())
}

/// Adds the use of one dispatch to the sums, or takes it out.
fn add(transaction: &Transaction<'_>, id: &DispatchId, sign: i64) -> rusqlite::Result<()> {
    let sql = "SELECT role, project FROM dispatches WHERE id = ?1";
    let names = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let (role, project) = transaction.prepare_cached(sql)?.query_row([id.as_str()], names)?;
    let mut bills = KINDS.map(|(by, kind)| (kind, Bill::new(by, None)));
    let mut is_paid = true;
    each_use(transaction, id, |_, used| is_paid &= used.cost_usd > 0.0)?;
    // Only use without a cost needs the prices.
    let state = if is_paid { None } else { state_of(transaction, id)? };
    for (_, bill) in &mut bills {
        state.iter().for_each(|state| bill.know(id, &state.created));
        bill.know_paid(id, &role, &project);
        each_use(transaction, id, |at, used| bill.count(id, at, used))?;
    }
    for (kind, bill) in &bills {
        for (key, row) in bill.rows() {
            put(transaction, kind, key, &bill.sums(row), sign)?;
        }
    }
    let [(_, bill), ..] = &bills;
    let total = bill.sums(bill.total());
    if total.dispatches > 0 { put(transaction, TOTAL, "", &total, sign) } else { Ok(()) }
}

/// Adds the use of a dispatch whose events are removed, as its last end has it. The tables have no
/// other use of it, or that of an earlier end.
pub(super) fn add_measured(
    transaction: &Transaction<'_>,
    at: Timestamp,
    end: &DispatchEnd,
) -> rusqlite::Result<()> {
    let id = &end.dispatch_id;
    let sql = "SELECT category FROM dispatches WHERE id = ?1";
    let mut statement = transaction.prepare_cached(sql)?;
    let category = statement.query_row([id.as_str()], |row| row.get::<_, String>(0)).optional()?;
    match category.as_deref() {
        // The events have it.
        Some(category) if category != MEASURED => return Ok(()),
        Some(_) => reopen(transaction, &BTreeSet::from([id]))?,
        None => {}
    }
    // That of an earlier end, or what the log still has of it.
    let sql = "DELETE FROM usage WHERE dispatch_id = ?1";
    transaction.prepare_cached(sql)?.execute([id.as_str()])?;
    let sql = "INSERT OR REPLACE INTO dispatches (id, role, category, project, feature, backend, \
                   model, parent, state, created_at, since, turns, attempts, cost_usd, input, \
                   output, cache_read, cache_write)
               VALUES (?1, ?2, ?3, ?4, '', ?5, NULL, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
                   ?15, ?16)";
    transaction.prepare_cached(sql)?.execute(params![
        id.as_str(),
        end.role,
        MEASURED,
        end.repository.as_ref().unwrap_or(&end.project),
        end.backend,
        end.parent.as_ref().map(DispatchId::as_str),
        end.outcome,
        format!("{:.3}", end.created_at),
        format!("{at:.3}"),
        end.turns,
        end.attempts,
        end.cost_usd,
        count(end.input),
        count(end.output),
        count(end.cache_read),
        count(end.cache_write),
    ])?;
    let models: f64 = end.models.iter().map(|used| used.cost_usd).sum();
    // A CLI may report the cost of its session apart from its tokens.
    let session = end.cost_usd - models;
    let has_total = session > 1e-9;
    let mut used: Vec<Use<'_>> = end.models.iter().map(|of| super::used(of, has_total)).collect();
    if has_total {
        let none = ModelUsage { cost_usd: session, ..ModelUsage::default() };
        used.push(Use { model: "", ..super::used(&none, true) });
    }
    for used in &used {
        super::put_usage(transaction, id, at, used)?;
    }
    let sql = "UPDATE dispatches SET settled = 1 WHERE id = ?1";
    transaction.prepare_cached(sql)?.execute([id.as_str()])?;
    add(transaction, id, 1)
}

fn state_of(transaction: &Transaction<'_>, id: &DispatchId) -> rusqlite::Result<Option<Dispatch>> {
    let sql = "SELECT dispatch FROM finished WHERE id = ?1";
    let mut statement = transaction.prepare_cached(sql)?;
    statement.query_row([id.as_str()], |row| super::archive::decoded(row, 0)).optional()
}

fn put(
    transaction: &Transaction<'_>,
    kind: &str,
    key: &str,
    sums: &Sums,
    sign: i64,
) -> rusqlite::Result<()> {
    let sql = "INSERT INTO sums (kind, key, cost_usd, input, output, cache_read, cache_write,
                   dispatches, unpriced)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
               ON CONFLICT (kind, key) DO UPDATE SET
                   cost_usd = CASE WHEN dispatches + excluded.dispatches = 0 THEN 0.0
                       ELSE min(cost_usd + excluded.cost_usd, 1.7e308) END,
                   input = min(input + excluded.input, ?10),
                   output = min(output + excluded.output, ?10),
                   cache_read = min(cache_read + excluded.cache_read, ?10),
                   cache_write = min(cache_write + excluded.cache_write, ?10),
                   dispatches = dispatches + excluded.dispatches,
                   unpriced = min(unpriced + excluded.unpriced, ?10)";
    #[allow(clippy::cast_precision_loss)] // It is 1 or -1.
    let cost = sums.cost_usd * sign as f64;
    transaction.prepare_cached(sql)?.execute(params![
        kind,
        key,
        cost,
        sign * count(sums.input),
        sign * count(sums.output),
        sign * count(sums.cache_read),
        sign * count(sums.cache_write),
        sign * count(sums.dispatches),
        sign * count(sums.unpriced.tokens),
        LARGEST,
    ])?;
    let sql = "INSERT INTO unpriced (kind, key, model, dispatches) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (kind, key, model) DO UPDATE SET
                   dispatches = dispatches + excluded.dispatches";
    for model in &sums.unpriced.models {
        transaction.prepare_cached(sql)?.execute(params![kind, key, model, sign])?;
    }
    Ok(())
}
