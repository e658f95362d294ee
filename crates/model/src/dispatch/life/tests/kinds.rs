//! Agents with one process for all turns, and with one process for each turn.

use crate::dispatch::life::tests::*;

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
fn one_shot_agent_with_an_exit_code_fails_with_the_code() {
    let mut told = Told::spawned(ONE_SHOT);
    told.exit(3);
    assert_eq!(
        (told.finished(), told.d.reason.as_deref()),
        (FinalState::Failed, Some("exit code 3"))
    );
}

/// A turn's end as the headless JSON of an agent CLI tells it, behind a command.
fn reported(ok: bool, error: Option<TurnError>, status: Option<u16>, text: &str) -> TurnResult {
    TurnResult { ok, error, status, text: Some(text.into()), ..TurnResult::default() }
}

#[test]
fn api_error_that_a_one_shot_agent_reports_is_its_end() {
    for (error, status, reason) in [
        (TurnError::Auth, Some(401), "the model API refused the key (HTTP 401): no"),
        (TurnError::RateLimit, Some(429), "the model API: rate limited (HTTP 429): no"),
        (TurnError::ApiError, Some(503), "the model API: overloaded (HTTP 503): no"),
        (TurnError::ApiError, None, "model API error: no"),
        (TurnError::Other, None, "the turn failed: no"),
    ] {
        // Some CLIs exit with 0 after it.
        for code in [0, 1] {
            let mut told = Told::spawned(ONE_SHOT);
            told.result(reported(false, Some(error), status, "no"));
            assert!(told.d.result.value.is_none() && !told.d.is_finished());
            told.exit(code);
            assert_eq!(
                (told.finished(), told.d.reason.as_deref()),
                (FinalState::Failed, Some(reason)),
                "{error:?} {code}"
            );
        }
    }
}

#[test]
fn a_one_shot_agent_that_recovers_from_an_api_error_ends_well() {
    let mut told = Told::spawned(ONE_SHOT);
    told.result(reported(false, Some(TurnError::RateLimit), Some(429), "no"));
    told.result(reported(true, None, None, "made it"));
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
    assert_eq!(told.d.result.value.unwrap().summary, "made it");
}

#[test]
fn answer_of_a_one_shot_agent_is_its_result() {
    for (text, status, summary) in [
        ("done", ResultStatus::Success, "done"),
        (r#"{"status":"failed","summary":"no"}"#, ResultStatus::Failed, "no"),
        (r#"{"status":"odd"}"#, ResultStatus::Success, r#"{"status":"odd"}"#),
    ] {
        let mut told = Told::spawned(ONE_SHOT);
        told.result(reported(true, None, None, text));
        let result = told.d.result.value.as_ref().unwrap();
        assert_eq!((result.status, result.summary.as_str()), (status, summary), "{text}");
    }
    // Its last message is the answer if the result has none. It may come in pieces.
    let mut told = Told::spawned(ONE_SHOT);
    let said = |text: &str| AgentEvent::Text { chars: 1, text: text.into() };
    let input = json!({"command": "ls"});
    told.line(vec![said("I look.")]);
    told.line(vec![AgentEvent::ToolCall { id: "c".into(), name: "Bash".into(), input }]);
    told.line(vec![said(r#"{"status":"partial","sum"#)]);
    told.line(vec![said(r#"mary":"done"}"#)]);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Partial);
    assert_eq!(told.d.result.value.unwrap().summary, "done");
}

#[test]
fn interrupted_one_shot_agent_is_interrupted_whatever_its_exit_code() {
    for code in [0, 1, 130] {
        let mut told = Told::spawned(ONE_SHOT);
        assert!(told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() }));
        told.exit(code);
        assert_eq!(
            (told.finished(), told.d.reason.as_deref()),
            (FinalState::Partial, Some("interrupted, then its process ended"))
        );
    }
}

#[test]
fn crash_after_a_success_result_discards_the_result() {
    let mut told = Told::spawned(ONE_SHOT);
    told.result(well());
    told.exit(3);
    assert_eq!(told.finished(), FinalState::Failed);
    let Some(Event::DispatchFinished { result: Some(result), .. }) = told.log.last() else {
        panic!("no result: {:?}", told.log.last())
    };
    assert_eq!((result.status, result.summary.as_str()), (ResultStatus::Failed, "done"));
    assert_eq!(result.issues, ["exit code 3"]);
}

#[test]
fn crash_after_a_blocked_result_keeps_the_result() {
    let mut told = Told::spawned(ONE_SHOT);
    told.result(TurnResult {
        structured: Some(json!({"status": "blocked", "summary": "no key"})),
        ..well()
    });
    told.exit(3);
    assert_eq!(told.finished(), FinalState::Failed);
    let result = told.d.result.value.unwrap();
    assert_eq!((result.status, result.issues), (ResultStatus::Blocked, vec![]));
}

#[test]
fn an_invalid_result_line_fails_a_one_shot_agent_naming_the_fault() {
    let mut told = Told::spawned(ONE_SHOT);
    told.result(TurnResult {
        structured: Some(json!({"status": "done"})),
        ..TurnResult::default()
    });
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().contains("`summary` is missing"));
}

/// Contract, "Variables every agent gets": a result must be the last line.
#[test]
fn a_result_that_is_not_the_last_line_decides_nothing() {
    let more = || vec![AgentEvent::Output { text: String::new() }];
    let said = |status: &str| TurnResult {
        structured: Some(json!({"status": status, "summary": "s"})),
        ..well()
    };
    for status in ["failed", "done"] {
        let mut told = Told::spawned(ONE_SHOT);
        told.result(said(status));
        told.line(more());
        told.line(more());
        assert_eq!(
            told.log.iter().filter(|event| **event == Event::ResultOvertaken {}).count(),
            1,
            "{status}"
        );
        told.exit(0);
        assert_eq!((told.finished(), &told.d.reason), (FinalState::Success, &None), "{status}");
    }
    let mut told = Told::spawned(ONE_SHOT);
    told.result(said("failed"));
    told.line(more());
    told.result(said("partial"));
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Partial);
    // An agent with turns reports in each result how the turn ended.
    let mut told = Told::spawned(MULTI);
    told.result(well());
    told.line(more());
    assert!(told.d.result.value.is_some());
}

#[test]
fn one_shot_agent_with_a_dead_shim_has_an_unknown_outcome() {
    let mut told = Told::spawned(ONE_SHOT);
    told.shim_lost(true, true);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().starts_with("outcome unknown"));
}

/// Between the admission and its reading, the dispatch was killed, ended, and was reopened: its
/// slot belongs to another dispatch by then.
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

/// Starts daemons on a machine with these boot ids. A daemon of the boot `one` wrote all events
/// before.
fn begin_again(told: &mut Told, boots: &[&str]) {
    let began = |boot: &str| {
        (
            None,
            Event::DaemonStarted {
                pid: 1,
                generation: 1,
                version: String::new(),
                boot_id: boot.into(),
                settings: None,
            },
        )
    };
    let id = Some(told.d.id.clone());
    let mut events = vec![
        began("one"),
        (id.clone(), Event::DispatchCreated(Box::new((*told.d.created).clone()))),
    ];
    events.extend(told.log.iter().map(|event| (id.clone(), event.clone())));
    events.extend(boots.iter().map(|boot| began(boot)));
    let mut fleet = crate::dispatch::fleet::Fleet::default();
    for (seq, (dispatch_id, event)) in (1..).zip(events) {
        let entry = Entry { id: String::new(), dispatch_id, at: None, more: false, event };
        fleet.apply(&Record { v: VERSION, seq, ts: Timestamp::UNIX_EPOCH, entry });
    }
    told.d = (**fleet.get(&told.d.id).unwrap()).clone();
}

/// A power cut loses unsynced files: an empty directory does not prove that the shim never ran.
#[test]
fn attempt_without_traces_may_have_run_before_a_reboot() {
    for (boots, ran) in [(&["one"][..], false), (&["two", "two"], true)] {
        let mut told = Told::new(ONE_SHOT);
        told.admit();
        assert!(matches!(told.d.phase, Phase::Starting { .. }), "{:?}", told.d.phase);
        begin_again(&mut told, boots);
        told.shim_lost(false, true);
        let unknown =
            told.d.reason.as_ref().is_some_and(|reason| reason.starts_with("outcome unknown"));
        assert_eq!(unknown, ran, "{boots:?}: {:?}", told.d.phase);
        // An attempt that never ran is retried.
        assert_eq!(
            matches!(told.d.phase, Phase::Closing { .. } | Phase::Finished { .. }),
            ran,
            "{:?}",
            told.d.phase
        );
    }
}

/// After a reboot, a clone in which nobody has worked is not trusted. An agent that has worked is
/// told once what may be lost.
#[test]
fn files_are_doubtful_after_a_reboot_until_a_turn_ends() {
    let doubts = |told: &Told| (told.d.files.unsynced, told.d.distrusts_clone());
    let mut told = Told::new(MULTI);
    told.admit();
    begin_again(&mut told, &["one"]);
    assert_eq!(doubts(&told), (false, false));
    begin_again(&mut told, &["two"]);
    assert_eq!(doubts(&told), (true, true));

    let mut told = Told::spawned(MULTI);
    begin_again(&mut told, &["two"]);
    assert_eq!(doubts(&told), (true, false));
    let turn =
        |ok| Event::TurnFinished { turn: 1, ok, error: None, status: None, text: String::new() };
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
fn one_shot_agent_ended_by_its_lease_names_the_lease() {
    let mut told = Told::spawned(ONE_SHOT);
    told.exit_by(Some(143), ExitCause::LeaseExpired);
    assert_eq!(told.finished(), FinalState::Failed);
    assert!(told.d.reason.unwrap().contains("lease"));
}

#[test]
fn one_shot_agent_rejects_a_second_prompt() {
    assert!(!Told::spawned(ONE_SHOT).send("s1"));
}

// ---- Agents of one process a turn

#[test]
fn final_message_of_a_turn_is_the_result() {
    let mut told = Told::spawned(BY_TURNS);
    assert!(told.has(&Effect::Prompt { key: "p1".into(), close: true }));
    told.begins("s1");
    told.says("I look around.");
    told.answers(ANSWER);
    assert_eq!((told.finished(), told.d.turns, told.d.attempts), (FinalState::Success, 1, 1));
    assert_eq!(told.d.result.value.unwrap().summary, "done");
}

#[test]
fn text_before_the_turn_is_not_its_answer() {
    let mut told = Told::by_turns();
    told.answers(ANSWER);
    told.send("more");
    told.admit();
    told.spawn();
    told.begins("s1");
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    assert!(told.d.result.value.is_none() && told.d.result.repair_used);
}

#[test]
fn empty_text_does_not_replace_the_last_message() {
    let mut told = Told::by_turns();
    told.says(ANSWER);
    told.says(" \n");
    told.answers("");
    assert_eq!(told.d.result.value.unwrap().summary, "done");
}

/// An invalid result document is a part of the agent's message.
#[test]
fn text_counts_as_result_if_none_is_required() {
    for words in ["See for yourself:\n{\"status\": \"done\"}", "All done."] {
        let mut told = Told::by_turns();
        Arc::make_mut(&mut told.d.created).wants_result = false;
        told.answers(words);
        assert_eq!(told.finished(), FinalState::Success);
        let result = told.d.result.value.unwrap();
        assert_eq!((result.status, result.summary.as_str()), (ResultStatus::Success, words));
    }
}

#[test]
fn prose_result_is_repaired_by_the_next_process_in_the_same_session() {
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
fn single_turn_process_leaves_messages_to_the_next_process() {
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

/// The fleet's simulator found this: a clock that was set back by hours made a restart wait for
/// hours.
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
fn process_killed_during_a_turn_resumes_with_a_counted_restart() {
    for well in [true, false] {
        let mut told = Told::by_turns();
        // An exit without a result ends no turn, whatever its code.
        told.exit_by(well.then_some(0), ExitCause::Exited);
        let key = told.restarted().delivers().unwrap();
        assert_eq!((told.kind(&key), told.counted()), (PromptKind::Continue, 1));
        assert!(told.has(&Effect::EnsureShim { epoch: 2, resume: None }), "adopted");
        assert!(told.log.iter().any(
            |event| matches!(event, Event::AttemptStarted { resume: Some(s), .. } if s == "s1")
        ));
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
fn prompt_that_was_not_started_is_resent() {
    let mut told = Told::spawned(BY_TURNS);
    told.session("s1");
    told.exit(1);
    assert_eq!(told.restarted().delivers().as_deref(), Some("p1"));
}

#[test]
fn interrupt_ends_the_process_and_a_message_resumes_the_session() {
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
    assert_eq!((told.finished(), told.d.session.id.as_deref()), (FinalState::Success, Some("s1")));
}

#[test]
fn session_usage_is_counted_once_across_processes() {
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
fn usage_of_a_new_session_is_counted_separately() {
    let mut told = Told::by_turns();
    told.d.session.id = None;
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

/// A name becomes a part of events, and their size is bounded.
#[test]
fn a_name_out_of_all_proportion_is_none() {
    let mut told = Told::busy();
    let before = (told.d.session.id.clone(), told.d.session.model.clone());
    told.session(&"s".repeat(513));
    assert_eq!((told.d.session.id.clone(), told.d.session.model.clone()), before);
    let model = Some("m".repeat(513));
    told.line(vec![AgentEvent::Session { model, cwd: None, session_id: Some("s".repeat(512)) }]);
    assert_eq!(
        (told.d.session.id.clone(), told.d.session.model.clone()),
        (Some("s".repeat(512)), before.1)
    );
}

#[test]
fn quoted_result_counts_only_without_a_separate_result() {
    let doc = |status: &str, quoted| TurnResult {
        ok: status == "success",
        structured: Some(json!({"status": status, "summary": "s"})),
        quoted,
        ..TurnResult::default()
    };
    for (results, end) in [
        (&[("failed", true)][..], FinalState::Failed),
        (&[("success", false), ("failed", true)], FinalState::Success),
        (&[("failed", true), ("success", false)], FinalState::Success),
        (&[("failed", false), ("success", true)], FinalState::Failed),
        (&[("success", true), ("failed", true)], FinalState::Failed),
    ] {
        let mut told = Told::spawned(ONE_SHOT);
        for (status, quoted) in results {
            told.result(doc(status, *quoted));
        }
        told.exit(0);
        assert_eq!(told.finished(), end, "{results:?}");
    }
}
