//! Real output of ACP agents, read whole, byte by byte and cut at every place.

#![allow(clippy::unwrap_used)]

mod restarted_parser;

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::ProjectSettings;
use muleteer_backends::ToolServer;
use muleteer_backends::acp::Acp;
use muleteer_backends::parse_all;
use muleteer_model::agent::acp_handshake::{Call, CallAnswer};
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use muleteer_model::agent::permission::Policy;
use muleteer_model::event::mcp_pace::Periods;
use serde_json::{Value, json};
use std::path::PathBuf;

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/acp");
    let mut all: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .map(|path| {
            (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
        })
        .collect();
    all.sort();
    assert!(all.len() > 10, "fixtures are missing");
    all
}

/// Returns the agent's side of a record.
fn theirs(record: &[u8]) -> Vec<u8> {
    let lines = record.split_inclusive(|byte| *byte == b'\n');
    lines.filter_map(|line| line.strip_prefix(b">> ")).flatten().copied().collect()
}

fn fixture(name: &str) -> Vec<u8> {
    fixtures().into_iter().find(|(known, _)| known == name).unwrap().1
}

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = Acp.parser();
    let mut lines: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}

fn events(bytes: &[u8]) -> Vec<AgentEvent> {
    parse([bytes]).into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect()
}

/// Returns the output of `muleteer parse acp`.
fn printed(record: &[u8]) -> String {
    let mut out = Vec::new();
    parse_all(&Acp, record, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn results(name: &str) -> Vec<TurnResult> {
    let lines = printed(&fixture(name));
    let results = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    results
        .filter(|event| event["type"] == "result")
        .map(|event| serde_json::from_value(event).unwrap())
        .collect()
}

#[test]
fn every_fixture_is_understood() {
    let mut shown = String::new();
    for (name, bytes) in fixtures() {
        shown.push_str(&format!("== {name}\n"));
        for line in printed(&bytes).lines() {
            let short: String = line.chars().take(360).collect();
            shown.push_str(&short);
            shown.push_str(if short.len() < line.len() { " …\n" } else { "\n" });
        }
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn known_lines_never_become_unknown() {
    for (name, bytes) in fixtures() {
        for event in events(&theirs(&bytes)) {
            assert!(!matches!(event, AgentEvent::Unknown { .. }), "{name}: {event:?}");
        }
    }
}

#[test]
fn a_record_of_both_sides_reads_as_the_agents_side_does() {
    for (name, bytes) in fixtures() {
        assert_eq!(printed(&bytes), printed(&theirs(&bytes)), "{name}");
    }
}

#[test]
fn byte_by_byte_is_the_same() {
    for (name, bytes) in fixtures() {
        let bytes = theirs(&bytes);
        assert_eq!(parse(bytes.chunks(1)), parse([bytes.as_slice()]), "{name}");
    }
}

/// Cuts short streams at every place, long ones at every 997th byte.
#[test]
fn input_cut_anywhere_yields_the_same_events() {
    for (name, bytes) in fixtures() {
        let bytes = theirs(&bytes);
        let whole = parse([bytes.as_slice()]);
        let step = if bytes.len() < 4000 { 1 } else { 997 };
        for at in (0..=bytes.len()).step_by(step) {
            let (left, right) = bytes.split_at(at);
            assert_eq!(parse([left, right]), whole, "{name} cut at {at}");
        }
    }
}

/// A stream may end anywhere: the events before its end stay the same.
#[test]
fn truncated_input_keeps_earlier_events() {
    for (name, bytes) in fixtures() {
        let bytes = theirs(&bytes);
        let whole = parse([bytes.as_slice()]);
        for at in (0..bytes.len()).step_by(997) {
            let lines = parse([&bytes[..at]]);
            let complete = lines.iter().take_while(|line| {
                bytes[..at][usize::try_from(line.consumed).unwrap() - 1] == b'\n'
            });
            let complete: Vec<_> = complete.cloned().collect();
            assert_eq!(complete, whole[..complete.len()], "{name} ended at {at}");
        }
    }
}

#[test]
fn new_parser_at_any_line_yields_the_same_events() {
    for (name, bytes) in fixtures() {
        restarted_parser::yields_the_same(&name, &theirs(&bytes), |bytes| parse([bytes]));
    }
}

#[test]
fn key_order_does_not_matter() {
    fn reversed(value: Value) -> Value {
        match value {
            Value::Object(map) => map.into_iter().rev().map(|(k, v)| (k, reversed(v))).collect(),
            Value::Array(items) => items.into_iter().map(reversed).collect(),
            other => other,
        }
    }
    for (name, bytes) in fixtures() {
        for line in theirs(&bytes).split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let turned = reversed(serde_json::from_slice(line).unwrap()).to_string();
            let sorted = |events: Vec<AgentEvent>| {
                events.iter().map(|e| serde_json::to_value(e).unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(sorted(events(turned.as_bytes())), sorted(events(line)), "{name}");
        }
    }
}

#[test]
fn how_a_turn_ended() {
    use TurnError::{ApiError, Auth, Interrupted, RateLimit};
    for (name, error, status) in [
        ("claude", None, None),
        ("codex", None, None),
        ("gemini", None, None),
        ("opencode", None, None),
        ("claude_401", Some(Auth), None),
        ("claude_500", Some(ApiError), Some(500)),
        ("codex_401", Some(Auth), None),
        // codex-acp reports a turn as well ended although its model's API broke it off.
        ("codex_429", Some(RateLimit), Some(429)),
        ("codex_500", Some(ApiError), None),
        ("codex_cancel", Some(Interrupted), None),
    ] {
        let first = &results(name)[0];
        assert_eq!(
            (first.ok, first.error, first.status),
            (error.is_none(), error, status),
            "{name}"
        );
    }
}

#[test]
fn usage_of_a_turn_and_cost_of_its_session() {
    let used = |name: &str| {
        let result = results(name).remove(0);
        let usage = result.per_model_turn.first().map(|u| (u.model.clone(), u.input, u.output));
        (usage, result.cost_usd)
    };
    let of = |model: &str, input, output| Some((model.to_string(), input, output));
    assert_eq!(used("claude"), (of("claude-opus-5-5", 200, 40), Some(0.0016)));
    assert_eq!(used("codex"), (of("gpt-5", 200, 40), None));
    assert_eq!(used("gemini"), (of("gemini-2.5-flash", 200, 40), None));
    assert_eq!(used("opencode"), (of("", 100, 20), Some(0.0)));
}

#[test]
fn loaded_session_history_has_the_accepted_prompts() {
    for (name, taken) in [("claude_load", "one"), ("codex_load", "after")] {
        let all = events(&theirs(&fixture(name)));
        let opened = all
            .iter()
            .position(|event| matches!(event, AgentEvent::CallAnswer(CallAnswer::Opened { .. })))
            .unwrap();
        let keys: Vec<_> = all[..opened]
            .iter()
            .filter_map(|event| match event {
                AgentEvent::Prompt { key, .. } => key.as_deref(),
                _ => None,
            })
            .collect();
        assert_eq!(keys, [taken], "{name}");
    }
}

#[test]
fn first_events_of_a_session() {
    for (name, loads, by) in [
        ("claude", true, "option model"),
        ("codex", true, "option model"),
        ("gemini", true, "call"),
        ("opencode", true, "option model"),
    ] {
        let all = events(&theirs(&fixture(name)));
        let greeted = all.iter().find_map(|event| match event {
            AgentEvent::CallAnswer(CallAnswer::Greeted { agent, loads }) => {
                Some((agent.clone(), *loads))
            }
            _ => None,
        });
        let (agent, can) = greeted.unwrap();
        assert!(agent.contains(' ') && can == loads, "{name}: {agent}");
        let opened = all.iter().find_map(|event| match event {
            AgentEvent::CallAnswer(CallAnswer::Opened { session_id, model, model_by, .. }) => {
                Some((session_id.is_some(), model.is_some(), model_by.clone()))
            }
            _ => None,
        });
        assert_eq!(opened.unwrap(), (true, true, Some(by.to_string())), "{name}");
    }
}

/// Returns the events that `muleteer parse acp` prints for a fixture, after a change of its text.
fn changed(name: &str, from: &str, to: &str) -> Vec<Value> {
    let text = String::from_utf8(fixture(name)).unwrap();
    assert!(text.contains(from), "{name}");
    let printed = printed(text.replace(from, to).as_bytes());
    printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_type<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[test]
fn call_that_only_a_permission_request_names_is_reported_before_it() {
    let events = changed("gemini_ask", "writing", "writing");
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["session", "text", "tool_call", "permission", "tool_result", "text", "result"]
    );
    assert_eq!(events[2]["id"], events[3]["call_id"]);
    assert_eq!(events[2]["id"], events[4]["id"]);
    assert_eq!((&events[2]["name"], &events[3]["tool"]), (&"Bash".into(), &"Bash".into()));
}

#[test]
fn every_command_is_reported_once_with_its_text() {
    for name in ["qwen", "copilot", "cline", "opencode_ask", "claude_auto"] {
        let events = changed(name, "writing", "writing");
        let calls = of_type(&events, "tool_call");
        assert_eq!(calls.len(), 1, "{name}: {calls:?}");
        assert_eq!(calls[0]["name"], "Bash", "{name}");
        assert_eq!(calls[0]["input"]["command"], "echo hi > f", "{name}");
        for asked in of_type(&events, "permission") {
            assert_eq!((&asked["tool"], &asked["target"]), (&"Bash".into(), &"echo hi > f".into()));
        }
        let done = of_type(&events, "tool_result");
        assert!(done.len() == 1 && done[0]["ok"] == true, "{name}: {done:?}");
    }
}

#[test]
fn commands_of_parallel_calls_are_each_reported_with_their_text() {
    let text = String::from_utf8(fixture("qwen")).unwrap();
    let announced = text.lines().find(|line| line.contains(r#""preparing""#)).unwrap();
    let second = announced.replace("call_00000002", "call_00000009");
    let asks = text.lines().find(|line| line.contains("request_permission")).unwrap();
    let asks_second =
        asks.replace("call_00000002", "call_00000009").replace("echo hi > f", "echo two");
    let text = text.replace(announced, &format!("{announced}\n{second}"));
    let text = text.replace(asks, &format!("{asks}\n{asks_second}"));
    let printed = printed(text.as_bytes());
    let calls: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|event| event["type"] == "tool_call")
        .collect();
    let commands: Vec<_> = calls.iter().map(|call| &call["input"]["command"]).collect();
    assert_eq!(commands, ["echo hi > f", "echo two"]);
}

#[test]
fn failed_commands_of_all_agents_are_reported_as_failed() {
    for (name, from, to, code) in [
        ("copilot", r#""exitCode":0"#, r#""exitCode":3"#, Value::from(3)),
        ("cline", r#""success":true"#, r#""success":false,"error":"it broke""#, Value::Null),
        ("qwen", r#""exitCode":0"#, r#""exitCode":3"#, Value::from(3)),
        ("qwen", r#""exitCode":0,"signal":null"#, r#""exitCode":null,"signal":9"#, Value::Null),
        ("opencode_ask", r#""exit":0"#, r#""exit":3"#, Value::from(3)),
        ("pi", r#""exit_code":0"#, r#""exit_code":3"#, Value::from(3)),
    ] {
        let events = changed(name, from, to);
        let done = of_type(&events, "tool_result")[0];
        assert_eq!((&done["ok"], &done["exit_code"]), (&false.into(), &code), "{name}: {done}");
        assert!(name != "cline" || done["text"] == "it broke", "{done}");
    }
}

#[test]
fn part_of_a_command_in_an_unknown_form_is_shown_to_rules() {
    let command = |commands: &str| {
        let events = changed("cline", r#""commands":["echo hi > f"]"#, commands);
        of_type(&events, "permission")[0]["input"]["command"].as_str().unwrap().to_string()
    };
    assert_eq!(command(r#""commands":["git status","make"]"#), "git status\nmake");
    assert_eq!(
        command(r#""commands":["git status",{"command":"rm","args":["-r","x"]}]"#),
        "git status\nrm -r x"
    );
    assert_eq!(
        command(r#""commands":["git status",{"run":"rm x"}]"#),
        "git status\n{\"run\":\"rm x\"}"
    );
    assert_eq!(command(r#""commands":"make""#), "make");
}

#[test]
fn model_is_changed_by_the_option_that_lists_models() {
    let by = |name: &str, from: &str, to: &str| {
        let text = String::from_utf8(theirs(&fixture(name))).unwrap();
        assert!(text.contains(from), "{name}");
        let all = events(text.replace(from, to).as_bytes());
        let opened = all.into_iter().find_map(|event| match event {
            AgentEvent::CallAnswer(CallAnswer::Opened { model, model_by, .. }) => {
                Some((model.unwrap(), model_by))
            }
            _ => None,
        });
        opened.unwrap()
    };
    let one = r#""options":[{"value":"gpt-4o","name":"gpt-4o"}]"#;
    let two = r#""options":[{"value":"gpt-4o"},{"value":"m2"}]"#;
    let grouped = r#""options":[{"group":"a","options":[{"value":"gpt-4o"},{"value":"m2"}]}]"#;
    let option = |model: &str, by: &str| (model.to_string(), Some(by.to_string()));
    assert_eq!(by("cline", one, one), ("gpt-4o".into(), None), "it cannot be changed");
    assert_eq!(by("cline", one, two), option("gpt-4o", "option model"));
    assert_eq!(by("cline", one, grouped), option("gpt-4o", "option model"));
    let many = r#""availableModels":[{"modelId":"gpt-4o"},{"modelId":"m2"}]"#;
    let single = r#""availableModels":[{"modelId":"gpt-4o","name":"gpt-4o"}]"#;
    assert_eq!(by("cline", single, many), option("gpt-4o", "call"));
    assert_eq!(by("pi", "loc/m1", "loc/m1"), option("loc/m1", "option model"));
    assert_eq!(by("opencode_ask", "loc/m1", "loc/m1"), option("loc/m1", "option model"));
    assert_eq!(by("qwen", "m1(openai)", "m1(openai)"), option("m1(openai)", "call"));
}

/// Codex reports a call of an MCP server's tool like a command. A rule about one must not match the
/// other.
#[test]
fn a_call_of_an_mcp_server_is_named_as_rules_name_it() {
    let call = |call: Value| {
        let mut update = serde_json::json!({"sessionUpdate": "tool_call", "toolCallId": "c1",
            "kind": "execute"});
        update.as_object_mut().unwrap().extend(call.as_object().unwrap().clone());
        let message = serde_json::json!({"jsonrpc": "2.0", "method": "session/update",
            "params": {"update": update}});
        match events(format!("{message}\n").as_bytes()).into_iter().next() {
            Some(AgentEvent::ToolCall { name, input, .. }) => (name, input.to_string()),
            other => panic!("{other:?}"),
        }
    };
    let raw = serde_json::json!({"server": "sup", "tool": "ping", "arguments": {"n": 1}});
    let meta = serde_json::json!({"is_mcp_tool_call": true});
    let told = call(serde_json::json!({"title": "whatever", "rawInput": raw, "_meta": meta}));
    assert_eq!(told, ("mcp__sup__ping".to_string(), r#"{"n":1}"#.to_string()));
    assert_eq!(
        call(serde_json::json!({"title": "mcp.sup.ping", "rawInput": raw})).0,
        "mcp__sup__ping"
    );
    assert_eq!(
        call(serde_json::json!({"title": "curl", "rawInput": raw})).0,
        "Bash",
        "fields alone prove nothing"
    );
}

#[test]
fn tool_server_is_named_when_a_session_is_opened_or_loaded() {
    let tools = ToolServer {
        program: "/state/bin/muleteer".into(),
        env: vec![("MULETEER_SOCKET".into(), "/state/agents/a1/pub/sock".into())],
        longest_call: Periods::default().longest,
    };
    let opened = |agent: &str, load: Option<&str>, tools| -> Value {
        let call = Call::Open {
            load: load.map(String::from),
            cwd: "/p".into(),
            agent: agent.into(),
            permissions: Policy::default(),
        };
        let line = Acp.call(&call, None, ProjectSettings::Count, tools).unwrap();
        serde_json::from_slice(&line).unwrap()
    };
    let servers = json!([{
        "name": "muleteer",
        "command": "/state/bin/muleteer",
        "args": ["mcp"],
        "env": [{"name": "MULETEER_SOCKET", "value": "/state/agents/a1/pub/sock"}],
    }]);
    let (codex, claude) = ("@agentclientprotocol/codex-acp 2.6.0", "claude-agent-acp 0.100.0");
    for load in [None, Some("s1")] {
        let call = opened(codex, load, Some(&tools));
        assert_eq!(call["params"]["mcpServers"], servers);
        // It would begin the first turn without the tools.
        assert_eq!(call["params"]["_meta"], json!({"mcpStartupAwaitTimeoutMs": 60_000}));
        let call = opened(claude, load, Some(&tools));
        assert_eq!(
            (&call["params"]["mcpServers"], &call["params"]["_meta"]),
            (&servers, &Value::Null)
        );
        let call = opened(codex, load, None);
        assert_eq!(
            (&call["params"]["mcpServers"], &call["params"]["_meta"]),
            (&json!([]), &Value::Null)
        );
    }
}
