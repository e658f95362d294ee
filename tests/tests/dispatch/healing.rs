//! Self-healing: a light agent chooses what follows a stall or a failure, whatever daemon is
//! killed.

use muleteer_process::fault::HEALING_POINTS;
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::Value;

const HANGS: &str = "  - steps:\n      - say: I begin\n      - hang: {for: 1h}\n";
const MENDED: &str = "  - steps:\n      - say: I begin\n      - result: {status: success, summary: \
                      \"after all\"}\n";

/// Configures healing with a light agent that plays a scenario.
fn configure(world: &World, more: &str) {
    world.configure(&format!(
        "categories:\n  coding:\n    inactivity_timeout: 3s\n    max_restarts: 0\nhealing:\n  \
         enabled: true\n  backend: rehearsal\n{more}"
    ));
}

fn scenario(world: &World, name: &str, turns: &str) -> String {
    let file = world.path().join(name);
    std::fs::write(&file, format!("v: 1\nturns:\n{turns}")).expect("a scenario");
    file.to_str().expect("a path").to_string()
}

/// Writes the scenario of a light agent that gives this answer when the test says so.
fn light(world: &World, answer: &str) -> String {
    let wait = "while [ ! -e ../go ]; do sleep 0.05; done";
    let turns = format!("  - steps:\n      - run: {wait:?}\n      - say: {answer:?}\n");
    scenario(world, "light.yaml", &turns)
}

fn release(world: &World) {
    std::fs::write(world.path().join("go"), "").expect("a file");
}

fn rehearse(world: &World, repo: &Repo, turns: &str) -> String {
    let file = scenario(world, "scenario.yaml", turns);
    let words = ["spawn", "developer", repo.to_str(), "do it", "--scenario", &file];
    world.muleteer(&words).ok()
}

fn daemon(world: &World, light: &str) -> Daemon {
    world.daemon_with(&[("MULETEER_SCENARIO", light)])
}

fn one(world: &World, id: &str, name: &str) -> Value {
    let mut all = wait_until(name, PATIENCE, || {
        let all = world.events_of(id, name);
        (!all.is_empty()).then_some(all)
    });
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

const RESPAWN: &str = "I looked. {\"choice\": \"respawn\", \"reason\": \"the model was silent\"}";

#[test]
fn light_agent_respawns_a_stalled_dispatch_and_its_reason_is_recorded() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, "");
    let daemon = daemon(&world, &light(&world, RESPAWN));
    let id = rehearse(&world, &repo, HANGS);
    let begun = one(&world, &id, "healing_begun");
    assert_eq!((&begun["trouble"], &begun["number"]), (&"stall".into(), &1.into()), "{begun}");
    scenario(&world, "scenario.yaml", MENDED);
    release(&world);
    let chosen = one(&world, &id, "healing_chosen");
    assert_eq!(chosen["choice"], "respawn", "{chosen}");
    assert_eq!(chosen["reason"], "the model was silent", "{chosen}");
    let healer = begun["healer"].as_str().expect("a light agent");
    assert_eq!(chosen["by"], format!("agent/{healer}"));
    world.wait_for_state(&id, &["success"]);
    let done = one(&world, &id, "healing_done");
    assert_eq!(done["reason"], Value::Null, "{done}");
    let attempts = world.events_of(&id, "attempt_started");
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert!(attempts[1]["resume"].is_string(), "in the same session: {attempts:?}");
    let created = &world.events_of(healer, "dispatch_created")[0];
    assert_eq!(created["mcp"], "none", "{created}");
    assert_eq!(created["limits"]["budget_usd"], 0.5, "{created}");
    assert_eq!(created["purse"]["usd"], 0.5, "{created}");
    let journal = world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("self-healing: respawn"), "{journal}");
    world.finish(Some(daemon));
}

/// Nothing happens twice, whichever daemon is killed.
#[test]
fn killed_daemon_heals_once() {
    for point in HEALING_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        configure(&world, "");
        let file = light(&world, RESPAWN);
        release(&world);
        let fault = format!("{point}=kill");
        let variables = [("MULETEER_SCENARIO", &*file), ("MULETEER_FAULT", &fault)];
        let mut killed = world.daemon_with(&variables);
        let id = rehearse(&world, &repo, HANGS);
        killed.ended();
        scenario(&world, "scenario.yaml", MENDED);
        let daemon = daemon(&world, &file);
        world.wait_for_state(&id, &["success"]);
        let done = one(&world, &id, "healing_done");
        assert_eq!(done["reason"], Value::Null, "{point}: {done}");
        one(&world, &id, "healing_begun");
        let chosen = one(&world, &id, "healing_chosen");
        assert_eq!(chosen["choice"], "respawn", "{point}: {chosen}");
        let prompts = world.events_of(&id, "prompt_queued");
        assert_eq!(prompts.len(), 2, "{point}: {prompts:?}");
        let created: Vec<_> = created(&world);
        assert_eq!(created.len(), 2, "{point}: {created:?}");
        world.finish(Some(daemon));
    }
}

fn created(world: &World) -> Vec<Value> {
    world.events().into_iter().filter(|event| event["event"] == "dispatch_created").collect()
}

#[test]
fn unreadable_answer_and_the_limit_of_choices_leave_the_dispatch_to_a_person() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, "  max_choices: 1\n");
    release(&world);
    let daemon = daemon(&world, &light(&world, "respawn it, I would say"));
    let id = rehearse(&world, &repo, HANGS);
    let chosen = one(&world, &id, "healing_chosen");
    assert_eq!((&chosen["choice"], &chosen["by"]), (&"escalate".into(), &"muleteer".into()));
    let reason = chosen["reason"].as_str().expect("a reason");
    assert!(reason.contains("answer is unusable"), "{reason}");
    one(&world, &id, "healing_done");
    assert_eq!(world.dispatch(&id)["state"], "stalled");
    // A person continues it, and it stalls again.
    world.muleteer(&["send", &id, "go on"]).ok();
    let last = wait_until("the second choice", PATIENCE, || {
        let all = world.events_of(&id, "healing_chosen");
        (all.len() == 2).then(|| all[1].clone())
    });
    assert!(last["reason"].as_str().is_some_and(|why| why.contains("the limit")), "{last}");
    assert_eq!(created(&world).len(), 2, "one light agent");
    world.finish(Some(daemon));
}

#[test]
fn nothing_is_healed_unless_it_is_configured() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, "  max_choices: 3\n");
    let text = std::fs::read_to_string(world.path().join("config/muleteer/config.yaml"));
    world.configure(&text.expect("the configuration").replace("enabled: true", "enabled: false"));
    let daemon = daemon(&world, &light(&world, RESPAWN));
    let id = rehearse(&world, &repo, HANGS);
    world.wait_for_state(&id, &["stalled"]);
    // The daemon has seen the end when it answers about a later dispatch.
    let other = rehearse(&world, &repo, MENDED);
    world.wait_for_state(&other, &["success"]);
    assert_eq!(world.events_of(&id, "healing_begun"), Vec::<Value>::new());
    assert_eq!(created(&world).len(), 2);
    world.finish(Some(daemon));
}
