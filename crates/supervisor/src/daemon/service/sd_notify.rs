//! Notifies a service manager (systemd's `sd_notify`) that the daemon is ready, alive or stopping,
//! with a short status. Does nothing without one.
//!
//! Ready means that the socket answers, which is before the agents of an earlier daemon are
//! adopted. With hundreds of them, a manager that waited for all would give up on a healthy daemon.

use crate::daemon::context::Daemon;
use crate::ports::tree::BranchMsg;
use muleteer_model::dispatch::Phase;
use muleteer_model::dispatch::fleet::Fleet;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The pause between two status messages, because a manager does not want one for every event.
const STATUS_PAUSE: Duration = Duration::from_secs(1);

/// Notifies the service manager for as long as the future lives. It never ends by itself.
///
/// It runs in a task of its own, so that a manager which does not read its socket blocks nothing
/// else.
pub async fn tell(daemon: Arc<Daemon>) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut serving = daemon.lifecycle.serving.subscribe();
    if serving.wait_for(|serving| *serving).await.is_err() {
        return;
    }
    let mut fleet = daemon.fleet.subscribe();
    let mut said = status(&daemon.snapshot());
    send(&[NotifyState::Ready, NotifyState::Status(&said)]);
    // It pings twice as often as it must, so that one late ping does not kill the daemon.
    let watchdog = sd_notify::watchdog_enabled().map(|limit| limit / 2);
    let mut ping_at = Instant::now();
    let mut status_at = Instant::now() + STATUS_PAUSE;
    let mut changed = false;
    loop {
        tokio::select! {
            () = sleep_until(ping_at), if watchdog.is_some() => {
                let period = watchdog.unwrap_or(STATUS_PAUSE);
                // If the supervisor no longer answers, no ping is sent, so that the manager kills
                // the daemon.
                if alive(&daemon, period).await {
                    send(&[NotifyState::Watchdog]);
                }
                ping_at = Instant::now() + period;
            }
            () = sleep_until(status_at), if changed => {
                changed = false;
                status_at = Instant::now() + STATUS_PAUSE;
                let now = status(&daemon.snapshot());
                if now != said {
                    said = now;
                    send(&[NotifyState::Status(&said)]);
                }
            }
            outcome = fleet.changed(), if !changed => match outcome {
                Ok(()) => changed = true,
                Err(_) => return,
            }
        }
    }
}

/// Says that the daemon is about to end.
pub fn stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("stopping; agents continue")]);
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "failed to notify the service manager");
    }
}

async fn alive(daemon: &Daemon, within: Duration) -> bool {
    let Some(root) = daemon.ports.root.get() else { return false };
    matches!(
        root.call(BranchMsg::Ping, Some(within)).await,
        Ok(ractor::rpc::CallResult::Success(()))
    )
}

/// Returns the status text: `3 agents run, 2 dispatches wait`.
fn status(fleet: &Fleet) -> String {
    let running = fleet.unfinished().filter(|dispatch| dispatch.is_active()).count();
    let waiting =
        fleet.unfinished().filter(|dispatch| matches!(dispatch.phase, Phase::Queued)).count();
    let agents = match running {
        0 => "idle".to_string(),
        1 => "1 agent runs".to_string(),
        many => format!("{many} agents run"),
    };
    match waiting {
        0 => agents,
        1 => format!("{agents}, 1 dispatch waits"),
        many => format!("{agents}, {many} dispatches wait"),
    }
}
