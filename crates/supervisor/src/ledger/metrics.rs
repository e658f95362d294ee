//! Keeps `metrics/` up to date with the events. It reads the log itself, so it can be slow and fail
//! without blocking anybody.

use crate::daemon::context::Daemon;
use muleteer_model::event::Event;
use muleteer_store::StoreError;
use muleteer_store::metrics::Metrics;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The pause between two writes, so that a burst of ends becomes one.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure. No line is lost: they are made from the log.
const LATER: Duration = Duration::from_secs(60);

/// Writes metrics until it is dropped.
pub(super) async fn keep(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    changes.mark_changed();
    while changes.changed().await.is_ok() {
        let fleet = changes.borrow_and_update().clone();
        let (folder, events) = (daemon.paths.metrics(), daemon.paths.events());
        let metrics = daemon.metrics.clone();
        let caught_up = tokio::task::spawn_blocking(move || {
            // A dropped task may still be here: there is one writer at a time, and never two.
            let mut metrics = metrics.lock().unwrap_or_else(PoisonError::into_inner);
            // After a failure it is opened again.
            let mut open = metrics.take().map_or_else(|| Metrics::open(&folder), Ok)?;
            open.catch_up(&events, &fleet)?;
            *metrics = Some(open);
            Ok::<_, StoreError>(fleet.seq)
        });
        match caught_up.await {
            Ok(Ok(seq)) => {
                daemon.measured.send_replace(seq);
            }
            Ok(Err(error)) => {
                let message = error.to_string();
                daemon.note(Event::Fault { what: "metrics".into(), message });
                tokio::time::sleep(LATER).await;
            }
            Err(error) => {
                tracing::error!(%error, "the metrics failed");
                tokio::time::sleep(LATER).await;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
