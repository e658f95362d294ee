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
        let entry =
            Entry { id: String::new(), dispatch_id: Some(id(of)), at: None, more: false, event };
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
            self.event(id.as_str(), Event::AttemptStarted { attempt: 1, epoch: 1, resume: None });
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
        Event::ApiRetried { attempt: 1, max: 9, status: Some(429), delay_s: 60.0, awake_ms: None },
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
    assert_eq!(door.look(LIMITS, &yard.fleet, yard.now).start.len(), 1, "the word is given again");
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
