//! Removes the files that people attached to the messages of archived threads.
//!
//! A message opens an archived thread again. So its request stays, which is the template of its
//! dispatches. Its files go once no dispatch of the thread can continue: only the sessions of those
//! know their paths, and the context of a new session does not name them. The thread still shows
//! the names, lengths and hashes.
//!
//! A removal that was cut off is finished by the next one.

use crate::conversation::ATTACHED;
use crate::daemon::clean::output::{Due, with_files};
use crate::daemon::context::Daemon;
use crate::dispatch::error::{chain, internal};
use crate::ledger::archive;
use muleteer_model::conversation::thread::Thread;
use muleteer_process::fault;
use muleteer_protocol::v1::WireError;
use muleteer_store::removal;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The timeout for measuring the files of one thread.
const SIZE_PATIENCE: Duration = Duration::from_secs(10);

/// The threads whose files were removed, or would be.
#[derive(Debug, Default)]
pub(super) struct Pruned {
    pub threads: u64,
    pub bytes: u64,
    /// The removals that failed, for people.
    pub faults: Vec<String>,
}

/// Removes the attached files of threads that were archived long enough ago.
///
/// # Errors
/// The archive cannot be read.
pub(super) async fn prune(
    daemon: &Arc<Daemon>,
    due: Due,
    dry_run: bool,
) -> Result<Pruned, WireError> {
    let may_go = move |thread: &Thread| {
        thread.archived && due.now.duration_since(thread.last_activity) >= due.age
    };
    let (of, fleet) = (daemon.clone(), daemon.snapshot());
    let found = tokio::task::spawn_blocking(move || {
        let threads = fleet.conversations.iter().filter(|thread| may_go(thread));
        let ids = threads.map(|thread| thread.id().to_string());
        let ids: Vec<_> = ids.filter(|id| of.paths.thread(id).join(ATTACHED).is_dir()).collect();
        match ids.is_empty() {
            true => Ok((ids, BTreeSet::new())),
            false => sessions(&of).map(|sessions| (ids, sessions)),
        }
    });
    let (ids, sessions) = found.await.map_err(|error| internal(&error.to_string()))??;
    let mut pruned = Pruned::default();
    for id in ids.into_iter().filter(|id| !sessions.contains(id)) {
        // A message to this thread waits here. It opens the thread, or opened it just now.
        let _alone = daemon.creating(&format!("thread {id}")).await;
        if !daemon.snapshot().conversations.get(&id).is_some_and(|thread| may_go(thread)) {
            continue;
        }
        let folder = daemon.paths.thread(&id).join(ATTACHED);
        let removed = tokio::task::spawn_blocking(move || {
            let bytes = removal::tree_size(&folder, SIZE_PATIENCE)?;
            if !dry_run {
                fault::point("prune.thread_chosen");
                removal::remove_tree(&folder, removal::PATIENCE)?;
                fault::point("prune.thread_removed");
            }
            Ok::<_, std::io::Error>(bytes)
        });
        match removed.await.map_err(|error| internal(&error.to_string()))? {
            Ok(bytes) => {
                pruned.threads += 1;
                pruned.bytes += bytes;
            }
            Err(error) => pruned.faults.push(format!("thread {id}: {}", chain(&error))),
        }
    }
    Ok(pruned)
}

/// Returns the threads with a dispatch that has files, so that its session can continue. Blocks.
fn sessions(daemon: &Daemon) -> Result<BTreeSet<String>, WireError> {
    let mut threads = BTreeSet::new();
    for id in with_files(daemon) {
        let dispatch = archive::known(daemon, &id)?;
        threads.extend(dispatch.and_then(|it| it.created.thread().map(String::from)));
    }
    Ok(threads)
}
