//! The addresses of the actors of all dispatches.

use crate::dispatch::shim::port::ShimPort;
use crate::ports::Slot;
use crate::ports::agent::{JournalMsg, LifeMsg, LinkMsg, MonitorMsg};
use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

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

/// The actors of all dispatches that have some.
#[derive(Debug, Default)]
pub struct Agents {
    by_id: Mutex<HashMap<DispatchId, Arc<AgentSlots>>>,
    /// Counts removed subtrees: for its watchers, a dispatch is over when its journal is written.
    pub closed: watch::Sender<u64>,
}

impl Agents {
    pub fn of(&self, id: &DispatchId) -> Arc<AgentSlots> {
        self.lock().entry(id.clone()).or_default().clone()
    }

    /// Whether the dispatch has actors now.
    pub fn has(&self, id: &DispatchId) -> bool {
        self.lock().get(id).is_some_and(|slots| slots.life.get().is_some())
    }

    /// Returns the times of the agents' last output, as far as this daemon has read it.
    pub fn heard(&self) -> HashMap<String, Timestamp> {
        let agents = self.lock();
        let heard = agents.iter().map(|(id, agent)| (id, agent.heard.load(Ordering::Relaxed)));
        heard
            .filter(|(_, at)| *at > 0)
            .filter_map(|(id, at)| Some((id.to_string(), Timestamp::from_millisecond(at).ok()?)))
            .collect()
    }

    pub fn forget(&self, id: &DispatchId) {
        self.lock().remove(id);
        self.closed.send_modify(|closed| *closed += 1);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<DispatchId, Arc<AgentSlots>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
