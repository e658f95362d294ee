//! The context that all actors share: paths, the folded fleet, and the addresses of other actors.
//!
//! It imports none of the actors. A function that needs one part takes that part alone: `Ports`,
//! `Settings`, `Lifecycle`, `Caches` or `Agents`.

mod agents;
mod backlog;
pub mod keys;
mod last_valid;
mod locks;
mod ring;
#[cfg(test)]
pub(crate) mod test_daemon;

use crate::conversation::adapter::registry::Adapters;
use crate::conversation::schedule::delays::Delays;
pub use crate::daemon::context::agents::{AgentSlots, Agents};
pub use crate::daemon::context::backlog::Backlog;
pub use crate::daemon::context::keys::random_key;
pub use crate::daemon::context::last_valid::{LastValid, LastValidRoles, RolePlace};
pub use crate::daemon::context::locks::{Alone, Everything, Locks};
pub use crate::daemon::context::ring::Ring;
use crate::daemon::paths::Paths;
use crate::dispatch::launch::secret_values::Secrets;
use crate::dispatch::shim::shims::Shims;
use crate::ledger::log::Opened;
use crate::ledger::parts::Parts;
use crate::ports::Ports;
use crate::ports::ledger::LedgerMsg;
use crate::ports::pool::PoolMsg;
use crate::question::waiters::Waiters;
use crate::spec_run::host::Runs;
use crate::task_list::registry::Registry;
use muleteer_model::agent::role::{InForce, RoleSource};
use muleteer_model::config::{self, Config, Source};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_protocol::v1::WireError;
use muleteer_shim::start::ShimProgram;
use muleteer_store::metrics::Metrics;
use muleteer_telemetry as telemetry;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// The configuration that was loaded last.
#[derive(Debug)]
pub struct Loaded {
    pub sources: Vec<Source>,
    pub env: Vec<(String, String)>,
    pub config: Arc<Config>,
}

/// The role that was resolved last. The same files and configuration give the same role.
#[derive(Debug)]
pub struct KnownRole {
    pub sources: Vec<RoleSource>,
    pub config: Arc<Config>,
    pub place: RolePlace,
    pub found: InForce,
}

/// The values that a start gives to the daemon.
#[derive(Debug)]
pub struct Boot {
    /// The recovered log. A ledger that finds none opens the log itself.
    pub opened: Option<Opened>,
    pub backlog: Backlog,
    pub shim: ShimProgram,
    pub settings: Settings,
}

/// The values that are decided once, when the daemon starts.
#[derive(Debug)]
pub struct Settings {
    pub generation: u64,
    pub muleteer: PathBuf,
    pub lease_ms: u64,
    pub pool_limits: config::Pool,
    pub retention: config::Retention,
    /// The file that was given with `--config`.
    pub config_file: Option<PathBuf>,
    pub notify: config::notify::Notify,
    /// The destination of spans and metrics; `None` if no export is configured.
    pub telemetry: Option<telemetry::Settings>,
}

/// How far the daemon has come from its start to its end.
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// The number of open client connections: a daemon with a client is not idle.
    pub connections: watch::Sender<usize>,
    /// The socket answers. It stays set across restarts of the gate.
    pub serving: watch::Sender<bool>,
    /// The agents of earlier daemons were contacted (see `crate::agent::adopt`).
    pub adopted: AtomicBool,
    /// The daemon ends all agents before it ends itself, so none may begin. It is read from before
    /// a dispatch is made until the dispatch is durable.
    pub ends_agents: tokio::sync::RwLock<bool>,
    /// Cancelled when the daemon is to end. The reason is in the event.
    pub stop: CancellationToken,
}

/// Keeps the daemon from counting as idle while it lives.
#[derive(Debug)]
pub struct Busy(Arc<Daemon>);

impl Busy {
    pub fn new(daemon: &Arc<Daemon>) -> Self {
        daemon.lifecycle.connections.send_modify(|count| *count += 1);
        Self(daemon.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.lifecycle.connections.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Values that many dispatches of one place need, and that are expensive to find.
#[derive(Debug, Default)]
pub struct Caches {
    pub config: Mutex<Option<Loaded>>,
    pub role: Mutex<Option<KnownRole>>,
    pub last_valid: LastValid,
    pub last_valid_roles: LastValidRoles,
    pub repositories: muleteer_vcs::worktree::Repositories,
    pub identities: muleteer_vcs::worktree::Identities,
    pub secrets: Secrets,
    /// The database, once an id was looked for among archived dispatches.
    pub archive: muleteer_store::archive::Reader,
    /// The variables for the push that the openers of threads gave. They are never on disk.
    pub push_of_threads: Secrets,
}

/// The daemon as its actors see it. One per process, and dropped last.
#[derive(Debug)]
pub struct Daemon {
    pub paths: Paths,
    pub settings: Settings,
    pub ports: Ports,
    pub lifecycle: Lifecycle,
    pub caches: Caches,
    pub agents: Agents,
    pub shims: Shims,
    pub fleet: watch::Sender<Arc<Fleet>>,
    /// The seq of the newest record in the database, as far as this daemon knows.
    pub projected: watch::Sender<u64>,
    /// Why the database cannot follow the log at present.
    pub unprojected: watch::Sender<Option<WireError>>,
    /// The seq through which the metrics have all ends.
    pub measured: watch::Sender<u64>,
    /// The log, until the first ledger takes it.
    pub opened: Mutex<Option<Opened>>,
    /// Archived dispatches that are about to be restored.
    pub parts: Parts,
    /// The writer of the metrics, while it is open. It outlives restarts of the ledger, because a
    /// dropped task may still write in its thread.
    pub metrics: Arc<Mutex<Option<Metrics>>>,
    pub runs: Runs,
    /// State of task-list runs that outlives restarts of their actors.
    pub task_list_runs: Registry,
    pub adapters: Adapters,
    /// The starts of schedules that cannot be carried out now.
    pub delays: Delays,
    /// The daemon's own configuration files may have changed.
    pub configured: Notify,
    /// The calls of MCP tools that wait for an answer.
    pub waiters: Waiters,
    pub restarts: Ring,
    /// The pool has a `Look` message that it has not started to handle.
    pub looking: AtomicBool,
    creating: Locks,
    backlog: Mutex<Backlog>,
}

impl Daemon {
    pub fn new(paths: Paths, boot: Boot) -> Self {
        let Boot { opened, backlog, shim, settings } = boot;
        let fleet = opened.as_ref().map(|opened| opened.fleet.clone()).unwrap_or_default();
        Self {
            paths,
            settings,
            ports: Ports::default(),
            lifecycle: Lifecycle::default(),
            caches: Caches::default(),
            agents: Agents::default(),
            shims: Shims::new(shim),
            fleet: watch::Sender::new(Arc::new(fleet)),
            projected: watch::Sender::new(0),
            unprojected: watch::Sender::new(None),
            measured: watch::Sender::new(0),
            opened: Mutex::new(opened),
            parts: Parts::default(),
            metrics: Arc::default(),
            runs: Runs::default(),
            task_list_runs: Registry::default(),
            adapters: Adapters::default(),
            delays: Delays::default(),
            configured: Notify::new(),
            waiters: Waiters::default(),
            restarts: Ring::default(),
            looking: AtomicBool::new(false),
            creating: Locks::default(),
            backlog: Mutex::new(backlog),
        }
    }

    /// Returns the caller's place in a trace; without one, a new trace with the root span `root`.
    pub fn place_in_trace(&self, given: Option<String>, root: [u8; 8]) -> String {
        self.given_place(given).unwrap_or_else(|| {
            let mut trace = [0u8; 16];
            // Without randomness the id is not unique, which only merges traces.
            if getrandom::fill(&mut trace).is_err() {
                trace[8..].copy_from_slice(&root);
            }
            let sampled = self
                .settings
                .telemetry
                .as_ref()
                .is_none_or(|settings| settings.sampler.root(trace));
            telemetry::Context { trace, span: root, sampled }.to_string()
        })
    }

    /// Returns a given place if it is valid. The sampler decides whether it is recorded.
    pub fn given_place(&self, given: Option<String>) -> Option<String> {
        let context = telemetry::Context::parse(&given?)?;
        let sampler =
            self.settings.telemetry.as_ref().map(|settings| settings.sampler).unwrap_or_default();
        Some(telemetry::Context { sampled: sampler.below(context), ..context }.to_string())
    }

    /// Returns the newest folded state. Everything in it is durable.
    pub fn snapshot(&self) -> Arc<Fleet> {
        self.fleet.borrow().clone()
    }

    /// Locks the making of a dispatch with this id. Its files are written before the ledger knows
    /// it, so two simultaneous requests with one id must not both write them. Other work that must
    /// not happen twice has names of its own. A caller with such a name may also lock an id, and
    /// holds both.
    pub async fn creating(&self, id: &str) -> Alone<'_> {
        self.creating.lock(id).await
    }

    /// Locks the making of all dispatches, and messages to them. It holds no lock while it waits:
    /// one of them may be held for as long as a removal takes.
    pub async fn creating_none(&self) -> Everything<'_> {
        self.creating.lock_all().await
    }

    pub fn agent(&self, id: &DispatchId) -> Arc<AgentSlots> {
        self.agents.of(id)
    }

    pub fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the pool to read the fleet again. Simultaneous requests share one pass, because each
    /// pass reads the whole fleet.
    pub fn look(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            self.ports.pool.cast(PoolMsg::Look);
        }
    }

    /// Records an event through the ledger without waiting for it.
    pub fn note(&self, event: Event) {
        self.note_entry(None, event);
    }

    /// Records a fault of one dispatch.
    pub fn fault(&self, id: &DispatchId, what: impl Into<String>, message: impl Into<String>) {
        self.note_entry(
            Some(id.clone()),
            Event::Fault { what: what.into(), message: message.into() },
        );
    }

    fn note_entry(&self, dispatch_id: Option<DispatchId>, event: Event) {
        tracing::warn!(event = %event.name(), detail = ?event, "noted");
        self.restarts.push(Entry { id: random_key(), dispatch_id, at: None, more: false, event });
        self.ports.ledger.cast(LedgerMsg::Drain);
    }
}
