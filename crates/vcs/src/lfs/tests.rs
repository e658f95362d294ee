//! Tests with stores that are made by hand: git-lfs itself does not run.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::lfs::*;
use crate::spec_run::clones::{discard, is_dirty, work, worktree};
use crate::spec_run::{RunPaths, RunRepos, hub, publish};
use crate::worktree::{Homecoming, NewClone, ensure};
use muleteer_model::dispatch::work::WorkHome;
use muleteer_store::hash::sha256;
use std::os::unix::fs::symlink;

const ID: &str = "abcd2345";
const BRANCH: &str = "muleteer/abcd2345";
const RUN: &str = "run-2026-01-01-abcdef";
const TARGET: &str = "muleteer/run-2026-01-01-abcdef";

fn git_in(dir: &Path, args: &[&str]) -> String {
    let settings = ["user.name=a", "user.email=a@example.invalid", "init.defaultBranch=main"];
    // The filter that the clone names is a program that only fails.
    let filter = ["filter.lfs.process=", "filter.lfs.clean=", "filter.lfs.required=false"];
    let settings = settings.iter().chain(&filter).flat_map(|setting| ["-c", *setting]);
    let output =
        std::process::Command::new("git").arg("-C").arg(dir).args(settings).args(args).output();
    let output = output.unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

fn pointer_to(content: &[u8]) -> Pointer {
    Pointer { oid: sha256(content), size: content.len() as u64, is_plain: true }
}

fn text_of(pointer: &Pointer) -> String {
    let Pointer { oid, size, .. } = pointer;
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n")
}

fn object(git_dir: &Path, pointer: &Pointer) -> PathBuf {
    let oid = &pointer.oid;
    git_dir.join("lfs/objects").join(&oid[..2]).join(&oid[2..4]).join(oid)
}

/// Puts an object into a git directory, as git-lfs does.
fn store(git_dir: &Path, pointer: &Pointer, content: &[u8]) {
    let path = object(git_dir, pointer);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Commits a file of git-lfs in a working directory, and leaves its content there.
fn commit(dir: &Path, name: &str, content: &[u8]) {
    let pointer = pointer_to(content);
    std::fs::write(dir.join(name), text_of(&pointer)).unwrap();
    git_in(dir, &["add", name]);
    git_in(dir, &["commit", "--quiet", "--message", name]);
    std::fs::write(dir.join(name), content).unwrap();
    store(&dir.join(".git"), &pointer, content);
}

struct Stage {
    _dir: tempfile::TempDir,
    root: PathBuf,
    /// The `PATH` of an agent that finds git-lfs.
    path: String,
}

impl Stage {
    /// Makes a person's repository with the file `a.bin`, which git-lfs keeps.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let programs = root.join("programs");
        for folder in ["project", "state", "programs"] {
            std::fs::create_dir(root.join(folder)).unwrap();
        }
        std::fs::write(programs.join("git-lfs"), "#!/bin/sh\nexit 1\n").unwrap();
        std::fs::set_permissions(programs.join("git-lfs"), PermissionsExt::from_mode(0o755))
            .unwrap();
        let stage = Self { _dir: dir, path: programs.display().to_string(), root };
        let project = stage.project();
        git_in(&project, &["init", "--quiet"]);
        let attributes = "*.bin filter=lfs diff=lfs merge=lfs -text\n";
        std::fs::write(project.join(".gitattributes"), attributes).unwrap();
        std::fs::write(project.join("plain"), text_of(&pointer_to(b"no file of git-lfs"))).unwrap();
        git_in(&project, &["add", "."]);
        commit(&project, "a.bin", b"content of a");
        stage
    }

    fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    fn clone(&self) -> PathBuf {
        self.root.join("clone")
    }

    async fn dispatch(&self, path: Option<&str>) -> Option<String> {
        let new = NewClone { id: ID, branch: BRANCH, has_email: false, path };
        ensure(&self.project(), &self.clone(), new).await.unwrap()
    }

    async fn bring(&self) -> WorkHome {
        self.bring_before(false).await
    }

    /// Brings the work home, and all objects if the clone is about to be removed.
    async fn bring_before(&self, removal: bool) -> WorkHome {
        let (project, clone) = (self.project(), self.clone());
        let base = git_in(&project, &["rev-parse", "main"]);
        let home = Homecoming {
            project: &project,
            clone: &clone,
            id: ID,
            base: Some(&base),
            branch: BRANCH,
            before: None,
            stop: &CancellationToken::new(),
        };
        if removal { home.bring_last().await.unwrap() } else { home.bring().await.unwrap() }
    }

    fn repos(&self) -> RunRepos {
        let paths = RunPaths { private: self.root.join("state") };
        let mut repos = RunRepos::new(RUN, self.project(), paths, CancellationToken::new());
        repos.path = Some(self.path.clone());
        repos
    }
}

#[tokio::test]
async fn clone_has_the_content_of_files_that_git_lfs_keeps() {
    let stage = Stage::new();
    assert_eq!(stage.dispatch(Some(&stage.path)).await, None);
    let read = |name: &str| std::fs::read(stage.clone().join(name)).unwrap();
    assert_eq!(read("a.bin"), b"content of a");
    assert_eq!(read("plain"), text_of(&pointer_to(b"no file of git-lfs")).into_bytes());
    let own = object(&stage.clone().join(".git"), &pointer_to(b"content of a"));
    std::fs::write(own, "an agent writes here").unwrap();
    let of_person = object(&stage.project().join(".git"), &pointer_to(b"content of a"));
    assert_eq!(std::fs::read(of_person).unwrap(), b"content of a");
    let clean = git_in(&stage.clone(), &["config", "--local", "filter.lfs.required"]);
    assert_eq!(clean, "true");
    // Nobody has changed a file.
    let work = stage.bring().await;
    assert!(work.is_nothing(), "{work:?}");
}

#[tokio::test]
async fn clone_without_git_lfs_or_content_has_pointers_and_a_message() {
    let stage = Stage::new();
    let said = stage.dispatch(Some("/nowhere")).await.unwrap();
    assert!(
        said.contains("in place of a.bin: git-lfs, which keeps their content, is not installed"),
        "{said}"
    );
    let read = |name: &str| std::fs::read_to_string(stage.clone().join(name)).unwrap();
    assert_eq!(read("a.bin"), text_of(&pointer_to(b"content of a")));
    assert!(stage.bring().await.is_nothing());
    let lacking = Stage::new();
    std::fs::remove_dir_all(lacking.project().join(".git/lfs")).unwrap();
    let said = lacking.dispatch(Some(&lacking.path)).await.unwrap();
    assert!(said.contains("in place of a.bin: their content is not on this machine"), "{said}");
}

#[tokio::test]
async fn store_that_a_person_chose_is_used() {
    let stage = Stage::new();
    let project = stage.project();
    std::fs::rename(project.join(".git/lfs"), stage.root.join("elsewhere")).unwrap();
    let elsewhere = stage.root.join("elsewhere").display().to_string();
    git_in(&project, &["config", "lfs.storage", &elsewhere]);
    assert_eq!(stage.dispatch(Some(&stage.path)).await, None);
    commit(&stage.clone(), "b.bin", b"content of b");
    assert_eq!(stage.bring().await.skipped, Vec::<String>::new());
    let name = object(Path::new(""), &pointer_to(b"content of b"));
    let name = name.strip_prefix("lfs").unwrap();
    assert_eq!(std::fs::read(stage.root.join("elsewhere").join(name)).unwrap(), b"content of b");
}

#[tokio::test]
async fn objects_of_an_agents_commits_come_home() {
    let stage = Stage::new();
    stage.dispatch(Some(&stage.path)).await;
    commit(&stage.clone(), "b.bin", b"content of b");
    commit(&stage.clone(), "b.bin", b"later content of b");
    std::fs::write(stage.clone().join("a.bin"), "changed").unwrap();
    let work = stage.bring().await;
    assert_eq!((work.commits, &work.skipped), (Some(2), &vec![]), "{work:?}");
    for content in [&b"content of b"[..], b"later content of b"] {
        let path = object(&stage.project().join(".git"), &pointer_to(content));
        assert_eq!(std::fs::read(path).unwrap(), content);
    }
    let [left] = &work.left[..] else { panic!("{work:?}") };
    assert_eq!(left.what, "uncommitted changes in 1 file");
    assert_eq!(git_in(&stage.project(), &["show", &format!("{}:a.bin", left.name)]), "changed");
    assert_eq!(stage.bring().await.skipped, Vec::<String>::new(), "again");
}

#[tokio::test]
async fn missing_damaged_and_linked_objects_do_not_come_home_and_are_named() {
    let stage = Stage::new();
    stage.dispatch(Some(&stage.path)).await;
    let (clone, git_dir) = (stage.clone(), stage.clone().join(".git"));
    let secret = stage.root.join("secret");
    std::fs::write(&secret, "secret").unwrap();
    for (name, content) in
        [("damaged.bin", &b"one"[..]), ("linked.bin", b"secret"), ("missing.bin", b"three")]
    {
        commit(&clone, name, content);
        let path = object(&git_dir, &pointer_to(content));
        std::fs::remove_file(&path).unwrap();
        match name {
            "damaged.bin" => std::fs::write(&path, "two").unwrap(),
            "linked.bin" => symlink(&secret, &path).unwrap(),
            _ => {}
        }
    }
    let work = stage.bring().await;
    assert_eq!(work.commits, Some(3));
    let [said] = &work.skipped[..] else { panic!("{work:?}") };
    for name in ["damaged.bin", "linked.bin", "missing.bin"] {
        assert!(said.contains(name), "{said}");
    }
    for content in [&b"one"[..], b"secret", b"three"] {
        assert!(!object(&stage.project().join(".git"), &pointer_to(content)).exists());
    }
}

#[tokio::test]
async fn run_passes_objects_from_clone_to_clone_and_home() {
    let stage = Stage::new();
    let repos = stage.repos();
    let base = git_in(&stage.project(), &["rev-parse", "HEAD"]);
    hub::ensure(&repos, &base, TARGET).await.unwrap();
    publish::keep_base(&repos, Some(&base)).await.unwrap();
    let place = |name: &str| stage.root.join("clones").join(format!("bead-{name}-1"));
    let (one, two) = (place("one"), place("two"));
    assert_eq!(worktree(&repos, &one, TARGET, Some("one"), false).await.unwrap(), None);
    assert_eq!(std::fs::read(one.join("a.bin")).unwrap(), b"content of a");
    assert!(!is_dirty(&repos, &one).await.unwrap());
    let hook = std::fs::metadata(one.join(".git/hooks/pre-push")).unwrap();
    assert!(hook.permissions().mode() & 0o111 != 0, "other agents get its files from the hub");
    commit(&one, "b.bin", b"content of b");
    git_in(&one, &["push", "--quiet", "origin", &format!("HEAD:{TARGET}")]);
    hub::guard(&repos, TARGET, None).await.unwrap();
    assert!(work(&repos, &one, TARGET).await.unwrap().on_target);
    assert_eq!(discard(&repos, &one, TARGET).await.unwrap(), None, "nothing is uncommitted");
    worktree(&repos, &two, TARGET, Some("two"), false).await.unwrap();
    assert_eq!(std::fs::read(two.join("b.bin")).unwrap(), b"content of b");
    std::fs::write(two.join("b.bin"), "changed").unwrap();
    assert!(is_dirty(&repos, &two).await.unwrap());
    let saved = discard(&repos, &two, TARGET).await.unwrap().unwrap();
    let saved = format!("{saved}:b.bin");
    assert_eq!(git_in(&repos.paths.keep(), &["show", &saved]), "changed");
    publish::bring_home(&repos, TARGET).await.unwrap();
    let home = object(&stage.project().join(".git"), &pointer_to(b"content of b"));
    assert_eq!(std::fs::read(home).unwrap(), b"content of b");
    assert_eq!(repos.take_repairs(), Vec::<String>::new());
}

#[tokio::test]
async fn result_without_the_content_of_a_file_is_reported() {
    let stage = Stage::new();
    let repos = stage.repos();
    let base = git_in(&stage.project(), &["rev-parse", "HEAD"]);
    hub::ensure(&repos, &base, TARGET).await.unwrap();
    publish::keep_base(&repos, Some(&base)).await.unwrap();
    let dir = stage.root.join("clones/bead-one-1");
    worktree(&repos, &dir, TARGET, Some("one"), false).await.unwrap();
    commit(&dir, "b.bin", b"content of b");
    std::fs::remove_dir_all(dir.join(".git/lfs")).unwrap();
    git_in(&dir, &["push", "--quiet", "origin", &format!("HEAD:{TARGET}")]);
    hub::guard(&repos, TARGET, None).await.unwrap();
    work(&repos, &dir, TARGET).await.unwrap();
    publish::bring_home(&repos, TARGET).await.unwrap();
    let said = repos.take_repairs();
    assert!(said.len() == 1 && said[0].contains("b.bin"), "{said:?}");
}

#[test]
fn output_of_git_is_read_within_its_bounds() {
    let text = text_of(&pointer_to(b"x"));
    let oid = "0".repeat(40);
    let said = format!("{oid} blob {}\n{text}\n{oid} missing\n{oid} tree 3\nabc\n", text.len());
    assert_eq!(pointers_of(said.as_bytes()), [Some(pointer_to(b"x")), None, None]);
    assert_eq!(pointers_of(format!("{oid} blob 99999\nx\n").as_bytes()), [None, None]);
    assert_eq!(pointers_of(b"no line end"), []);
}

/// An agent may write to the store of the repository that it works in.
#[tokio::test]
async fn object_with_other_content_is_not_copied_into_a_clone() {
    let stage = Stage::new();
    let pointer = pointer_to(b"content of a");
    let kept = object(&stage.project().join(".git"), &pointer);
    std::fs::write(stage.root.join("secret"), "secret words").unwrap();
    std::fs::remove_file(&kept).unwrap();
    symlink(stage.root.join("secret"), &kept).unwrap();
    let said = stage.dispatch(Some(&stage.path)).await.unwrap();
    assert!(said.contains("in place of a.bin: their content is not on this machine"), "{said}");
    let read = std::fs::read_to_string(stage.clone().join("a.bin")).unwrap();
    assert_eq!(read, text_of(&pointer));
    assert!(!object(&stage.clone().join(".git"), &pointer).exists());
}

#[tokio::test]
async fn file_as_long_as_its_pointer_is_unchanged() {
    let stage = Stage::new();
    let content = [b'x'; 128];
    assert_eq!(text_of(&pointer_to(&content)).len(), content.len());
    commit(&stage.project(), "same.bin", &content);
    assert_eq!(stage.dispatch(Some(&stage.path)).await, None);
    assert_eq!(std::fs::read(stage.clone().join("same.bin")).unwrap(), content);
    let work = stage.bring().await;
    assert!(work.is_nothing(), "{work:?}");
    std::fs::write(stage.clone().join("same.bin"), [b'y'; 128]).unwrap();
    assert_eq!(stage.bring().await.left.len(), 1);
}

/// An agent adds a file twice before it commits, or a person fetches a commit by hand.
#[tokio::test]
async fn last_homecoming_brings_objects_that_no_commit_needs() {
    let stage = Stage::new();
    stage.dispatch(Some(&stage.path)).await;
    let git_dir = stage.clone().join(".git");
    let (whole, damaged) = (pointer_to(b"an earlier version"), pointer_to(b"a damaged one"));
    store(&git_dir, &whole, b"an earlier version");
    store(&git_dir, &damaged, b"a damaged ONE");
    assert!(stage.bring_before(false).await.is_nothing());
    let home = |pointer: &Pointer| object(&stage.project().join(".git"), pointer);
    assert!(!home(&whole).exists());
    assert_eq!(stage.bring_before(true).await.skipped, Vec::<String>::new());
    assert_eq!(std::fs::read(home(&whole)).unwrap(), b"an earlier version");
    assert!(!home(&damaged).exists());
}
