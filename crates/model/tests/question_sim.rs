//! Simulated questions: an agent that asks, people that answer, and processes that die, from seeds.
//!
//! The seed alone determines a simulation. `MULETEER_SIM_SEEDS=100000` runs as many.

#![allow(clippy::unwrap_used)]

use jiff::{SignedDuration, Timestamp};
use muleteer_model::agent::ask::{Answer, Ask};
use muleteer_model::agent::event::{AgentEvent, TurnResult};
use muleteer_model::agent::permission::{Mode, Policy};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::{Decided, Input, advance, can_be_held, decide};
use muleteer_model::dispatch::{Dispatch, Exit, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{
    Created, Entry, Event, ExitCause, Limits, Position, PromptKind, Record, VERSION,
};
use muleteer_model::question::{Kind, QuestionAsked, State};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

const SEEDS: u64 = 3000;

struct Sim {
    fleet: Fleet,
    id: DispatchId,
    state: u64,
    offset: u64,
    requests: u32,
    /// The answers of people by question.
    given: BTreeMap<String, (String, u32)>,
    /// The states that each question had.
    seen: BTreeMap<String, Vec<State>>,
    wrong: Vec<String>,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let id = DispatchId::try_from("abcd2345".to_string()).unwrap();
        let mut sim = Self {
            fleet: Fleet::default(),
            id,
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            offset: 0,
            requests: 0,
            given: BTreeMap::new(),
            seen: BTreeMap::new(),
            wrong: vec![],
        };
        sim.tell(None, Event::DispatchCreated(Box::new(created(seed % 5 == 4))));
        let (key, kind, by) = ("p1".into(), PromptKind::Initial, "operator".into());
        sim.tell(None, Event::PromptQueued { key, kind, by, trace: None });
        sim
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }

    fn d(&self) -> Arc<Dispatch> {
        self.fleet.get(&self.id).unwrap().clone()
    }

    fn tell(&mut self, at: Option<Position>, event: Event) {
        let dispatch_id = Some(self.id.clone());
        let entry = Entry { id: String::new(), dispatch_id, at, more: false, event };
        let seq = self.fleet.seq + 1;
        let ts = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seq as i64);
        self.fleet.apply(&Record { v: VERSION, seq, ts, entry });
        for question in self.fleet.questions.iter() {
            let states = self.seen.entry(question.id.clone()).or_default();
            if states.last() != Some(&question.state) {
                states.push(question.state);
            }
        }
    }

    /// Decides an input and makes it durable, unless the daemon is killed before.
    fn feed(&mut self, input: Input) -> bool {
        let decided = decide(&self.d(), input);
        if self.below(12) == 0 {
            return false;
        }
        let meant = !decided.is_empty();
        self.durable(decided);
        self.settle();
        meant
    }

    fn durable(&mut self, decided: Vec<Decided>) {
        decided.into_iter().for_each(|(at, event)| self.tell(at, event));
    }

    fn settle(&mut self) {
        for _ in 0..30 {
            let far = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(100_000);
            let events = advance(&self.d(), far);
            if events.is_empty() {
                return;
            }
            events.into_iter().for_each(|event| self.tell(None, event));
        }
        panic!("it never settles: {:?}", self.d().phase);
    }

    fn at(&mut self) -> Position {
        self.offset += 10;
        Position { epoch: self.d().epoch, offset: self.offset, skip: 0 }
    }

    fn line(&mut self, event: AgentEvent) {
        let at = self.at();
        self.feed(Input::Line { at, events: vec![event] });
    }

    fn step(&mut self) {
        let d = self.d();
        let (at, epoch) = (self.at(), d.epoch);
        match &d.phase {
            Phase::Queued if d.awaits_answer() => self.person(),
            Phase::Queued => {
                self.feed(Input::Admitted(d.ticket()));
            }
            Phase::Starting { .. } => {
                let containment = String::new();
                let spawned = Input::Spawned { at, pid: 2, shim_pid: 1, containment, awake_ms: 0 };
                if self.feed(spawned) && d.session.id.is_none() {
                    let session_id = Some("s1".into());
                    self.line(AgentEvent::Session { model: None, cwd: None, session_id });
                }
            }
            Phase::Working { .. } => match self.below(10) {
                0..=2 => self.shim(&d),
                3 | 4 => self.agent(&d),
                5 | 6 => self.person(),
                7 => {
                    self.feed(Input::HoldOver { epoch });
                    assert!(!can_be_held(&self.d()) || !self.d().asks.held);
                }
                8 => {
                    let cause = ExitCause::Exited;
                    let exit = Exit {
                        code: None,
                        signal: Some(9),
                        cause,
                        stderr_tail: String::new(),
                        left: vec![],
                    };
                    self.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
                }
                _ => self.person(),
            },
            Phase::Gone { .. } | Phase::Backoff { .. } | Phase::Closing { .. } => self.settle(),
            Phase::Finished { .. } => {}
        }
    }

    /// The shim writes what it was given: a prompt, or an answer.
    fn shim(&mut self, d: &Dispatch) {
        let (at, epoch) = (self.at(), d.epoch);
        if let Some(prompt) = d.unwritten() {
            let key = prompt.key.clone();
            self.feed(Input::Written { at: Some(at), epoch, key: key.clone() });
            let prompt =
                AgentEvent::Prompt { text: String::new(), key: Some(key), repeated: false };
            self.line(prompt);
            return;
        }
        let owed = d.asks.answered().find(|(pending, _)| pending.owes_delivery());
        if let Some((pending, _)) = owed {
            let id = pending.id.clone();
            self.feed(Input::AnswerWritten { at, epoch, id });
        }
    }

    /// The agent asks for one of three things, or ends its turn.
    fn agent(&mut self, d: &Dispatch) {
        if d.holds_for_an_answer() || d.owes_an_answer().is_none() {
            return;
        }
        match self.below(5) {
            0 => self.line(AgentEvent::Result(TurnResult {
                ok: true,
                structured: Some(json!({"status": "success", "summary": "done"})),
                ..TurnResult::default()
            })),
            _ => {
                self.requests += 1;
                let command = format!("make {}", self.below(3));
                let ask = Box::new(Ask::tool("Bash", json!({ "command": command })));
                self.line(AgentEvent::Permission { id: format!("r{}", self.requests), ask });
            }
        }
    }

    /// A person answers one of the questions, also one that is closed.
    fn person(&mut self) {
        let all: Vec<_> = self.fleet.questions.iter().cloned().collect();
        if all.is_empty() {
            return;
        }
        let question = all[self.below(all.len() as u64) as usize].clone();
        let d = self.d();
        let mut pendings = d.asks.all();
        let pending = pendings.find(|one| Some(&one.question) == question.request.as_ref());
        let Some(pending) = pending else { return };
        let text = format!("answer {}", self.below(1000));
        let answer = Answer::deny(&text);
        let (id, by, key) = (pending.id.clone(), "operator".to_string(), String::new());
        if self.feed(Input::Answer { id, answer, by, key }) {
            if !question.is_open() {
                self.wrong.push(format!("{} was answered again", question.id));
            }
            self.given.entry(question.id.clone()).or_insert((text, 0)).1 += 1;
        }
    }

    fn check(&self, seed: u64) {
        assert_eq!(self.wrong, [] as [&str; 0], "seed {seed}");
        for (id, (text, times)) in &self.given {
            let question = self.fleet.questions.get(id).unwrap();
            assert_eq!(*times, 1, "seed {seed}: {id} has one answer");
            let answer = question.answer.as_ref().unwrap();
            assert_eq!(answer.text, *text, "seed {seed}: the first answer counts");
        }
        for (id, states) in &self.seen {
            let ranks: Vec<_> = states.iter().map(|state| state.is_final()).collect();
            assert!(
                ranks.iter().filter(|is_final| **is_final).count() <= 1,
                "{seed} {id} {states:?}"
            );
            assert_eq!(states.first(), Some(&State::Open), "seed {seed} {id}");
            assert!(states.len() <= 3, "seed {seed} {id} {states:?}");
        }
        let d = self.d();
        for question in self.fleet.questions.open() {
            let mut waiting = d.asks.unanswered();
            let is_known = waiting.any(|one| Some(&one.question) == question.request.as_ref());
            assert!(is_known && !d.is_finished(), "seed {seed}: nobody waits for {}", question.id);
        }
        let open: Vec<_> = self.fleet.questions.open().map(|one| &one.text).collect();
        let mut texts = open.clone();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), open.len(), "seed {seed}: one open question with a text");
    }
}

fn created(cannot_resume: bool) -> Created {
    let text = |text: &str| text.to_string();
    Created {
        role: text("developer"),
        category: text("coding"),
        project: text("/p"),
        repository: None,
        feature: text("f"),
        title: None,
        spec: None,
        backend: text("rehearsal"),
        model: None,
        model_source: None,
        limits: Limits {
            budget_usd: None,
            max_turns: None,
            timeout_s: None,
            inactivity_timeout_s: 300,
            max_restarts: 3,
        },
        purse: None,
        worktree: None,
        branch: None,
        journal: text("/p/j.md"),
        parent: None,
        by: text("operator"),
        multi_turn: true,
        resumable: !cannot_resume,
        wants_result: true,
        calls: None,
        program: None,
        trace: None,
        ask_on_crash: false,
        permissions: Policy { mode: Mode::Ask, ..Policy::default() },
        confined: false,
        can_ask: true,
        unattended_s: None,
        hold_s: Some(1800),
        mcp: None,
        idle_hold_s: None,
        role_fault: None,
        thread_verbosity: None,
        transcripts: false,
        folds: false,
        api: muleteer_model::admission::api_error::Terms::default(),
        watched: muleteer_model::monitor::Terms::default(),
        fingerprint: text("x"),
    }
}

#[test]
fn every_question_has_one_answer_that_is_delivered_at_most_once() {
    let seeds = std::env::var("MULETEER_SIM_SEEDS").ok().and_then(|text| text.parse().ok());
    let (mut delivered, mut held) = (0, 0);
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let mut sim = Sim::new(seed);
        for _ in 0..120 {
            sim.step();
            held += u32::from(sim.d().awaits_answer());
        }
        sim.check(seed);
        let states = sim.fleet.questions.iter().map(|question| question.state);
        delivered += states.filter(|state| *state == State::Delivered).count();
    }
    assert!(delivered > 100 && held > 100, "{delivered} were delivered, {held} were held");
}

#[test]
fn questions_never_have_ids_that_the_agent_chose() {
    let mut sim = Sim::new(1);
    while !matches!(sim.d().phase, Phase::Working { .. }) {
        sim.step();
    }
    let (ask, at) = (Ask::tool("Bash", json!({"command": "make"})), Some(sim.at()));
    let (request_id, ask) = (sim.id.to_string(), Box::new(ask));
    let requested =
        Event::PermissionRequested { request_id, answered: false, question: false, ask };
    sim.tell(at, requested);
    let ids: Vec<_> = sim.fleet.questions.open().map(|question| question.id.clone()).collect();
    let is_short = |id: &String| {
        id.len() == 8 && id.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'9'))
    };
    assert!(ids.len() == 1 && ids.iter().all(is_short), "{ids:?}");
    assert!(ids[0] != sim.id.as_str(), "a dispatch cannot take the answers of another");
    let pending = sim.d().asks.unanswered().next().unwrap().question.clone();
    assert!(sim.fleet.questions.of_request(&sim.id, &pending).is_some());
}

/// Closes so many other questions that the oldest closed ones are forgotten.
fn close_many(sim: &mut Sim) {
    for n in 0..muleteer_model::question::MOST_CLOSED + 5 {
        let question = format!("other{n}");
        let asked = QuestionAsked {
            question: question.clone(),
            kind: Kind::Approval,
            text: "Start it?".into(),
            options: vec![],
            multi: false,
            free_text: true,
            detail: json!(null),
            default: None,
            deadline: None,
            thread: None,
            shown_in: vec![],
            dispatch: None,
            asked_by: "muleteer".into(),
            subject: String::new(),
        };
        sim.tell(None, Event::QuestionAsked(Box::new(asked)));
        let (state, reason) = (State::Withdrawn, String::new());
        sim.tell(None, Event::QuestionState { question, state, reason });
    }
}

#[test]
fn closed_question_stays_while_its_dispatch_has_the_request() {
    let mut sim = Sim::new(1);
    while !matches!(sim.d().phase, Phase::Working { .. }) {
        sim.step();
    }
    let (ask, at) = (Ask::tool("Bash", json!({"command": "make"})), Some(sim.at()));
    let (request_id, ask) = ("r1".to_string(), Box::new(ask));
    sim.tell(at, Event::PermissionRequested { request_id, answered: false, question: false, ask });
    let id = sim.fleet.questions.open().next().unwrap().id.clone();
    let (id_of_request, answer, by) = ("r1".into(), Answer::deny("no"), "operator".into());
    let decided =
        decide(&sim.d(), Input::Answer { id: id_of_request, answer, by, key: String::new() });
    sim.durable(decided);
    let (at, epoch) = (sim.at(), sim.d().epoch);
    let decided = decide(&sim.d(), Input::AnswerWritten { at, epoch, id: "r1".into() });
    sim.durable(decided);
    assert_eq!(sim.fleet.questions.get(&id).map(|one| one.state), Some(State::Delivered));
    assert!(!sim.d().asks.is_empty(), "the dispatch has the request");
    close_many(&mut sim);
    let own = sim.fleet.questions.iter().filter(|one| one.request.is_some());
    assert_eq!(own.map(|one| one.id.clone()).collect::<Vec<_>>(), [id]);
    let count = sim.fleet.questions.iter().count();
    assert_eq!(count, muleteer_model::question::MOST_CLOSED, "the others are forgotten");
}
