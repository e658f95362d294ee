//! One rule, one test. Crashes and interleavings are the simulator's (`tests/life_sim.rs`).

#![allow(clippy::unwrap_used)]
mod opening;
mod prompts;

mod api;

use super::*;
use crate::agent_event::{ModelUsage, TurnError, TurnResult};
use crate::event::{Created, Limits};
use crate::result::ResultStatus;
use serde_json::json;
use std::sync::Arc;

/// A dispatch and what a daemon would feed it: inputs are decided, folded, and settled.
struct Told {
    d: Dispatch,
    now: Timestamp,
    offset: u64,
    log: Vec<Event>,
    inputs: Vec<Input>,
}

const MULTI: (bool, bool) = (true, true);
const ONE_SHOT: (bool, bool) = (false, false);
/// A process for each turn, one session for all of them.
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
            feature: text("f"),
            backend: text("rehearsal"),
            model: None,
            model_source: None,
            limits,
            worktree: None,
            branch: None,
            journal: text("/p/j.md"),
            parent: None,
            by: text("operator"),
            multi_turn,
            resumable,
            wants_result: multi_turn || resumable,
            calls: None,
            trace: None,
            ask_on_crash: false,
            permissions: crate::permission::Policy::default(),
            can_ask: true,
            transcripts: false,
            folds: false,
            api: crate::api_error::Terms::default(),
            fingerprint: text("x"),
        };
        let id = DispatchId::try_from("abcd2345".to_string()).unwrap();
        let d = Dispatch::new(id, created, Timestamp::UNIX_EPOCH);
        let mut told = Self { d, now: Timestamp::UNIX_EPOCH, offset: 0, log: vec![], inputs: vec![] };
        told.fold(None, Event::PromptQueued { key: "p1".into(), kind: PromptKind::Initial, by: "operator".into() });
        told
    }

    /// Admitted, spawned, its first prompt on its way.
    fn spawned(capabilities: (bool, bool)) -> Self {
        let mut told = Self::new(capabilities);
        told.admit();
        told.spawn();
        told
    }

    /// A multi-turn agent in the middle of its first turn.
    fn busy() -> Self {
        let mut told = Self::spawned(MULTI);
        told.session("s1");
        told.receipt("p1");
        told
    }

    /// An agent of one process a turn, in the middle of its first.
    fn by_turns() -> Self {
        let mut told = Self::spawned(BY_TURNS);
        told.begins("s1");
        told
    }

    /// What such an agent prints when it has read its prompt.
    fn begins(&mut self, session: &str) {
        self.session(session);
        self.line(vec![AgentEvent::Prompt { text: String::new(), key: None, repeated: false }]);
    }

    fn says(&mut self, text: &str) {
        self.line(vec![AgentEvent::Text { chars: text.chars().count() as u64, text: text.into() }]);
    }

    /// Its turn ends well, having said this, and with it the process.
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

    /// Feeds an input; says whether it meant anything.
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

    fn settle(&mut self) {
        for _ in 0..20 {
            let events = advance(&self.d, self.now);
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
        self.feed(Input::Spawned { at, pid: 2, shim_pid: 1, containment: "none".into(), awake_ms: 0 })
    }

    fn line(&mut self, events: Vec<AgentEvent>) -> bool {
        let at = self.next();
        self.feed(Input::Line { at, events })
    }

    fn session(&mut self, id: &str) {
        self.line(vec![AgentEvent::Session { model: None, cwd: None, session_id: Some(id.into()) }]);
    }

    fn receipt(&mut self, key: &str) {
        self.line(vec![AgentEvent::Prompt { text: String::new(), key: Some(key.into()), repeated: false }]);
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
            exit: Exit { code, signal: None, cause, stderr_tail: String::new() },
            awake_ms: 0,
        });
    }

    fn admit(&mut self) -> bool {
        let ticket = self.d.ticket();
        self.feed(Input::Admitted(ticket))
    }

    fn shim_lost(&mut self, spawned: bool, clean: bool) {
        let epoch = self.d.epoch;
        self.feed(Input::ShimLost { epoch, spawned, killed: 0, clean, awake_ms: 0 });
    }

    fn send(&mut self, key: &str) -> bool {
        self.feed(Input::Send { key: key.into(), by: "operator".into() })
    }

    fn kill(&mut self) {
        self.feed(Input::Kill { reason: "enough".into(), by: "operator".into() });
    }

    /// Waits the pause out and starts the successor.
    fn restarted(&mut self) -> &mut Self {
        let Phase::Backoff { until, .. } = self.d.phase else { panic!("no pause: {:?}", self.d.phase) };
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

    /// The key of the prompt the effects would have delivered now.
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
    TurnResult { ok: true, structured: Some(json!({"status": "success", "summary": "done"})), ..TurnResult::default() }
}

fn chat() -> TurnResult {
    TurnResult { ok: true, text: Some("I think I am done.".into()), ..TurnResult::default() }
}

fn failed(error: TurnError) -> TurnResult {
    TurnResult { ok: false, error: Some(error), text: Some("no".into()), ..TurnResult::default() }
}

fn cost(model: &str, cost_usd: f64) -> ModelUsage {
    ModelUsage { model: model.into(), output: (cost_usd * 100.0) as u64, cost_usd, ..ModelUsage::default() }
}

// ---- One-shot agents

#[test]
fn a_one_shot_agent_is_prompted_and_ends_well() {
    let mut told = Told::spawned(ONE_SHOT);
    assert!(told.has(&Effect::Prompt { key: "p1".into(), close: true }));
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    assert_eq!(told.d.turns, 1);
}

#[test]
fn a_one_shot_agent_that_exits_badly_has_failed_and_says_how() {
    let mut told = Told::spawned(ONE_SHOT);
    told.exit(3);
    assert_eq!((told.finished(), told.d.reason.as_deref()), (FinalState::Failed, Some("exit code 3")));
}

#[test]
fn an_invalid_result_line_fails_a_one_shot_agent_naming_the_fault() {
    let mut told = Told::spawned(ONE_SHOT);
    told.result(TurnResult { structured: Some(json!({"status": "done"})), ..TurnResult::default() });
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().contains("`summary` is missing"));
}

#[test]
fn a_one_shot_agent_whose_shim_died_has_an_unknown_outcome() {
    let mut told = Told::spawned(ONE_SHOT);
    told.shim_lost(true, true);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().starts_with("outcome unknown"));
}

/// Between the pool's word and its reading the dispatch was killed, had ended, and was spoken to again: its place is
/// another's by then.
#[test]
fn a_place_that_was_promised_before_the_end_is_none_after_it() {
    let mut told = Told::new(MULTI);
    let before = told.d.ticket();
    told.kill();
    assert_eq!(told.finished(), FinalState::Killed);
    assert!(told.send("again"));
    assert_eq!(told.d.phase, Phase::Queued);
    assert!(!told.feed(Input::Admitted(before)));
    assert!(told.admit());
}

/// Daemons that begin on a machine of these boots, after one of the boot `one` wrote all that has happened.
fn begin_again(told: &mut Told, boots: &[&str]) {
    let began = |boot: &str| {
        (None, Event::DaemonStarted { pid: 1, generation: 1, version: String::new(), boot_id: boot.into() })
    };
    let id = Some(told.d.id.clone());
    let mut events = vec![began("one"), (id.clone(), Event::DispatchCreated(Box::new((*told.d.created).clone())))];
    events.extend(told.log.iter().map(|event| (id.clone(), event.clone())));
    events.extend(boots.iter().map(|boot| began(boot)));
    let mut fleet = crate::fleet::Fleet::default();
    for (seq, (dispatch_id, event)) in (1..).zip(events) {
        let entry = Entry { id: String::new(), dispatch_id, at: None, more: false, event };
        fleet.apply(&Record { v: VERSION, seq, ts: Timestamp::UNIX_EPOCH, entry });
    }
    told.d = (**fleet.get(&told.d.id).unwrap()).clone();
}

/// A power cut takes what was not synced: that its shim left nothing does not mean that there was none.
#[test]
fn after_a_new_boot_an_attempt_that_left_nothing_may_have_run() {
    for (boots, ran) in [(&["one"][..], false), (&["two", "two"], true)] {
        let mut told = Told::new(ONE_SHOT);
        told.admit();
        assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
        begin_again(&mut told, boots);
        told.shim_lost(false, true);
        let unknown = told.d.reason.as_ref().is_some_and(|reason| reason.starts_with("outcome unknown"));
        assert_eq!(unknown, ran, "{boots:?}: {:?}", told.d.phase);
        // What never ran is tried again.
        assert_eq!(matches!(told.d.phase, Phase::Closing { .. } | Phase::Finished { .. }), ran, "{:?}", told.d.phase);
    }
}

/// A clone is not trusted after a new boot unless somebody has worked in it, and who has is told once what may be lost.
#[test]
fn after_a_new_boot_what_was_written_last_is_in_doubt_until_a_turn_ends() {
    let doubts = |told: &Told| (told.d.unsynced, told.d.distrusts_clone());
    let mut told = Told::new(MULTI);
    told.admit();
    begin_again(&mut told, &["one"]);
    assert_eq!(doubts(&told), (false, false));
    begin_again(&mut told, &["two"]);
    assert_eq!(doubts(&told), (true, true));

    let mut told = Told::spawned(MULTI);
    begin_again(&mut told, &["two"]);
    assert_eq!(doubts(&told), (true, false));
    let turn = |ok| Event::TurnFinished { turn: 1, ok, error: None, status: None, text: String::new() };
    for (ok, doubted) in [(false, true), (true, false)] {
        told.fold(None, turn(ok));
        assert_eq!(doubts(&told), (doubted, false));
    }

    let mut told = Told::spawned(ONE_SHOT);
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    begin_again(&mut told, &["two"]);
    assert_eq!(doubts(&told), (false, false));
}

#[test]
fn a_one_shot_agent_ended_by_its_lease_says_so() {
    let mut told = Told::spawned(ONE_SHOT);
    told.exit_by(Some(143), ExitCause::LeaseExpired);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().contains("lease"));
}

#[test]
fn a_one_shot_agent_takes_no_second_prompt() {
    assert!(!Told::spawned(ONE_SHOT).send("s1"));
}

// ---- Agents of one process a turn

const ANSWER: &str = r#"{"status":"success","summary":"done"}"#;

#[test]
fn its_last_words_are_its_result_and_its_end_needs_no_other() {
    let mut told = Told::spawned(BY_TURNS);
    assert!(told.has(&Effect::Prompt { key: "p1".into(), close: true }));
    told.begins("s1");
    told.says("I look around.");
    told.answers(ANSWER);
    assert_eq!((told.finished(), told.d.turns, told.d.attempts), (FinalState::Success, 1, 1));
    assert_eq!(told.d.result.unwrap().summary, "done");
}

#[test]
fn what_was_said_before_the_turn_is_not_its_answer() {
    let mut told = Told::by_turns();
    told.answers(ANSWER);
    told.send("more");
    told.admit();
    told.spawn();
    told.begins("s1");
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert!(told.d.result.is_none() && told.d.repair_used);
}

#[test]
fn a_result_in_prose_is_mended_by_a_successor_in_the_same_session() {
    let mut told = Told::by_turns();
    told.answers("All done, believe me.");
    assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: Some("s1".into()) }));
    told.spawn();
    let repair = told.delivers().unwrap();
    assert_eq!(told.kind(&repair), PromptKind::Repair);
    told.begins("s1");
    told.answers(ANSWER);
    assert_eq!((told.finished(), told.d.attempts, told.counted()), (FinalState::Success, 2, 0));

    let mut told = Told::by_turns();
    told.answers("All done.");
    told.spawn();
    told.begins("s1");
    told.answers("I said so.");
    assert_eq!(told.finished(), FinalState::Partial);
}

#[test]
fn it_takes_no_second_prompt_and_leaves_what_is_said_to_its_successor() {
    let mut told = Told::by_turns();
    assert!(told.send("more"));
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert_eq!(told.delivers(), None);
    assert!(told.has(&Effect::CloseStdin), "nothing keeps it");
    told.exit(0);
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("more"));
    told.begins("s1");
    told.answers(ANSWER);
    assert_eq!((told.finished(), told.d.turns), (FinalState::Success, 2));
}

/// Found by the fleet's simulator: a clock set back by hours made a restart wait for hours.
#[test]
fn a_clock_that_was_set_back_prolongs_no_pause() {
    let mut told = Told::busy();
    told.now = Timestamp::from_second(100_000).unwrap();
    told.exit(1);
    let attempts = told.d.attempts;
    told.settle();
    assert_eq!(told.d.attempts, attempts, "the pause has begun");
    told.now = Timestamp::from_second(90_000).unwrap();
    told.settle();
    assert_eq!(told.d.attempts, attempts + 1);
}

#[test]
fn a_process_killed_in_its_turn_is_gone_on_with_by_a_counted_restart() {
    for well in [true, false] {
        let mut told = Told::by_turns();
        // An exit without a result is no end of a turn, whatever its code.
        told.exit_by(well.then_some(0), ExitCause::Exited);
        let key = told.restarted().delivers().unwrap();
        assert_eq!((told.kind(&key), told.counted()), (PromptKind::Continue, 1));
        assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: None }), "adopted");
        assert!(
            told.log
                .iter()
                .any(|event| matches!(event, Event::AttemptStarted { resume: Some(s), .. } if s == "s1"))
        );
        told.begins("s1");
        told.answers(ANSWER);
        assert_eq!(told.finished(), FinalState::Success);
    }
    let mut lost = Told::by_turns();
    lost.shim_lost(true, true);
    let key = lost.restarted().delivers().unwrap();
    assert_eq!(lost.kind(&key), PromptKind::Continue);
}

#[test]
fn a_prompt_it_did_not_begin_on_is_sent_again() {
    let mut told = Told::spawned(BY_TURNS);
    told.session("s1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
}

#[test]
fn an_interrupt_ends_its_process_and_a_word_goes_on_in_its_session() {
    let mut told = Told::by_turns();
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    assert!(told.has(&Effect::Interrupt { key: "i1".into() }));
    told.exit(1);
    assert_eq!((told.finished(), told.counted()), (FinalState::Partial, 0));
    told.send("more");
    told.admit();
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("more"));
    told.begins("s1");
    told.answers(ANSWER);
    assert_eq!((told.finished(), told.d.session_id.as_deref()), (FinalState::Success, Some("s1")));
}

#[test]
fn use_told_for_the_session_is_counted_once_across_its_processes() {
    let used = |input: u64| {
        let usage = ModelUsage { input, output: input / 10, ..ModelUsage::default() };
        TurnResult { ok: true, per_session: vec![usage], ..TurnResult::default() }
    };
    let mut told = Told::by_turns();
    told.result(used(200));
    told.exit(0);
    told.spawn();
    told.begins("s1");
    told.says(ANSWER);
    told.result(used(300));
    told.exit(0);
    assert_eq!((told.d.spend.input, told.d.spend.output, told.d.spend.cost_usd), (300, 30, 0.0));
    assert_eq!(told.d.spend.per_model["unknown"].input, 300);
}

#[test]
fn use_told_for_a_session_that_is_begun_anew_is_new() {
    let mut told = Told::by_turns();
    told.d.session_id = None;
    told.d
        .spend
        .session
        .insert("unknown".into(), ModelUsage { input: 500, ..ModelUsage::default() });
    told.exit(1);
    told.restarted();
    told.begins("s2");
    let usage = ModelUsage { input: 100, ..ModelUsage::default() };
    told.result(TurnResult { ok: true, per_session: vec![usage], ..TurnResult::default() });
    assert_eq!(told.d.spend.input, 100);
}

// ---- Turns and results

#[test]
fn a_session_ends_by_its_structured_result() {
    let mut told = Told::busy();
    told.result(well());
    assert!(told.has(&Effect::CloseStdin));
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    assert_eq!(told.d.result.unwrap().summary, "done");
}

#[test]
fn text_where_a_result_is_wanted_is_mended_once_and_then_partial() {
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
fn a_mended_result_counts() {
    let mut told = Told::busy();
    told.result(chat());
    let repair = told.delivers().unwrap();
    told.receipt(&repair);
    told.result(well());
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
}

#[test]
fn a_further_turns_result_may_be_mended_as_well() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(chat());
    told.receipt("s1");
    told.result(chat());
    let first = told.delivers().unwrap();
    told.receipt(&first);
    told.send("s2");
    told.result(well());
    // No receipt this time: the turn's number is known from its result only.
    told.result(chat());
    let second = told.delivers().unwrap();
    assert_eq!(told.kind(&second), PromptKind::Repair);
    assert_ne!(first, second);
}

#[test]
fn an_agent_that_speaks_has_its_prompt() {
    let mut told = Told::spawned(MULTI);
    told.line(vec![AgentEvent::Text { chars: 2, text: "hm".into() }]);
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Taken);
}

#[test]
fn a_result_that_names_other_prompts_leaves_one_on_its_way() {
    let mut told = Told::spawned(MULTI);
    told.result(TurnResult { keys: vec!["other".into()], ..well() });
    assert_eq!(told.delivers().as_deref(), Some("p1"));
}

// ---- Crashes

#[test]
fn a_crash_mid_turn_is_continued_in_the_resumed_session_after_a_pause() {
    let mut told = Told::busy();
    told.exit(1);
    assert_eq!((told.d.restarts, told.counted(), told.d.state()), (1, 1, "starting"));
    let Phase::Backoff { until, .. } = told.d.phase else { panic!() };
    assert!(until > told.now && told.has(&Effect::WakeAt(until)));
    told.restarted();
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Superseded);
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
    assert!(
        told.log
            .iter()
            .any(|e| matches!(e, Event::AttemptStarted { attempt: 2, resume: Some(s), .. } if s == "s1"))
    );
}

#[test]
fn a_crash_before_a_session_is_known_begins_again_with_the_same_prompt() {
    let mut told = Told::spawned(MULTI);
    told.receipt("p1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
}

#[test]
fn a_prompt_not_taken_is_sent_again_under_its_key() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
    assert!(told.d.prompts.iter().all(|p| p.kind == PromptKind::Initial));
}

#[test]
fn a_prompt_its_session_had_already_is_gone_on_with() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.exit(1);
    told.restarted();
    told.line(vec![AgentEvent::Prompt { text: String::new(), key: Some("p1".into()), repeated: true }]);
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Superseded);
}

#[test]
fn a_taken_prompt_is_never_sent_again() {
    let mut told = Told::busy();
    for _ in 0..2 {
        told.exit(1);
        let key = told.restarted().delivers().unwrap();
        assert_ne!(key, "p1");
        told.receipt(&key);
        assert_eq!(told.delivers(), None);
    }
}

#[test]
fn where_a_person_is_to_be_asked_a_crash_blocks_and_a_word_goes_on_in_the_session() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).ask_on_crash = true;
    told.exit(1);
    assert_eq!(told.d.state(), "blocked");
    assert!(told.d.reason.as_deref().is_some_and(|reason| reason.contains("muleteer send")), "{:?}", told.d.reason);
    assert!(told.feed(Input::Send { key: "p2".into(), by: "operator".into() }));
    told.admit();
    assert!(matches!(told.log.iter().rev().find(|event| matches!(event, Event::AttemptStarted { .. })),
        Some(Event::AttemptStarted { resume: Some(session), .. }) if session == "s1"));
}

#[test]
fn a_program_that_cannot_be_executed_fails_at_once_though_its_process_was_there() {
    for capabilities in [MULTI, ONE_SHOT] {
        let mut told = Told::spawned(capabilities);
        let error = "no such file".to_string();
        assert!(told.feed(Input::StartFailed { at: None, epoch: told.d.epoch, error, permanent: true }));
        assert_eq!(told.finished(), FinalState::Failed);
        assert_eq!(told.d.reason.as_deref(), Some("cannot start: no such file"));
    }
}

#[test]
fn after_max_restarts_it_has_failed() {
    let mut told = Told::busy();
    for _ in 0..2 {
        told.exit(1);
        told.restarted();
    }
    told.exit(1);
    assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 2));
    assert_eq!(told.d.reason.unwrap(), "exit code 1 (after 2 restarts)");
}

#[test]
fn a_dispatch_that_failed_with_words_unsaid_does_not_begin_again_by_itself() {
    let mut told = Told::busy();
    told.send("s1");
    for _ in 0..2 {
        told.exit(1);
        let key = told.restarted().delivers().unwrap();
        told.receipt(&key);
    }
    told.exit(1);
    assert_eq!(told.finished(), FinalState::Failed);
}

#[test]
fn a_turn_that_succeeds_resets_the_count() {
    let mut told = Told::busy();
    told.exit(1);
    let key = told.restarted().delivers().unwrap();
    told.receipt(&key);
    told.send("s1");
    told.result(well());
    assert_eq!(told.d.restarts, 0);
}

#[test]
fn an_agent_never_released_is_started_again_uncounted_and_not_for_ever() {
    let mut told = Told::new(MULTI);
    told.admit();
    for epoch in 1..MAX_START_FAILURES {
        told.shim_lost(false, true);
        assert_eq!(told.d.phase, Phase::Starting { attempt: 1, epoch: epoch + 1 });
    }
    told.shim_lost(false, true);
    assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
}

#[test]
fn what_cannot_start_fails_at_once() {
    let mut told = Told::new(MULTI);
    told.admit();
    told.feed(Input::StartFailed { at: None, epoch: 1, error: "no such program".into(), permanent: true });
    assert_eq!((told.finished(), told.d.attempts), (FinalState::Failed, 1));
}

#[test]
fn a_further_turn_that_cannot_start_fails_at_once_too() {
    let mut told = Told::busy();
    told.result(well());
    told.exit(0);
    told.send("s1");
    told.admit();
    told.feed(Input::StartFailed { at: None, epoch: 2, error: "no such program".into(), permanent: true });
    assert_eq!(told.finished(), FinalState::Failed);
}

#[test]
fn a_lost_shim_of_a_resumable_agent_is_a_crash() {
    let mut told = Told::busy();
    told.shim_lost(true, true);
    assert_eq!(told.counted(), 1);
    let key = told.restarted().delivers().unwrap();
    assert_eq!(told.kind(&key), PromptKind::Continue);
}

#[test]
fn what_a_dead_shim_left_and_nobody_could_end_blocks() {
    let mut told = Told::busy();
    told.shim_lost(true, false);
    assert_eq!(told.finished(), FinalState::Blocked);
    assert!(told.log.iter().any(|event| matches!(event, Event::AttemptFinished { .. })));
}

#[test]
fn an_expired_lease_is_not_counted() {
    let mut told = Told::busy();
    told.exit_by(Some(143), ExitCause::LeaseExpired);
    assert_eq!((told.counted(), told.d.restarts), (0, 0));
    // Without a pause, the successor is on its way already.
    assert_eq!(told.d.phase, Phase::Starting { attempt: 2, epoch: 2 });
}

#[test]
fn the_work_of_a_turn_that_ended_counts_however_its_process_ended() {
    for cause in [ExitCause::ShimLost, ExitCause::ShimPolicy, ExitCause::LeaseExpired, ExitCause::Terminated] {
        let mut told = Told::busy();
        told.result(well());
        told.exit_by(None, cause);
        assert_eq!(told.finished(), FinalState::Success, "{cause:?}");
    }
}

// ---- Model API errors and limits

#[test]
fn a_refused_key_is_not_tried_again() {
    let mut told = Told::busy();
    told.result(failed(TurnError::Auth));
    assert!(told.has(&Effect::CloseStdin));
    told.exit(1);
    assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
}

#[test]
fn an_api_error_is_tried_again_counted_and_gone_on_with() {
    let mut told = Told::busy();
    for count in 1..=2 {
        told.result(failed(TurnError::ApiError));
        told.exit(1);
        assert_eq!(told.counted(), count);
        let key = told.restarted().delivers().expect("something to say");
        assert_eq!(told.kind(&key), PromptKind::Continue);
        told.receipt(&key);
    }
    told.result(failed(TurnError::ApiError));
    told.exit(1);
    assert_eq!(told.finished(), FinalState::Failed);
}

#[test]
fn beyond_its_budget_an_agent_is_ended_and_its_work_is_partial() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(TurnResult { per_model: vec![cost("m", 10.5)], ..well() });
    assert_eq!(told.delivers(), None, "no further prompt beyond the limit");
    let (limit, detail) = limit_reached(&told.d).unwrap();
    told.feed(Input::Limit { limit, detail });
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Partial);
    assert!(told.d.reason.unwrap().starts_with("budget limit reached: $10.5"));
}

#[test]
fn a_budget_that_the_last_turn_broke_stops_nothing() {
    let mut told = Told::busy();
    told.result(TurnResult { per_model: vec![cost("m", 10.5)], ..well() });
    assert_eq!(limit_reached(&told.d), None);
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
}

// ---- Stall

fn stalled(epoch: u32) -> Input {
    Input::Stalled { epoch, silent_s: 300, evidence: "no output".into() }
}

#[test]
fn a_stalled_agent_is_ended_and_its_session_goes_on_when_somebody_speaks() {
    let mut told = Told::busy();
    assert!(told.feed(stalled(1)));
    assert!(!told.feed(stalled(1)), "once is enough");
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Stalled);
    assert_eq!(told.d.reason.as_deref(), Some("no sign of life for 5m: no output"));
    let timed_out = |event: &Event| matches!(event, Event::AttemptFinished { outcome: Outcome::Timeout, .. });
    assert!(told.log.iter().any(timed_out));
    told.send("s1");
    told.admit();
    assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: Some("s1".into()) }));
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"), "what hung is not taken up again unasked");
}

#[test]
fn only_who_owes_an_answer_can_stall() {
    let mut told = Told::spawned(MULTI);
    assert!(!told.feed(stalled(0)), "that was another process");
    let mut mute = Told::spawned(MULTI);
    assert!(mute.feed(stalled(1)), "it never took its prompt");
    told.session("s1");
    told.receipt("p1");
    told.result(well());
    assert!(!told.feed(stalled(1)), "its turn is over");
    let mut one_shot = Told::spawned(ONE_SHOT);
    assert!(one_shot.feed(stalled(1)));
    one_shot.exit_by(None, ExitCause::Terminated);
    assert_eq!(one_shot.finished(), FinalState::Stalled);
    let mut queued = Told::new(MULTI);
    assert!(!queued.feed(stalled(0)));
}

// ---- Kill

#[test]
fn a_kill_ends_a_dispatch_in_every_phase_and_it_stays_dead() {
    let started = |told: &mut Told| {
        told.admit();
    };
    let mut queued = Told::new(MULTI);
    queued.kill();
    assert_eq!(queued.finished(), FinalState::Killed);
    assert!(!queued.admit());

    let mut starting = Told::new(MULTI);
    started(&mut starting);
    starting.kill();
    starting.spawn();
    assert!(starting.has(&Effect::Terminate));
    starting.exit_by(None, ExitCause::Terminated);
    assert_eq!(starting.finished(), FinalState::Killed);

    let mut working = Told::busy();
    working.kill();
    working.send("s1");
    assert_eq!((working.delivers(), working.has(&Effect::Terminate)), (None, true));
    working.exit_by(None, ExitCause::Terminated);
    assert_eq!(working.finished(), FinalState::Killed);

    let mut pausing = Told::busy();
    pausing.exit(1);
    pausing.kill();
    assert_eq!(pausing.finished(), FinalState::Killed);
    pausing.now = pausing.now.checked_add(jiff::SignedDuration::from_hours(1)).unwrap();
    pausing.settle();
    assert_eq!(pausing.finished(), FinalState::Killed);
}

#[test]
fn admission_comes_too_late_for_the_killed() {
    let mut told = Told::new(MULTI);
    told.fold(None, Event::KillRequested { reason: "no".into(), by: "operator".into() });
    assert!(decide(&told.d, Input::Admitted(told.d.ticket())).is_empty());
}

#[test]
fn who_speaks_to_the_killed_does_not_restart_the_killed_work() {
    let mut told = Told::busy();
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert!(told.send("s1"));
    told.admit();
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"));
}

#[test]
fn a_kill_while_it_closes_overrides_a_word_said_then() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).worktree = Some("/w".into());
    told.result(well());
    told.exit(0);
    assert!(told.has(&Effect::FetchWork));
    told.send("s1");
    told.kill();
    told.feed(Input::WorkFetched { branch: "b".into(), commit: None });
    assert!(told.d.is_finished());
}

// ---- Interrupt and send

#[test]
fn an_interrupted_session_waits_and_goes_on_in_the_same_process() {
    let mut told = Told::busy();
    assert!(told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
    assert!(told.has(&Effect::Interrupt { key: "i1".into() }));
    told.result(failed(TurnError::Interrupted));
    assert_eq!((told.d.state(), told.has(&Effect::CloseStdin)), ("waiting", false));
    told.send("s1");
    assert_eq!((told.d.state(), told.delivers().as_deref(), told.d.epoch), ("running", Some("s1"), 1));
}

#[test]
fn an_interrupt_means_nothing_between_turns() {
    let mut told = Told::spawned(MULTI);
    assert!(!told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
}

#[test]
fn an_interrupted_agent_that_dies_of_it_is_not_made_to_go_on() {
    let mut told = Told::busy();
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    told.exit(130);
    assert_eq!(told.finished(), FinalState::Partial);
    let mut told = Told::busy();
    told.send("s1");
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    told.exit(130);
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"));
    assert_eq!(told.counted(), 0);
}

#[test]
fn what_is_said_while_it_is_busy_is_said_after_the_turn() {
    let mut told = Told::busy();
    told.send("s1");
    assert_eq!(told.delivers(), None);
    told.result(well());
    assert_eq!((told.delivers().as_deref(), told.d.epoch), (Some("s1"), 1));
    assert!(!told.has(&Effect::CloseStdin));
}

#[test]
fn what_is_said_while_it_leaves_is_said_to_its_successor() {
    let mut told = Told::busy();
    told.result(well());
    told.send("s1");
    assert_eq!((told.delivers(), told.has(&Effect::CloseStdin)), (None, true));
    told.exit(0);
    told.spawn();
    assert_eq!((told.delivers().as_deref(), told.d.epoch, told.counted()), (Some("s1"), 2, 0));
    assert_eq!(told.d.result, None, "there is more to do");
}

#[test]
fn a_send_after_the_end_begins_again_in_the_same_session() {
    let mut told = Told::busy();
    told.result(well());
    told.exit(0);
    assert!(told.send("s1"));
    assert_eq!((told.d.state(), told.has(&Effect::Admit)), ("queued", true));
    told.admit();
    assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: Some("s1".into()) }));
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"));
    assert_eq!(told.d.attempts, 2);
}

#[test]
fn a_word_in_the_moment_of_the_end_is_not_lost() {
    // While the work is brought home.
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).worktree = Some("/w".into());
    told.result(well());
    told.exit(0);
    told.send("s1");
    told.feed(Input::WorkFetched { branch: "b".into(), commit: None });
    assert_eq!(told.d.state(), "queued");

    // Durable just before a decision that did not know of it.
    let mut told = Told::busy();
    told.result(well());
    let (at, epoch) = (told.next(), told.d.epoch);
    let exit = Exit { code: Some(0), signal: None, cause: ExitCause::Exited, stderr_tail: String::new() };
    for (at, event) in decide(&told.d, Input::Exited { at, epoch, exit, awake_ms: 0 }) {
        told.fold(at, event);
    }
    let overlooked = advance(&told.d, told.now);
    told.fold(None, Event::PromptQueued { key: "s1".into(), kind: PromptKind::Send, by: "operator".into() });
    for event in overlooked {
        told.fold(None, event);
    }
    told.settle();
    assert_eq!(told.d.state(), "queued");
}

#[test]
fn the_result_of_an_earlier_turn_is_not_that_of_a_later_failure() {
    let mut told = Told::busy();
    told.result(well());
    told.exit(0);
    told.send("s1");
    told.admit();
    told.spawn();
    told.receipt("s1");
    told.result(failed(TurnError::Auth));
    told.exit(1);
    assert_eq!(told.finished(), FinalState::Failed);
    assert_eq!(told.d.result.unwrap().status, ResultStatus::Failed);
}

// ---- Books

#[test]
fn cumulative_cost_is_counted_once_and_anew_for_each_process() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(TurnResult { per_model: vec![cost("a", 1.0)], ..well() });
    told.receipt("s1");
    told.send("s2");
    told.result(TurnResult { per_model: vec![cost("a", 1.5), cost("b", 0.25)], ..well() });
    told.receipt("s2");
    assert_eq!(told.cost(), 1.75);
    told.exit(1);
    let key = told.restarted().delivers().unwrap();
    told.receipt(&key);
    told.result(TurnResult { per_model: vec![cost("a", 0.5)], ..well() });
    assert_eq!((told.cost(), told.d.spend.per_model["a"].cost_usd, told.d.spend.output), (2.25, 2.0, 225));
}

#[test]
fn a_cli_that_tells_what_a_turn_used_is_believed() {
    let mut told = Told::busy();
    told.send("s1");
    let turn = |used: f64, total: f64| TurnResult {
        per_model: vec![cost("a", total)],
        per_model_turn: vec![cost("a", used)],
        cost_usd: Some(total),
        ..well()
    };
    // Totals that go on from a resumed session's.
    told.result(turn(1.0, 8.0));
    told.receipt("s1");
    told.result(turn(0.5, 8.5));
    assert_eq!(told.cost(), 1.5);
}

#[test]
fn a_total_alone_is_counted_by_what_it_grew() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(TurnResult { cost_usd: Some(1.0), ..well() });
    told.receipt("s1");
    told.result(TurnResult { cost_usd: Some(1.25), ..well() });
    assert_eq!(told.cost(), 1.25);
}

#[test]
fn use_that_the_result_tells_again_is_not_counted_twice() {
    let mut told = Told::busy();
    let usage = |call: Option<&str>| AgentEvent::Usage {
        total_usd: None,
        input: 1,
        output: 1,
        cost_usd: 1.0,
        cache_read: 0,
        cache_write: 0,
        model: Some("a".into()),
        call: call.map(String::from),
    };
    assert!(!told.line(vec![usage(Some("msg"))]));
    assert!(told.line(vec![usage(None)]));
    assert_eq!(told.cost(), 1.0);
}

#[test]
fn claims_beyond_all_sense_leave_the_books_readable() {
    let mut told = Told::busy();
    for claim in [f64::NAN, f64::INFINITY, -3.0, 1e300] {
        told.result(TurnResult { per_model_turn: vec![cost("a", claim)], ..chat() });
    }
    assert!(told.cost().is_finite() && told.cost() >= 0.0);
}

// ---- Reading again

#[test]
fn what_was_read_once_decides_nothing_again() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.line(vec![
        AgentEvent::Text { chars: 2, text: "hm".into() },
        AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input: json!({"command": "ls"}) },
    ]);
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    told.result(TurnResult { per_model_turn: vec![cost("a", 1.0)], ..failed(TurnError::Interrupted) });
    told.send("s1");
    told.receipt("s1");
    told.result(well());
    told.exit(1);
    let inputs = std::mem::take(&mut told.inputs);
    let before = told.d.clone();
    for input in inputs {
        assert!(!told.feed(input.clone()), "{input:?}");
    }
    assert_eq!(told.d, before);
}

#[test]
fn every_event_of_a_line_is_decided() {
    let mut told = Told::spawned(MULTI);
    told.line(vec![AgentEvent::Text { chars: 2, text: "hm".into() }, AgentEvent::Result(well())]);
    assert_eq!((told.d.turns, told.d.prompt("p1").unwrap().state), (1, PromptState::Done));
    assert_eq!(told.log.iter().filter(|event| matches!(event, Event::TurnStarted { .. })).count(), 1);
}

#[test]
fn an_earlier_epochs_news_is_no_news() {
    let mut told = Told::busy();
    told.exit(1);
    told.restarted();
    let old = Position { epoch: 1, offset: 99_999, skip: 0 };
    assert!(!told.feed(Input::Line { at: old, events: vec![AgentEvent::Result(well())] }));
    let exit = Exit { code: Some(0), signal: None, cause: ExitCause::Exited, stderr_tail: String::new() };
    assert!(!told.feed(Input::Exited { at: old, epoch: 1, exit, awake_ms: 0 }));
    assert!(!told.feed(Input::ShimLost { epoch: 1, spawned: true, killed: 0, clean: true, awake_ms: 0 }));
}

#[test]
fn our_own_keys_are_stable_distinct_uuids() {
    let id = DispatchId::try_from("abcd2345".to_string()).unwrap();
    let key = prompt_key(&id, PromptKind::Continue, 2);
    assert_eq!(key, prompt_key(&id, PromptKind::Continue, 2));
    assert_ne!(key, prompt_key(&id, PromptKind::Repair, 2));
    assert_eq!(key.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
}
