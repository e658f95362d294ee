//! One rule, one test. The simulator tests crashes and interleavings (`tests/life_sim`).

#![allow(clippy::unwrap_used)]
mod acp_handshake;
mod api;
mod asks;
mod crashes;
mod ends;
mod fold;
mod held;
mod kinds;
mod models;
mod prompts;
mod sessions;
mod unasked;
mod usage;

use crate::agent::event::{ModelUsage, TurnError, TurnResult};
use crate::agent::result::ResultStatus;
use crate::agent::transcript::Reading;
use crate::dispatch::life::*;
use crate::dispatch::work::WorkHome;
use crate::dispatch::{Prompt, Stop};
use crate::event::{Created, Limit, Limits};
use serde_json::json;
use std::sync::Arc;

/// A dispatch with a simple daemon: inputs are decided, folded, and settled.
struct Told {
    d: Dispatch,
    now: Timestamp,
    offset: u64,
    log: Vec<Event>,
    inputs: Vec<Input>,
    /// The shim writes prompts to the agent's stdin.
    writes: bool,
}

const ANSWER: &str = r#"{"status":"success","summary":"done"}"#;
const MULTI: (bool, bool) = (true, true);
const ONE_SHOT: (bool, bool) = (false, false);
/// One process for each turn, one session for all of them.
const BY_TURNS: (bool, bool) = (false, true);

impl Told {
    fn new((multi_turn, resumable): (bool, bool)) -> Self {
        let limits = Limits {
            budget_usd: Some(10.0),
            max_turns: None,
            timeout_s: None,
            inactivity_timeout_s: 300,
            max_restarts: 2,
        };
        let text = |text: &str| text.to_string();
        let created = Created {
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
            limits,
            purse: None,
            worktree: None,
            branch: None,
            journal: text("/p/j.md"),
            parent: None,
            by: text("operator"),
            multi_turn,
            resumable,
            wants_result: multi_turn || resumable,
            calls: None,
            program: None,
            trace: None,
            ask_on_crash: false,
            permissions: crate::agent::permission::Policy::default(),
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
            api: crate::admission::api_error::Terms::default(),
            watched: crate::monitor::Terms::default(),
            fingerprint: text("x"),
        };
        let id = DispatchId::try_from("abcd2345".to_string()).unwrap();
        let d = Dispatch::new(id, created, Timestamp::UNIX_EPOCH);
        let mut told = Self {
            d,
            now: Timestamp::UNIX_EPOCH,
            offset: 0,
            log: vec![],
            inputs: vec![],
            writes: true,
        };
        told.fold(
            None,
            Event::PromptQueued {
                key: "p1".into(),
                kind: PromptKind::Initial,
                by: "operator".into(),
                trace: None,
            },
        );
        told
    }

    /// Returns an admitted and spawned dispatch whose first prompt is on its way.
    fn spawned(capabilities: (bool, bool)) -> Self {
        let mut told = Self::new(capabilities);
        told.admit();
        told.spawn();
        told
    }

    /// Returns a multi-turn agent in the middle of its first turn.
    fn busy() -> Self {
        let mut told = Self::spawned(MULTI);
        told.session("s1");
        told.receipt("p1");
        told
    }

    /// Returns an agent with one process for each turn, in the middle of its first turn.
    fn by_turns() -> Self {
        let mut told = Self::spawned(BY_TURNS);
        told.begins("s1");
        told
    }

    /// Prints the lines with which such an agent confirms its prompt.
    fn begins(&mut self, session: &str) {
        self.session(session);
        self.line(vec![AgentEvent::Prompt { text: String::new(), key: None, repeated: false }]);
    }

    fn says(&mut self, text: &str) {
        self.line(vec![AgentEvent::Text { chars: text.chars().count() as u64, text: text.into() }]);
    }

    /// Ends a turn well with this message, and the process with it.
    fn answers(&mut self, text: &str) {
        self.says(text);
        self.result(TurnResult { ok: true, ..TurnResult::default() });
        self.exit(0);
    }

    fn fold(&mut self, at: Option<Position>, event: Event) {
        self.log.push(event.clone());
        let entry = Entry { id: String::new(), dispatch_id: None, at, more: false, event };
        self.d.apply(&Record { v: VERSION, seq: 0, ts: self.now, entry });
    }

    /// Feeds an input and returns whether it decided anything.
    fn feed(&mut self, input: Input) -> bool {
        self.inputs.push(input.clone());
        let decided = decide(&self.d, input);
        let meant = !decided.is_empty();
        for (at, event) in decided {
            self.fold(at, event);
        }
        self.settle();
        meant
    }

    /// Advances until nothing follows; the shim acknowledges each write at once.
    fn settle(&mut self) {
        for _ in 0..20 {
            let mut events = advance(&self.d, self.now);
            let written = self
                .d
                .unwritten()
                .filter(|_| self.writes && matches!(self.d.phase, Phase::Working { .. }));
            events.extend(written.map(|prompt| Event::PromptWritten { key: prompt.key.clone() }));
            if events.is_empty() {
                return;
            }
            for event in events {
                self.fold(None, event);
            }
        }
        panic!("it never settles: {:?}", self.d.phase);
    }

    fn next(&mut self) -> Position {
        self.offset += 10;
        Position { epoch: self.d.epoch, offset: self.offset, skip: 0 }
    }

    fn spawn(&mut self) -> bool {
        let at = self.next();
        self.feed(Input::Spawned {
            at,
            pid: 2,
            shim_pid: 1,
            containment: "none".into(),
            awake_ms: 0,
        })
    }

    fn line(&mut self, events: Vec<AgentEvent>) -> bool {
        let at = self.next();
        self.feed(Input::Line { at, events })
    }

    fn session(&mut self, id: &str) {
        self.line(vec![AgentEvent::Session {
            model: None,
            cwd: None,
            session_id: Some(id.into()),
        }]);
    }

    fn receipt(&mut self, key: &str) {
        self.line(vec![AgentEvent::Prompt {
            text: String::new(),
            key: Some(key.into()),
            repeated: false,
        }]);
    }

    fn result(&mut self, result: TurnResult) {
        self.line(vec![AgentEvent::Result(result)]);
    }

    fn exit(&mut self, code: i32) {
        self.exit_by(Some(code), ExitCause::Exited);
    }

    fn exit_by(&mut self, code: Option<i32>, cause: ExitCause) {
        let (at, epoch) = (self.next(), self.d.epoch);
        self.feed(Input::Exited {
            at,
            epoch,
            exit: Exit { code, signal: None, cause, stderr_tail: String::new(), left: vec![] },
            awake_ms: 0,
        });
    }

    fn admit(&mut self) -> bool {
        let ticket = self.d.ticket();
        self.feed(Input::Admitted(ticket))
    }

    fn shim_lost(&mut self, spawned: bool, clean: bool) {
        let epoch = self.d.epoch;
        self.feed(Input::ShimLost {
            epoch,
            spawned,
            killed: 0,
            clean,
            awake_ms: 0,
            said: String::new(),
            left: vec![],
        });
    }

    fn send(&mut self, key: &str) -> bool {
        self.feed(Input::Send { key: key.into(), by: "operator".into() })
    }

    fn kill(&mut self) {
        self.feed(Input::Kill { reason: "enough".into(), by: "operator".into() });
    }

    /// Waits for the end of the backoff and starts the next attempt.
    fn restarted(&mut self) -> &mut Self {
        let Phase::Backoff { until, .. } = self.d.phase else {
            panic!("no pause: {:?}", self.d.phase)
        };
        self.now = until;
        self.settle();
        self.spawn();
        self
    }

    fn finished(&self) -> FinalState {
        match &self.d.phase {
            Phase::Finished { state } => *state,
            other => panic!("not finished: {other:?}"),
        }
    }

    /// Returns the key of the prompt that the effects would send now.
    fn delivers(&self) -> Option<String> {
        effects(&self.d).into_iter().find_map(|effect| match effect {
            Effect::Prompt { key, .. } => Some(key),
            _ => None,
        })
    }

    fn kind(&self, key: &str) -> PromptKind {
        self.d.prompt(key).unwrap().kind
    }

    fn has(&self, effect: &Effect) -> bool {
        effects(&self.d).contains(effect)
    }

    fn counted(&self) -> usize {
        self.log
            .iter()
            .filter(|event| matches!(event, Event::AttemptFinished { counted: true, .. }))
            .count()
    }

    fn cost(&self) -> f64 {
        self.d.spend.cost_usd
    }
}

fn well() -> TurnResult {
    TurnResult {
        ok: true,
        structured: Some(json!({"status": "success", "summary": "done"})),
        ..TurnResult::default()
    }
}

fn chat() -> TurnResult {
    TurnResult { ok: true, text: Some("I think I am done.".into()), ..TurnResult::default() }
}

fn failed(error: TurnError) -> TurnResult {
    TurnResult { ok: false, error: Some(error), text: Some("no".into()), ..TurnResult::default() }
}

fn cost(model: &str, cost_usd: f64) -> ModelUsage {
    ModelUsage {
        model: model.into(),
        output: (cost_usd * 100.0) as u64,
        cost_usd,
        ..ModelUsage::default()
    }
}

// ---- Turns and results

#[test]
fn a_session_ends_by_its_structured_result() {
    let mut told = Told::busy();
    told.result(well());
    assert!(told.has(&Effect::CloseStdin));
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    assert_eq!(told.d.result.value.unwrap().summary, "done");
}

#[test]
fn text_instead_of_a_result_is_repaired_once_then_partial() {
    let mut told = Told::busy();
    told.result(chat());
    let repair = told.delivers().unwrap();
    assert_eq!(told.kind(&repair), PromptKind::Repair);
    told.receipt(&repair);
    told.result(chat());
    assert_eq!(told.delivers(), None);
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Partial);
    assert!(told.d.reason.unwrap().contains("no result document"));
}

#[test]
fn incomplete_result_is_repaired_with_its_fault() {
    let mut told = Told::busy();
    told.result(TurnResult { structured: Some(json!({"status": "success"})), ..well() });
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Repair);
    assert_eq!((told.d.result.value.as_ref(), told.d.result.faults.len()), (None, 1));
    assert!(told.d.result.faults[0].contains("`summary`"), "{:?}", told.d.result.faults);
}

#[test]
fn repaired_result_counts() {
    let mut told = Told::busy();
    told.result(chat());
    let repair = told.delivers().unwrap();
    told.receipt(&repair);
    told.result(well());
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
}

#[test]
fn result_of_a_later_turn_can_be_repaired() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(chat());
    told.receipt("s1");
    told.result(chat());
    let first = told.delivers().unwrap();
    told.receipt(&first);
    told.send("s2");
    told.result(well());
    // No receipt this time: only the result reveals the turn's number.
    told.result(chat());
    let second = told.delivers().unwrap();
    assert_eq!(told.kind(&second), PromptKind::Repair);
    assert_ne!(first, second);
}

#[test]
fn output_of_an_agent_acknowledges_its_prompt() {
    let mut told = Told::spawned(MULTI);
    told.line(vec![AgentEvent::Text { chars: 2, text: "hm".into() }]);
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Taken);
}

/// If a CLI takes several prompts, such a line may be about any of them.
#[test]
fn a_prompt_without_its_key_is_no_receipt_of_a_session() {
    let mut told = Told::spawned(MULTI);
    assert!(!told.line(vec![AgentEvent::Prompt {
        text: "do it".into(),
        key: None,
        repeated: false
    }]));
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Sent);
}

#[test]
fn a_result_that_names_other_prompts_leaves_one_on_its_way() {
    let mut told = Told::spawned(MULTI);
    told.result(TurnResult { keys: vec!["other".into()], ..well() });
    assert_eq!(told.delivers().as_deref(), Some("p1"));
}
