//! Archives finished dispatches, and restores those that go on
//! (docs/design/event-log.md, "Finished dispatches leave the memory").
//!
//! ```text
//!  due ─▶ the database has their states ─▶ DispatchesArchived (durable, folded: not in the fleet)
//!  a message ─▶ their events can be read ─▶ DispatchesRestored (durable, folded: in the fleet)
//! ```

use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::error::{fault, internal, unappended};
use crate::ledger::try_append;
use crate::spec_run::host::LIVE;
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::archive::{Part, due};
use muleteer_model::dispatch::fleet::{Fleet, LookupError};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Archived, Entry, Event, Restored};
use muleteer_model::monitor::healing::step;
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::archive::{Archive, ArchiveError};
use muleteer_store::db::Projection;
use muleteer_store::events::part;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two looks at the fleet.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest wait for the database to have all records.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest wait for a database that is filled again.
const FILLED: Duration = Duration::from_secs(50);

/// Archives dispatches for as long as the daemon runs.
pub async fn keep(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    changes.mark_changed();
    while changes.changed().await.is_ok() {
        loop {
            let fleet = changes.borrow_and_update().clone();
            let families = to_archive(&daemon, &fleet);
            if families.is_empty() || !archive(&daemon, families).await {
                break;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn to_archive(daemon: &Daemon, fleet: &Fleet) -> Vec<Vec<Archived>> {
    let keep = usize::try_from(daemon.settings.retention.in_memory).unwrap_or(usize::MAX);
    due(fleet, keep, |dispatch| {
        is_held(daemon, &dispatch.id, &dispatch.created.by) || step::needs(fleet, dispatch)
    })
}

/// Whether a dispatch stays in the fleet although it is old.
pub(crate) fn is_held(daemon: &Daemon, id: &DispatchId, by: &str) -> bool {
    // Its actors may still complete its journal.
    daemon.agents.has(id)
        || daemon.caches.secrets.are_left(id)
        || by.strip_prefix("run/").is_some_and(|run| {
            daemon.runs.find(run).is_some() || daemon.paths.runs().join(run).join(LIVE).exists()
        })
}

/// Archives families of dispatches. Returns false if that failed; a later attempt may succeed.
pub(crate) async fn archive(daemon: &Daemon, families: Vec<Vec<Archived>>) -> bool {
    let newest = families.iter().flatten().map(|one| one.last_seq).max().unwrap_or_default();
    // The states must be in the database before they leave the fleet.
    if !projected(daemon, newest, Duration::MAX).await {
        return false;
    }
    // The metrics take the sums of an end from the fleet; without it they would read the log again.
    let mut measured = daemon.measured.subscribe();
    let reached = measured.wait_for(|measured| *measured >= newest);
    let _ = tokio::time::timeout(PATIENCE, reached).await;
    fault::point("archive.stored");
    // A message that is being sent to one of them reopens it first, or restores it.
    let alone = daemon.creating_none().await;
    let event = Event::DispatchesArchived { families };
    let archived = daemon.fleet.borrow().archived();
    // On a full disk nothing is archived: waiting would keep all messages from their dispatches.
    let appended = try_append(daemon, vec![unasked(event)]).await.is_ok();
    drop(alone);
    fault::point("archive.recorded");
    // None left if all have changed meanwhile: the next look decides again.
    appended && daemon.fleet.borrow().archived() > archived
}

/// Waits until the database has all records through `seq`. Returns false if that takes too long.
pub(crate) async fn projected(daemon: &Daemon, seq: u64, patience: Duration) -> bool {
    let mut applied = daemon.projected.subscribe();
    let wait = applied.wait_for(|applied| *applied >= seq);
    tokio::time::timeout(patience, wait).await.is_ok_and(|applied| applied.is_ok())
}

/// Returns how long to wait for the database: not at all while waiting cannot help.
pub(crate) fn patience(daemon: &Daemon, usual: Duration) -> Duration {
    if daemon.unprojected.borrow().as_ref().is_some_and(lasts) { Duration::ZERO } else { usual }
}

/// Whether a person must mend the files before the database can follow the events.
fn lasts(why: &WireError) -> bool {
    const LASTING: [ErrorCode; 7] = [
        ErrorCode::EventsCorrupt,
        ErrorCode::EventsGap,
        ErrorCode::EventsShort,
        ErrorCode::EventsUnknown,
        ErrorCode::EventsVersion,
        ErrorCode::DbAhead,
        ErrorCode::DbVersion,
    ];
    LASTING.iter().any(|code| why.code == code.as_str())
}

/// Returns the error for a database that is behind, which is `busy` while waiting may help: an
/// adapter submits again what is refused by `E_BUSY`, and gives up after other errors.
pub(crate) fn behind(daemon: &Daemon, busy: WireError) -> WireError {
    match daemon.unprojected.borrow().clone() {
        None => busy,
        Some(why) if lasts(&why) => WireError { dispatch_id: busy.dispatch_id, ..why },
        Some(why) => WireError { message: format!("{}; {}", busy.message, why.message), ..busy },
    }
}

pub(crate) fn unasked(event: Event) -> Entry {
    Entry { id: random_key(), dispatch_id: None, at: None, more: false, event }
}

/// Finds a dispatch by the start of its id, in the fleet or in the archive.
///
/// # Errors
/// `E_NOT_FOUND` or `E_AMBIGUOUS`; `E_BUSY` while the archive is filled again.
pub(crate) fn find(daemon: &Daemon, prefix: &str) -> Result<Arc<Dispatch>, WireError> {
    let (fleet, database) = (daemon.snapshot(), daemon.paths.database());
    let found = Archive::new(&fleet, &database, TRAITS).find(prefix);
    found.map_err(|error| named(daemon, prefix, &error))
}

/// Returns the dispatch with this id from the fleet or the archive, if there is one.
///
/// # Errors
/// `E_BUSY` while the archive is filled again.
pub(crate) fn known(daemon: &Daemon, id: &DispatchId) -> Result<Option<Arc<Dispatch>>, WireError> {
    let (fleet, database) = (daemon.snapshot(), daemon.paths.database());
    let archive = Archive::new(&fleet, &database, TRAITS);
    let found = archive.get_through(id, &daemon.caches.archive);
    found.map_err(|error| named(daemon, id.as_str(), &error))
}

/// Returns the same as [`known`], and waits for an archive that is filled again.
///
/// # Errors
/// `E_BUSY` if that takes too long.
pub(crate) async fn known_in_time(
    daemon: &Daemon,
    id: &DispatchId,
) -> Result<Option<Arc<Dispatch>>, WireError> {
    match known(daemon, id) {
        Err(error) if error.code == ErrorCode::Busy => {
            let until = daemon.snapshot().archived_until();
            let _ = projected(daemon, until, FILLED).await;
            known(daemon, id)
        }
        known => known,
    }
}

/// Passes on the archived dispatches of a fleet, as [`Archive::each`] does. Blocks.
///
/// # Errors
/// `E_BUSY` while the archive is filled again.
pub(crate) fn each(
    daemon: &Daemon,
    fleet: &Fleet,
    from_seq: u64,
    each: impl FnMut(Dispatch) -> bool,
) -> Result<(), WireError> {
    let archive = Archive::new(fleet, &daemon.paths.database(), TRAITS).each(from_seq, None, each);
    archive.map_err(|error| WireError { dispatch_id: None, ..named(daemon, "", &error) })
}

/// Returns the error for a dispatch that cannot be given.
fn named(daemon: &Daemon, id: &str, error: &ArchiveError) -> WireError {
    match error {
        ArchiveError::Behind(_) => behind(daemon, refused(id, error)),
        _ => refused(id, error),
    }
}

pub(crate) fn refused(id: &str, error: &ArchiveError) -> WireError {
    let refusal = match error {
        ArchiveError::Lookup(error @ LookupError::Unknown(_)) => {
            fault(ErrorCode::NotFound, &error.to_string(), "run `muleteer status` to list them")
        }
        ArchiveError::Lookup(error @ LookupError::Ambiguous { .. }) => {
            fault(ErrorCode::Ambiguous, &error.to_string(), "give a longer part of the id")
        }
        ArchiveError::Behind(database) => {
            let read = Projection::progress(database).unwrap_or(0);
            let why = format!(
                "the daemon is reading its older dispatches from the events again ({read} events \
                 so far)"
            );
            fault(ErrorCode::Busy, &why, "try again in a minute")
        }
        ArchiveError::Store(error) => fault(error.code(), &error.to_string(), &error.hint()),
    };
    WireError { dispatch_id: Some(id.into()), ..refusal }
}

/// Waits until the archive has all events about a dispatch that is not in the fleet: its files may
/// have been removed a moment ago.
///
/// # Errors
/// `E_BUSY` if that takes too long.
pub(crate) async fn catch_up(daemon: &Daemon, id: &DispatchId) -> Result<(), WireError> {
    let fleet = daemon.snapshot();
    let is_here = fleet.get(id).is_some() || fleet.archived() == 0;
    let patience = patience(daemon, PATIENCE);
    if is_here || projected(daemon, fleet.seq, patience).await {
        return Ok(());
    }
    Err(named(daemon, id.as_str(), &ArchiveError::Behind(daemon.paths.database())))
}

/// Makes sure that an archived dispatch and its family are in the fleet, because it goes on. An
/// unknown dispatch is no error. The caller holds the lock of its creation, so that it is not
/// archived again meanwhile.
///
/// # Errors
/// The archive or its events cannot be read, or the restoration cannot be recorded.
pub(crate) async fn restore(daemon: &Daemon, id: &DispatchId) -> Result<(), WireError> {
    let fleet = daemon.snapshot();
    if fleet.get(id).is_some() || fleet.archived() == 0 {
        return Ok(());
    }
    // An event about it that the database lacks would be lost.
    catch_up(daemon, id).await?;
    let (database, events, wanted) = (daemon.paths.database(), daemon.paths.events(), id.clone());
    type Read = Option<(Restored, Part)>;
    let read = tokio::task::spawn_blocking(move || -> Result<Read, ArchiveError> {
        let archive = Archive::new(&fleet, &database, TRAITS).open()?;
        let Some(restored) = archive.restoring(&wanted)? else { return Ok(None) };
        // The ledger must not fail once the event is durable.
        let part = part(&events, &restored)?;
        Ok(Some((restored, part)))
    });
    let read = read.await.map_err(|error| internal(&error.to_string()))?;
    let Some((restored, part)) = read.map_err(|error| named(daemon, id.as_str(), &error))? else {
        return Ok(());
    };
    let _kept = daemon.parts.keep(restored.clone(), part);
    let event = Event::DispatchesRestored(restored);
    try_append(daemon, vec![unasked(event)]).await.map_err(|error| unappended(&error))?;
    fault::point("archive.restored");
    Ok(())
}
