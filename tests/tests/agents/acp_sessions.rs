//! Sessions of scripted ACP agents: a replayed past, a session that is too young to be loaded, and
//! models that cannot be used.

#![allow(clippy::unwrap_used)]

use crate::acp_scripted::{
    GREETED, OPENED, PROMPT, end_turn, on, print, reply, says, spawn_scripted,
};
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};

const LOAD: &str = r#"*'"session/load"'*"#;

/// Sends a message and waits until the dispatch has ended again.
fn sends(world: &World, id: &str, text: &str) -> Value {
    let ends = || world.events_of(id, "dispatch_finished").len();
    let before = ends();
    world.muleteer(&["send", id, text]).ok();
    wait_until("the next end", PATIENCE, || (ends() > before).then_some(()));
    world.dispatch(id)
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

/// Some agents report the past before they answer `session/load`, and some after it.
#[test]
fn replayed_past_is_shown_once() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let old = says("the first answer");
    let script = [
        GREETED.to_string(),
        OPENED.to_string(),
        on(&format!("{PROMPT}xyzzy*"), &[&says("the second answer"), &end_turn()]),
        on(PROMPT, &[&old, &end_turn()]),
        on(LOAD, &[&old, &reply("session/load", json!({})), &old]),
    ];
    let id = spawn_scripted(&world, &repo, &script.join("\n"));
    world.wait_for_end(&id);
    let entry = sends(&world, &id, "xyzzy");
    assert_eq!(entry["state"], "success", "{entry}");
    let shown = [
        world.muleteer(&["logs", &id]).ok(),
        world.muleteer(&["logs", &id, "--follow"]).ok(),
        world.muleteer(&["logs", &id, "--json"]).ok(),
        std::fs::read_to_string(entry["journal"].as_str().unwrap()).unwrap(),
    ];
    for text in shown {
        for answer in ["the first answer", "the second answer"] {
            assert_eq!(count(&text, answer), 1, "{answer} in {text}");
        }
    }
    let raw = world.muleteer(&["logs", &id, "--raw"]).ok();
    assert_eq!(count(&raw, "the first answer"), 3, "{raw}");
    world.finish(Some(daemon));
}

/// The script forbids restarts, so none of the refused loads counts.
#[test]
fn agent_that_cannot_load_a_young_session_is_asked_again() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let made = world.path().join("made").display().to_string();
    let error = json!({"code": -32603, "message": "No previous sessions found"});
    let refused = print(&json!({"jsonrpc": "2.0", "id": "session/load", "error": error}));
    let opened = reply("session/load", json!({}));
    let is_young = format!("[ $(($(date +%s) - $(cat {made}))) -lt 3 ]");
    let script = [
        GREETED.to_string(),
        on(
            r#"*'"session/new"'*"#,
            &[&format!("date +%s > {made}"), &reply("session/new", json!({"sessionId": "s1"}))],
        ),
        on(PROMPT, &[&says("an answer"), &end_turn()]),
        on(LOAD, &[&format!("if {is_young}; then {refused}; else {opened}; fi")]),
    ];
    let id = spawn_scripted(&world, &repo, &script.join("\n"));
    world.wait_for_end(&id);
    let entry = sends(&world, &id, "more");
    assert_eq!((&entry["state"], &entry["turns"]), (&json!("success"), &json!(2)), "{entry}");
    let failed = world.events_of(&id, "call_failed");
    assert!(!failed.is_empty(), "the first load came too early");
    assert!(failed.iter().all(|event| event["call"] == "session/load"), "{failed:?}");
    let counted = world.events_of(&id, "attempt_finished");
    assert!(counted.iter().all(|event| event["counted"] == false), "{counted:?}");
    world.finish(Some(daemon));
}

/// gemini does this: it stores a session with the model's first answer, and there was none.
#[test]
fn session_that_was_never_stored_is_replaced_and_gets_the_prompt() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let sessions = world.path().join("sessions").display().to_string();
    let prompts = world.path().join("prompts").display().to_string();
    let number = format!("$(grep -c new {sessions})");
    let opened = reply("session/new", json!({"sessionId": "NAME"}));
    let opened = opened.replace("NAME", &format!("s'{number}'"));
    // The answer names the prompt, since it is all that the agent reports about the turn.
    let id = r#"id=$(printf '%s' "$line" | sed 's/.*"id":"\(prompt[^"]*\)".*/\1/')"#;
    let error = json!({"code": 429, "message": "Resource has been exhausted"});
    let limited = print(&json!({"jsonrpc": "2.0", "id": "NAME", "error": error}));
    let limited = limited.replace("NAME", "'$id'");
    let answered = [says("an answer"), end_turn()].join("; ");
    let error = json!({"code": -32603, "message": "Internal error",
        "data": {"details": "No previous sessions found for this project."}});
    let script = [
        GREETED.to_string(),
        on(r#"*'"session/new"'*"#, &[&format!("echo new >> {sessions}"), &opened]),
        on(LOAD, &[&print(&json!({"jsonrpc": "2.0", "id": "session/load", "error": error}))]),
        on(
            PROMPT,
            &[
                id,
                &format!("echo $id >> {prompts}"),
                &format!("if [ {number} = 1 ]; then {limited}; else {answered}; fi"),
            ],
        ),
    ];
    let id = spawn_scripted(&world, &repo, &script.join("\n"));
    let entry = world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["session_id"]), (&json!("success"), &json!("s2")));
    let prompts = std::fs::read_to_string(prompts).unwrap();
    let keys: Vec<_> = prompts.lines().collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    assert_eq!(world.events_of(&id, "session_lost")[0]["session_id"], "s1");
    let counted = world.events_of(&id, "attempt_finished");
    assert!(counted.iter().all(|event| event["counted"] == false), "{counted:?}");
    world.finish(Some(daemon));
}

fn opened_with_models(id: &str) -> String {
    let options = json!([{"value": "small", "name": "s"}, {"value": "huge", "name": "h"}]);
    reply(
        id,
        json!({"sessionId": "s1", "configOptions": [{"id": "model", "name": "Model",
            "category": "model", "type": "select", "currentValue": "small",
            "options": options}]}),
    )
}

fn with_models(world: &World, repo: &Repo, prompt: &[&str], set: &str) -> String {
    let script = [
        GREETED.to_string(),
        on(r#"*'"session/new"'*"#, &[&opened_with_models("session/new")]),
        on(LOAD, &[&opened_with_models("session/load")]),
        on(PROMPT, prompt),
        on(r#"*'"session/set_config_option"'*"#, &[set]),
    ];
    spawn_scripted(world, repo, &script.join("\n"))
}

#[test]
fn refused_model_leaves_the_old_one_and_the_message_is_answered() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let error = json!({"code": -32602, "message": "no such model"});
    let refused = print(&json!({"jsonrpc": "2.0", "id": "model", "error": error}));
    let id = with_models(&world, &repo, &[&says("an answer"), &end_turn()], &refused);
    world.wait_for_end(&id);
    world.muleteer(&["model", &id, "huge"]).ok();
    assert_eq!(world.dispatch(&id)["model"], "huge");
    let entry = sends(&world, &id, "more");
    assert_eq!((&entry["state"], &entry["model"]), (&json!("success"), &json!("small")), "{entry}");
    assert_eq!(entry["attempts"], 2, "{entry}");
    let events = world.events_of(&id, "model_refused");
    assert_eq!((events.len(), &events[0]["reason"]), (1, &json!("no such model")));
    world.finish(Some(daemon));
}

/// The agent takes any model, and the model API does not have it.
#[test]
fn model_that_the_api_does_not_have_is_given_up_without_a_counted_restart() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let huge = world.path().join("huge").display().to_string();
    let error = json!({"code": -32603, "message": "Internal error: 404 model huge not found"});
    let missing = print(&json!({"jsonrpc": "2.0", "id": "prompt/x", "error": error}));
    let answer = [says("an answer"), end_turn()].join("; ");
    let prompt = format!("if [ -e {huge} ]; then {missing}; else {answer}; fi");
    let set = [
        &format!("case \"$line\" in *'\"huge\"'*) touch {huge};; *) rm -f {huge};; esac"),
        &reply("model", json!({})),
    ];
    let set = set.map(String::as_str).join("; ");
    let id = with_models(&world, &repo, &[&prompt], &set);
    world.wait_for_end(&id);
    world.muleteer(&["model", &id, "huge"]).ok();
    let entry = sends(&world, &id, "more");
    assert_eq!((&entry["state"], &entry["model"]), (&json!("success"), &json!("small")), "{entry}");
    assert_eq!(world.events_of(&id, "model_refused").len(), 1);
    world.finish(Some(daemon));
}

#[test]
fn agent_that_cannot_change_its_model_refuses_with_the_way_to_choose_one() {
    for (agent, way) in [("cline", "cline auth"), ("Copilot", "--model")] {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let greeted = json!({"protocolVersion": 1, "agentCapabilities": {"loadSession": true},
            "agentInfo": {"name": agent, "version": "3.0.65"}});
        let script = [
            on(r#"*'"initialize"'*"#, &[&reply("initialize", greeted)]),
            on(r#"*'"session/new"'*"#, &[&opened_with_models("session/new")]),
            on(PROMPT, &[&says("an answer"), &end_turn()]),
        ];
        let id = spawn_scripted(&world, &repo, &script.join("\n"));
        world.wait_for_end(&id);
        let refused = world.muleteer(&["model", &id, "huge", "--json"]).run();
        assert_eq!(refused.error_code(), "E_UNSUPPORTED", "{refused:?}");
        assert!(refused.stdout.contains(way), "{refused:?}");
        assert_eq!(world.dispatch(&id)["model"], "small");
        world.finish(Some(daemon));
    }
}
