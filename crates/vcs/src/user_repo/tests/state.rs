//! A person's git state: operations in progress, staged changes, sparse checkouts, repositories
//! with other hashes, and partial clones.

use super::{Repo, on_main, quiet};
use crate::user_repo::*;
use muleteer_process::command::helper;
use std::path::Path;

/// Runs a git that may fail, as one that stops at a conflict does.
fn attempt(repo: &Repo, args: &[&str]) {
    let mut command = helper("git");
    command.arg("-C").arg(repo.dir.path()).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
    drop(run(command, b"", "test"));
}

/// Makes two branches that conflict, with `main` checked out.
fn torn() -> Repo {
    let repo = Repo::new();
    repo.git(&["checkout", "-qb", "other"]);
    for text in ["other\n", "more\n"] {
        repo.write("kept.txt", text);
        repo.git(&["commit", "-qam", text]);
    }
    repo.git(&["checkout", "-q", "main"]);
    repo.write("kept.txt", "main\n");
    repo.git(&["commit", "-qam", "main"]);
    repo
}

const OPERATIONS: [(&[&str], &str); 6] = [
    (&["merge", "-q", "other"], "a merge"),
    (&["cherry-pick", "other~1", "other"], "a cherry-pick"),
    (&["revert", "--no-edit", "other"], "a revert"),
    (&["rebase", "-q", "other"], "a rebase"),
    (&["bisect", "start", "main", "main~1"], "a bisect"),
    (&["checkout", "-q", "-m", "other"], "unresolved conflicts"),
];

#[test]
fn no_task_begins_in_the_middle_of_an_operation() {
    for (operation, what) in OPERATIONS {
        let repo = torn();
        if what == "unresolved conflicts" {
            repo.write("kept.txt", "uncommitted\n");
        }
        attempt(&repo, operation);
        let before = (repo.git(&["status", "--porcelain"]), repo.git(&["rev-parse", "HEAD"]));
        let git = repo.open();
        let error = git.remember_start("a", &git.head().expect("head")).expect_err(what);
        assert!(error.to_string().contains(what), "{what}: {error}");
        assert!(error.hint().is_some(), "{what}");
        let after = (repo.git(&["status", "--porcelain"]), repo.git(&["rev-parse", "HEAD"]));
        assert_eq!(after, before, "{what}");
        assert!(git.in_progress().expect("a state").is_some(), "{what}");
    }
}

/// An operation that began after a task is its agent's.
#[test]
fn rollback_ends_an_operation_of_the_agent_and_saves_its_commits() {
    for (operation, what) in OPERATIONS {
        let repo = torn();
        let git = repo.open();
        let base = git.head().expect("head");
        git.remember_start("a", &base).expect("remembers");
        if what == "unresolved conflicts" {
            repo.write("kept.txt", "uncommitted\n");
        }
        attempt(&repo, operation);
        repo.write("work.txt", "w\n");
        let saved = git
            .roll_back("a", &base, None, &on_main(), &[], &mut quiet())
            .expect(what)
            .expect("saved");
        assert_eq!(git.in_progress(), Ok(None), "{what}");
        assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json", "{what}");
        assert_eq!(repo.read("kept.txt").as_deref(), Some("main\n"), "{what}");
        assert_eq!(git.branch().as_deref(), Some("main"), "{what}");
        if what == "a merge" {
            let other = repo.git(&["rev-parse", "other"]);
            assert!(git.contains(&saved.commit, &other).expect("a history"));
        }
        git.forget_start("a");
        git.remember_start("b", &base).expect("the next task begins");
    }
}

#[test]
fn success_ends_an_operation_of_the_agent() {
    let repo = torn();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    attempt(&repo, &["merge", "-q", "other"]);
    repo.write("kept.txt", "resolved\n");
    git.commit(&git.start("a", &base).expect("start"), "a")
        .expect("commits")
        .expect("something");
    git.end_operations().expect("ends");
    assert_eq!(git.in_progress(), Ok(None));
    assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json");
    assert_eq!(repo.read("kept.txt").as_deref(), Some("resolved\n"));
}

#[test]
fn rollback_stages_again_what_a_person_had_staged() {
    let repo = Repo::new();
    repo.write("part.txt", "one\ntwo\nthree\nfour\nfive\n");
    repo.git(&["add", "part.txt"]);
    repo.git(&["commit", "-qm", "part"]);
    // A part of a file is staged, another one is new, and one is to be deleted.
    repo.write("part.txt", "ONE\ntwo\nthree\nfour\nfive\n");
    repo.write("new.txt", "staged\n");
    repo.git(&["add", "part.txt", "new.txt"]);
    repo.git(&["rm", "-q", "--cached", "kept.txt"]);
    repo.write("part.txt", "ONE\ntwo\nthree\nfour\nFIVE\n");
    repo.write("new.txt", "staged, and more\n");
    let state = || {
        (repo.git(&["diff", "--cached"]), repo.git(&["diff"]), repo.git(&["status", "--porcelain"]))
    };
    let before = state();
    let git = repo.open();
    let base = git.head().expect("head");
    let steps: [&dyn Fn(); 4] = [
        &|| repo.write("work.txt", "w\n"),
        &|| drop(repo.git(&["add", "-A"])),
        &|| {
            repo.write("part.txt", "agent\n");
            repo.git(&["commit", "-qam", "all of it"]);
        },
        &|| drop(repo.git(&["reset", "-q", "--hard"])),
    ];
    for step in steps {
        git.remember_start("a", &base).expect("remembers");
        step();
        for _ in 0..2 {
            git.roll_back("a", &base, None, &on_main(), &[], &mut quiet()).expect("rolls back");
            assert_eq!(state(), before);
        }
        git.forget_start("a");
    }
}

#[test]
fn undo_keeps_staged_changes_and_rejects_an_operation_in_progress() {
    let repo = torn();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.write("work.txt", "w\n");
    let saved = git.roll_back("a", &base, None, &on_main(), &[], &mut quiet());
    let saved = saved.expect("rolls back").expect("saved");
    attempt(&repo, &["merge", "-q", "other"]);
    let error = git.undo(&saved, &[]).expect_err("a merge");
    assert!(matches!(error, GitError::InProgress { .. }), "{error}");
    assert!(repo.dir.path().join(".git/MERGE_HEAD").exists() && repo.read("work.txt").is_none());
    repo.git(&["merge", "--abort"]);
    repo.write("new.txt", "n\n");
    repo.git(&["add", "new.txt"]);
    repo.write("new.txt", "n, and more\n");
    git.undo(&saved, &[]).expect("undone");
    assert_eq!(repo.read("work.txt").as_deref(), Some("w\n"));
    assert_eq!(repo.git(&["diff", "--cached", "--name-only"]), "new.txt");
}

#[test]
fn repository_with_sha256_names_is_rolled_back_and_undone() {
    let repo = Repo::new();
    let dir = repo.dir.path();
    std::fs::remove_dir_all(dir.join(".git")).expect("gone");
    repo.git(&["init", "-q", "-b", "main", "--object-format=sha256"]);
    repo.git(&["config", "user.name", "Tester"]);
    repo.git(&["config", "user.email", "tester@example.invalid"]);
    repo.git(&["add", "kept.txt", ".gitignore"]);
    repo.git(&["commit", "-qm", "start"]);
    let git = repo.open();
    let base = git.head().expect("head");
    assert_eq!(base.len(), 64);
    for number in 1..3 {
        git.remember_start("a", &base).expect("remembers");
        repo.write("work.txt", "w\n");
        let saved = git.roll_back("a", &base, None, &on_main(), &[], &mut quiet());
        let saved = saved.expect("rolls back").expect("saved");
        assert!(saved.name.ends_with(&format!("/{number}")), "{}", saved.name);
        assert!(repo.read("work.txt").is_none());
        git.forget_start("a");
        git.undo(&saved, &[]).expect("undone");
        assert_eq!(repo.read("work.txt").as_deref(), Some("w\n"));
        repo.remove("work.txt");
    }
}

/// Clones `from` with a checkout of the folder `a` alone.
fn sparse(from: &Repo, more: &[&str]) -> Repo {
    let repo = Repo { dir: tempfile::tempdir().expect("a directory") };
    let url = format!("file://{}", from.dir.path().display());
    let clone = ["clone", "-q", "--no-checkout"].iter().chain(more).copied();
    let args: Vec<&str> = clone.chain([url.as_str(), "."]).collect();
    repo.git(&args);
    repo.git(&["config", "user.name", "Tester"]);
    repo.git(&["config", "user.email", "tester@example.invalid"]);
    repo.git(&["sparse-checkout", "set", "a"]);
    repo.git(&["checkout", "-q", "main"]);
    repo
}

fn folders() -> Repo {
    let repo = Repo::new();
    repo.write("a/1", "1\n");
    repo.write("b/2", "2\n");
    repo.git(&["add", "a", "b"]);
    repo.git(&["commit", "-qm", "folders"]);
    repo.git(&["config", "uploadpack.allowFilter", "true"]);
    repo
}

#[test]
fn sparse_checkout_is_rolled_back_and_committed_outside_of_its_folders() {
    let from = folders();
    for is_partial in [false, true] {
        let filter: &[&str] = if is_partial { &["--filter=blob:none"] } else { &[] };
        let repo = sparse(&from, filter);
        if is_partial {
            // Nothing is fetched for a rollback.
            repo.git(&["remote", "set-url", "origin", "file:///nowhere"]);
        }
        let git = repo.open();
        let base = git.head().expect("head");
        let hidden = repo.git(&["ls-files", "-t"]);
        git.remember_start("a", &base).expect("remembers");
        repo.write("a/1", "agent\n");
        repo.write("b/2", "agent\n");
        repo.write("bd/c", "agent\n");
        let saved = git.roll_back("a", &base, None, &on_main(), &[], &mut quiet());
        let saved = saved.expect("rolls back").expect("saved");
        assert_eq!(repo.git(&["show", &format!("{}:bd/c", saved.commit)]), "agent");
        assert!(!repo.dir.path().join("bd").exists() && !repo.dir.path().join("b").exists());
        assert_eq!(repo.read("a/1").as_deref(), Some("1\n"));
        assert_eq!(repo.git(&["status", "--porcelain"]), "");
        assert_eq!(repo.git(&["ls-files", "-t"]), hidden, "the checkout is as narrow as before");
        git.forget_start("a");
        git.remember_start("b", &base).expect("remembers");
        repo.write("bd/c", "agent\n");
        let start = git.start("b", &base).expect("start");
        let commit = git.commit(&start, "b").expect("commits").expect("something");
        assert_eq!(repo.git(&["show", "--format=", "--name-status", &commit]), "A\tbd/c");
        git.forget_start("b");
        git.undo(&saved, &[]).expect_err("HEAD has moved");
        assert!(Path::new(&repo.dir.path().join("bd/c")).exists());
    }
}
