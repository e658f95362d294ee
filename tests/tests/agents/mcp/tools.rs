//! Every tool of Muleteer's MCP server, called by the real agents.

#![allow(clippy::unwrap_used)]

use muleteer_model::event::mcp::Tool;
use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::Step;
use muleteer_tests::{Scene, World, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

/// The time limit of a turn with all tools on a loaded machine.
const LONG: Duration = Duration::from_secs(180);

/// Adds a role whose agents play the default scenario.
fn helper_role(world: &World) {
    let dir = world.path().join("config/muleteer/roles");
    std::fs::create_dir_all(&dir).unwrap();
    let role = "---\nname: helper\nbackend: rehearsal\n---\n\nYou help.\n";
    std::fs::write(dir.join("helper.md"), role).unwrap();
}

/// The calls, each with a part of its result. A field in `<>` has the value that an earlier result
/// gave it.
fn calls() -> Vec<(Tool, Value, &'static str)> {
    let child = json!({"dispatch_id": "<dispatch_id>"});
    vec![
        (Tool::Note, json!({"text": "Chose a map: order matters."}), "recorded"),
        (Tool::ReportProgress, json!({"text": "half of it", "percent": 50}), "recorded"),
        (Tool::GetBudget, json!({}), "spent_usd"),
        (Tool::GetStatus, json!({}), "half of it"),
        (Tool::ListTasks, json!({}), "tasks"),
        (Tool::GetTaskContext, json!({}), "thread_id"),
        (Tool::ReadThread, json!({"limit": 3}), "message-alfa"),
        (Tool::SendMessage, json!({"text": "I am at it."}), "message_id"),
        (Tool::DraftAgent, json!({"role": "helper", "prompt": "help"}), "dispatch_id"),
        (Tool::ListAgents, json!({}), "helper"),
        (
            Tool::MessageAgent,
            json!({"dispatch_id": "<dispatch_id>", "text": "and more"}),
            "message_id",
        ),
        (Tool::KillAgent, child.clone(), "dispatch_id"),
        (Tool::AwaitAgent, json!({"dispatch_ids": ["<dispatch_id>"]}), "agents"),
        (Tool::ReadJournal, child, "text"),
        (Tool::AskHuman, json!({"question": "Which colour?"}), "ultramarine"),
        (Tool::AwaitAnswer, json!({"question_id": "<question_id>"}), "ultramarine"),
    ]
}

/// Returns the results of calls that the model was told last, in order.
fn results(scene: &Scene) -> Vec<String> {
    let last = scene.server.main_requests().pop().unwrap().body;
    let of_messages = last["messages"].as_array().into_iter().flatten();
    let of_messages = of_messages.flat_map(|message| message["content"].as_array()).flatten();
    let of_messages = of_messages.filter(|part| part["type"] == "tool_result");
    let of_input = last["input"].as_array().into_iter().flatten();
    let of_input = of_input.filter(|item| item["type"] == "function_call_output");
    of_messages.chain(of_input).map(Value::to_string).collect()
}

fn calls_every_tool(scene: Option<Scene>) {
    let Some(scene) = scene else { return };
    helper_role(&scene.world);
    let daemon = scene.world.daemon();
    let thread = scene.open_thread(&[]);
    scene.world.muleteer(&["thread", "send", &thread, "message-alfa"]).ok();
    let question = wait_until("the question", LONG, || {
        let all = scene.world.muleteer(&["questions", "--json"]).json();
        all["questions"][0]["id"].as_str().map(String::from)
    });
    scene.world.muleteer(&["answer", &question, "--text", "ultramarine"]).ok();
    let shown = wait_until("the end of the turn", LONG, || {
        let shown = scene.world.muleteer(&["thread", "show", &thread, "--json"]).json();
        (shown["messages"][0]["state"] == "answered").then_some(shown)
    });
    let id = shown["dispatch_id"].as_str().unwrap();
    let results = results(&scene);
    assert_eq!(results.len(), calls().len(), "each call was made once: {results:?}");
    for ((tool, _, part), result) in calls().into_iter().zip(&results) {
        assert!(result.contains(part), "{}: {result}", tool.name());
        assert!(!result.contains("\"is_error\":true"), "{}: {result}", tool.name());
    }
    let called = scene.world.events_of(id, "tool_called");
    for tool in Tool::all() {
        // As rules name it.
        let name = format!("mcp__muleteer__{}", tool.name());
        let count = called.iter().filter(|event| event["tool"] == name).count();
        assert_eq!(count, 1, "{name}: {called:?}");
    }
    let journal = scene.world.muleteer(&["journal", id]).ok();
    assert!(journal.contains("note: Chose a map"), "{journal}");
    assert_eq!(scene.world.dispatch(id)["attempts"], 1);
    scene.world.finish(Some(daemon));
}

fn steps() -> Vec<Step> {
    let call = |(tool, arguments, _): (Tool, Value, _)| {
        Step::tool(&format!("mcp__muleteer__{}", tool.name()), arguments)
    };
    calls().into_iter().map(call).chain([Step::text("it is done").times(3)]).collect()
}

#[test]
fn script_calls_every_tool_of_the_contract() {
    let called: Vec<_> = calls().into_iter().map(|(tool, _, _)| tool).collect();
    let missing: Vec<_> = Tool::all().filter(|tool| !called.contains(tool)).collect();
    assert_eq!((missing, called.len()), (vec![], Tool::all().count()));
}

#[test]
fn claude_calls_every_tool() {
    calls_every_tool(Scene::claude("claude_calls_every_tool", steps()));
}

#[test]
fn codex_calls_every_tool() {
    calls_every_tool(Scene::codex("codex_calls_every_tool", steps()));
}

#[test]
fn claude_acp_calls_every_tool() {
    calls_every_tool(Scene::acp("claude_acp_calls_every_tool", Agent::Claude, steps()));
}

#[test]
fn codex_acp_calls_every_tool() {
    calls_every_tool(Scene::acp("codex_acp_calls_every_tool", Agent::Codex, steps()));
}
