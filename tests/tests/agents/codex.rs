//! Tests of the real `codex`, driven by muleteer against the scripted model.

#![allow(clippy::unwrap_used)]

use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Scene, processes, wait_until};
use serde_json::{Value, json};

fn tokens(entry: &Value) -> (u64, u64) {
    (entry["tokens"]["input"].as_u64().unwrap(), entry["tokens"]["output"].as_u64().unwrap())
}

#[test]
fn it_edits_a_file_commits_and_returns_a_result_with_its_tokens() {
    let test = "it_edits_a_file_commits_and_returns_a_result_with_its_tokens";
    let steps = [
        Step::bash("echo hello > hello.txt").and_text("I write the file."),
        Step::bash("git add hello.txt && git commit --quiet -m 'Add hello' && echo committed"),
        Step::success("hello.txt is there").usage(1000, 200),
    ];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();

    assert_eq!(scene.repo.git(&["show", "HEAD:hello.txt"]), "hello");
    assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "2");
    let entry = scene.world.dispatch(&id);
    assert_eq!((&entry["state"], &entry["turns"]), (&json!("success"), &json!(1)), "{entry}");
    assert_eq!(entry["result"]["summary"], "hello.txt is there", "{entry}");
    assert_eq!(tokens(&entry), (1200, 240), "{entry}");
    assert_eq!(entry["cost_usd"], 0.0, "it tells no cost, and none is invented");
    assert!(entry["session_id"].is_string(), "{entry}");

    let requests = scene.server.main_requests();
    assert_eq!(requests.len(), 3, "one request a step, and not one more");
    let first = requests[0].body["input"].to_string();
    assert!(
        first.contains("`developer` agent") && first.contains("Write hello.txt"),
        "the role, then the task"
    );
    assert!(first.contains("[muleteer:prompt:"), "the prompt carries its key");
    assert_eq!(
        requests[0].body["text"]["format"]["schema"]["additionalProperties"], false,
        "the schema is strict"
    );
    assert_eq!(scene.world.events_of(&id, "tool_called").len(), 2);
    assert_eq!(scene.world.events_of(&id, "result_received").len(), 1);
    scene.world.finish(Some(daemon));
}

#[test]
fn second_turn_continues_the_same_session() {
    let test = "second_turn_continues_the_same_session";
    let steps = [
        Step::bash("echo one >> effects"),
        Step::success("one"),
        Step::bash("echo two >> effects"),
        Step::success("two"),
    ];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();
    let before = scene.world.dispatch(&id);
    assert_eq!(tokens(&before), (200, 40));
    scene.world.muleteer(&["send", &id, "And now two"]).ok();
    let entry = wait_until("the second turn to end", PATIENCE, || {
        let entry = scene.world.dispatch(&id);
        (entry["turns"] == 2 && entry["state"] == "success").then_some(entry)
    });
    assert_eq!(scene.repo.effects("effects"), ["one", "two"]);
    assert_eq!(entry["session_id"], before["session_id"], "the same session");
    assert_eq!(entry["result"]["summary"], "two");
    assert_eq!(tokens(&entry), (400, 80), "what the session tells in all is counted once");
    assert!(scene.last_told().contains("Write hello.txt"), "the second turn knows the first");
    scene.world.finish(Some(daemon));
}

/// Daemon and shim die while a tool runs. The session is resumed with a prompt to continue, and its
/// first prompt is not sent again.
#[test]
fn killed_agent_continues_in_the_same_session() {
    let test = "killed_agent_continues_in_the_same_session";
    let steps = [
        Step::bash("echo \"$$\" >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("went on").times(3),
    ];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    daemon.kill_9();
    let daemon = scene.world.daemon();
    assert_eq!(scene.world.wait_for_state(&id, &["running"])["attempts"], 1, "adopted");
    let session = scene.world.dispatch(&id)["session_id"].clone();

    let all = scene.world.processes();
    scene.world.kill_9(processes::shims(&all).first().expect("a shim").pid);
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["session_id"]), (&json!("success"), &session), "{entry}");
    assert_eq!(entry["result"]["summary"], "went on");
    let attempts = scene.world.events_of(&id, "attempt_finished");
    assert_eq!(
        attempts.iter().filter(|event| event["counted"] == true).count(),
        1,
        "one counted restart"
    );
    assert_eq!(
        scene.repo.effects("effects").len(),
        1,
        "the prompt that was taken was not sent again"
    );
    let input = scene.last_told();
    assert_eq!(input.matches("Write hello.txt").count(), 1, "{input}");
    assert!(input.contains("ended unexpectedly"), "{input}");
    scene.world.wait_for_nothing_left(&[daemon.pid()]);
    scene.world.finish(Some(daemon));
}

#[test]
fn killed_itself_it_is_resumed() {
    let test = "killed_itself_it_is_resumed";
    let steps = [Step::bash("echo up >> effects; sleep 1000"), Step::success("went on")];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    let before = scene.world.wait_for_state(&id, &["running"]);
    scene.world.kill_9(u32::try_from(before["pid"].as_u64().unwrap()).unwrap());
    let entry = scene.world.wait_for_end(&id);
    assert_eq!(
        (&entry["state"], &entry["session_id"]),
        (&json!("success"), &before["session_id"]),
        "{entry}"
    );
    assert_eq!((scene.repo.effects("effects").len(), &entry["attempts"]), (1, &json!(2)));
    scene.world.finish(Some(daemon));
}

#[test]
fn a_result_of_the_wrong_shape_gets_one_repair_turn() {
    let test = "a_result_of_the_wrong_shape_gets_one_repair_turn";
    let steps = [Step::text("I am done, believe me."), Step::success("now in form")];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let entry = scene.world.dispatch(run.stdout.trim());
    assert_eq!(
        (&entry["result"]["summary"], &entry["turns"]),
        (&json!("now in form"), &json!(2)),
        "{entry}"
    );
    assert_eq!(scene.server.main_requests().len(), 2);
    scene.world.finish(Some(daemon));
}

#[test]
fn interrupt_ends_the_turn_and_a_message_resumes_the_session() {
    let test = "interrupt_ends_the_turn_and_a_message_resumes_the_session";
    let steps =
        [Step::bash("echo up >> effects; sleep 1000"), Step::success("after the interrupt")];
    let Some(scene) = Scene::codex(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    scene.world.muleteer(&["interrupt", &id]).ok();
    let session = scene.world.wait_for_state(&id, &["partial"])["session_id"].clone();
    scene.world.muleteer(&["send", &id, "Leave it then"]).ok();
    let entry = scene.world.wait_for_state(&id, &["success"]);
    assert_eq!(entry["session_id"], session, "{entry}");
    assert!(scene.last_told().contains("Leave it then"));
    scene.world.finish(Some(daemon));
}

#[test]
fn a_refused_key_fails_at_once_and_a_cut_stream_is_asked_again() {
    let test = "a_refused_key_fails_at_once_and_a_cut_stream_is_asked_again";
    let Some(scene) = Scene::codex(test, [Step::text("cut").die_mid(), Step::success("well")])
    else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&["--wait"]).ok();
    assert_eq!(scene.world.dispatch(&id)["result"]["summary"], "well");
    assert!(!scene.world.events_of(&id, "api_retried").is_empty());
    scene.world.finish(Some(daemon));

    let Some(scene) = Scene::codex(test, [Step::status(401)]) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("failed"), &json!(1)), "{entry}");
    assert!(entry["reason"].as_str().unwrap().contains("refused the key"), "{entry}");
    scene.world.finish(Some(daemon));
}
