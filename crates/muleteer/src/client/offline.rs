//! Answers without a daemon: the files, folded by the same functions that the daemon uses.
//!
//! A client never probes an agent's lock, because probing takes it. It therefore shows the last
//! *recorded* state: an agent may have ended since, and the next daemon will find out.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use muleteer_backends::TRAITS;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::{Fleet, LookupError};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{DaemonStatus, DispatchStatus, StatusReport, ThreadInFull};
use muleteer_store::StoreError;
use muleteer_store::archive::{Archive, ArchiveError};
use muleteer_store::events::{fold_everything, fold_fleet};
use muleteer_supervisor::conversation::view::unfound;
use muleteer_supervisor::conversation::{older, view as thread_view};
use muleteer_supervisor::dispatch::view;
use muleteer_supervisor::question::view::of_runs;
use std::path::PathBuf;
use std::sync::Arc;

/// Tells the user that the output comes from disk.
pub fn say_so(context: &Context) {
    let (socket, disk) = (context.socket.display(), "showing the last state recorded on disk");
    context.out.note(match context.is_held() {
        true => format!("a daemon is running but cannot be reached at {socket}: {disk}"),
        false => format!("no daemon is running: {disk}"),
    });
}

/// Folds all recorded events into a fleet.
///
/// # Errors
/// When the events cannot be read; a state directory without any is an empty fleet.
pub fn fleet(context: &Context) -> Result<Fleet, Failure> {
    fold_fleet(&context.paths.events()).map(|(fleet, _)| fleet).map_err(stored)
}

/// Returns what the daemon would answer to `status`.
///
/// # Errors
/// As [`fleet`], and when `id` does not mean exactly one dispatch.
pub fn status(
    context: &Context,
    id: Option<&str>,
    archived: bool,
) -> Result<StatusReport, Failure> {
    let fleet = fleet(context)?;
    let files = &Files::of(context);
    let mut hidden = 0;
    let dispatches = match id {
        Some(id) => {
            let dispatch = lookup(&fleet, files, id)?;
            let task = view::task(&dispatch, &context.paths);
            vec![DispatchStatus { task, ..view::in_full(&fleet, &dispatch) }]
        }
        None if archived => {
            let all = everything(&fleet, files, None)?;
            all.iter().map(|dispatch| view::status(&fleet, dispatch)).collect()
        }
        None => {
            hidden = fleet.archived();
            view::statuses(&fleet)
        }
    };
    let run_questions = id.map_or_else(|| of_runs(&fleet), |_| vec![]);
    Ok(StatusReport { daemon: stopped(context), dispatches, archived: hidden, run_questions })
}

/// Returns the status of one dispatch.
///
/// # Errors
/// As [`fleet`], and when `id` does not mean exactly one dispatch.
pub fn find(context: &Context, id: &str) -> Result<DispatchStatus, Failure> {
    let fleet = fleet(context)?;
    Ok(view::status(&fleet, &*lookup(&fleet, &Files::of(context), id)?))
}

/// Returns the status of all `ids` if every one has ended; with `any`, of those that have ended, if
/// there are any.
///
/// # Errors
/// As [`find`].
pub fn ended(
    context: &Context,
    ids: &[String],
    any: bool,
) -> Result<Option<Vec<DispatchStatus>>, Failure> {
    let fleet = fleet(context)?;
    let files = Files::of(context);
    let found: Vec<Arc<Dispatch>> =
        ids.iter().map(|id| lookup(&fleet, &files, id)).collect::<Result<_, _>>()?;
    let over: Vec<_> = found.iter().filter(|dispatch| dispatch.is_finished_or_idle()).collect();
    let is_enough = if any { !over.is_empty() } else { over.len() == found.len() };
    Ok(is_enough.then(|| over.into_iter().map(|dispatch| view::status(&fleet, dispatch)).collect()))
}

/// Returns the daemon's part of a report if no daemon runs.
pub fn stopped(context: &Context) -> DaemonStatus {
    DaemonStatus {
        running: false,
        pid: None,
        version: None,
        socket: Some(context.socket.display().to_string()),
        config_faults: vec![],
        role_faults: vec![],
    }
}

/// The files that have a fleet and its archive.
#[derive(Debug)]
pub struct Files {
    pub events: PathBuf,
    pub database: PathBuf,
}

impl Files {
    pub fn of(context: &Context) -> Self {
        Self { events: context.paths.events(), database: context.paths.database() }
    }
}

/// Returns the only dispatch whose id begins with `id`, which may be archived.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`; when the files cannot be read.
pub fn lookup(fleet: &Fleet, files: &Files, id: &str) -> Result<Arc<Dispatch>, Failure> {
    let found = match Archive::new(fleet, &files.database, TRAITS).find(id) {
        Ok(dispatch) => Ok(dispatch),
        Err(ArchiveError::Lookup(error)) => Err(error),
        // The events have all that a database lacks; folding them takes longer.
        Err(ArchiveError::Behind(_) | ArchiveError::Store(_)) => {
            fold_everything(&files.events).map_err(stored)?.find(id).cloned()
        }
    };
    match found {
        Ok(dispatch) => Ok(dispatch),
        Err(error @ LookupError::Unknown(_)) => Err(Failure::of(ErrorCode::NotFound, &error)
            .hint("run `muleteer status` to list them")
            .dispatch(id)),
        Err(error @ LookupError::Ambiguous { .. }) => {
            Err(Failure::of(ErrorCode::Ambiguous, &error)
                .hint("give a longer part of the id")
                .dispatch(id))
        }
    }
}

/// Returns all dispatches, the archived ones too, in the order of their creation. With `states`,
/// only those archived ones that are in one of them.
///
/// # Errors
/// When the files cannot be read.
pub fn everything(
    fleet: &Fleet,
    files: &Files,
    states: Option<&[&str]>,
) -> Result<Vec<Arc<Dispatch>>, Failure> {
    let mut all: Vec<Arc<Dispatch>> = fleet.iter().cloned().collect();
    let archive = Archive::new(fleet, &files.database, TRAITS);
    let read = archive.each(0, states, |dispatch| {
        all.push(Arc::new(dispatch));
        true
    });
    if read.is_err() {
        let is_wanted = |dispatch: &&Arc<Dispatch>| {
            fleet.get(&dispatch.id).is_some()
                || states.is_none_or(|states| states.contains(&dispatch.state()))
        };
        let whole = fold_everything(&files.events).map_err(stored)?;
        all = whole.iter().filter(is_wanted).cloned().collect();
    }
    all.sort_by_key(|dispatch| dispatch.created_seq);
    Ok(all)
}

/// Returns the only thread whose id begins with `id`.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn thread<'a>(fleet: &'a Fleet, id: &str) -> Result<&'a Thread, Failure> {
    match fleet.conversations.find(id) {
        Ok(thread) => Ok(thread),
        Err(error) => Err(unfound(&error).into()),
    }
}

/// Returns the only thread whose id begins with `id`, with all its messages.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`; when the files cannot be read.
pub fn thread_in_full(fleet: &Fleet, files: &Files, id: &str) -> Result<ThreadInFull, Failure> {
    let found = thread(fleet, id)?;
    if let Ok(Some(document)) = older::from_disk(found, fleet, &files.database) {
        return Ok(document);
    }
    // The events have all that a database lacks; folding them takes longer.
    let whole = fold_everything(&files.events).map_err(stored)?;
    Ok(thread_view::in_full(thread(&whole, id)?, &whole))
}

/// Converts an error of the files, with its location and a hint.
pub fn stored(error: StoreError) -> Failure {
    let failure = Failure::of(error.code(), &error).file(error.file()).at(error.line(), None);
    failure.hint(error.hint())
}
