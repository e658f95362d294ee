//! Removes the files of dispatches that ended long ago: `agents/<id>` with output, prompts and
//! request. The events stay, and so does all state that follows from them.
//!
//! ```text
//!   nobody speaks to it ──▶ its lock ──▶ FilesRemoved (durable) ──▶ the directory goes
//! ```
//!
//! If the daemon is killed in between, the next prune removes the rest.

use crate::daemon::clean::output::Due;
use crate::daemon::clean::{Candidates, candidates};
use crate::daemon::context::Daemon;
use crate::dispatch::error::{chain, unappended};
use crate::ledger::{archive, entry, try_append};
use crate::spec_run::host::LIVE;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::{Dispatch, retention};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_process::fault;
use muleteer_protocol::v1::{Reply, WireError};
use muleteer_shim::attach::{self, Liveness};
use muleteer_store::removal;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;

/// The number of dispatches in one request: the client sees progress, and no request blocks the
/// daemon for long.
const BATCH: usize = 200;
/// At most this many failures are reported.
const FAULTS: usize = 5;
/// The timeout for measuring the files of one dispatch.
const SIZE_PATIENCE: Duration = Duration::from_secs(10);

/// Removes files that may go, starting with dispatches that were created at `from_seq` or later.
///
/// # Errors
/// The removal cannot be recorded; earlier removals stay.
pub async fn prune(
    daemon: &Arc<Daemon>,
    older_than_s: u64,
    dry_run: bool,
    from_seq: u64,
    by: &str,
) -> Result<Reply, WireError> {
    let age = SignedDuration::from_secs(i64::try_from(older_than_s).unwrap_or(i64::MAX));
    let (of, now) = (daemon.clone(), Timestamp::now());
    let due = Due { now, age };
    let may_go = move |dispatch: &Dispatch| {
        is_due(&of, dispatch, due) && of.paths.agent(dispatch.id.as_str()).exists()
    };
    let Candidates { batch, next_seq } = candidates(daemon, from_seq, BATCH, may_go).await?;
    let (mut dispatches, mut bytes, mut faults) = (0, 0, vec![]);
    for id in batch {
        match prune_one(daemon, &id, dry_run, by).await? {
            Ok(Some(freed)) => {
                dispatches += 1;
                bytes += freed;
            }
            Ok(None) => {}
            Err(error) if faults.len() < FAULTS => {
                faults.push(format!("{id}: {}", chain(&error)));
            }
            Err(_) => {}
        }
    }
    let mut threads = 0;
    if next_seq.is_none() {
        // The dispatches come first: a session that can continue may know the path of a file.
        let pruned = super::threads::prune(daemon, due, dry_run).await?;
        threads = pruned.threads;
        bytes += pruned.bytes;
        faults.extend(pruned.faults.into_iter().take(FAULTS));
    }
    Ok(Reply::Pruned { dispatches, bytes, next_seq, faults, threads })
}

/// Whether the files of a dispatch could go.
pub(super) fn is_due(daemon: &Daemon, dispatch: &Dispatch, due: Due) -> bool {
    retention::is_removable(dispatch, due.now, due.age, |run| {
        daemon.runs.find(run).is_some() || daemon.paths.runs().join(run).join(LIVE).exists()
    })
}

/// Removes the files of one dispatch unless `dry_run`, and returns their size on disk; `None` if
/// they must stay.
async fn prune_one(
    daemon: &Arc<Daemon>,
    id: &DispatchId,
    dry_run: bool,
    by: &str,
) -> Result<Result<Option<u64>, FilesError>, WireError> {
    // A message to this dispatch waits here, and is then rejected as too late.
    let _alone = daemon.creating(id.as_str()).await;
    let Some(dispatch) = archive::known(daemon, id)?.filter(|dispatch| dispatch.is_finished())
    else {
        return Ok(Ok(None));
    };
    let dir = daemon.paths.agent(id.as_str());
    // The shim has a few last steps after the end of its agent.
    let looked = {
        let dir = dir.clone();
        blocking(move || Ok((attach::probe(&dir)?, removal::tree_size(&dir, SIZE_PATIENCE)?))).await
    };
    let (lock, bytes) = match looked {
        Ok((Liveness::Dead(lock), bytes)) => (lock, bytes),
        Ok((Liveness::Alive, _)) => return Ok(Ok(None)),
        Err(error) => return Ok(Err(error)),
    };
    if dry_run {
        return Ok(Ok(Some(bytes)));
    }
    if !dispatch.files.removed {
        let event = Event::FilesRemoved { by: by.into() };
        let named = Entry { id: format!("{id}/files-removed"), ..entry(id, None, event) };
        try_append(daemon, vec![named]).await.map_err(|error| unappended(&error))?;
    }
    fault::point("prune.recorded");
    let removed = blocking(move || {
        let _held = lock;
        removal::remove_tree(&dir, removal::PATIENCE)
    });
    Ok(removed.await.map(|()| Some(bytes)))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, FilesError> {
    Ok(tokio::task::spawn_blocking(work).await??)
}

/// Why the files of a dispatch cannot be measured or removed.
#[derive(Debug, thiserror::Error)]
enum FilesError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::random_key;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::event::FinalState;

    /// Makes a dispatch of the client `by` that has ended, with a file.
    fn make(daemon: &Daemon, by: &str) -> DispatchId {
        let id = test_daemon::id(&random_key()[..8]);
        let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
            unreachable!()
        };
        created.by = by.into();
        daemon.fold(&id, Event::DispatchCreated(created));
        let finished = Event::DispatchFinished {
            state: FinalState::Success,
            reason: String::new(),
            result: None,
        };
        daemon.fold(&id, finished);
        std::fs::create_dir_all(daemon.paths.agent(id.as_str())).expect("a directory");
        id
    }

    async fn would(daemon: &Arc<Daemon>, from_seq: u64) -> (u64, Option<u64>) {
        match prune(daemon, 0, true, from_seq, "operator").await {
            Ok(Reply::Pruned { dispatches, next_seq, faults, .. }) if faults.is_empty() => {
                (dispatches, next_seq)
            }
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn large_prune_returns_a_continuation() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        (0..BATCH + 3).for_each(|_| drop(make(&daemon, "operator")));
        let (first, next) = would(&daemon, 0).await;
        let (rest, end) = would(&daemon, next.expect("there is more")).await;
        assert_eq!((first, rest, end), (BATCH as u64, 3, None));
    }

    /// The run may not have read the last output of its agents yet.
    #[tokio::test]
    async fn prune_keeps_files_of_a_running_run() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        make(&daemon, "run/r1");
        let live = daemon.paths.runs().join("r1").join(LIVE);
        std::fs::create_dir_all(live.parent().expect("a folder")).expect("a directory");
        std::fs::write(&live, "").expect("a file");
        assert_eq!(would(&daemon, 0).await.0, 0);
        std::fs::remove_file(&live).expect("it ends");
        assert_eq!(would(&daemon, 0).await.0, 1);
    }
}
