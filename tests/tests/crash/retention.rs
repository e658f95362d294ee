//! Removed events: what is left means the same, and a daemon that is killed at any step of a
//! removal loses nothing else.

#![allow(clippy::unwrap_used)]

use crate::recovery::start;
use muleteer_process::fault::{RETENTION_POINTS, SEGMENT_VAR};
use muleteer_tests::{Daemon, PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

/// A file is closed before each append.
const SMALL: (&str, &str) = (SEGMENT_VAR, "1");

/// A world with a dispatch that has ended and has no files, a thread with an answered message, and
/// a living agent that waits for the file `go`.
struct Scene {
    world: World,
    repo: Repo,
    ended: String,
    alive: String,
    thread: String,
}

impl Scene {
    fn new() -> (Self, Daemon) {
        let world = World::new();
        let repo = world.repo("repo");
        world.configure("retention: {in_memory: 20, events: 0s}\n");
        let daemon = world.daemon_with(&[SMALL]);
        let ended = world.spawn(&repo, "echo one", &["--wait", "--json"]).json();
        let ended = ended["id"].as_str().unwrap().to_string();
        world.muleteer(&["prune", "--older-than", "0s", "--json"]).ok();
        let scenario = world.path().join("thread.yaml");
        let turn = "  - steps:\n      - result: {status: success, summary: hello}\n";
        fs::write(&scenario, format!("v: 1\nturns:\n{turn}{turn}")).unwrap();
        let path = scenario.display().to_string();
        let args = ["thread", "new", "--project", repo.to_str(), "--backend", "rehearsal"];
        let args = [&args[..], &["--scenario", &path, "--json"]].concat();
        let opened = world.muleteer(&args).json();
        let thread = opened["thread_id"].as_str().unwrap().to_string();
        let scene = Self { world, repo, ended, alive: String::new(), thread };
        scene.say();
        let script = "echo start >> effects; while [ ! -e go ]; do sleep 0.05; done; echo went";
        let alive = start(&scene.world, &scene.repo, script);
        (Self { alive, ..scene }, daemon)
    }

    /// Sends the only message of the thread, which has always the same key.
    fn say(&self) -> Value {
        let args = ["thread", "send", &self.thread, "hi", "--key", "k", "--wait", "--json"];
        self.world.muleteer(&args).json()
    }

    /// Returns what must be the same before and after a removal.
    fn answers(&self) -> Vec<Value> {
        let json = |args: &[&str]| {
            let mut answer = self.world.muleteer(args).json();
            for key in ["daemon", "running"] {
                answer.as_object_mut().unwrap().remove(key);
            }
            answer
        };
        let journal = json(&["journal", &self.alive, "--json"])["text"].clone();
        // Each daemon adopts the agent.
        let lines = journal.as_str().unwrap().lines();
        let lines: Vec<&str> = lines.filter(|line| !line.contains("adopted by")).collect();
        vec![
            json(&["thread", "show", &self.thread, "--json"]),
            json(&["cost", "--json"]),
            lines.join("\n").into(),
        ]
    }

    /// Waits until all closed files are compressed: others do not go.
    fn wait_until_compressed(&self) {
        wait_until("compressed segments only", PATIENCE, || {
            let plain = self.files().into_iter().any(|path| path.extension().unwrap() == "jsonl");
            (!plain).then_some(())
        });
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.world.state().join("events")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    fn metrics(&self) -> String {
        let entries = fs::read_dir(self.world.state().join("metrics")).unwrap();
        entries.map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
    }

    /// Checks that the events of the ended dispatch are gone, and nothing else.
    fn check(&self, before: &[Value], when: &str) {
        assert_eq!(self.answers(), before, "{when}");
        let gone = self.world.muleteer(&["status", &self.ended, "--json"]).run();
        assert_eq!(gone.error_code(), "E_NOT_FOUND", "{when}: {gone:?}");
        let left = self.world.muleteer(&["events", "--json"]).ok();
        let is_about = |line: &&str, name: &str| {
            line.contains(&self.ended) && line.contains(&format!("\"{name}\""))
        };
        let created = left.lines().filter(|line| is_about(line, "dispatch_created")).count();
        assert_eq!(created, 0, "{when}");
    }

    fn finish(self, daemon: Daemon) {
        self.repo.write("go", "");
        assert_eq!(self.world.wait_for_end(&self.alive)["state"], "success");
        assert_eq!(self.repo.effects("effects"), ["start"]);
        let doctor = self.world.muleteer(&["doctor", "--json"]).run();
        assert!(!doctor.stdout.contains("E_EVENTS"), "{doctor:?}");
        self.world.finish(Some(daemon));
    }
}

#[test]
fn old_events_are_removed_and_what_is_left_means_the_same() {
    let (scene, mut daemon) = Scene::new();
    let before = scene.answers();
    scene.wait_until_compressed();
    let clean = |more: &[&str]| {
        scene.world.muleteer(&[&["clean", "--json"], more].concat()).json()["events"].clone()
    };
    let files = scene.files().len();
    let would = clean(&[]);
    assert!(would["events"].as_u64().unwrap() > 10 && would["kept"] == 0, "{would}");
    assert_eq!(scene.files().len(), files, "it was a dry run");
    let metrics = scene.metrics();
    let done = clean(&["--apply"]);
    assert!(done["events"].as_u64().unwrap() > 5 && done["kept"].as_u64().unwrap() > 5, "{done}");
    assert!(scene.files().len() < files);
    scene.check(&before, "with the same daemon");
    // Its key is still known, so it is the same message.
    scene.say();
    scene.check(&before, "after a repeated message");
    daemon.kill_9();
    scene.check(&before, "without a daemon");
    for file in ["events.snapshot", "muleteer.db"] {
        let _ = fs::remove_file(scene.world.state().join(file));
    }
    scene.check(&before, "from the events alone");
    let daemon = scene.world.daemon_with(&[SMALL]);
    wait_until("the database", PATIENCE, || {
        let output = scene.world.muleteer(&["status", &scene.ended, "--json"]).run();
        (output.code != Some(0) && output.error_code() == "E_NOT_FOUND").then_some(())
    });
    scene.check(&before, "with a new daemon");
    assert!(scene.metrics().starts_with(&metrics), "no line of the metrics went");
    scene.finish(daemon);
}

#[test]
fn daemon_killed_at_each_step_of_a_removal_loses_nothing_else() {
    for point in RETENTION_POINTS {
        let (scene, mut daemon) = Scene::new();
        let before = scene.answers();
        daemon.kill_9();
        let mut daemon = scene.world.daemon_with(&[SMALL, ("MULETEER_FAULT", point)]);
        scene.wait_until_compressed();
        // The client starts another daemon on demand, and repeats its request.
        scene.world.muleteer(&["clean", "--apply", "--json"]).ok();
        daemon.ended();
        assert_eq!(scene.answers(), before, "{point}");
        let second = scene.world.status()["daemon"]["pid"].as_u64().unwrap();
        scene.world.kill_9(u32::try_from(second).unwrap());
        wait_until("its end", PATIENCE, || {
            let status = scene.world.status();
            (status["daemon"]["running"] == false).then_some(())
        });
        let daemon = scene.world.daemon_with(&[SMALL]);
        assert_eq!(scene.answers(), before, "{point}");
        scene.wait_until_compressed();
        scene.world.muleteer(&["clean", "--apply", "--json"]).ok();
        scene.check(&before, point);
        let first = "000000000001-";
        let is_first =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(first);
        assert!(!scene.files().iter().any(is_first), "{point}: {:?}", scene.files());
        scene.finish(daemon);
    }
}
