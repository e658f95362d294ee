//! The messages of the actors, and the addresses at which actors are found across restarts.
//!
//! A module that sends messages imports only this one, and never the actor. So an actor may use any
//! module that sends to it, without an import cycle. This module imports no other module of this
//! crate.

pub mod adapter;
pub mod agent;
pub mod conversation;
pub mod gate;
pub mod ledger;
pub mod pool;
pub mod shim_command;
pub mod spec_run;
pub mod task_list;
pub mod tree;
pub mod watch;

use crate::ports::adapter::AdaptersMsg;
use crate::ports::conversation::ConversationsMsg;
use crate::ports::gate::GateMsg;
use crate::ports::ledger::LedgerMsg;
use crate::ports::pool::PoolMsg;
use crate::ports::task_list::TaskListsMsg;
use crate::ports::tree::BranchMsg;
use crate::ports::watch::WatchMsg;
use ractor::{ActorRef, Message};
use std::sync::{PoisonError, RwLock};

/// The addresses of the actors of which there is one.
#[derive(Debug, Default)]
pub struct Ports {
    pub root: Slot<BranchMsg>,
    pub ledger: Slot<LedgerMsg>,
    pub watcher: Slot<WatchMsg>,
    pub pool: Slot<PoolMsg>,
    /// The parent of the subtrees of all dispatches.
    pub agents: Slot<BranchMsg>,
    /// The parent of the actors of all spec runs.
    pub runs: Slot<BranchMsg>,
    pub task_lists: Slot<TaskListsMsg>,
    pub conversations: Slot<ConversationsMsg>,
    pub adapters: Slot<AdaptersMsg>,
    pub gate: Slot<GateMsg>,
}

/// The address of an actor across its restarts. Empty while it is restarted.
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

    /// Sends if the actor is there, and returns whether it was.
    pub fn cast(&self, message: M) -> bool {
        self.get().is_some_and(|actor| actor.cast(message).is_ok())
    }
}
