//! Recovery after a crash.

use crate::agent::backend::StartError;
use crate::dispatch::life::tests::*;

// ---- Crashes

#[test]
fn a_crash_mid_turn_is_continued_in_the_resumed_session_after_a_pause() {
    let mut told = Told::busy();
    told.exit(1);
    assert_eq!((told.d.retries.restarts, told.counted(), told.d.state()), (1, 1, "starting"));
    let Phase::Backoff { until, .. } = told.d.phase else { panic!() };
    assert!(until > told.now && told.has(&Effect::WakeAt(until)));
    told.restarted();
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Superseded);
    // Its key belongs to the process that receives it, even if a daemon of another version had
    // queued it.
    assert_eq!(told.delivers(), Some(prompt_key(&told.d.id, PromptKind::Continue, 2)));
    assert!(told.log.iter().any(
        |e| matches!(e, Event::AttemptStarted { attempt: 2, resume: Some(s), .. } if s == "s1")
    ));
}

#[test]
fn crash_before_a_session_resends_the_same_prompt() {
    let mut told = Told::spawned(MULTI);
    told.receipt("p1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
}

#[test]
fn untaken_prompt_is_resent_with_its_key() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
    assert!(told.d.prompts.iter().all(|p| p.kind == PromptKind::Initial));
}

#[test]
fn prompt_already_in_the_session_is_resumed() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.exit(1);
    told.restarted();
    told.line(vec![AgentEvent::Prompt {
        text: String::new(),
        key: Some("p1".into()),
        repeated: true,
    }]);
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
    assert_eq!(told.d.prompt("p1").unwrap().state, PromptState::Superseded);
}

#[test]
fn taken_prompt_is_never_resent() {
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
fn crash_with_on_crash_ask_blocks_until_a_message() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).ask_on_crash = true;
    told.exit(1);
    assert_eq!(told.d.state(), "blocked");
    assert!(
        told.d.reason.as_deref().is_some_and(|reason| reason.contains("muleteer send")),
        "{:?}",
        told.d.reason
    );
    assert!(told.feed(Input::Send { key: "p2".into(), by: "operator".into() }));
    told.admit();
    assert!(
        matches!(told.log.iter().rev().find(|event| matches!(event, Event::AttemptStarted { .. })),
        Some(Event::AttemptStarted { resume: Some(session), .. }) if session == "s1")
    );
}

#[test]
fn a_program_that_cannot_be_executed_fails_at_once_though_its_process_was_there() {
    for capabilities in [MULTI, ONE_SHOT] {
        let mut told = Told::spawned(capabilities);
        let error = "no such file".to_string();
        assert!(told.feed(Input::StartFailed {
            at: None,
            epoch: told.d.epoch,
            error,
            permanent: true
        }));
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
fn failed_dispatch_with_queued_messages_is_not_restarted() {
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
    assert_eq!(told.d.retries.restarts, 0);
}

#[test]
fn unreleased_agent_is_restarted_uncounted_a_few_times() {
    let mut told = Told::new(MULTI);
    told.admit();
    for epoch in 1..MAX_START_FAILURES {
        told.shim_lost(false, true);
        assert_eq!(told.d.phase, Phase::Starting { attempt: 1, epoch: epoch + 1, rebooted: false });
    }
    let said = "spool: no space left".to_string();
    let epoch = told.d.epoch;
    told.feed(Input::ShimLost {
        epoch,
        spawned: false,
        killed: 0,
        clean: true,
        awake_ms: 0,
        said,
        left: vec![],
    });
    assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
    assert_eq!(
        told.d.reason.as_deref(),
        Some("the shim died 5 times before it started the agent: spool: no space left")
    );
}

#[test]
fn unstartable_agent_fails_at_once() {
    let mut told = Told::new(MULTI);
    told.admit();
    told.feed(Input::StartFailed {
        at: None,
        epoch: 1,
        error: "no such program".into(),
        permanent: true,
    });
    assert_eq!((told.finished(), told.d.attempts), (FinalState::Failed, 1));
}

#[test]
fn a_further_turn_that_cannot_start_fails_at_once_too() {
    let mut told = Told::busy();
    told.result(well());
    told.exit(0);
    told.send("s1");
    told.admit();
    told.feed(Input::StartFailed {
        at: None,
        epoch: 2,
        error: "no such program".into(),
        permanent: true,
    });
    assert_eq!(told.finished(), FinalState::Failed);
}

#[test]
fn lost_shim_of_a_resumable_agent_counts_as_a_crash() {
    let mut told = Told::busy();
    told.shim_lost(true, true);
    assert_eq!(told.counted(), 1);
    let key = told.restarted().delivers().unwrap();
    assert_eq!(told.kind(&key), PromptKind::Continue);
}

#[test]
fn unkillable_processes_of_a_dead_shim_block() {
    let mut told = Told::busy();
    told.shim_lost(true, false);
    assert_eq!(told.finished(), FinalState::Blocked);
    assert!(told.log.iter().any(|event| matches!(event, Event::AttemptFinished { .. })));
}

#[test]
fn an_expired_lease_is_not_counted() {
    let mut told = Told::busy();
    told.exit_by(Some(143), ExitCause::LeaseExpired);
    assert_eq!((told.counted(), told.d.retries.restarts), (0, 0));
    // There is no backoff: the next attempt starts at once.
    assert_eq!(told.d.phase, Phase::Starting { attempt: 2, epoch: 2, rebooted: false });
}

#[test]
fn finished_turn_counts_despite_the_exit_of_its_process() {
    for cause in
        [ExitCause::ShimLost, ExitCause::ShimPolicy, ExitCause::LeaseExpired, ExitCause::Terminated]
    {
        let mut told = Told::busy();
        told.result(well());
        told.exit_by(None, cause);
        assert_eq!(told.finished(), FinalState::Success, "{cause:?}");
    }
}

/// The shim enforced the limits while there was no daemon. Another attempt would exceed them.
#[test]
fn agent_ended_by_its_shims_limit_times_out_without_restart() {
    for capabilities in [MULTI, ONE_SHOT] {
        let mut told = Told::spawned(capabilities);
        Arc::make_mut(&mut told.d.created).limits.timeout_s = Some(15);
        let (at, epoch) = (told.next(), told.d.epoch);
        let exit = Exit {
            code: None,
            signal: Some(15),
            cause: ExitCause::ShimPolicy,
            stderr_tail: "(memory)".into(),
            left: vec![],
        };
        told.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
        assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
        assert_eq!(
            told.d.reason.as_deref(),
            Some("stopped after its time limit of 15s: (memory) (`timeout`)")
        );
        let timed_out = |event: &Event| {
            matches!(event, Event::AttemptFinished { outcome: Outcome::Timeout, .. })
        };
        assert!(told.log.iter().any(timed_out));
    }
}

/// The next attempt would be rejected with the same error.
#[test]
fn refusal_as_root_fails_at_once_with_a_hint() {
    static ERRORS: [StartError; 1] =
        [StartError { marks: &["--dangerously", "as root"], reason: "set IS_SANDBOX=1" }];
    let tail = "--dangerously-skip-permissions cannot be used as root\n";
    for (errors, tail, retried) in [
        (&ERRORS[..], tail, false),
        (&ERRORS[..], "--dangerously\nno such model as root\n", true),
        (&[][..], tail, true),
    ] {
        let mut told = Told::busy();
        told.d.traits.start_errors = errors;
        let (at, epoch) = (told.next(), told.d.epoch);
        let exit = Exit {
            code: Some(1),
            signal: None,
            cause: ExitCause::Exited,
            stderr_tail: tail.into(),
            left: vec![],
        };
        told.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
        if retried {
            assert!(matches!(told.d.phase, Phase::Backoff { .. }), "{:?}", told.d.phase);
            continue;
        }
        assert_eq!((told.finished(), told.counted()), (FinalState::Failed, 0));
        assert!(
            told.d.reason.as_deref().is_some_and(|reason| reason.contains("IS_SANDBOX=1")),
            "{:?}",
            told.d.reason
        );
    }
}

#[test]
fn each_pause_is_that_of_its_number() {
    let mut told = Told::busy();
    for restarts in 1..=2 {
        told.exit(1);
        let Phase::Backoff { until, .. } = told.d.phase else { panic!("{:?}", told.d.phase) };
        let pause = crate::restart::agent_backoff_ms("abcd2345", restarts);
        assert_eq!(
            until.duration_since(told.now).as_millis(),
            i128::from(pause),
            "after {restarts}"
        );
        told.restarted();
    }
}

/// A person has only the reason to go by.
#[test]
fn exit_is_described() {
    let exit = |code, signal, cause, tail: &str| Exit {
        code,
        signal,
        cause,
        stderr_tail: tail.into(),
        left: vec![],
    };
    for (exit, said) in [
        (exit(Some(3), None, ExitCause::Exited, ""), "exit code 3"),
        (
            exit(Some(3), None, ExitCause::Exited, "first\nno such model\n \n"),
            "exit code 3: no such model",
        ),
        (
            exit(
                Some(127),
                None,
                ExitCause::Exited,
                "sh: 1: /tmp/x: not found\nmuleteer: sandbox: exit code 127: a program cannot be \
                 run. The sandbox has its own /tmp\n",
            ),
            "exit code 127: sh: 1: /tmp/x: not found (The sandbox has its own /tmp)",
        ),
        (exit(None, Some(11), ExitCause::Exited, ""), "killed by signal 11"),
        (exit(None, None, ExitCause::Exited, ""), "ended in an unknown way"),
        (exit(Some(0), Some(9), ExitCause::ShimLost, "gone"), "its shim died while it ran: gone"),
    ] {
        let mut told = Told::busy();
        let (at, epoch) = (told.next(), told.d.epoch);
        told.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
        let reason = told.log.iter().find_map(|event| match event {
            Event::AttemptFinished { reason, .. } => Some(reason.as_str()),
            _ => None,
        });
        assert_eq!(reason, Some(said));
    }
}

/// The end of an agent's process decides what a spec run does with its work. The agent's last words
/// are in the reason, so the reason must not decide that.
#[test]
fn end_is_unknown_only_if_the_process_vanished() {
    let exit = |code, signal, cause, tail: &str| Exit {
        code,
        signal,
        cause,
        stderr_tail: tail.into(),
        left: vec![],
    };
    for (exit, is_unknown) in [
        (exit(Some(3), None, ExitCause::Exited, "a child was killed by signal 9"), false),
        (exit(Some(3), None, ExitCause::Exited, "outcome unknown: its shim died"), false),
        (exit(None, None, ExitCause::Exited, ""), false),
        (exit(None, Some(11), ExitCause::Exited, ""), true),
        (exit(None, Some(9), ExitCause::ShimLost, "gone"), true),
        (exit(None, Some(9), ExitCause::ShimPolicy, "killed by signal 9"), false),
    ] {
        let mut told = Told::busy();
        let (at, epoch, said) = (told.next(), told.d.epoch, format!("{exit:?}"));
        told.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
        let ended = told.d.ended.unwrap();
        assert_eq!(ended.is_unknown(FinalState::Failed), is_unknown, "{said}");
        assert_eq!(ended.outcome == Outcome::Timeout, said.contains("ShimPolicy"), "{said}");
    }
    for clean in [true, false] {
        let mut told = Told::spawned(ONE_SHOT);
        told.shim_lost(true, clean);
        let state = told.finished();
        assert!(told.d.ended.unwrap().is_unknown(state), "{clean}");
    }
    let mut told = Told::busy();
    told.feed(Input::Kill { reason: "killed by signal 9".into(), by: "operator".into() });
    told.exit_by(None, ExitCause::Terminated);
    let state = told.finished();
    assert!(!told.d.ended.unwrap().is_unknown(state));
}

/// The reason names the limit; the CLIs report both limits in the same way.
#[test]
fn limit_enforced_by_the_cli_is_named() {
    for (error, said) in [
        (TurnError::MaxTurns, "stopped at its limit of 4 turns"),
        (TurnError::Budget, "stopped at its budget of $0.50 ($12.00 spent)"),
    ] {
        let mut told = Told::busy();
        let limits = &mut Arc::make_mut(&mut told.d.created).limits;
        (limits.max_turns, limits.budget_usd) = (Some(4), Some(0.5));
        told.result(TurnResult {
            ok: false,
            error: Some(error),
            text: Some("enough".into()),
            per_model: vec![cost("m", 12.0)],
            ..TurnResult::default()
        });
        told.exit(1);
        assert_eq!(told.finished(), FinalState::Partial);
        assert_eq!(told.d.reason.as_deref(), Some(said));
    }
}

/// A spec run treats a timeout differently from a failure. If the log has no end of the attempt, it
/// must know the present text, and that of a log that an older version wrote.
#[test]
fn reasons_of_both_versions_are_read_as_a_timeout() {
    use crate::event::Limit;
    assert!(Limit::is_timeout(&Limit::Timeout.describe("its time limit of 15s")));
    assert!(Limit::is_timeout("timeout: ended by its limits"));
    assert!(!Limit::is_timeout(&Limit::Turns.describe("its limit of 4 turns")));
    assert!(!Limit::is_timeout("agent exited (code 1): a request had a timeout"));
}
