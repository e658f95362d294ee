//! Agents that work and are sick: Muleteer warns of them, and ends them if they continue. Healthy
//! agents that only look sick are left alone.

#![allow(clippy::unwrap_used)]

use muleteer_tests::model_server::Step;
use muleteer_tests::{PATIENCE, Repo, Scene, World, wait_until};
use serde_json::Value;

fn write_scenario(world: &World, turns: &str) -> String {
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, format!("v: 1\nturns:\n{turns}")).unwrap();
    scenario.to_str().unwrap().to_string()
}

fn rehearse(world: &World, repo: &Repo, role: &str, turns: &str) -> String {
    let scenario = write_scenario(world, turns);
    world.muleteer(&["spawn", role, repo.to_str(), "do it", "--scenario", &scenario]).ok()
}

fn spoke(world: &World, id: &str) -> Vec<(String, String)> {
    let text = |event: &Value, key: &str| event[key].as_str().unwrap().to_string();
    let events = world.events_of(id, "monitor_spoke");
    events.iter().map(|event| (text(event, "monitor"), text(event, "action"))).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter()
        .map(|(monitor, action)| ((*monitor).to_string(), (*action).to_string()))
        .collect()
}

/// Muleteer ends an agent only if the configuration asks for it.
const STOP: &str = "categories:\n  coding:\n    monitors: {loop: stop, spiral: stop}\n";

const CIRCLE: &str = "  - steps:\n      - say: I begin\n      - loop: {name: Bash, input: \
    {command: make}, times: 200, every: 50ms, \
                      ok: false, text: \"main.c: error: no such file\"}\n      - result: {status: \
                      success, summary: never}\n";

/// Muleteer warns of a looping agent, then ends it, and keeps its journal. A person's message makes
/// it continue in another way.
#[test]
fn looping_agent_warns_and_stops_and_a_message_resumes_it() {
    let world = World::new();
    world.configure(STOP);
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = rehearse(&world, &repo, "developer", CIRCLE);
    assert_eq!(world.muleteer(&["wait", &id]).run().code, Some(4));
    let entry = world.dispatch(&id);
    assert_eq!(entry["state"], "stalled", "{entry}");
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.starts_with("loop: Bash make failed in the same way "), "{reason}");
    assert_eq!(spoke(&world, &id), pairs(&[("loop", "warn"), ("loop", "stop")]));
    let journal = world.muleteer(&["journal", &id]).ok();
    assert!(
        journal.contains("[harness] loop: Bash make failed in the same way 4 times\n"),
        "{journal}"
    );
    assert!(journal.contains("times, so it is ended"), "{journal}");

    let mended = "  - steps:\n      - say: I begin\n      - result: {status: success, summary: \
        \"another way\"}\n";
    write_scenario(&world, mended);
    world.muleteer(&["send", &id, "there is no main.c: write it"]).ok();
    world.muleteer(&["wait", &id]).run();
    let entry = world.dispatch(&id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&"success".into(), &"another way".into()),
        "{entry}"
    );
    world.finish(Some(daemon));
}

/// The default ends no agent, and `status` shows the finding while the agent works.
#[test]
fn a_circle_without_configuration_is_warned_of_once_and_ends_nothing() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let turns = CIRCLE
        .replace("times: 200", "times: 40")
        .replace("      - result", "      - wait: 1h\n      - result");
    let id = rehearse(&world, &repo, "developer", &turns);
    let called = || world.events_of(&id, "tool_called").len();
    wait_until("it to have called forty times", PATIENCE, || (called() == 40).then_some(()));
    let entry = world.dispatch(&id);
    assert_eq!(entry["state"], "running", "{entry}");
    assert!(entry["reason"].as_str().unwrap().starts_with("loop: Bash make failed"), "{entry}");
    assert_eq!(spoke(&world, &id), pairs(&[("loop", "warn")]));
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}

/// The next daemon has not seen the agent's earlier calls, and finds the loop again.
#[test]
fn loop_is_found_across_a_daemon_restart() {
    let world = World::new();
    world.configure(STOP);
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let slow = CIRCLE.replace("every: 50ms", "every: 1s");
    let id = rehearse(&world, &repo, "developer", &slow);
    wait_until("it to call", PATIENCE, || {
        (!world.events_of(&id, "tool_called").is_empty()).then_some(())
    });
    daemon.kill_9();
    let daemon = world.daemon();
    assert_eq!(world.muleteer(&["wait", &id]).run().code, Some(4));
    assert_eq!(world.dispatch(&id)["state"], "stalled");
    let spoke = spoke(&world, &id);
    assert_eq!(spoke.last(), Some(&("loop".to_string(), "stop".to_string())), "{spoke:?}");
    assert_eq!(spoke.iter().filter(|(_, action)| action == "stop").count(), 1, "{spoke:?}");
    world.finish(Some(daemon));
}

#[test]
fn edits_outside_the_scope_warn_and_do_not_stop() {
    let world = World::new();
    let repo = world.repo("repo");
    let roles = repo.path.join(".muleteer/roles");
    std::fs::create_dir_all(&roles).unwrap();
    std::fs::write(
        roles.join("api.md"),
        "---\nname: api\nscope: [src/api/**]\n---\nYou keep the API.\n",
    )
    .unwrap();
    let daemon = world.daemon();
    let write = |path: &str| format!("      - write: {{path: {path}, text: \"x\\n\"}}\n");
    let steps: String =
        ["src/api/a.rs", "src/ui/a.rs", "src/ui/b.rs", "src/ui/c.rs", "src/ui/d.rs"]
            .map(write)
            .concat();
    // The agent stays: a monitor may find nothing any more about one that ends at once.
    let id = rehearse(&world, &repo, "api", &format!("  - steps:\n{steps}      - wait: 1h\n"));
    wait_until("a note and a warning", PATIENCE, || {
        (spoke(&world, &id) == pairs(&[("drift", "note"), ("drift", "warn")])).then_some(())
    });
    assert_eq!(world.dispatch(&id)["state"], "running");
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}

/// The monitor recognises a loop by the tool output that the real CLIs print.
#[test]
fn looping_claude_is_stopped_and_a_message_resumes_it() {
    let test = "looping_claude_is_stopped_and_a_message_resumes_it";
    let Some(scene) = Scene::claude(test, circle()) else { return };
    ended_in_its_circle(scene);
}

#[test]
fn looping_codex_is_stopped_and_a_message_resumes_it() {
    let test = "looping_codex_is_stopped_and_a_message_resumes_it";
    let Some(scene) = Scene::codex(test, circle()) else { return };
    ended_in_its_circle(scene);
}

fn circle() -> [Step; 3] {
    // The model does not answer until the agent is ended, or answers afterwards with a harmless
    // call.
    let held = Step::bash("true").held();
    [Step::bash("ls no-such-folder && date").times(6), held, Step::success("another way").times(3)]
}

fn ended_in_its_circle(scene: Scene) {
    scene.world.configure(STOP);
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(4), "{run:?}");
    let id = run.stdout.trim().to_string();
    let entry = scene.world.dispatch(&id);
    assert_eq!(entry["state"], "stalled", "{entry}");
    assert!(
        entry["reason"].as_str().unwrap().starts_with("loop: Bash ls no-such-folder"),
        "{entry}"
    );
    assert_eq!(spoke(&scene.world, &id), pairs(&[("loop", "warn"), ("loop", "stop")]));
    scene.server.release();
    scene.world.muleteer(&["send", &id, "make the folder first"]).ok();
    scene.world.muleteer(&["wait", &id]).run();
    let entry = scene.world.dispatch(&id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&"success".into(), &"another way".into()),
        "{entry}"
    );
    scene.world.finish(Some(daemon));
}
