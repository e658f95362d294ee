//! The hub of a run, a bare repository of the harness's own, and the private clones of its agents
//! (design.md, "Git"). Nothing is run *in* a clone: what is looked at is looked at with the hub's
//! configuration, an index of our own, and the clone as a mere directory of files.

use super::host::Hosted;
use crate::worktree::{exclude, git, run};
use std::path::{Path, PathBuf};

/// In the hub: what each clone's commits are, by the clone's name.
const WORK: &str = "refs/muleteer/work";
/// Locks of git older than this are left over.
const STALE: std::time::Duration = std::time::Duration::from_secs(4);
const EMPTY_TREE: &str = "4b825dc642cb6eb9a060e54bf8d69288fbee4904";

/// What a clone's commits come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// Since the clone was made.
    pub commits: u32,
    pub on_target: bool,
}

/// Makes the hub, with the integration branch at `base`, unless it is there.
pub async fn ensure(hosted: &Hosted, base: &str, target: &str) -> Result<(), String> {
    let hub = hosted.places.hub();
    if !hub.join("HEAD").exists() {
        let partial = hosted.places.private.join(".hub.partial");
        remove(&partial).await?;
        make_parent(&partial)?;
        run(git(&hosted.places.private).args(["init", "--quiet", "--bare"]).arg(&partial), "cannot make the hub")
            .await?;
        let objects = run(
            git(&hosted.repo).args(["rev-parse", "--path-format=absolute", "--git-path", "objects"]),
            "cannot find the repository's objects",
        )
        .await?;
        std::fs::write(partial.join("objects/info/alternates"), format!("{objects}\n"))
            .map_err(|error| format!("{}: {error}", partial.display()))?;
        for (key, value) in [
            // A push of anything but a fast-forward is refused, and so is deleting a branch.
            ("receive.denyNonFastForwards", "true"),
            ("receive.denyDeletes", "true"),
            ("gc.auto", "0"),
            ("core.logAllRefUpdates", "true"),
        ] {
            run(git(&partial).args(["config", key, value]), "cannot configure the hub").await?;
        }
        run(
            git(&partial).args(["symbolic-ref", "HEAD"]).arg(format!("refs/heads/{target}")),
            "cannot set the hub's branch",
        )
        .await?;
        std::fs::rename(&partial, &hub).map_err(|error| format!("{}: {error}", hub.display()))?;
    }
    if commit(hosted, target).await.is_none() {
        run(
            git(&hub).args(["update-ref", &format!("refs/heads/{target}"), base]),
            "cannot make the integration branch",
        )
        .await?;
    }
    Ok(())
}

/// Where the hub's objects are borrowed from, and whoever lends to those.
pub async fn lenders(hosted: &Hosted) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut next = vec![hosted.places.hub().join("objects")];
    while let Some(objects) = next.pop().filter(|_| found.len() < 100) {
        let lent = std::fs::read_to_string(objects.join("info/alternates")).unwrap_or_default();
        for line in lent.lines().filter(|line| line.starts_with('/')) {
            let path = PathBuf::from(line);
            if !found.contains(&path) {
                next.push(path.clone());
                found.push(path);
            }
        }
    }
    found
}

/// What an agent that can write the hub has done to the target: anything but a fast-forward is undone, and
/// kept beside it. Says so.
pub async fn guard(hosted: &Hosted, target: &str) -> Result<Option<String>, String> {
    let hub = hosted.places.hub();
    let name = format!("refs/heads/{target}");
    let now = commit(hosted, target).await.unwrap_or_default();
    let seen = std::fs::read_to_string(hosted.places.seen()).unwrap_or_default();
    if now == seen {
        return Ok(None);
    }
    let forward = seen.is_empty()
        || (!now.is_empty() && run(git(&hub).args(["merge-base", "--is-ancestor", &seen, &now]), "").await.is_ok());
    if forward {
        muleteer_store::atomic::write_atomic(&hosted.places.seen(), now.as_bytes(), 0o600)
            .map_err(|error| crate::launch::chain(&error))?;
        return Ok(None);
    }
    let mut kept = "nothing".to_string();
    if !now.is_empty() {
        kept = format!("refs/muleteer/undone/{now}");
        run(git(&hub).args(["update-ref", &kept, &now]), "cannot keep what was pushed").await?;
    }
    run(git(&hub).args(["update-ref", &name, &seen]), "cannot undo a push").await?;
    Ok(Some(format!("a push to {target} that was no fast-forward was undone: {kept} is what it brought")))
}

/// The commit a branch of the hub is at.
pub async fn commit(hosted: &Hosted, branch: &str) -> Option<String> {
    let name = format!("refs/heads/{branch}^{{commit}}");
    run(git(&hosted.places.hub()).args(["rev-parse", "--verify", "--quiet", &name]), "")
        .await
        .ok()
}

fn name_of(dir: &Path) -> String {
    dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn base_file(hosted: &Hosted, dir: &Path) -> PathBuf {
    hosted.places.private.join("bases").join(name_of(dir))
}

/// Makes a clone of the target for an agent; with `branch` on a branch of its own, else detached.
/// What is there of an attempt whose agent never began is made anew, unless it is to be gone on with.
pub async fn worktree(
    hosted: &Hosted,
    dir: &Path,
    target: &str,
    branch: Option<&str>,
    reuse: bool,
) -> Result<(), String> {
    if reuse && dir.join(".git").is_dir() {
        return Ok(());
    }
    let hub = hosted.places.hub();
    let partial = hosted.places.worktrees.join(format!(".{}.partial", name_of(dir)));
    remove(&partial).await?;
    remove(dir).await?;
    make_parent(&partial)?;
    run(
        git(&hub)
            .args(["clone", "--quiet", "--shared", "--no-hardlinks", "--no-checkout", "--branch", target, "."])
            .arg(&partial),
        "cannot clone the hub",
    )
    .await?;
    let place = match branch {
        Some(name) => vec!["checkout".to_string(), "--quiet".into(), "-B".into(), format!("bead-{name}")],
        None => vec!["checkout".to_string(), "--quiet".into(), "--detach".into()],
    };
    run(git(&partial).args(place), "cannot check the clone out").await?;
    for key in ["user.name", "user.email"] {
        let own = crate::worktree::own_config(&hosted.repo, key).await;
        let default = if key == "user.name" { "Muleteer agent" } else { "agent@muleteer.invalid" };
        let value = own.unwrap_or_else(|| default.to_string());
        run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone").await?;
    }
    exclude(&partial.join(".git")).map_err(|error| format!("{}: {error}", partial.display()))?;
    let base = run(git(&partial).args(["rev-parse", "HEAD"]), "the clone is empty").await?;
    let file = base_file(hosted, dir);
    make_parent(&file)?;
    std::fs::write(&file, &base).map_err(|error| format!("{}: {error}", file.display()))?;
    std::fs::rename(&partial, dir).map_err(|error| format!("{}: {error}", dir.display()))
}

/// Brings the clone's commits into the hub, where they are safe, and says whether the target has them.
pub async fn work(hosted: &Hosted, dir: &Path, target: &str) -> Result<Work, String> {
    let none = Work { commits: 0, on_target: true };
    if !dir.join(".git").is_dir() {
        return Ok(none);
    }
    let hub = hosted.places.hub();
    let kept = format!("{WORK}/{}", name_of(dir));
    run(
        git(&hub)
            .args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"])
            .arg(dir)
            .arg(format!("+HEAD:{kept}")),
        "cannot look at the agent's commits",
    )
    .await?;
    let base = std::fs::read_to_string(base_file(hosted, dir)).unwrap_or_default();
    let base = base.trim();
    let head = run(git(&hub).args(["rev-parse", &kept]), "the agent's commits are gone").await?;
    let on_target = run(git(&hub).args(["merge-base", "--is-ancestor", &head, &format!("refs/heads/{target}")]), "")
        .await
        .is_ok();
    // After a rebase what lies between is also what others did: what counts is that it moved.
    let commits = if head == base {
        0
    } else {
        let count =
            run(git(&hub).args(["rev-list", "--count", &format!("{base}..{head}")]), "cannot count commits").await?;
        count.parse().unwrap_or(1)
    };
    Ok(Work { commits, on_target })
}

/// Whether an earlier attempt at the bead has brought commits of its own to the target.
pub async fn was_pushed(hosted: &Hosted, bead: &str, target: &str) -> Result<bool, String> {
    let hub = hosted.places.hub();
    let pattern = format!("{WORK}/bead-{bead}-*");
    let listed =
        run(git(&hub).args(["for-each-ref", "--format=%(objectname) %(refname:lstrip=3)", &pattern]), "no refs")
            .await?;
    for (head, name) in listed.lines().filter_map(|line| line.split_once(' ')) {
        let base = std::fs::read_to_string(hosted.places.private.join("bases").join(name)).unwrap_or_default();
        let reached = ["merge-base", "--is-ancestor", head, &format!("refs/heads/{target}")];
        if head != base.trim() && run(git(&hub).args(reached), "").await.is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a file that was checked out was changed, or one was added; `.gitignore` is heeded.
pub async fn is_dirty(hosted: &Hosted, dir: &Path) -> Result<bool, String> {
    let base = std::fs::read_to_string(base_file(hosted, dir)).unwrap_or_default();
    Ok(!changes(hosted, dir, base.trim()).await?.is_empty())
}

async fn changes(hosted: &Hosted, dir: &Path, base: &str) -> Result<String, String> {
    if !dir.is_dir() {
        return Ok(String::new());
    }
    let index = Index::new(hosted, dir);
    let base = if base.is_empty() { EMPTY_TREE } else { base };
    run(index.git(hosted, dir).args(["read-tree", base]), "cannot read the tree").await?;
    // Against the commit as well: an index made anew says nothing of files that are gone.
    run(
        index
            .git(hosted, dir)
            // With the branch's line before them: what `run` trims is the beginning of the first line.
            .args([
                "status",
                "--porcelain",
                "--branch",
                "--untracked-files=normal",
                "--no-renames",
                "--ignore-submodules=all",
            ]),
        "cannot compare",
    )
    .await
    .map(|text| {
        text.lines()
            .filter(|line| !line.starts_with("## "))
            .filter(|line| !line.starts_with("M ") && !line.starts_with("A ") && !line.starts_with("D "))
            .collect::<Vec<_>>()
            .join("\n")
    })
}

/// Keeps what stands in a clone and in no commit as a commit in the hub.
pub async fn rescue(hosted: &Hosted, dir: &Path) -> Result<Option<String>, String> {
    if !dir.is_dir() {
        return Ok(None);
    }
    let hub = hosted.places.hub();
    let kept = format!("{WORK}/{}", name_of(dir));
    let Ok(head) = run(git(&hub).args(["rev-parse", "--verify", "--quiet", &kept]), "").await else { return Ok(None) };
    if changes(hosted, dir, &head).await?.is_empty() {
        return Ok(None);
    }
    let index = Index::new(hosted, dir);
    run(index.git(hosted, dir).args(["read-tree", &head]), "cannot read the tree").await?;
    run(index.git(hosted, dir).args(["add", "--all"]), "cannot keep what was not committed").await?;
    let tree = run(index.git(hosted, dir).args(["write-tree"]), "cannot keep what was not committed").await?;
    let mut commit = git(&hub);
    for role in ["AUTHOR", "COMMITTER"] {
        commit
            .env(format!("GIT_{role}_NAME"), "Muleteer")
            .env(format!("GIT_{role}_EMAIL"), "rescue@muleteer.invalid");
    }
    let message = format!("what {} had not committed", name_of(dir));
    let commit =
        run(commit.args(["commit-tree", &tree, "-p", &head, "-m", &message]), "cannot keep what was not committed")
            .await?;
    let name = format!("refs/muleteer/rescue/{}", name_of(dir));
    run(git(&hub).args(["update-ref", &name, &commit]), "cannot keep what was not committed").await?;
    Ok(Some(name))
}

/// Takes a clone away, after what exists nowhere else is kept.
pub async fn discard(hosted: &Hosted, dir: &Path, target: &str) -> Result<Option<String>, String> {
    if !dir.is_dir() {
        return Ok(None);
    }
    work(hosted, dir, target).await?;
    let kept = rescue(hosted, dir).await?;
    remove(dir).await?;
    Ok(kept)
}

/// An index of our own, taken away with the value.
struct Index(PathBuf);

impl Index {
    fn new(hosted: &Hosted, dir: &Path) -> Self {
        Self(
            hosted
                .places
                .private
                .join(format!("index-{}-{}", name_of(dir), crate::context::random_key())),
        )
    }

    fn git(&self, hosted: &Hosted, dir: &Path) -> tokio::process::Command {
        let mut command = git(&hosted.places.hub());
        command
            .arg("-c")
            .arg("core.bare=false")
            .arg("--git-dir")
            .arg(hosted.places.hub())
            .arg("--work-tree")
            .arg(dir)
            .env("GIT_INDEX_FILE", &self.0)
            .current_dir(dir);
        command
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A killed daemon's git, or a killed shim's agent, may be at work in it for a moment longer.
async fn remove(path: &Path) -> Result<(), String> {
    for _ in 0..20 {
        match std::fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
        }
    }
    std::fs::remove_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A git that was killed leaves its locks behind, and nobody could push any more. Git holds them for
/// milliseconds: one that stays is nobody's.
pub async fn unlock(hosted: &Hosted) {
    for _ in 0..60 {
        let locks = locks(&hosted.places.hub());
        if locks.is_empty() {
            return;
        }
        for lock in locks {
            let age = std::fs::metadata(&lock).and_then(|meta| meta.modified()).map(|time| time.elapsed());
            if matches!(age, Ok(Ok(age)) if age > STALE) {
                tracing::warn!(lock = %lock.display(), "a lock that a killed git left is taken away");
                let _ = std::fs::remove_file(lock);
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn locks(hub: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![hub.join("refs")];
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    found.extend(entries(hub).filter(|path| path.extension().is_some_and(|end| end == "lock")));
    while let Some(dir) = folders.pop() {
        for path in entries(&dir) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "lock") {
                found.push(path);
            }
        }
    }
    found
}

fn make_parent(path: &Path) -> Result<(), String> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))
}
