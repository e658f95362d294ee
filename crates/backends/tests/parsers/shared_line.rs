//! Lines that contain an object beside other text, or an object inside another.

use crate::*;

/// A progress display, colours, a line without its newline: an object shares its line with them.
#[test]
fn object_that_shares_its_line_keeps_its_meaning() {
    let user = r#"{"type":"user","isReplay":true,"uuid":"k","message":{"content":"x"}}"#;
    let update = r#"{"jsonrpc":"2.0","method":"_auth/status_update","params":{}}"#;
    let ends = |name: &str, line: &str| {
        let seen = events(name, &format!("{line}\n"));
        let result = seen.iter().find_map(|event| match event {
            AgentEvent::Result(result) => Some(result.clone()),
            _ => None,
        });
        result.unwrap_or_else(|| panic!("{name} {line:?}: {seen:?}"))
    };
    for (name, line, first) in [
        (
            "subprocess",
            r#"{"type":"result","status":"failed","summary":"x"}"#,
            r#"{"type":"text","text":"a"}"#,
        ),
        (
            "rehearsal",
            r#"{"type":"result","status":"failed","summary":"x"}"#,
            r#"{"type":"text","text":"a"}"#,
        ),
        (
            "claude-code",
            r#"{"type":"result","subtype":"success","is_error":false,"result":"x"}"#,
            user,
        ),
        (
            "codex",
            r#"{"type":"turn.completed","usage":{"input_tokens":1}}"#,
            r#"{"type":"turn.started"}"#,
        ),
        ("acp", r#"{"jsonrpc":"2.0","id":"prompt/k","result":{"stopReason":"end_turn"}}"#, update),
    ] {
        for before in [
            "progress 99%\r",
            "\u{1b}[0m",
            "\u{1b}]0;t\u{7}",
            "npm warn old ",
            "Working...",
            first,
            "{\"a\":1}",
        ] {
            for after in ["", "\u{1b}[K", " done", first] {
                let result = ends(name, &format!("{before}{line}{after}"));
                assert_eq!(result.damage, None, "{name} {before:?} {after:?}");
                if let Some(document) = &result.structured {
                    assert_eq!(document["status"], "failed", "{name} {before:?} {after:?}");
                }
            }
        }
        // A second object that is cut off counts like a line that is cut off.
        let cut = format!("{first}{}", &line[..line.len() - 2]);
        assert!(ends(name, &cut).damage.is_some(), "{name} {cut}");
    }
}

#[test]
fn result_behind_text_is_marked_as_one_that_may_be_quoted() {
    let line = r#"{"type":"result","status":"failed","summary":"x"}"#;
    for (before, quoted) in
        [("INFO got ", true), ("npm warn old ", true), ("50%\r", false), ("", false)]
    {
        for after in ["", " done"] {
            let seen = events("subprocess", &format!("{before}{line}{after}"));
            let is_marked =
                |event: &AgentEvent| matches!(event, AgentEvent::Result(result) if result.quoted);
            assert_eq!(seen.iter().any(is_marked), quoted, "{seen:?}");
            let outputs =
                seen.iter().filter(|event| matches!(event, AgentEvent::Output { .. })).count();
            assert!(
                !quoted || outputs == 0,
                "its own result is not overtaken by a log line: {seen:?}"
            );
        }
    }
}

#[test]
fn protocol_messages_in_an_agents_log_are_not_read_again() {
    let update = concat!(
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":"#,
        r#"{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"hi"}}}}"#,
    );
    let ours = r#"{"jsonrpc":"2.0","id":"prompt/k","method":"session/prompt","params":{}}"#;
    let theirs = r#"{"jsonrpc":"2.0","id":7,"result":{"outcome":{"outcome":"cancelled"}}}"#;
    for message in [update, ours, theirs] {
        for before in ["DEBUG sent ", "[12:00:01] recv: "] {
            let seen = events("acp", &format!("{before}{message}\n"));
            assert!(matches!(seen.as_slice(), [AgentEvent::Unknown { .. }]), "{seen:?}");
        }
    }
    let asks = concat!(
        r#"{"jsonrpc":"2.0","id":7,"method":"session/request_permission","params":{"toolCall":"#,
        r#"{"toolCallId":"t","kind":"execute","rawInput":{"command":"ls"}},"options":"#,
        r#"[{"optionId":"a","name":"A","kind":"allow_once"}]}}"#,
    );
    let seen = events("acp", &format!("Working...{asks}\n"));
    assert!(
        seen.iter().any(|event| matches!(event, AgentEvent::Permission { .. })),
        "nobody waits without end: {seen:?}"
    );
}

#[test]
fn text_beside_an_object_is_reported() {
    let output = |text: &str| AgentEvent::Output { text: text.into() };
    let text = AgentEvent::Text { chars: 2, text: "hi".into() };
    for (line, expected) in [
        (
            "50%\r99%\r{\"type\":\"text\",\"text\":\"hi\"} ok",
            vec![output("50%\r99%"), text.clone(), output(" ok")],
        ),
        ("\u{1b}[0m{\"type\":\"text\",\"text\":\"hi\"}", vec![text]),
        // A log line that quotes an event stays a log line.
        (
            "log: {\"type\":\"text\",\"text\":\"hi\"}",
            vec![output("log: {\"type\":\"text\",\"text\":\"hi\"}")],
        ),
        ("{\"a\":1}{\"b\":2}", vec![output("{\"a\":1}{\"b\":2}")]),
    ] {
        assert_eq!(events("subprocess", line), expected, "{line:?}");
    }
}

#[test]
fn object_inside_a_damaged_one_is_not_read() {
    let line = concat!(
        r#"{"type":"assistant","text":"prints {"type":"result","subtype":"success","#,
        r#""result":"x"}"}"#,
    );
    for name in ["claude-code", "codex", "acp"] {
        for line in [line.to_string(), format!("log: {line}")] {
            let seen = events(name, &format!("{line}\n"));
            assert!(
                !seen.iter().any(|event| matches!(event, AgentEvent::Result(_))),
                "{name}: {seen:?}"
            );
        }
    }
    let line = r#"{"type":"result","status":"success"},"status":"failed"}"#;
    let seen = events("subprocess", line);
    assert!(
        matches!(seen.last(), Some(AgentEvent::Result(result)) if result.damage.is_some()),
        "{seen:?}"
    );
}
