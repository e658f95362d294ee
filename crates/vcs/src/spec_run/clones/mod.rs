//! The private clones of a run's agents (docs/design/git-and-clones.md). No git runs *in* a clone
//! once its agent has started. The harness reads it with its private repository, an index of its
//! own, and the clone as a plain directory of files.

mod commits;
mod index;
mod uncommitted;

pub use commits::{was_pushed, work};
pub use uncommitted::{discard, is_dirty, remove};

use crate::command::{AGENT_EMAIL, AGENT_NAME, git, own_config, run};
use crate::error::{FileError, RepoError};
use crate::spec_run::large_files;
use crate::spec_run::private_repo;
use crate::spec_run::{RunRepos, name_of};
use crate::untrusted_path;
use crate::worktree::{exclude, free_name, is_clone};
use muleteer_process::clock;
use muleteer_store::atomic::{create_dir_durable, put_dir, write_atomic};
use std::path::{Path, PathBuf};

/// The limit of a file with one hash and a newline.
const HASH_LIMIT: u64 = 100;
/// The folder with the base commits of clones that could not be read, by the clones' names.
const LOST: &str = "lost";

/// The state of a clone's commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Work {
    /// The number of commits since the clone was made.
    pub commits: u32,
    pub on_target: bool,
    /// Some of these commits were made here, and the target has all that were. No branch and no
    /// interrupted rebase of the clone has more. An agent that was interrupted in this state had
    /// pushed all its work.
    pub whole: bool,
    /// Why the clone cannot be read, if its agent has damaged it.
    pub unreadable: Option<String>,
}

impl Work {
    pub fn new(commits: u32, on_target: bool) -> Self {
        Self { commits, on_target, whole: commits > 0 && on_target, unreadable: None }
    }
}

fn write(path: &Path, text: &str) -> Result<(), RepoError> {
    make_parent(path)?;
    Ok(std::fs::write(path, text).map_err(FileError::at(path))?)
}

/// Saves a commit for a clone in one of the run's private folders.
fn note(repos: &RunRepos, folder: &str, clone: &str, commit: &str) -> Result<(), RepoError> {
    let folder = repos.paths.private.join(folder);
    create_dir_durable(&folder, 0o700)?;
    Ok(write_atomic(&folder.join(clone), commit.as_bytes(), 0o600)?)
}

fn known(repos: &RunRepos, folder: &str, clone: &str) -> Option<String> {
    let path = repos.paths.private.join(folder).join(clone);
    private_repo::hash(&untrusted_path::read_file(&path, HASH_LIMIT).ok()?)
}

/// Returns the commit that the clone began at.
fn base(repos: &RunRepos, clone: &str) -> Option<String> {
    known(repos, "bases", clone)
}

/// Saves the HEAD of a clone, whose commits are in the private repository.
pub fn remember(repos: &RunRepos, clone: &str, head: &str) -> Result<(), RepoError> {
    note(repos, "heads", clone, head)
}

/// Saves the newest commit that was made in a clone.
pub fn remember_own(repos: &RunRepos, clone: &str, commit: &str) -> Result<(), RepoError> {
    note(repos, "own", clone, commit)
}

/// Makes a clone of the target for an agent, on the branch `branch` if given, else detached. The
/// directory of an attempt whose agent never started is made again. With `reuse` it stays, unless
/// the machine restarted since: then it is made again from its commits, because nobody knows which
/// of its other files reached the disk. Returns a message if something was moved aside, or if the
/// agent will see pointers of git-lfs; the caller records it as a fault.
pub async fn worktree(
    repos: &RunRepos,
    dir: &Path,
    target: &str,
    branch: Option<&str>,
    reuse: bool,
) -> Result<Option<String>, RepoError> {
    make(repos, dir, (target, branch), reuse, true).await
}

/// Makes the clone. Without `fill`, files that git-lfs keeps are pointers, as in the commits.
async fn make(
    repos: &RunRepos,
    dir: &Path,
    (target, branch): (&str, Option<&str>),
    reuse: bool,
    fill: bool,
) -> Result<Option<String>, RepoError> {
    let clone = name_of(dir);
    let mut fault = None;
    if reuse && dir.is_dir() {
        let whole = is_clone(dir);
        if whole && !outlived_the_machine(repos, dir) {
            return Ok(None);
        }
        match discard(repos, dir, target).await {
            Err(why) if why.is_disk_full() => return Err(why),
            Err(why) => fault = Some(set_aside(dir, &why.to_string())?),
            Ok(kept) if !whole => {
                let kept = kept.unwrap_or_else(|| "nothing: all files were committed".into());
                fault = Some(format!("its agent removed the git directory; saved files: {kept}"));
            }
            Ok(_) => {}
        }
    }
    // This also applies if the daemon was killed after it removed the clone.
    let gone_on_with =
        if reuse { known(repos, "heads", &clone).zip(base(repos, &clone)) } else { None };
    let tip = crate::spec_run::hub::tip(repos, target).await?;
    let form = form(repos, target).await?;
    let (begin, base) = gone_on_with.unwrap_or_else(|| (tip.clone(), tip.clone()));
    let partial = dir.with_file_name(format!(".{clone}.partial"));
    remove(&partial).await?;
    remove(dir).await?;
    copy(&form, &partial.join(".git")).map_err(FileError::at(&partial))?;
    write(
        &partial.join(".git/packed-refs"),
        &format!(
            "# pack-refs with: peeled fully-peeled sorted \n{tip} refs/heads/{target}\n\
             {tip} refs/remotes/origin/{target}\n"
        ),
    )?;
    let mut checkout = git(&partial);
    checkout.args(["checkout", "--quiet"]);
    match branch {
        Some(name) => checkout.arg("-B").arg(format!("bead-{name}")),
        None => checkout.arg("--detach"),
    };
    run(checkout.arg(&begin), "cannot check the clone out").await?;
    if fill {
        let pointers = large_files::bring_in(repos, &partial).await?;
        let messages: Vec<_> = fault.into_iter().chain(pointers).collect();
        fault = (!messages.is_empty()).then(|| messages.join("; "));
    }
    if !reuse {
        // Notes about an earlier clone of that name do not apply to this one.
        for folder in ["heads", "own", LOST] {
            let _ = std::fs::remove_file(repos.paths.private.join(folder).join(&clone));
        }
    }
    note(repos, "bases", &clone, &base)?;
    std::fs::rename(&partial, dir).map_err(FileError::at(dir))?;
    Ok(fault)
}

/// Makes a clone in which the harness itself works: see [`worktree`].
pub(super) async fn plain(repos: &RunRepos, dir: &Path, target: &str) -> Result<(), RepoError> {
    make(repos, dir, (target, None), false, false).await.map(drop)
}

/// Whether the machine restarted since the clone was made. git does not sync files that it checks
/// out, and an agent does not sync its own.
pub fn outlived_the_machine(repos: &RunRepos, dir: &Path) -> bool {
    repos.paths.made_at(dir).is_some_and(clock::is_before_boot)
}

/// Moves a clone aside, because it may hold work that exists nowhere else. Returns a message.
fn set_aside(dir: &Path, why: &str) -> Result<String, RepoError> {
    let aside = free_name(dir, "broken");
    std::fs::rename(dir, &aside).map_err(FileError::at(dir))?;
    Ok(format!("it cannot be reused ({why}); moved it to {}", aside.display()))
}

/// Returns the git directory that every clone of the run is copied from. It is made once: asking
/// git for one takes longer than the rest of an agent's start.
async fn form(repos: &RunRepos, target: &str) -> Result<PathBuf, RepoError> {
    let _one = repos.git.lock().await;
    let form = repos.paths.private.join("clone");
    if form.join("HEAD").exists() {
        return Ok(form);
    }
    let partial = repos.paths.private.join(".clone.partial");
    remove(&partial).await?;
    let own = repos.paths.keep();
    let format =
        run(git(&own).args(["rev-parse", "--show-object-format"]), "cannot make a clone").await?;
    let format = format!("--object-format={format}");
    run(
        git(&own).args(["init", "--quiet", "--template=", &format]).arg(&partial),
        "cannot make a clone",
    )
    .await?;
    let hub = repos.paths.hub().display().to_string();
    let name = format!("refs/heads/{target}");
    run(git(&partial).args(["symbolic-ref", "HEAD", &name]), "cannot make a clone").await?;
    let user = own_config(&repos.repo, "user.name").await;
    let email = own_config(&repos.repo, "user.email").await;
    for (key, value) in [
        ("user.name", user.unwrap_or_else(|| AGENT_NAME.into())),
        ("user.email", email.unwrap_or_else(|| AGENT_EMAIL.into())),
        ("remote.origin.url", hub),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*".into()),
        (&format!("branch.{target}.remote"), "origin".into()),
        (&format!("branch.{target}.merge"), name),
    ] {
        run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone").await?;
    }
    let made = partial.join(".git");
    write(&made.join("objects/info/alternates"), &format!("{}\n", own.join("objects").display()))?;
    if let Ok(roots) = std::fs::read_to_string(own.join(private_repo::SHALLOW)) {
        write(&made.join(private_repo::SHALLOW), &roots)?;
    }
    exclude(&made).map_err(FileError::at(&made))?;
    put_dir(&made, &form)?;
    remove(&partial).await?;
    Ok(form)
}

/// Copies files and folders; a new git directory has nothing else.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn make_parent(path: &Path) -> Result<(), RepoError> {
    let parent = path.parent().unwrap_or(path);
    Ok(std::fs::create_dir_all(parent).map_err(FileError::at(parent))?)
}
