//! Tests of ACP agents that a shell script plays: agents that break the rules, and rare answers.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};

/// Returns an agent of a few lines: `script` answers each of our messages, which it gets as
/// `$line`.
pub(crate) fn scripted(world: &World, script: &str) -> String {
    let path = world.path().join("agent.sh");
    std::fs::write(
        &path,
        format!("while IFS= read -r line; do\ncase \"$line\" in\n{script}\nesac\ndone\n"),
    )
    .unwrap();
    format!("sh {}", path.display())
}

pub(crate) fn spawn_scripted(world: &World, repo: &Repo, script: &str) -> String {
    world.configure(
        "backends:\n  acp: {call_timeout: 1s}\ncategories:\n  coding: {max_restarts: \
        0, result: false}\n",
    );
    let command = scripted(world, script);
    let args =
        ["spawn", "developer", repo.to_str(), "go", "--backend", "acp", "--command", &command];
    world.muleteer(&args).ok()
}

pub(crate) const GREETED: &str = concat!(
    r#"*'"initialize"'*) echo '{"jsonrpc":"2.0","id":"initialize","#,
    r#""result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}';;"#
);
pub(crate) const OPENED: &str = concat!(
    r#"*'"session/new"'*) echo '{"jsonrpc":"2.0","id":"session/new","#,
    r#""result":{"sessionId":"s1"}}';;"#
);
/// The pattern of a prompt.
pub(crate) const PROMPT: &str = r#"*'"session/prompt"'*"#;

/// Returns a branch of the script: `commands` answer a message that fits the pattern.
pub(crate) fn on(pattern: &str, commands: &[&str]) -> String {
    format!("{pattern}) {};;", commands.join("\n"))
}

pub(crate) fn print(message: &Value) -> String {
    format!("echo '{message}'")
}

pub(crate) fn reply(id: &str, result: Value) -> String {
    print(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

pub(crate) fn end_turn() -> String {
    reply("prompt/x", json!({"stopReason": "end_turn"}))
}

fn update(update: Value) -> String {
    let params = json!({"sessionId": "s1", "update": update});
    print(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
}

fn chunk(kind: &str, text: &str) -> String {
    update(json!({"sessionUpdate": kind, "content": {"type": "text", "text": text}}))
}

pub(crate) fn says(text: &str) -> String {
    chunk("agent_message_chunk", text)
}

fn asks_permission(id: &Value, call: Value, options: Value) -> String {
    let params = json!({"sessionId": "s1", "toolCall": call, "options": options});
    let method = "session/request_permission";
    print(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
}

fn yes() -> Value {
    json!({"optionId": "yes", "name": "Yes", "kind": "allow_once"})
}

fn no() -> Value {
    json!({"optionId": "no", "name": "No", "kind": "reject_once"})
}

#[test]
fn a_call_that_is_never_answered_ends_its_process_by_rule() {
    for (script, call) in
        [("'') ;;".to_string(), "initialize"), (GREETED.to_string(), "session/new")]
    {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let id = spawn_scripted(&world, &repo, &script);
        let entry = world.wait_for_end(&id);
        let reason = entry["reason"].as_str().unwrap();
        assert!(
            entry["state"] == "failed" && reason.contains(&format!("{call}: no answer within 1s")),
            "{entry}"
        );
        assert_eq!(world.events_of(&id, "call_failed")[0]["call"], call);
        world.finish(Some(daemon));
    }
}

#[test]
fn refused_call_reports_its_reason() {
    let error = json!({"code": -32000, "message": "Authentication required"});
    let refused = print(&json!({"jsonrpc": "2.0", "id": "session/new", "error": error}));
    let refused = on(r#"*'"session/new"'*"#, &[&refused]);
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn_scripted(&world, &repo, &format!("{GREETED}\n{refused}"));
    let entry = world.wait_for_end(&id);
    assert!(
        entry["state"] == "failed"
            && entry["reason"].as_str().unwrap().contains("Authentication required"),
        "{entry}"
    );
    assert_eq!(
        world.events_of(&id, "attempt_started").len(),
        1,
        "another process would fare no better"
    );
    world.finish(Some(daemon));
}

/// Muleteer immediately refuses unsupported requests of an agent and allows permitted ones, so that
/// the agent never waits for ever.
#[test]
fn calls_of_an_agent_are_answered() {
    let create = json!({"jsonrpc": "2.0", "id": 7, "method": "terminal/create",
        "params": {"sessionId": "s1", "command": "ls"}});
    let call = json!({"toolCallId": "t1", "kind": "edit", "title": "x"});
    let permission = asks_permission(&json!("a"), call, json!([no(), yes()]));
    let unknown = update(json!({"sessionUpdate": "something_new", "x": 1}));
    let answered = [&says("both an"), &unknown, &says("swered"), &end_turn()];
    let asks = [
        on(PROMPT, &[&print(&create)]),
        on(r#"*'"id":7,"error"'*-32601*|*'"error"'*'"id":7'*"#, &[&permission]),
        on(r#"*'"optionId":"yes"'*"#, &answered.map(String::as_str)),
    ]
    .join("\n");
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn_scripted(&world, &repo, &format!("{GREETED}\n{OPENED}\n{asks}"));
    let answered = || {
        let answers = world.events_of(&id, "permission_answered");
        (answers.len() == 2).then_some(answers)
    };
    let answers = wait_until("both to be answered", PATIENCE, answered);
    assert_eq!(
        (&answers[0]["answer"], &answers[1]["answer"]),
        (&json!("deny"), &json!("allow")),
        "{answers:?}"
    );
    wait_until("it to say so", PATIENCE, || {
        let said = world.events_of(&id, "agent_said");
        said.iter().any(|said| said["text"] == "both answered").then_some(())
    });
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

/// Each request is answered under the agent's own id for it. Muleteer refuses `allow` if the agent
/// offers no option that allows.
#[test]
fn a_request_is_answered_under_the_name_that_is_shown() {
    let permission = |id: &str, options: Value| {
        let call = json!({"toolCallId": id, "kind": "edit", "title": "x"});
        asks_permission(&json!(id), call, options)
    };
    let asks = [
        permission("s-1", json!([yes()])),
        permission("s-2", json!([no()])),
        permission("s-3", json!([])),
    ];
    let script = [
        GREETED,
        OPENED,
        &on(PROMPT, &asks.each_ref().map(String::as_str)),
        &on(r#"*'"optionId":"yes"'*"#, &[r#"echo "$line" > yes"#]),
        &on(r#"*'"optionId":"no"'*"#, &[r#"echo "$line" > no"#]),
        &on(r#"*'"s-3"'*"#, &[r#"echo "$line" > none"#]),
    ]
    .join("\n");
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let role = repo.path.join(".muleteer/config.yaml");
    std::fs::create_dir_all(role.parent().unwrap()).unwrap();
    std::fs::write(role, "permissions: {mode: ask}\n").unwrap();
    let id = spawn_scripted(&world, &repo, &script);
    let open = || {
        let entry = world.dispatch(&id);
        let names = entry["waiting_for"].as_array()?.iter().map(|one| one["request_id"].clone());
        Some(names.collect::<Vec<_>>())
    };
    wait_until("both to be asked", PATIENCE, || open().filter(|open| open.len() == 2));
    let own = || {
        let asked = world.events_of(&id, "permission_requested");
        asked.iter().map(|event| event["request_id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        own(),
        [json!("s-1"), json!("s-2"), json!("s-3")],
        "`--request` takes the agent's own ids too"
    );
    assert!(open().is_some_and(|open| open.iter().all(|id| !own().contains(id))), "{:?}", open());
    let answer = |said: &str, request: &str| {
        world.muleteer(&["answer", &id, said, "--request", request, "--json"]).run()
    };
    let refused = answer("allow", "s-2").expect_code(2);
    assert_eq!(refused.error_code(), "E_BAD_INPUT", "{refused:?}");
    answer("deny", "s-2").expect_code(0);
    answer("allow", "s-1").expect_code(0);
    for (file, name) in [("yes", "s-1"), ("no", "s-2"), ("none", "s-3")] {
        let heard = || {
            std::fs::read_to_string(repo.path.join(file)).ok().filter(|line| line.ends_with('\n'))
        };
        let heard = wait_until("the agent to hear it", PATIENCE, heard);
        assert_eq!(serde_json::from_str::<Value>(&heard).unwrap()["id"], name, "{heard}");
    }
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}

/// Gemini does this: it sends the history after its answer. The history must not count as the
/// answer to the next prompt.
#[test]
fn agent_that_replays_its_session_after_the_load_accepts_a_turn() {
    let call = update(json!({"sessionUpdate": "tool_call", "toolCallId": "t0", "kind": "execute",
        "title": "ls", "status": "completed", "rawInput": {"command": "ls"}}));
    let history = [
        &reply("session/load", json!({})),
        &chunk("user_message_chunk", "go"),
        &says("the past"),
        &call,
        &says("more of it"),
    ];
    let loaded = on(r#"*'"session/load"'*"#, &history.map(String::as_str));
    let prompted = on(PROMPT, &["echo prompted >> effects", &says("done"), &end_turn()]);
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn_scripted(&world, &repo, &format!("{GREETED}\n{OPENED}\n{loaded}\n{prompted}"));
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.muleteer(&["send", &id, "and now this"]).ok();
    let entry = wait_until("the second turn to end", PATIENCE, || {
        let entry = world.dispatch(&id);
        (entry["turns"] == 2 && entry["state"] == "success").then_some(entry)
    });
    assert_eq!(repo.effects("effects"), ["prompted", "prompted"], "{entry}");
    assert_eq!(
        world.events_of(&id, "tool_called").len(),
        0,
        "the past that was told again is no news"
    );
    world.finish(Some(daemon));
}

#[test]
fn turn_cancelled_by_the_agent_fails() {
    let cancels = on(PROMPT, &[&reply("prompt/x", json!({"stopReason": "cancelled"}))]);
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn_scripted(&world, &repo, &format!("{GREETED}\n{OPENED}\n{cancels}"));
    let entry = world.wait_for_end(&id);
    let reason = entry["reason"].as_str().unwrap();
    assert!(entry["state"] == "failed" && reason.contains("nothing interrupted it"), "{entry}");
    world.finish(Some(daemon));
}

/// cline does this at its own limit of mistakes. A restart would repeat them.
#[test]
fn turn_cancelled_after_failed_calls_is_the_end() {
    let failed = |id: u32| {
        let call = json!({"sessionUpdate": "tool_call", "toolCallId": id.to_string(),
            "kind": "execute", "title": "ls", "status": "failed",
            "rawInput": {"command": "ls nowhere"}});
        update(call)
    };
    let cancels = reply("prompt/x", json!({"stopReason": "cancelled"}));
    let prompted = on(PROMPT, &[&failed(1), &failed(2), &failed(3), &cancels]);
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = spawn_scripted(&world, &repo, &format!("{GREETED}\n{OPENED}\n{prompted}"));
    let entry = world.wait_for_end(&id);
    let reason = entry["reason"].as_str().unwrap();
    assert!(entry["state"] == "partial" && reason.contains("failed tool calls"), "{entry}");
    world.finish(Some(daemon));
}

fn spawn_under(world: &World, repo: &Repo, permissions: &str, script: &str) -> String {
    let id = format!("permissions: {{{permissions}}}\n");
    world.configure(&format!(
        "{id}backends:\n  acp: {{call_timeout: 10s}}\ncategories:\n  coding: {{max_restarts: 0, \
         result: false}}\n"
    ));
    let command = scripted(world, script);
    let args =
        ["spawn", "developer", repo.to_str(), "go", "--backend", "acp", "--command", &command];
    world.muleteer(&args).ok()
}

/// claude-agent-acp 0.101.0 does this: it starts in a mode of its own choice.
#[test]
fn the_mode_that_a_policy_needs_is_set_after_new_and_after_load() {
    let modes = json!({"currentModeId": "auto",
        "availableModes": [{"id": "default"}, {"id": "auto"}, {"id": "bypassPermissions"}]});
    let new = reply("session/new", json!({"sessionId": "s1", "modes": modes}));
    let new = on(r#"*'"session/new"'*"#, &[&new]);
    let load = reply("session/load", json!({"modes": modes}));
    let load = on(r#"*'"session/load"'*"#, &[&load]);
    let set = on(
        r#"*'"session/set_mode"'*'"id":"mode"'*|*'"id":"mode"'*'"session/set_mode"'*"#,
        &[r#"echo "$line" >> modes"#, &reply("mode", json!({}))],
    );
    let prompted = on(PROMPT, &[&says("done"), &end_turn()]);
    for (permissions, mode) in
        [("mode: allow", "bypassPermissions"), ("mode: ask", "default"), ("mode: deny", "default")]
    {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let id = spawn_under(
            &world,
            &repo,
            permissions,
            &format!("{GREETED}\n{new}\n{load}\n{set}\n{prompted}"),
        );
        assert_eq!(world.wait_for_end(&id)["state"], "success");
        world.muleteer(&["send", &id, "more"]).ok();
        wait_until("the second turn to end", PATIENCE, || {
            let entry = world.dispatch(&id);
            (entry["turns"] == 2 && entry["state"] == "success").then_some(())
        });
        let set = repo.effects("modes");
        let asked: Vec<Value> = set
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["params"].clone())
            .collect();
        assert_eq!(asked, vec![json!({"sessionId": "s1", "modeId": mode}); 2], "{permissions}");
        world.finish(Some(daemon));
    }
}

/// An agent that uses a denied or restricted tool without asking is ended, whatever it says about
/// its turn.
#[test]
fn tool_used_without_asking_under_a_closed_policy_stops_the_agent() {
    let uses = |command: &str, status: &str| {
        let call = update(json!({"sessionUpdate": "tool_call", "toolCallId": "t1",
            "kind": "execute", "title": command, "status": status,
            "rawInput": {"command": command}}));
        on(PROMPT, &[command, &call, &end_turn()])
    };
    for (permissions, command, status, state) in [
        ("mode: deny", "touch one", "completed", "failed"),
        ("mode: ask", "touch one", "in_progress", "failed"),
        ("deny: [\"Bash(touch *)\"]", "touch one", "completed", "failed"),
        ("mode: ask", "ls", "completed", "success"),
        ("mode: allow", "touch one", "completed", "success"),
    ] {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let id = spawn_under(
            &world,
            &repo,
            permissions,
            &format!("{GREETED}\n{OPENED}\n{}", uses(command, status)),
        );
        let entry = world.wait_for_end(&id);
        assert_eq!(entry["state"], state, "{permissions}, {command}: {entry}");
        let broken = world.events_of(&id, "policy_broken");
        assert_eq!(broken.len(), usize::from(state == "failed"), "{broken:?}");
        if state == "failed" {
            assert!(entry["reason"].as_str().unwrap().contains("without asking"), "{entry}");
        }
        world.finish(Some(daemon));
    }
}

/// The agent asks, is denied, and continues. Its reports of the call decide whether it is stopped.
#[test]
fn denied_call_that_is_executed_all_the_same_ends_its_agent() {
    let call = json!({"toolCallId": "t1", "kind": "execute", "title": "touch one",
        "rawInput": {"command": "touch one"}});
    let mut begun = call.clone();
    begun["sessionUpdate"] = "tool_call".into();
    begun["status"] = "pending".into();
    let permission = asks_permission(&json!(7), call, json!([yes(), no()]));
    let asks = on(PROMPT, &[&update(begun), &permission]);
    let goes_on = |mut ended: Value| {
        ended["sessionUpdate"] = "tool_call_update".into();
        ended["toolCallId"] = "t1".into();
        on(r#"*'"outcome"'*"#, &[&update(ended), &end_turn()])
    };
    for (ended, state) in [
        (json!({"status": "completed"}), "failed"),
        (json!({"status": "failed", "rawOutput": {"output": "", "exit_code": 1}}), "failed"),
        (json!({"status": "failed"}), "success"),
        (
            json!({"status": "completed", "rawOutput": {"output": "The user rejected this"}}),
            "success",
        ),
    ] {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let script = format!("{GREETED}\n{OPENED}\n{asks}\n{}", goes_on(ended.clone()));
        let id = spawn_under(&world, &repo, "mode: deny", &script);
        let entry = world.wait_for_end(&id);
        assert_eq!(entry["state"], state, "{ended}: {entry}");
        let broken = world.events_of(&id, "policy_broken");
        assert_eq!(broken.len(), usize::from(state == "failed"), "{broken:?}");
        assert!(
            state == "success" || entry["reason"].as_str().unwrap().contains("denied"),
            "{entry}"
        );
        world.finish(Some(daemon));
    }
}

#[test]
fn agent_that_leaves_the_mode_in_which_it_asks_is_sent_back_or_stopped() {
    let modes =
        json!({"currentModeId": "default", "availableModes": [{"id": "default"}, {"id": "yolo"}]});
    let opened = reply("session/new", json!({"sessionId": "s1", "modes": modes}));
    let opened = on(r#"*'"session/new"'*"#, &[&opened]);
    let leave = update(json!({"sessionUpdate": "current_mode_update", "currentModeId": "yolo"}));
    let leaves = on(PROMPT, &[&says("done"), &leave]);
    for (kind, answer, state) in [
        ("result", json!({}), "success"),
        ("error", json!({"code": -1, "message": "no"}), "failed"),
    ] {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let mut answered = json!({"jsonrpc": "2.0", "id": "mode"});
        answered[kind] = answer.clone();
        let set = on(
            r#"*'"session/set_mode"'*"#,
            &[r#"echo "$line" >> modes"#, &print(&answered), &end_turn()],
        );
        let id = spawn_under(
            &world,
            &repo,
            "mode: ask",
            &format!("{GREETED}\n{opened}\n{leaves}\n{set}"),
        );
        let entry = world.wait_for_end(&id);
        assert_eq!(entry["state"], state, "{answer}: {entry}");
        let set = repo.effects("modes");
        assert!(set.len() == 1 && set[0].contains(r#""modeId":"default""#), "{set:?}");
        assert_eq!(world.events_of(&id, "session_mode_changed").len(), 1);
        assert_eq!(
            world.events_of(&id, "session_mode_stays").len(),
            usize::from(state == "failed")
        );
        world.finish(Some(daemon));
    }
}

#[test]
fn an_agent_that_never_asks_is_refused_under_a_closed_policy() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    world.configure("permissions: {mode: ask}\n");
    for (command, env) in [
        ("pi-acp", "A=b"),
        ("agent --acp --yolo", "A=b"),
        ("agent --dangerously-skip-permissions", "A=b"),
        ("agent --acp", "COPILOT_ALLOW_ALL=true"),
    ] {
        let args = [
            "spawn",
            "developer",
            repo.to_str(),
            "go",
            "--backend",
            "acp",
            "--command",
            command,
            "--env",
            env,
            "--json",
        ];
        let refused = world.muleteer(&args).run();
        assert_eq!(
            (refused.code, refused.error_code().as_str()),
            (Some(2), "E_UNSUPPORTED"),
            "{command}: {refused:?}"
        );
    }
    world.finish(Some(daemon));
}

#[test]
fn agent_without_session_load_ends_unknown_and_is_not_restarted() {
    let greeted = GREETED.replace("true", "false");
    let dies = on(PROMPT, &[&says("I begin"), "echo began >> effects", "exit 1"]);
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    world.configure("backends:\n  acp: {call_timeout: 10s}\n");
    let command = scripted(&world, &format!("{greeted}\n{OPENED}\n{dies}"));
    let args =
        ["spawn", "developer", repo.to_str(), "go", "--backend", "acp", "--command", &command];
    let id = world.muleteer(&args).ok();
    let entry = world.wait_for_end(&id);
    assert!(
        entry["state"] == "blocked" && entry["reason"].as_str().unwrap().contains("unknown"),
        "{entry}"
    );
    assert_eq!(repo.effects("effects"), ["began"], "once");
    world.finish(Some(daemon));
}

#[test]
fn unknown_acp_agent_is_rejected_with_known_names() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let run = world
        .muleteer(&["spawn", "developer", repo.to_str(), "go", "--backend", "acp:codx-acp"])
        .run();
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("codex-acp"), "{run:?}");
    world.finish(Some(daemon));
}
