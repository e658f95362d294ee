//! Compresses the closed files of the log, so that nobody waits for it.

use crate::daemon::context::Daemon;
use crate::ledger::log::segment_bytes;
use muleteer_model::event::Event;
use muleteer_store::StoreError;
use muleteer_store::events::compress_next;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// The pause between two looks at the log.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure.
const LATER: Duration = Duration::from_secs(60);

/// Compresses closed files until it is dropped. A failure is recorded and costs disk space.
pub(super) async fn keep(daemon: Arc<Daemon>) {
    let events = daemon.paths.events();
    let mut changes = daemon.fleet.subscribe();
    changes.mark_changed();
    let mut seen = None;
    while changes.changed().await.is_ok() {
        changes.borrow_and_update();
        // A file that was closed has another one in its place.
        let now = tokio::fs::metadata(&events).await.ok().map(|meta| meta.ino());
        if seen.is_none() || seen != now {
            seen = now;
            if let Err(error) = compress(&daemon).await {
                note(&daemon, &error);
                seen = None;
                tokio::time::sleep(LATER).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Compresses all closed files, one after another.
async fn compress(daemon: &Daemon) -> Result<(), StoreError> {
    loop {
        let events = daemon.paths.events();
        let next = tokio::task::spawn_blocking(move || compress_next(&events, segment_bytes()));
        match next.await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(error) => {
                tracing::error!(%error, "the compression of the events failed");
                return Ok(());
            }
        }
    }
}

pub(super) fn note(daemon: &Daemon, error: &StoreError) {
    daemon.note(Event::Fault { what: "segments".into(), message: error.to_string() });
}
