//! Scenarios: the built-in one, every key, and every kind of error.

#![allow(clippy::unwrap_used)]

use muleteer_backends::Backend;
use muleteer_backends::rehearsal::Rehearsal;
use muleteer_model::agent::event::AgentEvent;
use muleteer_model::agent::result::{ResultStatus, validate};
use muleteer_rehearsal::scenario::{DEFAULT, Scenario, Step};
use muleteer_rehearsal::step::{Act, Noise, Outcome, plan, report};
use muleteer_rehearsal::{UnknownVariable, Vars};
use std::time::Duration;

fn step(text: &str) -> Step {
    let scenario = Scenario::parse(&format!("v: 1\nturns: [{{steps: [{text}]}}]"), "test").unwrap();
    scenario.turns[0].steps[0].clone()
}

#[test]
fn the_built_in_scenario_ends_in_a_valid_result() {
    let scenario = Scenario::parse(DEFAULT, "default").unwrap();
    let vars = Vars::from_env([]);
    let last = scenario.turns[0].steps.last().unwrap();
    match plan(last, "c", "m", &vars).unwrap().act {
        Act::EndTurn(result) => {
            let result = validate(&result.structured.unwrap()).unwrap();
            assert_eq!(
                (result.status, result.changes),
                (ResultStatus::Success, vec!["rehearsal-alone.md".to_string()])
            );
        }
        other => panic!("{other:?}"),
    }
}

/// docs/guides/rehearsal.md contains whole scenarios, and all of them must work.
#[test]
fn the_documented_scenarios_are_read() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/rehearsal.md");
    let docs = std::fs::read_to_string(page).unwrap();
    let blocks: Vec<_> =
        docs.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() > 2);
    for block in blocks {
        Scenario::parse(block, "docs/guides/rehearsal.md")
            .unwrap_or_else(|fault| panic!("{fault}\n{block}"));
    }
    // The page must also name every step.
    let fault = Scenario::parse("v: 1\nturns: [{steps: [{nonsense: 1}]}]", "x").unwrap_err();
    for step in fault.hint.unwrap().split(": ").nth(1).unwrap().split(", ") {
        assert!(docs.contains(&format!("`{step}`")), "{step} is not documented");
    }
}

#[test]
fn scenario_faults_have_a_place_and_a_hint() {
    let cases = [
        "turns: []",
        "v: 2\nturns: [{steps: []}]",
        "v: 1\nturns: []",
        "v: 1\nturn: []\n",
        "v: 1\nturns:\n  - steps:\n      - say: hi\n      - sya: again\n",
        "v: 1\nturns:\n  - steps:\n      - write: {path: a, txt: b}\n",
        "v: 1\nturns:\n  - steps:\n      - write: {path: a}\n",
        "v: 1\nturns:\n  - steps:\n      - run: {comand: ls}\n",
        "v: 1\nturns:\n  - steps:\n      - run: [ls]\n",
        "v: 1\nturns:\n  - steps:\n      - wait: 5 parsecs\n",
        "v: 1\nturns:\n  - steps:\n      - flood: {bytes: lots}\n",
        "v: 1\nturns:\n  - steps:\n      - result: {status: done, summary: x}\n",
        "v: 1\nturns:\n  - steps:\n      - result: {status: success, sumary: x}\n",
        "v: 1\nturns:\n  - steps:\n      - result: {status: success, summary: x}\n      - say: too \
         late\n",
        "v: 1\nturns:\n  - steps:\n      - crash: {code: 1, signal: KILL}\n",
        "v: 1\nturns:\n  - steps:\n      - crash: {signal: HUPP}\n",
        "v: 1\nturns:\n  - steps:\n      - crash: {code: 0}\n",
        "v: 1\nturns:\n  - steps:\n      - crash: {code: 300}\n",
        "v: 1\nturns:\n  - steps:\n      - exit: 300\n",
        "v: 1\nturns:\n  - steps:\n      - exit: -1\n",
        "v: 1\nturns:\n  - steps:\n      - fail: {error: rate_limits}\n",
        "v: 1\nturns:\n  - steps:\n      - ask: {}\n",
        "v: 1\nturns:\n  - steps:\n      - say\n",
        "v: 1\nturns:\n  - steps: [say: hi\n",
        "v: 1\nv: 1\nturns: [{steps: []}]",
        "",
    ];
    let shown =
        cases.map(|text| format!("{}\n", Scenario::parse(text, "scenario.yaml").unwrap_err()));
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn step_reports_its_action_before_and_its_outcome_after() {
    let vars = Vars::from_env([("MULETEER_BEAD_ID".to_string(), "b-1".to_string())]);
    let planned =
        plan(&step("{write: {path: '${bead}.txt', text: x}}"), "call-1-1", "m", &vars).unwrap();
    assert_eq!(planned.act, Act::Write { path: "b-1.txt".into(), text: "x".into(), append: false });
    let told = report(&planned, &Outcome { ok: false, text: "disk full".into(), exit_code: None });
    let events = [planned.before, told].concat();
    assert_eq!(
        serde_json::to_string(&events).unwrap(),
        concat!(
            r#"[{"type":"tool_call","id":"call-1-1","name":"Write","#,
            r#""input":{"file_path":"b-1.txt","content":"x"}},"#,
            r#"{"type":"tool_result","id":"call-1-1","ok":false,"text":"disk full","#,
            r#""exit_code":null}]"#,
        )
    );
}

#[test]
fn a_command_is_not_expanded_and_everything_else_is() {
    let vars = Vars::from_env([]);
    match plan(&step("{run: 'echo ${nope}'}"), "c", "m", &vars).unwrap().act {
        Act::Run { command, .. } => assert_eq!(command, "echo ${nope}"),
        other => panic!("{other:?}"),
    }
    for text in [
        "{say: '${nope}'}",
        "{tool_call: {name: X, input: {a: ['${nope}']}}}",
        "{commit: '${nope}'}",
    ] {
        assert_eq!(
            plan(&step(text), "c", "m", &vars),
            Err(UnknownVariable { name: "nope".into() }),
            "{text}"
        );
    }
}

#[test]
fn a_loop_is_rounds_of_the_same_call_with_ids_of_their_own() {
    let planned = plan(
        &step("{loop: {name: Grep, input: {pattern: x}, times: 3, every: 2s}}"),
        "c",
        "m",
        &Vars::default(),
    );
    let Act::Rounds { rounds, every } = planned.unwrap().act else { panic!() };
    assert_eq!((rounds.len(), every), (3, Duration::from_secs(2)));
    let ids: Vec<_> = rounds
        .iter()
        .map(|round| match &round[0] {
            AgentEvent::ToolCall { id, .. } => id.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids, ["c.1", "c.2", "c.3"]);
}

#[test]
fn noise_has_the_requested_size() {
    let bytes = |noise: Noise| noise.pieces().map(|piece| piece.len() as u64).sum::<u64>();
    assert_eq!(bytes(Noise::LongLine { bytes: 200_000, newline: false }), 200_000);
    assert_eq!(bytes(Noise::LongLine { bytes: 0, newline: true }), 1);
    assert_eq!(bytes(Noise::Garbage { bytes: 70_000, seed: 3 }), 70_001);
    for (wanted, line) in [(1_000_000, 1000), (10, 1), (200_000, 150_000)] {
        let got = bytes(Noise::Flood { bytes: wanted, line });
        assert!(got >= wanted && got < wanted + line + 100, "{wanted}: {got}");
    }
    // Every line of a flood is an event.
    let mut parser = Rehearsal.parser();
    for piece in (Noise::Flood { bytes: 300_000, line: 500 }).pieces() {
        let all = parser.push(&piece).into_iter().flat_map(|line| line.events);
        assert!(all.into_iter().all(|timed| matches!(timed.event, AgentEvent::Output { .. })));
    }
    assert_eq!(parser.finish(), vec![]);
}
