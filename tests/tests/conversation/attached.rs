//! The attached files of archived threads are removed when no session of the thread can go on.

use crate::{ask, open, show};
use muleteer_process::fault::ATTACHED_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use std::path::PathBuf;

/// An agent that does not repeat what it was told: the context of a new session has its answers.
const SILENT: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: printf '%s\\n' \"$prompt\" >> heard
      - say: seen
";

/// A thread with one attached file, which its agent was told of.
struct Scene {
    world: World,
    repo: Repo,
    thread: String,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        let daemon = world.daemon();
        let thread = open(&world, &repo, SILENT);
        let file = world.path().join("notes.txt");
        std::fs::write(&file, "the content").expect("a file");
        let file = file.to_str().expect("a path");
        world.muleteer(&["thread", "send", &thread, "look", "--file", file, "--wait"]).ok();
        world.expect_clean_end(Some(daemon));
        Self { world, repo, thread }
    }

    fn folder(&self) -> PathBuf {
        self.world.state().join("threads").join(&self.thread)
    }

    fn has_files(&self) -> bool {
        self.folder().join("files").exists()
    }

    fn archive(&self) {
        let dispatch = show(&self.world, &self.thread)["dispatch_id"].clone();
        self.world.muleteer(&["thread", "archive", &self.thread]).ok();
        let id = dispatch.as_str().expect("an id");
        let lock = self.world.state().join("agents").join(id).join("lock");
        wait_until("its shim to be gone", PATIENCE, || {
            muleteer_process::lock::try_lock(&lock).expect("a lock").map(drop)
        });
    }

    fn prune(&self, more: &[&str]) -> serde_json::Value {
        let args = ["clean", "--output", "--json"];
        self.world.muleteer(&[&args[..], more].concat()).json()["output"].clone()
    }

    /// A message opens the thread again; its new session does not look for the file.
    fn goes_on(&self) {
        let told = self.repo.effects("heard").len();
        assert_eq!(ask(&self.world, &self.thread, "and now")["answer"]["text"], "seen");
        let heard = self.repo.effects("heard").split_off(told).join("\n");
        assert!(heard.ends_with("and now") && !heard.contains("notes.txt"), "{heard}");
        let shown = show(&self.world, &self.thread);
        assert_eq!(shown["messages"][0]["files"][0]["name"], "notes.txt", "{shown}");
    }
}

#[test]
fn attached_files_go_when_the_thread_is_archived_and_has_no_session() {
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let would = scene.prune(&["--older-than", "0s"]);
    assert!(would["threads"].is_null(), "the thread is open: {would}");
    scene.archive();
    // A dry run counts what the same command with `--apply` removes.
    let would = scene.prune(&[]);
    assert_eq!((&would["dispatches"], &would["threads"]), (&1.into(), &1.into()), "{would}");
    let young = scene.prune(&["--apply", "--older-than", "1h"]);
    assert!(young["threads"].is_null() && scene.has_files(), "{young}");
    let done = scene.prune(&["--apply"]);
    assert_eq!((&done["dispatches"], &done["threads"]), (&1.into(), &1.into()), "{done}");
    assert!(!scene.has_files() && scene.folder().join("request.json").exists());
    scene.goes_on();
    scene.world.finish(Some(daemon));
}

#[test]
fn removal_of_attached_files_that_was_cut_off_is_finished_by_the_next() {
    for point in ATTACHED_POINTS {
        let scene = Scene::new();
        let mut daemon = scene.world.daemon_with(&[("MULETEER_FAULT", point)]);
        scene.archive();
        let client = scene.world.muleteer(&["clean", "--output", "--apply"]).start();
        daemon.ended();
        drop(client);
        let daemon = scene.world.daemon();
        scene.prune(&["--apply"]);
        assert!(!scene.has_files(), "{point}");
        assert!(scene.folder().join("request.json").exists(), "{point}");
        scene.goes_on();
        scene.world.finish(Some(daemon));
    }
}
