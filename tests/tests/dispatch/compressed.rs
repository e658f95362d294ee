//! Output of ended agents that was compressed reads as before.

#![allow(clippy::unwrap_used)]

use muleteer_process::fault::OUTPUT_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use std::fs;

/// Spawns an agent that can take a further message, and waits for the end of its first turn.
fn ended(world: &World, repo: &Repo) -> String {
    let scenario = world.path().join("scenario.yaml");
    let say = "      - say: a line that is said many times\n".repeat(40);
    let turn = format!("  - steps:\n{say}      - result: {{status: success, summary: done}}\n");
    fs::write(&scenario, format!("v: 1\nturns:\n{}", turn.repeat(3))).unwrap();
    let path = scenario.display().to_string();
    let args = ["spawn", "developer", repo.to_str(), "do it", "--wait", "--json"];
    let how = ["--backend", "rehearsal", "--scenario", &path];
    let spawned = world.muleteer(&[&args[..], &how].concat()).json();
    let id = spawned["dispatch_id"].as_str().unwrap().to_string();
    let lock = world.state().join("agents").join(&id).join("lock");
    wait_until("its shim to be gone", PATIENCE, || {
        muleteer_process::lock::try_lock(&lock).unwrap().map(drop)
    });
    id
}

/// Returns the number of plain and of compressed segments of an agent.
fn forms(world: &World, id: &str) -> (usize, usize) {
    let mut folders = vec![world.state().join("agents").join(id)];
    let (mut plain, mut compressed) = (0, 0);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            plain += usize::from(name.ends_with(".seg"));
            compressed += usize::from(name.ends_with(".seg.zst"));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    (plain, compressed)
}

fn answers(world: &World, id: &str) -> Vec<String> {
    [&["logs", id, "--raw"][..], &["logs", id], &["logs", id, "--json"], &["journal", id]]
        .map(|words| world.muleteer(words).ok())
        .into()
}

#[test]
fn compressed_output_reads_as_before_and_its_agent_goes_on() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "touch up; until [ -e go ]; do sleep 0.1; done; echo end";
    let lives = world.spawn(&repo, script, &[]).ok();
    wait_until("it to live", PATIENCE, || repo.path.join("up").exists().then_some(()));
    let id = ended(&world, &repo);
    let before = answers(&world, &id);
    let would = world.muleteer(&["clean", "--json"]).json()["compressed"].clone();
    assert!(would["outputs"] == 1 && would["bytes"].as_u64() > Some(1000), "{would}");
    assert_eq!(forms(&world, &id), (1, 0), "it was a dry run");
    let young = world.muleteer(&["clean", "--apply", "--older-than", "1h", "--json"]).json();
    assert!(young["compressed"].is_null(), "{young}");
    let done = world.muleteer(&["clean", "--apply", "--json"]).json()["compressed"].clone();
    assert!(done["outputs"] == 1 && done["bytes"].as_u64() > Some(500), "{done}");
    assert_eq!((forms(&world, &id), forms(&world, &lives)), ((0, 1), (1, 0)));
    // The journal moved to the archive, and says the same.
    assert_eq!(answers(&world, &id), before);
    daemon.kill_9();
    assert_eq!(answers(&world, &id), before, "without a daemon");
    let daemon = world.daemon();
    assert_eq!(answers(&world, &id), before, "with another daemon");
    world.muleteer(&["send", &id, "again", "--wait"]).ok();
    let raw = world.muleteer(&["logs", &id, "--raw"]).ok();
    assert!(raw.starts_with(&before[0]) && raw.len() > before[0].len() * 3 / 2, "{raw}");
    assert_eq!(forms(&world, &id), (1, 1), "a new attempt writes a new segment");
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&lives)["state"], "success");
    world.finish(Some(daemon));
}

#[test]
fn daemon_killed_at_each_step_of_a_compression_loses_no_output() {
    for point in OUTPUT_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_with(&[("MULETEER_FAULT", point)]);
        let id = ended(&world, &repo);
        let before = world.muleteer(&["logs", &id, "--raw"]).ok();
        // The client starts another daemon on demand, and repeats its request.
        let client = world.muleteer(&["clean", "--apply", "--json"]).start();
        daemon.ended();
        assert_eq!(world.muleteer(&["logs", &id, "--raw"]).ok(), before, "{point}");
        drop(client);
        let daemon = world.daemon();
        world.muleteer(&["clean", "--apply", "--json"]).ok();
        assert_eq!(forms(&world, &id), (0, 1), "{point}");
        assert_eq!(world.muleteer(&["logs", &id, "--raw"]).ok(), before, "{point}");
        let folder = world.state().join("agents").join(&id);
        let names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let is_left = |name: &std::ffi::OsString| name.to_str().unwrap().ends_with(".tmp");
        assert!(!names.iter().any(is_left), "{point}: {names:?}");
        world.finish(Some(daemon));
    }
}

#[test]
fn output_is_compressed_by_itself_after_the_configured_time() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("retention: {compress_after: 0s}\n");
    let daemon = world.daemon();
    let id = ended(&world, &repo);
    wait_until("its compression", PATIENCE, || (forms(&world, &id) == (0, 1)).then_some(()));
    assert!(world.muleteer(&["logs", &id]).ok().contains("said many times"));
    world.finish(Some(daemon));
}
