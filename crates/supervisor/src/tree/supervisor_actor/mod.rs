//! The one supervisor actor. It runs the nodes of [`crate::tree`] with the strategies of
//! `model::restart`. ractor's default handler stops a supervisor when any child ends, so this actor
//! handles every supervision event itself.

mod dynamic;
mod parts;

use crate::agent::adopt;
use crate::daemon::context::Daemon;
use crate::ports::agent::LifeMsg;
use crate::ports::gate::GateMsg;
use crate::ports::tree::BranchMsg;
use crate::telemetry::own_spans;
use crate::tree::{Node, Start, process_status};
use futures_util::future::join_all;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::restart::{Decision, Window, affected, seed};
use muleteer_protocol::v1::TreeNode;
use ractor::{
    Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr, SupervisionEvent,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

/// The time for a child to finish its current message when it is stopped; then it is killed.
const STOP_GRACE: Duration = Duration::from_secs(3);
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(1);

/// The actor of one inner node of the tree.
pub struct Branch;

pub struct Args {
    pub daemon: Arc<Daemon>,
    pub node: &'static Node,
    pub id: Option<DispatchId>,
}

pub struct State {
    daemon: Arc<Daemon>,
    node: &'static Node,
    id: Option<DispatchId>,
    children: Vec<Child>,
    window: Window,
    /// The number of the newest restart of a dynamic child. No two restarts have the same one.
    generation: u64,
    describing: JoinSet<()>,
}

struct Child {
    node: &'static Node,
    id: Option<DispatchId>,
    actor: Option<ActorCell>,
    restarts: Window,
    state: &'static str,
    /// The leaves of a [`Start::Parts`] node, and their restarts together.
    parts: Vec<Child>,
    failures: Window,
    /// Stops the actors that a restart or the removal includes.
    stopping: Option<AbortOnDropHandle<()>>,
    /// The newest restart. The timer of an earlier one must not end the pause of a later one.
    generation: u64,
    /// The child is being removed. Has the requests to add it again that came in the meantime.
    removal: Option<Vec<RpcReplyPort<()>>>,
}

impl Child {
    fn name(&self) -> String {
        self.node.name_for(self.id.as_ref())
    }
}

impl Actor for Branch {
    type Msg = BranchMsg;
    type State = State;
    type Arguments = Args;

    async fn pre_start(
        &self,
        myself: ActorRef<BranchMsg>,
        args: Args,
    ) -> Result<State, ActorProcessingErr> {
        let Args { daemon, node, id } = args;
        let children = match &node.start {
            Start::Branch(nodes) => nodes.iter().map(|node| Child::new(node, id.clone())).collect(),
            Start::PerDispatch(template) => daemon
                .snapshot()
                .unfinished()
                .map(|dispatch| Child::new(template, Some(dispatch.id.clone())))
                .collect(),
            Start::PerRun(template) => daemon
                .runs
                .all()
                .iter()
                .map(|run| Child::new(template, Some(run.key.clone())))
                .collect(),
            Start::Leaf(_) | Start::Parts(_) => vec![],
        };
        if let Start::PerDispatch(_) = node.start {
            daemon.ports.agents.set(myself.clone());
        }
        if let Start::PerRun(_) = node.start {
            daemon.ports.runs.set(myself.clone());
        }
        myself.cast(BranchMsg::Boot)?;
        let window = Window::new(node.intensity, node.backoff, seed(node.name));
        Ok(State { daemon, node, id, children, window, generation: 0, describing: JoinSet::new() })
    }

    async fn post_stop(
        &self,
        _: ActorRef<BranchMsg>,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        // Stopping a parent would kill its children without their `post_stop`.
        if state.is_dynamic() {
            // Dynamic children do not depend on each other. One after another, a few slow ones
            // would use up the patience of this actor's supervisor.
            join_all(state.children.iter_mut().map(Child::stop)).await;
            return Ok(());
        }
        for child in state.children.iter_mut().rev() {
            child.stop().await;
        }
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<BranchMsg>,
        message: BranchMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            BranchMsg::Boot => {
                if let Start::PerDispatch(_) = state.node.start {
                    Box::pin(adopt::all(&state.daemon)).await;
                    state.daemon.lifecycle.adopted.store(true, Ordering::SeqCst);
                    state.daemon.ports.gate.cast(GateMsg::OpenAgents);
                }
                for at in 0..state.children.len() {
                    Box::pin(state.start(&myself, at)).await?;
                }
            }
            BranchMsg::Start(places, _restart) => {
                for at in places {
                    if at < state.children.len() && state.children[at].actor.is_none() {
                        Box::pin(state.start(&myself, at)).await?;
                    }
                }
            }
            BranchMsg::Again(id, generation, _restart) => {
                if let Some(at) = state.place_of(&id)
                    && state.children[at].generation == generation
                    && state.children[at].actor.is_none()
                {
                    Box::pin(state.start(&myself, at)).await?;
                }
            }
            BranchMsg::Add(id, reply) => Box::pin(state.add(&myself, id, vec![reply])).await?,
            // A message may have revived the dispatch since its actors asked to be removed.
            BranchMsg::Remove(id) if state.is_unfinished(&id) => {
                state.daemon.agent(&id).life.cast(LifeMsg::Wake);
            }
            BranchMsg::Remove(id) => state.remove(&myself, id),
            BranchMsg::Removed(id) => Box::pin(state.removed(&myself, id)).await?,
            BranchMsg::Ping(reply) => {
                let _ = reply.send(());
            }
            BranchMsg::Describe(reply) => {
                // Children are asked from a separate task: a busy child must not stop this actor
                // from answering.
                let node = state.describe();
                let children: Vec<_> =
                    state.children.iter().map(|child| child.probe(&state.daemon)).collect();
                while state.describing.try_join_next().is_some() {}
                state.describing.spawn(async move {
                    let mut node = node;
                    for child in children {
                        node.children.push(child.describe().await);
                    }
                    let _ = reply.send(node);
                });
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<BranchMsg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        let (cell, reason, failed) = match &event {
            SupervisionEvent::ActorFailed(cell, error) => (cell, error.to_string(), true),
            SupervisionEvent::ActorTerminated(cell, _, reason) => {
                let killed = reason.as_deref() == Some("killed");
                (cell, reason.clone().unwrap_or_default(), killed)
            }
            _ => return Ok(()),
        };
        let Some(at) = state.children.iter().position(|child| child.is(cell)) else {
            return Box::pin(state.part_ended(&myself, cell, (&reason, failed))).await;
        };
        state.children[at].actor = None;
        if !state.children[at].node.restart.restarts(failed) {
            state.children[at].state = "stopped";
            return Ok(());
        }
        Box::pin(state.restart(&myself, at, &reason)).await
    }
}

impl State {
    async fn start(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        at: usize,
    ) -> Result<(), ActorProcessingErr> {
        let (node, id) = (self.children[at].node, self.children[at].id.clone());
        if self.children[at].removal.is_some() {
            return Ok(());
        }
        if let Start::Parts(_) = node.start {
            return Box::pin(self.start_parts(myself, at)).await;
        }
        match start_node(&self.daemon, node, id, myself.get_cell()).await {
            Ok(cell) => {
                self.children[at].actor = Some(cell);
                self.children[at].state = "running";
                Ok(())
            }
            Err(error) => Box::pin(self.restart(myself, at, &error.to_string())).await,
        }
    }

    /// Restarts the child at `at` with the siblings that the strategy includes, or escalates.
    async fn restart(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        at: usize,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        let actor = self.children[at].name();
        let now = awake_ms();
        self.children[at].restarts.record(now);
        let Decision::RestartAfter(delay) = self.window.record(now) else {
            let reason = format!("{actor} failed too often: {reason}");
            self.daemon.note(Event::ActorEscalated {
                actor: self.node.name_for(self.id.as_ref()),
                reason: reason.clone(),
            });
            return Err(reason.into());
        };
        let (child, in_window) = (&self.children[at], self.window.restarts(now));
        let id = child.id.clone();
        let span = self.note_restart(child, id.as_ref(), reason, (in_window, delay));
        if self.is_dynamic() {
            let places = (0..self.children[at].parts.len()).collect();
            self.children[at].state = "restarting";
            self.restart_dynamic(myself, at, places, (delay, span));
            return Ok(());
        }
        let places = affected(self.node.strategy, self.children.len(), at);
        for &place in places.iter().rev() {
            self.children[place].stop().await;
            self.children[place].state = "restarting";
        }
        myself.send_after(delay, move || BranchMsg::Start(places.clone(), span.clone()));
        Ok(())
    }

    /// Records a restart, and begins its span.
    fn note_restart(
        &self,
        child: &Child,
        id: Option<&DispatchId>,
        reason: &str,
        (restarts_in_window, delay): (u32, Duration),
    ) -> tracing::Span {
        let (actor, fleet) = (child.name(), self.daemon.snapshot());
        let trace = id.and_then(|id| fleet.get(id)?.created.trace.as_deref());
        let settings = self.daemon.settings.telemetry.as_ref();
        let span = own_spans::restart(settings, child.node.name, &actor, trace);
        self.daemon.note(Event::ActorRestarted {
            actor,
            reason: reason.into(),
            restarts_in_window,
            delay_ms: delay.as_millis() as u64,
        });
        span
    }

    fn describe(&self) -> TreeNode {
        TreeNode {
            name: self.node.name_for(self.id.as_ref()),
            strategy: self.node.strategy.as_str().into(),
            restart: self.node.restart.as_str().into(),
            restarts_in_window: self.window.restarts(awake_ms()),
            state: "running".into(),
            children: vec![],
            process: process_status(&self.daemon, self.node, self.id.as_ref()),
        }
    }
}

/// The data that describes a child without blocking its supervisor.
struct Probe {
    plain: TreeNode,
    branch: Option<ActorRef<BranchMsg>>,
}

impl Probe {
    async fn describe(self) -> TreeNode {
        let Some(branch) = self.branch else { return self.plain };
        match branch.call(BranchMsg::Describe, Some(DESCRIBE_DEADLINE)).await {
            Ok(ractor::rpc::CallResult::Success(mut node)) => {
                node.restarts_in_window = self.plain.restarts_in_window;
                node
            }
            _ => TreeNode { state: "busy".into(), ..self.plain },
        }
    }
}

impl Child {
    fn new(node: &'static Node, id: Option<DispatchId>) -> Self {
        let parts = match node.start {
            Start::Parts(nodes) => nodes.iter().map(|node| Self::new(node, id.clone())).collect(),
            Start::Leaf(_) | Start::Branch(_) | Start::PerDispatch(_) | Start::PerRun(_) => vec![],
        };
        Self {
            node,
            id,
            parts,
            failures: Window::new(node.intensity, node.backoff, seed(node.name)),
            stopping: None,
            generation: 0,
            removal: None,
            actor: None,
            restarts: Window::new(node.intensity, node.backoff, seed(node.name)),
            state: "starting",
        }
    }

    fn shown_state(&self, daemon: &Daemon) -> String {
        let held_back = (self.node.name == "pool" && self.state == "running").then(|| {
            crate::dispatch::view::pool_state(
                &daemon.snapshot(),
                daemon.settings.pool_limits.max_agents,
            )
        });
        held_back.flatten().unwrap_or_else(|| self.state.into())
    }

    fn is(&self, cell: &ActorCell) -> bool {
        self.actor.as_ref().is_some_and(|actor| actor.get_id() == cell.get_id())
    }

    async fn stop(&mut self) {
        self.stop_parts().await;
        if let Some(actor) = self.actor.take() {
            stop(actor).await;
        }
        self.state = "stopped";
    }

    fn probe(&self, daemon: &Daemon) -> Probe {
        let plain = TreeNode {
            name: self.name(),
            strategy: match self.node.start {
                Start::Leaf(_) => "-".into(),
                _ => self.node.strategy.as_str().into(),
            },
            restart: self.node.restart.as_str().into(),
            restarts_in_window: self.restarts.restarts(awake_ms()),
            state: self.shown_state(daemon),
            children: self.parts.iter().map(|part| part.probe(daemon).plain).collect(),
            process: process_status(daemon, self.node, self.id.as_ref()),
        };
        let branch = match self.node.start {
            Start::Leaf(_) | Start::Parts(_) => None,
            _ => self.actor.clone().map(ActorRef::from),
        };
        Probe { plain, branch }
    }
}

async fn stop(actor: ActorCell) {
    let reason = Some("stopped by its supervisor".into());
    if actor.stop_and_wait(reason, Some(STOP_GRACE)).await.is_err() {
        actor.kill();
    }
}

async fn start_node(
    daemon: &Arc<Daemon>,
    node: &'static Node,
    id: Option<DispatchId>,
    supervisor: ActorCell,
) -> Result<ActorCell, SpawnErr> {
    match &node.start {
        Start::Leaf(start) => start(daemon.clone(), id, supervisor).await,
        _ => {
            let args = Args { daemon: daemon.clone(), node, id };
            let (actor, _) = Branch::spawn_linked(None, Branch, args, supervisor).await?;
            Ok(actor.get_cell())
        }
    }
}

pub fn awake_ms() -> u64 {
    muleteer_process::clock::awake_ms()
}

#[cfg(test)]
mod tests;
