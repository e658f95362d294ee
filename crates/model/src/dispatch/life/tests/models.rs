//! Changes of the model, and models that cannot be used.

use crate::agent::acp_handshake::{Call, CallAnswer, MODEL};
use crate::dispatch::life::tests::*;

fn asks_for(told: &mut Told, key: &str, model: &str) {
    let (key, model) = (key.into(), model.into());
    told.fold(None, Event::ModelRequested { key, model, by: "operator".into() });
    told.settle();
}

fn model_in_use(told: &Told) -> Option<&str> {
    told.d.model_in_use().map(String::as_str)
}

fn no_such_model() -> TurnResult {
    TurnResult {
        ok: false,
        error: Some(TurnError::ApiError),
        status: Some(404),
        text: Some("The model huge does not exist".into()),
        ..TurnResult::default()
    }
}

/// A dispatch that has ended, and whose CLI never names its model.
fn ended() -> Told {
    let mut told = Told::spawned(BY_TURNS);
    Arc::make_mut(&mut told.d.created).model = Some("small".into());
    told.begins("s1");
    told.answers(ANSWER);
    told
}

fn started_again(told: &mut Told, prompt: &str) {
    told.send(prompt);
    told.admit();
    told.spawn();
}

#[test]
fn requested_model_is_shown_once_no_process_has_another() {
    let mut told = Told::by_turns();
    Arc::make_mut(&mut told.d.created).model = Some("small".into());
    asks_for(&mut told, "m1", "large");
    assert_eq!(model_in_use(&told), Some("small"), "the process has it");
    told.answers(ANSWER);
    assert_eq!(model_in_use(&told), Some("large"));

    let mut told = ended();
    asks_for(&mut told, "m1", "large");
    assert_eq!(model_in_use(&told), Some("large"));
    started_again(&mut told, "p2");
    assert_eq!((model_in_use(&told), told.d.model()), (Some("large"), Some(&"large".to_string())));
}

/// Use belongs to the model of its turn, although the CLI reports one sum for the session.
#[test]
fn use_is_counted_for_the_model_of_its_turn() {
    let used = |input: u64| {
        let usage = ModelUsage { input, ..ModelUsage::default() };
        TurnResult { per_session: vec![usage], ..well() }
    };
    let mut told = Told::spawned(BY_TURNS);
    Arc::make_mut(&mut told.d.created).model = Some("small".into());
    told.begins("s1");
    told.result(used(200));
    told.exit(0);
    asks_for(&mut told, "m1", "large");
    started_again(&mut told, "p2");
    told.begins("s1");
    told.result(used(350));
    told.exit(0);
    let of = |model: &str| told.d.spend.per_model[model].input;
    assert_eq!((of("small"), of("large"), told.d.spend.input), (200, 150, 350));
}

#[test]
fn price_holds_in_every_turn_of_a_session() {
    let price =
        crate::config::Price { input: 1.0, output: 0.0, cache_read: None, cache_write: None };
    let used = |input: u64| {
        let usage = ModelUsage { input, ..ModelUsage::default() };
        TurnResult { per_session: vec![usage], ..well() }
    };
    let mut told = Told::by_turns();
    Arc::make_mut(&mut told.d.created).api.price = Some(price);
    told.result(used(1_000_000));
    told.exit(0);
    started_again(&mut told, "p2");
    told.begins("s1");
    told.result(used(3_000_000));
    assert!((told.cost() - 3.0).abs() < 1e-9, "{}", told.cost());
}

/// Each restart with a model that does not exist would fail like the first.
#[test]
fn model_that_the_api_does_not_have_is_refused_and_the_old_one_answers() {
    let mut told = ended();
    asks_for(&mut told, "m1", "huge");
    started_again(&mut told, "p2");
    told.begins("s1");
    told.result(no_such_model());
    told.exit(1);
    let refused = |event: &&Event| matches!(event, Event::ModelRefused { key, .. } if key == "m1");
    assert_eq!(told.log.iter().filter(refused).count(), 1, "{:?}", told.log);
    assert_eq!((told.counted(), model_in_use(&told)), (0, Some("small")));
    told.spawn();
    told.begins("s1");
    told.answers(ANSWER);
    assert_eq!(
        (told.finished(), told.d.model().map(String::as_str)),
        (FinalState::Success, Some("small"))
    );
}

#[test]
fn cli_that_does_not_start_with_a_model_goes_on_with_the_old_one() {
    let mut told = ended();
    asks_for(&mut told, "m1", "huge");
    started_again(&mut told, "p2");
    let (at, epoch) = (told.next(), told.d.epoch);
    let stderr_tail = "starting\nerror: unknown model `huge`\n".to_string();
    let cause = ExitCause::Exited;
    let exit = Exit { code: Some(1), signal: None, cause, stderr_tail, left: vec![] };
    told.feed(Input::Exited { at, epoch, exit, awake_ms: 0 });
    assert_eq!((told.counted(), model_in_use(&told)), (0, Some("small")));
}

#[test]
fn model_with_which_a_turn_ended_well_stays() {
    let mut told = ended();
    asks_for(&mut told, "m1", "huge");
    started_again(&mut told, "p2");
    told.begins("s1");
    told.answers(ANSWER);
    assert_eq!(told.d.model.on_trial, None);
    started_again(&mut told, "p3");
    told.begins("s1");
    told.result(no_such_model());
    told.exit(1);
    assert_eq!((told.finished(), model_in_use(&told)), (FinalState::Failed, Some("huge")));
}

/// The turn in which a CLI takes a new model may end with the answer of the old one.
#[test]
fn model_that_was_confirmed_in_a_turn_is_on_trial_in_the_next() {
    let mut told = Told::busy();
    asks_for(&mut told, "m1", "huge");
    let text = String::new();
    told.line(vec![AgentEvent::Reply { id: "m1".into(), ok: true, text }]);
    told.send("p2");
    told.result(chat());
    assert!(told.d.model.on_trial.is_some());
    told.receipt("p2");
    told.result(no_such_model());
    told.exit(1);
    assert!(told.log.iter().any(|event| matches!(event, Event::ModelRefused { .. })));
    assert_eq!(told.counted(), 0);
}

#[test]
fn trouble_of_another_kind_refuses_no_model() {
    for result in [failed(TurnError::Auth), failed(TurnError::Other), failed(TurnError::ApiError)] {
        let mut told = ended();
        asks_for(&mut told, "m1", "huge");
        started_again(&mut told, "p2");
        told.begins("s1");
        told.result(result);
        told.exit(1);
        assert!(!told.log.iter().any(|event| matches!(event, Event::ModelRefused { .. })));
    }
}

#[test]
fn second_request_keeps_the_model_before_the_first() {
    let mut told = ended();
    asks_for(&mut told, "m1", "huge");
    asks_for(&mut told, "m2", "giant");
    started_again(&mut told, "p2");
    told.begins("s1");
    told.result(no_such_model());
    told.exit(1);
    assert_eq!(told.d.model().map(String::as_str), Some("small"));
}

/// An agent refuses the model by a call, or confirms it and keeps its own, or offers no choice.
#[test]
fn agent_that_refuses_a_model_at_its_start_keeps_the_old_one() {
    let refused = CallAnswer::Refused {
        call: MODEL.into(),
        message: "no such model".into(),
        auth: false,
        missing: false,
    };
    let kept = CallAnswer::ModelSet { model: Some("small".into()) };
    for (by, answer) in
        [(Some("option model"), Some(refused)), (Some("option model"), Some(kept)), (None, None)]
    {
        let mut told = Told::called();
        told.greets(true);
        told.opens(Some("s1"), Some("option model"));
        told.says(ANSWER);
        told.result(TurnResult { ok: true, ..TurnResult::default() });
        told.exit(0);
        assert_eq!(told.finished(), FinalState::Success);
        asks_for(&mut told, "m1", "huge");
        started_again(&mut told, "p2");
        told.greets(true);
        told.opens(None, by);
        if let Some(answer) = answer {
            assert_eq!(
                told.calls(),
                Some(Call::SetModel { by: "option model".into(), model: "huge".into() })
            );
            told.line(vec![AgentEvent::CallAnswer(answer)]);
        }
        assert_eq!((told.calls(), told.on_its_way().as_deref()), (None, Some("p2")));
        assert_eq!((model_in_use(&told), told.d.model()), (Some("small"), None));
        assert!(told.log.iter().any(|event| matches!(event, Event::ModelRefused { .. })));
    }
}

/// The answer about the model of the process comes after another model was requested.
#[test]
fn model_refused_while_another_is_requested_refuses_the_first_request() {
    let mut told = Told::called();
    told.greets(true);
    told.opens(Some("s1"), Some("option model"));
    told.says(ANSWER);
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    told.exit(0);
    asks_for(&mut told, "m1", "huge");
    started_again(&mut told, "p2");
    told.greets(true);
    told.opens(None, Some("option model"));
    let set = |model: &str| Some(Call::SetModel { by: "option model".into(), model: model.into() });
    assert_eq!(told.calls(), set("huge"));
    asks_for(&mut told, "m2", "giant");
    assert_eq!(told.calls(), set("huge"), "the call that is under way stays the same");
    let refused = CallAnswer::Refused {
        call: MODEL.into(),
        message: "no such model".into(),
        auth: false,
        missing: false,
    };
    told.line(vec![AgentEvent::CallAnswer(refused)]);
    let refused: Vec<_> = told
        .log
        .iter()
        .filter_map(|event| match event {
            Event::ModelRefused { key, .. } => Some(key.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(refused, ["m1"]);
    assert_eq!((told.calls(), awaited(&told.d)), (None, None), "it waits for no answer");
    assert!(told.has(&Effect::SetModel { key: "m2".into(), model: "giant".into() }));
    told.line(vec![AgentEvent::Reply { id: "m2".into(), ok: false, text: "no".into() }]);
    assert_eq!((model_in_use(&told), told.d.model()), (Some("small"), None));
}

/// A model that is requested while the session opens is set when the session is open.
#[test]
fn model_requested_while_the_session_opens_follows_the_opening() {
    let mut told = Told::called();
    asks_for(&mut told, "m1", "huge");
    told.greets(true);
    told.opens(Some("s1"), Some("option model"));
    assert_eq!(told.calls(), None);
    assert!(told.has(&Effect::SetModel { key: "m1".into(), model: "huge".into() }));
    told.line(vec![AgentEvent::Reply { id: "m1".into(), ok: false, text: "no".into() }]);
    assert_eq!((told.d.state(), told.d.model()), ("running", None));
}
