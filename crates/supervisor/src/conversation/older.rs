//! Reads the messages that are in the database only, because they left the memory.

use crate::conversation::view;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal};
use crate::ledger::archive::{PATIENCE, behind, patience, projected};
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{ThreadInFull, WireError};
use muleteer_store::StoreError;
use muleteer_store::db::Projection;
use std::path::Path;
use std::sync::Arc;

/// Runs a query about a thread of which the database has every message that left the memory, with
/// its last state. Returns `None` if none has left it.
async fn ask<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    query: impl FnOnce(&Projection) -> Result<T, StoreError> + Send + 'static,
) -> Result<Option<T>, WireError> {
    let Some((_, left_at)) = thread.messages.left() else { return Ok(None) };
    ask_at(daemon, left_at, query).await.map(Some)
}

/// Runs a query once the database has all records through `seq`.
async fn ask_at<T: Send + 'static>(
    daemon: &Arc<Daemon>,
    seq: u64,
    query: impl FnOnce(&Projection) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, WireError> {
    if !projected(daemon, seq, patience(daemon, PATIENCE)).await {
        return Err(behind(daemon, still_reading()));
    }
    let path = daemon.paths.database();
    let read = tokio::task::spawn_blocking(move || match Projection::open_read_only(&path)? {
        Some(database) => query(&database).map(Some),
        None => Ok(None),
    });
    match read.await.map_err(|error| internal(&error.to_string()))? {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(behind(daemon, still_reading())),
        Err(error) => Err(fault(error.code(), &error.to_string(), &error.hint())),
    }
}

fn still_reading() -> WireError {
    fault(
        ErrorCode::Busy,
        "the daemon is reading its older messages from the events again",
        "try again in a minute",
    )
}

/// Returns the message with this key, kept in memory or not.
///
/// # Errors
/// `E_BUSY` while the database is filled again; its error.
pub(super) async fn by_key(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    key: &str,
) -> Result<Option<Arc<Message>>, WireError> {
    match id_by_key(daemon, thread, key).await? {
        Some(id) => message(daemon, thread, &id).await,
        None => Ok(None),
    }
}

/// Returns the id of the message with this key, kept in memory or not. It does not wait for the
/// last states of older messages: while agents work, each wait takes a pause of the projection,
/// and an adapter that restarts submits its whole history again.
///
/// # Errors
/// `E_BUSY` while the database is filled again; its error.
pub(super) async fn id_by_key(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    key: &str,
) -> Result<Option<String>, WireError> {
    if let Some(known) = thread.by_key(key) {
        return Ok(Some(known.id.clone()));
    }
    let Some((through, _)) = thread.messages.left() else { return Ok(None) };
    let (id, key) = (thread.id().to_string(), key.to_string());
    let query = move |database: &Projection| database.message_with_key(&id, &key);
    Ok(ask_at(daemon, through, query).await?.map(|found| found.id))
}

/// Whether an adapter's request other than a message was handled.
///
/// # Errors
/// `E_BUSY` while the database is filled again; its error.
pub(super) async fn has_signal(
    daemon: &Arc<Daemon>,
    adapter: &str,
    source: &str,
) -> Result<bool, WireError> {
    let fleet = daemon.snapshot();
    let Some(known) = fleet.conversations.adapter(adapter) else { return Ok(false) };
    if known.signals.contains(source) {
        return Ok(true);
    }
    let Some(through) = known.signals.left() else { return Ok(false) };
    let (adapter, source) = (adapter.to_string(), source.to_string());
    let query = move |database: &Projection| database.has_signal(&adapter, &source);
    ask_at(daemon, through, query).await
}

/// Returns a message, kept in memory or not.
///
/// # Errors
/// `E_BUSY` while the database is filled again; its error.
pub(super) async fn message(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    message: &str,
) -> Result<Option<Arc<Message>>, WireError> {
    if let Some(known) = thread.message(message) {
        return Ok(Some(known.clone()));
    }
    let (id, message) = (thread.id().to_string(), message.to_string());
    let found = ask(daemon, thread, move |database| database.message(&id, &message)).await?;
    Ok(found.flatten().map(Arc::new))
}

/// Returns the answer to a message, kept in memory or not.
///
/// # Errors
/// `E_BUSY` while the database is filled again; its error.
pub(super) async fn answer_to(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    message: &str,
) -> Result<Option<Arc<Message>>, WireError> {
    if let Some(known) = thread.answer_to(message) {
        return Ok(Some(known.clone()));
    }
    let (id, message) = (thread.id().to_string(), message.to_string());
    let found = ask(daemon, thread, move |database| database.answer_to(&id, &message)).await?;
    Ok(found.flatten().map(Arc::new))
}

/// The messages of a thread in order, page by page.
#[derive(Debug)]
pub struct Pages {
    thread: Arc<Thread>,
    /// The number of the first message.
    first: u64,
    after: u64,
}

impl Pages {
    pub fn of(thread: Arc<Thread>) -> Self {
        Self { thread, first: 0, after: 0 }
    }

    /// The messages from this number on, counted from 0.
    pub fn since(thread: Arc<Thread>, number: u64) -> Self {
        Self { thread, first: number, after: 0 }
    }

    pub fn thread(&self) -> &Thread {
        &self.thread
    }

    /// Returns the next messages; none at the end.
    ///
    /// # Errors
    /// `E_BUSY` while the database is filled again; its error.
    pub async fn next(&mut self, daemon: &Arc<Daemon>) -> Result<Vec<Arc<Message>>, WireError> {
        let through = self.thread.messages.left().map_or(0, |(through, _)| through);
        let mut page = vec![];
        if let Some(before) = std::mem::take(&mut self.first).checked_sub(1) {
            self.after = self.place(daemon, before).await?;
        }
        if self.after < through {
            let (id, after) = (self.thread.id().to_string(), self.after);
            let query = move |database: &Projection| database.messages(&id, after, through);
            page = ask(daemon, &self.thread, query).await?.unwrap_or_default();
        }
        let Some((last, _)) = page.last() else {
            let kept = self.thread.messages.places().filter(|(place, _)| *place > self.after);
            let rest = kept.map(|(_, message)| message.clone()).collect();
            self.after = u64::MAX;
            return Ok(rest);
        };
        self.after = *last;
        Ok(page.into_iter().map(|(place, stored)| self.newest(place, stored)).collect())
    }

    /// Returns the place of the message with this number.
    async fn place(&self, daemon: &Arc<Daemon>, number: u64) -> Result<u64, WireError> {
        if let Some((_, place)) = self.thread.messages.numbered(number) {
            return Ok(place);
        }
        let id = self.thread.id().to_string();
        let query = move |database: &Projection| database.message_seq(&id, number);
        Ok(ask(daemon, &self.thread, query).await?.flatten().unwrap_or(u64::MAX))
    }

    /// Returns the state of this thread's moment: a kept message may have moved since.
    fn newest(&self, place: u64, stored: Message) -> Arc<Message> {
        self.thread.messages.get(place).cloned().unwrap_or_else(|| Arc::new(stored))
    }
}

/// Returns a thread with all its messages from the files of a daemon that does not run. `None` if
/// the database lacks some.
///
/// # Errors
/// The error of the database.
pub fn from_disk(
    thread: &Thread,
    fleet: &Fleet,
    database: &Path,
) -> Result<Option<ThreadInFull>, StoreError> {
    let mut document = view::in_full(thread, fleet);
    let Some((through, left_at)) = thread.messages.left() else { return Ok(Some(document)) };
    let database = match Projection::open_read_only(database)? {
        Some(database) if database.applied_now()? >= left_at => database,
        _ => return Ok(None),
    };
    let (mut all, mut after) = (vec![], 0);
    loop {
        let page = database.messages(thread.id(), after, through)?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        all.extend(page.into_iter().map(|(place, stored)| {
            let kept = thread.messages.get(place);
            view::message(thread, kept.map_or(&stored, |kept| kept), fleet)
        }));
    }
    let kept = thread.messages.places().filter(|(place, _)| *place > through);
    all.extend(kept.map(|(_, one)| view::message(thread, one, fleet)));
    document.messages = all;
    Ok(Some(document))
}
