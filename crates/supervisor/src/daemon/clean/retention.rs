//! Cleans by itself, if the configuration says after which time.

use crate::daemon::clean::clean;
use crate::daemon::context::Daemon;
use muleteer_model::dispatch::retention::pause;
use muleteer_protocol::v1::{Clean, Reply};
use std::sync::Arc;
use std::time::Duration;

/// The name in the events of a removal that nobody requested.
const BY: &str = "retention";
/// The pause before the first pass, so that a start is not delayed.
const FIRST: Duration = Duration::from_secs(5);

/// Removes clones and archives journals for as long as the daemon runs. Returns at once if
/// `retention.clean_after` is not set. Failed and stalled dispatches wait for a person.
pub async fn run(daemon: Arc<Daemon>) {
    let Some(age) = daemon.settings.retention.clean_after else { return };
    tokio::time::sleep(FIRST).await;
    loop {
        pass(&daemon, age.as_secs()).await;
        tokio::time::sleep(pause(age)).await;
    }
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
