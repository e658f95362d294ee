//! The context that all actors share: paths, the folded fleet, and the addresses of other actors.

use crate::daemon::paths::Paths;
pub use crate::daemon::random_key::random_key;
use crate::dispatch::shim::port::ShimPort;
use crate::dispatch::shim::shims::Shims;
use crate::ledger::log::Opened;
use crate::ports::Slot;
use crate::ports::agent::{JournalMsg, LifeMsg, LinkMsg, MonitorMsg};
use crate::ports::gate::GateMsg;
use crate::ports::ledger::LedgerMsg;
use crate::ports::pool::PoolMsg;
use crate::ports::task_list::TaskListsMsg;
use crate::ports::tree::BranchMsg;
use crate::ports::watch::WatchMsg;
use crate::spec_run::host::Runs;
use crate::task_list::registry::Registry;
use jiff::Timestamp;
use muleteer_model::config::{Config, Source};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_shim::start::ShimProgram;
use muleteer_store::events::tail::{Cursor, Start};
use muleteer_telemetry as telemetry;
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The addresses of the four actors of one dispatch.
#[derive(Debug, Default)]
pub struct AgentSlots {
    pub journal: Slot<JournalMsg>,
    pub monitor: Slot<MonitorMsg>,
    pub life: Slot<LifeMsg>,
    pub link: Slot<LinkMsg>,
    /// The time of the agent's last output, in milliseconds of Unix time, because plain output
    /// leaves no event. 0 before the first.
    pub heard: AtomicI64,
    /// The journal was made, or failed, so nobody needs to wait for it.
    pub has_journal: AtomicBool,
    /// A connection to the shim of this epoch that its link has not taken yet.
    port: Mutex<Option<Box<(u32, ShimPort)>>>,
}

impl AgentSlots {
    pub fn keep_port(&self, epoch: u32, port: ShimPort) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new((epoch, port)));
    }

    /// Takes the waiting connection if it belongs to this epoch's shim. It may have closed
    /// meanwhile.
    pub fn take_port(&self, epoch: u32) -> Option<ShimPort> {
        let kept = self.port.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (kept.0 == epoch).then_some(kept.1)
    }
}

/// The configuration that was loaded last.
#[derive(Debug)]
pub struct Loaded {
    pub sources: Vec<Source>,
    pub env: Vec<(String, String)>,
    pub config: Arc<Config>,
}

/// The records of each unfinished dispatch from before its journal follows it. They are read once
/// for all dispatches, and the ledger adds new ones. If each journal read the log itself, a start
/// with many agents would be quadratic.
#[derive(Debug, Default)]
pub struct Backlog {
    records: HashMap<DispatchId, Vec<Record>>,
    /// A ledger adds new records. A restarted ledger cannot know which ones its predecessor still
    /// wrote.
    followed: bool,
    /// The end of the log when this daemon started.
    pub until: Cursor,
}

impl Backlog {
    /// The limit of records for one dispatch. Beyond it, the journal reads the log.
    const LIMIT: usize = 256;

    /// Adds a record that `fleet` has just folded, until its dispatch has finished or its journal
    /// follows it.
    pub fn take(&mut self, fleet: &Fleet, record: &Record) {
        let Some(id) = &record.entry.dispatch_id else { return };
        if matches!(record.entry.event, Event::DispatchCreated(_)) {
            self.records.insert(id.clone(), vec![record.clone()]);
        } else if let Some(known) = self.records.get_mut(id) {
            // The journal of a dispatch that was finished and resumes reads the log itself.
            if known.len() == Self::LIMIT
                || fleet.get(id).is_some_and(|dispatch| dispatch.is_finished())
            {
                self.records.remove(id);
            } else {
                known.push(record.clone());
            }
        }
    }
}

/// At most this many dispatches are made at the same time.
const CREATING: usize = 64;

/// The values that are decided once, when the daemon starts.
#[derive(Debug)]
pub struct Boot {
    /// The recovered log. A ledger that finds none opens the log itself.
    pub opened: Option<Opened>,
    pub backlog: Backlog,
    pub generation: u64,
    pub muleteer: PathBuf,
    pub shim: ShimProgram,
    pub lease_ms: u64,
    pub pool_limits: muleteer_model::config::Pool,
    pub retention: muleteer_model::config::Retention,
    pub telemetry: Option<muleteer_telemetry::Settings>,
}

/// The daemon as its actors see it. One per process, and dropped last.
#[derive(Debug)]
pub struct Daemon {
    pub paths: Paths,
    pub generation: u64,
    pub muleteer: PathBuf,
    pub shims: Shims,
    pub lease_ms: u64,
    pub pool_limits: muleteer_model::config::Pool,
    pub retention: muleteer_model::config::Retention,
    /// The destination of spans and metrics; `None` if no export is configured.
    pub telemetry: Option<muleteer_telemetry::Settings>,
    pub fleet: watch::Sender<Arc<Fleet>>,
    /// The log, until the first ledger takes it.
    pub opened: Mutex<Option<Opened>>,
    pub ledger: Slot<LedgerMsg>,
    pub pool: Slot<PoolMsg>,
    /// The pool has a `Look` message that it has not started to handle.
    pub looking: AtomicBool,
    pub agents: Slot<BranchMsg>,
    pub runs_branch: Slot<BranchMsg>,
    pub runs: Runs,
    pub root: Slot<BranchMsg>,
    pub gate: Slot<GateMsg>,
    pub watcher: Slot<WatchMsg>,
    pub task_lists: Slot<TaskListsMsg>,
    /// State of task-list runs that outlives restarts of their actors.
    pub task_list_runs: Registry,
    pub restarts: Ring,
    /// The number of open client connections: a daemon with a client is not idle.
    pub connections: watch::Sender<usize>,
    /// The socket answers. It stays set across restarts of the gate.
    pub serving: watch::Sender<bool>,
    /// The agents of earlier daemons were contacted (see [`crate::agent::adopt`]).
    pub adopted: AtomicBool,
    /// Cancelled when the daemon is to end. The reason is in the event.
    pub stop: CancellationToken,
    /// The configuration that was loaded last, because many dispatches of one place need the same.
    pub config: Mutex<Option<Loaded>>,
    pub repositories: crate::vcs::worktree::Repositories,
    pub identities: crate::vcs::worktree::Identities,
    creating: [tokio::sync::Mutex<()>; CREATING],
    agents_by_id: Mutex<HashMap<DispatchId, Arc<AgentSlots>>>,
    /// Counts removed subtrees: for its watchers, a dispatch is over when its journal is written.
    pub closed: watch::Sender<u64>,
    backlog: Mutex<Backlog>,
}

impl Daemon {
    pub fn new(paths: Paths, boot: Boot) -> Self {
        let Boot {
            opened,
            backlog,
            generation,
            muleteer,
            shim,
            lease_ms,
            pool_limits,
            retention,
            telemetry,
        } = boot;
        let fleet = opened.as_ref().map(|opened| opened.fleet.clone()).unwrap_or_default();
        Self {
            paths,
            generation,
            muleteer,
            shims: Shims::new(shim),
            lease_ms,
            pool_limits,
            retention,
            telemetry,
            fleet: watch::Sender::new(Arc::new(fleet)),
            opened: Mutex::new(opened),
            ledger: Slot::default(),
            pool: Slot::default(),
            looking: AtomicBool::new(false),
            agents: Slot::default(),
            runs_branch: Slot::default(),
            runs: Runs::default(),
            root: Slot::default(),
            gate: Slot::default(),
            watcher: Slot::default(),
            task_lists: Slot::default(),
            task_list_runs: Default::default(),
            restarts: Ring::default(),
            connections: watch::Sender::new(0),
            serving: watch::Sender::new(false),
            adopted: AtomicBool::new(false),
            stop: CancellationToken::new(),
            config: Mutex::default(),
            repositories: Default::default(),
            identities: Default::default(),
            creating: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            agents_by_id: Mutex::default(),
            closed: watch::Sender::new(0),
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
            let sampled =
                self.telemetry.as_ref().is_none_or(|settings| settings.sampler.root(trace));
            telemetry::Context { trace, span: root, sampled }.to_string()
        })
    }

    /// Returns a given place if it is valid. The sampler decides whether it is recorded.
    pub fn given_place(&self, given: Option<String>) -> Option<String> {
        let context = telemetry::Context::parse(&given?)?;
        let sampler = self.telemetry.as_ref().map(|settings| settings.sampler).unwrap_or_default();
        Some(telemetry::Context { sampled: sampler.below(context), ..context }.to_string())
    }

    /// Returns the newest folded state. Everything in it is durable.
    pub fn snapshot(&self) -> Arc<Fleet> {
        self.fleet.borrow().clone()
    }

    /// Locks the making of a dispatch with this id. Its files are written before the ledger knows
    /// it, so two simultaneous requests with one id must not both write them. Different ids seldom
    /// share a lock.
    pub async fn creating(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        id.hash(&mut hasher);
        self.creating[(hasher.finish() % CREATING as u64) as usize].lock().await
    }

    pub fn agent(&self, id: &DispatchId) -> Arc<AgentSlots> {
        let mut agents = self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        agents.entry(id.clone()).or_default().clone()
    }

    /// Returns the times of the agents' last output, as far as this daemon has read it.
    pub fn heard(&self) -> HashMap<String, Timestamp> {
        let agents = self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = agents.iter().map(|(id, agent)| (id, agent.heard.load(Ordering::Relaxed)));
        heard
            .filter(|(_, at)| *at > 0)
            .filter_map(|(id, at)| Some((id.to_string(), Timestamp::from_millisecond(at).ok()?)))
            .collect()
    }

    pub fn forget_agent(&self, id: &DispatchId) {
        self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.closed.send_modify(|closed| *closed += 1);
    }

    /// Returns the records of a dispatch so far, or the place in the log to read them from. The
    /// caller must already receive the events that follow, because no more records are collected
    /// for it.
    pub fn history(&self, dispatch: &Dispatch) -> Result<Vec<Record>, Start> {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        match backlog.records.remove(&dispatch.id) {
            Some(records) => Ok(records),
            None if dispatch.created_seq > backlog.until.seq => Err(Start::Cursor(backlog.until)),
            // The dispatch had finished and resumes, or its journal restarted, so it reads all
            // records again.
            None => Err(Start::Seq(dispatch.created_seq)),
        }
    }

    /// Tells the backlog that a ledger adds records from now on.
    pub fn follow_backlog(&self) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut backlog.followed, true) {
            backlog.records.clear();
        }
    }

    /// Adds durable records that `fleet` has folded, before any actor gets them.
    pub fn keep_backlog(&self, fleet: &Fleet, records: &[Record]) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().for_each(|record| backlog.take(fleet, record));
    }

    /// Asks the pool to read the fleet again. Simultaneous requests share one pass, because each
    /// pass reads the whole fleet.
    pub fn look(&self) {
        if !self.looking.swap(true, Ordering::SeqCst) {
            self.pool.cast(PoolMsg::Look);
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
        self.ledger.cast(LedgerMsg::Drain);
    }
}

/// A queue for events of supervisors on their way to the ledger. It is bounded, because a restart
/// storm must not exhaust memory. Supervisors never wait for the ledger, which may itself be
/// restarting.
#[derive(Debug, Default)]
pub struct Ring(Mutex<(VecDeque<Entry>, u64)>);

const RING_LIMIT: usize = 1024;

impl Ring {
    fn push(&self, entry: Entry) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.0.len() == RING_LIMIT {
            ring.0.pop_front();
            ring.1 += 1;
        }
        ring.0.push_back(entry);
    }

    /// Returns all waiting events. They stay until [`Ring::written`], because the ledger may die
    /// before it appends them.
    pub fn waiting(&self) -> Vec<Entry> {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let dropped = std::mem::take(&mut ring.1);
        if dropped > 0 {
            let message = format!("{dropped} restart events were dropped");
            let event = Event::Fault { what: "restart ring".into(), message };
            ring.0.push_front(Entry {
                id: random_key(),
                dispatch_id: None,
                at: None,
                more: false,
                event,
            });
        }
        ring.0.iter().cloned().collect()
    }

    /// Removes these events, which are durable.
    pub fn written(&self, entries: &[Entry]) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.0.retain(|waiting| !entries.iter().any(|entry| entry.id == waiting.id));
    }
}

#[cfg(test)]
pub(crate) mod test_daemon;

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_model::event::FinalState;

    fn record(seq: u64, id: &DispatchId, event: Event) -> Record {
        let entry = Entry {
            id: format!("e{seq}"),
            dispatch_id: Some(id.clone()),
            at: None,
            more: false,
            event,
        };
        Record { v: 1, seq, ts: jiff::Timestamp::UNIX_EPOCH, entry }
    }

    #[test]
    fn what_happened_is_kept_until_it_is_followed_finished_or_too_much() {
        let id = DispatchId::try_from("abcd2345".to_string()).expect("an id");
        let created: Vec<_> = muleteer_store::events::catalog::samples()
            .into_iter()
            .map(|record| record.entry.event)
            .filter(|event| matches!(event, Event::DispatchCreated(_)))
            .collect();
        let (mut fleet, mut backlog) = (Fleet::default(), Backlog::default());
        let mut seq = 0;
        let mut next = |backlog: &mut Backlog, event: &Event| {
            seq += 1;
            let record = record(seq, &id, event.clone());
            fleet.apply(&record);
            backlog.take(&fleet, &record);
        };
        let said = Event::JournalEntry { text: "x".into() };
        let kept = |backlog: &Backlog| backlog.records.get(&id).map(Vec::len);

        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), None, "its beginning was not seen");
        next(&mut backlog, &created[0]);
        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), Some(2));
        // Its journal has these records now, and gets later ones itself.
        backlog.records.remove(&id);
        next(&mut backlog, &said);
        assert_eq!(kept(&backlog), None);

        next(&mut backlog, &created[0]);
        for _ in 0..Backlog::LIMIT {
            next(&mut backlog, &said);
        }
        assert_eq!(kept(&backlog), None, "too much");

        next(&mut backlog, &created[0]);
        let finished = Event::DispatchFinished {
            state: FinalState::Killed,
            reason: String::new(),
            result: None,
        };
        next(&mut backlog, &finished);
        assert_eq!(kept(&backlog), None, "finished");
    }
}
