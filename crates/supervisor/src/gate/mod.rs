//! The gate: the sockets for people and agents. It owns the listeners and every connection's task.
//! Dropping it closes them all and harms no dispatch.

mod connection;
mod handlers;
mod listing;
mod peer;
mod places;
mod runs;
mod stopping;
mod thread_follow;
mod tool_calls;
mod tools;

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{own, survive};
use crate::daemon::start::error::StartError;
use crate::daemon::start::private_dir::{check_private, private_dir};
use crate::ports::gate::GateMsg;
use futures_util::FutureExt;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::socket::Listener;
use places::Places;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// The limit of connections to the daemon's socket. A new one replaces the longest idle one.
const CONNECTIONS: usize = 256;
/// The limit of connections to one agent's socket; more wait in the kernel's queue.
const PER_AGENT: usize = 16;
/// The interval at which the daemon checks that its own socket still exists.
const LOOK: Duration = Duration::from_secs(1);

pub struct Gate;

pub struct State {
    daemon: Arc<Daemon>,
    main: Option<Open>,
    /// The socket is gone and could not be made again, which is recorded.
    missed: bool,
    agents: HashMap<DispatchId, Open>,
}

/// A socket that is served.
struct Open {
    _task: AbortOnDropHandle<()>,
    /// Takes another listener in its place. Existing connections stay.
    swap: Arc<Swap>,
    /// The device and inode of the socket's file.
    file: Option<(u64, u64)>,
}

impl Actor for Gate {
    type Msg = GateMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<GateMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.gate.set(myself.clone());
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
                state.main = Some(serve(
                    &state.daemon,
                    &myself,
                    &state.daemon.paths.socket,
                    None,
                    CONNECTIONS,
                )?);
                state.daemon.lifecycle.serving.send_replace(true);
                myself.send_interval(LOOK, || GateMsg::Look);
                if state.daemon.lifecycle.adopted.load(Ordering::SeqCst) {
                    myself.cast(GateMsg::OpenAgents)?;
                }
            }
            GateMsg::Look => state.look(),
            GateMsg::OpenAgents => {
                for dispatch in state.daemon.snapshot().unfinished() {
                    myself.cast(GateMsg::OpenAgent(dispatch.id.clone(), None))?;
                }
            }
            GateMsg::OpenAgent(id, reply) => {
                state.open(&myself, id);
                if let Some(reply) = reply {
                    let _ = reply.send(());
                }
            }
            GateMsg::CloseAgent(id) => {
                state.agents.remove(&id);
                // The file of an ended agent's socket is removed, because thousands of them would
                // accumulate.
                let _ =
                    std::fs::remove_file(state.daemon.paths.agent(id.as_str()).join("pub/sock"));
            }
            GateMsg::ListenerEnded(error) => return Err(error),
        }
        Ok(())
    }
}

impl State {
    /// Opens the socket of an agent unless it is open.
    fn open(&mut self, gate: &ActorRef<GateMsg>, id: DispatchId) {
        if self.agents.contains_key(&id) {
            return;
        }
        let path = self.daemon.paths.agent(id.as_str()).join("pub/sock");
        match serve(&self.daemon, gate, &path, Some(id.clone()), PER_AGENT) {
            Ok(task) => drop(self.agents.insert(id, task)),
            // The agent works nevertheless; only its requests to the daemon fail.
            Err(error) => tracing::warn!(%id, %error, "failed to open the agent's socket"),
        }
    }

    /// Makes sure that the daemon's socket file still exists.
    fn look(&mut self) {
        let path = self.daemon.paths.socket.clone();
        let Some(open) = self.main.as_mut().filter(|open| open.file != file_at(&path)) else {
            return;
        };
        let runtime = &self.daemon.paths.runtime_dir;
        match bind(&path, path.parent() == Some(runtime)) {
            Ok(listener) => {
                // A listener that the task has not taken yet is replaced: its socket is gone.
                open.swap.put(listener);
                open.file = file_at(&path);
                self.missed = false;
                tracing::warn!(
                    socket = %path.display(),
                    "the socket was missing; created it again"
                );
            }
            Err(error) if !std::mem::replace(&mut self.missed, true) => {
                tracing::warn!(%error, "the socket is missing, and creating it failed; retrying");
            }
            Err(_) => {}
        }
    }
}

fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Listens at `path`. This daemon holds `daemon.lock`, so an existing file is a dead daemon's. With
/// `checked` its directory must belong to this user: another one may have made it since the daemon
/// started.
fn bind(path: &Path, checked: bool) -> Result<Listener, BindError> {
    let fail = |source| BindError::Listen { path: path.into(), source };
    if let Some(folder) = path.parent() {
        private_dir(folder).map_err(fail)?;
        if checked {
            check_private(folder)?;
        }
    }
    Listener::bind(path).map_err(fail)
}

/// Why a socket cannot be made.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("cannot listen on {}: {source}", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Folder(#[from] StartError),
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
    let swap = Arc::new(Swap::default());
    let swapped = swap.clone();
    let (daemon, gate) = (daemon.clone(), gate.clone());
    let name = path.display().to_string();
    let listening = async move {
        let places = Places::new(limit, agent.is_none());
        let mut connections = JoinSet::new();
        loop {
            places.free().await;
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                other = swapped.take() => {
                    listener = other;
                    continue;
                }
            };
            match accepted {
                Ok(stream) => {
                    let (daemon, agent, place) = (daemon.clone(), agent.clone(), places.take());
                    connections.spawn(async move {
                        let _present = Present::new(&daemon.lifecycle.connections);
                        let serving = connection::serve(daemon.clone(), stream, agent, place);
                        if let Err(panicked) = survive(serving).await {
                            // The client sees that its connection has ended, and retries.
                            let (what, message) = ("a connection".into(), panicked.to_string());
                            daemon.note(Event::Fault { what, message });
                        }
                    });
                }
                // The process may be out of descriptors: that passes, and must not become a restart
                // storm.
                Err(error) => {
                    tracing::warn!(%error, socket = %name, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
            while connections.try_join_next().is_some() {}
        }
    };
    // Not in an `async` block, which would have the state of `listening` twice.
    let task = own(survive(listening).map(move |ended| {
        let ended = match ended {
            Ok(()) => "a listener ended".into(),
            Err(panicked) => panicked.into(),
        };
        let _ = gate.cast(GateMsg::ListenerEnded(ended));
    }));
    Ok(Open { _task: task, swap, file: file_at(path) })
}

/// The place for one listener on its way to a task. A channel would have room for 32 from its
/// beginning, for each agent.
#[derive(Default)]
struct Swap {
    listener: Mutex<Option<Listener>>,
    filled: Notify,
}

impl Swap {
    fn put(&self, listener: Listener) {
        *self.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        self.filled.notify_one();
    }

    /// Waits for a listener. Cancel-safe: one that is not taken stays here.
    async fn take(&self) -> Listener {
        loop {
            let filled = self.filled.notified();
            let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(listener) = listener {
                return listener;
            }
            filled.await;
        }
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicBool;

    /// A socket file could be visible before it listened, or be missing for a moment. Then agents
    /// that called `muleteer` at once were rejected.
    #[tokio::test]
    async fn visible_socket_accepts_connections() {
        const TIMES: usize = 300;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pub/sock");
        let over = AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if path.exists()
                        && let Err(error) = UnixStream::connect(&path)
                    {
                        return Some(error);
                    }
                }
                None
            });
            // The last listener stays open while the next one takes its place.
            let mut before = None;
            for _ in 0..TIMES {
                before = Some((bind(&path, false).unwrap(), before.take().map(|(last, _)| last)));
            }
            over.store(true, Ordering::SeqCst);
            connecting.join().unwrap()
        });
        assert!(refused.is_none(), "{refused:?}");
        let names: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().flatten().collect();
        assert_eq!(names.len(), 1, "nothing is left over: {names:?}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
