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
//! never more than `max_agents * (max_depth + 1)` agents.

pub mod api_backpressure;
pub mod api_error;

use crate::config::Pool;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::life::{self, Input};
use crate::dispatch::{Dispatch, Ticket};
use crate::event::id::DispatchId;
use crate::event::{Entry, Event, Record, VERSION};
use jiff::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

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
    /// The dispatches that are promised a slot and do not run yet.
    promised: BTreeSet<&'a DispatchId>,
    /// The dispatches with a running descendant, whether they run themselves or not.
    above: BTreeSet<&'a DispatchId>,
}

impl<'a> Families<'a> {
    fn of(fleet: &'a Fleet) -> Self {
        let at_work = fleet.unfinished().filter(|dispatch| dispatch.is_at_work());
        let above = at_work.flat_map(|dispatch| ancestors(fleet, dispatch)).map(|above| &above.id);
        Self { fleet, promised: BTreeSet::new(), above: above.collect() }
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
        let all = self.fleet.unfinished().map(|dispatch| &**dispatch);
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
    let mut active = 0;
    for dispatch in families.counted() {
        active += 1;
        *at_work.entry(api_backpressure::channel(dispatch)).or_default() += 1;
    }
    let mut admission = Admission { start: promised.to_vec(), look_again: None };
    for dispatch in fleet.unfinished().filter(|dispatch| !dispatch.is_active()) {
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
mod tests {
    use super::*;
    use crate::admission::api_error::Trouble;
    use crate::event::FinalState;
    use jiff::SignedDuration;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};
    use std::collections::VecDeque;

    const LIMITS: Pool = Pool { max_agents: 3, max_depth: 2 };

    fn id(text: &str) -> DispatchId {
        DispatchId::try_from(text.to_string()).unwrap()
    }

    #[test]
    fn the_longest_waiting_start_first_as_far_as_there_is_room() {
        for (active, waiting, expected) in [
            (0, vec!["a", "b"], vec!["a", "b"]),
            (1, vec!["a", "b", "c"], vec!["a", "b"]),
            (3, vec!["a"], vec![]),
            (0, vec![], vec![]),
            // The limit was lowered while more agents were running: none is terminated, none
            // starts.
            (9, vec!["a"], vec![]),
        ] {
            assert_eq!(
                admit(LIMITS, active, &waiting),
                expected,
                "{active} active, {waiting:?} waiting"
            );
        }
    }

    #[test]
    fn agents_dispatch_agents_only_so_deep() {
        // person → root → child → grandchild
        let parent_of = |of: &DispatchId| match of.as_str() {
            "grandchild" => Some(id("child")),
            "child" => Some(id("root")),
            _ => None,
        };
        for (parent, expected) in [
            (None, Ok(0)),
            (Some(id("root")), Ok(1)),
            (Some(id("child")), Ok(2)),
            (Some(id("grandchild")), Err(TooDeep { max: 2 })),
        ] {
            assert_eq!(depth(LIMITS, parent.as_ref(), parent_of), expected, "{parent:?}");
        }
        let none = Pool { max_depth: 0, ..LIMITS };
        assert_eq!(depth(none, Some(&id("root")), parent_of), Err(TooDeep { max: 0 }));
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let other = |of: &DispatchId| Some(id(if of.as_str() == "ping" { "pong" } else { "ping" }));
        assert_eq!(depth(LIMITS, Some(&id("ping")), other), Err(TooDeep { max: 2 }));
    }

    // ---- A fleet

    struct Yard {
        fleet: Fleet,
        seq: u64,
        now: Timestamp,
    }

    impl Yard {
        fn new() -> Self {
            Self { fleet: Fleet::default(), seq: 0, now: Timestamp::UNIX_EPOCH }
        }

        fn event(&mut self, of: &str, event: Event) {
            self.seq += 1;
            let entry = Entry {
                id: String::new(),
                dispatch_id: Some(id(of)),
                at: None,
                more: false,
                event,
            };
            self.fleet.apply(&Record { v: VERSION, seq: self.seq, ts: self.now, entry });
        }

        fn create(&mut self, name: &str, backend: &str, parent: Option<&str>) {
            let mut created = crate::dispatch::tests::created();
            created.backend = backend.into();
            created.parent = parent.map(id);
            self.event(name, Event::DispatchCreated(Box::new(created)));
        }

        /// Admits the dispatches that may start.
        fn turn(&mut self) -> Vec<String> {
            let admission = next(LIMITS, &self.fleet, self.now);
            for id in &admission.start {
                self.event(
                    id.as_str(),
                    Event::AttemptStarted { attempt: 1, epoch: 1, resume: None },
                );
            }
            admission.start.iter().map(ToString::to_string).collect()
        }

        fn end(&mut self, name: &str) {
            let (state, reason) = (FinalState::Success, String::new());
            self.event(name, Event::DispatchFinished { state, reason, result: None });
        }

        fn pass(&mut self, seconds: i64) {
            self.now += SignedDuration::from_secs(seconds);
        }
    }

    fn name(n: usize) -> String {
        format!("aaaaaaa{}", char::from(b'a' + n as u8))
    }

    /// If parents that wait for their children hold all slots, the children start.
    #[test]
    fn parents_do_not_starve_their_children() {
        let mut yard = Yard::new();
        for n in 0..3 {
            yard.create(&name(n), "rehearsal", None);
        }
        assert_eq!(yard.turn().len(), 3);
        for n in 3..6 {
            yard.create(&name(n), "rehearsal", Some(&name(n - 3)));
        }
        yard.create(&name(6), "rehearsal", None);
        assert_eq!(yard.turn(), [name(3), name(4), name(5)], "and no stranger beyond the places");
        yard.end(&name(3));
        assert_eq!(yard.turn(), [] as [String; 0], "its parent counts again");
        yard.end(&name(0));
        yard.end(&name(4));
        yard.end(&name(1));
        assert_eq!(yard.turn(), [name(6)]);
    }

    #[test]
    fn child_takes_its_parents_slot_and_leaves_the_free_one() {
        let mut yard = Yard::new();
        yard.create(&name(0), "rehearsal", None);
        yard.create(&name(1), "codex", None);
        assert_eq!(yard.turn(), [name(0), name(1)]);
        yard.create(&name(2), "rehearsal", Some(&name(0)));
        yard.create(&name(3), "rehearsal", None);
        assert_eq!(yard.turn(), [name(2), name(3)]);
        let channel = api_backpressure::channel(yard.fleet.get(&id(&name(0))).unwrap());
        assert_eq!(
            at_work(&yard.fleet, channel),
            2,
            "a parent counts no more, nor does another channel's"
        );
    }

    /// If each parent left its slot to a stranger, the number of running parents would have no
    /// bound.
    #[test]
    fn parents_slot_goes_to_its_child() {
        let mut yard = Yard::new();
        for n in 0..5 {
            yard.create(&name(n), "rehearsal", None);
        }
        assert_eq!(yard.turn(), [name(0), name(1), name(2)]);
        for n in 5..8 {
            yard.create(&name(n), "rehearsal", Some(&name(n - 5)));
        }
        yard.create(&name(8), "rehearsal", Some(&name(0)));
        assert_eq!(
            yard.turn(),
            [name(5), name(6), name(7)],
            "older strangers, and a second child, wait"
        );
        yard.end(&name(5));
        assert_eq!(yard.turn(), [name(8)], "it is still of the family");
        yard.end(&name(8));
        assert_eq!(yard.turn(), [] as [String; 0]);
        yard.end(&name(0));
        assert_eq!(yard.turn(), [name(3)]);
        // A parent that ends before its child leaves the slot to the child, and needs no slot when
        // it is reopened.
        yard.end(&name(1));
        let again = Event::PromptQueued {
            key: "k".into(),
            kind: crate::event::PromptKind::Send,
            by: "operator".into(),
            trace: None,
        };
        yard.event(&name(1), again);
        assert!(!yard.fleet.get(&id(&name(1))).unwrap().is_finished());
        assert_eq!(yard.turn(), [name(1)], "its child's place is enough for both");
    }

    /// A dispatch that was killed in the queue ends without ever having had a slot. Its ancestors
    /// must not get in because of it.
    #[test]
    fn kill_in_the_queue_admits_no_other_dispatch() {
        let mut yard = Yard::new();
        for n in 0..4 {
            yard.create(&name(n), "rehearsal", None);
        }
        assert_eq!(yard.turn(), [name(0), name(1), name(2)]);
        yard.create(&name(4), "rehearsal", Some(&name(0)));
        yard.end(&name(0));
        assert_eq!(yard.turn(), [name(3)]);
        let again = Event::PromptQueued {
            key: "k".into(),
            kind: crate::event::PromptKind::Send,
            by: "operator".into(),
            trace: None,
        };
        yard.event(&name(0), again);
        let (state, reason) = (FinalState::Killed, String::new());
        yard.event(&name(4), Event::DispatchClosing { state, reason });
        assert_eq!(yard.turn(), [] as [String; 0]);
        yard.end(&name(4));
        yard.end(&name(1));
        assert_eq!(yard.turn(), [name(0)]);
    }

    /// Its work is being fetched: it has no agent any more, and the fetch may take a while.
    #[test]
    fn closing_dispatch_frees_its_slot() {
        let mut yard = Yard::new();
        for n in 0..4 {
            yard.create(&name(n), "rehearsal", None);
        }
        assert_eq!(yard.turn(), [name(0), name(1), name(2)]);
        let (state, reason) = (FinalState::Success, String::new());
        yard.event(&name(0), Event::DispatchClosing { state, reason });
        assert_eq!(yard.turn(), [name(3)]);
    }

    #[test]
    fn rate_limit_holds_back_only_its_channel() {
        let mut yard = Yard::new();
        for n in 0..2 {
            yard.create(&name(n), "codex", None);
        }
        assert_eq!(yard.turn().len(), 2);
        yard.event(
            &name(0),
            Event::ApiRetried {
                attempt: 1,
                max: 9,
                status: Some(429),
                delay_s: 60.0,
                awake_ms: None,
            },
        );
        yard.create(&name(2), "codex", None);
        yard.create(&name(3), "rehearsal", None);
        assert_eq!(yard.turn(), [name(3)], "it overtakes");
        let wait =
            |yard: &Yard| next(LIMITS, &yard.fleet, yard.now).look_again.map(|at| at.as_second());
        yard.end(&name(1));
        yard.end(&name(3));
        // One runs, and one may run. At the end of the wait, one more may start after one step.
        assert_eq!(wait(&yard), Some(75));
        yard.pass(74);
        assert_eq!(yard.turn(), [] as [String; 0]);
        yard.pass(1);
        assert_eq!(yard.turn(), [name(2)]);
        assert_eq!(wait(&yard), None);
    }

    #[test]
    fn dispatch_waiting_for_the_api_uses_no_slot() {
        let mut yard = Yard::new();
        for n in 0..4 {
            yard.create(&name(n), "codex", None);
        }
        assert_eq!(yard.turn().len(), 3);
        let until = Timestamp::from_second(60).unwrap();
        let (trouble, status) = (Trouble::RateLimit, Some(429));
        let waiting =
            Event::ApiWaiting { trouble, status, until, told: true, waits: 1, spent_ms: 60_000 };
        yard.event(&name(0), waiting);
        yard.create(&name(4), "rehearsal", None);
        assert_eq!(yard.turn(), [name(4)]);
        yard.end(&name(1));
        yard.end(&name(2));
        yard.pass(60);
        assert_eq!(yard.turn(), [name(0)], "in its old place in the queue, and one at a time");
        yard.pass(15);
        assert_eq!(yard.turn(), [name(3)]);
    }

    #[test]
    fn reserved_slot_is_not_given_to_the_head_of_the_queue() {
        let mut yard = Yard::new();
        for n in 0..4 {
            yard.create(&name(n), "rehearsal", None);
        }
        assert_eq!(yard.turn(), [name(0), name(1), name(2)]);
        yard.end(&name(0));
        let mut door = Door::default();
        let mut look = |yard: &Yard| door.look(LIMITS, &yard.fleet, yard.now).start;
        assert_eq!(look(&yard), [id(&name(3))]);
        let again = Event::PromptQueued {
            key: "k".into(),
            kind: crate::event::PromptKind::Send,
            by: "operator".into(),
            trace: None,
        };
        yard.event(&name(0), again);
        assert_eq!(look(&yard), [id(&name(3))], "said again, and nobody else is let in");
        yard.end(&name(1));
        assert_eq!(look(&yard), [id(&name(3)), id(&name(0))]);
    }

    /// Returns the entries of a dispatch that is not created yet.
    fn made(name: &str, parent: Option<&str>) -> (DispatchId, Vec<Entry>) {
        let mut created = crate::dispatch::tests::created();
        created.parent = parent.map(id);
        let event = Event::DispatchCreated(Box::new(created));
        (
            id(name),
            vec![Entry {
                id: String::new(),
                dispatch_id: Some(id(name)),
                at: None,
                more: false,
                event,
            }],
        )
    }

    fn reserve(door: &mut Door, yard: &Yard, (id, made): (DispatchId, Vec<Entry>)) -> Vec<Event> {
        door.reserve(LIMITS, &yard.fleet, (&id, made), yard.now)
    }

    #[test]
    fn new_dispatch_starts_at_once_with_a_free_slot() {
        let begins = vec![Event::AttemptStarted { attempt: 1, epoch: 1, resume: None }];
        let (mut yard, mut door) = (Yard::new(), Door::default());
        yard.create(&name(0), "rehearsal", None);
        assert_eq!(reserve(&mut door, &yard, made(&name(1), None)), begins);
        assert_eq!(reserve(&mut door, &yard, made(&name(2), None)), begins);
        assert_eq!(
            reserve(&mut door, &yard, made(&name(3), None)),
            [],
            "who waits already comes first"
        );
        assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start, [id(&name(0))]);
        yard.create(&name(4), "rehearsal", None);
        assert_eq!(
            door.look(LIMITS, &yard.fleet, yard.now).start,
            [id(&name(0))],
            "their places are kept"
        );
        // One was created, the other will not be.
        yard.create(&name(1), "rehearsal", None);
        yard.event(&name(1), begins[0].clone());
        assert!(door.release(&id(&name(2))) && !door.release(&id(&name(2))));
        assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start, [id(&name(0)), id(&name(4))]);
        assert_eq!(reserve(&mut door, &yard, made(&name(1), None)), [], "it was made before");
        assert_eq!(reserve(&mut door, &yard, made(&name(3), None)), [], "full");
        assert!(!door.release(&id(&name(3))), "who was refused holds nothing");
        assert_eq!(
            reserve(&mut door, &yard, made(&name(5), Some(&name(1)))),
            begins,
            "its parent's place"
        );
        assert_eq!(
            reserve(&mut door, &yard, made(&name(6), Some(&name(1)))),
            [],
            "which is taken over once"
        );
    }

    /// The dispatch was admitted, met a limit and waits again before the pool looked: the old
    /// promise is used up.
    #[test]
    fn reservation_expires() {
        let mut yard = Yard::new();
        let mut door = Door::default();
        yard.create(&name(0), "codex", None);
        assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start.len(), 1);
        assert_eq!(
            door.look(LIMITS, &yard.fleet, yard.now).start.len(),
            1,
            "the word is given again"
        );
        yard.event(&name(0), Event::AttemptStarted { attempt: 1, epoch: 1, resume: None });
        let (trouble, status) = (Trouble::RateLimit, Some(429));
        let until = Timestamp::from_second(60).unwrap();
        yard.event(
            &name(0),
            Event::ApiWaiting { trouble, status, until, told: true, waits: 1, spent_ms: 60_000 },
        );
        assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start, []);
        yard.pass(60);
        assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start.len(), 1);
    }

    proptest! {
        /// For arrivals and ends in any order: never more agents than allowed, starts in the order
        /// of arrival, and no dispatch waits beside a free slot.
        #[test]
        fn the_pool_is_full_fair_and_bounded(
            max_agents in 1_u32..6, steps in prop::collection::vec(0_u8..3, 0..80)
        ) {
            let limits = Pool { max_agents, max_depth: 0 };
            let (mut waiting, mut active, mut started, mut arrived) =
                (VecDeque::new(), 0_usize, vec![], 0_u32);
            for step in steps {
                if step > 0 {
                    waiting.push_back(arrived);
                    arrived += 1;
                } else {
                    active = active.saturating_sub(1);
                }
                let next = admit(limits, active, waiting.make_contiguous()).to_vec();
                active += next.len();
                waiting.drain(..next.len());
                started.extend(next);
                prop_assert!(active <= max_agents as usize);
                prop_assert!(waiting.is_empty() || active == max_agents as usize);
            }
            prop_assert_eq!(&started, &(0..started.len() as u32).collect::<Vec<_>>());
        }
    }
}
