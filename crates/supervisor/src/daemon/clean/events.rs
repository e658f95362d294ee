//! Removes the oldest events, if the configuration says from which age on.
//!
//! ```text
//!   what ended before is archived ──▶ the database and the metrics have it
//!     ──▶ EventsRemoved (durable) ──▶ events/begin.jsonl.zst replaced ──▶ the segments go
//! ```
//!
//! A daemon that is killed in between leaves events that are not needed any more, and the next
//! `clean` removes them.

use crate::daemon::context::Daemon;
use crate::dispatch::error::{chain, fault, internal, unappended};
use crate::ledger::archive::{archive, is_held, projected, refused, unasked};
use crate::ledger::try_append;
use jiff::{SignedDuration, Timestamp};
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::fleet::archive::families;
use muleteer_model::dispatch::fleet::removal::{self, Asked, Needed};
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{RemovedEvents, WireError};
use muleteer_store::StoreError;
use muleteer_store::archive::{Archive, ArchiveError};
use muleteer_store::events::{Removable, removable, remove_through};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// The longest wait for the database and the metrics to have all events.
const PATIENCE: Duration = Duration::from_secs(60);

/// Held during a removal. A second one at the same time would count dispatches as gone that the
/// first one has counted, and the archive would look empty.
static ONE: Mutex<()> = Mutex::const_new(());

/// Removes events that are old enough, or reports what it would remove. Returns `None` if the
/// configuration keeps all.
///
/// # Errors
/// The events cannot be read or removed, or the removal cannot be recorded.
pub(super) async fn clean(
    daemon: &Arc<Daemon>,
    apply: bool,
    by: &str,
) -> Result<Option<RemovedEvents>, WireError> {
    let Some(age) = daemon.settings.retention.events else { return Ok(None) };
    let _one = match apply {
        true => Some(ONE.lock().await),
        false => None,
    };
    let age = SignedDuration::try_from(age.as_duration()).unwrap_or(SignedDuration::MAX);
    let before = Timestamp::now().checked_sub(age).unwrap_or(Timestamp::MIN);
    let events = daemon.paths.events();
    let found = blocking(move || removable(&events, before)).await?;
    let Some(Removable { through, records, bytes }) = found else {
        return Ok(Some(RemovedEvents::default()));
    };
    let would = RemovedEvents { through, events: records, bytes, kept: 0 };
    if !apply {
        return Ok(Some(would));
    }
    archive_all(daemon, before).await?;
    let removed = decide(daemon, through, before, by).await?;
    fault::point("retention.recorded");
    let events = daemon.paths.events();
    let done = blocking(move || {
        let needed = Needed::new(&removed);
        remove_through(&events, through, |record| needed.has(record))
    });
    let done = done.await?;
    Ok(Some(RemovedEvents { events: done.gone, kept: done.kept, ..would }))
}

/// Archives all dispatches that ended before a time. Later events, such as the removal of their
/// files, are of no concern.
async fn archive_all(daemon: &Daemon, before: Timestamp) -> Result<(), WireError> {
    loop {
        let fleet = daemon.snapshot();
        let stays = |it: &Dispatch| it.since >= before || is_held(daemon, &it.id, &it.created.by);
        let due = families(&fleet, u64::MAX, stays);
        if due.is_empty() {
            return Ok(());
        }
        if !archive(daemon, due).await {
            let why = "dispatches changed, or the disk is full, while they were archived";
            return Err(fault(ErrorCode::Busy, why, "run `muleteer clean` again"));
        }
    }
}

/// Records the removal, before which all that outlives the events is written.
async fn decide(
    daemon: &Arc<Daemon>,
    through: u64,
    before: Timestamp,
    by: &str,
) -> Result<muleteer_model::event::EventsRemoved, WireError> {
    let fleet = daemon.snapshot();
    let behind = |what: &str| {
        let why = format!("{what} does not have all events yet");
        fault(ErrorCode::Busy, &why, "run `muleteer clean` again in a minute")
    };
    if !projected(daemon, fleet.seq, PATIENCE).await {
        return Err(behind("the database"));
    }
    let mut measured = daemon.measured.subscribe();
    let wait = measured.wait_for(|measured| *measured >= fleet.seq);
    if !tokio::time::timeout(PATIENCE, wait).await.is_ok_and(|waited| waited.is_ok()) {
        return Err(behind("the folder of metrics"));
    }
    let of = daemon.clone();
    let read =
        tokio::task::spawn_blocking(move || Archived::read(&of, &fleet, through, before)).await;
    let read = read.map_err(|error| internal(&error.to_string()))?;
    let archived = read.map_err(|error| refused("", &error))?;
    // No message restores one of them meanwhile.
    let alone = daemon.creating_none().await;
    let fleet = daemon.snapshot();
    let gone = archived.gone.iter().filter(|id| fleet.get(id).is_none()).count() as u64;
    let asked = Asked {
        through,
        before,
        needed: archived.needed,
        archived: fleet.archived().saturating_sub(gone),
        by: by.into(),
    };
    let Some(removed) = removal::event(&fleet, asked) else {
        let why = "too many dispatches that began before have files or unfinished work";
        return Err(fault(ErrorCode::Busy, why, "run `muleteer clean --output --apply` first"));
    };
    let event = Event::EventsRemoved(Box::new(removed.clone()));
    try_append(daemon, vec![unasked(event)]).await.map_err(|error| unappended(&error))?;
    drop(alone);
    Ok(removed)
}

/// The archived dispatches that began in the part of the log that is to be removed.
#[derive(Debug, Default)]
struct Archived {
    /// Their events must stay.
    needed: BTreeSet<DispatchId>,
    gone: Vec<DispatchId>,
}

impl Archived {
    fn read(
        daemon: &Daemon,
        fleet: &Fleet,
        through: u64,
        before: Timestamp,
    ) -> Result<Self, ArchiveError> {
        // A message continues the session of the dispatch that a thread had last.
        let talks: BTreeSet<&DispatchId> =
            fleet.conversations.iter().filter_map(|thread| thread.dispatch.as_ref()).collect();
        let in_fleet = fleet.iter().take_while(|dispatch| dispatch.created_seq <= through);
        let mut archived =
            Self { needed: in_fleet.map(|dispatch| dispatch.id.clone()).collect(), gone: vec![] };
        if fleet.archived() == 0 {
            return Ok(archived);
        }
        // The members of a family, and whether one of them is needed.
        let mut members: BTreeMap<u64, (bool, Vec<DispatchId>)> = BTreeMap::new();
        let database = Archive::new(fleet, &daemon.paths.database(), TRAITS).open()?;
        database.each_family(through, |family, dispatch| {
            if fleet.get(&dispatch.id).is_some() {
                return;
            }
            let has_clone = || {
                let clone = dispatch.created.worktree.as_deref();
                clone.is_some_and(|clone| Path::new(clone).exists())
            };
            let is_needed = dispatch.since >= before
                || talks.contains(&dispatch.id)
                || removal::is_owed_by_thread(fleet, &dispatch.created)
                || daemon.paths.agent(dispatch.id.as_str()).exists()
                || has_clone();
            let (needed, ids) = members.entry(family).or_default();
            *needed |= is_needed;
            ids.push(dispatch.id.clone());
        })?;
        for (is_needed, ids) in members.into_values() {
            match is_needed {
                true => archived.needed.extend(ids),
                false => archived.gone.extend(ids),
            }
        }
        Ok(archived)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, WireError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| internal(&error.to_string()))?;
    done.map_err(|error| fault(error.code(), &chain(&error), &error.hint()))
}
