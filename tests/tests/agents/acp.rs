//! Tests of the real ACP agents, driven by muleteer against the scripted model.

#![allow(clippy::unwrap_used)]

use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Scene, processes, wait_until};
use serde_json::{Value, json};

fn edits_commits_and_returns_a_result(test: &str, agent: Agent) {
    let steps = [
        Step::bash("echo hello > hello.txt").and_text("I write the file."),
        Step::bash("git add hello.txt && git commit --quiet -m 'Add hello' && echo committed"),
        Step::success("hello.txt is there").usage(1000, 200),
    ];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();

    assert_eq!(scene.repo.read("hello.txt"), "hello\n");
    assert_eq!(scene.repo.git(&["show", "HEAD:hello.txt"]), "hello");
    assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "2");
    let entry = scene.world.dispatch(&id);
    assert_eq!(
        (&entry["state"], &entry["turns"], &entry["backend"]),
        (&json!("success"), &json!(1), &json!("acp"))
    );
    assert_eq!(entry["result"]["summary"], "hello.txt is there", "{entry}");
    assert!(entry["tokens"]["input"].as_u64().unwrap() >= 1200, "{entry}");
    assert_eq!(
        entry["cost_usd"].as_f64().unwrap() > 0.0,
        agent == Agent::Claude,
        "told by one, and not invented"
    );
    let requests = scene.server.main_requests();
    assert_eq!(requests.len(), 3, "one request a step, and not one more");
    let first = requests[0].body.to_string();
    assert!(
        first.contains("`developer` agent") && first.contains("[muleteer:prompt:"),
        "the role, the task, its key"
    );
    let called: Vec<Value> = scene.world.events_of(&id, "tool_called");
    assert!(
        called.len() == 2 && called.iter().all(|call| call["tool"] == "Bash"),
        "each call once: {called:?}"
    );
    let said = scene.world.events_of(&id, "agent_said");
    assert!(
        said.iter().any(|said| said["text"].as_str().unwrap().contains("I write the file.")),
        "whole: {said:?}"
    );
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_edits_a_file_commits_and_returns_a_result_with_its_cost() {
    edits_commits_and_returns_a_result(
        "claude_edits_a_file_commits_and_returns_a_result_with_its_cost",
        Agent::Claude,
    );
}

#[test]
fn codex_edits_a_file_commits_and_returns_a_result_with_its_tokens() {
    edits_commits_and_returns_a_result(
        "codex_edits_a_file_commits_and_returns_a_result_with_its_tokens",
        Agent::Codex,
    );
}

/// The second process loads the session of the first.
fn a_further_turn(test: &str, agent: Agent) {
    let steps = [
        Step::bash("echo one >> effects"),
        Step::success("one"),
        Step::bash("echo two >> effects"),
        Step::success("two"),
    ];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();
    let session = scene.world.dispatch(&id)["session_id"].clone();
    scene.world.muleteer(&["send", &id, "And now two"]).ok();
    wait_until("the second turn to end", PATIENCE, || {
        let entry = scene.world.dispatch(&id);
        (entry["turns"] == 2 && entry["state"] == "success").then_some(())
    });
    assert_eq!(scene.repo.effects("effects"), ["one", "two"]);
    let entry = scene.world.dispatch(&id);
    assert_eq!((&entry["session_id"], &entry["result"]["summary"]), (&session, &json!("two")));
    assert_eq!(
        scene.world.events_of(&id, "tool_called").len(),
        2,
        "the past that was told again is no news"
    );
    assert!(scene.last_told().contains("Write hello.txt"), "the second turn knows the first");
    scene.world.finish(Some(daemon));
}

/// Each prompt here is also a command of the agent's CLI, or of the agent itself.
fn slash_prompts_reach_the_model(test: &str, agent: Agent) {
    let Some(scene) = Scene::acp(test, agent, [Step::success("done").times(9)]) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn_with("/login returns 500", &["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();
    assert!(scene.last_told().contains("/login returns 500"), "{}", scene.last_told());
    for (turn, text) in
        [(2, "/status is slow"), (3, " /compact lists are hard to read"), (4, "/mcp")]
    {
        scene.world.muleteer(&["send", &id, text]).ok();
        wait_until("the turn to end", PATIENCE, || {
            let entry = scene.world.dispatch(&id);
            (entry["turns"] == turn && entry["state"] == "success").then_some(())
        });
        assert!(scene.last_told().contains(text), "{text}: {}", scene.last_told());
    }
    scene.world.finish(Some(daemon));
}

#[test]
fn a_prompt_that_begins_with_a_slash_reaches_claude_s_model() {
    slash_prompts_reach_the_model(
        "a_prompt_that_begins_with_a_slash_reaches_claude_s_model",
        Agent::Claude,
    );
}

#[test]
fn a_prompt_that_begins_with_a_slash_reaches_codex_s_model() {
    slash_prompts_reach_the_model(
        "a_prompt_that_begins_with_a_slash_reaches_codex_s_model",
        Agent::Codex,
    );
}

#[test]
fn claude_runs_a_second_turn_in_its_session() {
    a_further_turn("claude_runs_a_second_turn_in_its_session", Agent::Claude);
}

#[test]
fn codex_runs_a_second_turn_in_its_session() {
    a_further_turn("codex_runs_a_second_turn_in_its_session", Agent::Codex);
}

fn killed_in_the_middle(test: &str, agent: Agent) {
    let steps = [
        Step::bash("echo \"$$\" >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("went on").times(3),
    ];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    daemon.kill_9();
    let daemon = scene.world.daemon();
    assert_eq!(scene.world.wait_for_state(&id, &["running"])["attempts"], 1, "adopted");

    let all = scene.world.processes();
    scene.world.kill_9(processes::shims(&all).first().expect("a shim").pid);
    let entry = scene.world.wait_for_end(&id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("went on")),
        "{entry}"
    );
    assert_eq!(
        scene.repo.effects("effects").len(),
        1,
        "the prompt that was taken was not sent again"
    );
    let last = scene.last_told();
    assert!(last.contains("Write hello.txt"), "the loaded session holds the first prompt");
    let greeted = scene.world.events_of(&id, "agent_greeted");
    assert_eq!((greeted.len(), &greeted[1]["load"]), (2, &entry["session_id"]), "{greeted:?}");
    scene.world.finish(Some(daemon));
}

#[test]
fn killed_claude_continues_in_its_loaded_session() {
    killed_in_the_middle("killed_claude_continues_in_its_loaded_session", Agent::Claude);
}

#[test]
fn killed_codex_continues_in_its_loaded_session() {
    killed_in_the_middle("killed_codex_continues_in_its_loaded_session", Agent::Codex);
}

fn interrupted(test: &str, agent: Agent) {
    let steps = [
        Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("after the interrupt").times(2),
    ];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    wait_until("the turn to be known", PATIENCE, || {
        (scene.world.dispatch(&id)["turns"] == 1).then_some(())
    });
    scene.world.muleteer(&["interrupt", &id]).ok();
    let session = scene.world.wait_for_state(&id, &["waiting"])["session_id"].clone();
    scene.world.muleteer(&["send", &id, "Leave it then"]).ok();
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["session_id"]), (&json!("success"), &session), "{entry}");
    assert_eq!(entry["attempts"], 1, "in the same process");
    scene.world.finish(Some(daemon));
}

#[test]
fn interrupted_claude_runs_another_turn() {
    interrupted("interrupted_claude_runs_another_turn", Agent::Claude);
}

#[test]
fn interrupted_codex_runs_another_turn() {
    interrupted("interrupted_codex_runs_another_turn", Agent::Codex);
}

/// The agent asks us before an action that it may not do by itself.
fn asks(test: &str, agent: Agent) {
    let touch = |file: &str| match agent {
        Agent::Claude => Step::bash(&format!("touch {file}")),
        // Codex asks if its model says that the sandbox would prevent the action.
        Agent::Codex => Step::tool(
            "exec_command",
            json!({"cmd": format!("touch {file}"), "sandbox_permissions": "require_escalated",
                "justification": "it writes a file"}),
        ),
    };
    let steps = [touch("one"), touch("two"), Step::success("as told")];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    scene.world.configure("permissions:\n  mode: ask\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let asked = |answer: &str| {
        let entry = scene.world.wait_for_state(&id, &["waiting"]);
        let open = entry["waiting_for"].as_array().unwrap().clone();
        assert_eq!((open.len(), &open[0]["kind"]), (1, &json!("permission")), "{entry}");
        assert!(open[0].to_string().contains("touch"), "what it wants to do: {entry}");
        let answered = || scene.world.events_of(&id, "permission_answered").len();
        let before = answered();
        scene
            .world
            .muleteer(&[
                "answer",
                &id,
                answer,
                "--request",
                open[0]["request_id"].as_str().unwrap(),
            ])
            .ok();
        wait_until("the answer", PATIENCE, || (answered() > before).then_some(()));
    };
    asked("deny");
    assert!(!scene.repo.path.join("one").exists(), "what is asked about is not done");
    if agent == Agent::Claude {
        asked("allow");
    } else {
        // Codex takes a denial as an order to stop; a further message makes it continue.
        scene.world.wait_for_state(&id, &["waiting"]);
        scene.world.muleteer(&["send", &id, "The other one, then"]).ok();
        asked("allow");
    }
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(1)), "{entry}");
    let has = |file: &str| scene.repo.path.join(file).exists();
    assert_eq!((has("one"), has("two")), (false, true), "denied is not done, allowed is");
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_is_allowed_one_and_denied_one() {
    asks("claude_is_allowed_one_and_denied_one", Agent::Claude);
}

#[test]
fn codex_is_allowed_one_and_denied_one() {
    asks("codex_is_allowed_one_and_denied_one", Agent::Codex);
}

fn goes_on_with_another_model(test: &str, agent: Agent, model: &str) {
    let steps = [
        Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("one"),
        Step::success("two").times(3),
    ];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    let refused = scene.world.muleteer(&["model", &id, "no-such-model"]).run();
    assert_eq!(
        refused.code,
        Some(0),
        "it is asked, and says itself that there is none: {refused:?}"
    );
    wait_until("the agent's no", PATIENCE, || {
        (!scene.world.events_of(&id, "model_refused").is_empty()).then_some(())
    });
    scene.world.muleteer(&["model", &id, model]).ok();
    wait_until("the change", PATIENCE, || {
        (!scene.world.events_of(&id, "model_changed").is_empty()).then_some(())
    });
    std::fs::write(scene.repo.path.join("go"), "").unwrap();
    scene.world.wait_for_end(&id);
    // The new process loads a session that reports its old model, so Muleteer sets the model again.
    // (Codex has the history summarised first, and offers its newer models their tools in a form
    // that the scripted one does not know.)
    scene.world.muleteer(&["send", &id, "And two"]).ok();
    wait_until("the second turn to end", PATIENCE, || {
        (scene.world.events_of(&id, "dispatch_finished").len() == 2).then_some(())
    });
    let entry = scene.world.dispatch(&id);
    assert_eq!(entry["model"], model, "{entry}");
    let requests = scene.server.requests();
    let second = requests.iter().filter(|request| request.body.to_string().contains("And two"));
    let asked: Vec<&str> = second.filter_map(|request| request.body["model"].as_str()).collect();
    assert!(asked.iter().any(|asked| asked.contains(model)), "{asked:?} of {model}");
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_switches_to_another_model() {
    goes_on_with_another_model("claude_switches_to_another_model", Agent::Claude, "haiku");
}

#[test]
fn codex_switches_to_another_model() {
    goes_on_with_another_model("codex_switches_to_another_model", Agent::Codex, "gpt-6-astra");
}
