//! `muleteer prune` removes the files of agents that ended long ago, and nothing else.

#![allow(clippy::unwrap_used)]

use muleteer_tests::{Output, PATIENCE, Repo, World, wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;

const TURN: &str = "v: 1\nturns:\n  - steps:\n      - say: told\n      - result: {status: success, \
    summary: done}\n";

/// Makes a dispatch that has ended and could get a further message.
fn spoken_to(world: &World, repo: &Repo) -> String {
    let scenario = world.path().join("scenario.yaml");
    std::fs::write(&scenario, TURN).unwrap();
    let words =
        ["spawn", "developer", repo.to_str(), "do it", "--backend", "rehearsal", "--scenario"];
    let id = world.muleteer(&[&words[..], &[scenario.to_str().unwrap()]].concat()).ok();
    world.wait_for_end(&id);
    free(world, &id);
    id
}

/// Waits until the shim has finished its last steps.
fn free(world: &World, id: &str) {
    let lock = files(world, id).join("lock");
    wait_until("its shim to be gone", PATIENCE, || {
        muleteer_process::lock::try_lock(&lock).unwrap().map(drop)
    });
}

fn files(world: &World, id: &str) -> PathBuf {
    world.state().join("agents").join(id)
}

fn prune(world: &World, more: &[&str]) -> Output {
    world.muleteer(&[&["prune", "--json"], more].concat()).run()
}

fn removals(world: &World, id: &str) -> usize {
    world.events_of(id, "files_removed").len()
}

#[test]
fn pruned_dispatch_stays_known() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let lives = world.spawn(&repo, "touch up; until [ -e go ]; do sleep 0.1; done", &[]).ok();
    wait_until("it to live", PATIENCE, || {
        std::path::Path::new(repo.to_str()).join("up").exists().then_some(())
    });
    let ended = spoken_to(&world, &repo);
    let before = [world.dispatch(&ended), world.muleteer(&["journal", &ended]).run().stdout.into()];

    assert_eq!(prune(&world, &[]).expect_code(0).json()["dispatches"], 0, "it ended a moment ago");
    let would = prune(&world, &["--older-than", "0s", "--dry-run"]).expect_code(0).json();
    assert_eq!((&would["dispatches"], &would["dry_run"]), (&json!(1), &json!(true)));
    assert!(would["bytes"].as_u64() > Some(0), "{would}");
    assert!(files(&world, &ended).exists() && removals(&world, &ended) == 0);

    let done = prune(&world, &["--older-than", "0s"]).expect_code(0).json();
    assert_eq!(
        done,
        json!({ "dispatches": 1, "bytes": would["bytes"], "dry_run": false, "faults": [] })
    );
    assert!(!files(&world, &ended).exists() && files(&world, &lives).exists());
    assert_eq!(
        [world.dispatch(&ended), world.muleteer(&["journal", &ended]).run().stdout.into()],
        before
    );
    assert_eq!(world.muleteer(&["wait", &ended]).run().code, Some(0));
    let refused = world.muleteer(&["send", &ended, "go on", "--json"]).run().expect_code(2).json();
    assert_eq!(refused["error"]["code"], "E_UNSUPPORTED");
    assert_eq!(world.dispatch(&ended), before[0], "and nothing is changed by that");

    assert_eq!(prune(&world, &["--older-than", "0s"]).expect_code(0).json()["dispatches"], 0);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&lives)["state"], "success");
    free(&world, &lives);
    let told = world.muleteer(&["prune", "--older-than", "0s"]).run().expect_code(0);
    assert!(told.stdout.starts_with("the files of one dispatch removed: "), "{told:?}");
    assert_eq!((removals(&world, &ended), removals(&world, &lives)), (1, 1));
    world.finish(Some(daemon));
}

#[test]
fn a_removal_that_was_cut_off_is_finished_by_the_next() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon_with(&[("MULETEER_FAULT", "prune.recorded=kill")]);
    let id = spoken_to(&world, &repo);
    // No daemon answers this client; the test does not depend on its retries.
    let client = world.muleteer(&["prune", "--older-than", "0s"]).start();
    daemon.ended();
    drop(client);
    let daemon = world.daemon();
    wait_until("it to be removed", PATIENCE, || {
        prune(&world, &["--older-than", "0s"]).expect_code(0);
        (!files(&world, &id).exists()).then_some(())
    });
    assert_eq!(removals(&world, &id), 1, "what is recorded is not recorded again");
    let refused: Value =
        world.muleteer(&["send", &id, "go on", "--json"]).run().expect_code(2).json();
    assert_eq!(refused["error"]["code"], "E_UNSUPPORTED");
    world.finish(Some(daemon));
}
