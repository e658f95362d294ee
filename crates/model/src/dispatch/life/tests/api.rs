//! Trouble with the model API, and what an attempt may use of a dispatch's time.

use crate::agent::event::TurnError::{ApiError, Auth, RateLimit};
use crate::dispatch::life::tests::*;
use std::sync::Arc;

fn ended_by(error: TurnError, status: u16) -> TurnResult {
    TurnResult {
        ok: false,
        error: Some(error),
        status: Some(status),
        text: Some("scripted".into()),
        ..well()
    }
}

fn retry(attempt: u32, status: Option<u16>, delay_s: f64) -> AgentEvent {
    AgentEvent::ApiRetry { attempt, max: 10, delay_s, status }
}

fn call() -> AgentEvent {
    AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input: json!({"command": "true"}) }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

impl Told {
    /// Ends the turn with this trouble, and the process with it.
    fn fails(&mut self, error: TurnError, status: u16) {
        self.result(ended_by(error, status));
        self.exit(1);
    }

    fn goes_on(&mut self) {
        assert!(self.admit());
        self.spawn();
        let key = self.delivers().unwrap();
        self.receipt(&key);
    }

    fn reason(&self) -> &str {
        self.d.reason.as_deref().unwrap_or_default()
    }
}

#[test]
fn a_rate_limit_is_no_failure_of_the_agent() {
    let mut told = Told::busy();
    for round in 1..=10 {
        told.fails(RateLimit, 429);
        assert_eq!((&told.d.phase, told.d.state()), (&Phase::Queued, "waiting"), "round {round}");
        assert!(!told.d.is_active(), "it holds no place while it waits");
        assert_eq!(told.counted(), 0);
        let outage = told.d.outage.clone().unwrap();
        assert_eq!((outage.waits, outage.told), (round, false));
        told.now = outage.until;
        told.goes_on();
        assert_eq!(told.d.state(), "waiting", "until it is answered");
        assert_eq!(told.kind(&told.d.prompts.last().unwrap().key.clone()), PromptKind::Continue);
    }
    told.line(vec![call()]);
    assert_eq!((told.d.state(), &told.d.outage), ("running", &None));
    told.result(well());
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
}

#[test]
fn reported_limit_is_awaited_until_its_end() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::RateLimit {
        resets_in_s: 0.0,
        resets_at: Some(3600.0),
        warning: false,
    }]);
    assert_eq!(told.d.state(), "waiting");
    told.fails(RateLimit, 429);
    let outage = told.d.outage.clone().unwrap();
    assert_eq!((outage.until, outage.told), (at(3600), true));
}

/// A weekly limit is longer than `api_patience`. It is a date that the provider named, so the
/// dispatch waits for it, and it does not wait for ever if each answer names another date.
#[test]
fn usage_limit_parks_beyond_the_patience_and_not_for_ever() {
    const WEEK: i64 = 7 * 86_400;
    let mut told = Told::busy();
    let mut rounds = 0;
    while told.d.phase != (Phase::Finished { state: FinalState::Failed }) {
        let reset = told.now.as_second() + WEEK;
        told.line(vec![AgentEvent::RateLimit {
            resets_in_s: 0.0,
            resets_at: Some(reset as f64),
            warning: false,
        }]);
        told.fails(RateLimit, 429);
        if told.d.is_finished() {
            break;
        }
        let outage = told.d.outage.clone().unwrap();
        assert_eq!((outage.until, outage.told, outage.usage_limit), (at(reset), true, true));
        assert!(outage.waiting(told.now).contains("usage limit reached"));
        assert_eq!((told.d.state(), told.counted()), ("waiting", 0));
        told.now = outage.until;
        told.goes_on();
        rounds += 1;
        assert!(rounds < 1000, "it never gives up");
    }
    assert!(rounds > 100, "{rounds}");
    assert!(told.reason().contains("api_patience"), "{}", told.reason());
}

#[test]
fn message_to_a_parked_dispatch_is_delivered_at_the_reset() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::RateLimit {
        resets_in_s: 0.0,
        resets_at: Some(3600.0),
        warning: false,
    }]);
    told.fails(RateLimit, 429);
    assert!(told.send("p2"));
    assert_eq!((told.d.state(), told.d.outage.clone().unwrap().until), ("waiting", at(3600)));
    told.now = at(3600);
    assert!(told.admit());
    told.spawn();
    assert!(told.d.prompt("p2").is_some());
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Killed);
}

#[test]
fn a_warning_is_no_limit() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::RateLimit {
        resets_in_s: 0.0,
        resets_at: Some(3600.0),
        warning: true,
    }]);
    assert_eq!((told.d.state(), told.d.outage.clone()), ("running", None));
}

#[test]
fn exceeded_patience_fails_the_dispatch_and_allows_a_resume() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::RateLimit {
        resets_in_s: 86_400.0,
        resets_at: None,
        warning: false,
    }]);
    told.fails(RateLimit, 429);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.reason().contains("api_patience"), "{}", told.reason());
    assert!(told.send("p2"));
    assert_eq!((&told.d.phase, told.d.state()), (&Phase::Queued, "queued"));
}

#[test]
fn a_refused_key_is_named_and_not_tried_again() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).api.credential = "ANTHROPIC_API_KEY".into();
    told.fails(Auth, 401);
    assert_eq!(told.finished(), FinalState::Failed);
    assert_eq!(
        told.reason(),
        "the model API refused the key ANTHROPIC_API_KEY (HTTP 401): scripted"
    );
}

#[test]
fn a_cli_that_is_refused_twice_is_stopped() {
    let mut told = Told::busy();
    told.line(vec![retry(1, Some(401), 0.5)]);
    assert!(!told.has(&Effect::Terminate));
    told.line(vec![retry(2, Some(401), 1.0)]);
    assert!(told.has(&Effect::Terminate));
    told.line(vec![retry(3, Some(401), 2.0)]);
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.reason().contains("refused the key"), "{}", told.reason());
}

#[test]
fn server_errors_are_counted_restarts() {
    let mut told = Told::busy();
    told.fails(ApiError, 500);
    assert_eq!((told.counted(), told.d.state()), (1, "starting"));
    let mut told = Told::busy();
    told.fails(ApiError, 404);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.reason().contains("rejected the request (HTTP 404)"), "{}", told.reason());
}

#[test]
fn outage_beyond_the_limit_fails_the_dispatch() {
    let mut told = Told::busy();
    told.line(vec![retry(1, None, 1.0)]);
    assert_eq!(told.d.state(), "waiting");
    let down = |epoch| Input::ApiDown { epoch, trouble: Trouble::NoAnswer, for_s: 900 };
    assert!(!told.feed(down(2)), "another process is meant");
    assert!(told.feed(down(1)));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.reason().starts_with("the model API: no answer for 15m"), "{}", told.reason());
}

#[test]
fn kill_and_message_reach_a_dispatch_waiting_for_the_api() {
    let mut told = Told::busy();
    told.fails(ApiError, 529);
    assert!(told.send("p2"));
    assert_eq!(told.d.phase, Phase::Queued);
    told.kill();
    assert_eq!(told.finished(), FinalState::Killed);
}

// ---- Time

fn ends_after(told: &mut Told, used_ms: u64, cause: ExitCause) {
    let at = told.next();
    let exit =
        Exit { code: Some(1), signal: None, cause, stderr_tail: String::new(), left: vec![] };
    let epoch = told.d.epoch;
    told.feed(Input::Exited { at, epoch, exit, awake_ms: told.d.process().began_ms + used_ms });
}

#[test]
fn attempts_share_the_time_of_their_dispatch() {
    let mut told = Told::new(MULTI);
    Arc::make_mut(&mut told.d.created).limits.timeout_s = Some(10);
    told.admit();
    told.spawn();
    told.receipt("p1");
    ends_after(&mut told, 4_000, ExitCause::Exited);
    assert_eq!(told.d.usage.awake_ms, 4_000);
    let Phase::Backoff { until, .. } = told.d.phase else { panic!() };
    told.now = until;
    told.settle();
    told.spawn();
    ends_after(&mut told, 6_000, ExitCause::Exited);
    assert_eq!(told.finished(), FinalState::Failed);
    assert_eq!(told.reason(), "stopped after its time limit of 10s (`timeout`)");
}

#[test]
fn a_process_that_never_ran_used_no_time() {
    let mut told = Told::new(MULTI);
    told.admit();
    ends_after(&mut told, 9_000, ExitCause::NeverRan);
    assert_eq!(told.d.usage.awake_ms, 0);
}

// ---- Stops

#[test]
fn message_to_a_stalling_agent_is_delivered() {
    let stalled = Input::Stalled { epoch: 1, silent_s: 300, evidence: "no output".into() };
    for spoken in [false, true] {
        let mut told = Told::busy();
        told.send("p2");
        told.feed(stalled.clone());
        if spoken {
            told.send("p3");
        }
        told.exit_by(None, ExitCause::Terminated);
        assert_eq!(
            told.d.phase == Phase::Queued,
            spoken,
            "a word said before the silence waits for the next"
        );
        if spoken {
            told.goes_on();
            assert_eq!(told.d.stop, None);
        }
    }
    let mut told = Told::busy();
    told.feed(stalled);
    told.send("p2");
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Killed);
}

fn tool(told: &mut Told, id: &str) {
    told.line(vec![AgentEvent::ToolCall {
        id: id.into(),
        name: "Bash".into(),
        input: json!({"command": "true"}),
    }]);
}

fn done(told: &mut Told, id: &str) {
    told.line(vec![AgentEvent::ToolResult {
        id: id.into(),
        ok: true,
        text: String::new(),
        exit_code: None,
    }]);
}

#[test]
fn model_turns_are_counted_if_the_cli_does_not() {
    let mut told = Told::by_turns();
    Arc::make_mut(&mut told.d.created).limits.max_turns = Some(2);
    // Two calls of one answer are one turn.
    tool(&mut told, "a");
    tool(&mut told, "b");
    done(&mut told, "a");
    done(&mut told, "b");
    tool(&mut told, "c");
    assert_eq!((told.d.usage.model_turns, limit_reached(&told.d)), (2, None));
    done(&mut told, "c");
    tool(&mut told, "d");
    assert_eq!(limit_reached(&told.d), Some((Limit::Turns, "its limit of 2 turns".into())));

    let mut told = Told::by_turns();
    Arc::make_mut(&mut told.d.created).limits.max_turns = Some(1);
    told.answers("well");
    assert_eq!(limit_reached(&told.d), None, "it has ended at its limit");
    let mut told = Told::busy();
    told.d.traits.limits_turns = true;
    Arc::make_mut(&mut told.d.created).limits.max_turns = Some(0);
    tool(&mut told, "a");
    assert_eq!(limit_reached(&told.d), None, "its CLI counts itself");
}

/// Otherwise the message would stay queued and be sent with the next message.
#[test]
fn message_to_an_agent_being_killed_is_withdrawn() {
    let mut told = Told::by_turns();
    told.kill();
    told.send("late");
    assert_eq!(told.d.prompt("late").map(|prompt| prompt.state), Some(PromptState::Withdrawn));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Killed);
    told.send("after");
    assert_eq!(told.d.prompt("after").map(|prompt| prompt.state), Some(PromptState::Queued));
    assert_eq!(told.d.next_prompt().map(|prompt| prompt.key.as_str()), Some("after"));
}

/// No process starts with no model turns left, whether Muleteer or the CLI counts them within a
/// turn.
#[test]
fn agent_at_its_turn_limit_starts_no_turn() {
    for backend in ["claude-code", "codex"] {
        let mut told = Told::by_turns();
        Arc::make_mut(&mut told.d.created).limits.max_turns = Some(1);
        Arc::make_mut(&mut told.d.created).backend = backend.into();
        // No repair of the result is needed.
        Arc::make_mut(&mut told.d.created).wants_result = false;
        told.answers("well");
        told.exit(0);
        assert_eq!(told.finished(), FinalState::Success, "{backend}: the turn itself was allowed");
        let attempts = told.d.attempts;
        told.send("p2");
        assert_eq!(
            (told.finished(), told.d.attempts),
            (FinalState::Partial, attempts),
            "{backend}"
        );
        assert_eq!(told.d.reason.as_deref(), Some("stopped at its limit of 1 turn"));
    }
    // The same holds after a crash.
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).backend = "claude-code".into();
    Arc::make_mut(&mut told.d.created).limits.max_turns = Some(1);
    tool(&mut told, "a");
    told.exit(1);
    assert_eq!(told.finished(), FinalState::Partial);
}

/// A subagent's messages go to the agent, and its turns are not the agent's; its tool calls count.
#[test]
fn a_subagent_works_inside_of_a_call() {
    let theirs = |told: &mut Told, event: AgentEvent| {
        let before = told.log.len();
        told.line(vec![AgentEvent::Subagent { parent: "a".into(), event: Box::new(event) }]);
        told.log[before..].to_vec()
    };
    let mut told = Told::by_turns();
    tool(&mut told, "a");
    let said = AgentEvent::Text { chars: 12, text: "I am somebody".into() };
    assert_eq!(theirs(&mut told, said), []);
    let usage = AgentEvent::Usage {
        input: 5,
        output: 5,
        cost_usd: 1.0,
        cache_read: 0,
        cache_write: 0,
        model: None,
        call: None,
        total_usd: None,
    };
    assert_eq!(theirs(&mut told, usage), [], "its cost is part of the turn's");
    for n in 0..3 {
        let (id, name, input) = (format!("b{n}"), "Bash".into(), json!({"command": "ls"}));
        let called = theirs(&mut told, AgentEvent::ToolCall { id: id.clone(), name, input });
        assert!(
            matches!(
                &called[..],
                [Event::ToolCalled { parent: Some(parent), .. }] if parent == "a"
            ),
            "{called:?}"
        );
        assert_eq!(told.d.process().calls.open.len(), 2);
        let ended = theirs(
            &mut told,
            AgentEvent::ToolResult { id, ok: n > 0, text: "no".into(), exit_code: None },
        );
        assert!(
            matches!(&ended[..], [Event::ToolFinished { .. } | Event::ToolFailed { .. }]),
            "{ended:?}"
        );
    }
    assert_eq!(
        (told.d.usage.model_turns, told.d.process().calls.open.as_slice()),
        (1, ["a".to_string()].as_slice())
    );
    done(&mut told, "a");
    told.answers("well");
    assert_eq!((told.d.usage.model_turns, told.d.result.said.as_deref()), (2, Some("well")));
}

/// An outage that began before the end of a daemon, or of an attempt, continues.
#[test]
fn trouble_is_timed_from_its_first_sign() {
    let retry = |told: &mut Told, awake_ms: u64| {
        told.offset += 1;
        let at = Position { epoch: told.d.epoch, offset: told.offset, skip: 0 };
        let event = AgentEvent::ApiRetry { attempt: 1, max: 9, delay_s: 1.0, status: Some(500) };
        let decided = timed(decide(&told.d, Input::Line { at, events: vec![event] }), awake_ms);
        for (at, event) in decided {
            told.fold(at, event);
        }
        told.d.outage.as_ref().unwrap().since_ms
    };
    let mut told = Told::busy();
    assert_eq!(retry(&mut told, 5000), Some(5000));
    assert_eq!(retry(&mut told, 9000), Some(5000));
    told.exit(1);
    assert_eq!(
        told.d.outage.as_ref().unwrap().since_ms,
        Some(5000),
        "the next attempt meets the same"
    );
    let mut told = Told::busy();
    retry(&mut told, 5000);
    assert_eq!(retry(&mut told, 70), Some(70), "the machine began anew");
    told.says("hello");
    assert_eq!(retry(&mut told, 90), Some(90), "it was answered");
    tool(&mut told, "a");
    assert_eq!(told.d.outage, None);
}

#[test]
fn price_computes_a_missing_cost_from_tokens() {
    let price =
        crate::config::Price { input: 1.0, output: 10.0, cache_read: Some(0.1), cache_write: None };
    let usage = |cost_usd| ModelUsage {
        input: 1_000_000,
        output: 100_000,
        cache_read: 1_000_000,
        cost_usd,
        ..cost("", 0.0)
    };
    for (price, told_usd, expected) in
        [(None, 0.0, 0.0), (Some(price), 0.0, 2.1), (Some(price), 0.5, 0.5)]
    {
        let mut told = Told::by_turns();
        Arc::make_mut(&mut told.d.created).api.price = price;
        told.result(TurnResult { per_session: vec![usage(told_usd)], ..well() });
        assert!((told.cost() - expected).abs() < 1e-9, "{} {expected}", told.cost());
    }
}
