//! An agent that hangs is ended, its session is kept, and its state is `stalled`. An agent that is
//! merely silent is left alone.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;

fn impatient() -> World {
    let world = World::new();
    world.configure("categories:\n  coding:\n    inactivity_timeout: 3s\n");
    world
}

fn write_scenario(world: &World, turns: &str) -> String {
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, format!("v: 1\nturns:\n{turns}")).unwrap();
    scenario.to_str().unwrap().to_string()
}

fn rehearse(world: &World, repo: &Repo, turns: &str) -> String {
    let scenario = write_scenario(world, turns);
    world
        .muleteer(&["spawn", "developer", repo.to_str(), "do it", "--scenario", &scenario])
        .ok()
}

fn ended(world: &World, id: &str) -> Value {
    world.muleteer(&["wait", id]).run();
    world.dispatch(id)
}

#[test]
fn hanging_agent_stalls_and_a_message_resumes_it() {
    let world = impatient();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = rehearse(&world, &repo, "  - steps:\n      - say: I begin\n      - hang: {for: 1h}\n");
    assert_eq!(world.muleteer(&["wait", &id]).run().code, Some(4));
    let entry = world.dispatch(&id);
    assert_eq!(entry["state"], "stalled", "{entry}");
    assert!(entry["reason"].as_str().unwrap().starts_with("no sign of life for "), "{entry}");
    let detected = world.events_of(&id, "stall_detected");
    assert_eq!(detected.len(), 1, "{detected:?}");
    assert!(detected[0]["silent_s"].as_u64().unwrap() >= 3, "{detected:?}");
    let journal = world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("[harness] stalled: no sign of life"), "{journal}");

    // The resumed agent continues after its last step; the cause of its hang is repaired.
    let mended = "  - steps:\n      - say: I begin\n      - result: {status: success, summary: \
        \"after all\"}\n";
    write_scenario(&world, mended);
    world.muleteer(&["send", &id, "go on"]).ok();
    let entry = ended(&world, &id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&"success".into(), &"after all".into()),
        "{entry}"
    );
    let resumed = &world.events_of(&id, "attempt_started")[1];
    assert!(resumed["resume"].is_string(), "in the same session: {resumed}");
    world.finish(Some(daemon));
}

/// A person who kills an agent does not want its queued prompt done before the next message.
#[test]
fn kill_withdraws_queued_prompts_and_reports_them() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = rehearse(&world, &repo, "  - steps:\n      - say: I begin\n      - wait: 1h\n");
    // A dispatch is `running` before its first turn begins. A kill in between withdraws both
    // prompts.
    wait_until("its first turn to begin", PATIENCE, || {
        (!world.events_of(&id, "agent_said").is_empty()).then_some(())
    });
    let sent = world.muleteer(&["send", &id, "then push it", "--json"]).json();
    assert_eq!(sent["queued"], true, "{sent}");
    let killed = world.muleteer(&["kill", &id, "--json"]).json();
    assert!(killed["note"].as_str().unwrap().contains("withdrew 1 queued prompt"), "{killed}");
    let entry = ended(&world, &id);
    assert_eq!((&entry["state"], &entry["turns"]), (&"killed".into(), &1.into()), "{entry}");
    world.finish(Some(daemon));
}

#[test]
fn a_silent_tool_call_and_an_unanswered_question_are_no_stall() {
    let world = impatient();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    // The two dispatches run one after the other, because both read the same file.
    let tool = rehearse(
        &world,
        &repo,
        "  - steps:\n      - run: sleep 7\n      - result: {status: success, summary: s}\n",
    );
    wait_until("the tool to run", PATIENCE, || {
        (!world.events_of(&tool, "tool_called").is_empty()).then_some(())
    });
    let asks = "  - steps:\n      - ask: {question: \"Which colour?\", for: 7s}\n      \
                - result: {status: success, summary: s}\n";
    let asker = rehearse(&world, &repo, asks);
    for id in [tool, asker] {
        let entry = ended(&world, &id);
        assert_eq!(entry["state"], "success", "{entry}");
        assert!(world.events_of(&id, "stall_detected").is_empty());
    }
    world.finish(Some(daemon));
}

/// Muleteer sees only the output of a plain command and the CPU time of its processes.
#[test]
fn silent_idle_command_stalls() {
    let world = impatient();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let burns = world.spawn(&repo, "timeout 8 sh -c 'while :; do :; done'; exit 0", &[]).ok();
    let talks = world.spawn(&repo, "for n in $(seq 14); do printf .; sleep 0.5; done", &[]).ok();
    let sleeps = world.spawn(&repo, "sleep 600", &[]).ok();
    let entry = ended(&world, &sleeps);
    assert_eq!(entry["state"], "stalled");
    let reason = entry["reason"].as_str().unwrap();
    assert!(
        reason.contains("no output, no tool call running") && !reason.contains("model"),
        "{reason}"
    );
    for id in [burns, talks] {
        let entry = ended(&world, &id);
        assert_eq!(entry["state"], "success", "{entry}");
    }
    world.finish(Some(daemon));
}

/// If the agent was started or prompted a moment ago, the turn to interrupt may not have begun.
#[test]
fn interrupt_after_a_prompt_waits_for_its_turn() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, "v: 1\nturns:\n  - {repeat: true, steps: [{wait: 600s}]}\n").unwrap();
    let words =
        ["spawn", "developer", repo.to_str(), "first", "--backend", "rehearsal", "--scenario"];
    let id = world.muleteer(&[&words[..], &[scenario.to_str().unwrap()]].concat()).ok();
    let interrupted = || world.muleteer(&["interrupt", &id, "--json"]).run().expect_code(0).json();
    assert_eq!(interrupted()["note"], Value::Null);
    world.wait_for_state(&id, &["waiting"]);
    world.muleteer(&["send", &id, "second"]).run().expect_code(0);
    assert_eq!(interrupted()["note"], Value::Null);
    world.wait_for_state(&id, &["waiting"]);
    assert_eq!(world.events_of(&id, "interrupt_requested").len(), 2);
    let told = interrupted()["note"].as_str().unwrap().to_string();
    assert_eq!(told, "no turn was running (the dispatch is waiting)");
    world.muleteer(&["kill", &id]).run().expect_code(0);
    world.finish(Some(daemon));
}
