//! Compresses the output of agents that have ended, in its place: every reader takes both forms.
//!
//! ```text
//!   nobody speaks to it ──▶ its lock ──▶ each segment is compressed, then removed
//! ```
//!
//! No event says so, because nothing else follows from it. A daemon that is killed in between
//! leaves a segment in both forms, and the next pass continues.

use crate::daemon::clean::runs::Open;
use crate::daemon::context::Daemon;
use crate::dispatch::error::internal;
use crate::ledger::archive;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::{Dispatch, retention};
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::WireError;
use muleteer_shim::attach::{self, Liveness};
use muleteer_shim::spool;
use std::io;
use std::sync::Arc;

/// The age from which on output and logs are compressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    pub now: Timestamp,
    pub age: SignedDuration,
}

/// Whether a dispatch has ended and has output that is not compressed. Blocks for a moment.
pub(super) fn exists(daemon: &Daemon, dispatch: &Dispatch) -> bool {
    dispatch.is_finished() && is_plain(daemon, &dispatch.id)
}

fn is_plain(daemon: &Daemon, id: &DispatchId) -> bool {
    !spool::is_compressed(&daemon.paths.spool(id.as_str()))
}

/// Returns the ids of the dispatches with output that is not compressed, ended or not. Blocks.
pub(super) fn plain(daemon: &Daemon) -> Vec<DispatchId> {
    let mut found = with_files(daemon);
    found.retain(|id| is_plain(daemon, id));
    found
}

/// Returns the ids of the dispatches with files. Blocks.
pub(super) fn with_files(daemon: &Daemon) -> Vec<DispatchId> {
    let entries = std::fs::read_dir(daemon.paths.agents()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| DispatchId::try_from(entry.file_name().into_string().ok()?).ok())
        .collect()
}

/// Compresses the output of a dispatch that ended long enough ago, unless its run can still go on.
/// Returns how many bytes that freed; without `apply` the size of what would be compressed. `None`
/// if it stays as it is. The caller holds the lock of the dispatch ([`Daemon::creating`]).
///
/// # Errors
/// The archive cannot be read. The inner error is the disk's: what it concerns stays as it is.
pub(super) async fn compress(
    daemon: &Arc<Daemon>,
    id: &DispatchId,
    due: Due,
    open: &Arc<Open>,
    apply: bool,
) -> Result<io::Result<Option<u64>>, WireError> {
    let Some(dispatch) = archive::known(daemon, id)? else { return Ok(Ok(None)) };
    let (of, open) = (daemon.clone(), open.clone());
    let done = tokio::task::spawn_blocking(move || {
        let is_open = |run: &str| open.has(&of, run);
        if !exists(&of, &dispatch) || !retention::is_removable(&dispatch, due.now, due.age, is_open)
        {
            return Ok(None);
        }
        let folder = of.paths.agent(dispatch.id.as_str());
        // The shim has a few last steps after the end of its agent.
        let Liveness::Dead(lock) = attach::probe(&folder)? else { return Ok(None) };
        let spool = of.paths.spool(dispatch.id.as_str());
        let done = match apply {
            true => spool::compress(&spool)?,
            false => spool::plain_bytes(&spool)?,
        };
        drop(lock);
        Ok(Some(done))
    });
    done.await.map_err(|error| internal(&error.to_string()))
}
