//! The scripted model against the real `claude`, without muleteer in between: a fault here is the
//! double's, not the product's.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::{World, claude};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs claude once and returns its stream-json events.
fn run(world: &World, binary: &Path, server: &ModelServer, more: &[&str]) -> Vec<Value> {
    let repo = world.repo("repo");
    let mut command = Command::new(binary);
    world.environment(&mut command);
    command.current_dir(&repo.path).envs(claude::variables(server)).stdin(Stdio::null());
    command.args(["-p", "write it", "--output-format", "stream-json", "--verbose"]);
    command.args(["--dangerously-skip-permissions"]).args(more);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn result(events: &[Value]) -> &Value {
    events
        .iter()
        .rev()
        .find(|event| event["type"] == "result")
        .unwrap_or_else(|| panic!("no result in {events:?}"))
}

#[test]
fn a_tool_call_and_an_answer() {
    let Some(binary) = claude::binary("a_tool_call_and_an_answer") else { return };
    let world = World::new();
    let server =
        ModelServer::start([Step::bash("echo hello > made.txt"), Step::text("It is done.")]);
    let events = run(&world, &binary, &server, &[]);
    assert_eq!(result(&events)["is_error"], false);
    assert_eq!(result(&events)["result"], "It is done.");
    assert_eq!(std::fs::read_to_string(world.path().join("repo/made.txt")).unwrap(), "hello\n");
    assert_eq!(server.main_requests().len(), 2);
}

#[test]
fn a_schema_is_answered_through_its_tool() {
    let Some(binary) = claude::binary("a_schema_is_answered_through_its_tool") else { return };
    let world = World::new();
    let server = ModelServer::start([Step::document(json!({"status": "success"}))]);
    let schema = json!({"type": "object", "properties": {"status": {"type": "string"}},
        "required": ["status"]});
    let events = run(&world, &binary, &server, &["--json-schema", &schema.to_string()]);
    assert_eq!(result(&events)["structured_output"], json!({"status": "success"}));
}

#[test]
fn overloaded_api_is_retried() {
    let Some(binary) = claude::binary("overloaded_api_is_retried") else { return };
    let world = World::new();
    let server = ModelServer::start([
        Step::status(529).header("retry-after", "0"),
        Step::text("Better now.").die_mid(),
        Step::text("Well."),
    ]);
    let events = run(&world, &binary, &server, &[]);
    assert_eq!(result(&events)["result"], "Well.");
    assert!(server.main_requests().len() >= 3);
}
