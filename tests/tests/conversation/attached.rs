//! The attached files of archived threads are removed when no session of the thread can go on.

use crate::{ECHO, ask, open, show};
use muleteer_process::fault::ATTACHED_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use std::path::PathBuf;

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
        let thread = open(&world, &repo, ECHO);
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
        self.world.wait_for_end(id);
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
        let answered = ask(&self.world, &self.thread, "and now");
        let text = answered["answer"]["text"].as_str().expect("an answer");
        assert!(text.ends_with("and now") && !text.contains("notes.txt"), "{text}");
        let shown = show(&self.world, &self.thread);
        assert_eq!(shown["messages"][0]["files"][0]["name"], "notes.txt", "{shown}");
        assert!(self.repo.effects("heard").len() > 1);
    }
}

#[test]
fn attached_files_go_when_the_thread_is_archived_and_has_no_session() {
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    scene.prune(&["--apply"]);
    assert!(scene.has_files(), "the thread is open");
    scene.archive();
    let would = scene.prune(&[]);
    assert!(would["threads"].is_null(), "the session can go on: {would}");
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
