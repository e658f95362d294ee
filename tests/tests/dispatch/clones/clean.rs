//! `muleteer clean` removes clones whose work is in the repository and archives journals. No kill
//! of the daemon loses work.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_process::fault::CLEAN_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::path::{Path, PathBuf};

const COMMIT: &str = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b'";

/// Runs one dispatch in a clone of its own until it has ended, and returns its id.
fn work(world: &World, repo: &Repo, script: &str) -> String {
    let id = world.spawn(repo, script, &["--worktree", "--wait"]).ok();
    free(world, &id);
    id
}

/// Waits until the shim has finished its last steps.
fn free(world: &World, id: &str) {
    let lock = world.state().join("agents").join(id).join("lock");
    wait_until("its shim to be gone", PATIENCE, || {
        muleteer_process::lock::try_lock(&lock).unwrap().map(drop)
    });
}

fn clone_of(repo: &Repo, id: &str) -> PathBuf {
    Path::new(repo.to_str()).join(".muleteer/worktrees").join(id)
}

/// The directory of a clone that is being removed.
fn rest_of(repo: &Repo, id: &str) -> PathBuf {
    clone_of(repo, &format!(".{id}.removed"))
}

fn clean(world: &World, more: &[&str]) -> Value {
    world.muleteer(&[&["clean", "--json"], more].concat()).run().expect_code(0).json()
}

/// Returns the reason why a path is kept.
fn reason(report: &Value, path: &Path) -> Option<String> {
    let kept = report["kept"].as_array().unwrap();
    let of = kept.iter().find(|kept| kept["path"] == path.display().to_string())?;
    Some(of["reason"].as_str().unwrap().to_string())
}

fn removes(report: &Value, path: &Path) -> bool {
    let removed = report["removed"].as_array().unwrap();
    removed.iter().any(|removed| removed["path"] == path.display().to_string())
}

#[test]
fn clean_removes_a_clone_whose_work_is_home() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = work(&world, &repo, COMMIT);
    let (clone, branch) = (clone_of(&repo, &id), format!("muleteer/{id}"));
    let journal = world.muleteer(&["journal", &id]).ok();

    let would = clean(&world, &[]);
    assert!(removes(&would, &clone) && would["dry_run"] == true, "{would}");
    assert!(would["bytes"].as_u64() > Some(0), "{would}");
    assert!(clone.exists(), "a dry run removes nothing");
    let young = clean(&world, &["--apply", "--older-than", "1h"]);
    assert!(reason(&young, &clone).unwrap().contains("less than 1h"), "{young}");

    let done = clean(&world, &["--apply"]);
    assert!(removes(&done, &clone) && done["dry_run"] == false, "{done}");
    assert_eq!(done["archived"].as_array().unwrap().len(), 1, "{done}");
    assert!(!clone.exists() && !rest_of(&repo, &id).exists());
    assert_eq!(repo.git(&["show", &format!("{branch}:b.txt")]), "new");
    assert_eq!(repo.git(&["status", "--porcelain"]), "");
    assert_eq!(world.muleteer(&["journal", &id]).ok(), journal, "the archive has it");
    assert!(!Path::new(world.dispatch(&id)["journal"].as_str().unwrap()).exists());

    let again = clean(&world, &["--apply"]);
    assert_eq!(again["removed"].as_array().unwrap().len(), 0, "{again}");
    assert_eq!(again["archived"].as_array().unwrap().len(), 0, "{again}");
    assert_eq!(world.events_of(&id, "clone_removed").len(), 1);
    let refused = world.muleteer(&["send", &id, "go on", "--json"]).run().expect_code(2).json();
    assert_eq!(refused["error"]["code"], "E_UNSUPPORTED");
    world.finish(Some(daemon));
}

#[test]
fn clean_flags_a_failed_dispatch_and_keeps_a_running_one() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "touch ../../../up; until [ -e ../../../go ]; do sleep 0.1; done";
    let lives = world.spawn(&repo, script, &["--worktree"]).ok();
    let up = Path::new(repo.to_str()).join("up");
    wait_until("it to live", PATIENCE, || up.exists().then_some(()));
    let result = r#"echo '{"type":"result","status":"failed","summary":"no idea"}'"#;
    let failed = world.spawn(&repo, result, &["--worktree"]).ok();
    assert_eq!(world.wait_for_end(&failed)["state"], "failed");
    free(&world, &failed);

    let report = clean(&world, &["--apply"]);
    let why = reason(&report, &clone_of(&repo, &failed)).unwrap();
    assert!(why.contains("ended as failed") && why.contains("--failed"), "{why}");
    let why = reason(&report, &clone_of(&repo, &lives)).unwrap();
    assert_eq!(why, "the dispatch is running");
    assert!(clone_of(&repo, &failed).exists() && clone_of(&repo, &lives).exists());

    let report = clean(&world, &["--apply", "--failed"]);
    assert!(removes(&report, &clone_of(&repo, &failed)), "{report}");
    repo.write("go", "");
    assert_eq!(world.wait_for_end(&lives)["state"], "success");
    world.finish(Some(daemon));
}

/// A person may go on in the clone after its agent has ended.
#[test]
fn clean_brings_later_work_home_before_it_removes_the_clone() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = work(&world, &repo, COMMIT);
    let clone = clone_of(&repo, &id);
    std::fs::write(clone.join("late.txt"), "late\n").unwrap();
    let done = clean(&world, &["--apply"]);
    assert!(removes(&done, &clone), "{done}");
    let left = format!("refs/muleteer/left/{id}/uncommitted:late.txt");
    assert_eq!(repo.git(&["show", &left]), "late");
    assert_eq!(world.dispatch(&id)["work"]["left"][0]["what"], "uncommitted changes in 1 file");
    world.finish(Some(daemon));
}

#[test]
fn clean_keeps_a_clone_with_a_repository_of_its_own() {
    let world = World::new();
    let repo = world.repo("repo");
    repo.write(".gitignore", "vendor\n");
    repo.git(&["add", "."]);
    repo.git(&["commit", "--quiet", "-m", "ignore"]);
    let daemon = world.daemon();
    let id = work(&world, &repo, "git init --quiet vendor/lib && touch vendor/lib/only-here");
    let report = clean(&world, &["--apply"]);
    let why = reason(&report, &clone_of(&repo, &id)).unwrap();
    assert!(why.contains("a repository of its own"), "{why}");
    assert!(clone_of(&repo, &id).join("vendor/lib/only-here").exists());
    world.finish(Some(daemon));
}

/// A person has a shell or an editor in it.
#[test]
fn clean_keeps_a_clone_in_which_a_process_works() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let id = work(&world, &repo, COMMIT);
    let clone = clone_of(&repo, &id);
    let mut sleeper = std::process::Command::new("sleep");
    let mut sleeper = sleeper.arg("600").current_dir(&clone).spawn().unwrap();
    let report = clean(&world, &["--apply"]);
    let why = reason(&report, &clone).unwrap();
    assert!(why.contains(&sleeper.id().to_string()) && why.ends_with("works in it"), "{why}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let report = clean(&world, &["--apply"]);
    assert!(removes(&report, &clone), "{report}");
    world.finish(Some(daemon));
}

#[test]
fn clean_keeps_links_and_linked_working_directories() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let beside = world.path().join("beside");
    let linked = work(&world, &repo, &format!("git worktree add -q -b b {}", beside.display()));
    let moved = clone_of(&repo, &work(&world, &repo, COMMIT));
    let elsewhere = world.path().join("elsewhere");
    std::fs::rename(&moved, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &moved).unwrap();
    let report = clean(&world, &["--apply"]);
    let why = reason(&report, &clone_of(&repo, &linked)).unwrap();
    assert!(why.contains("linked working directory"), "{why}");
    let why = reason(&report, &moved).unwrap();
    assert!(why.ends_with("is a link"), "{why}");
    assert!(elsewhere.join("b.txt").exists() && beside.join(".git").exists());
    world.finish(Some(daemon));
}

#[test]
fn clean_brings_branches_stashes_and_other_refs_home() {
    let world = World::new();
    let repo = world.repo("repo");
    let daemon = world.daemon();
    let script = "git checkout -q -b side; echo side > s.txt; git add .; git commit -qm side; \
                  git update-ref refs/wip/one HEAD; git reset -q --hard HEAD~1; \
                  echo side2 > t.txt; git add .; git commit -qm side2; \
                  git checkout -q -; echo stashed > st.txt; git add .; git stash -q; \
                  echo loose > loose.txt";
    let id = work(&world, &repo, script);
    let report = clean(&world, &["--apply"]);
    assert!(removes(&report, &clone_of(&repo, &id)), "{report}");
    let all = repo.git(&["log", "--all", "--format=", "--name-only", "-m"]);
    for name in ["s.txt", "t.txt", "st.txt", "loose.txt"] {
        assert!(all.lines().any(|line| line == name), "{name} is lost: {all}");
    }
    world.finish(Some(daemon));
}

#[test]
fn clean_that_was_killed_anywhere_loses_no_work() {
    for point in CLEAN_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let mut daemon = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let script = format!("{COMMIT}; echo more > more.txt");
        let id = work(&world, &repo, &script);
        let refs = || {
            let left = format!("refs/muleteer/left/{id}");
            repo.git(&["for-each-ref", &left, "refs/heads/muleteer"])
        };
        let before = refs();
        // No daemon answers this client; the test does not depend on its retries.
        let client = world.muleteer(&["clean", "--apply"]).start();
        daemon.ended();
        drop(client);
        let daemon = world.daemon();
        wait_until("the clone to be removed", PATIENCE, || {
            clean(&world, &["--apply"]);
            let is_gone = !clone_of(&repo, &id).exists() && !rest_of(&repo, &id).exists();
            is_gone.then_some(())
        });
        assert_eq!(refs(), before, "{point}: and a half removed clone adds no work");
        assert_eq!(world.events_of(&id, "clone_removed").len(), 1, "{point}");
        assert!(world.muleteer(&["journal", &id]).ok().contains("attempt 1"), "{point}");
        world.finish(Some(daemon));
    }
}

#[test]
fn configured_retention_cleans_by_itself() {
    let world = World::new();
    let repo = world.repo("repo");
    world.configure("retention: {clean_after: 0s}\n");
    let daemon = world.daemon();
    let id = work(&world, &repo, COMMIT);
    wait_until("the clone to be removed", PATIENCE, || {
        (!clone_of(&repo, &id).exists() && !rest_of(&repo, &id).exists()).then_some(())
    });
    assert_eq!(world.events_of(&id, "clone_removed")[0]["by"], "retention");
    assert_eq!(repo.git(&["show", &format!("muleteer/{id}:b.txt")]), "new");
    world.finish(Some(daemon));
}
