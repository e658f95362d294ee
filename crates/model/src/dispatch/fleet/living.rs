//! The dispatches of a fleet that are looked for often: unfinished ones, which each new one looks
//! at, and those in trouble.

use super::Fleet;
use crate::dispatch::Dispatch;
use crate::event::id::DispatchId;
use std::sync::Arc;

impl Fleet {
    /// The dispatches that have not ended, in order of creation.
    pub fn unfinished(&self) -> impl Iterator<Item = &Arc<Dispatch>> {
        // `living` never has another dispatch, so the number tells whether it has all.
        let is_at_hand = self.living.size() == self.unfinished.size();
        let at_hand = is_at_hand.then(|| self.living.values());
        let searched = (!is_at_hand).then(|| self.found_by_id().map(|(_, one)| one));
        at_hand.into_iter().flatten().chain(searched.into_iter().flatten())
    }

    /// Returns the number of dispatches that have not ended.
    pub fn unfinished_count(&self) -> usize {
        self.unfinished.size()
    }

    /// The stalled dispatches of threads; people are asked about them.
    pub fn stalled_in_threads(&self) -> impl Iterator<Item = &Arc<Dispatch>> {
        self.stalled.iter().filter_map(|id| self.dispatches.get(id))
    }

    /// The dispatches that may be healed, or are being healed.
    pub fn troubled(&self) -> impl Iterator<Item = &Arc<Dispatch>> {
        self.troubled.iter().filter_map(|id| self.dispatches.get(id))
    }

    /// Counts the events after which a healing may go on, for a reader that waits for one.
    pub fn troubles(&self) -> u64 {
        self.troubles
    }

    /// Whether a healing is under way: a daemon has to stay for it.
    pub fn is_healing(&self) -> bool {
        self.troubled().any(|dispatch| dispatch.healing.is_under_way())
    }

    /// Returns a fleet that was just read, with its unfinished dispatches at hand.
    #[must_use]
    pub fn at_hand(mut self) -> Self {
        self.note_all_living();
        self
    }

    /// Keeps `living` in step with a dispatch that was changed.
    pub(super) fn note_living(&mut self, id: &DispatchId) {
        let Some(dispatch) = self.dispatches.get(id) else { return };
        match dispatch.is_finished() {
            true => {
                self.living.remove_mut(&dispatch.created_seq);
            }
            false => self.living.insert_mut(dispatch.created_seq, dispatch.clone()),
        }
    }

    /// Fills `living` again, after a change of many dispatches or in a fleet that was just read.
    pub(super) fn note_all_living(&mut self) {
        self.living = self.found_by_id().map(|(seq, one)| (seq, one.clone())).collect();
    }

    /// The unfinished dispatches with the records that created them, by a search for each id.
    fn found_by_id(&self) -> impl Iterator<Item = (u64, &Arc<Dispatch>)> {
        self.unfinished.iter().filter_map(|(seq, id)| Some((*seq, self.dispatches.get(id)?)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dispatch::fleet::tests::{fleet, tell};
    use crate::event::{Event, FinalState, PromptKind};

    fn states(fleet: &Fleet) -> Vec<(String, String)> {
        fleet.unfinished().map(|one| (one.id.to_string(), one.state().to_string())).collect()
    }

    /// Whatever happens to dispatches, the look without a search shows the same dispatches in the
    /// same states as the search, also in a fleet that was read from a snapshot.
    #[test]
    fn unfinished_dispatches_are_the_current_ones() {
        let ids = ["zzzz", "aaaa", "mmmm"];
        let mut now = fleet(&ids.map(|id| (id, "x")));
        let end = || Event::DispatchFinished {
            state: FinalState::Success,
            reason: String::new(),
            result: None,
        };
        let again = || Event::PromptQueued {
            key: "k".into(),
            kind: PromptKind::Send,
            by: "operator".into(),
            trace: None,
        };
        let begun = || Event::AttemptStarted { attempt: 1, epoch: 1, resume: None };
        let mut read: Option<Fleet> = None;
        let steps = [
            ("zzzz", begun()),
            ("zzzz", end()),
            ("mmmm", begun()),
            ("aaaa", end()),
            ("zzzz", again()),
            ("mmmm", end()),
            ("zzzz", end()),
            ("mmmm", again()),
        ];
        for (id, event) in steps {
            tell(&mut now, id, event.clone());
            if let Some(read) = &mut read {
                tell(read, id, event);
                assert_eq!(states(read), states(&now), "{id}");
            }
            let by_id: Vec<_> = now.found_by_id().map(|(_, one)| one.clone()).collect();
            let at_hand: Vec<_> = now.living.values().cloned().collect();
            assert_eq!(by_id.len(), now.unfinished_count(), "{id}");
            assert!(by_id.iter().zip(&at_hand).all(|(a, b)| Arc::ptr_eq(a, b)), "{id}");
            assert_eq!(by_id.len(), at_hand.len(), "{id}");
            let stored = serde_json::to_vec(&now).unwrap();
            read.get_or_insert_with(|| serde_json::from_slice(&stored).unwrap());
        }
        assert_eq!(states(&now).len(), 1);
        let boot = |boot: &str| Event::DaemonStarted {
            pid: 1,
            generation: 1,
            version: String::new(),
            boot_id: boot.into(),
            settings: None,
        };
        tell(&mut now, "mmmm", boot("one"));
        tell(&mut now, "mmmm", boot("two"));
        assert!(now.living.values().zip(now.found_by_id()).all(|(a, (_, b))| Arc::ptr_eq(a, b)));
    }
}
