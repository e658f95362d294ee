//! Tests of the real `claude`, driven by muleteer against the scripted model.

#![allow(clippy::unwrap_used)]

use muleteer_tests::model_server::Step;
use muleteer_tests::skip::skip;
use muleteer_tests::{PATIENCE, Scene, processes, wait_until};
use serde_json::{Value, json};
use std::time::Duration;

fn count(haystack: &[Value], event: &str) -> usize {
    haystack.iter().filter(|line| line["event"] == event).count()
}

#[test]
fn it_edits_a_file_commits_and_returns_a_result_with_its_cost() {
    let test = "it_edits_a_file_commits_and_returns_a_result_with_its_cost";
    let steps = [
        Step::bash("echo hello > hello.txt").and_text("I write the file."),
        Step::bash("git add hello.txt && git commit --quiet -m 'Add hello' && echo committed"),
        Step::success("hello.txt is there").usage(1000, 200),
    ];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();

    assert_eq!(scene.repo.git(&["show", "HEAD:hello.txt"]), "hello");
    assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "2");
    let entry = scene.world.dispatch(&id);
    assert_eq!(entry["state"], "success", "{entry}");
    assert_eq!(entry["result"]["summary"], "hello.txt is there", "{entry}");
    assert!(entry["cost_usd"].as_f64().unwrap() > 0.0, "{entry}");
    assert!(entry["tokens"]["input"].as_u64().unwrap() >= 1000, "{entry}");
    assert!(entry["session_id"].is_string() && entry["turns"] == 1, "{entry}");
    assert_eq!(scene.server.main_requests().len(), 3, "one request a step, and not one more");
    let events = scene.world.events();
    let bash =
        events.iter().filter(|event| event["event"] == "tool_called" && event["tool"] == "Bash");
    assert_eq!(bash.count(), 2);
    assert_eq!(count(&events, "result_received"), 1);
    let journal = scene.world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("git commit") && journal.contains("completed"), "{journal}");
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
    let Some(scene) = Scene::claude(test, steps) else { return };
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
    assert_eq!(entry["session_id"], session, "the same session");
    assert_eq!(entry["result"]["summary"], "two");
    assert!(scene.last_told().contains("Write hello.txt"), "the second turn knows the first");
    scene.world.finish(Some(daemon));
}

#[test]
fn a_prompt_that_begins_with_a_slash_reaches_the_model_and_a_cli_command_does_not() {
    let test = "a_prompt_that_begins_with_a_slash_reaches_the_model_and_a_cli_command_does_not";
    let steps = [Step::success("one"), Step::success("two"), Step::success("three")];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn_with("/login returns 500 since yesterday", &["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim().to_string();
    assert!(
        scene.last_told().contains("/login returns 500 since yesterday"),
        "{}",
        scene.last_told()
    );
    let turns = |count: u64| {
        wait_until("the turn to end", PATIENCE, || {
            let entry = scene.world.dispatch(&id);
            (entry["turns"] == count && entry["state"] == "success").then_some(())
        });
    };
    scene.world.muleteer(&["send", &id, "/status is slow"]).ok();
    turns(2);
    assert!(scene.last_told().contains("/status is slow"), "{}", scene.last_told());
    assert_eq!(scene.world.dispatch(&id)["result"]["summary"], "two");
    let refused = scene.world.muleteer(&["send", &id, "--cli-command", "no slash"]).run();
    assert_eq!(refused.code, Some(2), "{refused:?}");
    scene.world.muleteer(&["send", &id, "--cli-command", "/cost"]).ok();
    wait_until("the command to run", PATIENCE, || {
        (scene.world.dispatch(&id)["turns"].as_u64()? >= 3).then_some(())
    });
    assert!(!scene.last_told().contains("The prompt is:\\n\\n/cost"), "{}", scene.last_told());
    scene.world.finish(Some(daemon));
}

/// Claude deduplicates by the prompt's id, and its transcript says which prompts it took. So the
/// tool's effect happens once, whichever process dies.
#[test]
fn killed_agent_continues_in_the_same_session() {
    let test = "killed_agent_continues_in_the_same_session";
    let steps = [
        Step::bash("echo \"$$\" >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("went on").times(3),
    ];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    daemon.kill_9();
    let daemon = scene.world.daemon();
    assert_eq!(scene.world.wait_for_state(&id, &["running"])["attempts"], 1, "adopted");

    let all = scene.world.processes();
    scene.world.kill_9(processes::shims(&all).first().expect("a shim").pid);
    let entry = scene.world.wait_for_end(&id);
    assert_eq!(entry["state"], "success", "{entry}");
    assert_eq!(entry["result"]["summary"], "went on");
    assert_eq!(
        scene.repo.effects("effects").len(),
        1,
        "the prompt that was taken was not sent again"
    );
    assert!(
        scene.last_told().contains("Write hello.txt"),
        "the resumed session holds the first prompt"
    );
    scene.world.wait_for_nothing_left(&[daemon.pid()]);
    scene.world.finish(Some(daemon));
}

#[test]
fn a_result_of_the_wrong_shape_gets_one_repair_turn() {
    let test = "a_result_of_the_wrong_shape_gets_one_repair_turn";
    let steps = [Step::text("I am done, believe me."), Step::success("now in form")];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(scene.world.dispatch(run.stdout.trim())["result"]["summary"], "now in form");
    assert_eq!(scene.server.main_requests().len(), 2);
    scene.world.finish(Some(daemon));
}

#[test]
fn interrupt_keeps_the_session_for_another_turn() {
    let test = "interrupt_keeps_the_session_for_another_turn";
    let steps =
        [Step::bash("echo up >> effects; sleep 1000"), Step::success("after the interrupt")];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    scene.world.muleteer(&["interrupt", &id]).ok();
    let session = scene.world.wait_for_state(&id, &["waiting"])["session_id"].clone();
    scene.world.muleteer(&["send", &id, "Leave it then"]).ok();
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["session_id"]), (&json!("success"), &session), "{entry}");
    scene.world.finish(Some(daemon));
}

/// A person's message becomes part of the running turn, and an event says so. A message that is
/// still in Claude's own queue when it is killed was not taken, and is not lost.
#[test]
fn a_message_to_a_busy_session_is_folded_into_its_turn() {
    let test = "a_message_to_a_busy_session_is_folded_into_its_turn";
    let waiting = |name: &str| {
        Step::bash(&format!("echo {name} >> effects; while [ ! -e {name} ]; do sleep 0.05; done"))
    };
    let steps = [waiting("one"), waiting("two"), Step::success("all three").times(2)];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    scene.wait_for_the_tool();
    scene.world.muleteer(&["send", &id, "FOLDED IN"]).ok();
    scene.wait_for_spool(&id, "\"queued\"", 2);
    scene.repo.write("one", "");
    scene.wait_for_tools(2);
    wait_until("the prompt to be folded in", PATIENCE, || {
        let folded = scene.world.events_of(&id, "prompt_folded");
        (folded.first()?["turn"] == 1).then_some(())
    });
    let second = scene.last_told();
    assert!(second.contains("FOLDED IN"), "the running turn has it: {second}");
    let entry = scene.world.dispatch(&id);
    assert_eq!((&entry["turns"], &entry["state"]), (&json!(1), &json!("running")), "{entry}");

    scene.world.muleteer(&["send", &id, "STILL WAITING"]).ok();
    scene.wait_for_spool(&id, "\"queued\"", 3);
    scene.world.kill_9(u32::try_from(entry["pid"].as_u64().unwrap()).unwrap());
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(2)), "{entry}");
    let standings: Vec<_> = scene
        .world
        .events_of(&id, "prompt_probed")
        .iter()
        .map(|one| one["standing"].clone())
        .collect();
    // Claude writes a call to its transcript a moment after it reports it. If it is killed in
    // between, the folded message is the transcript's last entry.
    assert!(
        standings == ["mid_tool", "mid_tool", "not_taken"]
            || standings == ["mid_tool", "unanswered", "not_taken"],
        "{standings:?}"
    );
    let last = scene.last_told();
    for said in ["Write hello.txt", "FOLDED IN", "STILL WAITING"] {
        assert_eq!(last.matches(said).count(), 1, "{said}: {last}");
    }
    assert_eq!(scene.repo.effects("effects"), ["one", "two"]);
    let journal = scene.world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("further prompt taken into turn 1"), "{journal}");
    scene.world.finish(Some(daemon));
}

/// In a sandbox its conversations are in its private HOME, where the daemon has to find them.
#[test]
fn killed_agent_with_a_private_home_continues_in_the_same_session() {
    let test = "killed_agent_with_a_private_home_continues_in_the_same_session";
    if !muleteer_tests::spec_stage::confined() {
        return skip(test, "no namespaces");
    }
    let steps = [
        Step::bash(
            "echo one >> effects; echo mine > \"$HOME/note\"; while [ ! -e go ]; do sleep 0.05; \
             done",
        ),
        Step::bash("cat \"$HOME/note\" >> effects"),
        Step::success("went on").times(2),
    ];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let home = scene.world.home();
    std::fs::create_dir(home.join(".claude")).unwrap();
    std::fs::write(home.join(".claude/settings.json"), "{\"model\": \"haiku\"}\n").unwrap();
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&["--sandbox", "on"]).ok();
    scene.wait_for_the_tool();
    daemon.kill_9();
    let daemon = scene.world.daemon();
    assert_eq!(scene.world.wait_for_state(&id, &["running"])["attempts"], 1, "adopted");
    let all = scene.world.processes();
    scene.world.kill_9(processes::shims(&all).first().expect("a shim").pid);
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("success"), &json!(2)), "{entry}");
    assert_eq!(entry["result"]["summary"], "went on");
    assert_eq!(scene.repo.effects("effects"), ["one", "mine"], "it went on where it was");
    let names = |dir: &std::path::Path| -> Vec<_> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    assert_eq!(names(&home.join(".claude")), ["settings.json"]);
    assert!(!names(&home).iter().any(|name| name == "note" || name == ".claude.json"));
    scene.world.finish(Some(daemon));
}

/// A resumed session gets only the turns that the dead process has left.
#[test]
fn a_limit_of_turns_is_of_all_its_processes() {
    let test = "a_limit_of_turns_is_of_all_its_processes";
    let first = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let Some(scene) = Scene::claude(test, [first, Step::bash("echo more >> effects")]) else {
        return;
    };
    let daemon = scene.world.daemon();
    let id = scene.spawn(&["--max-turns", "3"]).ok();
    scene.wait_for_the_tool();
    let before = scene.world.wait_for_state(&id, &["running"]);
    wait_until("the call to be recorded", PATIENCE, || {
        scene.world.events_of(&id, "tool_called").pop()
    });
    scene.world.kill_9(u32::try_from(before["pid"].as_u64().unwrap()).unwrap());
    let entry = scene.world.wait_for_end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("partial"), &json!(2)), "{entry}");
    assert!(entry["reason"].as_str().unwrap().contains("stopped at its limit of "), "{entry}");
    let requests = scene.server.main_requests().len();
    assert_eq!(requests, 3, "one before it died, two after");
    scene.world.finish(Some(daemon));
}

/// A slow answer is no stall, though no message is complete and the agent uses no CPU.
#[test]
fn an_answer_that_comes_slowly_is_no_stall() {
    let test = "an_answer_that_comes_slowly_is_no_stall";
    let slow = Step::success("a long answer, word by word: so long that it comes in many pieces")
        .chunk_delay(Duration::from_millis(1500));
    let Some(scene) = Scene::claude(test, [slow]) else { return };
    // The eight pieces take 12 s. The limit leaves the CLI time to load on a busy disk.
    scene.world.configure("categories:\n  coding:\n    inactivity_timeout: 9s\n");
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim();
    assert!(scene.world.events_of(id, "stall_detected").is_empty());
    assert_eq!(scene.world.events_of(id, "agent_said").len(), 0, "pieces are not recorded");
    scene.world.finish(Some(daemon));
}
