//! Simulated adapters: random posts, questions, acknowledgements, kills and lost steps, from seeds.
//!
//! The outside system keeps what was posted over all kills. A connection forgets everything. The
//! daemon forgets what was not durable. Afterwards each item was posted once or refused, in the
//! order of its thread; each inbound message was accepted once.
//!
//! `MULETEER_SIM_SEEDS=100000` runs as many seeds.

#![allow(clippy::unwrap_used)]

use jiff::{SignedDuration, Timestamp};
use muleteer_model::conversation::adapter::event::AdapterSignal;
use muleteer_model::conversation::adapter::outbox::{self, Outcome};
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageFile, MessageRecorded, ThreadOpened,
};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event, Record, VERSION};
use muleteer_model::question::{
    Answer, AnsweredBy, Choice, Kind, QuestionAnswered, QuestionAsked, State,
};
use std::collections::{BTreeMap, BTreeSet};

const SEEDS: u64 = 3000;
const THREADS: u64 = 3;
const ADAPTER: &str = "slack";

/// An item that the adapter has and has not acknowledged.
#[derive(Debug, Clone)]
struct Given {
    thread: String,
    key: String,
    again: bool,
}

struct Sim {
    fleet: Fleet,
    state: u64,
    ids: u32,
    /// The keys of the items in the order in which they came to be owed, by thread.
    owed: BTreeMap<String, Vec<String>>,
    /// The items of the outside system, by thread.
    posted: BTreeMap<String, Vec<String>>,
    refused: BTreeSet<String>,
    accepted: BTreeSet<String>,
    /// The connection: what is on its way, and the threads that wait.
    given: Vec<Given>,
    held: BTreeSet<String>,
    open_questions: Vec<String>,
}

fn thread_of(number: u64) -> String {
    format!("thrd234{}", number + 2)
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut sim = Self {
            fleet: Fleet::default(),
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            ids: 0,
            owed: BTreeMap::new(),
            posted: BTreeMap::new(),
            refused: BTreeSet::new(),
            accepted: BTreeSet::new(),
            given: vec![],
            held: BTreeSet::new(),
            open_questions: vec![],
        };
        for number in 0..THREADS {
            sim.tell(Event::ThreadOpened(Box::new(ThreadOpened {
                thread: thread_of(number),
                role: "analyst".into(),
                project: "/p".into(),
                title: None,
                adapter: ADAPTER.into(),
                external: Some(format!("C{number}")),
                by: "U1".into(),
                bang: None,
            })));
        }
        sim
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }

    fn id(&mut self) -> String {
        self.ids += 1;
        format!("id{:06}", self.ids)
    }

    fn tell(&mut self, event: Event) {
        let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
        let seq = self.fleet.seq + 1;
        let ts = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seq as i64);
        self.fleet.apply(&Record { v: VERSION, seq, ts, entry });
        for thread in self.fleet.conversations.iter() {
            let all = self.owed.entry(thread.id().into()).or_default();
            for post in thread.outbox.values() {
                if !all.contains(&post.key) {
                    all.push(post.key.clone());
                }
            }
        }
    }

    fn author(kind: AuthorKind) -> Author {
        Author { kind, id: "U1".into(), name: "Anna".into() }
    }

    fn files(&mut self) -> Vec<MessageFile> {
        let count = self.below(6).saturating_sub(3);
        let file = |n| MessageFile { name: format!("f{n}"), bytes: 1, sha256: format!("{n}") };
        (0..count).map(file).collect()
    }

    /// A record that owes something, or a message of the outside system, perhaps submitted again.
    fn happens(&mut self) {
        let number = self.below(THREADS);
        let (thread, files) = (thread_of(number), self.files());
        match self.below(6) {
            0 | 1 => {
                let message = self.id();
                let turn = Some(self.below(9) as u32).filter(|turn| *turn > 0);
                let recorded = MessageRecorded {
                    thread,
                    text: message.clone(),
                    message,
                    author: Self::author(AuthorKind::Agent),
                    answers: vec![],
                    dispatch: None,
                    turn,
                    files,
                    reports_through: None,
                };
                self.tell(Event::MessageRecorded(Box::new(recorded)));
            }
            2 => self.accept(thread, None, files),
            3 => {
                let source = format!("in/e{}", self.below(12));
                self.accept(thread, Some(source), vec![]);
            }
            4 => {
                let question = self.id();
                self.open_questions.push(question.clone());
                self.tell(Event::QuestionAsked(Box::new(asked(question, thread))));
            }
            _ => self.closes_a_question(),
        }
    }

    /// Accepts a message of the outside system, or of the operator elsewhere.
    fn accept(&mut self, thread: String, source: Option<String>, files: Vec<MessageFile>) {
        let kind = if source.is_some() { AuthorKind::Person } else { AuthorKind::Operator };
        let (message, shown) = (self.id(), source.is_none());
        let key = source.unwrap_or_else(|| message.clone());
        let known = self.fleet.conversations.get(&thread).unwrap();
        // The database knows the keys of the messages that left the memory.
        let is_new = self.accepted.insert(format!("{thread} {key}"));
        assert!(is_new || known.by_key(&key).is_some() || known.messages.left().is_some());
        if is_new {
            let (author, text) = (Self::author(kind), key.clone());
            let command = None;
            let accepted =
                MessageAccepted { thread, message, author, text, key, files, shown, command };
            self.tell(Event::MessageAccepted(Box::new(accepted)));
        }
    }

    fn closes_a_question(&mut self) {
        let Some(question) = self.open_questions.pop() else { return };
        let event = match self.below(2) {
            0 => Event::QuestionAnswered(Box::new(QuestionAnswered {
                question,
                answer: Answer::option("yes"),
                by: AnsweredBy::of("slack:U1"),
                key: String::new(),
            })),
            _ => Event::QuestionState { question, state: State::Withdrawn, reason: String::new() },
        };
        self.tell(event);
    }

    /// The daemon gives items. It may be killed before or after that is durable.
    fn give(&mut self, calm: bool) {
        let fleet = self.fleet.clone();
        let all = &fleet.conversations;
        let Some(adapter) = all.adapter(ADAPTER) else { return };
        let thread = |id: &str| all.get(id).map(|thread| &**thread);
        let Some((thread, post)) = outbox::next(adapter, &self.held, thread) else { return };
        let (given, events) = (
            Given { thread: thread.id().into(), key: post.key.clone(), again: post.sent },
            outbox::sent(thread, post),
        );
        let dies = if calm { 9 } else { self.below(10) };
        if dies == 0 {
            return self.disconnect();
        }
        events.into_iter().for_each(|event| self.tell(event));
        if dies == 1 {
            return self.disconnect();
        }
        self.held.insert(given.thread.clone());
        self.given.push(given);
    }

    /// The adapter handles one item: it may die before or after it posts, or post and lose the
    /// acknowledgement with a killed daemon.
    fn answer(&mut self, calm: bool) {
        if self.given.is_empty() {
            return;
        }
        let at = self.below(self.given.len() as u64) as usize;
        let Given { thread, key, again } = self.given.remove(at);
        let fate = if calm { 9 } else { self.below(10) };
        if fate == 0 {
            return self.disconnect();
        }
        let is_there = self.posted.entry(thread.clone()).or_default().contains(&key);
        assert!(again || !is_there, "{key} was posted and comes without `again`");
        if fate == 1 && !is_there {
            self.refused.insert(key.clone());
            let reason = "no such channel".into();
            return self.acknowledged(&thread, &key, &Outcome::Refused { reason }, false);
        }
        if !is_there {
            self.posted.entry(thread.clone()).or_default().push(key.clone());
        }
        if fate == 2 {
            return self.disconnect();
        }
        let external_ref = Some(format!("place of {key}"));
        self.acknowledged(&thread, &key, &Outcome::Posted { external_ref }, fate == 3);
    }

    /// An acknowledgement arrives. `lost` kills the daemon before it is durable.
    fn acknowledged(&mut self, thread: &str, key: &str, outcome: &Outcome, lost: bool) {
        if lost {
            return self.disconnect();
        }
        let found = self.fleet.conversations.get(thread).unwrap().clone();
        let forged = outbox::acknowledged(&found, "another key", outcome);
        assert_eq!(forged, [], "an item that was not given cannot be acknowledged");
        let events = outbox::acknowledged(&found, key, outcome);
        assert!(!events.is_empty(), "{key} is on its way");
        events.into_iter().for_each(|event| self.tell(event));
        let now = self.fleet.conversations.get(thread).unwrap().clone();
        assert_eq!(outbox::acknowledged(&now, key, outcome), [], "{key} is acknowledged once");
        self.held.remove(thread);
    }

    fn disconnect(&mut self) {
        self.given.clear();
        self.held.clear();
    }

    fn signal(&mut self) {
        let source = format!("s{}", self.below(50));
        self.tell(Event::AdapterSignal(Box::new(AdapterSignal {
            adapter: ADAPTER.into(),
            source: source.clone(),
            kind: "delete".into(),
            thread: thread_of(0),
            by: "U1".into(),
            about: None,
        })));
        assert!(self.fleet.conversations.adapter(ADAPTER).unwrap().signals.contains(&source));
    }

    fn check(&self) {
        let adapter = self.fleet.conversations.adapter(ADAPTER).unwrap();
        let (mut posted, mut refused) = (0, 0);
        for (thread, owed) in &self.owed {
            let of = self.fleet.conversations.get(thread).unwrap();
            assert_eq!(of.outbox.size(), 0, "everything is acknowledged");
            let has = self.posted.get(thread).cloned().unwrap_or_default();
            let expected: Vec<_> =
                owed.iter().filter(|key| !self.refused.contains(*key)).cloned().collect();
            assert_eq!(has, expected, "each item once, in order");
            posted += has.len() as u64;
            refused += (owed.len() - has.len()) as u64;
        }
        assert_eq!([adapter.pending, adapter.posted, adapter.refused], [0, posted, refused]);
        assert_eq!(adapter.owing.size(), 0);
    }
}

fn asked(question: String, thread: String) -> QuestionAsked {
    QuestionAsked {
        question,
        kind: Kind::Question,
        text: "Go on?".into(),
        options: vec![Choice::new("yes", ""), Choice::new("no", "")],
        multi: false,
        free_text: false,
        detail: serde_json::Value::Null,
        default: None,
        deadline: None,
        thread: Some(thread),
        shown_in: vec![],
        dispatch: None,
        asked_by: "muleteer".into(),
        subject: String::new(),
    }
}

fn run(seed: u64) {
    let mut sim = Sim::new(seed);
    let steps = 40 + sim.below(80);
    for _ in 0..steps {
        match sim.below(12) {
            0..=3 => sim.happens(),
            4..=6 => sim.give(false),
            7..=9 => sim.answer(false),
            10 if sim.below(3) == 0 => {
                let saved = serde_json::to_string(&sim.fleet).unwrap();
                sim.fleet = serde_json::from_str(&saved).unwrap();
                sim.disconnect();
            }
            10 => sim.signal(),
            _ => sim.disconnect(),
        }
    }
    sim.disconnect();
    for _ in 0..1000 {
        sim.give(true);
        sim.answer(true);
    }
    sim.check();
}

#[test]
fn every_item_is_posted_once_and_in_order_whatever_dies() {
    let asked = std::env::var("MULETEER_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..asked.unwrap_or(SEEDS) {
        if let Err(panic) = std::panic::catch_unwind(|| run(seed)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
