//! The addresses of the actors of all dispatches.

use crate::dispatch::saved::Saved;
use crate::dispatch::shim::port::ShimPort;
use crate::ports::Slot;
use crate::ports::agent::{JournalMsg, LifeMsg};
use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use muleteer_process::clock::awake;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A search counts for this long: for the first pause of the restart policy, which is at most
/// 1.2 s. Later, something may run that the agent had scheduled.
const SWEPT_FOR: Duration = Duration::from_millis(1500);

/// The addresses of the actors of one dispatch.
#[derive(Debug, Default)]
pub struct AgentSlots {
    pub journal: Slot<JournalMsg>,
    pub life: Slot<LifeMsg>,
    /// The time of the agent's last output, in milliseconds of Unix time, because plain output
    /// leaves no event. 0 before the first.
    pub heard: AtomicI64,
    /// Notified whenever the link has read output.
    pub output: Notify,
    /// The journal was made, or failed, so nobody needs to wait for it.
    pub has_journal: AtomicBool,
    /// The newest epoch whose processes were gone at the last search, and the awake time of it.
    swept: Mutex<Option<(u32, Duration)>>,
    /// A connection to the shim of this epoch that its link has not taken yet.
    port: Mutex<Option<Box<(u32, ShimPort)>>>,
    saved: Mutex<Option<Box<Saved>>>,
    /// The actions that the monitor was given.
    #[cfg(test)]
    pub(crate) seen: Mutex<Vec<muleteer_model::monitor::Seen>>,
    /// Gets the requests to the shim instead of a shim.
    #[cfg(test)]
    pub(crate) played:
        std::sync::OnceLock<tokio::sync::mpsc::Sender<crate::agent::link::played_shim::Asked>>,
}

impl AgentSlots {
    #[cfg(test)]
    pub(crate) fn note_seen(&self, seen: &[(f64, muleteer_model::monitor::Seen)]) {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(seen.iter().map(|(_, seen)| seen.clone()));
    }

    pub fn keep_port(&self, epoch: u32, port: ShimPort) {
        *self.port.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new((epoch, port)));
    }

    /// Keeps the data for a start that comes at once, so that nobody reads its file again.
    pub fn keep_saved(&self, saved: Box<Saved>) {
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
    }

    /// Takes the data for the first start, if it came at once.
    pub fn take_saved(&self) -> Option<Box<Saved>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Notes that no process of this epoch, or of an earlier one, is left.
    pub fn note_swept(&self, epoch: u32) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        *swept = Some((epoch, awake()));
    }

    /// Whether a search a short while ago has found nothing of the epochs before this one.
    pub fn is_swept_before(&self, epoch: u32) -> bool {
        let swept = *self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        swept.is_some_and(|(of, at)| of + 1 == epoch && awake() < at + SWEPT_FOR)
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

    /// Returns the actors of a dispatch that has some.
    pub fn get(&self, id: &DispatchId) -> Option<Arc<AgentSlots>> {
        self.lock().get(id).cloned()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn search_counts_for_the_next_epoch_only() {
        let slots = AgentSlots::default();
        assert!(!slots.is_swept_before(1) && !slots.is_swept_before(2), "nobody has searched");
        slots.note_swept(2);
        assert_eq!(
            [1, 2, 3, 4].map(|epoch| slots.is_swept_before(epoch)),
            [false, false, true, false]
        );
        *slots.swept.lock().unwrap() = Some((2, awake().saturating_sub(SWEPT_FOR)));
        assert!(!slots.is_swept_before(3), "the agent may have scheduled something");
    }
}
