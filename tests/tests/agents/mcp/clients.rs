//! Clients of `muleteer mcp` that are not Muleteer's: the command line of the MCP inspector, and
//! the official Python client.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use super::waits::{busy_agent, question_in};
use muleteer_process::fault::PERIODS_VAR;
use muleteer_tests::mcp::socket;
use muleteer_tests::skip::skip;
use muleteer_tests::{World, wait_until};
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use xtask::agents::{self, Set};

const LONG: Duration = Duration::from_secs(120);

/// A client, started in the world with the socket of an agent or of the operator.
fn start(world: &World, program: &Path, dispatch: Option<&str>, set: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(world.path()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    world.environment(&mut command);
    if let Some(dispatch) = dispatch {
        command.env("MULETEER_SOCKET", socket(world, dispatch));
    }
    command.envs(set.iter().copied());
    command
}

/// Returns the document that a client printed.
fn printed(child: Child) -> Value {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn names(tools: &Value) -> Vec<&str> {
    tools.as_array().unwrap().iter().map(|tool| tool.as_str().unwrap()).collect()
}

/// Runs the Python client with the pinned wheels.
struct Python<'a> {
    world: &'a World,
    wheels: String,
    set: Vec<(&'a str, &'a str)>,
}

impl Python<'_> {
    fn start(&self, dispatch: Option<&str>, mode: &str, calls: &Value, args: &[&str]) -> Child {
        let script = xtask::workspace::root().join("tests/fixtures/mcp/client.py");
        let mut command = start(self.world, Path::new("python3"), dispatch, &self.set);
        command.env("PYTHONPATH", &self.wheels).env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(script).arg(mode).arg(calls.to_string()).arg(self.world.program());
        command.args(args).spawn().unwrap()
    }
}

#[test]
fn python_client_lists_and_calls_the_tools_of_an_agent() {
    let test = "python_client_lists_and_calls_the_tools_of_an_agent";
    let wheels = match xtask::python_mcp::install() {
        Ok(wheels) => wheels.display().to_string(),
        Err(failure) => return skip(test, &failure.to_string()),
    };
    let world = World::new();
    let daemon = world.daemon();
    let (repo, dispatch) = busy_agent(&world);
    let set = vec![(PERIODS_VAR, "progress=100,patience=1000")];
    let python = Python { world: &world, wheels, set };
    // The first protocol has a handshake, the other one none.
    for (mode, version) in [("legacy", "2025-11-25"), ("auto", "2026-07-28")] {
        let calls = json!([
            ["note", {"text": format!("from {mode}")}],
            ["get_status", {}],
            ["read_thread", {"limit": 5}],
            ["kill_agent", {"dispatch_id": dispatch}],
        ]);
        let done = printed(python.start(Some(&dispatch), mode, &calls, &["mcp"]));
        assert_eq!(done["version"], version, "{done}");
        let tools = names(&done["tools"]);
        assert!(tools.len() == 16 && tools.contains(&"ask_human"), "{done}");
        assert_eq!(done["results"][0]["value"]["state"], "recorded", "{done}");
        assert_eq!(done["results"][1]["value"]["id"], json!(dispatch), "{done}");
        assert_eq!(done["results"][2]["value"]["messages"][0]["text"], "begin", "{done}");
        let refused = &done["results"][3];
        assert_eq!(refused["is_error"], true, "{done}");
        assert!(refused["texts"][0].to_string().contains("was not started by"), "{done}");
    }
    let journal = world.muleteer(&["journal", &dispatch]).ok();
    assert!(journal.contains("note: from legacy") && journal.contains("note: from auto"));

    // Nobody answers in its time, and it waits further.
    let calls = json!([
        ["ask_human", {"question": "Which colour?"}],
        ["await_answer", {"question_id": "<question_id>"}],
        ["note", {"text": "still here"}],
    ]);
    let done = printed(python.start(Some(&dispatch), "auto", &calls, &["mcp"]));
    let question = question_in(&world, "open");
    for result in [&done["results"][0], &done["results"][1]] {
        assert_eq!(result["value"]["question_id"], json!(question), "{done}");
        assert_eq!(result["value"]["state"], "open", "{done}");
    }
    assert!(done["reports"].as_u64().unwrap() >= 2, "{done}");
    // The next client asks the same, and gets the answer.
    let python = Python { set: vec![], ..python };
    let asking = python.start(Some(&dispatch), "auto", &json!([calls[0]]), &["mcp"]);
    wait_until("the waiting call", LONG, || {
        (world.dispatch(&dispatch)["state"] == "waiting").then_some(())
    });
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let done = printed(asking);
    assert_eq!(done["results"][0]["value"]["answer"], "blue", "{done}");
    question_in(&world, "delivered");

    let outside = printed(python.start(None, "auto", &json!([["list_agents", {}]]), &["mcp"]));
    assert!(!names(&outside["tools"]).contains(&"ask_human"), "{outside}");
    assert!(outside["results"][0].to_string().contains(&dispatch), "{outside}");
    repo.write("go", "");
    world.wait_for_state(&dispatch, &["idle"]);
    world.finish(Some(daemon));
}

#[test]
fn inspector_lists_and_calls_the_tools_of_an_agent() {
    let test = "inspector_lists_and_calls_the_tools_of_an_agent";
    let installed = agents::install()
        .and_then(|agents| Ok((agents.node(), agents::install_set(Set::McpClients)?.inspector())));
    let (node, inspector) = match installed {
        Ok(installed) => installed,
        Err(failure) => return skip(test, &failure.to_string()),
    };
    let world = World::new();
    let daemon = world.daemon();
    let (repo, dispatch) = busy_agent(&world);
    let inspect = |dispatch: Option<&str>, args: &[&str]| {
        let mut command = start(&world, &node, dispatch, &[]);
        command.arg(&inspector).arg("--cli");
        // It passes only a few variables on.
        let passed: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_str()?, value?.to_str()?)))
            .filter(|(name, _)| name.starts_with("MULETEER_") || name.starts_with("XDG_"))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        for variable in passed {
            command.args(["-e", &variable]);
        }
        command.arg(world.program()).arg("mcp").args(args).spawn().unwrap()
    };
    let call = |tool: &str, arguments: &[&str]| {
        let args = ["--method", "tools/call", "--tool-name", tool];
        let arguments = arguments.iter().flat_map(|argument| ["--tool-arg", argument]);
        inspect(Some(&dispatch), &args.into_iter().chain(arguments).collect::<Vec<_>>())
    };
    let listed = printed(inspect(Some(&dispatch), &["--method", "tools/list"]));
    let tools = listed["tools"].as_array().unwrap();
    let has = |tools: &[Value], name: &str| tools.iter().any(|tool| tool["name"] == name);
    assert!(tools.len() == 16 && has(tools, "ask_human"), "{listed}");
    let listed = printed(inspect(None, &["--method", "tools/list"]));
    let tools = listed["tools"].as_array().unwrap();
    assert!(has(tools, "list_agents") && !has(tools, "ask_human"), "{listed}");

    let noted = printed(call("note", &["text=from the inspector"]));
    assert_eq!(noted["structuredContent"]["state"], "recorded", "{noted}");
    let status = printed(call("get_status", &[]));
    assert_eq!(status["structuredContent"]["id"], json!(dispatch), "{status}");
    let journal = world.muleteer(&["journal", &dispatch]).ok();
    assert!(journal.contains("note: from the inspector"), "{journal}");
    let asking = call("ask_human", &["question=Which colour?"]);
    let question = question_in(&world, "open");
    world.muleteer(&["answer", &question, "--text", "blue"]).ok();
    let answered = printed(asking);
    assert_eq!(answered["structuredContent"]["answer"], "blue", "{answered}");
    question_in(&world, "delivered");
    repo.write("go", "");
    world.wait_for_state(&dispatch, &["idle"]);
    world.finish(Some(daemon));
}
