//! Real output of ACP agents, read whole, byte by byte and cut at every place.

#![allow(clippy::unwrap_used)]

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::acp::Acp;
use muleteer_backends::parse_all;
use muleteer_model::agent::acp_handshake::CallAnswer;
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use serde_json::Value;
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
        let bytes = theirs(&bytes);
        let whole = parse([bytes.as_slice()]);
        for (n, line) in whole.iter().enumerate() {
            let rest = parse([&bytes[usize::try_from(line.consumed).unwrap()..]]);
            let moved: Vec<_> = rest
                .into_iter()
                .map(|l| Line { consumed: l.consumed + line.consumed, ..l })
                .collect();
            assert_eq!(moved, whole[n + 1..], "{name} after line {n}");
        }
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
