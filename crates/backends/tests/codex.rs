//! Real output of Codex, read whole, byte by byte and cut at every place.

#![allow(clippy::unwrap_used)]

mod restarted_parser;

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::codex::Codex;
use muleteer_backends::parse_all;
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use serde_json::json;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/codex")
}

fn fixtures() -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "jsonl"))
        .map(|path| {
            (path.file_stem().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap())
        })
        .collect();
    all.sort();
    assert!(all.len() > 20, "fixtures are missing");
    all
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.jsonl"))).unwrap()
}

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = Codex.parser();
    let mut lines: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}

fn events(bytes: &[u8]) -> Vec<AgentEvent> {
    parse([bytes]).into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect()
}

fn result(name: &str) -> TurnResult {
    let of = |event| match event {
        AgentEvent::Result(result) => Some(result),
        _ => None,
    };
    let mut results = events(&fixture(name)).into_iter().filter_map(of);
    let first = results.next().unwrap_or_else(|| panic!("{name} has no result"));
    assert_eq!(results.next(), None, "{name} has two results");
    first
}

/// The events of every fixture as `muleteer parse codex` prints them.
#[test]
fn every_fixture_is_understood() {
    let mut shown = String::new();
    for (name, bytes) in fixtures() {
        let mut out = Vec::new();
        parse_all(&Codex, bytes.as_slice(), &mut out).unwrap();
        shown.push_str(&format!("== {name}\n{}", String::from_utf8(out).unwrap()));
    }
    insta::assert_snapshot!(shown);
}

#[test]
fn known_lines_never_become_unknown() {
    for (name, bytes) in fixtures() {
        for event in events(&bytes) {
            assert!(!matches!(event, AgentEvent::Unknown { .. }), "{name}: {event:?}");
        }
    }
}

#[test]
fn unknown_lines_are_preserved() {
    for line in [
        r#"{"type":"thread.renamed","name":"x"}"#,
        r#"{"type":"item.completed","item":{"id":"item_9","type":"dance"}}"#,
        r#"{"type":"item.started","item":{"type":"command_execution"}}"#,
        "not json",
    ] {
        assert_eq!(events(line.as_bytes()), [AgentEvent::Unknown { raw: line.into() }]);
    }
}

#[test]
fn byte_by_byte_is_the_same() {
    for (name, bytes) in fixtures() {
        assert_eq!(parse(bytes.chunks(1)), parse([bytes.as_slice()]), "{name}");
    }
}

#[test]
fn input_cut_anywhere_yields_the_same_events() {
    for (name, bytes) in fixtures() {
        let whole = parse([bytes.as_slice()]);
        for at in 0..=bytes.len() {
            let (left, right) = bytes.split_at(at);
            assert_eq!(parse([left, right]), whole, "{name} cut at {at}");
        }
    }
}

/// After a crash the supervisor continues at a line boundary with a new parser.
#[test]
fn new_parser_at_any_line_yields_the_same_events() {
    for (name, bytes) in fixtures() {
        restarted_parser::yields_the_same(&name, &bytes, |bytes| parse([bytes]));
    }
}

#[test]
fn why_a_turn_failed() {
    use TurnError::{ApiError, Auth, RateLimit};
    for (name, error, status) in [
        ("err400", ApiError, None),
        ("err401", Auth, Some(401)),
        ("err429", RateLimit, Some(429)),
        ("err500", ApiError, None),
        ("hang_mid", ApiError, None),
    ] {
        let result = result(name);
        assert_eq!(
            (result.ok, result.error, result.status),
            (false, Some(error), status),
            "{name}"
        );
        assert!(result.text.is_some(), "{name}");
    }
}

#[test]
fn reconnecting_is_a_retry_of_the_model_api() {
    let retries = |name: &str| -> Vec<_> {
        let of = |event| match event {
            AgentEvent::ApiRetry { attempt, max, status, .. } => Some((attempt, max, status)),
            _ => None,
        };
        events(&fixture(name)).into_iter().filter_map(of).collect()
    };
    assert_eq!(retries("err401"), [(1, 2, Some(401)), (2, 2, Some(401))]);
    assert_eq!(retries("die_mid"), [(1, 2, None)]);
    assert!(result("die_mid").ok, "it came back");
}

/// `resume` continues the session of `exec_command_edit`, and its totals continue too.
#[test]
fn usage_is_the_sessions() {
    let used = |name: &str| {
        let usage = result(name).per_session.remove(0);
        (usage.input, usage.output, usage.cost_usd)
    };
    assert_eq!(used("exec_command_edit"), (200, 40, 0.0));
    assert_eq!(used("resume"), (300, 60, 0.0));
    let cached = concat!(
        r#"{"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":80,"#,
        r#""output_tokens":1}}"#
    );
    let AgentEvent::Result(result) = &events(cached.as_bytes())[0] else { panic!("no result") };
    assert_eq!((result.per_session[0].input, result.per_session[0].cache_read), (20, 80));
}

#[test]
fn a_patch_is_a_call_for_each_file() {
    let of = |event| match event {
        AgentEvent::ToolCall { id, name, input } => Some((id, name, input["file_path"].clone())),
        _ => None,
    };
    let calls: Vec<_> = events(&fixture("apply_patch")).into_iter().filter_map(of).collect();
    assert_eq!(
        calls,
        [
            ("item_1.1".into(), "Edit".into(), json!("/home/user/repo/README.md")),
            ("item_1.2".into(), "Write".into(), json!("/home/user/repo/p.txt")),
        ]
    );
}

#[test]
fn a_list_of_things_to_do_is_a_call_that_is_done() {
    let line = |kind: &str, done: bool| {
        let items = json!([{"text": "look", "completed": done}]);
        json!({"type": kind, "item": {"id": "item_1", "type": "todo_list", "items": items}})
            .to_string()
    };
    let all = events(
        [line("item.started", false), line("item.updated", true), line("item.completed", true)]
            .join("\n")
            .as_bytes(),
    );
    let statuses: Vec<_> = all
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolCall { input, .. } => Some(input["todos"][0]["status"].clone()),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, ["pending", "completed"]);
    assert_eq!(all.len(), 4);
}

/// The turn's end does not repeat the document, so it must not be cut.
#[test]
fn a_long_result_document_stays_whole() {
    let said = |text: String| {
        let line = json!({"type": "item.completed",
            "item": {"id": "i", "type": "agent_message", "text": text}});
        let AgentEvent::Text { text, .. } = events(line.to_string().as_bytes()).remove(0) else {
            panic!("no text")
        };
        text
    };
    let document = json!({"status": "success", "summary": "é".repeat(20_000)}).to_string();
    assert_eq!(said(document.clone()), document);
    assert!(said("é".repeat(20_000)).len() <= 4096);
}

/// The totals continue those of the resumed session, so a turn's usage is the difference.
#[test]
fn session_usage_is_reported_once_across_processes() {
    let process = |thread: &str, totals: &[u64]| {
        let turns = totals.iter().map(|total| {
            json!({"type": "turn.completed",
                "usage": {"input_tokens": total, "cached_input_tokens": total / 2,
                "output_tokens": total / 10}})
            .to_string()
        });
        let began = json!({"type": "thread.started", "thread_id": thread}).to_string();
        [began].into_iter().chain(turns).collect::<Vec<_>>().join("\n")
    };
    let streams =
        [process("a", &[100, 300]), process("b", &[50]), process("a", &[300, 420])].join("\n");
    let mut out = Vec::new();
    parse_all(&Codex, streams.as_bytes(), &mut out).unwrap();
    let used: Vec<[u64; 3]> = String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|event| event["type"] == "usage")
        .map(|event| {
            ["input", "cache_read", "output"].map(|field| event[field].as_u64().unwrap_or_default())
        })
        .collect();
    assert_eq!(used, [[50, 50, 10], [100, 100, 20], [25, 25, 5], [60, 60, 12]]);
}

#[test]
fn line_without_optional_fields_is_parsed() {
    let one = |line: serde_json::Value| {
        let mut all = events(format!("{line}\n").as_bytes());
        assert_eq!(all.len(), 1, "{line}");
        all.remove(0)
    };
    let item = |item: serde_json::Value| one(json!({"type": "item.completed", "item": item}));
    let said = item(json!({"type": "agent_message", "text": "no id"}));
    assert_eq!(said, AgentEvent::Text { chars: 5, text: "no id".into() });
    let ran = item(json!({"id": "i", "type": "command_execution", "command": "x", "exit_code": 3}));
    assert!(matches!(ran, AgentEvent::ToolResult { ok: false, exit_code: Some(3), .. }), "{ran:?}");
    let failed = one(json!({"type": "turn.failed", "error": "stream disconnected"}));
    assert!(matches!(
        &failed,
        AgentEvent::Result(TurnResult { ok: false, text: Some(text), .. })
            if text == "stream disconnected"
    ));
    for line in
        [json!({"type": "turn.completed"}), json!({"type": "turn.completed", "usage": null})]
    {
        assert_eq!(one(line), AgentEvent::Result(TurnResult { ok: true, ..TurnResult::default() }));
    }
    let AgentEvent::Result(result) =
        one(json!({"type": "turn.completed", "usage": {"input_tokens": 10.0}}))
    else {
        panic!("a result")
    };
    assert_eq!(result.per_session[0].input, 10);
}
