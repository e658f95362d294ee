//! A state directory whose path is longer than a socket's path may be.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::World;
use muleteer_tests::skip::skip;
use muleteer_tests::spec_stage::{AGENT, SpecStage, confined, last};
use serde_json::json;

/// Moves the world's state to a path that is too long for a socket.
fn bury_state(world: &World) {
    let deep = world.path().join("deep".repeat(20)).join("deeper".repeat(20));
    std::fs::create_dir_all(&deep).unwrap();
    let state = world.path().join("state");
    std::fs::remove_dir(&state).unwrap();
    std::os::unix::fs::symlink(deep, state).unwrap();
}

#[test]
fn an_agent_reaches_us_from_a_deep_state_directory() {
    let world = World::new();
    bury_state(&world);
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "echo ${#MULETEER_SOCKET} > length; muleteer status --json > status.json; \
                  muleteer doctor --json > doctor.json; true";
    world.spawn(&repo, script, &["--wait"]).run().expect_code(0);
    let length: usize = repo.read("length").trim().parse().unwrap();
    assert!(length > 107, "its socket's path has {length} bytes: nothing was tried");
    let of = |name: &str| serde_json::from_str::<serde_json::Value>(&repo.read(name)).unwrap();
    assert_eq!(of("status.json")["daemon"]["running"], true, "{}", of("status.json"));
    let checks = of("doctor.json")["checks"].as_array().unwrap().clone();
    for name in ["runtime_dir", "daemon"] {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["status"], "ok", "{check}");
    }
    world.finish(Some(daemon));
}

#[test]
fn a_confined_agent_reaches_us_from_a_deep_state_directory() {
    if !confined() {
        return skip("a_confined_agent_reaches_us_from_a_deep_state_directory", "no namespaces");
    }
    let stage = SpecStage::new(AGENT);
    bury_state(&stage.world);
    let daemon = stage.world.daemon();
    let document = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&document["status"], &document["enforced"]["acceptance_hidden"]),
        (&json!("completed"), &json!("checked"))
    );
    stage.world.finish(Some(daemon));
}
