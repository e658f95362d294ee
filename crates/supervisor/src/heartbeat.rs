//! Renews the shims' leases over connections of its own, outside the fleet on purpose: a fleet
//! that is being restarted must not cost the agents their lives.

use crate::context::Daemon;
use crate::launch::ShimPort;
use crate::owned::{own, survive};
use muleteer_model::dispatch::Phase;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// A lease of an hour renewed every five minutes survives eleven lost heartbeats.
const PERIOD: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub enum HeartbeatMsg {
    /// The task that beats has died.
    Failed(String),
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
            loop {
                if let Err(error) = survive(renew(&daemon, daemon.lease_ms)).await {
                    let _ = myself.cast(HeartbeatMsg::Failed(error));
                }
                tokio::time::sleep(PERIOD.min(Duration::from_millis(daemon.lease_ms / 4))).await;
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

/// Gives every living shim a lease of `lease_ms` of awake time; returns how many took it.
pub async fn renew(daemon: &Daemon, lease_ms: u64) -> u32 {
    let mut renewed = 0;
    for dispatch in daemon.snapshot().iter() {
        if !matches!(dispatch.phase, Phase::Working { .. } | Phase::Starting { .. }) {
            continue;
        }
        let dir = daemon.paths.agent(dispatch.id.as_str());
        match ShimPort::connect(&dir, daemon.generation).await {
            Ok(mut port) => renewed += u32::from(port.heartbeat(lease_ms).await.is_ok()),
            Err(error) => tracing::debug!(id = %dispatch.id, %error, "no heartbeat"),
        }
    }
    renewed
}
