//! Rollbacks of a task, their undoing, and its commits.

use crate::user_repo::tests::*;

#[test]
fn rollback_removes_all_work_of_a_task_and_undo_restores_it() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("task-001", &base).expect("saves");
    repo.write("kept.txt", "changed\n");
    repo.git(&["commit", "-qam", "task-001: change"]);
    repo.write("committed.txt", "c\n");
    repo.git(&["add", "committed.txt"]);
    repo.git(&["commit", "-qm", "task-001: more"]);
    repo.write("dir/untracked.txt", "u\n");
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    repo.remove("kept.txt");
    repo.write("ignored/cache", "i\n");
    let head = git.head().expect("head");

    let mut heard = vec![];
    let mut hear = |saved: &Saved| heard.push(saved.name.clone());
    let saved = git
        .roll_back("task-001", &base, None, &on_main(), &[], &mut hear)
        .expect("rolls back")
        .expect("saved");
    assert_eq!(heard, ["refs/muleteer/rollback/task-001/1"]);
    assert_eq!((git.head().expect("head"), &saved.head), (base.clone(), &head));
    assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json");
    assert_eq!(repo.read("kept.txt").as_deref(), Some("kept\n"));
    assert!(repo.read("committed.txt").is_none() && repo.read("dir/untracked.txt").is_none());
    assert_eq!(
        repo.read("ignored/cache").as_deref(),
        Some("i\n"),
        "ignored files stay, as with `clean -fd`"
    );
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{}"));
    assert_eq!(
        git.roll_back("task-001", &base, None, &on_main(), &[], &mut quiet()).expect("again"),
        None
    );

    let found = git.saved(Some("task-001")).expect("lists");
    assert_eq!(found, std::slice::from_ref(&saved));
    assert_eq!(git.undo(&found[0], &[]).expect("undoes"), None);
    assert_eq!(git.head().expect("head"), head);
    assert_eq!(repo.read("dir/untracked.txt").as_deref(), Some("u\n"));
    assert_eq!(repo.read("staged.txt").as_deref(), Some("s\n"));
    assert!(repo.read("kept.txt").is_none(), "deleted as it was");
}

/// If the index were behind HEAD after an interruption, the commit would look reverted.
#[test]
fn commit_that_fails_on_a_lock_changes_neither_head_nor_index() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let start = git.start("a", &base).expect("start");
    repo.write("work.txt", "w\n");
    repo.write(".git/index.lock", "");
    let living = LivingGit::new(&repo);
    assert!(git.commit(&start, "a: work").is_err(), "another git may hold the lock");
    drop(living);
    assert_eq!(
        (git.head().expect("head"), repo.git(&["diff", "--cached", "--name-only"])),
        (base, String::new())
    );
    repo.remove(".git/index.lock");
    let commit = git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(
        (git.head().expect("head"), repo.git(&["diff", "--cached", "--name-only"])),
        (commit, String::new())
    );
}

#[test]
fn tracked_list_is_changed_by_no_commit_and_no_rollback() {
    let repo = Repo::new();
    repo.git(&["add", "-f", "harness-tasks.json"]);
    repo.git(&["commit", "-qm", "the list too"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    repo.write("harness-tasks.json", "{\"newer\": true}");
    repo.write("harness-progress.txt", "log\n");
    repo.write("work.txt", "w\n");
    let start = git.start("a", &base).expect("start");
    let commit = git.commit(&start, "a").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "--format=", "--name-only", &commit]), "work.txt");
    git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()).expect("rolls back");
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{\"newer\": true}"));
    assert_eq!(repo.read("harness-progress.txt").as_deref(), Some("log\n"));
}

#[test]
fn damaged_lists_of_any_number_are_ignored() {
    let repo = Repo::new();
    repo.remove("harness-tasks.json");
    repo.write("odd [*] folder/harness-tasks.json", "{}");
    let git = Git::open(&repo.dir.path().join("odd [*] folder")).expect("a repository");
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    for name in ["harness-tasks.json.damaged", "harness-tasks.json.damaged.2"] {
        repo.write(&format!("odd [*] folder/{name}"), "{,");
    }
    assert_eq!(git.uncommitted(), "");
    assert_eq!(git.uncommitted_since(&git.start("a", &base).expect("start")), Ok(None));
    assert_eq!(git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()), Ok(None));
    assert!(repo.read("odd [*] folder/harness-tasks.json.damaged.2").is_some());
}

#[test]
fn listed_ignored_files_are_saved_and_restored() {
    let repo = Repo::new();
    repo.write(".env", "SECRET=1\n");
    let git = repo.open();
    let base = git.head().expect("head");
    repo.write("work.txt", "w\n");
    let saved = git
        .roll_back(
            "a",
            &base,
            None,
            &Stand::Anywhere,
            &[".env".into(), "absent".into()],
            &mut quiet(),
        )
        .expect("rolls back");
    let saved = saved.expect("saved");
    assert_eq!(repo.git(&["show", &format!("{}:.env", saved.name)]), "SECRET=1");
    repo.write(".env", "SECRET=overwritten\n");
    git.undo(&saved, &[".env".into()]).expect("undoes");
    assert_eq!(repo.read(".env").as_deref(), Some("SECRET=1\n"));
}

#[test]
fn branch_of_an_agent_is_not_moved_by_a_rollback() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    repo.git(&["checkout", "-q", "-b", "feature"]);
    repo.write("work.txt", "w\n");
    repo.git(&["add", "work.txt"]);
    repo.git(&["commit", "-qm", "on a branch of its own"]);
    let feature = git.head().expect("head");
    git.roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!((git.branch().as_deref(), git.head().expect("head")), (Some("main"), base));
    assert_eq!(git.tip("feature").expect("it stays"), feature);
    assert!(repo.read("work.txt").is_none());
}

#[test]
fn undo_saves_the_present_files_and_rejects_later_commits() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    repo.write("work.txt", "first\n");
    let saved = git
        .roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    repo.write("since.txt", "since\n");
    let kept = git.undo(&saved, &[]).expect("undoes").expect("the present files are saved");
    assert_eq!(repo.git(&["show", &format!("{kept}:since.txt")]), "since");
    assert_eq!((repo.read("work.txt").as_deref(), repo.read("since.txt")), (Some("first\n"), None));
    repo.git(&["add", "work.txt"]);
    repo.git(&["commit", "-qm", "moved on"]);
    let error = git.undo(&saved, &[]).expect_err("refuses");
    assert!(error.to_string().contains("git branch NAME"), "{error}");
}

#[test]
fn list_below_the_top_is_not_rolled_back() {
    let repo = Repo::new();
    repo.write("sub/harness-tasks.json", "{}");
    let git = Git::open(&repo.dir.path().join("sub")).expect("a repository");
    let base = git.head().expect("head");
    repo.write("sub/work.txt", "w\n");
    repo.write("above.txt", "a\n");
    git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(repo.read("sub/work.txt").is_none() && repo.read("above.txt").is_none());
    assert_eq!(repo.read("sub/harness-tasks.json").as_deref(), Some("{}"));
}

/// Odd files of a scaffolding tool must not keep a task from ending.
#[test]
fn nested_repository_stays_and_other_files_are_committed_and_rolled_back() {
    use std::os::unix::ffi::OsStrExt;
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let odd = repo.dir.path().join(std::ffi::OsStr::from_bytes(b"\xffx"));
    let leave = || {
        repo.git(&["init", "-q", "nested"]);
        repo.write("nested/mine.txt", "mine\n");
        repo.write("work.txt", "work\n");
        std::fs::write(&odd, "odd").expect("a name that is no text");
    };
    git.remember_start("task-001", &base).expect("saves");
    leave();
    git.roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(repo.read("work.txt").is_none() && !odd.exists());
    assert_eq!(repo.read("nested/mine.txt").as_deref(), Some("mine\n"));
    leave();
    let start = git.start("task-001", &base).expect("a start");
    git.commit(&start, "task-001: work").expect("commits").expect("a commit");
    let names = repo.git(&["ls-tree", "--name-only", "HEAD"]);
    assert!(
        names.contains("work.txt") && names.contains("377x") && !names.contains("nested"),
        "{names}"
    );
}

/// The saved ref also has the commits that an agent removed from the branch, or added to it while
/// HEAD was elsewhere.
#[test]
fn rollback_of_rewritten_history_or_another_branch_loses_no_commit() {
    let repo = Repo::new();
    repo.write("precious.txt", "p\n");
    repo.git(&["add", "precious.txt"]);
    repo.git(&["commit", "-qm", "a person's"]);
    let git = repo.open();
    let base = git.head().expect("head");
    let agents: [&[&[&str]]; 6] = [
        &[&["reset", "-q", "--hard", "HEAD~1"]],
        &[&["commit", "-q", "--amend", "-m", "mine now"]],
        &[
            &["commit", "-q", "--allow-empty", "-m", "more"],
            &["checkout", "-q", "-b", "side", "HEAD~2"],
        ],
        &[&["checkout", "-q", "--detach"], &["branch", "-q", "-D", "main"]],
        &[&["branch", "-q", "-m", "main", "other"]],
        &[&["checkout", "-q", "--orphan", "empty"]],
    ];
    for (number, agent) in agents.into_iter().enumerate() {
        git.remember_start("a", &base).expect("saves");
        let mut left = vec![base.clone()];
        for args in agent {
            repo.git(args);
            left.extend(git.head());
        }
        repo.write("work.txt", "w\n");
        let saved =
            git.roll_back("a", &base, None, &on_main(), &[], &mut quiet()).expect("rolls back");
        let saved = saved.unwrap_or_else(|| panic!("{agent:?}: nothing saved"));
        assert_eq!(
            (git.branch().as_deref(), git.head()),
            (Some("main"), Ok(base.clone())),
            "{agent:?}"
        );
        assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json", "{agent:?}");
        assert_eq!(repo.read("precious.txt").as_deref(), Some("p\n"), "{agent:?}");
        assert_eq!(saved.name, format!("refs/muleteer/rollback/a/{}", number + 1));
        assert_eq!(repo.git(&["show", &format!("{}:work.txt", saved.name)]), "w", "{agent:?}");
        for commit in left {
            assert_eq!(
                git.contains(&saved.commit, &commit),
                Ok(true),
                "{agent:?}: {commit} is kept"
            );
        }
    }
    // HEAD is detached again, and the branch that the agent checked out does not move.
    repo.git(&["checkout", "-q", "--detach"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.git(&["commit", "-q", "--allow-empty", "-m", "more"]);
    let main = git.head().expect("head");
    git.roll_back("a", &base, None, &Stand::Detached, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!((git.branch(), git.head(), git.tip("main")), (None, Ok(base), Ok(main)));
}

#[test]
fn base_commit_survives_garbage_collection_until_the_task_ends() {
    let repo = Repo::new();
    repo.git(&["commit", "-q", "--allow-empty", "-m", "a person's"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    repo.git(&["reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all"]);
    repo.git(&["gc", "-q", "--prune=now"]);
    assert!(git.exists(&base));
    assert_eq!(git.start("a", &base), git.tree_of(&base));
    git.forget_start("a");
    assert_eq!(repo.git(&["for-each-ref", "refs/muleteer"]), "");
}
