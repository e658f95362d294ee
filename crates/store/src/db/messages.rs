//! The table of the messages of all threads. Memory has only the newest ones of each thread; the
//! others are read here. The rows follow from the events alone.

use crate::db::{Projection, error};
use crate::error::StoreError;
use crate::hash::sha256;
use jiff::Timestamp;
use muleteer_model::conversation::event::{MessageAccepted, MessageRecorded, State};
use muleteer_model::conversation::thread::{Delivery, Message};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use rusqlite::types::Type;
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::Serialize;
use std::io;

const COLUMNS: &str = "seq, direction, at, state, reason, dispatch, content";

/// The most bytes of the texts of one page; one message may be longer.
const PAGE_BYTES: usize = 1024 * 1024;
/// The most messages of one page.
const PAGE: usize = 500;

impl Projection {
    /// Returns messages of a thread with the records that made them, oldest first: at most a page
    /// of those after the record `after` and up to the record `through`. An empty page is the last.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn messages(
        &self,
        thread: &str,
        after: u64,
        through: u64,
    ) -> Result<Vec<(u64, Message)>, StoreError> {
        let fail = error(&self.path);
        let sql = format!(
            "SELECT {COLUMNS} FROM messages WHERE thread = ?1 AND seq > ?2 AND seq <= ?3
             ORDER BY seq LIMIT {PAGE}"
        );
        let mut statement = self.connection.prepare_cached(&sql).map_err(&fail)?;
        let between = params![thread, signed(after), signed(through)];
        let mut rows = statement.query(between).map_err(&fail)?;
        let (mut page, mut bytes) = (vec![], 0);
        while bytes < PAGE_BYTES
            && let Some(row) = rows.next().map_err(&fail)?
        {
            let found = message(row).map_err(&fail)?;
            bytes += found.1.text.len();
            page.push(found);
        }
        Ok(page)
    }

    /// Returns the record that made the message of a thread with this number, from 0.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn message_seq(&self, thread: &str, number: u64) -> Result<Option<u64>, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT seq FROM messages WHERE thread = ?1 ORDER BY seq LIMIT 1 OFFSET ?2";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        let place = params![thread, signed(number)];
        let found = statement.query_row(place, |row| row.get::<_, i64>(0));
        Ok(found.optional().map_err(&fail)?.map(i64::unsigned_abs))
    }

    /// Returns the message of a thread with this id.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn message(&self, thread: &str, id: &str) -> Result<Option<Message>, StoreError> {
        self.one_message("thread = ?1 AND id = ?2", thread, id)
    }

    /// Returns the inbound message of a thread with this key.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn message_with_key(&self, thread: &str, key: &str) -> Result<Option<Message>, StoreError> {
        self.one_message("thread = ?1 AND key = ?2", thread, &hash_of(key))
    }

    /// Returns the message of a thread that answers another one.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn answer_to(&self, thread: &str, id: &str) -> Result<Option<Message>, StoreError> {
        let answer = "thread = ?1 AND id =
                      (SELECT answer FROM messages WHERE thread = ?1 AND id = ?2)";
        self.one_message(answer, thread, id)
    }

    /// Whether an adapter's request other than a message was handled.
    ///
    /// # Errors
    /// `E_DB`, `E_DB_CORRUPT`.
    pub fn has_signal(&self, adapter: &str, source: &str) -> Result<bool, StoreError> {
        let fail = error(&self.path);
        let sql = "SELECT 1 FROM signals WHERE adapter = ?1 AND key = unhex(?2)";
        let mut statement = self.connection.prepare_cached(sql).map_err(&fail)?;
        statement.exists([adapter, &hash_of(source)]).map_err(&fail)
    }

    fn one_message(
        &self,
        which: &str,
        thread: &str,
        value: &str,
    ) -> Result<Option<Message>, StoreError> {
        let fail = error(&self.path);
        let sql = format!("SELECT {COLUMNS} FROM messages WHERE {which}");
        let mut statement = self.connection.prepare_cached(&sql).map_err(&fail)?;
        let found = statement.query_row([thread, value], message).optional().map_err(&fail)?;
        Ok(found.map(|(_, message)| message))
    }
}

/// Applies an event about a message.
pub(super) fn add(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    match &record.entry.event {
        Event::MessageAccepted(accepted) => {
            let (thread, id) = (&accepted.thread, &accepted.message);
            let row = params![
                signed(record.seq),
                thread,
                id,
                Some(hash_of(&accepted.key)),
                "in",
                record.ts.to_string(),
                State::Accepted.as_str(),
                encoded(&**accepted)?,
            ];
            transaction.prepare_cached(INSERT)?.execute(row)?;
        }
        Event::MessageRecorded(recorded) => {
            let (thread, id) = (&recorded.thread, &recorded.message);
            let row = params![
                signed(record.seq),
                thread,
                id,
                None::<String>,
                "out",
                record.ts.to_string(),
                State::Recorded.as_str(),
                encoded(&**recorded)?,
            ];
            transaction.prepare_cached(INSERT)?.execute(row)?;
            let sql = "UPDATE messages SET answer = ?3
                       WHERE thread = ?1 AND id = ?2 AND answer IS NULL";
            let mut statement = transaction.prepare_cached(sql)?;
            for answered in &recorded.answers {
                statement.execute(params![thread, answered, id])?;
            }
        }
        Event::MessageState { thread, message, state, reason, dispatch } => {
            // As in the fold: the last state stays.
            let sql = "UPDATE messages
                       SET state = ?3, reason = ?4, dispatch = coalesce(?5, dispatch)
                       WHERE thread = ?1 AND id = ?2 AND state IN
                       ('accepted', 'queued', 'delivered', 'read', 'recorded', 'sent')";
            let dispatch = dispatch.as_ref().map(DispatchId::as_str);
            let row = params![thread, message, state.as_str(), reason, dispatch];
            transaction.prepare_cached(sql)?.execute(row)?;
        }
        Event::AdapterSignal(signal) => {
            let sql = "INSERT OR IGNORE INTO signals (adapter, key) VALUES (?1, unhex(?2))";
            let row = params![signal.adapter, hash_of(&signal.source)];
            transaction.prepare_cached(sql)?.execute(row)?;
        }
        _ => {}
    }
    Ok(())
}

/// The first message with its key counts, as in the fold.
const INSERT: &str = "INSERT OR IGNORE INTO messages
    (seq, thread, id, key, direction, at, state, reason, content)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '', ?8)";

/// The first 16 bytes of the SHA-256 of a key, in hex.
fn hash_of(key: &str) -> String {
    let mut hash = sha256(key.as_bytes());
    hash.truncate(32);
    hash
}

fn message(row: &Row<'_>) -> rusqlite::Result<(u64, Message)> {
    let seq = row.get::<_, i64>(0)?.unsigned_abs();
    let direction: String = row.get(1)?;
    let at: Timestamp = row.get::<_, String>(2)?.parse().map_err(|error| bad(2, error))?;
    let content = row.get_ref(6)?.as_str()?;
    let mut message = match direction.as_str() {
        "in" => {
            let accepted: MessageAccepted =
                serde_json::from_str(content).map_err(|error| bad(6, error))?;
            Message::accepted(&accepted, at)
        }
        _ => {
            let recorded: MessageRecorded =
                serde_json::from_str(content).map_err(|error| bad(6, error))?;
            Message::recorded(&recorded, at)
        }
    };
    let state = serde_json::Value::String(row.get(3)?);
    message.state = serde_json::from_value(state).map_err(|error| bad(3, error))?;
    message.reason = row.get(4)?;
    if let Some(id) = row.get::<_, Option<String>>(5)? {
        let dispatch = DispatchId::try_from(id)
            .map_err(|error| bad(5, io::Error::other(error.to_string())))?;
        message.delivery = Some(Delivery { dispatch, first: false, withdrawn: 0 });
    }
    Ok((seq, message))
}

fn bad(at: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, Type::Text, Box::new(error))
}

fn encoded(content: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(content)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}
