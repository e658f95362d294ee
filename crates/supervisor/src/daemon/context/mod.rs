//! What every actor may reach: paths, the folded fleet, and where its siblings stand now.

use crate::daemon::file_watch::WatchMsg;
use crate::daemon::paths::Paths;
use crate::dispatch::launch::ShimPort;
use crate::dispatch::pool::PoolMsg;
use crate::dispatch::shims::Shims;
use crate::gate::GateMsg;
use crate::ledger::{LedgerMsg, Opened};
use crate::tree::supervisor_actor::BranchMsg;
use jiff::Timestamp;
use muleteer_model::config::{Config, Source};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_shim::start::ShimProgram;
use muleteer_store::events::tail::{Cursor, Start};
use muleteer_telemetry as telemetry;
use ractor::{ActorRef, Message};
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
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
    /// When it last put something out, in milliseconds of Unix time: plain output leaves no event.
    /// 0 before.
    pub heard: AtomicI64,
    /// Its journal was made, or could not be: nobody has to wait for that.
    pub has_journal: AtomicBool,
    /// A connection to the shim of this epoch that waits for its link.
    port: Mutex<Option<Box<(u32, ShimPort)>>>,
}

impl AgentSlots {
    pub fn keep_port(&self, epoch: u32, port: ShimPort) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new((epoch, port)));
    }

    /// The connection that waits, if it is to this epoch's shim. It may have ended meanwhile.
    pub fn take_port(&self, epoch: u32) -> Option<ShimPort> {
        let kept = self.port.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (kept.0 == epoch).then_some(kept.1)
    }
}

/// A configuration as it was loaded last.
#[derive(Debug)]
pub struct Loaded {
    pub sources: Vec<Source>,
    pub env: Vec<(String, String)>,
    pub config: Arc<Config>,
}

/// What has happened to each unfinished dispatch before its journal follows it: read once for all
/// of them, and kept up by the ledger, because each reading the log by itself would make a start of
/// many agents quadratic.
#[derive(Debug, Default)]
pub struct Backlog {
    records: HashMap<DispatchId, Vec<Record>>,
    /// A ledger keeps it up. Another one cannot know what its predecessor still wrote.
    followed: bool,
    /// The end of the log when this daemon began.
    pub until: Cursor,
}

impl Backlog {
    /// Records kept for one dispatch; beyond it, its journal reads the log.
    const LIMIT: usize = 256;

    /// Keeps a record that `fleet` has just folded in, until its dispatch has finished or is
    /// followed.
    pub fn take(&mut self, fleet: &Fleet, record: &Record) {
        let Some(id) = &record.entry.dispatch_id else { return };
        if matches!(record.entry.event, Event::DispatchCreated(_)) {
            self.records.insert(id.clone(), vec![record.clone()]);
        } else if let Some(known) = self.records.get_mut(id) {
            // One that was finished and goes on begins elsewhere: its journal reads the log itself.
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

/// Dispatches made side by side at most.
const CREATING: usize = 64;

/// What is decided once, when the daemon starts.
#[derive(Debug)]
pub struct Boot {
    /// The log as it was recovered; a ledger that finds none opens it itself.
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

/// The daemon as its actors see it. One per process; dropped last.
#[derive(Debug)]
pub struct Daemon {
    pub paths: Paths,
    pub generation: u64,
    pub muleteer: PathBuf,
    pub shims: Shims,
    pub lease_ms: u64,
    pub pool_limits: muleteer_model::config::Pool,
    pub retention: muleteer_model::config::Retention,
    /// Where spans and metrics go; none where nobody asked for them.
    pub telemetry: Option<muleteer_telemetry::Settings>,
    pub fleet: watch::Sender<Arc<Fleet>>,
    /// The log, until the first ledger takes it.
    pub opened: Mutex<Option<Opened>>,
    pub ledger: Slot<LedgerMsg>,
    pub pool: Slot<PoolMsg>,
    /// The pool has been asked to look and has not begun to.
    pub looking: AtomicBool,
    pub agents: Slot<BranchMsg>,
    pub runs_branch: Slot<BranchMsg>,
    pub runs: crate::spec_run::Runs,
    pub root: Slot<BranchMsg>,
    pub gate: Slot<GateMsg>,
    pub watcher: Slot<WatchMsg>,
    pub task_lists: Slot<crate::task_list::actor::TaskListsMsg>,
    /// What runs of task lists keep across restarts of their actors.
    pub task_list_runs: crate::task_list::run::Registry,
    pub restarts: Ring,
    /// Open connections of clients: a daemon somebody talks to is not idle.
    pub connections: watch::Sender<usize>,
    /// The socket answers. Stays so across restarts of the gate.
    pub serving: watch::Sender<bool>,
    /// The agents of earlier daemons were asked for (see [`crate::agent::adopt`]).
    pub adopted: AtomicBool,
    /// Cancelled when the daemon is to end; carries no reason: the event does.
    pub stop: CancellationToken,
    /// Many that are dispatched from one place ask for the same.
    pub config: Mutex<Option<Loaded>>,
    pub repositories: crate::vcs::worktree::Repositories,
    pub identities: crate::vcs::worktree::Identities,
    creating: [tokio::sync::Mutex<()>; CREATING],
    agents_by_id: Mutex<HashMap<DispatchId, Arc<AgentSlots>>>,
    /// Counts subtrees taken away: a dispatch is over for its watchers when its journal is written.
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
            runs: crate::spec_run::Runs::default(),
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

    /// The caller's place in a trace; where there is none, a new trace whose root is the span
    /// `root`.
    pub fn place_in_trace(&self, given: Option<String>, root: [u8; 8]) -> String {
        self.given_place(given).unwrap_or_else(|| {
            let mut trace = [0u8; 16];
            // Without randomness the id is not unique, which costs a muddled trace and nothing
            // else.
            if getrandom::fill(&mut trace).is_err() {
                trace[8..].copy_from_slice(&root);
            }
            let sampled =
                self.telemetry.as_ref().is_none_or(|settings| settings.sampler.root(trace));
            telemetry::Context { trace, span: root, sampled }.to_string()
        })
    }

    /// A place that somebody gave, if it is one; whether it is looked at further is the sampler's
    /// to say.
    pub fn given_place(&self, given: Option<String>) -> Option<String> {
        let context = telemetry::Context::parse(&given?)?;
        let sampler = self.telemetry.as_ref().map(|settings| settings.sampler).unwrap_or_default();
        Some(telemetry::Context { sampled: sampler.below(context), ..context }.to_string())
    }

    /// The newest folded state. Everything in it is durable.
    pub fn snapshot(&self) -> Arc<Fleet> {
        self.fleet.borrow().clone()
    }

    /// Held while a dispatch of this id is made: its files are written before the ledger knows it,
    /// so two that are asked for under one id at once must not both write them. Two ids seldom
    /// share one.
    pub async fn creating(&self, id: &str) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = std::hash::DefaultHasher::new();
        id.hash(&mut hasher);
        self.creating[(hasher.finish() % CREATING as u64) as usize].lock().await
    }

    pub fn agent(&self, id: &DispatchId) -> Arc<AgentSlots> {
        let mut agents = self.agents_by_id.lock().unwrap_or_else(PoisonError::into_inner);
        agents.entry(id.clone()).or_default().clone()
    }

    /// When agents last put something out, as far as this daemon has heard them.
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

    /// The records of a dispatch so far, where they are known, else where in the log they are to be
    /// read from. Who asks must be where life and gate send what comes next: nothing is kept for it
    /// any more.
    pub fn history(&self, dispatch: &Dispatch) -> Result<Vec<Record>, Start> {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        match backlog.records.remove(&dispatch.id) {
            Some(records) => Ok(records),
            None if dispatch.created_seq > backlog.until.seq => Err(Start::Cursor(backlog.until)),
            // It had finished before and goes on, or its journal was restarted: all of it again.
            None => Err(Start::Seq(dispatch.created_seq)),
        }
    }

    /// A ledger begins to keep the backlog up.
    pub fn follow_backlog(&self) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut backlog.followed, true) {
            backlog.records.clear();
        }
    }

    /// Durable records that `fleet` has folded in; before anybody is told of them.
    pub fn keep_backlog(&self, fleet: &Fleet, records: &[Record]) {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        records.iter().for_each(|record| backlog.take(fleet, record));
    }

    /// Asks the pool to look at the fleet as it is now. Many who ask at once are answered by one
    /// look, since each look goes through the whole fleet.
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

    /// Notes something for the ledger without ever waiting for it.
    pub fn note(&self, event: Event) {
        self.note_entry(None, event);
    }

    /// Notes a fault of one dispatch.
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

/// Events of supervisors on their way to the ledger. Bounded: a restart storm must not eat memory,
/// and supervisors never wait for the ledger, which may itself be what is being restarted.
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

    /// All that is waiting. It stays until [`Ring::written`]: the ledger itself may die on the way.
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
    muleteer_model::event::id::encode(&bytes)
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
        // Its journal has them now, and is told of what comes.
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
