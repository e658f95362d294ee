//! Clones of agents in odd states.

use crate::spec_run::hub::tests::*;

/// Found by the crash campaign: between the two halves of a rebase HEAD is at commits that others
/// have pushed.
#[tokio::test]
async fn interrupted_rebase_is_saved_as_unpushed_work() {
    let stage = Stage::new().await;
    let dir = stage.worktrees().join("bead-two-1");
    worktree(&stage.repos, &dir, TARGET, Some("two"), false).await.unwrap();
    stage.commit(&dir, "two");
    let own = git_in(&dir, &["rev-parse", "HEAD"]);
    let other = git_in(&stage.bead("one").await, &["rev-parse", "HEAD"]);
    git_in(&dir, &["fetch", "--quiet", stage.hub().to_str().unwrap(), TARGET]);
    git_in(
        &dir,
        &[
            "-c",
            "sequence.editor=sed -i 1ibreak",
            "rebase",
            "--quiet",
            "--interactive",
            "FETCH_HEAD",
        ],
    );
    assert_eq!(git_in(&dir, &["rev-parse", "HEAD"]), other);
    let (_, done) = stage.after(&dir).await;
    assert_eq!((done.on_target, done.whole), (true, false));
    assert!(!was_pushed(&stage.repos, "two", TARGET).await.unwrap());
    assert_eq!(
        git_in(&stage.keep(), &["rev-parse", &format!("refs/muleteer/left/bead-two-1/{own}")]),
        own
    );
}

/// A real agent often begins with a pull. Commits that it pulls are not its own.
#[tokio::test]
async fn pulled_commits_are_foreign_and_rebased_pushed_ones_are_own() {
    let stage = Stage::new().await;
    let dir = stage.worktrees().join("bead-two-1");
    worktree(&stage.repos, &dir, TARGET, Some("two"), false).await.unwrap();
    stage.bead("one").await;
    let (hub, target) = (stage.hub(), format!("HEAD:{TARGET}"));
    let hub = hub.to_str().unwrap();
    git_in(&dir, &["pull", "--quiet", "--ff-only", hub, TARGET]);
    guard(&stage.repos, TARGET, None).await.unwrap();
    let pulled = work(&stage.repos, &dir, TARGET).await.unwrap();
    assert_eq!(pulled, Work { whole: false, ..Work::new(1, true) });
    assert!(!was_pushed(&stage.repos, "two", TARGET).await.unwrap());
    stage.commit(&dir, "two");
    stage.bead("three").await;
    git_in(&dir, &["pull", "--quiet", "--rebase", hub, TARGET]);
    git_in(&dir, &["push", "--quiet", hub, &target]);
    assert_eq!(stage.after(&dir).await, (None, Work::new(3, true)));
    assert!(was_pushed(&stage.repos, "two", TARGET).await.unwrap());
}

/// A power cut may empty the reflog that distinguishes an agent's commits from those of others.
#[tokio::test]
async fn agent_without_a_reflog_may_have_pushed() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    std::fs::write(dir.join(".git/logs/HEAD"), "").unwrap();
    std::fs::write(dir.join(".git/logs/refs/heads/bead-one"), "").unwrap();
    assert_eq!(stage.after(&dir).await, (None, Work { whole: false, ..Work::new(1, true) }));
    assert!(was_pushed(&stage.repos, "one", TARGET).await.unwrap());
    assert!(!was_pushed(&stage.repos, "on", TARGET).await.unwrap());
    // Or only the end of the log is lost, because the disk has the first writes.
    let dir = stage.bead("two").await;
    for log in ["logs/HEAD", "logs/refs/heads/bead-two"].map(|log| dir.join(".git").join(log)) {
        let text = std::fs::read_to_string(&log).unwrap();
        let (first, _) = text.split_once('\n').unwrap();
        std::fs::write(&log, format!("{first}\n")).unwrap();
    }
    assert_eq!(stage.after(&dir).await, (None, Work { whole: false, ..Work::new(1, true) }));
    assert!(was_pushed(&stage.repos, "two", TARGET).await.unwrap());
}

/// After a power cut the disk may have less of a clone than was written. Commits that can be read
/// whole are reused.
#[tokio::test]
async fn clone_after_a_reboot_is_recreated_with_its_commits() {
    let stage = Stage::new().await;
    let again =
        async |dir: &Path| worktree(&stage.repos, dir, TARGET, Some("one"), true).await.unwrap();
    let before = |dir: &Path| {
        let noted = stage.root.join("state/bases").join(dir.file_name().unwrap());
        let noted = std::fs::File::options().append(true).open(noted).unwrap();
        let long_ago =
            std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        noted.set_modified(long_ago).unwrap();
    };
    let dir = stage.bead("one").await;
    stage.commit(&dir, "more");
    let head = git_in(&dir, &["rev-parse", "HEAD"]);
    std::fs::write(dir.join("README.md"), "").unwrap();
    again(&dir).await;
    assert_eq!(std::fs::read(dir.join("README.md")).unwrap(), b"", "the machine has not been down");
    before(&dir);
    again(&dir).await;
    assert!(!crate::spec_run::clones::outlived_the_machine(&stage.repos, &dir));
    assert_eq!(again(&dir).await, None, "nothing is wrong with it");
    // The daemon was killed after it removed the clone and before it made the new one.
    std::fs::remove_dir_all(&dir).unwrap();
    again(&dir).await;
    assert_eq!(
        (git_in(&dir, &["rev-parse", "HEAD"]), git_in(&dir, &["status", "--porcelain"])),
        (head, String::new())
    );
    assert_eq!(git_in(&stage.keep(), &["show", "refs/muleteer/rescue/bead-one-1:README.md"]), "");
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    let done = work(&stage.repos, &dir, TARGET).await.unwrap();
    assert_eq!((done.commits, done.on_target), (2, true));

    // A clone that cannot be read is moved aside, not deleted.
    stage.commit(&dir, "lost");
    std::fs::remove_dir_all(dir.join(".git/objects")).unwrap();
    before(&dir);
    let fault = again(&dir).await.unwrap();
    assert!(fault.contains(dir.with_extension("broken").to_str().unwrap()), "{fault}");
    assert!(dir.with_extension("broken").join("lost").exists() && !dir.join("lost").exists());
    assert_eq!(std::fs::read(dir.join("more")).unwrap(), b"more");
}

#[tokio::test]
async fn unpushed_branch_is_reported_and_saved() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    git_in(&dir, &["checkout", "--quiet", "-b", "aside/more"]);
    stage.commit(&dir, "aside");
    let aside = git_in(&dir, &["rev-parse", "HEAD"]);
    git_in(&dir, &["checkout", "--quiet", "bead-one"]);
    git_in(&dir, &["pack-refs", "--all"]);
    assert_eq!(stage.after(&dir).await, (None, Work { whole: false, ..Work::new(1, true) }));
    assert_eq!(
        git_in(&stage.keep(), &["rev-parse", &format!("refs/muleteer/left/bead-one-1/{aside}")]),
        aside
    );
    assert!(was_pushed(&stage.repos, "one", TARGET).await.unwrap());
}

/// Branches beyond the limit are not saved, so the clone must stay.
#[tokio::test]
async fn clone_with_too_many_branches_is_kept() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let tree = git_in(&dir, &["rev-parse", "HEAD^{tree}"]);
    for at in 0..=50 {
        let commit = git_in(&dir, &["commit-tree", "-m", &at.to_string(), &tree]);
        git_in(&dir, &["branch", &format!("aside-{at}"), &commit]);
    }
    let work = work(&stage.repos, &dir, TARGET).await.unwrap();
    assert!(work.unreadable.is_some_and(|why| why.contains("branches")));
    assert!(discard(&stage.repos, &dir, TARGET).await.is_err() && dir.exists());
}

/// `git add` and `git status` run a git in each submodule, with the submodule's configuration.
#[tokio::test]
async fn nested_repository_of_a_clone_is_not_queried() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let (inner, trap) = (dir.join("inner"), stage.trap());
    std::fs::create_dir_all(&inner).unwrap();
    git_in(&inner, &["init", "--quiet"]);
    stage.commit(&inner, "file");
    git_in(&dir, &["add", "inner"]);
    git_in(&dir, &["commit", "--quiet", "--message=a submodule"]);
    git_in(&inner, &["config", "filter.p.clean", &trap]);
    git_in(&inner, &["config", "core.fsmonitor", &trap]);
    std::fs::write(inner.join(".gitattributes"), "* filter=p\n").unwrap();
    std::fs::write(inner.join("file"), "changed").unwrap();
    std::fs::write(dir.join("left"), "left\n").unwrap();
    stage.after(&dir).await;
    assert_eq!(git_in(&stage.keep(), &["show", "refs/muleteer/rescue/bead-one-1:left"]), "left");
}

/// Damage to an agent's own clone fails that agent's attempt only.
#[tokio::test]
async fn broken_clone_fails_its_agent() {
    let stage = Stage::new().await;
    for (name, broken) in [("one", "HEAD"), ("two", "objects")] {
        let dir = stage.bead(name).await;
        stage.commit(&dir, "more");
        std::fs::rename(dir.join(".git").join(broken), stage.root.join(format!("{name}-gone")))
            .unwrap();
        assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
        let work = work(&stage.repos, &dir, TARGET).await.unwrap();
        assert!(work.unreadable.is_some() && !work.on_target, "{broken}");
        // Nobody can know which commits it had pushed, so a later attempt need not repeat the work.
        assert!(was_pushed(&stage.repos, name, TARGET).await.unwrap(), "{broken}");
        assert!(discard(&stage.repos, &dir, TARGET).await.is_err());
        assert!(dir.join("more").exists(), "what is nowhere else stays");
    }
    // This agent cannot have pushed anything, because the target has no new commits.
    let dir = stage.worktrees().join("bead-four-1");
    worktree(&stage.repos, &dir, TARGET, Some("four"), false).await.unwrap();
    std::fs::remove_file(dir.join(".git/HEAD")).unwrap();
    assert!(work(&stage.repos, &dir, TARGET).await.unwrap().unreadable.is_some());
    assert!(!was_pushed(&stage.repos, "four", TARGET).await.unwrap());
    // A foreign repository in the clone's place is not read.
    let dir = stage.bead("three").await;
    std::fs::rename(dir.join(".git"), stage.root.join("moved")).unwrap();
    symlink(stage.root.join("moved"), dir.join(".git")).unwrap();
    assert_eq!(work(&stage.repos, &dir, TARGET).await.unwrap(), Work::new(0, true));
    let kept = discard(&stage.repos, &dir, TARGET).await.unwrap().unwrap();
    assert_eq!(git_in(&stage.keep(), &["show", &format!("{kept}:three")]), "three");
}
