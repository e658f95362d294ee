//! Sessions that are too young to be loaded, or that were never stored.

use crate::agent::acp_handshake::{Call, CallAnswer, LOAD};
use crate::dispatch::life::tests::*;

/// Returns an agent of this name whose session was just made, and which then died in its turn.
fn dies_young(name: &str) -> Told {
    let mut told = Told::called();
    told.now = "2026-01-01T10:00:30Z".parse().unwrap();
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted {
        agent: format!("{name} 0.61.0"),
        loads: true,
    })]);
    told.opens(Some("s1"), None);
    told.says("I begin");
    told.exit_by(None, ExitCause::ShimLost);
    told
}

fn waits_until(told: &Told) -> Option<String> {
    match told.d.phase {
        Phase::Backoff { until, .. } => Some(until.strftime("%T").to_string()),
        _ => None,
    }
}

/// Lets the clock show the end of the pause.
fn waits(told: &mut Told) {
    let Phase::Backoff { until, .. } = told.d.phase else { panic!("{:?}", told.d.phase) };
    told.now = until;
    told.settle();
}

/// gemini destroys a session that it loads within the minute in which the session was made.
#[test]
fn session_that_must_rest_is_loaded_in_the_next_minute() {
    let mut told = dies_young("gemini-cli");
    waits(&mut told);
    assert_eq!(waits_until(&told).as_deref(), Some("10:01:01"), "after the pause of the restart");
    waits(&mut told);
    assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
    assert_eq!((told.d.retries.restarts, told.d.attempts), (1, 2));

    let mut told = dies_young("qwen-code");
    waits(&mut told);
    assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
}

#[test]
fn message_to_an_ended_dispatch_waits_until_its_session_can_be_loaded() {
    let mut told = Told::called();
    told.now = "2026-01-01T10:00:30Z".parse().unwrap();
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted {
        agent: "gemini-cli 0.61.0".into(),
        loads: true,
    })]);
    told.opens(Some("s1"), None);
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    told.now = "2026-01-01T10:00:40Z".parse().unwrap();
    told.send("p2");
    told.admit();
    assert_eq!(waits_until(&told).as_deref(), Some("10:01:01"));
    waits(&mut told);
    assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);

    told.spawn();
    told.greets(true);
    told.opens(None, None);
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    told.exit(0);
    told.now = "2026-01-01T10:05:00Z".parse().unwrap();
    told.send("p3");
    told.admit();
    assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
}

/// The clock may be set back during the wait: the wait ends nevertheless.
#[test]
fn clock_that_is_set_back_extends_no_rest() {
    let mut told = dies_young("gemini-cli");
    waits(&mut told);
    assert!(waits_until(&told).is_some());
    told.now = "2026-01-01T08:00:00Z".parse().unwrap();
    told.settle();
    assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
}

#[test]
fn refused_load_of_a_young_session_is_repeated_without_being_counted() {
    let refuse = |told: &mut Told| {
        told.spawn();
        told.greets(true);
        assert!(matches!(told.calls(), Some(Call::Open { load: Some(_), .. })));
        let (call, message) = (LOAD.to_string(), "no such session".to_string());
        let refused = CallAnswer::Refused { call, message, auth: false, missing: false };
        told.line(vec![AgentEvent::CallAnswer(refused)]);
        told.exit_by(None, ExitCause::Terminated);
    };
    let mut told = dies_young("some-agent");
    let made = told.d.session.made_at.unwrap();
    waits(&mut told);
    let mut tries = 0;
    loop {
        refuse(&mut told);
        if told.d.retries.restarts > 1 {
            break;
        }
        tries += 1;
        assert!(tries < 10, "it gives up");
        waits(&mut told);
    }
    assert!(told.now.duration_since(made).as_secs() >= 60, "it was asked when it was old");
    assert_eq!(told.d.session.id.as_deref(), Some("s1"));
    // An old session is refused for another reason.
    waits(&mut told);
    refuse(&mut told);
    assert_eq!(told.finished(), FinalState::Failed);
}

/// Returns an agent whose first turn failed for the rate limit after these events, and whose next
/// process is to load the session.
fn limited(before: Vec<AgentEvent>) -> Told {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    if !before.is_empty() {
        told.line(before);
    }
    told.result(TurnResult { keys: vec!["p1".into()], ..failed(TurnError::RateLimit) });
    told.exit(0);
    told.admit();
    waits_if_it_must(&mut told);
    told.spawn();
    told.greets(true);
    assert!(matches!(told.calls(), Some(Call::Open { load: Some(_), .. })), "{:?}", told.d.phase);
    told
}

fn waits_if_it_must(told: &mut Told) {
    if matches!(told.d.phase, Phase::Backoff { .. }) {
        waits(told);
    }
}

fn refuses_to_load(told: &mut Told, missing: bool) {
    let (call, message) = (LOAD.to_string(), "No previous sessions found".to_string());
    let refused = CallAnswer::Refused { call, message, auth: false, missing };
    told.line(vec![AgentEvent::CallAnswer(refused)]);
}

#[test]
fn session_without_content_that_is_missing_is_replaced_and_its_prompt_sent_again() {
    let mut told = limited(vec![]);
    refuses_to_load(&mut told, true);
    assert!(matches!(told.calls(), Some(Call::Open { load: None, .. })), "{:?}", told.calls());
    assert_eq!(told.on_its_way(), None);
    told.opens(Some("s2"), None);
    assert_eq!(told.on_its_way().as_deref(), Some("p1"), "{:?}", told.d.prompts);
    told.says(ANSWER);
    told.result(TurnResult { ok: true, keys: vec!["p1".into()], ..TurnResult::default() });
    told.exit(0);
    assert_eq!((told.finished(), told.counted()), (FinalState::Success, 0));
    let unheard = |prompt: &&Prompt| prompt.state == PromptState::Queued;
    assert_eq!(told.d.prompts.iter().find(unheard), None, "nothing asks it to continue");
}

/// The agent acted or answered, or its process died: the prompt may have had an effect.
#[test]
fn missing_session_with_content_is_not_replaced() {
    let call = AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input: json!({}) };
    let text = AgentEvent::Text { chars: 1, text: "x".into() };
    for before in [vec![call], vec![text]] {
        let mut told = limited(before);
        refuses_to_load(&mut told, true);
        assert!(told.d.process().call_failed.is_some(), "{:?}", told.d.phase);
        assert_eq!(told.d.session.id.as_deref(), Some("s1"));
    }
    let mut told = limited(vec![]);
    refuses_to_load(&mut told, false);
    assert!(told.d.process().call_failed.is_some(), "it refused for another reason");

    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), None);
    told.exit_by(None, ExitCause::ShimLost);
    waits(&mut told);
    told.spawn();
    told.greets(true);
    refuses_to_load(&mut told, true);
    assert!(told.d.process().call_failed.is_some(), "the prompt was on its way");
}

/// A restart cannot bring the session back, and a new one could do the work twice.
#[test]
fn missing_session_with_content_ends_blocked_without_restarts() {
    let text = AgentEvent::Text { chars: 1, text: "x".into() };
    let mut told = limited(vec![text]);
    let made = told.d.session.made_at.unwrap();
    let mut tries = 0;
    while told.d.state() != "blocked" {
        refuses_to_load(&mut told, true);
        told.exit_by(None, ExitCause::Terminated);
        // A young session may appear later.
        if matches!(told.d.phase, Phase::Backoff { .. }) {
            assert!(told.now.duration_since(made).as_secs() < 60, "{:?}", told.d.phase);
            tries += 1;
            assert!(tries < 10, "it gives up");
            waits(&mut told);
            told.spawn();
            told.greets(true);
        }
    }
    assert_eq!((told.finished(), told.counted()), (FinalState::Blocked, 0));
}

#[test]
fn session_without_content_is_replaced_if_the_agent_loads_none() {
    let mut told = limited(vec![]);
    told.exit_by(None, ExitCause::ShimLost);
    waits(&mut told);
    told.spawn();
    told.greets(false);
    assert!(matches!(told.calls(), Some(Call::Open { load: None, .. })), "{:?}", told.calls());
    told.opens(Some("s2"), None);
    assert_eq!(told.on_its_way().as_deref(), Some("p1"), "{:?}", told.d.prompts);
}
