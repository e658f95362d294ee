//! The parts of a dynamic child: leaves that the child's supervisor runs by itself, with the
//! strategy and the intensity of the child. If they fail too often, the child has failed.

use super::{Child, State, awake_ms, start_node, stop};
use crate::ports::tree::BranchMsg;
use muleteer_model::event::Event;
use muleteer_model::restart::{Decision, Window, affected, seed};
use ractor::{ActorCell, ActorProcessingErr, ActorRef};

impl State {
    /// Starts the parts of the child at `at` that are down, in their order.
    pub(super) async fn start_parts(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        at: usize,
    ) -> Result<(), ActorProcessingErr> {
        // An earlier restart may not have stopped them yet.
        self.children[at].stopped().await;
        for place in 0..self.children[at].parts.len() {
            let part = &self.children[at].parts[place];
            // A part that has ended for good starts only with a part before it, or with the child.
            if part.actor.is_some() || part.state == "stopped" {
                continue;
            }
            match start_node(&self.daemon, part.node, part.id.clone(), myself.get_cell()).await {
                Ok(cell) => {
                    let part = &mut self.children[at].parts[place];
                    (part.actor, part.state) = (Some(cell), "running");
                }
                // Those after it start with it.
                Err(error) => {
                    return self.restart_part(myself, (at, place), &error.to_string()).await;
                }
            }
        }
        self.children[at].state = "running";
        Ok(())
    }

    /// Restarts a part that has ended, if its class says so. Does nothing if the actor is no part,
    /// or was stopped.
    pub(super) async fn part_ended(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        cell: &ActorCell,
        (reason, failed): (&str, bool),
    ) -> Result<(), ActorProcessingErr> {
        let found =
            self.children.iter().enumerate().find_map(|(at, child)| {
                Some((at, child.parts.iter().position(|part| part.is(cell))?))
            });
        let Some((at, place)) = found else { return Ok(()) };
        let part = &mut self.children[at].parts[place];
        part.actor = None;
        if !part.node.restart.restarts(failed) {
            part.state = "stopped";
            return Ok(());
        }
        self.restart_part(myself, (at, place), reason).await
    }

    /// Restarts a part with those that the strategy includes, or lets the child fail.
    async fn restart_part(
        &mut self,
        myself: &ActorRef<BranchMsg>,
        (at, place): (usize, usize),
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
        let now = awake_ms();
        let child = &mut self.children[at];
        child.parts[place].restarts.record(now);
        let Decision::RestartAfter(delay) = child.failures.record(now) else {
            let reason = format!("{} failed too often: {reason}", child.parts[place].name());
            child.failures =
                Window::new(child.node.intensity, child.node.backoff, seed(child.node.name));
            let actor = child.name();
            self.daemon.note(Event::ActorEscalated { actor, reason: reason.clone() });
            return Box::pin(self.restart(myself, at, &reason)).await;
        };
        let (id, in_window) = (child.id.clone(), child.failures.restarts(now));
        let part = &self.children[at].parts[place];
        let span = self.note_restart(part, id.as_ref(), reason, (in_window, delay));
        let child = &self.children[at];
        let places = affected(child.node.strategy, child.parts.len(), place);
        self.restart_dynamic(myself, at, places, (delay, span));
        Ok(())
    }
}

impl Child {
    /// Waits until the parts that a restart includes are stopped.
    async fn stopped(&mut self) {
        if let Some(stopping) = self.stopping.take() {
            let _ = stopping.await;
        }
    }

    /// Stops all parts, the last one first.
    pub(super) async fn stop_parts(&mut self) {
        self.stopped().await;
        for part in self.parts.iter_mut().rev() {
            if let Some(actor) = part.actor.take() {
                stop(actor).await;
            }
            part.state = "stopped";
        }
    }
}
