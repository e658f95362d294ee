//! Counted use, and output that is read again.

use crate::dispatch::life::tests::*;

// ---- Books

#[test]
fn cumulative_cost_is_counted_once_for_each_process() {
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
    assert_eq!(
        (told.cost(), told.d.spend.per_model["a"].cost_usd, told.d.spend.output),
        (2.25, 2.0, 225)
    );
}

#[test]
fn usage_reported_for_a_turn_is_counted() {
    let mut told = Told::busy();
    told.send("s1");
    let turn = |used: f64, total: f64| TurnResult {
        per_model: vec![cost("a", total)],
        per_model_turn: vec![cost("a", used)],
        cost_usd: Some(total),
        ..well()
    };
    // Totals that continue those of a resumed session.
    told.result(turn(1.0, 8.0));
    told.receipt("s1");
    told.result(turn(0.5, 8.5));
    assert_eq!(told.cost(), 1.5);
}

#[test]
fn total_usage_is_counted_by_its_growth() {
    let mut told = Told::busy();
    told.send("s1");
    told.result(TurnResult { cost_usd: Some(1.0), ..well() });
    told.receipt("s1");
    told.result(TurnResult { cost_usd: Some(1.25), ..well() });
    assert_eq!(told.cost(), 1.25);
}

#[test]
fn usage_repeated_in_the_result_is_not_counted_twice() {
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
fn total_usage_includes_usage_of_single_calls() {
    let mut told = Told::busy();
    told.send("s1");
    let call = |cost_usd: f64| AgentEvent::Usage {
        total_usd: None,
        input: 10,
        output: 5,
        cost_usd,
        cache_read: 0,
        cache_write: 0,
        model: Some("a".into()),
        call: None,
    };
    told.line(vec![call(0.5), call(0.25)]);
    told.result(TurnResult { cost_usd: Some(0.75), ..well() });
    assert_eq!(told.cost(), 0.75);
    told.receipt("s1");
    told.line(vec![call(0.25)]);
    told.result(TurnResult { cost_usd: Some(1.5), ..well() });
    assert_eq!(told.cost(), 1.5, "and a half that no call had told");
}

#[test]
fn whatever_was_used_is_noted_and_nothing_is_not() {
    let none = || ModelUsage { model: "a".into(), ..ModelUsage::default() };
    for (used, noted) in [
        (none(), 0),
        (ModelUsage { input: 1, ..none() }, 1),
        (ModelUsage { output: 1, ..none() }, 1),
        (ModelUsage { cache_read: 1, ..none() }, 1),
        (ModelUsage { cache_write: 1, ..none() }, 1),
        (ModelUsage { cost_usd: 0.01, ..none() }, 1),
    ] {
        let mut told = Told::busy();
        told.result(TurnResult { per_model_turn: vec![used.clone()], ..well() });
        let books =
            told.log.iter().filter(|event| matches!(event, Event::UsageRecorded { .. })).count();
        assert_eq!(books, noted, "{used:?}");
    }
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
fn repeated_records_decide_nothing() {
    let mut told = Told::spawned(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.line(vec![
        AgentEvent::Text { chars: 2, text: "hm".into() },
        AgentEvent::ToolCall {
            id: "t".into(),
            name: "Bash".into(),
            input: json!({"command": "ls"}),
        },
    ]);
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    told.result(TurnResult {
        per_model_turn: vec![cost("a", 1.0)],
        ..failed(TurnError::Interrupted)
    });
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

/// A CLI reports its session at each turn.
#[test]
fn repeated_session_report_is_ignored() {
    let mut told = Told::spawned(MULTI);
    let mut tells = |session: &str, model: Option<&str>| {
        let (session_id, model) = (Some(session.to_string()), model.map(String::from));
        told.line(vec![AgentEvent::Session { model, cwd: None, session_id }])
    };
    assert!(tells("s1", Some("small")));
    assert!(!tells("s1", Some("small")) && !tells("s1", None));
    assert!(tells("s1", Some("large")) && tells("s2", None));
}

/// Each notice to people is recorded once, and their number is bounded.
#[test]
fn notices_are_recorded_once_and_limited() {
    let mut told = Told::busy();
    let notice =
        |told: &mut Told, text: &str| told.line(vec![AgentEvent::Notice { text: text.into() }]);
    assert!(notice(&mut told, "an update is there") && !notice(&mut told, "an update is there"));
    let told_of = (0..100).filter(|n| notice(&mut told, &format!("notice {n}"))).count();
    assert_eq!((told_of, told.d.warnings.notices.len()), (49, 50));
}

#[test]
fn that_its_context_was_compacted_is_noted() {
    let mut told = Told::busy();
    told.line(vec![AgentEvent::Compaction { before: 200_000, after: 30_000 }]);
    assert_eq!(told.log.last(), Some(&Event::Compacted { before: 200_000, after: 30_000 }));
}

#[test]
fn every_event_of_a_line_is_decided() {
    let mut told = Told::spawned(MULTI);
    told.line(vec![AgentEvent::Text { chars: 2, text: "hm".into() }, AgentEvent::Result(well())]);
    assert_eq!((told.d.turns, told.d.prompt("p1").unwrap().state), (1, PromptState::Done));
    assert_eq!(
        told.log.iter().filter(|event| matches!(event, Event::TurnStarted { .. })).count(),
        1
    );
}

#[test]
fn an_earlier_epochs_news_is_no_news() {
    let mut told = Told::busy();
    told.exit(1);
    told.restarted();
    let old = Position { epoch: 1, offset: 99_999, skip: 0 };
    assert!(!told.feed(Input::Line { at: old, events: vec![AgentEvent::Result(well())] }));
    let exit = Exit {
        code: Some(0),
        signal: None,
        cause: ExitCause::Exited,
        stderr_tail: String::new(),
        left: vec![],
    };
    assert!(!told.feed(Input::Exited { at: old, epoch: 1, exit, awake_ms: 0 }));
    assert!(!told.feed(Input::ShimLost {
        epoch: 1,
        spawned: true,
        killed: 0,
        clean: true,
        awake_ms: 0,
        said: String::new(),
        left: vec![],
    }));
}

#[test]
fn our_own_keys_are_stable_distinct_uuids() {
    let id = DispatchId::try_from("abcd2345".to_string()).unwrap();
    let key = prompt_key(&id, PromptKind::Continue, 2);
    assert_eq!(key, prompt_key(&id, PromptKind::Continue, 2));
    assert_ne!(key, prompt_key(&id, PromptKind::Repair, 2));
    assert_eq!(key.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
}
