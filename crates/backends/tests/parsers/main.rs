//! Tests every parser with any input, cut anywhere.

#![allow(clippy::unwrap_used)]

mod damaged_lines;

use muleteer_backends::LINE_LIMIT;
use muleteer_backends::Line;
use muleteer_backends::NAMES;
use muleteer_backends::by_name;
use muleteer_backends::parse_all;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError};
use proptest::prelude::*;
use serde_json::json;

fn parse<'a>(name: &str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = by_name(name).unwrap().parser();
    let mut lines: Vec<_> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}

fn events(name: &str, text: &str) -> Vec<AgentEvent> {
    parse(name, [text.as_bytes()])
        .into_iter()
        .flat_map(|line| line.events)
        .map(|timed| timed.event)
        .collect()
}

/// Lines like those of agents: events, almost events, JSON of other programs, plain text, garbage.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(vec![
        r#"{"type":"text","text":"hé","chars":2}"#,
        r#"{"t":3.5,"type":"tool_call","id":"a","name":"Bash","input":{"command":"ls"}}"#,
        r#"{"type":"tool_call"}"#,
        r#"{"type":"result","status":"success","summary":"ok"}"#,
        r#"{"type":"result","subtype":"success","is_error":false,"result":"ok"}"#,
        concat!(
            r#"{"type":"user","isReplay":true,"uuid":"k","timestamp":"2026-11-21T20:33:14.340Z","#,
            r#""message":{"content":"x"}}"#
        ),
        concat!(
            r#"{"type":"assistant","message":{"content":[{"type":"new_kind"},{"type":"text","#,
            r#""text":"y"}]}}"#
        ),
        r#"{"type":"system","subtype":"init","session_id":"s"}"#,
        r#"{"type":["text"]}"#,
        r#"{"type":"thread.started","thread_id":"s"}"#,
        concat!(
            r#"{"type":"item.completed","item":{"id":"i","type":"agent_message","#,
            r#""text":"{\"status\":\"success\"}"}}"#
        ),
        concat!(
            r#"{"type":"item.started","item":{"id":"i","type":"file_change","#,
            r#""changes":[{"path":"a"},{}]}}"#
        ),
        r#"{"type":"turn.completed","usage":{"input_tokens":3,"cached_input_tokens":9}}"#,
        "[1,2]",
        "null",
        "plain output",
        "",
        "\r",
        "{",
        "99%\r{\"type\":\"text\",\"text\":\"x\",\"chars\":1}",
        "log: {\"type\":\"result\",\"status\":\"failed\",\"summary\":\"x\"}",
        r#"{"type":"text","text":"a","chars":1}{"type":"text","text":"b","chars":1}"#,
    ]);
    prop_oneof![
        4 => words.prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ]
}

proptest! {
    #[test]
    fn chunking_changes_nothing(lines in prop::collection::vec(line(), 0..12),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8), end in any::<bool>()) {
        let mut bytes = lines.join(&b'\n');
        if end {
            bytes.push(b'\n');
        }
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1))
            .chain([0, bytes.len()]).collect();
        places.sort_unstable();
        for name in NAMES {
            let whole = parse(name, [bytes.as_slice()]);
            let pieces = parse(name, places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]));
            prop_assert_eq!(&pieces, &whole, "{}", name);
            prop_assert_eq!(whole.last().map_or(0, |line| line.consumed), bytes.len() as u64);
        }
    }

    /// A parser that passes over output returns the same other events at the same positions.
    #[test]
    fn skipped_lines_are_output_events(lines in prop::collection::vec(line(), 0..12),
        cut in any::<prop::sample::Index>()) {
        let mut bytes = lines.join(&b'\n');
        bytes.push(b'\n');
        let (one, other) = bytes.split_at(cut.index(bytes.len() + 1));
        for name in NAMES {
            let mut passing = by_name(name).unwrap().parser();
            passing.pass_over_output();
            let passed = [one, other].map(|piece| passing.push(piece)).concat();
            let told = |lines: &[Line]| -> Vec<(u64, Vec<AgentEvent>)> {
                let told = |line: &Line| line.events.iter()
                    .map(|timed| timed.event.clone()).collect::<Vec<_>>();
                let output = |event: &AgentEvent| matches!(event, AgentEvent::Output { .. });
                lines.iter().map(|line| (line.consumed, told(line)))
                    .filter(|(_, events)| !events.iter().all(output)).collect()
            };
            let whole = parse(name, [bytes.as_slice()]);
            prop_assert_eq!(told(&passed), told(&whole), "{}", name);
            prop_assert_eq!(
                passed.last().map(|line| line.consumed), Some(bytes.len() as u64), "{}", name);
            let places: Vec<_> = whole.iter().map(|line| line.consumed).collect();
            prop_assert!(passed.iter().all(|line| places.contains(&line.consumed)), "{}", name);
        }
    }

    #[test]
    fn printed_events_round_trip(lines in prop::collection::vec(line(), 0..12)) {
        for name in NAMES {
            let mut out = Vec::new();
            parse_all(by_name(name).unwrap(), lines.join(&b'\n').as_slice(), &mut out).unwrap();
            for printed in String::from_utf8(out).unwrap().lines() {
                let value: serde_json::Value = serde_json::from_str(printed).unwrap();
                prop_assert!(value["t"].is_f64() && value["type"].is_string(), "{}", printed);
                let event: AgentEvent = serde_json::from_value(value).unwrap();
                prop_assert!(serde_json::to_string(&event).unwrap().len() < 64 * 1024);
            }
        }
    }
}

#[test]
fn a_stretch_of_output_that_is_passed_over_is_one_line() {
    let mut parser = by_name("subprocess").unwrap().parser();
    parser.pass_over_output();
    let lines = parser.push(b"a\nb\n{\"type\":\"text\",\"text\":\"c\"}\nd\n\ne\nhalf");
    let places: Vec<_> = lines.iter().map(|line| (line.consumed, line.events.len())).collect();
    assert_eq!(places, [(31, 1), (36, 0)]);
}

/// White space alone does not count as a line, however it is cut and whether it is passed over or
/// not. A reader that waits for the last line depends on it.
#[test]
fn white_space_is_not_a_line() {
    let bytes = b"a\n \n{\"type\":\"result\",\"status\":\"success\",\"summary\":\"s\"}\n\r\n\t\n";
    for (passing, pieces, expected) in [
        (false, vec![&bytes[..]], vec![false, true, false, true, true]),
        (true, vec![&bytes[..]], vec![false, true]),
        (true, bytes.chunks(1).collect(), vec![false, true, false, true, true]),
        (true, vec![b"\n\n"], vec![true]),
        (true, vec![b"\nx\n\n"], vec![false]),
    ] {
        let mut parser = by_name("subprocess").unwrap().parser();
        if passing {
            parser.pass_over_output();
        }
        let blank: Vec<bool> =
            pieces.iter().flat_map(|piece| parser.push(piece)).map(|line| line.blank).collect();
        assert_eq!(blank, expected, "{pieces:?}");
    }
}

#[test]
fn a_line_beyond_the_limit_is_one_unknown_event_in_flat_memory() {
    for name in NAMES {
        let mut parser = by_name(name).unwrap().parser();
        let piece = vec![b'x'; 1024 * 1024];
        let pieces = LINE_LIMIT / piece.len() + 40;
        for _ in 0..pieces {
            assert_eq!(parser.push(&piece), vec![]);
        }
        let lines = parser.push(b"\n{\"type\":\"text\",\"text\":\"after\"}\n");
        assert_eq!(lines.len(), 2, "{name}");
        assert!(lines[0].raw_cut && !lines[1].raw_cut);
        assert_eq!(lines[0].consumed, (pieces * piece.len() + 1) as u64);
        match &lines[0].events[..] {
            [timed] => match &timed.event {
                AgentEvent::Unknown { raw } => {
                    assert!(raw.len() <= TEXT_LIMIT && raw.starts_with("xxx"))
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_json_line_beyond_the_limit_keeps_its_meaning_in_flat_memory() {
    let image = "A".repeat(LINE_LIMIT * 2 / 3);
    let line = json!({
        "type": "user",
        "message": {"content": [{"content": [{"type": "image", "source": {"data": image}}],
            "type": "tool_result",
            "tool_use_id": "t9", "is_error": true}]},
        "tool_use_result": {"file": {"base64": image}},
    });
    let text = format!("{line}\n{{\"type\":\"keep_alive\"}}\n");
    for size in [64 * 1024, 1_000_003, text.len()] {
        let lines = parse("claude-code", text.as_bytes().chunks(size));
        assert_eq!((lines.len(), lines[0].raw_cut), (2, false));
        let last = lines[0].events.last().map(|timed| &timed.event);
        assert!(
            matches!(last, Some(AgentEvent::ToolResult { id, ok: false, .. }) if id == "t9"),
            "{last:?}"
        );
    }
    let line = json!({"type": "result", "log": vec!["x".repeat(100); LINE_LIMIT / 50],
        "status": "failed", "summary": "s"});
    let seen = events("subprocess", &line.to_string());
    let Some(AgentEvent::Result(result)) = seen.last() else { panic!("{} events", seen.len()) };
    assert_eq!(result.structured.as_ref().unwrap()["status"], "failed");
}

#[test]
fn a_line_of_ours_is_its_event_and_every_other_line_is_output() {
    let text = |text: &str| AgentEvent::Output { text: text.to_string() };
    let unknown = |raw: &str| AgentEvent::Unknown { raw: raw.to_string() };
    for (line, event) in [
        ("compiling…", text("compiling…")),
        ("", text("")),
        ("  padded ", text("  padded ")),
        (r#"{"type":"deploy","to":"prod"}"#, text(r#"{"type":"deploy","to":"prod"}"#)),
        // Another CLI uses this `type` for something else.
        (r#"{"type":"text","content":"hi"}"#, text(r#"{"type":"text","content":"hi"}"#)),
        (r#"{"type":"text","text":"hi"}"#, AgentEvent::Text { chars: 2, text: "hi".into() }),
        (r#"{"text":"hi","type":"text"}"#, AgentEvent::Text { chars: 2, text: "hi".into() }),
        (r#"{"type":"tool_call"}"#, unknown(r#"{"type":"tool_call"}"#)),
        ("null", text("null")),
        (r#"["type"]"#, text(r#"["type"]"#)),
    ] {
        let lines = format!("{line}\n");
        assert_eq!(events("subprocess", &lines), std::slice::from_ref(&event), "{line}");
        // A rehearsed agent prints only events, so a plain line of it is unknown.
        let rehearsed = match event {
            AgentEvent::Output { text } if text.is_empty() => vec![],
            AgentEvent::Output { text } => vec![unknown(&text)],
            event => vec![event],
        };
        assert_eq!(events("rehearsal", &lines), rehearsed, "{line}");
    }
}

#[test]
fn a_result_line_is_the_document_or_the_event() {
    let result = |line: &str| match events("subprocess", line).pop() {
        Some(AgentEvent::Result(result)) => result,
        other => panic!("{line}: {other:?}"),
    };
    let doc = result(r#"{"summary":"s","type":"result","status":"partial","changes":["a"]}"#);
    assert!(doc.ok);
    assert_eq!(
        doc.structured,
        Some(json!({"summary": "s", "status": "partial", "changes": ["a"]}))
    );
    // It is incomplete, but meant as a result: validation names the missing fields.
    assert_eq!(
        result(r#"{"type":"result","summary":"s"}"#).structured,
        Some(json!({"summary": "s"}))
    );
    let event =
        result(r#"{"type":"result","ok":false,"error":"rate_limit","status":429,"cost_usd":0.5}"#);
    assert_eq!(
        (event.ok, event.error, event.status),
        (false, Some(TurnError::RateLimit), Some(429))
    );
    assert_eq!(event.structured, None);
    let both = result(r#"{"type":"result","ok":false,"status":"failed","summary":"s"}"#);
    assert_eq!(
        (both.ok, both.structured),
        (false, Some(json!({"status": "failed", "summary": "s"})))
    );
    assert_eq!(
        result(r#"{"type":"result","ok":true,"error":"brand_new"}"#).error,
        Some(TurnError::Other)
    );
}

#[test]
fn native_events_are_recognized_by_type() {
    use std::collections::BTreeSet;
    let wrong = serde_json::from_value::<AgentEvent>(json!({"type": "?"})).unwrap_err().to_string();
    // Answers to our own calls to an ACP agent, and events that `parse` prints with a `parent`. No
    // agent prints either itself.
    let inner = ["call_answer", "subagent"];
    let known: BTreeSet<_> =
        wrong.split('`').skip(3).step_by(2).filter(|name| !inner.contains(name)).collect();
    assert_eq!(known, muleteer_backends::KINDS.into_iter().collect::<BTreeSet<_>>());
}

#[test]
fn unknown_claude_line_is_preserved_and_neighbours_are_parsed() {
    let text = concat!(
        "Warning: something on stdout\n",
        r#"{"type":"brand_new","x":1}"#,
        "\n",
        r#"{"type":"system","subtype":"brand_new"}"#,
        "\n",
        concat!(
            r#"{"type":"assistant","message":{"content":[{"type":"brand_new"},{"type":"text","#,
            r#""text":"hi"}]}}"#
        ),
    );
    let seen = events("claude-code", text);
    let unknown = seen.iter().filter(|event| matches!(event, AgentEvent::Unknown { .. })).count();
    assert_eq!((seen.len(), unknown), (5, 4), "{seen:?}");
}

#[test]
fn names_are_known_in_both_spellings() {
    for name in ["claude_code"].into_iter().chain(muleteer_backends::NAMES) {
        assert_eq!(by_name(name).unwrap().name(), name.replace('_', "-"));
    }
    let error = by_name("cluade-code").unwrap_err();
    let hint = error.hint().replace(" Known:", "\nKnown:");
    insta::assert_snapshot!(format!("{error}\nhint: {hint}"), @r#"
    backend "cluade-code" is not known
    hint: did you mean "claude-code"?
    Known: auto, acp, claude-code, codex, opencode, pi, rehearsal, subprocess
    "#);
}
