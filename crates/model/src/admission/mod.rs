//! Admission: which waiting dispatches get an agent now (docs/design/admission-and-limits.md).
//! First come, first served, except that whoever waits for a model API does not hold up those who
//! don't; nothing here holds a lock or a process, so the policy is tested without either.
//!
//! A dispatch takes no place while somebody below it is at work, one that its agent dispatched or
//! one that those did: it waits for them, or will. Counted, parents could hold all the places that
//! their children wait for, for ever. While nobody below it is at work it keeps its place, and the
//! first of them to start takes that over: given to a stranger, who would do the same in turn,
//! there would be no end of parents at work. So those that count have nobody at work below them, a
//! chain of dispatches is at most `max_depth + 1` long, and there are never more than
//! `max_agents * (max_depth + 1)` agents.

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

/// A dispatch that may not be made: agents would dispatch agents too deeply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("agents may dispatch agents at most {max} deep (`pool.max_depth`)")]
pub struct TooDeep {
    pub max: u32,
}

/// How many of `waiting` dispatches, taken from the front of the queue, may start now.
pub fn free(limits: Pool, active: usize, waiting: usize) -> usize {
    (limits.max_agents as usize).saturating_sub(active).min(waiting)
}

/// The dispatches to start now: the longest-waiting queued ones, as many as there is room for.
/// `waiting` is in order of arrival.
pub fn admit<T>(limits: Pool, active: usize, waiting: &[T]) -> &[T] {
    &waiting[..free(limits, active, waiting.len())]
}

/// Who is at work, or has been promised to be, and whose families are.
struct Families<'a> {
    fleet: &'a Fleet,
    /// Not at work yet.
    promised: BTreeSet<&'a DispatchId>,
    /// Those that have somebody at work below them, whether they are at work themselves or not.
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

    /// It takes a place, if it is at work.
    fn counts(&self, id: &DispatchId) -> bool {
        !self.above.contains(id)
    }

    /// Those that take a place.
    fn counted(&self) -> impl Iterator<Item = &'a Dispatch> {
        let all = self.fleet.unfinished().map(|dispatch| &**dispatch);
        all.filter(|dispatch| self.is_live(dispatch) && self.counts(&dispatch.id))
    }

    /// Whose place it would take over: that of the nearest above it that is at work.
    fn predecessor_of(&self, dispatch: &Dispatch) -> Option<&'a Dispatch> {
        ancestors(self.fleet, dispatch)
            .find(|above| self.is_live(above))
            .filter(|above| self.counts(&above.id))
    }
}

/// Its parent, and so on.
fn ancestors<'a>(fleet: &'a Fleet, dispatch: &Dispatch) -> impl Iterator<Item = &'a Dispatch> {
    /// Parents are older than their children, so there is no circle; but we don't bet on it.
    const DEEPEST: usize = 1000;
    let parent = |of: &Dispatch| fleet.get(of.created.parent.as_ref()?).map(|above| &**above);
    std::iter::successors(parent(dispatch), move |above| parent(above)).take(DEEPEST)
}

/// How many of a channel (see [`api_backpressure`]) take a place.
pub fn at_work(fleet: &Fleet, channel: &str) -> u32 {
    let families = Families::of(fleet);
    let count = families
        .counted()
        .filter(|dispatch| api_backpressure::channel(dispatch) == channel)
        .count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// What the pool does now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    pub start: Vec<DispatchId>,
    /// Somebody may start then, even if nothing else happens.
    pub look_again: Option<Timestamp>,
}

/// The dispatches of a fleet to start now. One that was sent a further turn waits from its creation
/// on: a conversation in progress goes before new work.
pub fn next(limits: Pool, fleet: &Fleet, now: Timestamp) -> Admission {
    admit_beside(limits, fleet, now, &[])
}

/// The same where some of those that wait were promised a place before: they keep it.
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
        // One that was spoken to again may have somebody at work below it: then it needs no place
        // either.
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
            // The places are taken: whoever leaves one says so. One behind it may take over its
            // parent's.
            None => {}
        }
    }
    admission
}

/// The pool's memory of whom it has let in.
///
/// Between the word "start" and the event that it has begun lies a disk. A dispatch that becomes
/// the first in the queue meanwhile (an older conversation that somebody speaks to again) would be
/// given the same place once more, and one agent too many would start. So a place that was promised
/// stays taken, until the fleet shows what came of it; and the word is given again each time, since
/// whoever it was meant for may have been restarted.
#[derive(Debug, Default)]
pub struct Door {
    /// One that has begun meanwhile and waits again was given what it was promised; one that has
    /// ended and waits again is promised a place anew.
    promised: Vec<(DispatchId, Ticket)>,
    /// Those that are about to be made and begin with that, as they will be made.
    reserved: Vec<(DispatchId, Vec<Entry>)>,
}

impl Door {
    /// Whom to tell to start now.
    pub fn look(&mut self, limits: Pool, fleet: &Fleet, now: Timestamp) -> Admission {
        self.forget(fleet);
        let mut admission = admit_beside(limits, &self.expected(fleet, now), now, &self.kept());
        admission.start.retain(|id| fleet.get(id).is_some());
        let with_ticket = |id: &DispatchId| fleet.get(id).map(|d| (id.clone(), d.ticket()));
        self.promised = admission.start.iter().filter_map(with_ticket).collect();
        admission
    }

    /// A dispatch is about to be made by these entries. Where there is a place for it now: with
    /// what it begins, so that this is made durable with the same append. Its place is then kept
    /// until the fleet shows it, or until it is [given back](Self::release). Where there is none:
    /// nothing; it waits like anybody.
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

    /// Whether it had a place: that is free then, unless the dispatch was made.
    pub fn release(&mut self, id: &DispatchId) -> bool {
        let before = self.reserved.len();
        self.reserved.retain(|(reserved, _)| reserved != id);
        self.reserved.len() < before
    }

    /// Those that have a place already.
    fn kept(&self) -> Vec<DispatchId> {
        let promised = self.promised.iter().map(|(id, _)| id);
        promised.chain(self.reserved.iter().map(|(id, _)| id)).cloned().collect()
    }

    /// What the fleet shows already is forgotten.
    fn forget(&mut self, fleet: &Fleet) {
        let waits = |(id, ticket): &(DispatchId, Ticket)| {
            fleet
                .get(id)
                .is_some_and(|d| d.ticket() == *ticket && !d.is_active() && !d.is_finished())
        };
        self.promised.retain(waits);
        self.reserved.retain(|(id, _)| fleet.get(id).is_none());
    }

    /// The fleet with those that are about to be made.
    fn expected<'a>(&self, fleet: &'a Fleet, now: Timestamp) -> Cow<'a, Fleet> {
        let mut expected = Cow::Borrowed(fleet);
        for entry in self.reserved.iter().flat_map(|(_, made)| made) {
            let seq = expected.seq + 1;
            expected.to_mut().apply(&Record { v: VERSION, seq, ts: now, entry: entry.clone() });
        }
        expected
    }
}

/// How deep a new dispatch of `parent` would be: 0 for a person's own, 1 for one an agent of that
/// asked for. The walk stops at the limit, so a damaged chain that is a circle is just too deep.
///
/// # Errors
/// When that is deeper than `limits` allow.
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
            // The limit was lowered while more were running: nobody is ended, nobody starts.
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

        /// Admits whoever may start.
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

    /// With all places held by parents that wait for their children, the children start.
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
    fn who_takes_a_place_over_leaves_the_free_one_to_a_stranger() {
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

    /// Nor is there an end to parents at work where each leaves its place to a stranger.
    #[test]
    fn a_parents_place_goes_to_its_child_and_not_to_a_stranger() {
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
        // Who ends before its child leaves it to whoever is above, and needs no place where it goes
        // on.
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

    /// Killed while it waited, it is about to end without ever having had a place: nobody above it
    /// needs none for that.
    #[test]
    fn who_was_killed_in_the_queue_lets_nobody_in() {
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

    /// Its work is being fetched: no agent is there any more, and that may take a while.
    #[test]
    fn who_closes_leaves_its_place() {
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
    fn a_limit_one_met_holds_back_those_who_share_it_and_nobody_else() {
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
        // One is at work, and one may be: at the end of the wait it is one more after a step.
        assert_eq!(wait(&yard), Some(75));
        yard.pass(74);
        assert_eq!(yard.turn(), [] as [String; 0]);
        yard.pass(1);
        assert_eq!(yard.turn(), [name(2)]);
        assert_eq!(wait(&yard), None);
    }

    #[test]
    fn who_waits_for_the_api_holds_no_place() {
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
    fn what_was_promised_goes_to_nobody_who_comes_first_in_the_queue_meanwhile() {
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

    /// Entries of a dispatch that is not made yet.
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
    fn who_is_being_made_begins_at_once_where_there_is_a_place() {
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
        // One is there, the other will not be.
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

    /// It was let in, met a limit and waits again before the pool looked: the old promise is kept
    /// already.
    #[test]
    fn a_promise_is_not_for_ever() {
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
        /// Arrivals and ends in any order: never more than allowed, in the order of arrival, and
        /// nobody waits beside a free place.
        #[test]
        fn the_pool_is_full_fair_and_bounded(max_agents in 1_u32..6, steps in prop::collection::vec(0_u8..3, 0..80)) {
            let limits = Pool { max_agents, max_depth: 0 };
            let (mut waiting, mut active, mut started, mut arrived) = (VecDeque::new(), 0_usize, vec![], 0_u32);
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
