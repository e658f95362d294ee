//! Real headless JSON of pi, opencode and other agents, read whole, byte by byte and in parts.

#![allow(clippy::unwrap_used)]

mod restarted_parser;

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::opencode::Opencode;
use muleteer_backends::parse_all;
use muleteer_backends::pi::Pi;
use muleteer_backends::subprocess::Subprocess;
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use serde_json::{Value, json};
use std::path::Path;

/// A recorded stream, and the backend that starts its CLI.
struct Stream {
    name: String,
    backend: &'static dyn Backend,
    bytes: Vec<u8>,
}

fn streams() -> Vec<Stream> {
    let folders: [(&str, &'static dyn Backend); 3] =
        [("headless", &Subprocess), ("opencode", &Opencode), ("pi", &Pi)];
    let mut all = vec![];
    for (folder, backend) in folders {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(folder);
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ext| ext == "jsonl") {
                let name = format!("{folder}/{}", path.file_stem().unwrap().to_string_lossy());
                all.push(Stream { name, backend, bytes: std::fs::read(path).unwrap() });
            }
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(all.len() > 25, "fixtures are missing");
    all
}

fn parse<'a>(backend: &dyn Backend, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = backend.parser();
    let mut lines: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}

fn events(backend: &dyn Backend, bytes: &[u8]) -> Vec<AgentEvent> {
    let lines = parse(backend, [bytes]);
    lines.into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect()
}

/// Returns the events of a recorded stream, as any command that prints it gives them.
fn of_command(name: &str) -> Vec<AgentEvent> {
    let stream = streams().into_iter().find(|stream| stream.name == name).unwrap();
    events(&Subprocess, &stream.bytes)
}

fn results(events: &[AgentEvent]) -> Vec<&TurnResult> {
    let results = events.iter().filter_map(|event| match event {
        AgentEvent::Result(result) => Some(result),
        _ => None,
    });
    results.collect()
}

/// The events of every fixture as `muleteer parse` prints them.
#[test]
fn every_fixture_is_understood() {
    let mut shown = String::new();
    for Stream { name, backend, bytes } in streams() {
        let mut out = Vec::new();
        parse_all(backend, bytes.as_slice(), &mut out).unwrap();
        shown.push_str(&format!("== {name}\n{}", String::from_utf8(out).unwrap()));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn known_lines_are_never_plain_output() {
    for Stream { name, bytes, .. } in streams() {
        for event in events(&Subprocess, &bytes) {
            let is_plain = matches!(event, AgentEvent::Unknown { .. } | AgentEvent::Output { .. });
            assert!(!is_plain, "{name}: {event:?}");
        }
    }
}

#[test]
fn a_command_tells_the_same_as_the_backend_of_its_cli() {
    for Stream { name, backend, bytes } in streams() {
        assert_eq!(parse(&Subprocess, [&*bytes]), parse(backend, [&*bytes]), "{name}");
    }
}

#[test]
fn byte_by_byte_is_the_same() {
    for Stream { name, backend, bytes } in streams() {
        assert_eq!(parse(backend, bytes.chunks(1)), parse(backend, [&*bytes]), "{name}");
    }
}

/// After a crash the supervisor continues at a line boundary with a new parser.
#[test]
fn new_parser_at_any_line_yields_the_same_events() {
    for Stream { name, backend, bytes } in streams() {
        restarted_parser::yields_the_same(&name, &bytes, |bytes| parse(backend, [bytes]));
    }
}

#[test]
fn api_errors_have_their_kind_and_status() {
    for (name, error, status) in [
        ("headless/cline_limit", TurnError::RateLimit, None),
        ("headless/cline_wrong_key", TurnError::Auth, None),
        ("headless/copilot_limit", TurnError::RateLimit, Some(429)),
        ("headless/copilot_wrong_key", TurnError::Auth, Some(401)),
        ("headless/gemini_wrong_key", TurnError::Auth, None),
        ("headless/qwen_wrong_key", TurnError::Auth, Some(401)),
        ("opencode/limit", TurnError::RateLimit, Some(429)),
        ("opencode/wrong_key", TurnError::Auth, Some(401)),
        ("pi/cut_stream", TurnError::ApiError, None),
        ("pi/limit", TurnError::RateLimit, Some(429)),
        ("pi/overload", TurnError::ApiError, Some(503)),
        ("pi/wrong_key", TurnError::Auth, Some(401)),
    ] {
        let told = of_command(name);
        let [result] = &results(&told)[..] else { panic!("{name}: {told:?}") };
        assert_eq!(
            (result.ok, result.error, result.status),
            (false, Some(error), status),
            "{name}"
        );
        assert!(result.text.as_ref().is_some_and(|text| !text.is_empty()), "{name}");
    }
}

#[test]
fn a_turn_that_ends_well_has_one_result() {
    for (name, text) in [
        ("headless/cline", Some("done")),
        ("headless/copilot", None),
        ("headless/gemini", None),
        ("headless/qwen", Some("done")),
        ("opencode/ok", None),
        ("opencode/limit_once", None),
        ("pi/ok", Some("done")),
        ("pi/limit_once", Some("done")),
    ] {
        let told = of_command(name);
        let [result] = &results(&told)[..] else { panic!("{name}: {told:?}") };
        assert_eq!((result.ok, result.text.as_deref()), (true, text), "{name}");
        let last = told.iter().rev().find_map(|event| match event {
            AgentEvent::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        assert_eq!(last, Some("done"), "{name}");
    }
    for name in ["opencode/interrupted", "opencode/rejected", "pi/interrupted"] {
        let told = of_command(name);
        assert!(results(&told).is_empty(), "{name}: {told:?}");
    }
}

#[test]
fn tool_calls_have_names_inputs_and_results() {
    let commands = |first: &str| json!([["Bash", first, true], ["Bash", "exit 3", false]]);
    for (name, wanted) in [
        ("headless/cline", commands("echo hi > f")),
        ("headless/copilot", commands("echo hi > f")),
        ("headless/gemini", commands("echo hi > f")),
        ("headless/qwen", commands("echo hi > f")),
    ] {
        assert_eq!(calls(name), wanted, "{name}");
    }
    let first = "echo hi > f && git add f && git commit -qm made && echo ok";
    for name in ["opencode/ok", "pi/ok"] {
        let wanted =
            json!([["Bash", first, true], ["Bash", "exit 3", false], ["Write", "b.txt", true]]);
        assert_eq!(calls(name), wanted, "{name}");
    }
    assert_eq!(calls("opencode/rejected"), json!([["Bash", first, false]]));
}

/// Returns the calls of a stream: name, subject, and whether the call succeeded.
fn calls(name: &str) -> Value {
    let told = of_command(name);
    let ended = |call: &str| {
        told.iter().find_map(|event| match event {
            AgentEvent::ToolResult { id, ok, .. } if id == call => Some(*ok),
            _ => None,
        })
    };
    let called = told.iter().filter_map(|event| match event {
        AgentEvent::ToolCall { id, name, input } => {
            let subject = ["command", "file_path", "path"].iter().find_map(|key| input.get(*key));
            Some(json!([name, subject, ended(id)]))
        }
        _ => None,
    });
    called.collect()
}

#[test]
fn tokens_and_cost_are_told_once() {
    for (name, tokens, cost) in [
        ("headless/cline", [300, 60], 0.0),
        ("headless/gemini", [300, 60], 0.0),
        ("headless/qwen", [300, 60], 0.0),
        ("opencode/ok", [400, 80], 0.0024),
        ("pi/ok", [400, 80], 0.0024),
    ] {
        let mut sum = ([0, 0], 0.0);
        for event in of_command(name) {
            match event {
                // The result repeats the numbers of a call that has a name.
                AgentEvent::Usage { input, output, cost_usd, call: None, .. } => {
                    sum = ([sum.0[0] + input, sum.0[1] + output], sum.1 + cost_usd);
                }
                AgentEvent::Result(result) => {
                    for used in result.per_model_turn {
                        sum.0 = [sum.0[0] + used.input, sum.0[1] + used.output];
                    }
                }
                _ => {}
            }
        }
        assert_eq!(sum.0, tokens, "{name}");
        assert!((sum.1 - cost).abs() < 1e-9, "{name}: {}", sum.1);
    }
}

/// A process that dies in the middle of a line must not have told a success.
#[test]
fn a_line_that_is_cut_off_tells_no_success() {
    for Stream { name, backend, bytes } in streams() {
        let end = bytes.iter().rposition(|byte| *byte == b'}').unwrap();
        let before = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for at in (before + 1..end).step_by(7) {
            for newline in ["", "\n"] {
                let line = [&bytes[before..at], newline.as_bytes()].concat();
                for backend in [backend, &Subprocess as &dyn Backend] {
                    let told = events(backend, &line);
                    assert!(results(&told).iter().all(|result| !result.ok), "{name} at {at}");
                }
            }
        }
    }
}

#[test]
fn other_lines_of_a_command_stay_what_they_are() {
    for (line, event) in [
        ("plain", AgentEvent::Output { text: "plain".into() }),
        (r#"{"type":"dance"}"#, AgentEvent::Output { text: r#"{"type":"dance"}"#.into() }),
        (r#"{"type":"text","text":"x"}"#, AgentEvent::Text { chars: 1, text: "x".into() }),
        (
            r#"{"level":"info","ts":"2026-01-01","msg":"x"}"#,
            AgentEvent::Output { text: r#"{"level":"info","ts":"2026-01-01","msg":"x"}"#.into() },
        ),
    ] {
        assert_eq!(events(&Subprocess, line.as_bytes()), [event], "{line}");
    }
    let result = r#"{"type":"result","status":"success","summary":"x"}"#;
    let told = events(&Subprocess, result.as_bytes());
    assert!(results(&told)[0].structured.is_some(), "{told:?}");
}

/// A line of a known CLI that says nothing must not come after the agent's own last line.
#[test]
fn lines_without_events_are_no_output() {
    let told = parse(&Subprocess, [&br#"{"type":"agent_settled"}"#[..]]);
    assert!(told[0].blank && told[0].events.is_empty());
    let told = parse(&Subprocess, [&b"done"[..]]);
    assert!(!told[0].blank);
}
