//! Archived dispatches whose events are read before the ledger restores them: its thread must not
//! read a long range of the log while all appends wait.

use muleteer_model::dispatch::fleet::archive::Part;
use muleteer_model::event::Restored;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The parts that wait for their events to be appended.
#[derive(Debug, Default)]
pub struct Parts(Mutex<Vec<(Restored, Part)>>);

impl Parts {
    /// Keeps a part until the ledger takes it, and no longer than the returned guard lives. The log
    /// only grows, so equal ranges have equal parts.
    pub fn keep(&self, restored: Restored, part: Part) -> Kept<'_> {
        self.all().push((restored.clone(), part));
        Kept { parts: self, restored }
    }

    pub fn take(&self, restored: &Restored) -> Option<Part> {
        let mut all = self.all();
        let at = all.iter().position(|(of, _)| of == restored)?;
        Some(all.swap_remove(at).1)
    }

    fn all(&self) -> MutexGuard<'_, Vec<(Restored, Part)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes its part when it is dropped.
#[derive(Debug)]
pub struct Kept<'a> {
    parts: &'a Parts,
    restored: Restored,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        drop(self.parts.take(&self.restored));
    }
}
