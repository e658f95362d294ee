//! Lines that are damaged, cut off, or that only JavaScript's JSON accepts.

use crate::*;

/// Lines that JavaScript's JSON accepts and `serde_json` rejects, with the fault inside a text.
fn broken(line: &str) -> Vec<Vec<u8>> {
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let with = |old: &str, new: &[u8]| {
        let (before, after) = line.split_once(old).unwrap();
        [before.as_bytes(), new, after.as_bytes()].concat()
    };
    vec![
        with("~", br"\ud83d"),
        with("~", br"\ude00 \ud83d"),
        with("~", b"caf\xe9"),
        with("~", b"\xf0\x9f"),
        with("~", b"a\tb"),
        [b"\xef\xbb\xbf", line.as_bytes()].concat(),
        [line.as_bytes(), b"\0\0"].concat(),
        with("{", b"{\"x\":1e999,"),
        with("{", format!("{{\"x\":{deep},").as_bytes()),
    ]
}

#[test]
fn lines_that_need_repair_keep_their_meaning_and_record_a_fault() {
    for (name, line, meant) in [
        (
            "claude-code",
            r#"{"type":"result","subtype":"success","is_error":false,"result":"~"}"#,
            "result",
        ),
        (
            "claude-code",
            concat!(
                r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t","#,
                r#""name":"Write","input":{"a":"~"}}]}}"#,
            ),
            "tool_call",
        ),
        (
            "claude-code",
            concat!(
                r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","#,
                r#""content":"~"}]}}"#,
            ),
            "tool_result",
        ),
        (
            "claude-code",
            concat!(
                r#"{"type":"control_request","request_id":"r","request":"#,
                r#"{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"~"}}}"#,
            ),
            "permission",
        ),
        (
            "codex",
            r#"{"type":"item.completed","item":{"id":"i","type":"agent_message","text":"~"}}"#,
            "text",
        ),
        ("codex", r#"{"type":"turn.failed","error":{"message":"~"}}"#, "result"),
        (
            "acp",
            concat!(
                r#"{"jsonrpc":"2.0","id":1,"method":"session/request_permission","params":"#,
                r#"{"toolCall":{"title":"~"},"options":[{"optionId":"y","kind":"allow_once"}]}}"#,
            ),
            "permission",
        ),
        (
            "acp",
            r#"{"jsonrpc":"2.0","id":"prompt/k","result":{"stopReason":"end_turn","_meta":"~"}}"#,
            "result",
        ),
        ("subprocess", r#"{"type":"result","status":"failed","summary":"~"}"#, "result"),
        ("rehearsal", r#"{"type":"text","text":"~"}"#, "text"),
    ] {
        for bytes in broken(line) {
            let lines = parse(name, [bytes.as_slice(), b"\n"]);
            let events: Vec<_> =
                lines.into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect();
            let shown = String::from_utf8_lossy(&bytes);
            assert!(
                matches!(&events[0], AgentEvent::Notice { text } if text.contains("repaired")),
                "{shown}: {events:?}"
            );
            let last = serde_json::to_value(events.last().unwrap()).unwrap();
            assert_eq!(last["type"], meant, "{name} {shown}: {events:?}");
            match events.last().unwrap() {
                // The agent must use its own text and not the repaired one.
                AgentEvent::Permission { ask, .. } => assert!(ask.input_cut, "{shown}"),
                AgentEvent::Result(result) if name == "claude-code" => {
                    assert!(result.ok, "{shown}")
                }
                AgentEvent::Result(result) if name == "codex" => assert!(!result.ok, "{shown}"),
                _ => {}
            }
        }
    }
}

#[test]
fn a_damaged_line_is_never_success_and_leaves_no_call_open() {
    fn is_fault(event: &AgentEvent) -> bool {
        matches!(event, AgentEvent::Notice { text } if text.contains("damaged"))
    }
    let end = |name: &str, line: &str| {
        let events = events(name, &format!("{line}\n"));
        assert!(events.iter().any(is_fault), "{name} {line}: {events:?}");
        events.into_iter().next_back().unwrap()
    };
    for (name, line) in [
        (
            "claude-code",
            concat!(
                r#"{"type":"result","subtype":"success","is_error":false,"session_id":"s","#,
                r#""result":"cut"#,
            ),
        ),
        (
            "claude-code",
            r#"{"type":"result","subtype":"success","is_error":false,"result":"x","y":tru}"#,
        ),
        ("codex", r#"{"type":"turn.completed","usage":{"input_tokens":1"#),
        ("acp", r#"{"jsonrpc":"2.0","id":"prompt/k","result":{"stopReason":"end_turn","usage":{"#),
        ("subprocess", r#"{"type":"result","status":"success","summary":"cut"#),
        ("subprocess", r#"{"status":"failed","type":"result","summary":'x'}"#),
        ("subprocess", r#"{'status':"failed","type":"result"}"#),
        ("rehearsal", r#"{"type":"result","ok":true,"#),
    ] {
        match end(name, line) {
            AgentEvent::Result(result) => {
                assert!(
                    !result.ok && result.damage.is_some() && result.structured.is_none(),
                    "{line}: {result:?}"
                );
            }
            other => panic!("{name} {line}: {other:?}"),
        }
    }
    let line = concat!(
        r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t","#,
        r#""content":"cut"#,
    );
    assert!(matches!(
        end("claude-code", line),
        AgentEvent::ToolResult { id, ok: false, .. } if id == "t"
    ));
    let line = concat!(
        r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","#,
        r#""tool_name":"Bash","input":{"command":"rm"#,
    );
    assert!(matches!(end("claude-code", line), AgentEvent::Request { id, .. } if id == "r"));
    let line = concat!(
        r#"{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"options":"#,
        r#"[{"optionId":"y""#,
    );
    assert!(matches!(end("acp", line), AgentEvent::Request { id, .. } if id == "7"));
}

/// The process is gone: its exit decides, not half of its last line.
#[test]
fn a_line_that_its_process_did_not_finish_ends_no_turn() {
    for name in ["claude-code", "codex", "acp", "rehearsal"] {
        let seen = events(name, r#"{"type":"result","subtype":"success","is_error":false,"resu"#);
        assert!(
            !seen.iter().any(|event| matches!(event, AgentEvent::Result(_))),
            "{name}: {seen:?}"
        );
    }
    let seen = events("subprocess", r#"{"type":"result","status":"failed","summ"#);
    assert!(matches!(seen.last(), Some(AgentEvent::Result(result)) if !result.ok), "{seen:?}");
}

/// JSON of other programs that is cut off or indented stays output.
#[test]
fn cut_off_line_that_is_no_result_is_output() {
    for line in [
        r#"{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"abc…"#,
        r#"{"type": "result","#,
        r#"{"type":"result","subtype":"success","is_error":false,"usage":{"status":"x","#,
        r#"{"level":"info","kinds":["type","result"],"msg":"abc"#,
        r#"{"msg":"x","inner":{"type":"result","status":"failed"},"more":"#,
        r#"{"msg":"got {"type":"result","status":"failed"}"}"#,
        r#"{"log":"a" b "{\"type\":\"result\",\"status\":\"failed\"}"#,
        r#"{"name":"x" y "result":1,"type":"text","status":"ok"}"#,
    ] {
        let expected = AgentEvent::Output { text: line.into() };
        assert_eq!(events("subprocess", &format!("{line}\n")), [expected], "{line}");
    }
}

#[test]
fn damaged_line_with_type_and_field_of_a_result_fails() {
    for line in [
        r#"{"type":"result","summary":"cut"#,
        r#"{"type":"result","status":"fai"#,
        r#"{"type":"result","status":"#,
        r#"{ "status" : "failed", "type" : "resu"#,
        r#"{"summary":"he said "{" here","type": "result","status":"failed"}"#,
        r#"{"status":"failed","summary":"it"s","type":"result"}"#,
        r#"{"type":"result","summary":"it"s","status":"failed"}"#,
        r#"{"type":"result",'status':'failed'}"#,
        r#"{"changes":["a","type":"result","status":"failed"}"#,
    ] {
        let seen = events("subprocess", &format!("{line}\n"));
        assert!(
            matches!(seen.last(), Some(AgentEvent::Result(result)) if !result.ok),
            "{line}: {seen:?}"
        );
    }
}
