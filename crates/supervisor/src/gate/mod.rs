//! The gate: the sockets people and agents talk to. It owns the listeners and every connection's
//! task; dropping it closes them all and harms no dispatch.

mod answer;
mod connection;
pub(crate) mod handlers;
mod peer;
mod runs;

use crate::context::Daemon;
use crate::owned::{own, survive};
use muleteer_model::event::Event;
use muleteer_model::id::DispatchId;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// Of these, one agent may hold so many: its flood must not keep people out.
const PER_AGENT: usize = 16;

pub(crate) use handlers::{bring_up, command};

#[derive(Debug)]
pub enum GateMsg {
    /// Bind and listen. Not in `pre_start`, which does no IO: a failure here is the supervisor's business.
    Boot,
    /// Open the sockets of all living agents that are not open: their shims have been asked for.
    OpenAgents,
    /// Open the socket of one dispatch's agent; it is closed with [`GateMsg::CloseAgent`].
    OpenAgent(DispatchId),
    CloseAgent(DispatchId),
    /// A listener's task has ended, which it never should.
    ListenerEnded(String),
}

pub struct Gate;

pub struct State {
    daemon: Arc<Daemon>,
    main: Option<AbortOnDropHandle<()>>,
    agents: HashMap<DispatchId, AbortOnDropHandle<()>>,
}

impl Actor for Gate {
    type Msg = GateMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(&self, myself: ActorRef<GateMsg>, daemon: Arc<Daemon>) -> Result<State, ActorProcessingErr> {
        daemon.gate.set(myself.clone());
        myself.cast(GateMsg::Boot)?;
        Ok(State { daemon, main: None, agents: HashMap::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<GateMsg>,
        message: GateMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            GateMsg::Boot => {
                state.main = Some(serve(&state.daemon, &myself, &state.daemon.paths.socket, None, CONNECTIONS)?);
                state.daemon.serving.send_replace(true);
                if state.daemon.adopted.load(Ordering::SeqCst) {
                    myself.cast(GateMsg::OpenAgents)?;
                }
            }
            GateMsg::OpenAgents => {
                for dispatch in state.daemon.snapshot().unfinished() {
                    myself.cast(GateMsg::OpenAgent(dispatch.id.clone()))?;
                }
            }
            GateMsg::OpenAgent(id) if state.agents.contains_key(&id) => {}
            GateMsg::OpenAgent(id) => {
                let path = state.daemon.paths.agent(id.as_str()).join("pub/sock");
                match serve(&state.daemon, &myself, &path, Some(id.clone()), PER_AGENT) {
                    Ok(task) => drop(state.agents.insert(id, task)),
                    // Its agent works all the same; only what it asks of us fails.
                    Err(error) => tracing::warn!(%id, %error, "the agent's socket cannot be opened"),
                }
            }
            GateMsg::CloseAgent(id) => {
                state.agents.remove(&id);
                // Of thousands that have ended, nobody wants a name to connect to.
                let _ = std::fs::remove_file(state.daemon.paths.agent(id.as_str()).join("pub/sock"));
            }
            GateMsg::ListenerEnded(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// Binds `path` and serves it. We hold `daemon.lock`, so whatever is there is a dead daemon's.
fn serve(
    daemon: &Arc<Daemon>,
    gate: &ActorRef<GateMsg>,
    path: &Path,
    agent: Option<DispatchId>,
    limit: usize,
) -> Result<AbortOnDropHandle<()>, ActorProcessingErr> {
    let fail = |error: std::io::Error| format!("cannot listen on {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        crate::daemon::private_dir(folder).map_err(fail)?;
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fail(error).into()),
        _ => {}
    }
    // A deep state directory must not make the path too long for the kernel.
    let listener = with_short_path(path, |short| UnixListener::bind(short)).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    let (daemon, gate) = (daemon.clone(), gate.clone());
    let name = path.display().to_string();
    let listening = async move {
        let places = Arc::new(Semaphore::new(limit));
        let mut connections = JoinSet::new();
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (daemon, agent) = (daemon.clone(), agent.clone());
                    connections.spawn(async move {
                        let _place = place;
                        let _present = Present::new(&daemon.connections);
                        if let Err(message) = survive(connection::serve(daemon.clone(), stream, agent)).await {
                            // The client sees its connection end, and asks again.
                            daemon.note(Event::Fault { what: "a connection".into(), message });
                        }
                    });
                }
                // Out of descriptors, say: that passes, and must not become a restart storm.
                Err(error) => {
                    tracing::warn!(%error, socket = %name, "cannot accept");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    };
    let task = own(async move {
        let ended = survive(listening).await.err().unwrap_or_else(|| "a listener ended".into());
        let _ = gate.cast(GateMsg::ListenerEnded(ended));
    });
    Ok(task)
}

/// Counts a connection for as long as it lives.
struct Present(watch::Sender<usize>);

impl Present {
    fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Calls `with` with a name for `path` that fits a socket address.
pub(crate) fn with_short_path<T>(path: &Path, with: impl FnOnce(&Path) -> std::io::Result<T>) -> std::io::Result<T> {
    use std::os::fd::AsRawFd;
    const SUN_PATH: usize = 108;
    if path.as_os_str().len() < SUN_PATH || !cfg!(target_os = "linux") {
        return with(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return with(path) };
    let folder = std::fs::File::open(folder)?;
    with(&Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}
