//! Renews the shims' leases over connections of its own. It is outside of the fleet on purpose: a
//! restart of the fleet must not cost the agents their lives.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{Panicked, own, survive};
use crate::dispatch::shim::error::ShimError;
use crate::dispatch::shim::port::ShimPort;
use futures_util::StreamExt;
use futures_util::stream;
use muleteer_model::dispatch::Phase;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// A lease of an hour that is renewed every five minutes survives eleven lost heartbeats.
const PERIOD: Duration = Duration::from_secs(300);

/// The delay of the first round. Every link renews its shim's lease when it attaches, so this round
/// is for shims whose links do not get that far. It comes after the moment at which a new daemon
/// attaches to all shims at once.
const FIRST: Duration = Duration::from_secs(10);

/// The number of shims that are asked at the same time.
const AT_ONCE: usize = 32;

#[derive(Debug)]
pub enum HeartbeatMsg {
    /// The task that renews the leases has died.
    Failed(Panicked),
}

pub struct Heartbeat;

pub struct State {
    _task: AbortOnDropHandle<()>,
}

impl Actor for Heartbeat {
    type Msg = HeartbeatMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<HeartbeatMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        let task = own(async move {
            tokio::time::sleep(FIRST.min(Duration::from_millis(daemon.settings.lease_ms / 4)))
                .await;
            loop {
                if let Err(error) = survive(renew(&daemon, daemon.settings.lease_ms)).await {
                    let _ = myself.cast(HeartbeatMsg::Failed(error));
                }
                tokio::time::sleep(PERIOD.min(Duration::from_millis(daemon.settings.lease_ms / 4)))
                    .await;
            }
        });
        Ok(State { _task: task })
    }

    async fn handle(
        &self,
        _: ActorRef<HeartbeatMsg>,
        message: HeartbeatMsg,
        _: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            HeartbeatMsg::Failed(error) => Err(error.into()),
        }
    }
}

/// Gives every living shim a lease of `lease_ms` of awake time, and returns how many accepted it. A
/// stuck shim does not delay the others.
pub async fn renew(daemon: &Daemon, lease_ms: u64) -> u32 {
    let generation = daemon.settings.generation;
    let living: Vec<_> = daemon
        .snapshot()
        .iter()
        .filter(|dispatch| matches!(dispatch.phase, Phase::Working { .. } | Phase::Starting { .. }))
        .map(|dispatch| daemon.paths.agent(dispatch.id.as_str()))
        .collect();
    let renewals = living.into_iter().map(|dir| async move {
        let renewed = match ShimPort::connect(&dir, generation).await {
            Ok(mut port) => port.heartbeat(lease_ms).await.map_err(ShimError::Port),
            Err(error) => Err(error),
        };
        if let Err(error) = &renewed {
            tracing::debug!(agent = %dir.display(), %error, "failed to send the heartbeat");
        }
        u32::from(renewed.is_ok())
    });
    stream::iter(renewals)
        .buffer_unordered(AT_ONCE)
        .fold(0, |sum, one| async move { sum + one })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    /// A shim without a heartbeat terminates its agent when its lease expires.
    #[tokio::test(start_paused = true)]
    async fn leases_are_renewed_again_and_again_beside_one_that_is_stuck() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let _stuck = test_daemon::Shim::of(&daemon, &test_daemon::id("abcd2345"));
        let shim = test_daemon::Shim::of(&daemon, &test_daemon::id("bcde2345"));
        #[allow(clippy::disallowed_methods)]
        let (heartbeat, _) =
            Heartbeat::spawn(None, Heartbeat, daemon.clone()).await.expect("a heart");
        for _ in 0..3 {
            let renewed = tokio::time::timeout(Duration::from_secs(60), shim.lease_ms()).await;
            assert_eq!(renewed, Ok(daemon.settings.lease_ms));
        }
        heartbeat.stop_and_wait(None, None).await.expect("stopped");
    }
}
