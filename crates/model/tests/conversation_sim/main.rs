//! Simulated conversations: random messages, agents, kills and lost steps, from seeds.
//!
//! The seed alone determines a conversation. `MULETEER_SIM_SEEDS=100000` runs as many,
//! from `MULETEER_SIM_FROM` on.

#![allow(clippy::unwrap_used)]

mod ends;
mod memory;

use jiff::{SignedDuration, Timestamp};
use muleteer_model::agent::event::TurnError;
use muleteer_model::agent::result::{AgentResult, ResultStatus};
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, State, ThreadOpened,
};
use muleteer_model::conversation::step::{self, Effect, Way};
use muleteer_model::conversation::thread::Thread;
use muleteer_model::conversation::{BY, initial_key, prompt_key};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::follow;
use muleteer_model::dispatch::{Dispatch, Phase, Prompt, PromptState, Stop, Turn};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{
    Created, Entry, Event, ExitCause, Limits, PromptKind, Record, VERSION,
};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const THREAD: &str = "thrd2345";
const SEEDS: u64 = 400;

struct Sim {
    fleet: Fleet,
    log: Vec<Record>,
    state: u64,
    sent: u32,
    ids: u32,
    one_shot: bool,
    keys: BTreeSet<String>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let mut sim = Self {
            fleet: Fleet::default(),
            log: vec![],
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            sent: 0,
            ids: 0,
            one_shot: seed % 7 == 3,
            keys: BTreeSet::new(),
        };
        sim.tell(
            None,
            Event::ThreadOpened(Box::new(ThreadOpened {
                thread: THREAD.into(),
                role: "product-analyst".into(),
                project: "/p".into(),
                title: None,
                adapter: "cli".into(),
                external: None,
                by: "operator".into(),
                bang: None,
            })),
        );
        sim
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }

    fn tell(&mut self, of: Option<&DispatchId>, event: Event) {
        let entry =
            Entry { id: String::new(), dispatch_id: of.cloned(), at: None, more: false, event };
        let seq = self.fleet.seq + 1;
        let ts = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seq as i64);
        let record = Record { v: VERSION, seq, ts, entry };
        self.fleet.apply(&record);
        self.log.push(record);
    }

    fn thread(&self) -> Arc<Thread> {
        self.fleet.conversations.get(THREAD).unwrap().clone()
    }

    /// Accepts a message, sometimes one with a key that is known.
    fn write(&mut self) {
        let key = match self.below(4) {
            0 if self.sent > 0 => format!("k{}", self.below(u64::from(self.sent))),
            _ => {
                self.sent += 1;
                format!("k{}", self.sent - 1)
            }
        };
        self.accept(&key);
    }

    fn accept(&mut self, key: &str) {
        // The database knows the keys of the messages that left the memory.
        if !self.keys.insert(key.into()) {
            return;
        }
        self.ids += 1;
        let author =
            Author { kind: AuthorKind::Person, id: "operator".into(), name: "Anna".into() };
        self.tell(
            None,
            Event::MessageAccepted(Box::new(MessageAccepted {
                thread: THREAD.into(),
                message: format!("m{:04}", self.ids),
                author,
                text: format!("message {key}"),
                key: key.into(),
                files: vec![],
                shown: false,
                command: None,
            })),
        );
    }

    /// One round of the driver. It may be cut off before its events are durable, or after its
    /// effect and before anybody knows of it; the next round is another daemon's.
    fn drive(&mut self) {
        let thread = self.thread();
        let mut ids = self.ids;
        let mut new_id = || {
            ids += 1;
            DispatchId::try_from(format!("id{ids:06}")).unwrap()
        };
        let events = step::next(&thread, &self.fleet, &mut new_id);
        self.ids = ids;
        if !events.is_empty() {
            if self.below(6) > 0 {
                events.into_iter().for_each(|event| self.tell(None, event));
            }
            return;
        }
        match step::effect(&thread, &self.fleet) {
            None => {}
            Some(Effect::Create { message, .. }) if self.below(15) == 0 => {
                let mut new_id = || DispatchId::try_from(format!("id{:06}", ids + 1)).unwrap();
                let why = "E_BACKEND_UNAVAILABLE";
                let events = step::refused(&thread, &message, why, &mut new_id);
                events.into_iter().for_each(|event| self.tell(None, event));
            }
            Some(Effect::Create { dispatch, .. }) => {
                assert!(self.fleet.get(&dispatch).is_none(), "it is created once");
                let created =
                    Created { multi_turn: !self.one_shot, resumable: !self.one_shot, ..created() };
                let key = initial_key(&dispatch);
                let (kind, by) = (PromptKind::Initial, created.by.clone());
                self.tell(Some(&dispatch), Event::DispatchCreated(Box::new(created)));
                let queued = Event::PromptQueued { key, kind, by, trace: None };
                self.tell(Some(&dispatch), queued);
            }
            Some(Effect::Send { dispatch, key, .. }) => self.send(&thread, &dispatch, key),
        }
    }

    /// Sends as `control::send` does.
    fn send(&mut self, thread: &Thread, id: &DispatchId, key: String) {
        let dispatch = self.fleet.get(id).unwrap().clone();
        assert!(dispatch.prompt(&key).is_none(), "it is sent once");
        if dispatch.is_being_killed() || dispatch.was_killed_for_good() {
            if step::way(thread, &self.fleet) == Way::To(id.clone()) {
                let events = step::given_up(thread, "killed");
                events.into_iter().for_each(|event| self.tell(None, event));
            }
            return;
        }
        let (kind, by) = (PromptKind::Send, "operator".to_string());
        self.tell(Some(id), Event::PromptQueued { key, kind, by, trace: None });
    }

    /// One step of the thread's dispatch, or of an earlier one that has not ended.
    fn live(&mut self, calm: bool) {
        let all: Vec<_> = self.fleet.unfinished().cloned().collect();
        let Some(dispatch) = all.first() else { return };
        let id = dispatch.id.clone();
        for event in self.happens(dispatch, calm) {
            self.tell(Some(&id), event);
        }
        // The events that follow by themselves.
        // Each step is later than any backoff.
        let hours = 1_000 + i64::try_from(self.fleet.seq).unwrap();
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(hours);
        let mut state = Cow::Owned(Dispatch::clone(self.fleet.get(&id).unwrap()));
        for event in follow(&mut state, now) {
            self.tell(Some(&id), event);
        }
    }

    fn happens(&mut self, d: &Dispatch, calm: bool) -> Vec<Event> {
        if !calm && d.stop.is_none() && self.below(25) == 0 {
            let reason = if self.below(2) == 0 { Stop::WITH_DAEMON } else { "enough" };
            return vec![Event::KillRequested { reason: reason.into(), by: "operator".into() }];
        }
        let exited = |epoch: u32| Event::AgentExited {
            epoch,
            code: Some(0),
            signal: None,
            cause: ExitCause::Exited,
            stderr_tail: String::new(),
            used_ms: 1,
            left: vec![],
        };
        match &d.phase {
            Phase::Queued => {
                let resume = d.session.id.clone();
                vec![Event::AttemptStarted { attempt: d.attempts + 1, epoch: d.epoch + 1, resume }]
            }
            Phase::Starting { epoch, .. } => match self.below(if calm { 1 } else { 12 }) {
                11 => vec![Event::StartFailed {
                    epoch: *epoch,
                    error: "no such program".into(),
                    permanent: true,
                }],
                _ => vec![
                    Event::AgentSpawned {
                        pid: 1,
                        shim_pid: 2,
                        containment: "sweep".into(),
                        awake_ms: 0,
                    },
                    Event::SessionStarted { session_id: format!("s-{}", d.id), model: None },
                ],
            },
            Phase::Working { epoch, turn, .. } => {
                if d.stop.is_some() || (!calm && self.below(20) == 0) {
                    return vec![exited(*epoch)];
                }
                self.works(d, turn, exited(*epoch), calm)
            }
            Phase::Gone { .. }
            | Phase::Backoff { .. }
            | Phase::Closing { .. }
            | Phase::Finished { .. } => vec![],
        }
    }

    fn works(&mut self, d: &Dispatch, turn: &Turn, exited: Event, calm: bool) -> Vec<Event> {
        // The turn of a one-shot agent lasts as long as its process.
        if self.one_shot && matches!(turn, Turn::Running { .. }) {
            let (turn, text) = (d.turns, "the only answer".to_string());
            let (error, status) = (None, None);
            let ended = Event::TurnFinished { turn, ok: true, error, status, text };
            let result = AgentResult {
                status: ResultStatus::Success,
                summary: "the only answer".into(),
                changes: vec![],
                issues: vec![],
                questions: vec![],
                pr_url: None,
            };
            return vec![ended, Event::ResultReceived { result }, exited];
        }
        if let Turn::Running { .. } = turn {
            let text = format!("answer {}", d.turns);
            return vec![Event::TurnFinished {
                turn: d.turns,
                ok: true,
                error: None,
                status: None,
                text: if self.below(5) == 0 { String::new() } else { text },
            }];
        }
        if let Some(sent) = d.prompts.iter().find(|prompt| prompt.state == PromptState::Sent) {
            let key = sent.key.clone();
            if !calm && d.has_history() && self.below(15) == 0 {
                return lost_session(d);
            }
            return match sent.written {
                false => vec![Event::PromptWritten { key }],
                true => vec![Event::TurnStarted { turn: d.turns + 1, key }],
            };
        }
        match (d.next_prompt(), turn) {
            (Some(next), Turn::None | Turn::Done { leaving: false, .. }) => {
                vec![Event::PromptSent { key: next.key.clone() }]
            }
            _ => vec![exited],
        }
    }

    /// Sends a message to a dispatch that has ended, as `muleteer send` does.
    fn send_past_the_thread(&mut self) {
        let ended = |d: &&Arc<Dispatch>| d.is_finished() && !d.was_killed_for_good();
        let all: Vec<_> = self.fleet.iter().filter(ended).map(|d| d.id.clone()).collect();
        let Some(id) = all.first().filter(|_| !self.one_shot) else { return };
        let key = format!("past-{}", self.fleet.seq);
        let (kind, by) = (PromptKind::Send, "operator".to_string());
        self.tell(Some(id), Event::PromptQueued { key, kind, by, trace: None });
    }

    /// Folds the whole log again, and continues from a snapshot, as a new daemon does.
    fn restart(&mut self) {
        let mut fleet = Fleet::default();
        self.log.iter().for_each(|record| fleet.apply(record));
        let text = |fleet: &Fleet| serde_json::to_string(&fleet.conversations).unwrap();
        assert_eq!(text(&fleet), text(&self.fleet));
        let stored = serde_json::to_string(&fleet).unwrap();
        self.fleet = serde_json::from_str(&stored).unwrap();
        assert_eq!(text(&fleet), text(&self.fleet));
    }

    fn play(&mut self) {
        for _ in 0..self.below(200) + 50 {
            match self.below(12) {
                0 => self.write(),
                1 => self.restart(),
                2 if self.below(4) == 0 => {
                    let events = step::archived(&self.thread(), "operator");
                    events.into_iter().for_each(|event| self.tell(None, event));
                }
                3 if self.below(6) == 0 => self.send_past_the_thread(),
                3..=7 => self.drive(),
                _ => self.live(false),
            }
        }
        for _ in 0..5_000 {
            if !self.thread().is_busy() && self.fleet.unfinished().next().is_none() {
                return;
            }
            self.drive();
            self.live(true);
        }
        panic!("it does not come to rest: {:#?}", self.thread());
    }

    fn check(&self) {
        let thread = self.thread();
        let (mut states, mut order) = (BTreeMap::<String, State>::new(), vec![]);
        let mut answered = BTreeSet::new();
        for record in &self.log {
            match &record.entry.event {
                Event::MessageAccepted(accepted) => {
                    order.push(accepted.message.clone());
                    let before = states.insert(accepted.message.clone(), State::Accepted);
                    assert_eq!(before, None, "accepted once");
                }
                Event::MessageState { message, state, .. } => {
                    let before = states.insert(message.clone(), *state).unwrap();
                    assert!(!before.is_final() && rank(*state) >= rank(before), "{message}");
                }
                Event::MessageRecorded(recorded) => {
                    for message in &recorded.answers {
                        assert!(answered.insert(message.clone()), "{message} is answered once");
                    }
                }
                _ => {}
            }
        }
        assert!(states.values().all(|state| state.is_final()), "{states:?}");
        for message in thread.messages.iter().filter(|message| message.is_inbound()) {
            let is_answered = answered.contains(&message.id);
            assert_eq!(is_answered, message.state == State::Answered, "{message:?}");
            assert!(is_answered || !message.reason.is_empty(), "explained: {message:?}");
        }
        self.check_deliveries(&order);
    }

    /// Each message is given to an agent at most once, and in order.
    fn check_deliveries(&self, order: &[String]) {
        let thread = self.thread();
        let mut queued = vec![];
        for message in order {
            let Some(message) = thread.message(message) else { continue };
            let heard = |d: &&Arc<Dispatch>| {
                let Some(to) = &message.delivery else { return false };
                let mut keys = vec![prompt_key(THREAD, &message.id)];
                keys.extend(
                    (1..=to.withdrawn).map(|n| prompt_key(THREAD, &format!("{}/{n}", message.id))),
                );
                if to.dispatch == d.id && to.first {
                    keys.push(initial_key(&d.id));
                }
                let is_heard =
                    |key: &String| d.prompt(key).is_some_and(|prompt| !is_taken_back(prompt));
                let count = keys.iter().filter(|key| is_heard(key)).count();
                assert!(count <= 1, "{} went {count} times to {}", message.id, d.id);
                count == 1
            };
            let with: Vec<_> = self.fleet.iter().filter(heard).collect();
            assert!(with.len() <= 1, "{} went to {}", message.id, with.len());
            let prompt = message.prompt(THREAD);
            let seq = self.log.iter().find_map(|record| match &record.entry.event {
                Event::PromptQueued { key, .. } => {
                    let (id, of) = prompt.as_ref()?;
                    let is_it = key == of && record.entry.dispatch_id.as_ref() == Some(*id);
                    is_it.then_some(record.seq)
                }
                _ => None,
            });
            queued.extend(seq);
        }
        assert!(queued.is_sorted(), "the order is kept: {queued:?}");
    }
}

/// Returns what an agent reports that does not find its session.
fn lost_session(d: &Dispatch) -> Vec<Event> {
    let session_id = d.session.id.clone().unwrap();
    let (turn, error) = (d.turns, Some(TurnError::Other));
    let ended = Event::TurnFinished { turn, ok: false, error, status: None, text: "gone".into() };
    vec![Event::SessionLost { session_id }, ended]
}

fn is_taken_back(prompt: &Prompt) -> bool {
    matches!(prompt.state, PromptState::Withdrawn | PromptState::Returned)
}

/// Returns the place of a state on a message's way.
fn rank(state: State) -> usize {
    let way = [State::Accepted, State::Queued, State::Delivered, State::Read];
    way.iter().position(|known| *known == state).unwrap_or(way.len())
}

fn created() -> Created {
    let limits = Limits {
        budget_usd: None,
        max_turns: None,
        timeout_s: None,
        inactivity_timeout_s: 180,
        max_restarts: 3,
    };
    let text = |text: &str| text.to_string();
    Created {
        role: text("product-analyst"),
        category: text("conversational"),
        project: text("/p"),
        repository: None,
        feature: text("f"),
        title: None,
        spec: None,
        backend: text("sim"),
        model: None,
        model_source: None,
        limits,
        purse: None,
        worktree: None,
        branch: None,
        journal: text("/j"),
        parent: None,
        by: format!("{BY}{THREAD}"),
        multi_turn: true,
        resumable: true,
        wants_result: false,
        calls: None,
        program: None,
        trace: None,
        ask_on_crash: false,
        permissions: muleteer_model::agent::permission::Policy::default(),
        confined: false,
        can_ask: true,
        unattended_s: None,
        hold_s: None,
        mcp: None,
        idle_hold_s: None,
        role_fault: None,
        thread_verbosity: None,
        transcripts: false,
        folds: false,
        api: muleteer_model::admission::api_error::Terms::default(),
        watched: muleteer_model::monitor::Terms::default(),
        fingerprint: text("f"),
    }
}

#[test]
fn every_message_is_delivered_at_most_once_in_order_and_answered_or_explained() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let from = number("MULETEER_SIM_FROM").unwrap_or_default();
    let mut ends = BTreeMap::<&str, u32>::new();
    for seed in from..from + number("MULETEER_SIM_SEEDS").unwrap_or(SEEDS) {
        let played = std::panic::catch_unwind(|| {
            let mut sim = Sim::new(seed);
            sim.play();
            sim.check();
            sim.thread().messages.iter().map(|message| message.state.as_str()).collect::<Vec<_>>()
        });
        let Ok(states) = played else { panic!("seed {seed}") };
        states.into_iter().for_each(|state| *ends.entry(state).or_default() += 1);
    }
    for state in ["answered", "refused", "recorded"] {
        assert!(ends.contains_key(state), "{state} does not occur: {ends:?}");
    }
}
