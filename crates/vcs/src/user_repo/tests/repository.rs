//! Repositories in odd states.

use crate::user_repo::tests::*;

#[test]
fn missing_repository_and_missing_commit_are_different_errors() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(matches!(Git::open(dir.path()), Err(GitError::NoRepository(_))));
    run(
        {
            let mut c = helper("git");
            c.arg("-C").arg(dir.path()).args(["init", "-q"]);
            c
        },
        b"",
        "init",
    )
    .expect("inits");
    assert!(matches!(Git::open(dir.path()), Err(GitError::NoCommit(_))));
}

#[test]
fn empty_index_is_rebuilt() {
    let repo = Repo::new();
    let git = repo.open();
    assert!(!git.mend_index().expect("nothing to do"));
    repo.write(".git/index", "");
    let broken = Git::open(repo.dir.path()).expect("a repository");
    broken.snapshot().expect("works before the repair");
    assert!(git.mend_index().expect("mends"));
    assert_eq!(repo.git(&["status", "--porcelain", "--untracked-files=no"]), "");
}

/// A killed agent leaves the locks of its git, and nobody else would remove them.
#[test]
fn lock_of_a_dead_git_is_removed() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("task-001", &base).expect("saves");
    repo.write("kept.txt", "changed\n");
    let lock = repo.dir.path().join(".git/index.lock");
    std::fs::write(&lock, "").expect("a lock");
    let living = LivingGit::new(&repo);
    let error = git
        .roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect_err("the running git may hold it");
    assert!(error.lock().as_deref() == Some(lock.as_path()) && lock.exists(), "{error}");
    drop(living);
    git.roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(!lock.exists());
    assert_eq!(repo.read("kept.txt").as_deref(), Some("kept\n"));
}

#[test]
fn missing_repository_is_not_a_detached_head() {
    let repo = Repo::new();
    let git = repo.open();
    assert_eq!(git.stands_on(), Ok(Some("main".into())));
    repo.git(&["tag", "main"]);
    assert_eq!(git.stands_on(), Ok(Some("main".into())), "although a tag has its name");
    repo.git(&["checkout", "-q", "--detach"]);
    assert_eq!(git.stands_on(), Ok(None));
    std::fs::remove_dir_all(repo.dir.path().join(".git")).expect("it goes");
    assert!(git.stands_on().is_err());
}

#[test]
fn files_that_a_clone_lacks_are_named() {
    let repo = Repo::new();
    let none = MissingInClones::default();
    assert_eq!(repo.open().missing_in_clones(), none, "the task list is not work of a person");
    repo.write("kept.txt", "changed\n");
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    repo.write("new/a", "a\n");
    repo.write("new/b", "b\n");
    repo.write("ignored/c", "c\n");
    let missing = repo.open().missing_in_clones();
    assert_eq!(missing.uncommitted, ["kept.txt", "new/", "staged.txt"]);
    assert!(missing.submodules.is_empty() && missing.lfs.is_empty(), "{missing:?}");

    repo.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    repo.write("big.bin", "version https://git-lfs.github.com/spec/v1\n");
    repo.git(&["add", "."]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    let module = format!("160000,{head},vendor/lib");
    repo.git(&["update-index", "--add", "--cacheinfo", &module]);
    repo.git(&["commit", "-q", "-m", "all"]);
    let missing = repo.open().missing_in_clones();
    assert_eq!((missing.lfs, missing.submodules), (names(&["big.bin"]), names(&["vendor/lib"])));
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}
