//! The queue of events that supervisors note without waiting for the ledger.

use crate::daemon::context::keys::random_key;
use muleteer_model::event::{Entry, Event};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A queue for events of supervisors on their way to the ledger. It is bounded, because a restart
/// storm must not exhaust memory. Supervisors never wait for the ledger, which may itself be
/// restarting.
#[derive(Debug, Default)]
pub struct Ring(Mutex<(VecDeque<Entry>, u64)>);

const RING_LIMIT: usize = 1024;

impl Ring {
    pub(super) fn push(&self, entry: Entry) {
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
