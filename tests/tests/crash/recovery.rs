//! Crashes that need a scene of their own; `campaign.rs` has the rest of the campaign.

#![allow(clippy::unwrap_used)]

use muleteer_tests::processes::{self, Process};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};

pub(super) fn shim(world: &World) -> Process {
    wait_until("a shim", PATIENCE, || {
        processes::shims(&world.processes()).first().map(|one| (*one).clone())
    })
}

/// Waits until the agent of `repo` has had its first effect.
pub(super) fn agent_runs(repo: &Repo) {
    wait_until("the agent to run", PATIENCE, || {
        (!repo.effects("effects").is_empty()).then_some(())
    });
}

pub(super) fn start(world: &World, repo: &Repo, script: &str) -> String {
    let id = world.spawn(repo, script, &[]).ok();
    agent_runs(repo);
    world.wait_for_state(&id, &["running"]);
    id
}

/// No user started that daemon by name, so no user should notice that it was killed while it began.
#[test]
fn a_daemon_killed_while_it_is_started_on_demand_is_started_again() {
    let world = World::new();
    let repo = world.repo("repo");
    let killed = world.path().join("killed");
    let spawned = world
        .spawn(&repo, "echo start >> effects", &["--wait"])
        .env("MULETEER_DAEMON_FAULT", "ledger.before_write=kill")
        .env("MULETEER_FAULT_ONCE", &killed)
        .run();
    assert!(killed.exists(), "the first daemon was killed before it had written anything");
    assert_eq!(spawned.code, Some(0), "{spawned:?}");
    assert_eq!(repo.effects("effects"), ["start"]);
    world.muleteer(&["daemon", "stop", "--agents", "stop"]).ok();
}

pub(super) fn only_the_daemon_is_left(world: &World, daemon: &Daemon) {
    world.wait_for_nothing_left(&[daemon.pid()]);
}

#[test]
fn the_runtime_directory_may_vanish() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(
        &world,
        &repo,
        "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; muleteer status --json > \
         inner.json",
    );
    std::fs::remove_dir_all(world.runtime()).unwrap();
    std::fs::create_dir(world.runtime()).unwrap();
    daemon.kill_9();
    let daemon = world.daemon();
    assert_eq!(world.wait_for_state(&id, &["running"])["attempts"], 1);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    let inner: Value = serde_json::from_str(&repo.read("inner.json")).unwrap();
    assert_eq!(
        inner["daemon"]["running"], true,
        "the agent's own socket is bound anew at each start"
    );
    world.finish(Some(daemon));
}

/// A logout does that with `/run/user/UID`, and so does a person who tidies up.
#[test]
fn daemon_recreates_its_removed_socket() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    let follower = world.muleteer(&["wait", &id]).start();
    let runtime = world.runtime().join("muleteer");
    assert!(runtime.is_dir());
    std::fs::remove_dir_all(&runtime).unwrap();
    assert_eq!(world.status()["daemon"]["running"], true);
    let checks = world.muleteer(&["doctor", "--json"]).run().json();
    let checks = checks["checks"].as_array().unwrap().clone();
    let check = checks.iter().find(|check| check["name"] == "daemon").unwrap();
    assert!(check["message"].to_string().contains(&format!("pid {}", daemon.pid())), "{check}");

    let socket = world.status()["daemon"]["socket"].as_str().unwrap().to_string();
    std::fs::remove_file(socket).unwrap();
    world.muleteer(&["kill", &id]).run().expect_code(0);
    assert_eq!(follower.finish().code, Some(6), "who was connected stays so");
    world.finish(Some(daemon));
}

#[test]
fn daemon_stop_keeps_its_agents() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let said = world.muleteer(&["daemon", "stop"]).run().expect_code(0);
    assert!(
        format!("{}{}", said.stdout, said.stderr).contains('h'),
        "how long the lease lasts: {said:?}"
    );
    daemon.ended();
    assert!(processes::is_alive(shim(&world).pid));
    let daemon = world.daemon();
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn stopped_shim_does_not_block_a_daemon_stop() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let stopped = shim(&world).pid;
    world.signal(stopped, Signal::STOP);
    world.muleteer(&["daemon", "stop"]).run().expect_code(0);
    daemon.ended();
    let daemon = world.daemon();
    world.signal(stopped, Signal::CONT);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start"]);
    world.finish(Some(daemon));
}

/// The pool dies, and the whole fleet of actors restarts with it; no agent notices.
#[test]
fn a_panic_of_the_pool_is_invisible_to_fifty_agents() {
    const AGENTS: usize = 50;
    let world = World::new();
    world.configure(&format!("pool:\n  max_agents: {AGENTS}\n"));
    let repo = world.repo("repo");
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "pool.look:60=panic")]);
    let script =
        "echo \"start $$\" >> effects; while [ ! -e go ]; do sleep 0.5; done; echo end >> effects";
    let ids: Vec<String> = (0..AGENTS).map(|_| world.spawn(&repo, script, &[]).ok()).collect();
    wait_until("every agent to run", PATIENCE, || {
        (repo.effects("effects").len() == AGENTS).then_some(())
    });
    let is_restart = |event: &Value| {
        event["event"] == "actor_restarted"
            && event["actor"].as_str().is_some_and(|name| name.contains("pool"))
    };
    let mut extra = vec![];
    wait_until("the pool to panic", PATIENCE, || {
        // Every further dispatch makes the pool look once more.
        extra.push(world.spawn(&repo, "echo extra >> extras", &[]).ok());
        world.events().iter().any(is_restart).then_some(())
    });
    assert!(daemon.is_alive());
    let before = processes::shims(&world.processes()).len();
    assert_eq!(before, AGENTS, "all of them live, and none twice");
    repo.write("go", "");
    for id in ids.iter().chain(&extra) {
        let entry = world.wait_for_end(id);
        assert_eq!(
            (&entry["state"], &entry["attempts"]),
            (&"success".into(), &1.into()),
            "{entry}"
        );
    }
    assert_eq!(repo.effects("effects").len(), 2 * AGENTS, "each once, to its end");
    assert_eq!(repo.effects("extras").len(), extra.len());
    world.finish(Some(daemon));
}

#[test]
fn a_ledger_that_panics_five_times_loses_nothing_and_repeats_nothing() {
    let world = World::new();
    let repo = world.repo("repo");
    // The root allows this many restarts in a minute.
    let daemon = world.daemon_with(&[("MULETEER_FAULT", "ledger.before_write:3=panic*5")]);
    let id = world.spawn(&repo, "echo run >> effects", &["--wait"]).ok();
    assert!(daemon.is_alive());
    assert_eq!(world.dispatch(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["run"]);
    let is_restart =
        |event: &Value| event["event"] == "actor_restarted" && event["actor"] == "ledger";
    wait_until("five restarts on record", PATIENCE, || {
        (world.events().iter().filter(|event| is_restart(event)).count() == 5).then_some(())
    });
    world.finish(Some(daemon));
}

/// A broken user configuration (an agent may break it) must not prevent a `kill`. Unfinished
/// dispatches are supervised with the earlier daemon's settings, and nothing new begins. If nothing
/// is unfinished, the daemon does not start, and says what is wrong.
#[test]
fn a_configuration_that_is_wrong_leaves_no_agent_without_a_daemon() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("pool: {max_agents: 1}\n");
    let mut daemon = world.daemon();
    let id = start(&world, &repo, "echo start >> effects; sleep 1000");
    let waiting = world.spawn(&repo, "echo two >> effects", &[]).ok();
    daemon.kill_9();
    world.configure("pool: {max_agents: 4}\nmodels: {defualt: fast}\n");

    let daemon = world.daemon();
    let refused = world.spawn(&repo, "true", &["--json"]).run().expect_code(2);
    let error = &refused.json()["error"];
    assert_eq!(
        (refused.error_code().as_str(), &error["line"]),
        ("E_CONFIG_INVALID", &json!(2)),
        "{error}"
    );
    let told = wait_until("the fault", PATIENCE, || {
        world
            .events()
            .into_iter()
            .find(|event| event["event"] == "fault" && event["what"] == "configuration")
    });
    assert!(
        told["message"].as_str().is_some_and(|text| text.contains("config.yaml:2: ")),
        "{told}"
    );
    assert_eq!(world.dispatch(&waiting)["state"], "queued", "the pool is as small as it was");
    world.muleteer(&["kill", &id]).ok();
    assert_eq!(world.wait_for_end(&id)["state"], "killed");
    assert_eq!(world.wait_for_end(&waiting)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start", "two"]);
    world.expect_clean_end(Some(daemon));

    // No dispatch is unfinished now.
    let before = world.events().len();
    let refused = world.muleteer(&["daemon", "--json"]).run().expect_code(2);
    assert_eq!((refused.error_code().as_str(), world.events().len()), ("E_CONFIG_INVALID", before));
}
