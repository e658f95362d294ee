//! Adopts the agents of an earlier daemon, before their actors are made. After a restart they first
//! need a process that holds their connection, and that costs a tenth of the actors.
//!
//! Only shims that answer at once are adopted here. The others are left to their own `link`, which
//! can wait.

use crate::daemon::context::Daemon;
use crate::dispatch::shim::port::ShimPort;
use crate::ledger::{entry, try_append};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::life::{self, Input};
use muleteer_process::clock::awake;
use muleteer_shim::attach;
use muleteer_shim::meta::Meta;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// When no shim has answered for this long, the remaining ones are not waited for.
const QUIET: Duration = Duration::from_millis(100);

/// Connects to every living shim of an earlier daemon, and leaves the connections for the links. It
/// records the adoptions with one append.
///
/// Cancel-safe: a shim that was connected but not recorded is adopted by its link.
pub async fn all(daemon: &Arc<Daemon>) {
    let asking = daemon.clone();
    // This runs on a thread of its own: waking the runtime for each answer would take longer than
    // reading the answer.
    let Ok(met) = tokio::task::spawn_blocking(move || meet(&asking)).await else { return };
    let adopted = met.iter().flat_map(|Met { dispatch, meta, .. }| {
        let decided =
            life::decide(dispatch, Input::Adopted { shim_pid: meta.shim.pid, epoch: meta.epoch });
        decided.into_iter().map(|(at, event)| entry(&dispatch.id, at, event))
    });
    let entries = adopted.collect();
    if let Err(error) = try_append(daemon, entries).await {
        tracing::info!(%error, "adopting agents one at a time");
        return;
    }
    for Met { dispatch, meta, stream, heard } in met {
        match ShimPort::of(stream, daemon.settings.generation, heard) {
            Ok(port) => daemon.agent(&dispatch.id).keep_port(meta.epoch, port),
            Err(error) => tracing::warn!(id = %dispatch.id, %error, "failed to reuse the \
                connection to a shim; reconnecting"),
        }
    }
}

/// A shim that has answered.
struct Met {
    dispatch: Arc<Dispatch>,
    meta: Meta,
    stream: UnixStream,
    /// The bytes that came after its answer.
    heard: Vec<u8>,
}

/// Sends all requests before it waits for the first answer.
fn meet(daemon: &Daemon) -> Vec<Met> {
    let fleet = daemon.snapshot();
    let asked = fleet.iter().filter_map(|dispatch| {
        let epoch = life::current_epoch(dispatch)?;
        let (stream, meta) =
            attach::greet(&daemon.paths.agent(dispatch.id.as_str()), daemon.settings.generation)
                .ok()?;
        let earlier = meta.epoch == epoch && meta.generation != daemon.settings.generation;
        earlier.then(|| Met { dispatch: dispatch.clone(), meta, stream, heard: vec![] })
    });
    let mut met: Vec<_> = asked.collect();
    let mut deadline = awake() + QUIET;
    met.retain_mut(|one| match attach::hear_answer(&mut one.stream, &one.meta, deadline) {
        Ok(heard) => {
            one.heard = heard;
            deadline = awake() + QUIET;
            true
        }
        Err(error) => {
            tracing::debug!(id = %one.dispatch.id, %error, "failed to adopt an agent; retrying \
                later");
            false
        }
    });
    met
}
