//! The log in segments: a daemon that is killed at any step of closing, compressing or splitting a
//! file loses nothing and repeats nothing.

#![allow(clippy::unwrap_used)]

use crate::recovery::start;
use muleteer_process::fault::{METRIC_POINTS, SEGMENT_POINTS, SEGMENT_VAR};
use muleteer_tests::{PATIENCE, World, events, wait_until};
use std::path::PathBuf;

/// A file is closed before each append.
const SMALL: (&str, &str) = (SEGMENT_VAR, "1");

fn segments(world: &World, suffix: &str) -> Vec<PathBuf> {
    let Ok(folder) = std::fs::read_dir(world.state().join("events")) else { return vec![] };
    let paths = folder.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect()
}

#[test]
fn daemon_killed_at_each_step_of_a_rotation_loses_and_repeats_nothing() {
    for point in SEGMENT_POINTS {
        for nth in [1, 2] {
            let world = World::new();
            let repo = world.repo("repo");
            let fault = format!("{point}:{nth}");
            let mut daemon = world.daemon_unready(&[SMALL, ("MULETEER_FAULT", &fault)]);
            daemon.answers_or_ends(&world);
            let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; echo went";
            let client = world.spawn(&repo, script, &["--wait"]).start();
            repo.write("go", "");
            wait_until(&fault, PATIENCE, || (!daemon.is_alive()).then_some(()));
            let log = world.state().join("events.jsonl");
            let before = events::lines(&log);
            let daemon = world.daemon_with(&[SMALL]);
            let output = client.finish();
            assert_eq!(output.code, Some(0), "{fault}: {output:?}");
            assert_eq!(repo.effects("effects"), ["start"], "{fault}");
            events::check_nothing_lost(&before, &log);
            wait_until("compressed segments only", PATIENCE, || {
                let is_done = segments(&world, ".jsonl").is_empty();
                (is_done && segments(&world, ".zst").len() > 1).then_some(())
            });
            world.finish(Some(daemon));
        }
    }
}

#[test]
fn metrics_have_one_line_for_each_end_whenever_the_daemon_is_killed() {
    for point in METRIC_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_unready(&[SMALL, ("MULETEER_FAULT", point)]);
        daemon.answers_or_ends(&world);
        let client = world.spawn(&repo, "echo end", &["--wait"]).start();
        daemon.ended();
        let second = world.daemon_with(&[SMALL]);
        assert_eq!(client.finish().code, Some(0), "{point}");
        let third = world.spawn(&repo, "exit 3", &["--wait"]).run();
        assert_eq!(third.code, Some(4), "{third:?}");
        let lines = || {
            let folder = std::fs::read_dir(world.state().join("metrics")).unwrap();
            let texts = folder.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap());
            let text: String = texts.collect();
            let value = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
            text.lines().map(value).collect::<Vec<_>>()
        };
        wait_until("two lines", PATIENCE, || (lines().len() >= 2).then_some(()));
        let outcomes: Vec<_> = lines().iter().map(|line| line["outcome"].clone()).collect();
        assert_eq!(outcomes, ["success", "failed"], "{point}");
        world.finish(Some(second));
    }
}

/// The files of an older version: everything in `events.jsonl`, with a living agent.
#[test]
fn log_of_one_file_continues_in_segments() {
    let world = World::new();
    let repo = world.repo("repo");
    let mut daemon = world.daemon();
    let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; echo went";
    let id = start(&world, &repo, script);
    daemon.kill_9();
    let log = world.state().join("events.jsonl");
    let before = events::lines(&log);
    assert!(segments(&world, "").is_empty());
    let daemon = world.daemon_with(&[SMALL]);
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&id)["state"], "success");
    assert_eq!(repo.effects("effects"), ["start"]);
    wait_until("pieces", PATIENCE, || (segments(&world, ".zst").len() > 1).then_some(()));
    events::check_nothing_lost(&before, &log);
    let journal = world.muleteer(&["journal", &id]).ok();
    assert_eq!(journal.matches("] dispatched").count(), 1, "{journal}");
    let told = world.muleteer(&["events", "--json"]).ok();
    assert_eq!(told.matches("{\"crc\":").count(), events::lines(&log).len());
    world.finish(Some(daemon));
}

#[test]
fn damaged_segment_is_a_named_error_of_every_verb() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon_with(&[SMALL]);
    let id = world.spawn(&repo, "echo end", &["--wait", "--json"]).run().json()["id"].clone();
    wait_until("segments", PATIENCE, || (segments(&world, ".zst").len() > 1).then_some(()));
    world.expect_clean_end(Some(daemon));
    let mut found = segments(&world, ".zst");
    found.sort();
    let victim = found.remove(0);
    let good = std::fs::read(&victim).unwrap();
    let mut bytes = good.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&victim, &bytes).unwrap();
    let name = victim.file_name().unwrap().to_str().unwrap().to_string();
    for words in [&["events", "--json"][..], &["why", id.as_str().unwrap(), "--json"]] {
        let output = world.muleteer(words).run();
        assert_eq!(output.code, Some(3), "{words:?}: {output:?}");
        let told = format!("{}{}", output.stdout, output.stderr);
        assert!(told.contains("E_EVENTS_CORRUPT") && told.contains(&name), "{words:?}: {told}");
    }
    let doctor = world.muleteer(&["doctor"]).run();
    assert!(format!("{}{}", doctor.stdout, doctor.stderr).contains(&name), "{doctor:?}");
    let mut daemon = world.daemon_unready(&[SMALL]);
    assert_eq!(daemon.ended().code(), Some(3), "{}", daemon.log());
    std::fs::write(&victim, good).unwrap();
    let daemon = world.daemon_with(&[SMALL]);
    assert_eq!(world.status()["dispatches"][0]["state"], "success");
    world.finish(Some(daemon));
}
