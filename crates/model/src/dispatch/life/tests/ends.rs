//! Ends of an agent, or of its turn, that come from outside: limits, silence, people.

use crate::dispatch::life::tests::acp_handshake::{cancelled, in_a_turn};
use crate::dispatch::life::tests::*;

// ---- Model API errors and limits

#[test]
fn stopping_or_finished_dispatch_ignores_a_limit() {
    let limit = || Input::Limit { limit: Limit::Budget, detail: "$11 of $10".into() };
    let mut told = Told::busy();
    told.kill();
    assert!(!told.feed(limit()));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Killed);
    assert!(!told.feed(limit()));
    let mut queued = Told::new(MULTI);
    assert!(!queued.feed(limit()), "it has used nothing");
    queued.admit();
    assert!(queued.feed(limit()));
}

#[test]
fn a_refused_key_is_not_tried_again() {
    let mut told = Told::busy();
    told.result(failed(TurnError::Auth));
    assert!(told.has(&Effect::CloseStdin));
    told.exit(1);
    assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
}

#[test]
fn api_error_counts_a_restart_and_resumes_the_session() {
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
    assert!(told.d.reason.unwrap().starts_with("stopped at its budget of $"));
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
fn message_to_a_stalled_agent_resumes_its_session() {
    let mut told = Told::busy();
    assert!(told.feed(stalled(1)));
    assert!(!told.feed(stalled(1)), "once is enough");
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(told.finished(), FinalState::Stalled);
    assert_eq!(told.d.reason.as_deref(), Some("no sign of life for 5m: no output"));
    let timed_out =
        |event: &Event| matches!(event, Event::AttemptFinished { outcome: Outcome::Timeout, .. });
    assert!(told.log.iter().any(timed_out));
    told.send("s1");
    told.admit();
    assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: Some("s1".into()) }));
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"), "what hung is not taken up again unasked");
}

#[test]
fn only_an_agent_with_an_open_turn_can_stall() {
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
fn killed_dispatch_ignores_admission() {
    let mut told = Told::new(MULTI);
    told.fold(None, Event::KillRequested { reason: "no".into(), by: "operator".into() });
    assert!(decide(&told.d, Input::Admitted(told.d.ticket())).is_empty());
}

#[test]
fn message_to_a_killed_dispatch_does_not_resume_the_killed_prompt() {
    let mut told = Told::busy();
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert!(told.send("s1"));
    told.admit();
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("s1"));
}

#[test]
fn kill_while_closing_withdraws_a_new_message() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).worktree = Some("/w".into());
    told.result(well());
    told.exit(0);
    assert!(told.has(&Effect::FetchWork));
    told.send("s1");
    told.kill();
    told.feed(Input::WorkFetched(WorkHome::default()));
    assert!(told.d.is_finished());
}

// ---- Interrupt and send

#[test]
fn interrupted_session_continues_in_the_same_process() {
    let mut told = Told::busy();
    assert!(told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
    assert!(told.has(&Effect::Interrupt { key: "i1".into() }));
    told.result(failed(TurnError::Interrupted));
    assert_eq!((told.d.state(), told.has(&Effect::CloseStdin)), ("waiting", false));
    told.send("s1");
    assert_eq!(
        (told.d.state(), told.delivers().as_deref(), told.d.epoch),
        ("running", Some("s1"), 1)
    );
}

#[test]
fn interrupt_between_turns_is_ignored() {
    let mut told = Told::spawned(MULTI);
    assert!(!told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
}

#[test]
fn agent_that_dies_of_an_interrupt_is_not_restarted() {
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
fn message_during_a_turn_is_delivered_after_the_turn() {
    let mut told = Told::busy();
    told.send("s1");
    assert_eq!(told.delivers(), None);
    told.result(well());
    assert_eq!((told.delivers().as_deref(), told.d.epoch), (Some("s1"), 1));
    assert!(!told.has(&Effect::CloseStdin));
}

#[test]
fn message_during_the_exit_is_delivered_to_the_next_process() {
    let mut told = Told::busy();
    told.result(well());
    told.send("s1");
    assert_eq!((told.delivers(), told.has(&Effect::CloseStdin)), (None, true));
    assert_eq!(
        told.d.prompt("s1").unwrap().state,
        PromptState::Queued,
        "nobody is told that it was sent"
    );
    told.exit(0);
    told.spawn();
    assert_eq!((told.delivers().as_deref(), told.d.epoch, told.counted()), (Some("s1"), 2, 0));
    assert_eq!(told.d.result.value, None, "there is more to do");
}

#[test]
fn send_after_the_end_resumes_the_same_session() {
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
fn message_at_the_end_of_a_turn_is_not_lost() {
    // The message arrives while the work is fetched.
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).worktree = Some("/w".into());
    told.result(well());
    told.exit(0);
    told.send("s1");
    told.feed(Input::WorkFetched(WorkHome::default()));
    assert_eq!(told.d.state(), "queued");

    // The message is durable just before a decision that did not know of it.
    let mut told = Told::busy();
    told.result(well());
    let (at, epoch) = (told.next(), told.d.epoch);
    let exit = Exit {
        code: Some(0),
        signal: None,
        cause: ExitCause::Exited,
        stderr_tail: String::new(),
        left: vec![],
    };
    for (at, event) in decide(&told.d, Input::Exited { at, epoch, exit, awake_ms: 0 }) {
        told.fold(at, event);
    }
    let overlooked = advance(&told.d, told.now);
    told.fold(
        None,
        Event::PromptQueued {
            key: "s1".into(),
            kind: PromptKind::Send,
            by: "operator".into(),
            trace: None,
        },
    );
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
    assert_eq!(told.d.result.value.unwrap().status, ResultStatus::Failed);
}

/// cline cancels the turn at its own limit of mistakes. Another process would make the same ones.
#[test]
fn turn_cancelled_after_failed_calls_ends_the_dispatch() {
    let calls = |told: &mut Told, ends: &[bool]| {
        for (n, ok) in ends.iter().enumerate() {
            let id = format!("t{n}");
            let (name, text, ok) = ("Bash".into(), "no".into(), *ok);
            let input = json!({"command": "ls nowhere"});
            told.line(vec![AgentEvent::ToolCall { id: id.clone(), name, input }]);
            told.line(vec![AgentEvent::ToolResult { id, ok, text, exit_code: None }]);
        }
        told.result(cancelled());
        told.exit(0);
    };
    let mut told = in_a_turn();
    calls(&mut told, &[true, false, false, false]);
    assert_eq!((told.finished(), told.d.attempts), (FinalState::Partial, 1));
    let reason = told.d.reason.as_deref().unwrap();
    assert!(reason.contains("after 3 failed tool calls in a row"), "{reason}");

    let mut told = in_a_turn();
    calls(&mut told, &[false, false, true, false]);
    assert!(matches!(told.d.phase, Phase::Backoff { .. }), "{:?}", told.d.phase);
}
