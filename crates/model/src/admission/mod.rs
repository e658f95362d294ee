//! Admission: which waiting dispatches get an agent now (docs/design/admission-and-limits.md).
//! First come, first served, except that a dispatch that waits for a model API does not delay
//! others. Nothing here holds a lock or a process, so the policy is tested without either.
//!
//! A dispatch gives up its pool slot while one of its descendants runs: it waits for them, or will.
//! If waiting parents counted, they could hold every slot that their children need: a deadlock.
//! While none of its descendants runs, a dispatch holds its slot, and the first descendant that
//! starts takes the slot over. If the slot went to a stranger, that one would become a parent in
//! turn, and the number of running parents would have no bound. So the dispatches that count have
//! no running descendants, and a chain of dispatches is at most `max_depth + 1` long. There are
//! never more than `max_agents * (max_depth + 1)` agents at work.
//!
//! A dispatch whose process waits for an answer, or after its turn for a further message, gives up
//! its slot too. At most `max_agents` do, so that questions nobody answers and conversations that
//! nobody continues do not multiply the processes without a bound.

pub mod api_backpressure;
pub mod api_error;
pub mod queue;
pub mod restart;
pub mod usage_limit;

use crate::config::Pool;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::life::{self, Input};
use crate::dispatch::{Dispatch, Ticket};
use crate::event::id::DispatchId;
use crate::event::{Entry, Event, Record, VERSION};
use jiff::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A dispatch that is rejected because agents would dispatch agents too deeply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("agents may dispatch agents at most {max} deep (`pool.max_depth`)")]
pub struct TooDeep {
    pub max: u32,
}

/// Returns how many of `waiting` dispatches, taken from the front of the queue, may start now.
pub fn free(limits: Pool, active: usize, waiting: usize) -> usize {
    (limits.max_agents as usize).saturating_sub(active).min(waiting)
}

/// Returns the dispatches to start now: the longest-waiting ones, as many as there are free slots.
/// `waiting` is in order of arrival.
pub fn admit<T>(limits: Pool, active: usize, waiting: &[T]) -> &[T] {
    &waiting[..free(limits, active, waiting.len())]
}

/// The dispatches that run or are promised a slot, and their ancestors.
struct Families<'a> {
    fleet: &'a Fleet,
    /// The dispatches that have not ended, in order of creation. They are looked up once, since
    /// there may be hundreds and each new request asks.
    unfinished: Vec<&'a Arc<Dispatch>>,
    /// The dispatches that are promised a slot and do not run yet.
    promised: BTreeSet<&'a DispatchId>,
    /// The dispatches with a running descendant, whether they run themselves or not.
    above: BTreeSet<&'a DispatchId>,
}

impl<'a> Families<'a> {
    fn of(fleet: &'a Fleet) -> Self {
        let mut unfinished = Vec::with_capacity(fleet.unfinished_count());
        unfinished.extend(fleet.unfinished());
        let at_work = unfinished.iter().filter(|dispatch| dispatch.is_at_work());
        let above = at_work.flat_map(|dispatch| ancestors(fleet, dispatch)).map(|above| &above.id);
        let above = above.collect();
        Self { fleet, unfinished, promised: BTreeSet::new(), above }
    }

    fn promise(&mut self, dispatch: &'a Dispatch) {
        self.promised.insert(&dispatch.id);
        self.above.extend(ancestors(self.fleet, dispatch).map(|above| &above.id));
    }

    fn is_live(&self, dispatch: &Dispatch) -> bool {
        dispatch.is_at_work() || self.promised.contains(&dispatch.id)
    }

    /// Whether it takes a slot, if it runs.
    fn counts(&self, id: &DispatchId) -> bool {
        !self.above.contains(id)
    }

    /// The dispatches that take a slot.
    fn counted(&self) -> impl Iterator<Item = &'a Dispatch> {
        let all = self.unfinished.iter().map(|dispatch| &***dispatch);
        all.filter(|dispatch| self.is_live(dispatch) && self.counts(&dispatch.id))
    }

    /// Returns the dispatch whose slot it would take over: its nearest running ancestor.
    fn predecessor_of(&self, dispatch: &Dispatch) -> Option<&'a Dispatch> {
        ancestors(self.fleet, dispatch)
            .find(|above| self.is_live(above))
            .filter(|above| self.counts(&above.id))
    }
}

/// Returns its parent, the parent of that, and so on.
fn ancestors<'a>(fleet: &'a Fleet, dispatch: &Dispatch) -> impl Iterator<Item = &'a Dispatch> {
    /// Parents are older than their children, so there is no cycle; this limit is for damaged data.
    const DEEPEST: usize = 1000;
    let parent = |of: &Dispatch| fleet.get(of.created.parent.as_ref()?).map(|above| &**above);
    std::iter::successors(parent(dispatch), move |above| parent(above)).take(DEEPEST)
}

/// Returns how many dispatches of a channel (see [`api_backpressure`]) take a slot.
pub fn at_work(fleet: &Fleet, channel: &str) -> u32 {
    let families = Families::of(fleet);
    let count = families
        .counted()
        .filter(|dispatch| api_backpressure::channel(dispatch) == channel)
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The decision of the pool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    pub start: Vec<DispatchId>,
    /// The time at which a dispatch may start, even if nothing else happens.
    pub look_again: Option<Timestamp>,
}

/// Returns the dispatches of a fleet to start now. A dispatch with a further turn waits from its
/// creation on: a conversation in progress goes before new work.
pub fn next(limits: Pool, fleet: &Fleet, now: Timestamp) -> Admission {
    admit_beside(limits, fleet, now, &[])
}

/// Like [`next`], except that the `promised` dispatches keep their slots.
fn admit_beside(limits: Pool, fleet: &Fleet, now: Timestamp, promised: &[DispatchId]) -> Admission {
    let mut families = Families::of(fleet);
    promised
        .iter()
        .filter_map(|id| fleet.get(id))
        .for_each(|dispatch| families.promise(dispatch));
    let mut at_work: BTreeMap<&str, u32> = BTreeMap::new();
    let (mut active, mut idle) = (0, 0);
    for dispatch in families.counted() {
        active += 1;
        idle += usize::from(dispatch.gives_up_slot());
        *at_work.entry(api_backpressure::channel(dispatch)).or_default() += 1;
    }
    active -= idle.min(limits.max_agents as usize);
    let mut admission = Admission { start: promised.to_vec(), look_again: None };
    let queued = |one: &&Arc<Dispatch>| !one.is_active() && !one.awaits_answer();
    let waiting: Vec<_> = families.unfinished.iter().copied().filter(queued).collect();
    for dispatch in waiting {
        if families.promised.contains(&dispatch.id) {
            continue;
        }
        let channel = api_backpressure::channel(dispatch);
        let gives_up = families.predecessor_of(dispatch).map(api_backpressure::channel);
        // A reopened dispatch may have a running descendant: then it needs no slot either.
        let (gains, loses) =
            (usize::from(families.counts(&dispatch.id)), usize::from(gives_up.is_some()));
        let busy = at_work.get(channel).copied().unwrap_or_default();
        let beside = busy.saturating_sub(u32::from(gives_up == Some(channel)));
        let own = dispatch.outage.as_ref().map(|outage| outage.until);
        let shared = fleet.pressures.get(channel).map(|pressure| pressure.place_for(beside));
        match own.max(shared).filter(|when| *when > now) {
            Some(when) => {
                admission.look_again =
                    Some(admission.look_again.map_or(when, |known| known.min(when)))
            }
            None if gains <= loses + free(limits, active, 1) => {
                active = active + gains - loses;
                if let Some(left) = gives_up.and_then(|channel| at_work.get_mut(channel)) {
                    *left = left.saturating_sub(1);
                }
                *at_work.entry(channel).or_default() += u32::from(gains == 1);
                families.promise(dispatch);
                admission.start.push(dispatch.id.clone());
            }
            // All slots are taken: the pool is asked again when one becomes free. A later dispatch
            // may still take over its parent's slot.
            None => {}
        }
    }
    admission
}

/// The pool's memory of the dispatches that it has admitted.
///
/// Between the admission and the event that the attempt has begun lies a disk write. A dispatch
/// that becomes the first in the queue meanwhile (an older conversation that is reopened) would get
/// the same slot, and one agent too many would start. So a promised slot stays taken until the
/// fleet shows the outcome. The promise is repeated at each call, since its receiver may have been
/// restarted.
#[derive(Debug, Default)]
pub struct Door {
    /// The promises. If a dispatch has begun meanwhile and waits again, its promise is used up. If
    /// it has ended and waits again, it gets a new promise.
    promised: Vec<(DispatchId, Ticket)>,
    /// The dispatches that are about to be created with a slot, with their entries.
    reserved: Vec<(DispatchId, Vec<Entry>)>,
}

impl Door {
    /// Returns the dispatches that should start now.
    pub fn look(&mut self, limits: Pool, fleet: &Fleet, now: Timestamp) -> Admission {
        self.forget(fleet);
        let mut admission = admit_beside(limits, &self.expected(fleet, now), now, &self.kept());
        admission.start.retain(|id| fleet.get(id).is_some());
        let with_ticket = |id: &DispatchId| fleet.get(id).map(|d| (id.clone(), d.ticket()));
        self.promised = admission.start.iter().filter_map(with_ticket).collect();
        admission
    }

    /// Reserves a slot for a dispatch that is about to be created by these entries. If a slot is
    /// free, returns the events of its start, so that they are made durable with the same append.
    /// The slot is then held until the fleet shows the dispatch, or until it is
    /// [released](Self::release). If no slot is free, returns nothing, and the dispatch waits in
    /// the queue.
    pub fn reserve(
        &mut self,
        limits: Pool,
        fleet: &Fleet,
        (id, made): (&DispatchId, Vec<Entry>),
        now: Timestamp,
    ) -> Vec<Event> {
        self.release(id);
        if fleet.get(id).is_some() {
            return vec![];
        }
        self.forget(fleet);
        let kept = self.kept();
        self.reserved.push((id.clone(), made));
        let expected = self.expected(fleet, now);
        let admitted = admit_beside(limits, &expected, now, &kept).start.contains(id);
        let begun = match expected.get(id).filter(|_| admitted) {
            Some(newcomer) => life::decide(newcomer, Input::Admitted(newcomer.ticket())),
            None => vec![],
        };
        if begun.is_empty() {
            self.release(id);
        }
        begun.into_iter().map(|(_, event)| event).collect()
    }

    /// Releases a reserved slot, unless the dispatch was created. Returns whether there was one.
    pub fn release(&mut self, id: &DispatchId) -> bool {
        let before = self.reserved.len();
        self.reserved.retain(|(reserved, _)| reserved != id);
        self.reserved.len() < before
    }

    /// The dispatches that hold a promise or a reservation.
    fn kept(&self) -> Vec<DispatchId> {
        let promised = self.promised.iter().map(|(id, _)| id);
        promised.chain(self.reserved.iter().map(|(id, _)| id)).cloned().collect()
    }

    /// Forgets promises and reservations that the fleet shows already.
    fn forget(&mut self, fleet: &Fleet) {
        let waits = |(id, ticket): &(DispatchId, Ticket)| {
            fleet
                .get(id)
                .is_some_and(|d| d.ticket() == *ticket && !d.is_active() && !d.is_finished())
        };
        self.promised.retain(waits);
        self.reserved.retain(|(id, _)| fleet.get(id).is_none());
    }

    /// The fleet with the dispatches that are about to be created.
    fn expected<'a>(&self, fleet: &'a Fleet, now: Timestamp) -> Cow<'a, Fleet> {
        let mut expected = Cow::Borrowed(fleet);
        for entry in self.reserved.iter().flat_map(|(_, made)| made) {
            let seq = expected.seq + 1;
            expected.to_mut().apply(&Record { v: VERSION, seq, ts: now, entry: entry.clone() });
        }
        expected
    }
}

/// Returns the depth of a new dispatch of `parent`: 0 for a person's own, 1 for one that an agent
/// of such a dispatch makes. The search stops at the limit, so a damaged chain with a cycle is too
/// deep.
///
/// # Errors
/// When the depth exceeds the limit.
pub fn depth(
    limits: Pool,
    parent: Option<&DispatchId>,
    parent_of: impl Fn(&DispatchId) -> Option<DispatchId>,
) -> Result<u32, TooDeep> {
    let mut depth = 0;
    let mut at = parent.cloned();
    while let Some(id) = at {
        if depth == limits.max_depth {
            return Err(TooDeep { max: limits.max_depth });
        }
        depth += 1;
        at = parent_of(&id);
    }
    Ok(depth)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
