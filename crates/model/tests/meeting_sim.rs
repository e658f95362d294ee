//! Simulated meetings: random chairs, agents, people, kills and lost steps, from seeds.
//!
//! A kill forgets everything that is not durable, so that the next daemon decides again. Afterwards
//! no turn was given twice or beside another, each limit held, and the meeting ended once.
//!
//! `MULETEER_SIM_SEEDS=100000` runs as many seeds.

#![allow(clippy::unwrap_used)]

use jiff::{SignedDuration, Timestamp};
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageFile, MessageRecorded, State, ThreadOpened,
};
use muleteer_model::conversation::route::{Route, route};
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record, VERSION};
use muleteer_model::meeting::event::{ChairName, EndReason, MeetingStarted, MeetingTurn, TurnKind};
use muleteer_model::meeting::{MOST_LOST, MOST_WRITERS, prompt, step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const SEEDS: u64 = 1000;
const THREAD: &str = "thrd2345";
const MEETING: &str = "meet2345";
/// A meeting of the simulation ends within so many steps.
const STEPS: u32 = 5000;

struct Sim {
    fleet: Fleet,
    state: u64,
    ids: u32,
    log: Vec<Event>,
    written: Vec<String>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let fleet = Fleet::default();
        let mut sim = Self { fleet, state, ids: 0, log: vec![], written: vec![] };
        sim.tell(Event::ThreadOpened(Box::new(ThreadOpened {
            thread: THREAD.into(),
            role: "a".into(),
            project: "/p".into(),
            title: None,
            adapter: "cli".into(),
            external: None,
            by: "operator".into(),
            bang: None,
        })));
        let roles = ["a", "b", "c", "d"][..1 + sim.below(4) as usize].iter();
        let chair = [ChairName::RoundRobin, ChairName::Mention, ChairName::Role];
        let chair = chair[sim.below(3) as usize];
        let chair_role = ["a", "pm"][sim.below(2) as usize];
        let max_turns = 1 + sim.below(9) as u32;
        sim.tell(Event::MeetingStarted(Box::new(MeetingStarted {
            thread: THREAD.into(),
            meeting: MEETING.into(),
            topic: "Exports".into(),
            roles: roles.map(ToString::to_string).collect(),
            chair,
            chair_role: (chair == ChairName::Role).then(|| chair_role.to_string()),
            max_turns,
            budget_usd: None,
            turn_limit_s: 60,
            by: "operator".into(),
        })));
        sim
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }

    fn tell(&mut self, event: Event) {
        let entry = Entry {
            id: String::new(),
            dispatch_id: None,
            at: None,
            more: false,
            event: event.clone(),
        };
        let seq = self.fleet.seq + 1;
        let ts = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(i64::try_from(seq).unwrap());
        self.fleet.apply(&Record { v: VERSION, seq, ts, entry });
        self.log.push(event);
    }

    fn thread(&self) -> Arc<Thread> {
        self.fleet.conversations.get(THREAD).unwrap().clone()
    }

    fn id(&mut self) -> DispatchId {
        self.ids += 1;
        DispatchId::from_random(self.ids.to_be_bytes().repeat(2)[..5].try_into().unwrap())
    }

    fn decide(
        &mut self,
        of: impl Fn(&Thread, &Fleet, &mut dyn FnMut() -> DispatchId) -> Vec<Event>,
    ) -> bool {
        let (thread, fleet) = (self.thread(), self.fleet.clone());
        let events = of(&thread, &fleet, &mut || self.id());
        // A daemon that is killed before the batch is durable has decided nothing.
        let is_killed = self.below(4) == 0;
        if is_killed {
            // The next one begins with a snapshot.
            let bytes = serde_json::to_vec(&self.fleet).unwrap();
            self.fleet = serde_json::from_slice(&bytes).unwrap();
            return false;
        }
        let is_some = !events.is_empty();
        events.into_iter().for_each(|event| self.tell(event));
        is_some
    }

    /// Plays the agent of the turn which is under way.
    fn answer(&mut self) {
        let thread = self.thread();
        let Some(turn) = thread.meeting().and_then(|meeting| meeting.turn.clone()) else { return };
        if turn.over.is_some() {
            return;
        }
        let message = turn.given.message;
        let prompt = prompt::of(&thread, &message).expect("the prompt of a turn");
        assert!(prompt.contains(&format!("You are `{}`", turn.given.role)), "{prompt}");
        let is_last = turn.given.kind == TurnKind::Minutes;
        assert_eq!(prompt.contains("The turns are over."), is_last, "{prompt}");
        let texts = ["I agree.", "@b, and you?", "NEXT: c", "END", "@a @c @d", "NEXT: nobody"];
        let (kind, text) = match self.below(8) {
            0 => (AuthorKind::Muleteer, "The agent ended its turn without a text."),
            _ => (AuthorKind::Agent, texts[self.below(6) as usize]),
        };
        let (state, reason) = match self.below(10) {
            0 => (State::Refused, "E_ROLE_UNKNOWN: it is gone"),
            1 => (State::Unknown, ""),
            2 => (State::Answered, "interrupted"),
            3 => {
                let (thread, wait) = (self.thread(), format!("{MEETING}/{}", turn.given.turn));
                let events = step::timed_out(&thread, &wait, &mut || self.id());
                assert!(!events.is_empty());
                events.into_iter().for_each(|event| self.tell(event));
                return;
            }
            _ => (State::Answered, ""),
        };
        if state == State::Answered {
            let recorded = MessageRecorded {
                thread: THREAD.into(),
                message: self.id().to_string(),
                author: Author { kind, id: "x".into(), name: turn.given.role.clone() },
                text: text.into(),
                answers: vec![message.clone()],
                dispatch: None,
                turn: None,
                files: vec![],
                reports_through: None,
            };
            self.tell(Event::MessageRecorded(Box::new(recorded)));
        }
        self.tell(Event::MessageState {
            thread: THREAD.into(),
            message,
            state,
            reason: reason.into(),
            dispatch: None,
        });
    }

    fn write(&mut self) {
        let (message, n) = (self.id().to_string(), self.ids);
        let texts = ["I think so.", "@b what do you say?", "@nobody here", "@d and @a"];
        let text = texts[self.below(4) as usize];
        self.written.push(message.clone());
        self.tell(Event::MessageAccepted(Box::new(MessageAccepted {
            thread: THREAD.into(),
            message,
            author: Author { kind: AuthorKind::Person, id: "ann".into(), name: "ann".into() },
            text: text.into(),
            key: format!("k{n}"),
            files: vec![],
            shown: false,
            command: None,
        })));
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            let thread = self.thread();
            let Some(meeting) = thread.meeting() else { return };
            match self.below(12) {
                0 => self.write(),
                1..=5 => self.answer(),
                6 if self.below(20) == 0 => {
                    let events = step::ending(&thread, meeting, EndReason::Requested, Some("ann"));
                    events.into_iter().for_each(|event| self.tell(event));
                }
                7 if self.below(8) == 0 => {
                    let wait = format!("{MEETING}/after/{}", meeting.turns.len());
                    let events = step::timed_out(&thread, &wait, &mut || self.id());
                    // A meeting that gives a turn next does not wait.
                    if step::next(&thread, &self.fleet.clone(), &mut || self.id()).is_empty() {
                        events.into_iter().for_each(|event| self.tell(event));
                    }
                }
                8 => {
                    if step::minutes_due(&thread).is_some() {
                        self.decide(|thread, _, new_id| {
                            let file = MessageFile {
                                name: "minutes.md".into(),
                                bytes: 1,
                                sha256: "x".into(),
                            };
                            step::ended(thread, file, "/p/minutes.md", new_id)
                        });
                    }
                }
                _ => {
                    self.decide(step::next);
                }
            }
        }
        panic!("the meeting does not end: {:#?}", self.thread().meetings);
    }

    fn turns(&self) -> Vec<MeetingTurn> {
        let all = self.log.iter().filter_map(|event| match event {
            Event::MeetingTurn(turn) => Some((**turn).clone()),
            _ => None,
        });
        all.collect()
    }

    fn check(&self, seed: u64) {
        let thread = self.thread();
        let [meeting] = &thread.meetings[..] else { panic!("{seed}") };
        let turns = self.turns();
        let numbers: Vec<_> = turns.iter().map(|turn| turn.turn).collect();
        assert_eq!(numbers, (1..).take(turns.len()).collect::<Vec<_>>(), "{seed}");
        let messages: BTreeSet<_> = turns.iter().map(|turn| &turn.message).collect();
        assert_eq!(messages.len(), turns.len(), "{seed}");
        assert!(meeting.count() <= meeting.started.max_turns as usize, "{seed}");
        let writers: Vec<_> = turns.iter().filter(|turn| turn.kind == TurnKind::Minutes).collect();
        assert!(writers.len() <= MOST_WRITERS, "{seed}");
        let count = |wanted: fn(&Event) -> bool| self.log.iter().filter(|it| wanted(it)).count();
        assert_eq!(count(|it| matches!(it, Event::MeetingEnding(_))), 1, "{seed}");
        assert_eq!(count(|it| matches!(it, Event::MeetingEnded(_))), 1, "{seed}");
        let (mut open, mut ending) = (None, false);
        let mut lost: BTreeMap<&str, u32> = BTreeMap::new();
        for event in &self.log {
            match event {
                Event::MeetingTurn(turn) => {
                    assert_eq!(open.replace(turn), None, "{seed}: two turns at once");
                    assert_eq!(turn.kind == TurnKind::Minutes, ending, "{seed}");
                    let failed = lost.get(&*turn.role).copied().unwrap_or_default();
                    assert!(failed < MOST_LOST, "{seed}: {} has left", turn.role);
                }
                Event::MeetingTurnDone(done) => {
                    let turn = open.take().expect("a turn");
                    assert_eq!(turn.turn, done.turn, "{seed}");
                    let failed = lost.entry(&turn.role).or_default();
                    *failed = if done.lost.is_some() { *failed + 1 } else { 0 };
                }
                Event::MeetingEnding(_) => ending = true,
                Event::MeetingEnded(_) => assert!(ending && open.is_none(), "{seed}"),
                _ => {}
            }
        }
        // A message was heard and answered, or goes to the thread's agents after the meeting.
        let questions = &self.fleet.questions;
        for id in &self.written {
            let message = thread.message(id).expect("a message");
            let is_heard = turns.iter().any(|turn| turn.hears.contains(id));
            match message.state {
                State::Answered => assert!(is_heard, "{seed}: {id}"),
                State::Accepted => {
                    assert_ne!(route(&thread, message, questions), Route::Meeting, "{seed}");
                }
                state => panic!("{seed}: {id} is {state:?}"),
            }
        }
    }
}

#[test]
fn meetings_end_once_and_keep_their_limits_over_kills() {
    let seeds = std::env::var("MULETEER_SIM_SEEDS").ok().and_then(|it| it.parse().ok());
    for seed in 1..=seeds.unwrap_or(SEEDS) {
        let mut sim = Sim::new(seed);
        sim.run();
        sim.check(seed);
    }
}
