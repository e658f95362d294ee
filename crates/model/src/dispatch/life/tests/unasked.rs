//! Agents that break their policy.

use crate::agent::acp_handshake::{Call, CallAnswer};
use crate::agent::ask::Verdict;
use crate::agent::permission::{Mode, Policy};
use crate::dispatch::life::tests::acp_handshake::closed;
use crate::dispatch::life::tests::*;
use std::sync::Arc;

/// Runs a call that is reported, begun and ended, with a request before it if `asks`. Returns the
/// reason of a stop.
fn uses(
    policy: &Policy,
    agent: &str,
    (tool, input): (&str, serde_json::Value),
    asks: bool,
) -> Option<String> {
    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).permissions = policy.clone();
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted {
        agent: agent.into(),
        loads: true,
    })]);
    told.opens(Some("s1"), None);
    told.line(vec![AgentEvent::ToolCall {
        id: "t".into(),
        name: tool.into(),
        input: input.clone(),
    }]);
    if asks {
        let mut ask = crate::agent::ask::Ask::tool(tool, input);
        ask.call_id = Some("t".into());
        told.line(vec![AgentEvent::Permission { id: "r".into(), ask: Box::new(ask) }]);
        let answer = crate::agent::ask::Answer::allow();
        told.feed(Input::Answer {
            id: "r".into(),
            answer,
            by: "operator".into(),
            key: String::new(),
        });
    }
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::ToolRuns { id: "t".into() })]);
    told.line(vec![AgentEvent::ToolResult {
        id: "t".into(),
        ok: true,
        text: String::new(),
        exit_code: Some(0),
    }]);
    let broken =
        told.log.iter().filter(|event| matches!(event, Event::PolicyBroken { .. })).count();
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    if broken == 0 {
        return None;
    }
    assert!(broken == 1 && told.has(&Effect::Terminate), "told once, and stopped");
    told.exit(0);
    assert_eq!(told.d.state(), "failed", "whatever it says of its turn");
    told.d.reason.clone()
}

#[test]
fn tool_used_without_asking_against_the_policy_stops_the_agent() {
    let bash = |command: &str| ("Bash", json!({"command": command}));
    let read = || ("Read", json!({"file_path": "/p/.env"}));
    let edit = |path: &str| ("Edit", json!({"file_path": path}));
    let rules = |deny: &str| Policy {
        deny: vec![deny.to_string().try_into().unwrap()],
        ..Policy::default()
    };
    let allows = |allow: &str| Policy {
        allow: vec![allow.to_string().try_into().unwrap()],
        ..closed(Mode::Ask)
    };
    let unknown = "mine 1";
    let claude = "@agentclientprotocol/claude-agent-acp 0.101.0";
    for (policy, agent, call, stops) in [
        (closed(Mode::Ask), unknown, bash("touch one"), true),
        (closed(Mode::Deny), unknown, bash("make"), true),
        (closed(Mode::Ask), unknown, bash("ls -la"), false),
        (closed(Mode::Ask), unknown, read(), false),
        (closed(Mode::Deny), unknown, edit("/p/a"), true),
        (closed(Mode::Ask), unknown, ("WebFetch", json!({"url": "https://x"})), true),
        (closed(Mode::Ask), claude, bash("echo hi > f"), true),
        (closed(Mode::Ask), claude, bash("node --version"), false),
        (closed(Mode::Ask), claude, edit("/home/me/.claude/plans/x.md"), false),
        (closed(Mode::Ask), claude, edit("/p/a"), true),
        (closed(Mode::Ask), claude, edit("/etc/passwd"), true),
        (closed(Mode::Ask), claude, edit("/home/me/.claude/settings.json"), true),
        (closed(Mode::Ask), claude, edit("/home/me/.claude/plans/../settings.json"), true),
        (closed(Mode::Ask), claude, edit("../other/a"), true),
        (closed(Mode::Ask), claude, bash("grep '>' f"), false),
        // A name that only resembles the name of a known agent.
        (closed(Mode::Ask), "my-claude-agent-acp 1.0", bash("make"), true),
        (closed(Mode::Ask), "codex-acp-fork", bash("make"), true),
        (closed(Mode::Ask), "gemini-cli 0.61.0", bash("make"), false),
        (closed(Mode::Ask), unknown, bash("ls\nrm -rf x"), true),
        (closed(Mode::Ask), unknown, bash(&format!("ls {} && make", "a".repeat(300))), true),
        (closed(Mode::Ask), claude, bash("ls\nrm -rf x"), true),
        (closed(Mode::Ask), unknown, bash("rg -n 'a|b' src | sort | uniq -c"), false),
        (closed(Mode::Ask), unknown, ("Think", json!({})), false),
        (allows("Read(src/**)"), unknown, ("Read", json!({"file_path": "/etc/passwd"})), true),
        (allows("Read(src/**)"), unknown, read(), false),
        (allows("Read"), unknown, ("Read", json!({"file_path": "/etc/passwd"})), false),
        (closed(Mode::Ask), unknown, ("Read", json!({"file_path": "/etc/passwd"})), false),
        (rules("Bash(rm *)"), unknown, bash("ls\nrm -rf y"), true),
        (closed(Mode::Deny), "OpenCode 1.18", bash("touch one"), true),
        (closed(Mode::Deny), "@agentclientprotocol/codex-acp 2.6.0", bash("make"), false),
        (rules("Read(.env)"), claude, read(), true),
        (rules("Bash(rm *)"), unknown, bash("cd x && rm -rf y"), true),
        (rules("Bash(rm *)"), unknown, bash("touch one"), false),
        (Policy::default(), unknown, bash("rm -rf x"), false),
    ] {
        let reason = uses(&policy, agent, call.clone(), false);
        assert_eq!(reason.is_some(), stops, "{call:?} of {agent} under {policy:?}: {reason:?}");
        assert!(reason.is_none_or(|reason| reason.contains("without asking")));
        // A call that is requested is allowed or denied, and made in each case.
        let denied = policy.mode == Mode::Deny || (stops && !policy.deny.is_empty());
        let reason = uses(&policy, agent, call.clone(), true);
        assert_eq!(
            reason.is_some(),
            denied,
            "{call:?} of {agent} was asked for under {policy:?}: {reason:?}"
        );
        assert!(reason.is_none_or(|reason| reason.contains("denied it")));
    }
}

/// Answers a request for a call and feeds the lines that follow. Returns the reason if the agent
/// was stopped.
fn answered(agent: &str, verdict: Verdict, then: Vec<AgentEvent>) -> Option<String> {
    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).permissions = closed(Mode::Ask);
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted {
        agent: agent.into(),
        loads: true,
    })]);
    told.opens(Some("s1"), None);
    let input = json!({"command": "make all"});
    told.line(vec![AgentEvent::ToolCall {
        id: "t".into(),
        name: "Bash".into(),
        input: input.clone(),
    }]);
    let mut ask = crate::agent::ask::Ask::tool("Bash", input);
    ask.call_id = Some("t".into());
    told.line(vec![AgentEvent::Permission { id: "r".into(), ask: Box::new(ask) }]);
    let answer = crate::agent::ask::Answer { verdict, text: String::new() };
    told.feed(Input::Answer { id: "r".into(), answer, by: "operator".into(), key: String::new() });
    told.line(then);
    let broken = told.log.iter().any(|event| matches!(event, Event::PolicyBroken { .. }));
    told.result(TurnResult { ok: true, ..TurnResult::default() });
    told.exit(0);
    broken.then(|| told.d.reason.clone().unwrap())
}

#[test]
fn denied_call_that_is_executed_all_the_same_stops_its_agent() {
    let done = |ok: bool, text: &str, exit_code: Option<i64>| {
        vec![AgentEvent::ToolResult { id: "t".into(), ok, text: text.into(), exit_code }]
    };
    let runs = || vec![AgentEvent::CallAnswer(CallAnswer::ToolRuns { id: "t".into() })];
    let output = || vec![AgentEvent::CallAnswer(CallAnswer::ToolOutput { id: "t".into() })];
    let unknown = "mine 1";
    let codex = "@agentclientprotocol/codex-acp 2.6.0";
    for (agent, then, stops) in [
        (unknown, done(true, "built", None), true),
        (unknown, done(true, "", None), true),
        (unknown, done(true, "cat: permission denied", Some(0)), true),
        (unknown, done(false, "error: no rule", Some(2)), true),
        (unknown, runs(), true),
        (unknown, output(), true),
        ("OpenCode 1.18.33", output(), true),
        ("@agentclientprotocol/claude-agent-acp 0.101.0", done(true, "built", None), true),
        (codex, done(true, "built", Some(0)), true),
        // The ways in which agents report that they did not make a call.
        (unknown, done(false, "The user doesn't want to proceed with this tool use", None), false),
        (unknown, done(false, "", None), false),
        (unknown, done(true, "User rejected the command", None), false),
        (codex, done(false, "exec command rejected by user", Some(-1)), false),
        (codex, done(false, "sandbox", Some(1)), false),
        ("OpenCode 1.18.33", runs(), false),
        ("cline 3.0.65", runs(), false),
    ] {
        let reason = answered(agent, Verdict::Deny, then.clone());
        assert_eq!(reason.is_some(), stops, "{agent}: {then:?}: {reason:?}");
        assert!(
            reason.is_none_or(|reason| reason.contains("denied") && reason.contains("operator"))
        );
        assert_eq!(
            answered(agent, Verdict::Allow, then.clone()),
            None,
            "{agent}: {then:?} was allowed"
        );
    }
}

#[test]
fn configured_program_of_a_known_agent_is_stopped_for_an_unasked_command() {
    let mut told = Told::called();
    let created = Arc::make_mut(&mut told.d.created);
    created.permissions = closed(Mode::Ask);
    created.program = Some("agent.sh".into());
    let agent = "@agentclientprotocol/claude-agent-acp 0.101.0";
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::Greeted {
        agent: agent.into(),
        loads: true,
    })]);
    told.opens(Some("s1"), None);
    let input = json!({"command": "make"});
    told.line(vec![AgentEvent::ToolCall { id: "t".into(), name: "Bash".into(), input }]);
    told.line(vec![AgentEvent::ToolResult {
        id: "t".into(),
        ok: true,
        text: String::new(),
        exit_code: None,
    }]);
    assert!(told.log.iter().any(|event| matches!(event, Event::PolicyBroken { .. })));
}

#[test]
fn known_agent_behind_a_wrapper_may_report_a_call_before_it_asks() {
    let (opencode, codex) = ("OpenCode 1.18.33", "codex-acp 2.6.0");
    let claude = "claude-agent-acp 0.101.0";
    let runs = || AgentEvent::CallAnswer(CallAnswer::ToolRuns { id: "t".into() });
    let ends = || AgentEvent::ToolResult {
        id: "t".into(),
        ok: true,
        text: String::new(),
        exit_code: Some(0),
    };
    for (agent, tool, target, event, stops) in [
        (opencode, "Bash", "make", runs(), false),
        ("cline", "Bash", "make", runs(), false),
        (opencode, "Bash", "make", ends(), true),
        (opencode, "Bash", "ls", ends(), false),
        (opencode, "TodoRead", "", ends(), false),
        (claude, "mcp__x__y", "", ends(), false),
        (claude, "Edit", "/home/me/.claude/plans/x.md", ends(), true),
        (codex, "Bash", "make", ends(), false),
        (codex, "Bash", "touch one", ends(), true),
        ("my-opencode", "Bash", "make", runs(), true),
        ("my-opencode", "mcp__x__y", "", ends(), true),
    ] {
        let mut told = Told::called();
        let created = Arc::make_mut(&mut told.d.created);
        created.permissions = closed(Mode::Ask);
        created.program = Some("docker".into());
        let loads = true;
        let agent = agent.to_string();
        let greeted = CallAnswer::Greeted { agent: agent.clone(), loads };
        told.line(vec![AgentEvent::CallAnswer(greeted)]);
        told.opens(Some("s1"), None);
        let input = match tool {
            "Edit" => json!({"file_path": target}),
            _ => json!({"command": target}),
        };
        told.line(vec![AgentEvent::ToolCall { id: "t".into(), name: tool.into(), input }]);
        told.line(vec![event.clone()]);
        let broken = told.log.iter().any(|event| matches!(event, Event::PolicyBroken { .. }));
        assert_eq!(broken, stops, "{agent}: {tool} {target}: {event:?}");
    }
}

#[test]
fn mode_that_does_not_ask_is_set_back_once_and_an_agent_that_stays_is_stopped() {
    let changes = |told: &mut Told, mode: &str| {
        told.line(vec![AgentEvent::CallAnswer(CallAnswer::ModeChanged { mode: mode.into() })]);
    };
    let restores = |told: &Told| matches!(told.calls(), Some(Call::RestoreMode { mode, .. }) if mode == "default");
    let open = || {
        let mut told = Told::opened_in(closed(Mode::Ask), "default", &["default", "plan", "yolo"]);
        assert_eq!(told.on_its_way().as_deref(), Some("p1"));
        changes(&mut told, "plan");
        assert!(told.calls().is_none(), "it asks there");
        changes(&mut told, "yolo");
        assert!(restores(&told) && awaited(&told.d).is_some());
        assert_eq!(told.on_its_way().as_deref(), Some("p1"), "the prompt is not held up");
        told
    };
    let mut told = open();
    changes(&mut told, "yolo");
    assert!(restores(&told), "told twice, it is one change");
    told.line(vec![AgentEvent::CallAnswer(CallAnswer::ModeSet {})]);
    changes(&mut told, "default");
    assert!(told.calls().is_none() && awaited(&told.d).is_none() && told.d.stop.is_none());
    changes(&mut told, "yolo");
    assert!(told.has(&Effect::Terminate), "it went there again");

    let mut told = open();
    told.refuses_the_mode();
    assert!(told.has(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert!(told.d.reason.as_deref().unwrap().contains("`yolo`"), "{:?}", told.d.reason);

    let mut told = Told::called();
    Arc::make_mut(&mut told.d.created).permissions = closed(Mode::Deny);
    told.greets(true);
    told.opens(Some("s1"), None);
    changes(&mut told, "autoEdit");
    assert!(told.has(&Effect::Terminate), "nobody knows how to set it back");

    let mut told = Told::opened_in(Policy::default(), "default", &["default", "yolo"]);
    changes(&mut told, "yolo");
    assert!(told.calls().is_none() && told.d.stop.is_none(), "an open policy");
    assert!(
        told.log.iter().any(|event| matches!(event, Event::SessionModeChanged { back: None, .. }))
    );
}
