//! Calls that wait for a person, with periods that a test shortens.

#![allow(clippy::unwrap_used)]

use muleteer_process::fault::PERIODS_VAR;
use muleteer_tests::mcp::Mcp;
use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Scene, World, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);

/// An agent whose turns last until a file exists.
const SLOW: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done\", timeout: 120s}
      - say: \"${prompt}\"
";

/// Returns the only question, once it is in this state.
pub(super) fn question_in(world: &World, state: &str) -> String {
    wait_until(&format!("a question that is {state}"), LONG, || {
        let all = world.muleteer(&["questions", "--all", "--json"]).json();
        let all = all["questions"].as_array()?.clone();
        assert!(all.len() < 2, "it is asked once: {all:?}");
        let first = all.first()?;
        (first["state"] == state).then(|| first["id"].as_str().unwrap_or_default().to_string())
    })
}

/// Opens a thread whose agent is in the middle of a turn, and returns the agent.
pub(super) fn busy_agent(world: &World) -> (muleteer_tests::Repo, String) {
    let repo = world.repo("repo");
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, SLOW).unwrap();
    let (file, project) = (file.to_str().unwrap(), repo.to_str().to_string());
    let args = ["thread", "new", "--backend", "rehearsal", "--scenario", file, "--project"];
    let thread = world.muleteer(&[&args[..], &[&project]].concat()).ok();
    world.muleteer(&["thread", "send", &thread, "begin"]).ok();
    let dispatch = wait_until("the agent's turn", PATIENCE, || {
        let shown = world.muleteer(&["thread", "show", &thread, "--json"]).json();
        let id = shown["dispatch_id"].as_str()?.to_string();
        (repo.effects("heard").len() == 1).then_some(id)
    });
    (repo, dispatch)
}

#[test]
fn unknown_client_gets_the_id_of_the_open_question_and_waits_further() {
    let world = World::new();
    let daemon = world.daemon();
    let (repo, dispatch) = busy_agent(&world);
    let short = [(PERIODS_VAR, "progress=100,patience=1500")];
    let mcp = Mcp::start(&world, Some(&dispatch), &["mcp"], &short);
    let open = mcp.call("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&world, "open");
    assert_eq!((&open["question_id"], &open["state"]), (&json!(question), &json!("open")));
    assert!(mcp.reports() >= 2, "it heard that the call goes on: {}", mcp.reports());
    let again = mcp.call("await_answer", json!({"question_id": question}));
    assert_eq!((&again["question_id"], &again["state"]), (&json!(question), &json!("open")));
    let others = mcp.call("await_agent", json!({"dispatch_ids": [dispatch]}));
    assert_eq!(others["done"], false, "{others}");
    let further = mcp.begin("await_answer", json!({"question_id": question}));
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let further = mcp.end(further);
    // If the answer came between two calls for long enough, it is on its way as a message.
    assert!(further["answer"] == "blue" || further["state"] == "answered", "{further}");
    question_in(&world, "delivered");
    mcp.close();
    repo.write("go", "");
    world.wait_for_state(&dispatch, &["idle"]);
    world.finish(Some(daemon));
}

#[test]
fn client_that_waits_hears_of_progress_and_gets_the_answer() {
    let world = World::new();
    let daemon = world.daemon();
    let (repo, dispatch) = busy_agent(&world);
    let short = [(PERIODS_VAR, "progress=50,patience=100"), ("MULETEER_MCP_LONG_CALLS", "1")];
    let mcp = Mcp::start(&world, Some(&dispatch), &["mcp"], &short);
    let asking = mcp.begin("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&world, "open");
    // That is longer than the patience.
    wait_until("progress", PATIENCE, || (mcp.reports() >= 5).then_some(()));
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    assert_eq!(mcp.end(asking)["answer"], "blue");
    question_in(&world, "delivered");
    mcp.close();
    repo.write("go", "");
    world.wait_for_state(&dispatch, &["idle"]);
    world.finish(Some(daemon));
}

/// Claude Code takes the answer from its stdin in the middle of a turn, and reads it later.
#[test]
fn question_is_not_asked_again_while_its_answer_is_on_its_way() {
    let test = "question_is_not_asked_again_while_its_answer_is_on_its_way";
    let busy = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let Some(scene) = Scene::claude(test, [busy, Step::text("it is done").times(2)]) else {
        return;
    };
    let daemon = scene.world.daemon();
    let thread = scene.open_thread(&[]);
    scene.world.muleteer(&["thread", "send", &thread, "message-alfa"]).ok();
    scene.wait_for_the_tool();
    let show = || scene.world.muleteer(&["thread", "show", &thread, "--json"]).json();
    let dispatch = show()["dispatch_id"].as_str().unwrap().to_string();
    let mut first = Mcp::of(&scene.world, &dispatch);
    let _asking = first.begin("ask_human", json!({"question": "Which colour?"}));
    let question = question_in(&scene.world, "open");
    first.kill_9();
    scene.world.muleteer(&["answer", &question, "--text", "ultramarine"]).ok();
    assert_eq!(question_in(&scene.world, "delivered"), question);
    let second = Mcp::of(&scene.world, &dispatch);
    let again = second.call("ask_human", json!({"question": "Which colour?"}));
    assert_eq!((&again["question_id"], &again["state"]), (&json!(question), &json!("answered")));
    second.close();
    scene.repo.write("go", "");
    wait_until("the answer at the model", LONG, || {
        let is_answered = show()["messages"][0]["state"] == "answered";
        (is_answered && scene.last_told().matches("ultramarine").count() == 1).then_some(())
    });
    assert_eq!(question_in(&scene.world, "delivered"), question);
    scene.world.finish(Some(daemon));
}

/// Codex ends each call after a time that its configuration gives. The question stays.
#[test]
fn answer_after_the_end_of_codexs_call_begins_a_turn() {
    let test = "answer_after_the_end_of_codexs_call_begins_a_turn";
    let ask = Step::tool("mcp__muleteer__ask_human", json!({"question": "Which colour?"}));
    let steps = [ask, Step::text("I go on without it"), Step::text("it is done").times(2)];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon_with(&[(PERIODS_VAR, "longest=3000")]);
    let thread = scene.open_thread(&[]);
    scene.world.muleteer(&["thread", "send", &thread, "message-alfa"]).ok();
    let question = question_in(&scene.world, "open");
    let show = || scene.world.muleteer(&["thread", "show", &thread, "--json"]).json();
    wait_until("the end of the turn", LONG, || {
        (show()["messages"][0]["state"] == "answered").then_some(())
    });
    assert!(scene.last_told().contains("timed out"), "{}", scene.last_told());
    assert_eq!(question_in(&scene.world, "open"), question);
    scene.world.muleteer(&["answer", &question, "--text", "ultramarine"]).ok();
    question_in(&scene.world, "delivered");
    wait_until("the turn with the answer", LONG, || {
        let texts = show()["messages"].to_string();
        texts.contains("it is done").then_some(())
    });
    let told = scene.last_told();
    assert_eq!(told.matches("ultramarine").count(), 1, "{told}");
    let id = show()["dispatch_id"].as_str().unwrap().to_string();
    let queued: Vec<Value> = scene.world.events_of(&id, "prompt_queued");
    assert_eq!(queued.len(), 2, "{queued:?}");
    scene.world.finish(Some(daemon));
}
