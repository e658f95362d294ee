//! The clones of concurrent workers.

use crate::user_repo::tests::*;

#[test]
fn clone_is_rebased_and_landed_and_a_conflict_changes_nothing() {
    let repo = Repo::new();
    let git = repo.open();
    let dirs: Vec<_> =
        [1, 2, 3].map(|n| repo.dir.path().join(format!(".muleteer/worktrees/tasks/{n}"))).into();
    let clones: Vec<_> =
        dirs.iter().map(|dir| git.prepare_clone(dir, "main").expect("a clone")).collect();
    for clone in &clones {
        clone.reset_clone(&git, "main").expect("at the tip");
    }
    let work = |at: usize, file: &str, text: &str| {
        std::fs::write(dirs[at].join(file), text).expect("a file");
        let base = clones[at].head().expect("head");
        let start = clones[at].start("t", &base).expect("start");
        clones[at].commit(&start, &format!("work {at}")).expect("commits").expect("something");
    };
    work(0, "one.txt", "1\n");
    work(1, "two.txt", "2\n");
    work(2, "one.txt", "other\n");
    let tip = clones[0].rebase(&git, "main").expect("rebases");
    assert!(git.land(&clones[0], "main", &tip).expect("lands"));
    assert_eq!(repo.read("one.txt").as_deref(), Some("1\n"), "the person's checkout follows");
    assert!(!git.land(&clones[1], "main", &tip).expect("the tip has moved"));
    let tip = clones[1].rebase(&git, "main").expect("rebases");
    assert!(git.land(&clones[1], "main", &tip).expect("lands"));
    let before = clones[2].head().expect("head");
    assert!(clones[2].rebase(&git, "main").is_err(), "both wrote one.txt");
    assert_eq!(clones[2].head().expect("head"), before);
    assert_eq!(repo.git(&["log", "--format=%s"]), "work 1\nwork 0\nstart");

    let base = git.tip("main").expect("tip");
    let base_of_clone = repo.git(&["rev-list", "--max-parents=0", "main"]);
    let saved = clones[2]
        .roll_back("t", &base_of_clone, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    let name = git.adopt(&clones[2], &saved).expect("comes home");
    assert_eq!(repo.git(&["show", &format!("{name}:one.txt")]), "other");
    assert_eq!(git.adopt(&clones[2], &saved).expect("again"), name);
    assert_eq!(git.tip("main").expect("tip"), base);
}

/// git converts a file again when its time stamp differs from the index, takes the file for changed
/// if that fails, and then refuses to rebase.
#[test]
fn file_that_git_cannot_convert_does_not_stop_a_rebase() {
    for conflicts in [false, true] {
        let repo = Repo::new();
        let git = repo.open();
        let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
        let clone = git.prepare_clone(&dir, "main").expect("a clone");
        let base = clone.reset_clone(&git, "main").expect("at the tip");
        let odd = dir.join("odd.txt");
        let attributes = "*.txt text eol=crlf working-tree-encoding=UTF-16\n*.csv text eol=crlf\n";
        std::fs::write(dir.join(".gitattributes"), attributes).expect("a file");
        std::fs::write(&odd, b"odd\n\xff").expect("a file");
        std::fs::write(dir.join("lines.csv"), b"a\r\nb\r\n").expect("a file");
        std::fs::write(dir.join("shared"), b"ours\n").expect("a file");
        let start = clone.start("t", &base).expect("start");
        clone.commit(&start, "work").expect("commits").expect("something");
        let before = clone.head().expect("head");
        make_old(&odd);
        repo.write(if conflicts { "shared" } else { "other" }, "theirs\n");
        repo.git(&["add", "--all"]);
        repo.git(&["commit", "-qm", "meanwhile"]);
        let rebased = clone.rebase(&git, "main");
        let lines = std::fs::read(dir.join("lines.csv")).expect("a file");
        assert_eq!(lines, b"a\r\nb\r\n", "the attributes are respected again");
        if conflicts {
            assert!(rebased.is_err(), "both wrote the same file");
            assert_eq!(clone.head().expect("head"), before);
            continue;
        }
        assert!(git.land(&clone, "main", &rebased.expect("rebases")).expect("lands"));
        assert_eq!(repo.git(&["log", "--format=%s"]), "work\nmeanwhile\nstart");
        let blob = repo.git(&["rev-parse", "HEAD:odd.txt"]);
        let committed = clone.git(&["rev-parse", &format!("{before}:odd.txt")]);
        assert_eq!(blob, committed.expect("a blob"));
    }
}

/// The clone's own index is empty while it is rebased without attributes.
#[test]
fn rebase_without_attributes_that_was_killed_is_repeated() {
    let repo = Repo::new();
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    let base = clone.reset_clone(&git, "main").expect("at the tip");
    std::fs::write(dir.join(".gitattributes"), "*.csv text eol=crlf\n").expect("a file");
    std::fs::write(dir.join("lines.csv"), b"a\r\nb\r\n").expect("a file");
    let start = clone.start("t", &base).expect("start");
    clone.commit(&start, "work").expect("commits").expect("something");
    repo.write("other", "theirs\n");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "-qm", "meanwhile"]);
    clone.git(&["read-tree", "--empty"]).expect("an empty index");
    std::fs::write(dir.join("lines.csv"), b"a\nb\n").expect("an unconverted file");
    assert_eq!(clone.uncommitted_since(&start).expect("compares"), None);
    let tip = clone.rebase(&git, "main").expect("rebases");
    assert_eq!(std::fs::read(dir.join("lines.csv")).expect("a file"), b"a\r\nb\r\n");
    assert!(git.land(&clone, "main", &tip).expect("lands"));
    assert_eq!(repo.git(&["log", "--format=%s"]), "work\nmeanwhile\nstart");
}

/// The clone's configuration is its agent's, so a merge driver there would run outside of the
/// agent's sandbox. git's own merge replaces it.
#[test]
fn merge_driver_of_a_clone_is_not_run() {
    let repo = Repo::new();
    repo.write("list.txt", "a\nb\nc\nd\ne\nf\ng\n");
    repo.git(&["add", "list.txt"]);
    repo.git(&["commit", "-qm", "a list"]);
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    let base = clone.reset_clone(&git, "main").expect("at the tip");
    let ran = repo.dir.path().join("ran");
    let driver = format!("touch {}; cp %B %A", ran.display());
    clone.git(&["config", "merge.an agent's.own.driver", &driver]).expect("configured");
    clone.git(&["config", "merge.default", "an agent's.own"]).expect("configured");
    std::fs::write(dir.join("list.txt"), "A\nb\nc\nd\ne\nf\ng\n").expect("a file");
    let start = clone.start("t", &base).expect("start");
    clone.commit(&start, "work").expect("commits").expect("something");
    repo.write("list.txt", "a\nb\nc\nd\ne\nf\nG\n");
    repo.git(&["commit", "-qam", "meanwhile"]);
    let tip = clone.rebase(&git, "main").expect("rebases");
    assert!(!ran.exists(), "the agent's program was run");
    assert!(git.land(&clone, "main", &tip).expect("lands"));
    assert_eq!(
        repo.read("list.txt").as_deref(),
        Some("A\nb\nc\nd\ne\nf\nG\n"),
        "both changes are merged"
    );
}

/// Sets a modification time before the start of the machine.
fn make_old(path: &Path) {
    let file = std::fs::File::options().append(true).open(path).expect("a file");
    file.set_modified(
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000),
    )
    .expect("its time");
}

/// A person may work on the list in a linked worktree. A worker never does.
#[test]
fn linked_worktree_opens_as_a_copy_and_not_as_a_clone() {
    let repo = Repo::new();
    let place = tempfile::tempdir().expect("a directory");
    let linked = place.path().join("linked");
    repo.git(&["worktree", "add", "-q", "-b", "topic", &linked.display().to_string()]);
    let git = repo.open();
    let copy = Git::open_copy(&linked, &git).expect("a copy");
    assert_eq!(copy.branch().as_deref(), Some("topic"));
    assert!(Git::open_clone(&linked, &git).is_err());
}

/// The agent of a clone can write its configuration and its `.git`. Both can name a directory of
/// the person, where a reset and a clean destroy work.
#[test]
fn clone_that_leads_elsewhere_changes_nothing_there() {
    for early in [true, false] {
        for by_file in [true, false] {
            let (repo, victim) = (Repo::new(), Repo::new());
            victim.write("kept.txt", "changed by a person\n");
            victim.write("new.txt", "not committed\n");
            let git = repo.open();
            let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
            let clone = git.prepare_clone(&dir, "main").expect("a clone");
            let before = victim.git(&["rev-parse", "--symbolic-full-name", "HEAD"]);
            if by_file {
                std::fs::rename(dir.join(".git"), dir.join("old")).expect("its git directory");
                let named = victim.dir.path().join(".git");
                std::fs::write(dir.join(".git"), format!("gitdir: {}\n", named.display()))
                    .expect("a file");
            } else {
                let config = format!("[core]\n\tworktree = {}\n", victim.dir.path().display());
                let path = dir.join(".git/config");
                let old = std::fs::read_to_string(&path).expect("its configuration");
                std::fs::write(&path, old + &config).expect("a file");
            }
            // A worker opens its clone once, and its agent may change the clone before or after.
            if early {
                let again = git.prepare_clone(&dir, "main");
                assert!(again.is_err(), "by a file: {by_file}");
                let why = git.renew_clone(&dir, "main", "main").expect("a new clone");
                assert!(why.is_some_and(|why| why.contains("put aside")));
            } else {
                drop(clone.reset_clone(&git, "main"));
            }
            assert_eq!(victim.read("kept.txt").as_deref(), Some("changed by a person\n"));
            assert_eq!(victim.read("new.txt").as_deref(), Some("not committed\n"));
            assert_eq!(victim.git(&["rev-parse", "--symbolic-full-name", "HEAD"]), before);
        }
    }
}

/// git searches the parent directories for a repository. It would find the person's own, and the
/// worker would discard the files there.
#[test]
fn broken_clone_is_not_mistaken_for_the_repository_around_it() {
    let repo = Repo::new();
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    repo.write("notes.txt", "a person's\n");
    std::fs::write(dir.join(".git/HEAD"), "").expect("as a power cut leaves it");
    assert!(matches!(Git::open_clone(&dir, &git), Err(GitError::NoRepository(_))));
    assert!(git.prepare_clone(&dir, "main").is_err() && clone.reset_clone(&git, "main").is_err());
    assert!(clone.rebase(&git, "main").is_err() && clone.head().is_err());
    assert_eq!(repo.git(&["branch", "--format=%(refname:short)"]), "main");
    assert_eq!(repo.read("notes.txt").as_deref(), Some("a person's\n"));
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{}"));
    std::fs::write(dir.join("work.txt"), "half done\n").expect("a file");
    let (aside, _) = git.mend_clone(&dir, "main").expect("mends").expect("it is moved aside");
    assert_eq!(std::fs::read_to_string(aside.join("work.txt")).expect("kept"), "half done\n");
    assert!(!dir.exists() && git.mend_clone(&dir, "main").expect("mends").is_none());
    let another = git.prepare_clone(&dir, "main").expect("another");
    let again = || git.prepare_clone(&dir, "main").expect("the same").is_made_anew();
    assert!(
        another.is_made_anew() && again(),
        "the next daemon gets the same answer if this one is killed now"
    );
    another.reset_clone(&git, "main").expect("at the tip");
    assert!(!again(), "a task has begun there");
    std::fs::write(dir.join(".git/HEAD"), "").expect("once more");
    let (second, _) = git.mend_clone(&dir, "main").expect("mends").expect("it is moved aside");
    assert!(
        second.exists() && aside.join("work.txt").exists(),
        "{} and {}",
        second.display(),
        aside.display()
    );
}

#[test]
fn clone_after_a_power_cut_is_repaired_or_moved_aside() {
    let repo = Repo::new();
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    clone.reset_clone(&git, "main").expect("at the tip");
    let mend = || git.mend_clone(&dir, "main").expect("mends");
    for lock in ["HEAD.lock", "refs/heads/muleteer/work.lock"] {
        let lock = dir.join(".git").join(lock);
        std::fs::write(&lock, "").expect("a lock");
        assert!(mend().is_none() && lock.exists(), "a running git may have made it");
        make_old(&lock);
        assert!(mend().is_none() && !lock.exists());
    }
    std::fs::write(dir.join(".git/index"), "").expect("no index");
    assert!(mend().is_none());
    assert_eq!(clone.uncommitted(), "");
    std::fs::write(dir.join("kept.txt"), "").expect("emptied");
    assert!(mend().is_none());
    assert_eq!(
        std::fs::read_to_string(dir.join("kept.txt")).expect("a file"),
        "",
        "the agent may have emptied it"
    );
    make_old(&dir.join("kept.txt"));
    assert!(mend().is_none());
    assert_eq!(std::fs::read_to_string(dir.join("kept.txt")).expect("a file"), "kept\n");
    // A commit of the agent lost an object, so the clone is unusable.
    let start = clone.start("t", "HEAD").expect("start");
    std::fs::write(dir.join("new.txt"), "work\n").expect("a file");
    clone.commit(&start, "work").expect("commits").expect("something");
    assert!(mend().is_none());
    let blob = clone.git(&["rev-parse", "HEAD:new.txt"]).expect("a blob");
    let object = dir.join(".git/objects").join(&blob[..2]).join(&blob[2..]);
    std::fs::remove_file(&object).expect("an object");
    std::fs::write(&object, "").expect("as a power cut leaves it");
    let (_, why) = mend().expect("it is moved aside");
    assert!(why.to_string().contains("missing"), "{why}");
}

/// An agent may be running in the clone. If git cannot be started now, that proves nothing against
/// the clone.
#[test]
fn clone_stays_if_git_could_not_run() {
    let unheard =
        GitError::Unheard { what: "git rev-parse".into(), said: "Too many open files".into() };
    assert_eq!(unheard.clone().meaning(GitError::NoCommit("/c".into())), unheard);
    let said =
        GitError::Failed { what: "git rev-parse".into(), said: "not a git repository".into() };
    assert_eq!(
        said.meaning(GitError::NoRepository("/c".into())),
        GitError::NoRepository("/c".into())
    );
    let mut nothing = helper("/nowhere/git");
    nothing.arg("status");
    assert!(matches!(run(nothing, b"", "status"), Err(GitError::Unheard { .. })));
}

#[test]
fn clone_that_its_agent_broke_is_recreated_and_the_old_one_moved_aside() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    clone.reset_clone(&git, "main").expect("at the tip");
    repo.git(&["commit", "-q", "--allow-empty", "-m", "by another worker"]);
    assert_eq!(git.renew_clone(&dir, "main", &base), Ok(None), "nothing is wrong with it");
    for broken in [".git", ".git/HEAD", ""] {
        std::fs::write(dir.join("work.txt"), "w\n").expect("work");
        let at = dir.join(broken);
        let gone =
            if at.is_dir() { std::fs::remove_dir_all(&at) } else { std::fs::remove_file(&at) };
        gone.expect("it goes");
        let why = git.renew_clone(&dir, "main", &base).expect("renews").expect("it was broken");
        match why.split_once("put aside as ") {
            Some((_, aside)) => {
                assert_eq!(repo.read(&format!("{aside}/work.txt")).as_deref(), Some("w\n"), "{why}")
            }
            None => assert_eq!((broken, why.as_str()), ("", "its clone is gone")),
        }
        assert_eq!((clone.head(), clone.exists(&base)), (Ok(base.clone()), true), "{broken}");
        assert!(!dir.join("work.txt").exists() && dir.join("kept.txt").exists());
        assert_eq!(
            clone.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()),
            Ok(None)
        );
    }
    assert_eq!(repo.git(&["log", "-1", "--format=%s"]), "by another worker");
}
