//! Sessions that are opened by calls.

use crate::agent::acp_handshake::{Call, CallAnswer, Calls, LOAD, MODE, NEW};
use crate::agent::permission::{Mode, Policy};
use crate::agent::session_mode::Modes;
use crate::dispatch::life::tests::*;
use std::sync::Arc;

impl Told {
    /// Returns an agent that speaks by calls and was just started.
    pub(super) fn called() -> Self {
        let mut told = Self::new(MULTI);
        told.d.traits.agents = &crate::agent::capability::ACP;
        Arc::make_mut(&mut told.d.created).calls = Some(Calls { timeout_s: 60 });
        told.admit();
        told.spawn();
        told
    }

    pub(super) fn calls(&self) -> Option<Call> {
        effects(&self.d).into_iter().find_map(|effect| match effect {
            Effect::Call(call) => Some(call),
            _ => None,
        })
    }

    pub(super) fn greets(&mut self, loads: bool) {
        self.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted { agent: "a 1".into(), loads })]);
    }

    pub(super) fn opens(&mut self, session: Option<&str>, model_by: Option<&str>) {
        self.line(vec![AgentEvent::CallAnswer(CallAnswer::Opened {
            session_id: session.map(str::to_string),
            model: Some("small".into()),
            model_by: model_by.map(str::to_string),
            modes: None,
        })]);
    }

    pub(super) fn on_its_way(&self) -> Option<String> {
        effects(&self.d).into_iter().find_map(|effect| match effect {
            Effect::Prompt { key, .. } => Some(key),
            _ => None,
        })
    }

    /// Returns an agent whose session is open and whose process died while the first prompt was on
    /// its way.
    fn dies_with_a_prompt_on_its_way() -> Self {
        let mut told = Self::called();
        told.greets(true);
        told.opens(Some("s1"), None);
        assert_eq!(told.on_its_way().as_deref(), Some("p1"));
        told.exit_by(None, ExitCause::ShimLost);
        told.comes_back();
        told
    }

    fn comes_back(&mut self) {
        if let Phase::Backoff { until, .. } = self.d.phase {
            self.now = until;
            self.settle();
        }
        self.spawn();
    }
}

fn opening(load: Option<&str>) -> Option<Call> {
    let (load, permissions) = (load.map(str::to_string), Policy::default());
    Some(Call::Open { load, cwd: "/p".into(), agent: "a 1".into(), permissions })
}

#[test]
fn each_call_waits_for_the_answer_before_it_and_the_prompt_for_all() {
    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).model = Some("large".into());
    assert_eq!((told.calls(), told.on_its_way()), (Some(Call::Greet), None));
    told.opens(Some("early"), None);
    assert_eq!(told.calls(), Some(Call::Greet), "an answer out of turn is none");
    told.greets(true);
    assert_eq!(told.calls(), opening(None));
    told.opens(Some("s1"), Some("option model"));
    assert_eq!(
        told.calls(),
        Some(Call::SetModel { by: "option model".into(), model: "large".into() })
    );
    assert_eq!(told.on_its_way(), None);
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::ModelSet { model: None })]);
    assert_eq!((told.calls(), told.on_its_way().as_deref()), (None, Some("p1")));
    assert_eq!(told.d.session.model.as_deref(), Some("large"));
}

#[test]
fn a_call_that_is_overdue_ends_the_process_and_is_tried_again_so_many_times() {
    let mut told = Told::called();
    let (epoch, call, limit_s) = awaited(&told.d).unwrap();
    assert_eq!((call, limit_s), ("initialize", 60));
    let overdue = |call: &str, epoch| Input::CallOverdue { epoch, call: call.into(), waited_s: 60 };
    assert!(
        !told.feed(overdue(NEW, epoch)) && !told.feed(overdue(call, epoch + 1)),
        "not what is waited for"
    );
    assert!(told.feed(overdue(call, epoch)) && awaited(&told.d).is_none());
    assert!(effects(&told.d).contains(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert!(matches!(told.d.phase, Phase::Backoff { .. }) && told.d.retries.restarts == 1);
    for _ in 0..2 {
        told.comes_back();
        told.feed(overdue(call, told.d.epoch));
        told.exit_by(None, ExitCause::Terminated);
    }
    assert_eq!(told.d.state(), "failed");
    assert!(
        told.d.reason.as_deref().unwrap().starts_with("initialize: no answer within 1m"),
        "{:?}",
        told.d.reason
    );
}

#[test]
fn session_history_is_ignored_except_for_accepted_prompts() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.greets(true);
    assert_eq!(told.calls(), opening(Some("s1")));
    let before = told.log.len();
    told.says("what it said long ago");
    told.line(vec![AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input: json!({}) }]);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert_eq!(told.log.len(), before, "{:?}", &told.log[before..]);
    told.line(vec![AgentEvent::Prompt {
        text: "x".into(),
        key: Some("p1".into()),
        repeated: false,
    }]);
    told.opens(None, None);
    let going_on = told.on_its_way().unwrap();
    assert_eq!(told.d.prompt(&going_on).unwrap().kind, PromptKind::Continue);
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Superseded);
}

/// Gemini reports the past of a session after it has answered that the session is loaded.
#[test]
fn replayed_history_before_the_prompt_acknowledges_nothing() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.writes = false;
    told.greets(true);
    told.opens(None, None);
    assert_eq!(told.on_its_way().as_deref(), Some("p1"));
    let before = told.log.len();
    told.says("what it said long ago");
    told.line(vec![AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input: json!({}) }]);
    told.line(vec![AgentEvent::ToolResult {
        id: "t".into(),
        ok: true,
        text: String::new(),
        exit_code: None,
    }]);
    told.feed(Input::Speaks { epoch: told.d.epoch });
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert_eq!(told.log.len(), before, "{:?}", &told.log[before..]);
    assert_eq!(told.on_its_way().as_deref(), Some("p1"), "it is still to be written");
    let (epoch, at) = (told.d.epoch, told.next());
    let written = |key: &str, epoch| Input::Written { at: Some(at), epoch, key: key.into() };
    assert!(!told.feed(written("other", epoch)) && !told.feed(written("p1", epoch + 1)));
    assert!(told.feed(written("p1", epoch)) && !told.feed(written("p1", epoch)), "once");
    told.says("what it says now");
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Taken);
}

/// For every protocol: output before the write of a prompt is not about that prompt.
#[test]
fn output_before_the_write_acknowledges_no_prompt() {
    let mut told = Told::busy();
    told.writes = false;
    told.send("p2");
    told.result(chat());
    assert_eq!(told.delivers().as_deref(), Some("p2"));
    told.says("a background task has ended");
    told.result(chat());
    assert_eq!(
        told.delivers().as_deref(),
        Some("p2"),
        "nobody has been given it: {:?}",
        told.d.prompts
    );
    let epoch = told.d.epoch;
    told.feed(Input::Written { at: None, epoch, key: "p2".into() });
    told.says("on it");
    assert_eq!(told.d.prompt("p2").unwrap().state, PromptState::Taken);
}

pub(super) fn cancelled() -> TurnResult {
    TurnResult {
        ok: false,
        error: Some(TurnError::Interrupted),
        keys: vec!["p1".into()],
        ..TurnResult::default()
    }
}

pub(super) fn in_a_turn() -> Told {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    told.says("I begin");
    told
}

#[test]
fn turn_cancelled_without_an_interrupt_fails() {
    let mut told = in_a_turn();
    told.result(cancelled());
    assert_ne!(told.d.state(), "waiting");
    told.exit(0);
    assert!(
        matches!(told.d.phase, Phase::Backoff { .. }) && told.d.retries.restarts == 1,
        "{:?}",
        told.d.phase
    );
    assert!(
        told.d.reason.as_deref().unwrap().contains("although nothing interrupted it"),
        "{:?}",
        told.d.reason
    );
}

#[test]
fn cancelled_turn_waits_for_a_message() {
    let mut told = in_a_turn();
    told.feed(Input::Interrupt { key: "i".into(), by: "operator".into() });
    told.result(cancelled());
    assert_eq!(told.d.state(), "waiting");

    let mut told = in_a_turn();
    Arc::make_mut(&mut told.d.created).permissions.mode = Mode::Ask;
    let ask = || Box::new(crate::agent::ask::Ask::tool("Bash", json!({"command": "touch one"})));
    told.line(vec![AgentEvent::Permission { id: "r".into(), ask: ask() }]);
    let answer = crate::agent::ask::Answer::deny("");
    told.feed(Input::Answer { id: "r".into(), answer, by: "operator".into(), key: String::new() });
    told.result(cancelled());
    assert_eq!(told.d.state(), "waiting", "a person said no, and is asked how to go on");

    let mut told = in_a_turn();
    Arc::make_mut(&mut told.d.created).permissions.mode = Mode::Deny;
    told.line(vec![AgentEvent::Permission { id: "r".into(), ask: ask() }]);
    told.result(cancelled());
    assert_ne!(told.d.state(), "waiting", "the policy said no, and nobody was asked");
}

/// After a second load, Codex uses a model of its own choice: the call that set the requested model
/// came before it.
#[test]
fn session_with_history_before_the_answer_loads_once() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.greets(true);
    let loading = |told: &Told| {
        let call = effects(&told.d).into_iter().find(|effect| matches!(effect, Effect::Call(_)));
        call.map(|call| call.key(&told.d))
    };
    let (before, turns) = (loading(&told), told.d.turns);
    assert!(before.is_some());
    told.line(vec![AgentEvent::Prompt {
        text: "x".into(),
        key: Some("p1".into()),
        repeated: false,
    }]);
    assert!(told.d.turns > turns);
    assert_eq!(loading(&told), before);
    told.opens(None, None);
    told.exit_by(None, ExitCause::ShimLost);
    told.comes_back();
    told.greets(true);
    assert!(
        loading(&told).is_some_and(|next| Some(next) != before),
        "another process is asked again"
    );
}

#[test]
fn prompt_missing_from_the_history_was_not_taken() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.greets(true);
    told.opens(None, None);
    assert_eq!(told.on_its_way().as_deref(), Some("p1"));
}

#[test]
fn agent_without_session_load_gets_no_prompt_twice() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.greets(false);
    assert!(matches!(
        told.d.process().call_failed.as_ref(),
        Some(failure) if failure.call == LOAD && failure.for_good
    ));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!((told.d.state(), told.on_its_way()), ("blocked", None));
}

#[test]
fn an_interrupt_that_is_not_heeded_ends_the_process() {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    let epoch = told.d.epoch;
    assert!(
        told.feed(Input::Speaks { epoch }) && !told.feed(Input::Speaks { epoch }),
        "one turn begins"
    );
    assert_eq!(awaited(&told.d), None);
    told.feed(Input::Interrupt { key: "i".into(), by: "operator".into() });
    let (_, call, limit_s) = awaited(&told.d).unwrap();
    assert_eq!((call, limit_s), ("interrupt", 30));
    told.feed(Input::CallOverdue { epoch, call: call.into(), waited_s: 30 });
    assert!(effects(&told.d).contains(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.d.state(), "partial");
    told.feed(Input::Send { key: "p2".into(), by: "operator".into() });
    assert_eq!(told.d.session.id.as_deref(), Some("s1"), "a further turn loads it");
}

#[test]
fn agent_that_ignores_the_end_of_input_is_terminated_and_keeps_its_result() {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    let epoch = told.d.epoch;
    told.feed(Input::Speaks { epoch });
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert!(effects(&told.d).contains(&Effect::CloseStdin));
    let (_, call, limit_s) = awaited(&told.d).unwrap();
    assert_eq!((call, limit_s), ("end of input", 10));
    told.feed(Input::CallOverdue { epoch, call: call.into(), waited_s: 10 });
    assert!(effects(&told.d).contains(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Success);
}

/// Some processes continue the count of a session's cost, some begin at zero.
#[test]
fn session_cost_is_counted_once_in_every_form() {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    let total = |usd: f64| AgentEvent::Usage {
        input: 1,
        output: 0,
        cost_usd: 0.0,
        cache_read: 0,
        cache_write: 0,
        model: None,
        call: Some("context".into()),
        total_usd: Some(usd),
    };
    told.feed(Input::Speaks { epoch: told.d.epoch });
    for usd in [0.10, 0.10, 0.25] {
        told.line(vec![total(usd)]);
    }
    assert!((told.d.spend.cost_usd - 0.25).abs() < 1e-9);
    told.exit_by(None, ExitCause::ShimLost);
    told.comes_back();
    told.greets(true);
    told.opens(None, None);
    told.line(vec![total(0.05)]);
    told.line(vec![total(0.30)]);
    assert!((told.d.spend.cost_usd - 0.55).abs() < 1e-9, "begun anew: {:?}", told.d.spend);
    told.exit_by(None, ExitCause::ShimLost);
    told.comes_back();
    told.greets(true);
    told.opens(None, None);
    told.line(vec![total(0.60)]);
    assert!((told.d.spend.cost_usd - 0.60).abs() < 1e-9, "gone on: {:?}", told.d.spend);
}

/// The real codex-acp, killed in the middle of a turn, showed this: it names the model that it had,
/// and uses another.
#[test]
fn model_is_set_again_on_a_loaded_session() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    Arc::make_mut(&mut told.d.created).model = Some("small".into());
    told.greets(true);
    told.opens(None, Some("option model"));
    assert_eq!(
        told.calls(),
        Some(Call::SetModel { by: "option model".into(), model: "small".into() })
    );
}

#[test]
fn model_is_set_only_if_requested_and_different() {
    let mut told = Told::dies_with_a_prompt_on_its_way();
    told.greets(true);
    told.opens(None, Some("option model"));
    let sets_none = |told: &Told| told.calls().is_none() && told.on_its_way().is_some();
    assert!(sets_none(&told), "no model was asked for");
    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).model = Some("small".into());
    told.greets(true);
    told.opens(Some("s1"), Some("option model"));
    assert!(sets_none(&told), "it is the one it has");
}

/// A refused call may succeed in another process. It never succeeds if the agent rejects the
/// setting or has no key.
#[test]
fn a_call_that_is_refused_ends_the_process() {
    let refused = |call: &str, auth| {
        let (call, message) = (call.to_string(), "no such thing".to_string());
        vec![AgentEvent::CallAnswer(CallAnswer::Refused { call, message, auth, missing: false })]
    };
    for (auth, state) in [(false, "starting"), (true, "failed")] {
        let mut told = Told::called();
        told.greets(true);
        told.line(refused(NEW, auth));
        assert!(effects(&told.d).contains(&Effect::Terminate), "auth: {auth}");
        told.exit_by(None, ExitCause::Terminated);
        assert_eq!(told.d.state(), state, "auth: {auth}");
        let reason = told.log.iter().rev().find_map(|event| match event {
            Event::AttemptFinished { reason, .. } => Some(reason.as_str()),
            _ => None,
        });
        assert_eq!(reason, Some("session/new: it answered with an error: no such thing"));
    }
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    let before = told.log.len();
    told.line(refused(NEW, false));
    assert_eq!(&told.log[before..], [], "nothing was asked");
}

#[test]
fn session_id_is_complete_or_absent() {
    for (bytes, opened) in [(512, true), (513, false)] {
        let mut told = Told::called();
        told.greets(true);
        told.opens(Some(&"s".repeat(bytes)), None);
        assert_eq!(
            (told.d.session.id.is_some(), told.on_its_way().is_some()),
            (opened, opened),
            "{bytes} bytes"
        );
    }
}

/// A loaded session is recorded once; a change of its reported model is recorded.
#[test]
fn known_session_facts_are_not_repeated() {
    let opened_again = |model: &str| {
        let mut told = Told::dies_with_a_prompt_on_its_way();
        told.greets(true);
        let before = told.log.len();
        let (session_id, model) = (Some("s1".to_string()), Some(model.to_string()));
        told.line(vec![AgentEvent::CallAnswer(CallAnswer::Opened {
            session_id,
            model,
            model_by: None,
            modes: None,
        })]);
        told.log[before..]
            .iter()
            .filter(|event| matches!(event, Event::SessionStarted { .. }))
            .count()
    };
    assert_eq!(opened_again("small"), 0);
    assert_eq!(opened_again("large"), 1, "another model");
}

/// Such an agent gives no receipt, so the stall monitor counts a written prompt as its turn.
#[test]
fn prompt_sent_by_a_call_needs_an_answer() {
    let owes = |told: &Told| crate::monitor::stall::Known::of(&told.d, told.now).model_owes;
    let mut told = Told::called();
    told.greets(true);
    assert!(!owes(&told), "nothing was sent");
    told.opens(Some("s1"), None);
    assert!(owes(&told));
    let epoch = told.d.epoch;
    assert!(!told.feed(Input::Speaks { epoch: epoch + 1 }), "another process has none to give");
    assert!(told.feed(Input::Speaks { epoch }), "its first sign of life is its receipt");
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert!(!owes(&told), "it has answered");
}

impl Told {
    /// Returns an agent under a policy whose session was just opened in the mode `current`.
    pub(super) fn opened_in(policy: Policy, current: &str, offered: &[&str]) -> Self {
        let mut told = Self::called();
        Arc::make_mut(&mut told.d.created).permissions = policy;
        told.greets(true);
        let offered = offered.iter().map(|mode| (*mode).to_string()).collect();
        told.line(vec![AgentEvent::CallAnswer(CallAnswer::Opened {
            session_id: Some("s1".into()),
            model: None,
            model_by: None,
            modes: Some(Modes { current: Some(current.into()), offered, by: "call".into() }),
        })]);
        told
    }

    pub(super) fn refuses_the_mode(&mut self) {
        let (call, message) = (MODE.to_string(), "no such mode".to_string());
        self.line(vec![AgentEvent::CallAnswer(CallAnswer::Refused {
            call,
            message,
            auth: false,
            missing: false,
        })]);
    }
}

pub(super) fn closed(mode: Mode) -> Policy {
    Policy { mode, ..Policy::default() }
}

#[test]
fn the_mode_that_the_policy_needs_is_set_before_the_first_prompt() {
    let all = ["default", "auto", "bypassPermissions"];
    for (policy, mode) in [(Policy::default(), "bypassPermissions"), (closed(Mode::Ask), "default")]
    {
        let mut told = Told::opened_in(policy, "auto", &all);
        assert_eq!(told.calls(), Some(Call::SetMode { by: "call".into(), mode: mode.into() }));
        assert_eq!(
            (told.on_its_way(), awaited(&told.d).map(|(_, call, _)| call)),
            (None, Some(MODE))
        );
        told.line(vec![AgentEvent::CallAnswer(CallAnswer::ModeSet {})]);
        assert_eq!((told.calls(), told.on_its_way().as_deref()), (None, Some("p1")));
    }
}

#[test]
fn a_refused_mode_fails_a_closed_policy_and_falls_back_under_an_open_one() {
    let all = ["default", "auto", "bypassPermissions"];
    let mut told = Told::opened_in(Policy::default(), "auto", &all);
    told.refuses_the_mode();
    assert_eq!(told.calls(), Some(Call::SetMode { by: "call".into(), mode: "default".into() }));
    told.refuses_the_mode();
    assert_eq!(told.on_its_way().as_deref(), Some("p1"), "what it asks is allowed");

    let mut told = Told::opened_in(closed(Mode::Deny), "auto", &all);
    told.refuses_the_mode();
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.d.state(), "failed");

    let mut told = Told::opened_in(closed(Mode::Deny), "yolo", &["yolo", "auto"]);
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert!(told.d.reason.as_deref().unwrap().contains("`yolo`"), "{:?}", told.d.reason);
}

/// Some agents confirm the change of a model that they ignore.
#[test]
fn confirmed_model_change_without_effect_fails() {
    for (asked, answered, fails) in [
        ("large", Some("small"), true),
        ("large", Some("large"), false),
        ("large", Some("other"), false),
        ("small-5", Some("small"), false),
        ("large", None, false),
    ] {
        let mut told = Told::called();
        Arc::make_mut(&mut told.d.created).model = Some(asked.into());
        told.greets(true);
        told.opens(Some("s1"), Some("option model"));
        let model = answered.map(str::to_string);
        told.line(vec![AgentEvent::CallAnswer(CallAnswer::ModelSet { model })]);
        assert_eq!(told.on_its_way().is_none(), fails, "{asked} {answered:?}");
        assert_eq!(told.has(&Effect::Terminate), fails, "{asked} {answered:?}");
    }
}

#[test]
fn permission_request_starts_a_turn_and_gets_the_subject_of_its_call() {
    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).permissions.mode = Mode::Ask;
    told.greets(true);
    told.opens(Some("s1"), None);
    assert_eq!(told.d.turns, 0);
    let call = || AgentEvent::ToolCall {
        id: "t".into(),
        name: "Bash".into(),
        input: json!({"command": "make"}),
    };
    let ask = crate::agent::ask::Ask { call_id: Some("t".into()), ..Default::default() };
    let asked = AgentEvent::Permission { id: "r".into(), ask: Box::new(ask) };
    told.line(vec![call(), asked]);
    assert_eq!(told.d.turns, 1);
    let ask = &told.d.asks.get("r").unwrap().ask;
    assert_eq!((ask.tool.as_str(), ask.target.as_str()), ("Bash", "make"));
    told.line(vec![call()]);
    let calls = told.log.iter().filter(|event| matches!(event, Event::ToolCalled { .. })).count();
    assert_eq!(calls, 1, "a later report of the same call");
}
