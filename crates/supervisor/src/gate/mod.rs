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
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// Connections served at once; more wait in the kernel's queue.
const CONNECTIONS: usize = 256;
/// Of these, one agent may hold so many: its flood must not keep people out.
const PER_AGENT: usize = 16;
/// So often it is looked whether the daemon's own socket is where people look for it.
const LOOK: Duration = Duration::from_secs(1);

pub(crate) use handlers::{bring_up, command};

#[derive(Debug)]
pub enum GateMsg {
    /// Bind and listen. Not in `pre_start`, which does no IO: a failure here is the supervisor's business.
    Boot,
    /// Whoever removes runtime directories (a logout does) takes the daemon's socket along: it is made again.
    Look,
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
    main: Option<Open>,
    /// The socket is gone and could not be made again, and that was said.
    missed: bool,
    agents: HashMap<DispatchId, Open>,
}

/// A socket that is served.
struct Open {
    _task: AbortOnDropHandle<()>,
    /// Takes another listener in its place; who is connected stays so.
    swap: mpsc::Sender<UnixListener>,
    /// The file that leads to it: device and inode.
    file: Option<(u64, u64)>,
}

impl Actor for Gate {
    type Msg = GateMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(&self, myself: ActorRef<GateMsg>, daemon: Arc<Daemon>) -> Result<State, ActorProcessingErr> {
        daemon.gate.set(myself.clone());
        myself.cast(GateMsg::Boot)?;
        Ok(State { daemon, main: None, missed: false, agents: HashMap::new() })
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
                myself.send_interval(LOOK, || GateMsg::Look);
                if state.daemon.adopted.load(Ordering::SeqCst) {
                    myself.cast(GateMsg::OpenAgents)?;
                }
            }
            GateMsg::Look => state.look(),
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

impl State {
    /// Sees to it that the daemon's socket is where it was made.
    fn look(&mut self) {
        let path = self.daemon.paths.socket.clone();
        let Some(open) = self.main.as_mut().filter(|open| open.file != file_at(&path)) else { return };
        let runtime = &self.daemon.paths.runtime_dir;
        match bind(&path, path.parent() == Some(runtime)) {
            Ok(listener) => {
                // It is full where the one before was not taken yet: at the next look, then.
                if open.swap.try_send(listener).is_ok() {
                    open.file = file_at(&path);
                    self.missed = false;
                    tracing::warn!(socket = %path.display(), "the socket was gone, and is there again");
                }
            }
            Err(error) if !std::mem::replace(&mut self.missed, true) => {
                tracing::warn!(%error, "the socket is gone, and cannot be made again yet");
            }
            Err(_) => {}
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Listens at `path`. We hold `daemon.lock`, so whatever is there is a dead daemon's. `checked`: its
/// directory is to be nobody else's, who may have made it since this daemon began.
fn bind(path: &Path, checked: bool) -> Result<UnixListener, String> {
    let fail = |error: std::io::Error| format!("cannot listen on {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        crate::daemon::private_dir(folder).map_err(fail)?;
        if checked {
            crate::daemon::check_private(folder).map_err(|error| error.to_string())?;
        }
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    // A deep state directory must not make the path too long for the kernel.
    let listener = with_short_path(path, |short| UnixListener::bind(short)).map_err(fail)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(fail)?;
    Ok(listener)
}

/// Binds `path` and serves it.
fn serve(
    daemon: &Arc<Daemon>,
    gate: &ActorRef<GateMsg>,
    path: &Path,
    agent: Option<DispatchId>,
    limit: usize,
) -> Result<Open, ActorProcessingErr> {
    let mut listener = bind(path, false)?;
    let (swap, mut swapped) = mpsc::channel(1);
    let (daemon, gate) = (daemon.clone(), gate.clone());
    let name = path.display().to_string();
    let listening = async move {
        let places = Arc::new(Semaphore::new(limit));
        let mut connections = JoinSet::new();
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                Some(other) = swapped.recv() => {
                    listener = other;
                    continue;
                }
            };
            match accepted {
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
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    };
    let task = own(async move {
        let ended = survive(listening).await.err().unwrap_or_else(|| "a listener ended".into());
        let _ = gate.cast(GateMsg::ListenerEnded(ended));
    });
    Ok(Open { _task: task, swap, file: file_at(path) })
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
