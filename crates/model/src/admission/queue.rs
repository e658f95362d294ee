//! The queue of the pool, for people: what a queued dispatch waits for.

use crate::admission::Families;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase};
use crate::event::id::DispatchId;
use std::collections::HashMap;

/// The slots of the pool, and the dispatches that wait for one. It is computed once for a whole
/// table.
#[derive(Debug, Default)]
pub struct Queue {
    /// `pool.max_agents` of the newest daemon; `None` if its log is older than that record.
    slots: Option<u32>,
    holders: Vec<DispatchId>,
    /// How many dispatches each one is behind.
    ahead: HashMap<DispatchId, usize>,
}

/// The slots that a queued dispatch waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotWait<'a> {
    pub slots: u32,
    /// The dispatches that hold the slots.
    pub holders: &'a [DispatchId],
    /// How many dispatches get a slot before it.
    pub ahead: usize,
}

impl Queue {
    pub fn of(fleet: &Fleet) -> Self {
        let families = Families::of(fleet);
        let at_work = families.counted().filter(|holder| !holder.gives_up_slot());
        let holders = at_work.map(|holder| holder.id.clone()).collect();
        let waiting = fleet.unfinished().filter(|dispatch| waits(dispatch));
        let ahead = waiting.enumerate().map(|(ahead, one)| (one.id.clone(), ahead)).collect();
        Self { slots: fleet.pool().map(|pool| pool.max_agents), holders, ahead }
    }

    /// Returns what the dispatch waits for. `None` if it is not queued, if it waits for something
    /// else, or if a slot is free: then it is about to start.
    pub fn wait_of(&self, dispatch: &Dispatch) -> Option<SlotWait<'_>> {
        let ahead = *self.ahead.get(&dispatch.id)?;
        let slots = self.slots.filter(|slots| self.holders.len() >= *slots as usize)?;
        Some(SlotWait { slots, holders: &self.holders, ahead })
    }
}

/// Whether a dispatch is in the queue for a slot.
fn waits(dispatch: &Dispatch) -> bool {
    dispatch.phase == Phase::Queued
        && dispatch.stop.is_none()
        && dispatch.outage.is_none()
        && !dispatch.awaits_answer()
}

impl SlotWait<'_> {
    /// Returns the text for `status`.
    pub fn describe(&self) -> String {
        let before = match self.ahead {
            0 => "it is next".to_string(),
            1 => "1 dispatch is before it".to_string(),
            many => format!("{many} dispatches are before it"),
        };
        format!(
            "waits for a slot: {} of {} are taken (`pool.max_agents`), {before}",
            self.holders.len(),
            self.slots
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> DispatchId {
        DispatchId::try_from(name.to_string()).expect("an id")
    }

    fn queued(name: &str) -> Dispatch {
        let created = crate::dispatch::tests::created();
        Dispatch::new(id(name), created, jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn queued_dispatch_waits_for_a_slot_behind_others() {
        let queue = |slots, holders: &[&str]| Queue {
            slots,
            holders: holders.iter().map(|name| id(name)).collect(),
            ahead: [(id("first234"), 0), (id("second23"), 1)].into(),
        };
        let full = queue(Some(1), &["runs2345"]);
        let text = |name: &str| full.wait_of(&queued(name)).map(|wait| wait.describe());
        let taken = "waits for a slot: 1 of 1 are taken (`pool.max_agents`)";
        assert_eq!(text("first234"), Some(format!("{taken}, it is next")));
        assert_eq!(text("second23"), Some(format!("{taken}, 1 dispatch is before it")));
        assert_eq!(text("runs2345"), None);
        assert_eq!(queue(Some(2), &["runs2345"]).wait_of(&queued("first234")), None);
        assert_eq!(queue(None, &["runs2345"]).wait_of(&queued("first234")), None);
    }
}
