//! Real output of Claude Code, read whole, byte by byte and cut at every place.

#![allow(clippy::unwrap_used)]

mod restarted_parser;

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::claude_code::ClaudeCode;
use muleteer_backends::parse_all;
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/claude")
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
    assert!(all.len() > 50, "fixtures are missing");
    all
}

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.jsonl"))).unwrap()
}

fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = ClaudeCode.parser();
    let mut lines: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}

fn events(bytes: &[u8]) -> Vec<AgentEvent> {
    parse([bytes]).into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect()
}

fn results(name: &str) -> Vec<TurnResult> {
    let of = |event| match event {
        AgentEvent::Result(result) => Some(result),
        _ => None,
    };
    events(&fixture(name)).into_iter().filter_map(of).collect()
}

/// The events of every fixture as `muleteer parse claude-code` prints them, long lines cut.
#[test]
fn every_fixture_is_understood() {
    let groups: [(&str, &[&str]); 4] = [
        ("failures", &["f", "g", "no", "bad", "ratelimit", "budget", "max"]),
        ("sessions", &["resume", "streamin", "prompt", "killed", "sigint", "compact"]),
        ("control", &["control", "permission", "hook", "mcp"]),
        ("tasks", &["acceptEdits", "allowedTools", "basic", "json", "misc", "output"]),
    ];
    let mut unseen: Vec<_> = fixtures().into_iter().map(|(name, _)| name).collect();
    for (group, prefixes) in groups {
        let mut shown = String::new();
        for (name, bytes) in fixtures() {
            let Some((first, _)) = name.split_once('_').or(Some((name.as_str(), ""))) else {
                continue;
            };
            // `f401_…` belongs to `f`.
            let kind = first.trim_end_matches(|c: char| c.is_ascii_digit());
            if !prefixes.contains(&kind) {
                continue;
            }
            unseen.retain(|other| *other != name);
            let mut out = Vec::new();
            parse_all(&ClaudeCode, bytes.as_slice(), &mut out).unwrap();
            shown.push_str(&format!("== {name}\n"));
            for line in String::from_utf8(out).unwrap().lines() {
                let short: String = line.chars().take(360).collect();
                shown.push_str(&short);
                shown.push_str(if short.len() < line.len() { " …\n" } else { "\n" });
            }
        }
        insta::assert_snapshot!(group, shown);
    }
    assert_eq!(unseen, Vec::<String>::new());
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
fn byte_by_byte_is_the_same() {
    for (name, bytes) in fixtures() {
        assert_eq!(parse(bytes.chunks(1)), parse([bytes.as_slice()]), "{name}");
    }
}

/// Cuts short streams at every place, long ones at every 997th byte.
#[test]
fn input_cut_anywhere_yields_the_same_events() {
    for (name, bytes) in fixtures() {
        let whole = parse([bytes.as_slice()]);
        let step = if bytes.len() < 4000 { 1 } else { 997 };
        for at in (0..=bytes.len()).step_by(step) {
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
fn consumed_counts_every_byte() {
    for (name, bytes) in fixtures() {
        let lines = parse([bytes.as_slice()]);
        assert_eq!(lines.last().unwrap().consumed, bytes.len() as u64, "{name}");
    }
}

/// The CLI's order of keys changes between two lines of the same kind.
#[test]
fn key_order_does_not_matter() {
    fn reversed(value: serde_json::Value) -> serde_json::Value {
        match value {
            serde_json::Value::Object(map) => {
                map.into_iter().rev().map(|(k, v)| (k, reversed(v))).collect()
            }
            serde_json::Value::Array(items) => items.into_iter().map(reversed).collect(),
            other => other,
        }
    }
    for (name, bytes) in fixtures() {
        for line in bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty()) {
            let turned = reversed(serde_json::from_slice(line).unwrap()).to_string();
            assert_eq!(events(turned.as_bytes()), events(line), "{name}");
        }
    }
}

#[test]
fn why_a_turn_failed() {
    use TurnError::{ApiError, Auth, Budget, Interrupted, MaxTurns, Other};
    for (name, error, status) in [
        ("f400", ApiError, Some(400)),
        ("g_401_retries0", Auth, Some(401)),
        ("f404", ApiError, Some(404)),
        ("f500_default", ApiError, Some(500)),
        ("f529_retries2", ApiError, Some(529)),
        ("f_conn_refused", ApiError, None),
        ("f_hang_api_timeout_5s", ApiError, None),
        ("no_key", Auth, None),
        ("max_turns", MaxTurns, None),
        ("budget_exhausted", Budget, None),
        ("sigint_tool", Interrupted, None),
        ("control_interrupt", Interrupted, None),
        ("bad_resume", Other, None),
    ] {
        let first = &results(name)[0];
        assert_eq!((first.ok, first.error, first.status), (false, Some(error), status), "{name}");
    }
    let unknown: Vec<_> = fixtures()
        .into_iter()
        .filter(|(name, _)| results(name).iter().any(|result| result.session_lost))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(unknown, ["bad_resume"]);
}

#[test]
fn success_depends_on_is_error_only() {
    for name in
        ["basic_success", "json_schema", "compact_manual", "f529_then_ok", "f_hangmid_default"]
    {
        assert!(results(name).iter().all(|result| result.ok && result.error.is_none()), "{name}");
    }
    // Neither of these printed a result, so code that waits for one must watch the exit as well.
    for name in ["sigint_wait", "f401"] {
        assert_eq!(results(name), vec![], "{name}");
    }
}

/// Totals continue from the numbers that the previous process wrote at a regular end, so they are
/// wrong after a kill. The usage since the last result is always right.
#[test]
fn cost_of_a_turn_is_separate_from_the_total() {
    let cost = |usage: &[muleteer_model::agent::event::ModelUsage]| {
        usage.iter().map(|u| u.cost_usd).sum::<f64>()
    };
    for name in ["resume_2", "killed_in_a_tool_resumed"] {
        let result = &results(name)[0];
        assert!((cost(&result.per_model_turn) - 0.0008).abs() < 1e-9, "{name}: {result:?}");
        assert!(cost(&result.per_model) > 0.001, "{name}: {result:?}");
    }
}

#[test]
fn prompt_already_in_the_session_is_acknowledged() {
    let prompts = |name: &str| -> Vec<(String, bool)> {
        let of = |event| match event {
            AgentEvent::Prompt { key, repeated, .. } => Some((key.unwrap(), repeated)),
            _ => None,
        };
        events(&fixture(name)).into_iter().filter_map(of).collect()
    };
    let key = |n: u32| format!("00000000-0000-4000-8000-00000000000{n}");
    assert_eq!(prompts("prompt_repeated"), [(key(1), false), (key(1), true)]);
    assert_eq!(prompts("prompt_repeated_after_resume"), [(key(1), true), (key(2), false)]);
    assert_eq!(prompts("prompt_folded_into_a_turn"), [(key(5), false), (key(6), false)]);
    assert_eq!(results("prompt_folded_into_a_turn")[0].keys, [key(5), key(6)]);
}

#[test]
fn a_structured_output_is_the_document() {
    assert_eq!(
        results("json_schema")[0].structured,
        Some(serde_json::json!({"name": "bob", "n": 3}))
    );
    assert_eq!(results("json_schema_bad_then_text")[0].structured, None);
}
