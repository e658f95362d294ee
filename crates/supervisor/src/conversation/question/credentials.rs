//! The credentials of a run that a sign-off starts: those of its thread's opener.
//!
//! | the thread was opened by | the run's agents get | its push gets |
//! |---|---|---|
//! | `thread new` or `chat` | the environment of that command | its `GH_TOKEN` and the like, while this daemon runs |
//! | an adapter, a schedule or a run | the environment of the daemon | that of the daemon |

use crate::conversation::adapter::place::variables;
use crate::conversation::files;
use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::question::copies::blocking;
use muleteer_backends::passing::for_push;
use muleteer_model::conversation::limits::OURSELVES;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::id::DispatchId;
use muleteer_model::schedule;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use std::sync::Arc;

/// Returns the variables for the push of a run that a sign-off began. It has no client that could
/// give them; other runs get none here.
pub(crate) fn for_push_of_sign_off(daemon: &Daemon, request: &v1::Run) -> Vec<(String, String)> {
    match (&request.thread, &request.spec_shown) {
        (Some(thread), Some(_)) => for_push_of(daemon, thread),
        _ => vec![],
    }
}

/// Returns the variables for the push of a run that this thread starts.
fn for_push_of(daemon: &Daemon, thread: &str) -> Vec<(String, String)> {
    let fleet = daemon.snapshot();
    let Some(thread) = fleet.conversations.get(thread) else { return vec![] };
    if is_of_daemon(thread) {
        return for_push(variables());
    }
    let id = DispatchId::try_from(thread.id().to_string());
    id.map(|id| daemon.caches.push_of_threads.of(&id)).unwrap_or_default()
}

/// Whether the environment of the daemon is that of the thread's agents.
fn is_of_daemon(thread: &Thread) -> bool {
    let by = &*thread.opened.by;
    thread.has_adapter() || schedule::is_opener(by) || by == OURSELVES
}

/// Returns the names of the variables for the push that the opener gave and this daemon lacks.
///
/// # Errors
/// The template of the thread cannot be read.
pub(super) async fn lost(daemon: &Arc<Daemon>, thread: &Thread) -> Result<Vec<String>, WireError> {
    let known = for_push_of(daemon, thread.id());
    let given = withheld(daemon, thread).await?.push;
    let is_known = |name: &String| known.iter().any(|(known, _)| known == name);
    Ok(given.into_iter().filter(|name| !is_known(name)).collect())
}

/// Checks that the agents of a run would have the keys of the thread's opener.
///
/// # Errors
/// `E_UNSUPPORTED`: they were removed when the thread was archived.
pub(super) async fn check(daemon: &Arc<Daemon>, thread: &Thread) -> Result<(), WireError> {
    let removed = withheld(daemon, thread).await?.removed;
    if removed.is_empty() || is_of_daemon(thread) {
        return Ok(());
    }
    let message = format!(
        "thread {} was archived, which removed keys of its opener: a run would lack {}",
        thread.id(),
        removed.join(", ")
    );
    let hint = "start the run with `muleteer run` in a terminal that has them, or open another \
                thread";
    Err(fault(ErrorCode::Unsupported, &message, hint))
}

async fn withheld(daemon: &Arc<Daemon>, thread: &Thread) -> Result<files::Withheld, WireError> {
    let (daemon, id) = (daemon.clone(), thread.id().to_string());
    blocking(move || files::withheld(&daemon, &id)).await
}
