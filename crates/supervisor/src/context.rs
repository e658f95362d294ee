//! What every actor may reach: paths, the folded fleet, and where its siblings stand now.

use crate::branch::BranchMsg;
use crate::gate::GateMsg;
use crate::ledger::LedgerMsg;
use crate::paths::Paths;
use crate::pool::PoolMsg;
use crate::watch::WatchMsg;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_model::fleet::Fleet;
use muleteer_model::id::DispatchId;
use muleteer_shim::start::ShimProgram;
use muleteer_store::tail::{Cursor, Start};
use ractor::{ActorRef, Message};
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Where an actor can be reached, across its restarts. Empty while it is being restarted.
#[derive(Debug)]
pub struct Slot<M: Message>(RwLock<Option<ActorRef<M>>>);

impl<M: Message> Default for Slot<M> {
    fn default() -> Self {
        Self(RwLock::new(None))
    }
}

impl<M: Message> Slot<M> {
    pub fn set(&self, actor: ActorRef<M>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
    }

    pub fn get(&self) -> Option<ActorRef<M>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends if the actor is there; says whether it was.
    pub fn cast(&self, message: M) -> bool {
        self.get().is_some_and(|actor| actor.cast(message).is_ok())
    }
}

/// Where the four actors of one dispatch stand.
#[derive(Debug, Default)]
pub struct AgentSlots {
    pub journal: Slot<crate::agent::journal::JournalMsg>,
    pub monitor: Slot<crate::agent::monitor::MonitorMsg>,
    pub life: Slot<crate::agent::life::LifeMsg>,
    pub link: Slot<crate::agent::link::LinkMsg>,
}

/// What happened to each unfinished dispatch before this daemon, for its journal: read once for all of
/// them, because each reading the whole log by itself would make a start of many agents quadratic.
#[derive(Debug, Default)]
pub struct Backlog {
    records: HashMap<DispatchId, Vec<Record>>,
    /// The end of the log when this daemon began; what came later is read from there.
    pub until: Cursor,
}

impl Backlog {
    /// Keeps a record that `fleet` has just folded in, until its dispatch has finished.
    pub fn take(&mut self, fleet: &Fleet, record: Record) {
        let Some(id) = record.entry.dispatch_id.clone() else { return };
        if fleet.get(&id).is_some_and(|dispatch| dispatch.is_finished()) {
            self.records.remove(&id);
        } else if matches!(record.entry.event, Event::DispatchCreated(_)) || self.records.contains_key(&id) {
            // One that was finished and goes on begins elsewhere: its journal reads the log itself.
            self.records.entry(id).or_default().push(record);
        }
    }
}

/// Dispatches made side by side at most.
const CREATING: usize = 64;

/// What is decided once, when the daemon starts.
#[derive(Debug)]
pub struct Boot {
    pub backlog: Backlog,
    pub generation: u64,
    pub muleteer: PathBuf,
    pub shim: ShimProgram,
    pub lease_ms: u64,
    pub pool_limits: muleteer_model::config::Pool,
    pub telemetry: Option<muleteer_model::telemetry::Settings>,
}

/// The daemon as its actors see it. One per process; dropped last.
#[derive(Debug)]
pub struct Daemon {
    pub paths: Paths,
    pub generation: u64,
    pub muleteer: PathBuf,
    pub shim: ShimProgram,
    /// Shims this daemon started, to be reaped when they end.
    pub children: Mutex<Vec<Child>>,
    pub lease_ms: u64,
    pub pool_limits: muleteer_model::config::Pool,
    /// Where spans and metrics go; none where nobody asked for them.
    pub telemetry: Option<muleteer_model::telemetry::Settings>,
    pub fleet: watch::Sender<Arc<Fleet>>,
    pub ledger: Slot<LedgerMsg>,
    pub pool: Slot<PoolMsg>,
    pub agents: Slot<BranchMsg>,
    pub runs_branch: Slot<BranchMsg>,
    pub runs: crate::runs::Runs,
    pub root: Slot<BranchMsg>,
    pub gate: Slot<GateMsg>,
    pub watcher: Slot<WatchMsg>,
    pub task_lists: Slot<crate::tasklist::actor::TaskListsMsg>,
    /// What runs of task lists keep across restarts of their actors.
    pub task_list_runs: crate::tasklist::run::Registry,
    pub restarts: Ring,
    /// Open connections of clients: a daemon somebody talks to is not idle.
    pub connections: watch::Sender<usize>,
    /// The socket answers. Stays so across restarts of the gate.
    pub serving: watch::Sender<bool>,
    /// Cancelled when the daemon is to end; carries no reason: the event does.
    pub stop: CancellationToken,
    creating: [tokio::sync::Mutex<()>; CREATING],
    agents_by_id: Mutex<HashMap<DispatchId, Arc<AgentSlots>>>,
    /// Counts subtrees taken away: a dispatch is over for its watchers when its journal is written.
    pub closed: watch::Sender<u64>,
    backlog: Mutex<Backlog>,
}

impl Daemon {
    pub fn new(paths: Paths, boot: Boot, fleet: Fleet) -> Self {
        let Boot { backlog, generation, muleteer, shim, lease_ms, pool_limits, telemetry } = boot;
        Self {
            paths,
            generation,
            muleteer,
            shim,
            children: Mutex::default(),
            lease_ms,
            pool_limits,
            telemetry,
            fleet: watch::Sender::new(Arc::new(fleet)),
            ledger: Slot::default(),
            pool: Slot::default(),
            agents: Slot::default(),
            runs_branch: Slot::default(),
            runs: crate::runs::Runs::default(),
            root: Slot::default(),
            gate: Slot::default(),
            watcher: Slot::default(),
            task_lists: Slot::default(),
            task_list_runs: Default::default(),
            restarts: Ring::default(),
            connections: watch::Sender::new(0),
            serving: watch::Sender::new(false),
            stop: CancellationToken::new(),
            creating: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            agents_by_id: Mutex::default(),
            closed: watch::Sender::new(0),
            backlog: Mutex::new(backlog),
        }
    }

    /// The newest folded state. Everything in it is durable.
    pub fn snapshot(&self) -> Arc<Fleet> {
        self.fleet.borrow().clone()
    }

    /// Held while a dispatch of this id is made: its files are written before the ledger knows it, so
    /// two that are asked for under one id at once must not both write them. Two ids seldom share one.
    pub async fn creating(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        id.hash(&mut hasher);
        self.creating[(hasher.finish() % CREATING as u64) as usize].lock().await
    }

    pub fn agent(&self, id: &DispatchId) -> Arc<AgentSlots> {
        let mut agents = self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        agents.entry(id.clone()).or_default().clone()
    }

    pub fn forget_agent(&self, id: &DispatchId) {
        self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.closed.send_modify(|closed| *closed += 1);
    }

    /// Where the events of a dispatch are to be read from, and those before that which are known.
    pub fn history(&self, dispatch: &Dispatch) -> (Start, Vec<Record>) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        match backlog.records.remove(&dispatch.id) {
            Some(records) => (Start::Cursor(backlog.until), records),
            None if dispatch.created_seq > backlog.until.seq => (Start::Cursor(backlog.until), vec![]),
            // It had finished before and goes on, or its journal was restarted: all of it again.
            None => (Start::Seq(dispatch.created_seq), vec![]),
        }
    }

    /// Whether the dispatch has actors now.
    pub fn has_agent(&self, id: &DispatchId) -> bool {
        self.agents_by_id
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(id)
            .is_some_and(|slots| slots.life.get().is_some())
    }

    /// Notes something for the ledger without ever waiting for it.
    pub fn note(&self, event: Event) {
        tracing::warn!(event = %event.name(), detail = ?event, "noted");
        self.restarts.push(event);
        self.ledger.cast(LedgerMsg::Drain);
    }
}

/// Events of supervisors on their way to the ledger. Bounded: a restart storm must not eat memory,
/// and supervisors never wait for the ledger, which may itself be what is being restarted.
#[derive(Debug, Default)]
pub struct Ring(Mutex<(VecDeque<Entry>, u64)>);

const RING_LIMIT: usize = 1024;

impl Ring {
    fn push(&self, event: Event) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.0.len() == RING_LIMIT {
            ring.0.pop_front();
            ring.1 += 1;
        }
        ring.0
            .push_back(Entry { id: random_key(), dispatch_id: None, at: None, more: false, event });
    }

    /// All that is waiting. It stays until [`Ring::written`]: the ledger itself may die on the way.
    pub fn waiting(&self) -> Vec<Entry> {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut ring.1);
        if dropped > 0 {
            let message = format!("{dropped} restart events were dropped");
            let event = Event::Fault { what: "restart ring".into(), message };
            ring.0
                .push_front(Entry { id: random_key(), dispatch_id: None, at: None, more: false, event });
        }
        ring.0.iter().cloned().collect()
    }

    /// These are durable.
    pub fn written(&self, entries: &[Entry]) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.0.retain(|waiting| !entries.iter().any(|entry| entry.id == waiting.id));
    }
}

/// Sixteen random bytes in the alphabet of ids.
pub fn random_key() -> String {
    let mut bytes = [0u8; 16];
    // Without randomness there are no safe keys: the process must not go on guessing.
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!("the kernel gave no random bytes: {error}");
    }
    muleteer_model::id::encode(&bytes)
}
