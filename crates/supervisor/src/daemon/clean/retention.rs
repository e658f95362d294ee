//! Cleans and compresses by itself, after the time that the configuration says.

use crate::daemon::clean::output::Due;
use crate::daemon::clean::{clean, output, runs};
use crate::daemon::context::Daemon;
use crate::dispatch::error::internal;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::retention::pause;
use muleteer_protocol::v1::{Clean, Compressed, Reply, WireError};
use std::sync::Arc;
use std::time::Duration;

/// The name in the events of a removal that nobody requested.
const BY: &str = "retention";
/// The pause before the first pass, so that a start is not delayed.
const FIRST: Duration = Duration::from_secs(5);

/// Cleans and compresses for as long as the daemon runs. Failed and stalled dispatches wait for a
/// person, unless only their output is compressed.
pub async fn run(daemon: Arc<Daemon>) {
    let compressing = compress(&daemon);
    tokio::join!(clean_up(&daemon), compressing);
}

/// Removes clones and archives journals. Returns at once if `retention.clean_after` is not set.
async fn clean_up(daemon: &Arc<Daemon>) {
    let Some(age) = daemon.settings.retention.clean_after else { return };
    tokio::time::sleep(FIRST).await;
    loop {
        pass(daemon, age.as_secs()).await;
        tokio::time::sleep(pause(age)).await;
    }
}

/// Compresses the output of agents and the logs of runs.
async fn compress(daemon: &Arc<Daemon>) {
    let age = daemon.settings.retention.compress_after;
    tokio::time::sleep(FIRST).await;
    loop {
        match compress_once(daemon, super::age(age.as_secs())).await {
            Ok(done) if done != Compressed::default() => {
                let Compressed { outputs, runs, bytes } = done;
                tracing::info!(outputs, runs, bytes, "compressed");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(error = %error.message, "failed to compress"),
        }
        tokio::time::sleep(pause(age)).await;
    }
}

async fn compress_once(daemon: &Arc<Daemon>, age: SignedDuration) -> Result<Compressed, WireError> {
    let (of, open) = (daemon.clone(), Arc::default());
    let found = tokio::task::spawn_blocking(move || output::plain(&of));
    let mut sum = Compressed::default();
    for id in found.await.map_err(|error| internal(&error.to_string()))? {
        let due = Due { now: Timestamp::now(), age };
        // A message to this dispatch waits here.
        let _alone = daemon.creating(id.as_str()).await;
        match output::compress(daemon, &id, due, &open, true).await? {
            Ok(None) => {}
            Ok(Some(bytes)) => sum.add(Compressed { outputs: 1, runs: 0, bytes }),
            Err(error) => tracing::warn!(%id, %error, "failed to compress the output"),
        }
    }
    let (logs, failed) = runs::clean(daemon, Due { now: Timestamp::now(), age }, true).await?;
    sum.add(logs);
    for (path, error) in failed {
        tracing::warn!(path, error, "failed to compress the log of a run");
    }
    Ok(sum)
}

/// Cleans all dispatches once.
async fn pass(daemon: &Arc<Daemon>, older_than_s: u64) {
    let (mut removed, mut archived, mut from_seq) = (0, 0, Some(0));
    while let Some(seq) = from_seq {
        let asked = Clean { older_than_s, apply: true, failed: false, from_seq: seq };
        match clean(daemon, asked, BY).await {
            Ok(Reply::Cleaned(report)) => {
                removed += report.removed.len();
                archived += report.archived.len();
                from_seq = report.next_seq;
                for kept in report.kept {
                    tracing::debug!(path = %kept.path, reason = %kept.reason, "kept");
                }
            }
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(error = %error.message, "failed to clean");
                return;
            }
        }
    }
    if removed + archived > 0 {
        tracing::info!(removed, archived, "cleaned");
    }
}
