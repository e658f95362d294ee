//! Dynamic children: the subtree of a dispatch or a run, which is added and removed while the
//! daemon runs. A task stops them, because one that ends slowly must not delay the others.

use super::{Child, State, stop};
use crate::daemon::owned_task::own;
use crate::ports::gate::GateMsg;
use crate::ports::tree::BranchMsg;
use crate::tree::Start;
use muleteer_model::event::id::DispatchId;
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};
use std::time::Duration;

impl State {
    pub(super) fn is_dynamic(&self) -> bool {
        matches!(self.node.start, Start::PerDispatch(_) | Start::PerRun(_))
    }

    /// Returns the place of a dynamic child. It changes when another one is removed.
    pub(super) fn place_of(&self, id: &DispatchId) -> Option<usize> {
        self.children.iter().position(|child| child.id.as_ref() == Some(id))
    }

    pub(super) fn is_unfinished(&self, id: &DispatchId) -> bool {
        self.daemon.snapshot().get(id).is_some_and(|dispatch| !dispatch.is_finished())
    }

    /// Starts a child and answers, or answers that it runs already. A child that is being removed
    /// starts again afterwards.
    pub(super) async fn add(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        id: DispatchId,
        mut replies: Vec<RpcReplyPort<()>>,
    ) -> Result<(), ActorProcessingErr> {
        match (self.place_of(&id), &self.node.start) {
            (Some(at), _) => {
                if let Some(removal) = &mut self.children[at].removal {
                    removal.append(&mut replies);
                }
            }
            (None, Start::PerDispatch(template) | Start::PerRun(template)) => {
                self.children.push(Child::new(template, Some(id)));
                self.start(myself, self.children.len() - 1).await?;
            }
            (None, Start::Leaf(_) | Start::Branch(_) | Start::Parts(_)) => {}
        }
        for reply in replies {
            let _ = reply.send(());
        }
        Ok(())
    }

    /// Begins to stop a child. [`Self::removed`] follows.
    pub(super) fn remove(&mut self, myself: &ActorRef<BranchMsg>, id: DispatchId) {
        let Some(at) = self.place_of(&id) else { return };
        if self.children[at].removal.is_some() {
            return;
        }
        let places = (0..self.children[at].parts.len()).collect();
        let (generation, myself) = (self.next_generation(), myself.clone());
        let child = &mut self.children[at];
        (child.generation, child.removal, child.state) = (generation, Some(vec![]), "stopping");
        child.stop_then(places, "stopping", move || {
            let _ = myself.cast(BranchMsg::Removed(id));
        });
    }

    /// Forgets a child that has stopped. It starts again if a client has added it in the meantime,
    /// or a message has revived its dispatch.
    pub(super) async fn removed(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        id: DispatchId,
    ) -> Result<(), ActorProcessingErr> {
        let Some(at) = self.place_of(&id) else { return Ok(()) };
        let Some(added) = self.children[at].removal.take() else { return Ok(()) };
        self.children.remove(at);
        self.daemon.agents.forget(&id);
        // The socket of a revived agent stays open: the gate may have opened it already.
        let revived = self.is_unfinished(&id);
        if !revived {
            self.daemon.ports.gate.cast(GateMsg::CloseAgent(id.clone()));
        }
        if revived || !added.is_empty() {
            self.add(myself, id, added).await?;
        }
        Ok(())
    }

    /// Stops the parts at `places` and the child's own actor, and starts them after `delay`. An
    /// earlier restart of the child is replaced.
    pub(super) fn restart_dynamic(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        at: usize,
        places: Vec<usize>,
        (delay, span): (Duration, tracing::Span),
    ) {
        let (generation, myself) = (self.next_generation(), myself.clone());
        let child = &mut self.children[at];
        let Some(id) = child.id.clone() else { return };
        child.generation = generation;
        child.stop_then(places, "restarting", move || {
            myself.send_after(delay, move || BranchMsg::Again(id.clone(), generation, span));
        });
    }

    fn next_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }
}

impl Child {
    /// Stops the parts at `places`, the last one first, and the child's own actor, in a task. Then
    /// it calls `then`. An earlier task of the child ends first.
    fn stop_then(
        &mut self,
        places: Vec<usize>,
        state: &'static str,
        then: impl FnOnce() + Send + 'static,
    ) {
        let mut ending = vec![];
        for place in places.into_iter().rev() {
            self.parts[place].state = state;
            ending.extend(self.parts[place].actor.take());
        }
        ending.extend(self.actor.take());
        let earlier = self.stopping.take();
        self.stopping = Some(own(async move {
            if let Some(earlier) = earlier {
                let _ = earlier.await;
            }
            for actor in ending {
                stop(actor).await;
            }
            then();
        }));
    }
}
