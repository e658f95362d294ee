//! Clients that follow events, and clients that read old ones.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::{World, wait_until};

/// No event follows the first line, so the client would not notice by a write that its reader has
/// gone.
#[test]
fn follow_ends_when_its_reader_exits() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "echo hi; exec sleep 600", &[]).ok();
    wait_until("the agent to run", muleteer_tests::PATIENCE, || {
        (world.dispatch(&id)["state"] == "running").then_some(())
    });
    for args in [
        &["events", "-f"][..],
        &["logs", &id, "-f"],
        &["status", "--watch"],
        &["journal", &id, "-f"],
    ] {
        let output = world.muleteer_into(args, "head -n 1").run().expect_code(0);
        assert!(!output.stdout.is_empty(), "{args:?}");
    }
    world.muleteer(&["kill", &id]).ok();
    world.finish(Some(daemon));
}

#[test]
fn logs_of_a_removed_agent_say_so() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = world.spawn(&repo, "echo hi", &["--wait"]).ok();
    let said = world.muleteer(&["logs", &id]).run().expect_code(0);
    assert_eq!(said.stderr, "");
    let folder = world.state().join("agents").join(&id);
    std::fs::remove_dir_all(&folder).unwrap();
    for args in [
        &["logs", &id][..],
        &["logs", &id, "--raw"],
        &["logs", &id, "--json"],
        &["logs", &id, "-f"],
    ] {
        let said = world.muleteer(args).run().expect_code(0);
        assert!(
            said.stderr.contains(&format!("{} no longer exists", folder.display())),
            "{args:?}: {}",
            said.stderr
        );
    }
    world.finish(Some(daemon));
}

#[test]
fn status_shows_those_in_a_state_and_the_newest() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let ids = ["exit 0", "exit 1", "exit 0"].map(|script| {
        let output = world.spawn(&repo, script, &["--wait"]).run();
        output.stdout.trim().to_string()
    });
    let shown = |more: &[&str]| -> Vec<String> {
        let report = world.muleteer(&[&["status", "--json"], more].concat()).json();
        let dispatches = report["dispatches"].as_array().unwrap().iter();
        dispatches.map(|one| one["id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(shown(&["--state", "success"]), [&*ids[0], &ids[2]]);
    assert_eq!(shown(&["--state", "success", "--state", "failed"]), ids);
    assert_eq!(shown(&["--limit", "2"]), ids[1..]);
    assert_eq!(shown(&["--state", "success", "--limit", "1"]), ids[2..]);
    world.muleteer(&["status", "--state", "asleep"]).run().expect_code(2);
    world.muleteer(&["status", &ids[0], "--limit", "1"]).run().expect_code(2);
    world.finish(Some(daemon));
}
