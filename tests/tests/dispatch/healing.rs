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

/// An agent that repeats itself until a monitor ends it.
const LOOPS: &str = "  - steps:\n      - loop: {name: Bash, input: {command: make}, times: 200, \
                     every: 50ms, ok: false, text: \"main.c: error: no such file\"}\n      - \
                     result: {status: success, summary: never}\n";

#[test]
fn agent_in_a_loop_is_redirected_with_the_message_of_the_light_agent() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, "");
    let file = world.path().join("config/muleteer/config.yaml");
    let text = std::fs::read_to_string(file).expect("the configuration");
    let stop = "max_restarts: 0\n    monitors: {loop: stop}\n";
    world.configure(&text.replace("max_restarts: 0\n", stop));
    let answer = "{\"choice\": \"redirect\", \"reason\": \"main.c is missing\", \"message\": \
                  \"Write main.c first.\"}";
    let daemon = daemon(&world, &light(&world, answer));
    let id = rehearse(&world, &repo, LOOPS);
    let begun = one(&world, &id, "healing_begun");
    assert_eq!(begun["trouble"], "monitor", "{begun}");
    let mended = "  - steps:\n      - say: I write it\n      - result: \
                  {status: success, summary: \"another way\"}\n";
    scenario(&world, "scenario.yaml", mended);
    release(&world);
    world.wait_for_state(&id, &["success"]);
    let chosen = one(&world, &id, "healing_chosen");
    assert_eq!(chosen["choice"], "redirect", "{chosen}");
    let queued = world.events_of(&id, "prompt_queued");
    assert_eq!((queued.len(), &queued[1]["by"]), (2, &chosen["by"]), "{queued:?}");
    let key = queued[1]["key"].as_str().expect("a key");
    let prompt = world.state().join("agents").join(&id).join(format!("pub/{key}.md"));
    let prompt = std::fs::read_to_string(&prompt).expect("the prompt");
    assert_eq!(prompt, "Write main.c first.");
    world.finish(Some(daemon));
}

/// The task of a failed dispatch is tried once more, whatever daemon is killed, and nobody heals
/// that try.
#[test]
fn failed_dispatch_is_tried_once_with_a_better_model() {
    for point in ["", "healing.chosen", "healing.carried_out"] {
        let world = World::new();
        let repo = world.repo("repo");
        configure(&world, "  better_model: opus\n");
        let file = light(&world, RESPAWN);
        let fault = format!("{point}=kill");
        let mut variables = vec![("MULETEER_SCENARIO", &*file)];
        variables.extend((!point.is_empty()).then_some(("MULETEER_FAULT", &*fault)));
        let mut first = world.daemon_with(&variables);
        let id = rehearse(&world, &repo, "  - steps:\n      - say: I begin\n      - exit: 3\n");
        let daemon = match point {
            "" => first,
            _ => {
                first.ended();
                daemon(&world, &file)
            }
        };
        let done = one(&world, &id, "healing_done");
        assert_eq!(done["reason"], Value::Null, "{point}: {done}");
        let chosen = one(&world, &id, "healing_chosen");
        assert_eq!(chosen["choice"], "better_model", "{chosen}");
        assert_eq!(chosen["by"], "muleteer", "{chosen}");
        let other = chosen["dispatch"].as_str().expect("another dispatch");
        world.wait_for_state(other, &["failed"]);
        let made = &world.events_of(other, "dispatch_created")[0];
        assert_eq!((&made["model"], &made["by"]), (&"opus".into(), &format!("retry/{id}").into()));
        let before = &world.events_of(&id, "dispatch_created")[0];
        for same in ["role", "project", "backend", "limits", "title"] {
            assert_eq!(made[same], before[same], "{same}");
        }
        // The daemon has seen the second end when it answers about a later dispatch.
        let last = rehearse(&world, &repo, MENDED);
        world.wait_for_state(&last, &["success"]);
        assert_eq!(world.events_of(other, "healing_begun"), Vec::<Value>::new());
        assert_eq!(created(&world).len(), 3, "{point}");
        world.finish(Some(daemon));
    }
}

/// A command resumes no session, so another dispatch does the same.
#[test]
fn command_that_stalled_is_respawned_as_another_dispatch() {
    let world = World::new();
    let repo = world.repo("repo");
    configure(&world, "");
    release(&world);
    let daemon = daemon(&world, &light(&world, RESPAWN));
    let script = "test -e begun && exit 0; touch begun; sleep 600";
    let id = world.spawn(&repo, script, &[]).ok();
    let chosen = one(&world, &id, "healing_chosen");
    assert_eq!(chosen["choice"], "respawn", "{chosen}");
    let other = chosen["dispatch"].as_str().expect("another dispatch");
    one(&world, &id, "healing_done");
    world.wait_for_state(other, &["success"]);
    assert_eq!(world.dispatch(&id)["state"], "stalled");
    world.finish(Some(daemon));
}

/// The question about a stall in a thread waits for the choice, and tells the reason.
#[test]
fn thread_is_respawned_or_asked_as_the_light_agent_chooses() {
    for (answer, is_asked) in
        [(RESPAWN, false), ("{\"choice\": \"escalate\", \"reason\": \"the server is down\"}", true)]
    {
        let world = World::new();
        let repo = world.repo("repo");
        configure(&world, "");
        let daemon = daemon(&world, &light(&world, answer));
        let file = scenario(&world, "scenario.yaml", HANGS);
        let words = ["thread", "new", "--project", repo.to_str(), "--role", "developer"];
        let more = ["--backend", "rehearsal", "--scenario", &file];
        let thread = world.muleteer(&[&words[..], &more].concat()).ok();
        world.muleteer(&["thread", "send", &thread, "hello"]).ok();
        let id = wait_until("the stall", PATIENCE, || {
            let all = world.events().into_iter();
            let mut begun = all.filter(|event| event["event"] == "healing_begun");
            begun.next().map(|event| event["dispatch_id"].as_str().expect("an id").to_string())
        });
        let count = |name: &str| world.events().iter().filter(|one| one["event"] == name).count();
        assert_eq!(count("question_asked"), 0);
        let echo = "  - repeat: true\n    steps:\n      - say: \"${turn}: ${prompt}\"\n";
        scenario(&world, "scenario.yaml", echo);
        release(&world);
        one(&world, &id, "healing_done");
        if is_asked {
            let asked = wait_until("the question", PATIENCE, || {
                world.events().into_iter().find(|event| event["event"] == "question_asked")
            });
            let text = asked["text"].as_str().expect("a text");
            assert!(text.contains("Self-healing: the server is down."), "{text}");
        } else {
            wait_until("another agent", PATIENCE, || {
                let shown = world.muleteer(&["thread", "show", &thread, "--json"]).json();
                let is_new = shown["dispatch_id"].is_string() && shown["dispatch_id"] != *id;
                let messages = shown["messages"].as_array().expect("messages").clone();
                let inbound = messages.iter().rfind(|message| message["direction"] == "in");
                let is_answered = inbound.is_some_and(|message| message["state"] == "answered");
                (is_new && is_answered).then_some(())
            });
            assert_eq!(count("question_asked"), 0);
        }
        world.finish(Some(daemon));
    }
}
