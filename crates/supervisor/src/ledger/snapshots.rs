//! Writes a snapshot of the fleet from time to time, so that the next start reads only the newest
//! part of the log.

use crate::daemon::context::Daemon;
use muleteer_model::event::Event;
use muleteer_store::StoreError;
use muleteer_store::events::length;
use muleteer_store::events::snapshot::{self, is_due};
use std::sync::Arc;
use std::time::Duration;

/// The pause between two looks at the length of the log.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the snapshot until it is dropped. A failure is recorded and costs the next start time; it
/// stops nothing.
pub(super) async fn keep(daemon: Arc<Daemon>) {
    let events = daemon.paths.events();
    let (mut until, mut bytes) = snapshot::extent(&events).unwrap_or_default();
    let mut changes = daemon.fleet.subscribe();
    changes.mark_changed();
    let mut size = changes.borrow().size();
    while changes.changed().await.is_ok() {
        let fleet = changes.borrow_and_update().clone();
        let log = events.clone();
        let length = tokio::task::spawn_blocking(move || length(&log)).await.unwrap_or(until);
        // A snapshot with dispatches that were archived since costs each start time and memory.
        let has_shrunk = fleet.size() < size / 2;
        size = size.max(fleet.size());
        if has_shrunk || is_due(length.saturating_sub(until), bytes) {
            size = fleet.size();
            // Whatever comes of it: a disk that is full is not asked again every second.
            until = length;
            let events = events.clone();
            let write = tokio::task::spawn_blocking(move || snapshot::write(&events, &fleet));
            match write.await {
                Ok(Ok((at, written))) => (until, bytes) = (at.offset, written),
                Ok(Err(error)) => note(&daemon, &error),
                Err(error) => tracing::error!(%error, "the snapshot of the events failed"),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn note(daemon: &Daemon, error: &StoreError) {
    daemon.note(Event::Fault { what: "snapshot".into(), message: error.to_string() });
}
