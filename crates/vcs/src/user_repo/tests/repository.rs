//! Repositories in odd states.

use crate::user_repo::tests::*;
use std::os::unix::fs::PermissionsExt;

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
    let missing = || repo.open().missing_in_clones(LfsContent::Absent);
    assert_eq!(missing(), none, "the task list is not work of a person");
    repo.write("kept.txt", "changed\n");
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    repo.write("new/a", "a\n");
    repo.write("new/b", "b\n");
    repo.write("ignored/c", "c\n");
    let found = missing();
    assert_eq!(found.uncommitted, ["kept.txt", "new/", "staged.txt"]);
    assert!(found.submodules.is_empty() && found.lfs.is_empty(), "{found:?}");

    repo.git(&["add", "."]);
    let head = repo.git(&["rev-parse", "HEAD"]);
    let module = format!("160000,{head},vendor/lib");
    repo.git(&["update-index", "--add", "--cacheinfo", &module]);
    repo.git(&["commit", "-q", "-m", "all"]);
    assert_eq!(missing().submodules, names(&["vendor/lib"]));
}

#[test]
fn large_files_whose_content_a_clone_gets_are_not_named() {
    let repo = Repo::new();
    let oid = muleteer_store::hash::sha256(b"content");
    repo.write(".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 7\n");
    repo.write("big.bin", &pointer);
    repo.write("plain.bin", "no pointer\n");
    repo.write("other.txt", &pointer);
    repo.git(&["add", "."]);
    repo.git(&["commit", "-q", "-m", "all"]);
    let programs = tempfile::tempdir().expect("a directory");
    let program = programs.path().join("git-lfs");
    std::fs::write(&program, "").expect("a program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it may run");
    let path = programs.path().to_str();
    let found = |content| repo.open().missing_in_clones(content).lfs;
    assert_eq!(found(LfsContent::Copied { path }), ["big.bin"], "its content is not here");
    let folder = format!("lfs/objects/{}/{}", &oid[..2], &oid[2..4]);
    let write = |place: &std::path::Path| {
        std::fs::create_dir_all(place.join(&folder)).expect("a directory");
        std::fs::write(place.join(&folder).join(&oid), "content").expect("a file");
    };
    write(&repo.dir.path().join(".git"));
    assert!(found(LfsContent::Copied { path }).is_empty());
    assert_eq!(found(LfsContent::Copied { path: Some("/nowhere") }), ["big.bin"]);
    assert_eq!(found(LfsContent::Absent), ["big.bin"]);
    let elsewhere = tempfile::tempdir().expect("a directory");
    let storage = elsewhere.path().join("lfs");
    repo.git(&["config", "lfs.storage", storage.to_str().expect("text")]);
    assert_eq!(found(LfsContent::Copied { path }), ["big.bin"]);
    write(elsewhere.path());
    assert!(found(LfsContent::Copied { path }).is_empty());
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}
