//! Output of other versions of Claude Code, and lines with missing fields: a missing field must not
//! lose the rest of its line.

#![allow(clippy::unwrap_used)]

use muleteer_backends::Backend;
use muleteer_backends::by_name;
use muleteer_model::agent::ask::{Answer, Ask, AskKind, Verdict};
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use serde_json::{Value, json};

fn claude() -> &'static dyn Backend {
    by_name("claude-code").unwrap()
}

fn events(line: &Value) -> Vec<AgentEvent> {
    let lines = claude().parser().push(format!("{line}\n").as_bytes());
    lines.into_iter().flat_map(|line| line.events).map(|timed| timed.event).collect()
}

fn one(line: &Value) -> AgentEvent {
    let mut all = events(line);
    assert_eq!(all.len(), 1, "{line} became {all:?}");
    all.remove(0)
}

fn result(line: &Value) -> TurnResult {
    match one(line) {
        AgentEvent::Result(result) => result,
        other => panic!("{line} became {other:?}"),
    }
}

fn is_unknown(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::Unknown { .. })
}

#[test]
fn every_end_of_a_turn() {
    let api = |text: &str, status: Value| {
        json!({"type": "result", "subtype": "success", "is_error": true,
            "terminal_reason": "api_error",
            "api_error_status": status, "result": text})
    };
    let ended = |subtype: &str, reason: Value, more: Value| {
        let mut line = json!({"type": "result", "subtype": subtype, "is_error": true,
            "terminal_reason": reason});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    let none = || json!({});
    for (line, error, status) in [
        (api("x", json!(401)), TurnError::Auth, Some(401)),
        (api("x", json!("403")), TurnError::Auth, Some(403)),
        (api("x", json!(429)), TurnError::RateLimit, Some(429)),
        (api("x", json!(529)), TurnError::ApiError, Some(529)),
        (api("x", json!(500.5)), TurnError::ApiError, None),
        (api("API Error: 529 {\"type\":\"error\"}", Value::Null), TurnError::ApiError, Some(529)),
        (api("API Error: 429 slow down", Value::Null), TurnError::RateLimit, Some(429)),
        (api("API Error: Connection refused", Value::Null), TurnError::ApiError, None),
        (api("Claude AI usage limit reached|1764000000", Value::Null), TurnError::RateLimit, None),
        (api("Prompt is too long", json!(400)), TurnError::Context, Some(400)),
        (api("Not logged in · Please run /login", Value::Null), TurnError::Auth, None),
        (ended("error_max_turns", json!("max_turns"), none()), TurnError::MaxTurns, None),
        (ended("error_max_turns", Value::Null, none()), TurnError::MaxTurns, None),
        (ended("error_max_budget_usd", Value::Null, none()), TurnError::Budget, None),
        (
            ended("error_max_structured_output_retries", Value::Null, none()),
            TurnError::StructuredOutput,
            None,
        ),
        (
            ended("error_during_execution", json!("aborted_tools"), none()),
            TurnError::Interrupted,
            None,
        ),
        (
            ended("error_during_execution", json!("aborted_streaming"), none()),
            TurnError::Interrupted,
            None,
        ),
        (
            ended("error_during_execution", json!("prompt_too_long"), none()),
            TurnError::Context,
            None,
        ),
        (
            ended("error_during_execution", json!("blocking_limit"), none()),
            TurnError::Context,
            None,
        ),
        (ended("error_during_execution", json!("model_error"), none()), TurnError::ApiError, None),
        (
            ended("error_during_execution", Value::Null, json!({"errors": [{"message": "odd"}]})),
            TurnError::Other,
            None,
        ),
        (ended("error_of_a_newer_version", json!("something_new"), none()), TurnError::Other, None),
        (json!({"type": "result"}), TurnError::Other, None),
        // Older versions did not call a limit an error.
        (
            json!({"type": "result", "subtype": "error_max_turns", "is_error": false}),
            TurnError::MaxTurns,
            None,
        ),
        (
            json!({"type": "result", "subtype": "error_during_execution", "is_error": false}),
            TurnError::Other,
            None,
        ),
        (
            json!({"type": "result", "subtype": null, "is_error": true, "errors": []}),
            TurnError::Other,
            None,
        ),
    ] {
        let told = result(&line);
        assert_eq!((told.ok, told.error, told.status), (false, Some(error), status), "{line}");
    }
    let odd = result(&ended(
        "error_during_execution",
        Value::Null,
        json!({"errors": [{"message": "odd"}]}),
    ));
    assert_eq!(odd.text.as_deref(), Some("odd"));
}

#[test]
fn success_needs_no_more_than_its_subtype() {
    let well = result(&json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "API Error: 529 was"
    }));
    assert_eq!((well.ok, well.error, well.status), (true, None, None), "its words are no error");
    assert!(
        result(&json!({"type": "result", "subtype": "success", "result": "done"})).ok,
        "an older one says no more"
    );
    assert!(
        !result(&json!({"type": "result", "subtype": "success", "is_error": null,
            "result": "API Error: 500 x"}))
        .ok
    );
    let nulls =
        result(&json!({"type": "result", "subtype": "success", "is_error": false, "result": null,
        "usage": null, "modelUsage": null, "total_cost_usd": null, "structured_output": null,
        "permission_denials": null, "session_id": null, "num_turns": null,
        "user_message_uuids": null, "errors": null}));
    assert_eq!(nulls, TurnResult { ok: true, ..TurnResult::default() });
}

#[test]
fn unknown_part_does_not_affect_other_parts() {
    let message =
        |content: Value| json!({"type": "assistant", "message": {"id": "m", "content": content}});
    let all = events(&message(json!([
        {"type": "text", "text": "before"},
        {"type": "text", "text": null},
        {"type": "tool_use", "name": "Bash", "input": {}},
        {"type": "from_the_future", "x": 1},
        null,
        {"type": "tool_use", "id": "t1", "name": "Bash"},
        {"type": "web_search_tool_result", "tool_use_id": "s1",
            "content": [{"type": "web_search_result"}]},
        {"type": "mcp_tool_result", "tool_use_id": "s2", "is_error": true, "content": "no"},
        {"type": "text", "text": "after"},
    ])));
    assert_eq!(all.iter().filter(|event| is_unknown(event)).count(), 4, "{all:?}");
    let texts: Vec<_> =
        all.iter().filter(|event| matches!(event, AgentEvent::Text { .. })).collect();
    assert_eq!(texts.len(), 2);
    assert!(all.iter().any(|event| matches!(event, AgentEvent::ToolCall { id, .. } if id == "t1")));
    let results: Vec<_> = all
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolResult { id, ok, .. } => Some((id.as_str(), *ok)),
            _ => None,
        })
        .collect();
    assert_eq!(results, [("s1", true), ("s2", false)]);
    assert_eq!(
        one(&message(json!("in one piece"))),
        AgentEvent::Text { chars: 12, text: "in one piece".into() }
    );
    assert_eq!(events(&message(Value::Null)), []);
    assert_eq!(events(&message(json!([]))), []);
    assert!(is_unknown(&one(&json!({"type": "assistant", "message": "text"}))));
}

#[test]
fn results_of_tools_in_every_shape() {
    let line = |part: Value, told: Value| {
        json!({"type": "user", "message": {"role": "user", "content": [part]},
            "tool_use_result": told,
            "parent_tool_use_id": "toolu_of_a_subagent"})
    };
    for (part, told, ok, text, exit) in [
        (json!({"content": "plain"}), json!("Error: x"), true, "plain", None),
        (
            json!({"content": [{"type": "text", "text": "a"}, {"type": "image"}]}),
            json!([1]),
            true,
            "a\n[image]",
            None,
        ),
        (json!({"content": null, "is_error": null}), Value::Null, true, "", None),
        (json!({}), Value::Null, true, "", None),
        (json!({"content": 7}), json!({"exitCode": 0}), true, "7", Some(0)),
        (json!({"content": {"a": 1}, "is_error": false}), json!({}), true, "{\"a\":1}", None),
        (
            json!({"content": "Exit code 2\nno", "is_error": true}),
            Value::Null,
            false,
            "Exit code 2\nno",
            Some(2),
        ),
    ] {
        let mut part = part;
        part.as_object_mut().unwrap().extend([
            ("type".to_string(), json!("tool_result")),
            ("tool_use_id".to_string(), json!("t1")),
        ]);
        let expected =
            AgentEvent::ToolResult { id: "t1".into(), ok, text: text.into(), exit_code: exit };
        assert_eq!(one(&line(part.clone(), told)), expected, "{part}");
    }
    let nameless = line(json!({"type": "tool_result", "content": "x"}), Value::Null);
    assert!(is_unknown(&one(&nameless)));
    assert_eq!(
        events(&json!({"type": "user", "message": {"content": "the task of a subagent"}})),
        []
    );
}

#[test]
fn news_of_the_system() {
    let system = |subtype: &str, more: Value| {
        let mut line =
            json!({"type": "system", "subtype": subtype, "session_id": "s", "uuid": "u"});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line
    };
    for subtype in [
        "status",
        "task_started",
        "task_progress",
        "task_notification",
        "hook_started",
        "thinking_tokens",
    ] {
        assert_eq!(events(&system(subtype, json!({}))), [], "{subtype}");
    }
    assert!(is_unknown(&one(&system("from_the_future", json!({})))));
    assert!(is_unknown(&one(&json!({"type": "system"}))));
    assert!(is_unknown(&one(&json!({"type": "from_the_future"}))));
    let notice = |line: &Value| match one(line) {
        AgentEvent::Notice { text } => text,
        other => panic!("{line} became {other:?}"),
    };
    assert_eq!(
        notice(&system("model_fallback", json!({"content": "Switched to Sonnet"}))),
        "Switched to Sonnet"
    );
    let bare = system("model_fallback", json!({"original_model": "a", "fallback_model": "b"}));
    assert_eq!(notice(&bare), "the CLI switched from a to b");
    let hook = json!({"hook_name": "PreToolUse:Bash", "outcome": "error", "stderr": "boom\n",
        "exit_code": 1});
    assert_eq!(notice(&system("hook_response", hook)), "hook PreToolUse:Bash failed: boom");
    assert_eq!(events(&system("hook_response", json!({"outcome": "success", "exit_code": 0}))), []);
    assert_eq!(events(&system("informational", json!({"content": "a tip", "level": "info"}))), []);

    let servers = json!([{"name": "good", "status": "connected"},
        {"name": "bad", "status": "failed"},
        {"name": "shy", "status": "needs-auth"}, {"name": "odd"}, null]);
    let all = events(&system("init", json!({"model": null, "cwd": "/w", "mcp_servers": servers})));
    assert!(
        matches!(&all[0], AgentEvent::Session { model: None, session_id: Some(_), .. }),
        "{all:?}"
    );
    assert_eq!(all.len(), 3, "{all:?}");

    let retry = system(
        "api_retry",
        json!({"attempt": 2, "max_retries": null, "retry_delay_ms": 512.5, "error_status": null}),
    );
    let expected = AgentEvent::ApiRetry { attempt: 2, max: 0, delay_s: 0.5125, status: None };
    assert_eq!(one(&retry), expected);
    let empty = AgentEvent::Compaction { before: 0, after: 0 };
    assert_eq!(one(&system("compact_boundary", json!({}))), empty);
    let told = json!({"compact_metadata": {"trigger": "auto", "pre_tokens": 155_000.0,
        "post_tokens": null}});
    assert_eq!(
        one(&system("compact_boundary", told)),
        AgentEvent::Compaction { before: 155_000, after: 0 }
    );

    let limit = |info: Value| json!({"type": "rate_limit_event", "rate_limit_info": info});
    assert_eq!(events(&limit(json!({"status": "allowed"}))), []);
    let rejected =
        AgentEvent::RateLimit { resets_in_s: 0.0, resets_at: Some(1.5e9), warning: false };
    assert_eq!(one(&limit(json!({"status": "rejected", "resetsAt": 1_500_000_000}))), rejected);
    for info in [Value::Null, json!({}), json!({"status": null})] {
        assert!(is_unknown(&one(&limit(info))), "no word of a limit is no limit");
    }
}

#[test]
fn everything_it_asks_has_an_answer() {
    let asked =
        |request: Value| json!({"type": "control_request", "request_id": "r1", "request": request});
    let answer = |ask: &Ask, verdict, text: &str| {
        let bytes = claude().answer("r1", ask, &Answer { verdict, text: text.into() }).unwrap();
        assert!(bytes.ends_with(b"\n"));
        let line: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            (&line["type"], &line["response"]["request_id"]),
            (&json!("control_response"), &json!("r1"))
        );
        line["response"].clone()
    };
    let permission = |line: &Value| match one(line) {
        AgentEvent::Permission { id, ask } if id == "r1" => *ask,
        other => panic!("{line} became {other:?}"),
    };
    let input = json!({"command": "rm x"});
    let ask = permission(&asked(
        json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": input, "tool_use_id": "t"}),
    ));
    assert_eq!(
        (ask.tool.as_str(), ask.call_id.as_deref(), &ask.input),
        ("Bash", Some("t"), &input)
    );
    let body = |response: Value| response["response"].clone();
    assert_eq!(
        body(answer(&ask, Verdict::Allow, "")),
        json!({"behavior": "allow", "updatedInput": input})
    );
    assert_eq!(
        body(answer(&ask, Verdict::Text, "no")),
        json!({"behavior": "deny", "message": "no"})
    );
    assert!(!body(answer(&ask, Verdict::Deny, ""))["message"].as_str().unwrap().is_empty());
    // The request has fewer fields than usual, and then more text than we keep.
    assert_eq!(permission(&asked(json!({"subtype": "can_use_tool"}))).kind, AskKind::Permission);
    let large = json!({"subtype": "can_use_tool", "tool_name": "Write",
        "input": {"content": "x".repeat(100_000)}});
    let large = permission(&asked(large));
    assert_eq!(
        body(answer(&large, Verdict::Allow, "")),
        json!({"behavior": "allow"}),
        "it keeps its own input"
    );

    let two =
        json!({"questions": [{"question": "A?", "options": [{"label": "x"}]}, {"question": "B?"}]});
    let question = permission(&asked(
        json!({"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": two}),
    ));
    assert_eq!((question.kind, question.text.as_str()), (AskKind::Question, "A? (x)\nB?"));
    let told = |text: &str| {
        body(answer(&question, Verdict::Text, text))["updatedInput"]["answers"].clone()
    };
    assert_eq!(told("one\ntwo"), json!({"A?": "one", "B?": "two"}));
    assert_eq!(told("both"), json!({"A?": "both", "B?": "both"}));
    let odd = json!({"subtype": "can_use_tool", "tool_name": "AskUserQuestion",
        "input": {"questions": "none"}});
    let odd = permission(&asked(odd));
    assert_eq!(body(answer(&odd, Verdict::Text, "so"))["behavior"], "deny");

    for (request, what) in [
        (json!({"subtype": "elicitation"}), "elicitation"),
        (json!({"subtype": "hook_callback"}), "hook_callback"),
        (json!({}), "unknown"),
        (Value::Null, "unknown"),
    ] {
        let wanted = events(&asked(request)).pop().unwrap();
        assert_eq!(wanted, AgentEvent::Request { id: "r1".into(), what: what.into() });
    }
    let refused =
        answer(&Ask { kind: AskKind::Other, ..Ask::default() }, Verdict::Deny, "not known");
    assert_eq!((&refused["subtype"], &refused["error"]), (&json!("error"), &json!("not known")));
    assert!(
        is_unknown(&one(
            &json!({"type": "control_request", "request": {"subtype": "can_use_tool"}})
        )),
        "no id, no answer"
    );

    let withdrawn = json!({"type": "control_cancel_request", "request_id": "r1"});
    assert_eq!(one(&withdrawn), AgentEvent::PermissionAnswer { id: "r1".into() });
    let reply =
        |response: Value| events(&json!({"type": "control_response", "response": response}));
    let echo = json!({"subtype": "success", "request_id": "r1", "response": {"behavior": "allow"}});
    assert_eq!(reply(echo), [], "our own, replayed");
    let ok = |ok, text: &str| [AgentEvent::Reply { id: "m1".into(), ok, text: text.into() }];
    assert_eq!(reply(json!({"subtype": "success", "request_id": "m1"})), ok(true, ""));
    assert_eq!(
        reply(json!({"subtype": "error", "request_id": "m1", "error": "no"})),
        ok(false, "no")
    );
    assert!(is_unknown(&reply(Value::Null)[0]));
}

fn parsed(backend: &str, lines: &str) -> Vec<Value> {
    let mut out = Vec::new();
    muleteer_backends::parse_all(by_name(backend).unwrap(), lines.as_bytes(), &mut out).unwrap();
    String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_subagents_lines_name_the_call_that_runs_it() {
    let line = |parent: Value, content: Value| {
        json!({"type": "assistant", "parent_tool_use_id": parent,
            "message": {"id": "m", "content": content,
                "usage": {"input_tokens": 1, "output_tokens": 1}}})
    };
    let said = json!([{"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "t2", "name": "Bash"}]);
    let result = json!({"type": "user", "parent_tool_use_id": "t1",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t2", "content": "x"}]}});
    let task = json!({"type": "user", "parent_tool_use_id": "t1",
        "message": {"content": [{"type": "text", "text": "its task"}]}});
    let lines = [
        line(json!("t1"), said.clone()),
        result,
        task,
        line(Value::Null, said.clone()),
        line(json!(""), said),
    ];
    let all = parsed("claude-code", &lines.map(|line| line.to_string()).join("\n"));
    let told: Vec<_> =
        all.iter().map(|one| (one["type"].as_str().unwrap(), one["parent"].as_str())).collect();
    let theirs = ["text", "tool_call", "usage", "tool_result"].map(|kind| (kind, Some("t1")));
    let own = ["text", "tool_call", "text", "tool_call"].map(|kind| (kind, None));
    assert_eq!(told, [theirs.as_slice(), own.as_slice()].concat(), "one model call is told once");
}

/// Each part of a message has the numbers of the whole call. A call without an id counts as well.
#[test]
fn usage_of_a_call_is_reported_once() {
    let line = |id: Value, output: u64| {
        json!({"type": "assistant", "message": {"id": id,
            "content": [{"type": "text", "text": "x"}],
            "usage": {"input_tokens": 100, "output_tokens": output}}})
    };
    let lines =
        [line(json!("a"), 1), line(json!("a"), 1), line(json!("b"), 2), line(json!("a"), 9)];
    let all = parsed("claude-code", &lines.map(|line| line.to_string()).join("\n"));
    let used = all.iter().filter(|one| one["type"] == "usage");
    let used: Vec<_> = used
        .map(|one| (one["input"].as_u64().unwrap(), one["output"].as_u64().unwrap()))
        .collect();
    assert_eq!(used, [(100, 1), (100, 2), (0, 8)]);
    for id in [Value::Null, json!(7)] {
        let usage = events(&line(id.clone(), 1)).pop().unwrap();
        assert!(
            matches!(usage, AgentEvent::Usage { call: Some(_), .. }),
            "{id}: its result counts it"
        );
    }
}

#[test]
fn a_stream_is_read_whatever_its_bytes() {
    let well = r#"{"type":"result","subtype":"success","is_error":false,"result":"done"}"#;
    let part = json!({"type": "text", "text": "y".repeat(3_000_000)});
    let long = json!({"type": "assistant", "message": {"id": "m", "content": [part]}});
    for backend in ["claude-code", "codex", "acp"] {
        assert_eq!(parsed(backend, ""), Vec::<Value>::new(), "{backend}");
        assert_eq!(parsed(backend, "\n\r\n   \n"), Vec::<Value>::new(), "{backend}");
    }
    assert_eq!(
        parsed("claude-code", &format!("{well}\r\n{well}")).len(),
        2,
        "CRLF, and no newline at the end"
    );
    let all =
        parsed("claude-code", &format!("{long}\n[1]\n\"text\"\n7\nnull\n{{\"type\":7}}\n{well}\n"));
    let kinds: Vec<_> = all.iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "unknown", "unknown", "unknown", "unknown", "unknown", "result"]);
    assert_eq!(all[0]["chars"], 3_000_000);
    assert!(all[0]["text"].as_str().unwrap().len() <= 4096);
    let mut out = Vec::new();
    let bytes = [b"\xff\xfe{\n".as_slice(), well.as_bytes()].concat();
    muleteer_backends::parse_all(claude(), bytes.as_slice(), &mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap().lines().count(),
        2,
        "what is no text costs its line only"
    );
}
