//! System tests of conversations, with scripted agents.

mod abuse;
mod adapter_kills;
mod adapter_ops;
mod adapters;
mod attached;
mod chat;
mod chat_terminal;
mod commands;
mod confirm;
mod kills;
mod many;
mod mcp;
mod meetings;
mod notifications;
mod questions;
mod real_agents;
mod reports;
mod schedules;
mod threads;

use muleteer_tests::{Repo, World};
use serde_json::Value;

/// An agent that repeats what it was told, with the number of the turn.
const ECHO: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - say: \"${turn}: ${prompt}\"
";

/// An agent whose turns last until a file exists.
const SLOW: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - run: {command: \"while [ ! -e go ]; do sleep 0.05; done\", timeout: 120s}
      - say: \"${turn}: ${prompt}\"
";

/// Opens a thread whose agent plays a scenario.
fn open(world: &World, repo: &Repo, scenario: &str) -> String {
    let file = world.path().join("scenario.yaml");
    std::fs::write(&file, scenario).expect("a scenario");
    let file = file.to_str().expect("a path").to_string();
    let args = ["thread", "new", "--project", repo.to_str(), "--backend", "rehearsal"];
    world.muleteer(&[&args[..], &["--scenario", &file]].concat()).ok()
}

/// Sends a message, waits for its answer, and returns the document.
fn ask(world: &World, thread: &str, text: &str) -> Value {
    world.muleteer(&["thread", "send", thread, text, "--wait", "--json"]).json()
}

fn show(world: &World, thread: &str) -> Value {
    world.muleteer(&["thread", "show", thread, "--json"]).json()
}

/// Returns the states of the inbound messages.
fn states(shown: &Value) -> Vec<String> {
    let all = shown["messages"].as_array().expect("messages");
    let inbound = all.iter().filter(|message| message["direction"] == "in");
    inbound.map(|message| message["state"].as_str().unwrap_or_default().to_string()).collect()
}
