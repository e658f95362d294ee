//! The verbs that end dispatches, wait for their ends and explain their states.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;

fn rehearse(world: &World, repo: &Repo, turns: &str) -> String {
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, format!("v: 1\nturns:\n{turns}")).unwrap();
    let scenario = scenario.to_str().unwrap();
    world
        .muleteer(&["spawn", "developer", repo.to_str(), "do it", "--scenario", scenario])
        .ok()
}

fn ids(document: &Value) -> Vec<&str> {
    let all = document["dispatches"].as_array().unwrap();
    all.iter().filter_map(|one| one["id"].as_str().or(one["dispatch_id"].as_str())).collect()
}

#[test]
fn killed_and_closed_dispatches_accept_no_messages() {
    let world = World::new();
    world.configure("categories:\n  coding:\n    inactivity_timeout: 3s\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let hang = "  - steps:\n      - say: I begin\n      - hang: {for: 1h}\n";
    let stalled = rehearse(&world, &repo, hang);
    world.wait_for_state(&stalled, &["stalled"]);
    let killed = rehearse(&world, &repo, "  - steps:\n      - wait: 1h\n");
    world.muleteer(&["kill", &killed]).ok();
    let closed = world.muleteer(&["close", &stalled, &stalled, &killed, "--json"]).json();
    assert_eq!(ids(&closed), [&stalled, &killed], "{closed}");
    let note = |at: usize| &closed["dispatches"][at]["note"];
    assert!(note(0).is_null(), "{closed}");
    assert!(note(1).as_str().unwrap().contains("already ended: killed"), "{closed}");
    let entry = world.dispatch(&stalled);
    assert_eq!((&entry["state"], &entry["reason"]), (&"killed".into(), &"closed".into()));
    let journal = entry["journal"].as_str().unwrap();
    wait_until("the journal to say that it was killed", PATIENCE, || {
        let text = std::fs::read_to_string(journal).ok()?;
        text.contains("Status: killed").then_some(())
    });
    for id in [&stalled, &killed] {
        let refused = world.muleteer(&["send", id, "go on", "--json"]).run().expect_code(2);
        assert_eq!(refused.error_code(), "E_UNSUPPORTED");
        assert_eq!(world.dispatch(id)["state"], "killed");
    }
    assert_eq!(world.muleteer(&["wait", &stalled]).run().code, Some(6));
    world.finish(Some(daemon));
}

#[test]
fn close_refuses_a_dispatch_at_work_and_ends_one_that_waits_for_a_message() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = rehearse(&world, &repo, "  - steps:\n      - say: I begin\n      - wait: 1h\n");
    wait_until("its first turn to begin", PATIENCE, || {
        (!world.events_of(&id, "agent_said").is_empty()).then_some(())
    });
    let refused = world.muleteer(&["close", &id, "--json"]).run().expect_code(3);
    assert_eq!(refused.error_code(), "E_BUSY");
    world.muleteer(&["interrupt", &id]).ok();
    world.wait_for_state(&id, &["waiting"]);
    world.muleteer(&["close", &id]).ok();
    let entry = world.dispatch(&id);
    assert_eq!((&entry["state"], &entry["reason"]), (&"killed".into(), &"closed".into()));
    world.finish(Some(daemon));
}

#[test]
fn wait_any_returns_the_first_and_kill_takes_several() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let sleepers = [(); 2].map(|()| world.spawn(&repo, "exec sleep 600", &[]).ok());
    let quick = world.spawn(&repo, "exit 3", &[]).ok();
    let [one, two] = &sleepers;
    let first = world.muleteer(&["wait", "--any", one, &quick, two, "--json"]).run().expect_code(4);
    assert_eq!(ids(&first.json()), [quick.as_str()]);
    let killed = world.muleteer(&["kill", one, "zzzzzzzz", two, "--json"]).run().expect_code(2);
    let killed = killed.json();
    assert_eq!(ids(&killed), [one, two], "{killed}");
    assert_eq!(killed["errors"][0]["code"], "E_NOT_FOUND", "{killed}");
    for id in &sleepers {
        assert_eq!(world.dispatch(id)["state"], "killed");
    }
    world.finish(Some(daemon));
}

#[test]
fn send_waits_for_the_end_or_follows_it() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let turn = "  - steps:\n      - say: hello\n      - result: {status: success, summary: done}\n";
    let id = rehearse(&world, &repo, &turn.repeat(3));
    assert_eq!(world.muleteer(&["wait", &id]).run().code, Some(0));
    let waited = world.muleteer(&["send", &id, "again", "--wait", "--json"]).json();
    assert_eq!(
        (&waited["dispatch_id"], &waited["state"], &waited["turns"]),
        (&id.as_str().into(), &"success".into(), &2.into()),
        "{waited}"
    );
    let followed = world.muleteer(&["send", &id, "once more", "--follow", "--json"]).run();
    let followed = followed.expect_code(0).stdout;
    let lines: Vec<Value> =
        followed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.last().unwrap()["turns"], 3, "{followed}");
    let named = |name: &str| lines.iter().filter(|line| line["event"] == name).count();
    assert_eq!((named("prompt_queued"), named("dispatch_finished")), (1, 1), "{followed}");
    world.finish(Some(daemon));
}

#[test]
fn queued_dispatch_says_what_it_waits_for() {
    let world = World::new();
    world.configure("pool:\n  max_agents: 1\n");
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let runs = world.spawn(&repo, "exec sleep 600", &[]).ok();
    world.wait_for_state(&runs, &["running"]);
    let [next, last] = [(); 2].map(|()| world.spawn(&repo, "exit 0", &[]).ok());
    let taken = "waits for a slot: 1 of 1 are taken (`pool.max_agents`)";
    assert_eq!(world.dispatch(&next)["reason"], format!("{taken}, it is next"));
    let why = world.muleteer(&["why", &last, "--json"]).json();
    assert_eq!(why["reason"], format!("{taken}, 1 dispatch is before it"), "{why}");
    assert_eq!(why["queue"]["held_by"], serde_json::json!([runs]), "{why}");
    assert_eq!(why["decisions"][0]["event"], "dispatch_created", "{why}");
    let text = world.muleteer(&["why", &last]).ok();
    assert!(text.contains(taken) && text.contains(&runs), "{text}");
    world.muleteer(&["kill", &runs]).ok();
    assert_eq!(world.wait_for_end(&last)["state"], "success");
    let why = world.muleteer(&["why", &runs]).ok();
    assert!(why.contains("is killed") && why.contains("kill requested"), "{why}");
    world.finish(Some(daemon));
}

#[test]
fn status_events_and_journal_take_filters() {
    let world = World::new();
    let [web, api] = ["web", "api"].map(|name| world.repo(name));
    let daemon = world.daemon();
    let first = world.spawn(&web, "exit 0", &["--wait", "--feature", "login"]).ok();
    let second = world.spawn(&api, "exit 3", &["--wait", "--feature", "logout"]).run();
    let second = second.stdout.trim().to_string();
    let status = |filter: [&str; 2]| {
        let [option, value] = filter;
        world.muleteer(&["status", "--json", option, value]).json()
    };
    assert_eq!(ids(&status(["--project", "web"])), [first.as_str()]);
    assert_eq!(ids(&status(["--project", api.to_str()])), [second.as_str()]);
    assert_eq!(ids(&status(["--feature", "login"])), [first.as_str()]);
    assert_eq!(ids(&status(["--role", "developer"])).len(), 2);
    assert!(ids(&status(["--role", "tester"])).is_empty());
    let events = world.muleteer(&["events", "--state", "failed", "--json"]).json();
    let of = |event: &Value| event["dispatch_id"].as_str().map(String::from);
    let events: Vec<_> = events["events"].as_array().unwrap().iter().map(of).collect();
    assert!(!events.is_empty() && events.iter().all(|id| id.as_ref() == Some(&second)));
    let journals = ["journal", "--all", "--feature", "login", "--json"];
    let journals = world.muleteer(&journals).json();
    assert_eq!(journals["journals"].as_array().unwrap().len(), 1, "{journals}");
    let shown = world.muleteer(&["events", "--project", "web"]).env("TZ", "UTC").ok();
    let line = shown.lines().next().unwrap();
    let time = line.get(..19).and_then(|time| time.replace(' ', "T").parse().ok());
    assert!(time.is_some_and(|_: jiff::civil::DateTime| true), "{line}");
    let narrow = world.muleteer(&["status"]).env("COLUMNS", "60").ok();
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    world.finish(Some(daemon));
}
