//! The supervision tree as data: the name, strategy, restart class, intensity and backoff of every
//! child. `muleteer tree` prints it live; `crate::tree::supervisor_actor` runs it.
//!
//! ```text
//! root                      one-for-one
//! ├─ ledger                 the only writer of events
//! ├─ projection             SQLite, always behind the ledger, never ahead
//! ├─ telemetry              traces and metrics to a collector, from the events
//! ├─ heartbeat              renews the shims' leases; outside the fleet on purpose
//! ├─ watcher                one file watcher for every journal
//! ├─ fleet                  one-for-all: the pool and the agents that it counts restart together
//! │  ├─ pool
//! │  └─ agents              dynamic
//! │     └─ agent/<id>       rest-for-one: journal, life
//! ├─ runs                   dynamic
//! │  └─ run/<id>            drives the pipeline of one spec run
//! ├─ task-lists             runs of task lists
//! ├─ conversations          threads: delivers their messages, records the answers
//! ├─ adapters               one-for-one: a process for each enabled adapter
//! ├─ notifier               tells people that something waits for them
//! └─ gate                   the socket
//! ```

pub(crate) mod supervisor_actor;

use crate::agent::{journal::Journal, life::Life};
use crate::conversation::actor::Conversations;
use crate::conversation::adapter::actor::Adapters;
use crate::daemon::context::Daemon;
use crate::daemon::file_watch::Watch;
use crate::daemon::heartbeat::Heartbeat;
use crate::daemon::projection::Projection;
use crate::dispatch::pool::Pool;
use crate::gate::Gate;
use crate::ledger::Ledger;
use crate::notify::Notifier;
use crate::spec_run::actor::RunActor;
use crate::task_list::actor::TaskLists;
use crate::telemetry::Telemetry;
use muleteer_model::dispatch::Phase;
use muleteer_model::event::id::DispatchId;
use muleteer_model::restart::{Backoff, Intensity, RestartClass, Strategy};
use muleteer_protocol::v1::ProcessStatus;
use ractor::{Actor, ActorCell, SpawnErr};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub type Starting = Pin<Box<dyn Future<Output = Result<ActorCell, SpawnErr>> + Send>>;
pub type StartFn = fn(Arc<Daemon>, Option<DispatchId>, ActorCell) -> Starting;

/// Starts an actor under its supervisor, without a global name: names would clash across restarts.
fn linked<A: Actor>(actor: A, args: A::Arguments, supervisor: ActorCell) -> Starting {
    Box::pin(async move { Ok(A::spawn_linked(None, actor, args, supervisor).await?.0.get_cell()) })
}

/// Starts one of the actors that every dispatch has.
fn of_dispatch<A>(
    actor: A,
    daemon: Arc<Daemon>,
    id: Option<DispatchId>,
    supervisor: ActorCell,
) -> Starting
where
    A: Actor<Arguments = (Arc<Daemon>, DispatchId)>,
{
    match id {
        Some(id) => linked(actor, (daemon, id), supervisor),
        None => Box::pin(async { Err(SpawnErr::StartupFailed("needs a dispatch".into())) }),
    }
}

/// One child of the tree.
pub struct Node {
    pub name: &'static str,
    /// The restart strategy for its children.
    pub strategy: Strategy,
    /// When its parent restarts it.
    pub restart: RestartClass,
    /// How many restarts of its children it tolerates before it fails itself.
    pub intensity: Intensity,
    pub backoff: Backoff,
    pub start: Start,
}

pub enum Start {
    Leaf(StartFn),
    Branch(&'static [Node]),
    /// Leaves that the supervisor of this node runs, with this node's strategy and intensity. An
    /// actor between them would cost eight KiB for each dispatch.
    Parts(&'static [Node]),
    /// One child per unfinished dispatch, made from this template.
    PerDispatch(&'static Node),
    /// One child per run that is under way.
    PerRun(&'static Node),
}

impl Node {
    pub fn name_for(&self, id: Option<&DispatchId>) -> String {
        match (self.name, id) {
            ("agent" | "run", Some(id)) => format!("{}/{id}", self.name),
            (name, _) => name.into(),
        }
    }
}

const fn intensity(max: u32, seconds: u64) -> Intensity {
    Intensity { max, window: Duration::from_secs(seconds) }
}

const fn backoff(base_ms: u64, max_ms: u64) -> Backoff {
    Backoff {
        base: Duration::from_millis(base_ms),
        max: Duration::from_millis(max_ms),
        jitter: 0.2,
    }
}

const fn leaf(name: &'static str, start: StartFn) -> Node {
    Node {
        name,
        strategy: Strategy::OneForOne,
        restart: RestartClass::Permanent,
        intensity: intensity(0, 1),
        backoff: backoff(0, 0),
        start: Start::Leaf(start),
    }
}

const fn branch(
    name: &'static str,
    strategy: Strategy,
    intensity: Intensity,
    backoff: Backoff,
    start: Start,
) -> Node {
    Node { name, strategy, restart: RestartClass::Permanent, intensity, backoff, start }
}

/// The whole tree.
pub static ROOT: Node = branch(
    "root",
    Strategy::OneForOne,
    intensity(5, 60),
    backoff(10, 1_000),
    Start::Branch(&[
        leaf("ledger", |daemon, _, supervisor| linked(Ledger, daemon, supervisor)),
        leaf("projection", |daemon, _, supervisor| linked(Projection, daemon, supervisor)),
        leaf("telemetry", |daemon, _, supervisor| linked(Telemetry, daemon, supervisor)),
        leaf("heartbeat", |daemon, _, supervisor| linked(Heartbeat, daemon, supervisor)),
        leaf("watcher", |daemon, _, supervisor| linked(Watch, daemon, supervisor)),
        branch(
            "fleet",
            Strategy::OneForAll,
            intensity(5, 60),
            backoff(10, 1_000),
            Start::Branch(&[
                leaf("pool", |daemon, _, supervisor| linked(Pool, daemon, supervisor)),
                branch(
                    "agents",
                    Strategy::OneForOne,
                    intensity(50, 60),
                    backoff(10, 5_000),
                    Start::PerDispatch(&AGENT),
                ),
            ]),
        ),
        branch(
            "runs",
            Strategy::OneForOne,
            intensity(20, 60),
            backoff(10, 5_000),
            Start::PerRun(&RUN),
        ),
        leaf("task-lists", |daemon, _, supervisor| linked(TaskLists, daemon, supervisor)),
        leaf("conversations", |daemon, _, supervisor| linked(Conversations, daemon, supervisor)),
        leaf("adapters", |daemon, _, supervisor| linked(Adapters, daemon, supervisor)),
        leaf("notifier", |daemon, _, supervisor| linked(Notifier, daemon, supervisor)),
        leaf("gate", |daemon, _, supervisor| linked(Gate, daemon, supervisor)),
    ]),
);

/// One run. Its agents are dispatches, and run under `agents`.
pub static RUN: Node =
    leaf("run", |daemon, id, supervisor| of_dispatch(RunActor, daemon, id, supervisor));

/// The link of a life to its shim: a task that may fail alone.
pub struct Task {
    pub name: &'static str,
    pub intensity: Intensity,
    pub backoff: Backoff,
}

/// How often the link to a shim may fail before its life restarts.
pub static LINK: Task =
    Task { name: "link", intensity: intensity(10, 60), backoff: backoff(20, 5_000) };

/// How often the process of an adapter may end before the adapter is set aside. Each one fails
/// alone. `max_restarts` and `max_backoff` of its settings override these values.
pub static ADAPTER: Task =
    Task { name: "adapter", intensity: intensity(10, 600), backoff: backoff(200, 30_000) };

/// The subtree of one dispatch. It is rest-for-one in this order, because later actors depend on
/// earlier ones. The life has a task that talks to the shim, and a monitor. `agents` runs both.
pub static AGENT: Node = branch(
    "agent",
    Strategy::RestForOne,
    intensity(10, 60),
    backoff(20, 5_000),
    Start::Parts(&[
        leaf("journal", |daemon, id, supervisor| of_dispatch(Journal, daemon, id, supervisor)),
        leaf("life", |daemon, id, supervisor| of_dispatch(Life, daemon, id, supervisor)),
    ]),
);

/// Returns the OS process that a node represents. That is the daemon for the root, the agent's
/// process for `agent/<id>`, and its shim for `life`, which talks to it.
pub fn process_status(
    daemon: &Daemon,
    node: &Node,
    id: Option<&DispatchId>,
) -> Option<ProcessStatus> {
    let working = |id: &DispatchId| match daemon.snapshot().get(id)?.phase {
        Phase::Working { pid, shim_pid, .. } => Some((pid, shim_pid)),
        _ => None,
    };
    let pid = match (node.name, id) {
        ("root", _) => std::process::id(),
        ("agent", Some(id)) => working(id)?.0,
        ("life", Some(id)) => working(id)?.1,
        _ => return None,
    };
    crate::dispatch::view::process(pid)
}
