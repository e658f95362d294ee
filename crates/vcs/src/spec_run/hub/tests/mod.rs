//! Damage that agents can do to the hub and their clones, and how the harness reacts.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod clones;
mod endless;

use crate::spec_run::clones::Work;
use crate::spec_run::hub::*;
use crate::spec_run::{RunPaths, RunRepos};
use std::os::unix::fs::symlink;
use std::process::Command;
use tokio_util::sync::CancellationToken;

mod damage;

const RUN: &str = "run-2026-01-01-abcdef";
const TARGET: &str = "muleteer/run-2026-01-01-abcdef";

struct Stage {
    _dir: tempfile::TempDir,
    root: PathBuf,
    repos: RunRepos,
}

fn git_in(dir: &Path, args: &[&str]) -> String {
    let who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.invalid",
        "-c",
        "init.defaultBranch=main",
    ];
    let output = Command::new("git").arg("-C").arg(dir).args(who).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

impl Stage {
    async fn new() -> Self {
        let stage = Self::empty();
        let base = git_in(&stage.repos.repo, &["rev-parse", "HEAD"]);
        ensure(&stage.repos, &base, TARGET).await.unwrap();
        stage
    }

    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let repo = root.join("repo");
        std::fs::create_dir_all(&repo).unwrap();
        git_in(&repo, &["init", "--quiet"]);
        git_in(&repo, &["config", "user.name", "A Person"]);
        std::fs::write(repo.join("README.md"), "read me\n").unwrap();
        git_in(&repo, &["add", "--all"]);
        git_in(&repo, &["commit", "--quiet", "--message=first"]);
        let paths = RunPaths { private: root.join("state") };
        std::fs::create_dir_all(&paths.private).unwrap();
        let repos = RunRepos::new(RUN, repo, paths, CancellationToken::new());
        Self { _dir: dir, root, repos }
    }

    /// Returns the folder of the agents' clones.
    fn worktrees(&self) -> PathBuf {
        self.repos.repo.join(".muleteer/worktrees").join(RUN)
    }

    fn hub(&self) -> PathBuf {
        self.repos.paths.hub()
    }

    fn keep(&self) -> PathBuf {
        self.repos.paths.keep()
    }

    /// Makes a clone in which an agent has committed and pushed.
    async fn bead(&self, name: &str) -> PathBuf {
        let dir = self.worktrees().join(format!("bead-{name}-1"));
        worktree(&self.repos, &dir, TARGET, Some(name), false).await.unwrap();
        self.commit(&dir, name);
        git_in(&dir, &["push", "--quiet", self.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
        dir
    }

    fn commit(&self, dir: &Path, name: &str) {
        std::fs::write(dir.join(name), name).unwrap();
        git_in(dir, &["add", name]);
        git_in(dir, &["commit", "--quiet", "--message", name]);
    }

    /// Writes a program that leaves a file when it runs.
    fn trap(&self) -> String {
        let path = self.root.join("trap.sh");
        std::fs::write(&path, format!("#!/bin/sh\ntouch {}/ran\ncat\n", self.root.display()))
            .unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        path.display().to_string()
    }

    /// Runs everything that the harness does after an agent, and after the last one.
    async fn after(&self, dir: &Path) -> (Option<String>, Work) {
        unlock(&self.repos, TARGET).await;
        let said = guard(&self.repos, TARGET, None).await.unwrap();
        let work = work(&self.repos, dir, TARGET).await.unwrap();
        is_dirty(&self.repos, dir).await.unwrap();
        discard(&self.repos, dir, TARGET).await.unwrap();
        assert!(!self.root.join("ran").exists(), "the harness ran the agent's code");
        (said, work)
    }
}

#[tokio::test]
async fn pushed_commits_are_fetched_and_uncommitted_changes_are_saved() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(git_in(&dir, &["log", "-1", "--format=%cn", "HEAD~1"]), "a");
    assert_eq!(git_in(&dir, &["config", "--local", "user.name"]), "A Person");
    assert_eq!(git_in(&dir, &["rev-parse", "--abbrev-ref", "HEAD"]), "bead-one");
    assert_eq!(git_in(&dir, &["status", "--porcelain"]), "");
    let head = git_in(&dir, &["rev-parse", "HEAD"]);
    std::fs::write(dir.join("left"), "left\n").unwrap();
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    assert!(!dir.exists());
    assert_eq!(commit(&stage.repos, TARGET).await, Some(head.clone()));
    assert_eq!(git_in(&stage.keep(), &["show", "refs/muleteer/rescue/bead-one-1:left"]), "left");
    // The next clone begins there. A commit in it that is not pushed is safe.
    let next = stage.worktrees().join("bead-two-1");
    worktree(&stage.repos, &next, TARGET, Some("two"), false).await.unwrap();
    assert_eq!(git_in(&next, &["rev-parse", "HEAD"]), head);
    assert_eq!(git_in(&next, &["rev-parse", &format!("origin/{TARGET}")]), head);
    stage.commit(&next, "two");
    let second = git_in(&next, &["rev-parse", "HEAD"]);
    assert_eq!(stage.after(&next).await, (None, Work::new(1, false)));
    assert_eq!(git_in(&stage.keep(), &["rev-parse", "refs/muleteer/work/bead-two-1"]), second);
    assert!(was_pushed(&stage.repos, "one", TARGET).await.unwrap());
    assert!(!was_pushed(&stage.repos, "two", TARGET).await.unwrap());
}

/// An agent whose push succeeded loses its clone, so the push must be on the hub's disk by then.
#[tokio::test]
async fn pushed_commits_are_flushed_to_disk() {
    let stage = Stage::new().await;
    let dir = stage.worktrees().join("bead-one-1");
    worktree(&stage.repos, &dir, TARGET, Some("one"), false).await.unwrap();
    stage.commit(&dir, "one");
    let trace = stage.root.join("git.trace");
    let pushed = Command::new("git")
        .arg("-C")
        .arg(&dir)
        .args(["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")])
        .env("GIT_TRACE2_EVENT", &trace)
        .status();
    assert!(pushed.unwrap().success());
    let text = std::fs::read_to_string(&trace).unwrap();
    // git writes a counter, or a value up to version 2.45.
    let counts = text.lines().filter(|line| line.contains("hardware-flush"));
    let counts = counts
        .filter_map(|line| {
            line.rsplit_once("\"count\":").or_else(|| line.rsplit_once("\"value\":"))
        })
        .filter_map(|(_, count)| count.trim_matches(['"', '}']).parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 4, "a commit, a tree, a file and the branch: {text}");
}

/// Commits count as an agent's own however the agent pushed them.
#[tokio::test]
async fn commits_pushed_from_another_branch_are_own() {
    let stage = Stage::new().await;
    let push = |dir: &Path| {
        git_in(dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    };
    let begin = async |name: &str| {
        let dir = stage.worktrees().join(format!("bead-{name}-1"));
        worktree(&stage.repos, &dir, TARGET, Some(name), false).await.unwrap();
        dir
    };
    let dir = begin("branch").await;
    git_in(&dir, &["checkout", "--quiet", "-b", "feature"]);
    stage.commit(&dir, "one");
    push(&dir);
    git_in(&dir, &["checkout", "--quiet", "bead-branch"]);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    let dir = begin("back").await;
    stage.commit(&dir, "two");
    push(&dir);
    git_in(&dir, &["reset", "--quiet", "--hard", "HEAD~1"]);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    let dir = begin("beside").await;
    let beside = stage.root.join("beside");
    git_in(&dir, &["worktree", "add", "--quiet", "--detach", beside.to_str().unwrap()]);
    stage.commit(&beside, "three");
    push(&beside);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    assert!(was_pushed(&stage.repos, "beside", TARGET).await.unwrap());
    // Commits that others have pushed meanwhile do not count.
    let dir = begin("idle").await;
    stage.bead("other").await;
    git_in(&dir, &["checkout", "--quiet", "-b", "feature"]);
    assert_eq!(stage.after(&dir).await, (None, Work { whole: false, ..Work::new(0, true) }));
}

#[tokio::test]
async fn files_of_a_clone_without_a_git_directory_are_saved() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    std::fs::write(dir.join("more"), "more\n").unwrap();
    std::fs::remove_dir_all(dir.join(".git")).unwrap();
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(work(&stage.repos, &dir, TARGET).await.unwrap(), Work::new(0, true));
    assert!(
        was_pushed(&stage.repos, "one", TARGET).await.unwrap(),
        "nobody can tell that it was not"
    );
    let said = worktree(&stage.repos, &dir, TARGET, Some("one"), true).await.unwrap().unwrap();
    assert!(said.contains("refs/muleteer/rescue/bead-one-1"), "{said}");
    assert_eq!(git_in(&stage.keep(), &["show", "refs/muleteer/rescue/bead-one-1:more"]), "more");
    assert!(!dir.join("more").exists(), "it is made anew");
    assert_eq!(worktree(&stage.repos, &dir, TARGET, Some("one"), true).await.unwrap(), None);
}

#[tokio::test]
async fn push_during_the_judgement_is_undone_and_saved() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(hold(&stage.repos, TARGET, None).await.unwrap(), None);
    let judged = commit(&stage.repos, TARGET).await.unwrap();
    stage.commit(&dir, "late");
    let late = git_in(&dir, &["rev-parse", "HEAD"]);
    git_in(&dir, &["push", "--quiet", stage.hub().to_str().unwrap(), &format!("HEAD:{TARGET}")]);
    let (judge, other) = ("abcd2345", "bcde2345");
    let said = hold(&stage.repos, TARGET, Some(judge)).await.unwrap().unwrap();
    assert!(said.contains(&format!("refs/muleteer/undone/{late}")), "{said}");
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &format!("refs/heads/{TARGET}")]), judged);
    assert_eq!(commit(&stage.repos, TARGET).await, Some(judged));
    assert_eq!(
        git_in(&stage.keep(), &["show", &format!("refs/muleteer/undone/{late}:late")]),
        "late"
    );
    // A daemon that got the answer may have died before it recorded it.
    assert_eq!(hold(&stage.repos, TARGET, Some(judge)).await.unwrap(), Some(said));
    assert_eq!(hold(&stage.repos, TARGET, Some(other)).await.unwrap(), None);
    assert_eq!(hold(&stage.repos, TARGET, None).await.unwrap(), None);
}

#[tokio::test]
async fn hub_redirected_to_an_agents_repository_runs_nothing() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let (evil, trap) = (stage.root.join("evil.git"), stage.trap());
    git_in(
        &stage.root,
        &["clone", "--quiet", "--bare", stage.hub().to_str().unwrap(), evil.to_str().unwrap()],
    );
    let keys = [
        "filter.p.clean",
        "core.fsmonitor",
        "core.sshCommand",
        "core.alternateRefsCommand",
        "gpg.program",
    ];
    for key in keys.into_iter().chain(["uploadpack.packObjectsHook", "core.pager", "core.editor"]) {
        git_in(&evil, &["config", key, &trap]);
    }
    for hook in ["reference-transaction", "post-checkout", "pre-push", "post-index-change"] {
        std::fs::copy(&trap, evil.join("hooks").join(hook)).unwrap();
    }
    std::fs::write(stage.hub().join("commondir"), format!("{}\n", evil.display())).unwrap();
    std::fs::write(dir.join(".gitattributes"), "* filter=p\n").unwrap();
    std::fs::write(dir.join("left"), "left\n").unwrap();
    let (said, work) = stage.after(&dir).await;
    assert!(said.unwrap().contains("commondir"));
    assert_eq!(work, Work::new(1, true));
    assert!(!stage.hub().join("commondir").exists());
}

#[tokio::test]
async fn links_in_the_hub_lead_nowhere() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let victim = stage.root.join("victim");
    std::fs::create_dir_all(&victim).unwrap();
    std::fs::write(victim.join("Cargo.lock"), "").unwrap();
    git_in(&stage.root, &["init", "--quiet", "--bare", "victim/git"]);
    let old = filetime(&victim.join("Cargo.lock"));
    assert!(old > private_repo::STALE);
    symlink(&victim, stage.hub().join("refs/esc")).unwrap();
    for name in ["a", "b"] {
        symlink(".", stage.hub().join("refs").join(name)).unwrap();
    }
    // A lock that a killed git left behind is removed nevertheless.
    let lock = stage.hub().join(format!("refs/heads/{TARGET}.lock"));
    std::fs::write(&lock, "").unwrap();
    filetime(&lock);
    stage.after(&dir).await;
    assert!(victim.join("Cargo.lock").exists());
    assert!(!lock.exists());
    // A restored ref is not written through a link either.
    for name in ["a", "b", "esc"] {
        assert!(
            std::fs::symlink_metadata(stage.hub().join("refs").join(name)).is_err(),
            "they are put aside"
        );
    }
    let seen = commit(&stage.repos, TARGET).await.unwrap();
    std::fs::remove_dir_all(stage.hub().join("refs/heads")).unwrap();
    std::fs::create_dir_all(victim.join("heads/muleteer")).unwrap();
    symlink(victim.join("heads"), stage.hub().join("refs/heads")).unwrap();
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(std::fs::read_dir(victim.join("heads/muleteer")).unwrap().count(), 0);
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &format!("refs/heads/{TARGET}")]), seen);
    assert_eq!(commit(&stage.repos, TARGET).await, Some(seen));
}

/// Makes the file one hour old.
fn filetime(path: &Path) -> std::time::Duration {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(3600))
        .unwrap();
    std::time::Duration::from_secs(3600)
}

#[tokio::test]
async fn rewritten_or_removed_target_is_restored() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    let seen = commit(&stage.repos, TARGET).await.unwrap();
    let name = format!("refs/heads/{TARGET}");
    let evil = git_in(&stage.hub(), &["commit-tree", "-m", "evil", &format!("{seen}^{{tree}}")]);
    git_in(&stage.hub(), &["update-ref", &name, &evil]);
    let job = "abcd2345";
    let said = guard(&stage.repos, TARGET, Some(job)).await.unwrap().unwrap();
    assert!(said.contains(&format!("refs/muleteer/undone/{evil}")), "{said}");
    assert_eq!(
        guard(&stage.repos, TARGET, Some(job)).await.unwrap(),
        Some(said),
        "it may have been lost"
    );
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &name]), seen);
    assert_eq!(git_in(&stage.keep(), &["log", "-1", "--format=%s", &evil]), "evil");
    git_in(&stage.hub(), &["update-ref", "-d", &name]);
    assert!(guard(&stage.repos, TARGET, None).await.unwrap().unwrap().contains("nothing"));
    assert_eq!(git_in(&stage.hub(), &["rev-parse", &name]), seen);
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    // Replace refs change objects, in a hub or in a clone.
    git_in(&stage.hub(), &["replace", "--graft", &evil, &seen]);
    git_in(&stage.hub(), &["update-ref", &name, &evil]);
    assert!(guard(&stage.repos, TARGET, None).await.unwrap().is_some());
    git_in(
        &dir,
        &[
            "checkout",
            "--quiet",
            "--detach",
            &git_in(&dir, &["commit-tree", "-m", "x", "HEAD^{tree}"]),
        ],
    );
    git_in(&dir, &["replace", "HEAD", &seen]);
    assert!(!work(&stage.repos, &dir, TARGET).await.unwrap().on_target);
}

/// The hub's `refs/muleteer/rebased` was once pushed to the remote.
#[tokio::test]
async fn pushes_to_reserved_refs_are_ignored() {
    let stage = Stage::new().await;
    let dir = stage.bead("one").await;
    let head = git_in(&dir, &["rev-parse", "HEAD"]);
    let hub = stage.hub();
    let ours = ["rebased", "undone"].map(|folder| format!("refs/muleteer/{folder}/{head}"));
    let names = [
        "refs/muleteer/work/bead-two-1",
        "refs/muleteer/pushed/main",
        "refs/heads/aside",
        "refs/tags/one",
    ];
    for name in ours.iter().map(String::as_str).chain(names) {
        let mut push = Command::new("git");
        let refused = push
            .arg("-C")
            .arg(&dir)
            .args(["push", "--quiet"])
            .arg(&hub)
            .arg(format!("HEAD:{name}"))
            .output();
        let said = refused.unwrap();
        assert!(
            !said.status.success() && said.stderr.windows(6).any(|part| part == b"hidden"),
            "{name}: {said:?}"
        );
        // An agent that can write the hub's files needs no push.
        git_in(&hub, &["fetch", "--quiet", dir.to_str().unwrap(), &format!("HEAD:{name}")]);
    }
    stage.after(&dir).await;
    assert!(!was_pushed(&stage.repos, "two", TARGET).await.unwrap());
    let listed = git_in(&stage.keep(), &["for-each-ref", "--format=%(refname)"]);
    assert!(!listed.contains("rebased") && !listed.contains("pushed"), "{listed}");
}

/// The state that version 0.1 left: no private repository, everything is in the hub.
#[tokio::test]
async fn run_of_an_earlier_version_continues() {
    let stage = Stage::empty();
    let repo = stage.repos.repo.clone();
    let (base, hub) = (git_in(&repo, &["rev-parse", "HEAD"]), stage.hub());
    git_in(
        &stage.root,
        &["clone", "--quiet", "--bare", repo.to_str().unwrap(), hub.to_str().unwrap()],
    );
    let clone = stage.root.join("clone");
    git_in(&stage.root, &["clone", "--quiet", hub.to_str().unwrap(), clone.to_str().unwrap()]);
    stage.commit(&clone, "one");
    for name in [
        &format!("refs/heads/{TARGET}"),
        "refs/muleteer/work/bead-one-1",
        "refs/muleteer/rebased/x",
    ] {
        git_in(&clone, &["push", "--quiet", "origin", &format!("HEAD:{name}")]);
    }
    let bases = stage.repos.paths.private.join("bases");
    std::fs::create_dir_all(&bases).unwrap();
    std::fs::write(bases.join("bead-one-1"), &base).unwrap();
    std::fs::write(stage.repos.paths.private.join("seen"), &base).unwrap();
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(commit(&stage.repos, TARGET).await, Some(git_in(&clone, &["rev-parse", "HEAD"])));
    assert!(was_pushed(&stage.repos, "one", TARGET).await.unwrap());
    assert!(!git_in(&stage.keep(), &["for-each-ref", "--format=%(refname)"]).contains("rebased"));
    let dir = stage.bead("two").await;
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
}

/// A daemon that is killed leaves a lock and half of the files that it was making.
#[tokio::test]
async fn leftovers_of_a_killed_daemon_do_not_block() {
    let stage = Stage::new().await;
    for name in [".keep.partial", ".clone.partial", ".hub.partial"] {
        std::fs::create_dir_all(stage.repos.paths.private.join(name).join("objects")).unwrap();
    }
    let dir = stage.bead("one").await;
    let lock = stage.keep().join(format!("refs/heads/{TARGET}.lock"));
    std::fs::write(&lock, "").unwrap();
    filetime(&lock);
    assert_eq!(stage.after(&dir).await, (None, Work::new(1, true)));
    let partial = stage.worktrees().join(".bead-two-1.partial/.git");
    std::fs::create_dir_all(&partial).unwrap();
    let next = stage.bead("two").await;
    assert!(!partial.exists());
    // A repetition gives the same result.
    assert_eq!(guard(&stage.repos, TARGET, None).await.unwrap(), None);
    assert_eq!(work(&stage.repos, &next, TARGET).await.unwrap(), Work::new(1, true));
    assert_eq!(work(&stage.repos, &next, TARGET).await.unwrap(), Work::new(1, true));
    discard(&stage.repos, &next, TARGET).await.unwrap();
    assert_eq!(discard(&stage.repos, &next, TARGET).await.unwrap(), None);
}
