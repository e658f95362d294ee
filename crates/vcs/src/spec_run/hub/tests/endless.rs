//! Files of an agent that make a reader hang or crash.

use crate::spec_run::hub::tests::*;
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// Less than the time that a git which reads a pipe would get.
const AT_ONCE: Duration = Duration::from_secs(15);
const SPARSE: u64 = 300 << 30;

fn pipe(path: &Path) {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).unwrap();
    }
    drop(std::fs::remove_file(path));
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn sparse(path: &Path) {
    std::fs::File::create(path).unwrap().set_len(SPARSE).unwrap();
}

/// A pipe without a writer once held the lock of the whole run for half an hour.
#[tokio::test]
async fn pipe_in_a_git_directory_is_reported_immediately() {
    for name in [
        "objects/info/alternates",
        "HEAD",
        "refs/heads/bead-one",
        "packed-refs",
        "shallow",
        "config",
    ] {
        let stage = Stage::new().await;
        let dir = stage.bead("one").await;
        stage.commit(&dir, "more");
        pipe(&dir.join(".git").join(name));
        let began = Instant::now();
        let looked = work(&stage.repos, &dir, TARGET).await;
        assert!(began.elapsed() < AT_ONCE, "{name}: {:?}", began.elapsed());
        let why = looked.unwrap().unreadable;
        // The harness reads only regular files where it needs no git.
        assert!(
            why.as_ref().is_none_or(|why| why.contains("is not a regular file")),
            "{name}: {why:?}"
        );
        if name.starts_with("objects") {
            assert!(why.is_some_and(|why| why.contains(name)));
        }
        // Other agents are served meanwhile.
        assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None, "{name}");
    }
}

#[tokio::test]
async fn pipe_in_the_hub_is_replaced_immediately() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    guard(&stage.repos, TARGET, None).await.unwrap();
    stage.commit(&dir, "two");
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    pipe(&stage.hub().join("objects/info/alternates"));
    let began = Instant::now();
    guard(&stage.repos, TARGET, None).await.unwrap();
    assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
    assert!(stage.hub().join("objects/info/alternates").metadata().unwrap().is_file());
}

/// Git reads every byte that a file claims to have.
#[tokio::test]
async fn oversized_files_are_named_and_others_are_saved() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    work(&stage.repos, &dir, TARGET).await.unwrap();
    std::fs::write(dir.join("small"), "small\n").unwrap();
    sparse(&dir.join("a, large one"));
    // This file is tracked.
    sparse(&dir.join("one"));
    assert!(is_dirty(&stage.repos, &dir).await.unwrap());
    let why = discard(&stage.repos, &dir, TARGET).await.unwrap_err().to_string();
    for part in ["a, large one (307200 MiB)", "one (307200 MiB)", "refs/muleteer/rescue/bead-one-1"]
    {
        assert!(why.contains(part), "{part} in {why}");
    }
    let kept = ["ls-tree", "--name-only", "refs/muleteer/rescue/bead-one-1"];
    assert_eq!(git_in(&stage.keep(), &kept), "README.md\none\nsmall");
    assert_eq!(git_in(&stage.keep(), &["show", "refs/muleteer/rescue/bead-one-1:one"]), "one");
    assert!(dir.join("a, large one").exists(), "it is nowhere else");
    for name in ["a, large one", "one"] {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    discard(&stage.repos, &dir, TARGET).await.unwrap();
    assert!(!dir.exists());
}

/// A file name that is not UTF-8 or begins with a space was invisible to the harness, but not to
/// git.
#[tokio::test]
async fn files_too_large_of_any_name_and_number_are_left_out() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    work(&stage.repos, &dir, TARGET).await.unwrap();
    sparse(&dir.join(" big"));
    sparse(&dir.join(OsStr::from_bytes(b"\xff")));
    (0..101).for_each(|n| sparse(&dir.join(format!("f{n}"))));
    std::fs::write(dir.join("small"), "small\n").unwrap();
    assert!(is_dirty(&stage.repos, &dir).await.unwrap());
    let why = discard(&stage.repos, &dir, TARGET).await.unwrap_err().to_string();
    assert!(why.contains("and 98 more") && dir.join(" big").exists(), "{why}");
    let kept = ["ls-tree", "--name-only", "refs/muleteer/rescue/bead-one-1"];
    assert_eq!(git_in(&stage.keep(), &kept), "README.md\none\nsmall");
}

/// The length proves nothing about a file that is as long as the committed one.
#[tokio::test]
async fn changed_large_tracked_file_keeps_its_clone() {
    const BYTES: u64 = (16 << 20) + 1;
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let path = dir.join("large");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(BYTES).unwrap();
    git_in(&dir, &["add", "large"]);
    git_in(&dir, &["commit", "--quiet", "--message", "large"]);
    work(&stage.repos, &dir, TARGET).await.unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"changed", BYTES / 2).unwrap();
    let why = discard(&stage.repos, &dir, TARGET).await.unwrap_err().to_string();
    assert!(why.contains("large (16 MiB)") && path.exists(), "{why}");
    // With its committed content the file is saved already.
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 7], BYTES / 2).unwrap();
    discard(&stage.repos, &dir, TARGET).await.unwrap();
    assert!(!dir.exists());
}

/// A git in the clone that watches its files listens on a socket, which makes no reader hang.
#[tokio::test]
async fn socket_in_a_clones_git_directory_is_accepted() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    stage.commit(&dir, "more");
    let socket = dir.join(".git/fsmonitor--daemon.ipc");
    let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let looked = work(&stage.repos, &dir, TARGET).await.unwrap();
    assert_eq!((looked.unreadable, looked.commits), (None, 2));
}

/// A tree of many thousand levels overflowed the stack of each daemon that removed it.
#[tokio::test]
async fn deeply_nested_clone_is_removed() {
    const LEVELS: usize = 15_000;
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(&dir, flags, Mode::empty()).unwrap();
    for _ in 0..LEVELS {
        mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    discard(&stage.repos, &dir, TARGET).await.unwrap();
    assert!(!dir.exists());
    assert_eq!(std::fs::read_dir(stage.worktrees()).unwrap().count(), 0);
}

/// One such file kept all others from being saved, or hid whether any of them had changed.
#[tokio::test]
async fn unconvertible_file_is_saved_byte_for_byte() {
    const ODD: &[u8] = b"\x00odd\r\nline\nend\xff";
    for attributes in [
        "*.txt working-tree-encoding=UTF-16\n",
        "*.txt working-tree-encoding=none-such\n",
        "* working-tree-encoding\n",
        "* text eol=crlf\n*.txt working-tree-encoding\n",
    ] {
        let stage = Stage::new().await;
        let dir = stage.bead("one").await;
        work(&stage.repos, &dir, TARGET).await.unwrap();
        std::fs::write(dir.join(".gitattributes"), attributes).unwrap();
        std::fs::write(dir.join("one"), "two").unwrap();
        std::fs::write(dir.join("odd.txt"), ODD).unwrap();
        (0..10).for_each(|n| std::fs::write(dir.join(format!("new{n}")), "new\n").unwrap());
        assert!(is_dirty(&stage.repos, &dir).await.unwrap());
        let kept = discard(&stage.repos, &dir, TARGET).await.unwrap().unwrap();
        assert!(!dir.exists());
        let mut show = Command::new("git");
        show.arg("-C").arg(stage.keep()).args(["cat-file", "blob", &format!("{kept}:odd.txt")]);
        assert_eq!(show.output().unwrap().stdout, ODD, "{attributes}");
        let names = git_in(&stage.keep(), &["ls-tree", "--name-only", &kept]);
        assert_eq!(
            names.lines().filter(|name| name.starts_with("new")).count(),
            10,
            "{attributes}: {names}"
        );
        assert_eq!(git_in(&stage.keep(), &["show", &format!("{kept}:one")]), "two");
    }
}

#[tokio::test]
async fn clone_with_more_untracked_names_than_are_read_is_dirty_and_stays() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let long = "n".repeat(240);
    (0..4500).for_each(|n| drop(std::fs::File::create(dir.join(format!("{long}{n}"))).unwrap()));
    assert!(is_dirty(&stage.repos, &dir).await.unwrap());
    let why = discard(&stage.repos, &dir, TARGET).await.unwrap_err().to_string();
    assert!(why.contains("too many untracked files to list") && dir.exists(), "{why}");
    assert_eq!(commit(&stage.repos, TARGET).await.unwrap(), git_in(&dir, &["rev-parse", "HEAD~1"]));
}

/// Some tools disable hooks with such links.
#[tokio::test]
async fn links_to_dev_null_are_accepted_and_to_other_devices_rejected() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    std::fs::create_dir_all(dir.join(".git/hooks")).unwrap();
    symlink("/dev/null", dir.join(".git/hooks/pre-commit")).unwrap();
    symlink("pre-commit", dir.join(".git/hooks/commit-msg")).unwrap();
    assert_eq!(private_repo::check_files(&dir.join(".git")), Ok(()));
    stage.commit(&dir, "more");
    assert_eq!(work(&stage.repos, &dir, TARGET).await.unwrap(), Work::new(2, false));
    symlink("/dev/zero", dir.join(".git/hooks/post-commit")).unwrap();
    let why = private_repo::check_files(&dir.join(".git")).unwrap_err().to_string();
    assert!(why.contains("hooks/post-commit"), "{why}");
}
