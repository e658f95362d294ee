//! The clones of dispatches (docs/design/git-and-clones.md). A worktree is a private clone: its
//! `.git` belongs to the agent alone. The harness runs nothing in it; fetching *from* it by path is
//! safe.

mod home;
mod identity;
mod leftover;
mod removable;
mod repository;

pub use home::{BringError, Homecoming};
pub use identity::{Identities, Places};
pub use removable::{Unsaved, move_away, removal_name, removed_id, unsaved};
pub use repository::{Repositories, Repository};

use crate::command::{
    AGENT_EMAIL, AGENT_NAME, CommandError, Meaning, UPLOAD_PACK_BELOW, git, own_config, run,
};
use crate::error::{FileError, Refusal, RepoError};
use crate::lfs;
use crate::partial_clone;
use muleteer_store::removal;
use rustix::fs::OFlags;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Returns an unused name beside `dir` with this extension, so that files that were moved aside
/// earlier stay.
pub(crate) fn free_name(dir: &Path, extension: &str) -> PathBuf {
    let mut name = dir.with_extension(extension);
    for number in 2_u32.. {
        if !name.exists() {
            break;
        }
        name = dir.with_extension(format!("{extension}-{number}"));
    }
    name
}

/// The parameters of a dispatch's new clone.
#[derive(Debug, Clone, Copy)]
pub struct NewClone<'a> {
    pub id: &'a str,
    pub branch: &'a str,
    /// The agent's environment has an address (`EMAIL`), which git uses if none is configured.
    pub has_email: bool,
    /// The `PATH` of the agent.
    pub path: Option<&'a str>,
}

/// Makes the clone unless it exists. It gets its name only when it is complete. Its agent commits
/// as the person, or under a name of ours if the person has configured none, because git commits
/// nothing without a name. Returns a message if the agent will see pointers in place of files that
/// git-lfs keeps.
pub async fn ensure(
    project: &Path,
    worktree: &Path,
    new: NewClone<'_>,
) -> Result<Option<String>, RepoError> {
    if worktree.join(".git").exists() {
        return Ok(None);
    }
    let top = run(
        git(project).args(["rev-parse", "--show-toplevel"]),
        "--worktree needs a git repository",
    )
    .await?;
    let head = run(
        git(project).args(["rev-parse", "--verify", "HEAD"]),
        "--worktree needs a repository with a commit",
    )
    .await?;
    let parent = worktree.parent().ok_or(Refusal::NoParent("worktree"))?;
    std::fs::create_dir_all(parent).map_err(FileError::at(parent))?;
    let partial = parent.join(format!(".{}.partial", new.id));
    discard(&partial)?;
    let top = Path::new(&top);
    partial_clone::complete(top, &head).await?;
    run(
        git(top)
            .args(["clone", "--quiet", "--shared", "--no-hardlinks"])
            .args(["--upload-pack", UPLOAD_PACK_BELOW, "."])
            .arg(&partial),
        "cannot clone",
    )
    .await?;
    make_branch(&partial, new.branch).await?;
    let email = own_config(top, "user.email").await;
    let email = email.or_else(|| (!new.has_email).then(|| AGENT_EMAIL.to_string()));
    let name = own_config(top, "user.name").await.unwrap_or_else(|| AGENT_NAME.into());
    for (key, value) in [("user.name", Some(name)), ("user.email", email)] {
        if let Some(value) = value {
            run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone")
                .await?;
        }
    }
    exclude(&partial.join(".git")).map_err(FileError::at(&partial))?;
    let message = lfs::bring_in(top, &partial, None, new.path).await?;
    std::fs::rename(&partial, worktree).map_err(FileError::at(worktree))?;
    Ok(message)
}

/// Checks out a new branch in a clone that nobody works in yet. The branch that was cloned may
/// conflict with its name.
async fn make_branch(clone: &Path, name: &str) -> Result<(), CommandError> {
    let what = "cannot make the branch";
    let make = || {
        let mut command = git(clone);
        command.args(["checkout", "--quiet", "-b", name]);
        command
    };
    let Err(why) = run(&mut make(), what).await else { return Ok(()) };
    let Some(other) = branch_in_the_way(clone, name).await else { return Err(why) };
    run(git(clone).args(["checkout", "--quiet", "--detach"]), what).await?;
    run(git(clone).args(["branch", "--quiet", "-D", &other]), what).await?;
    run(&mut make(), what).await.map(drop)
}

/// Removes a clone that may be incomplete, and returns whether there was one. After an interruption
/// it must be called again.
///
/// # Errors
/// The clone cannot be removed.
pub fn discard(worktree: &Path) -> Result<bool, FileError> {
    match removal::remove_tree(worktree, removal::PATIENCE) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FileError::CloneNotRemoved { path: worktree.into(), source }),
    }
}

/// Returns the branch that keeps git from making a branch called `name`: a prefix of `name`, or one
/// below it.
pub async fn branch_in_the_way(dir: &Path, name: &str) -> Option<String> {
    let first = async |prefix: &str| {
        let mut list = git(dir);
        list.args([
            "for-each-ref",
            "--count=1",
            "--format=%(refname)",
            &format!("refs/heads/{prefix}"),
        ]);
        let said = run(&mut list, "").await.ok()?;
        said.strip_prefix("refs/heads/").map(String::from)
    };
    for (at, _) in name.match_indices('/') {
        let above = &name[..at];
        if first(above).await.as_deref() == Some(above) {
            return Some(above.to_string());
        }
    }
    first(&format!("{name}/")).await
}

/// Whether a clone of ours exists: its `.git` is a directory, and no link to another.
pub(crate) fn is_clone(dir: &Path) -> bool {
    [dir.to_owned(), dir.join(".git")]
        .iter()
        .all(|path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()))
}

/// The harness's files in a working directory, as patterns of git's ignore files.
const OURS: [&str; 7] = [
    "/.muleteer/worktrees/",
    "/.muleteer/runs/",
    "/.muleteer/beads/",
    // A task list may be in any folder.
    "**/.muleteer/tasks/",
    "**/.muleteer/tasks.lock",
    "/.agents/journals/",
    "/.agents/meetings/",
];

/// Excludes the harness's files from `git status` and `git clean -fd`.
///
/// A link or special file stays as it is: in a clone that an agent has worked in, it may lead to a
/// place where the agent itself may not write.
pub fn exclude(git_dir: &Path) -> std::io::Result<()> {
    const LONGEST: u64 = 1024 * 1024;
    let path = git_dir.join("info/exclude");
    let text = match crate::untrusted_path::read(git_dir, Path::new("info/exclude"), LONGEST) {
        Ok(bytes) => String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "left as it is");
            return Ok(());
        }
    };
    let missing: Vec<_> =
        OURS.into_iter().filter(|line| !text.lines().any(|known| known == *line)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(git_dir.join("info"))?;
    let no_link = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.append(true).create(true).custom_flags(no_link).open(&path)?;
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{gap}{}\n", missing.join("\n")).as_bytes())
}

/// Returns the `.git` directory of the repository that `dir` is in, if there is one.
pub async fn git_dir(dir: &Path) -> Option<std::path::PathBuf> {
    let text = run(git(dir).args(["rev-parse", "--path-format=absolute", "--git-common-dir"]), "")
        .await
        .ok()?;
    Some(text.into())
}

/// Returns the top of the repository that `dir` is in, if there is one.
pub async fn top(dir: &Path) -> Option<std::path::PathBuf> {
    run(git(dir).args(["rev-parse", "--show-toplevel"]), "").await.ok().map(Into::into)
}

/// Returns git's complaint if it refuses to work in the repository that `dir` is in; `None` also
/// without a repository.
pub async fn refusal(dir: &Path) -> Option<CommandError> {
    let asked =
        run(git(dir).args(["rev-parse", "--show-toplevel"]), "git does not work there").await;
    asked.err().filter(|why| why.meaning() != Some(Meaning::NotARepository))
}

/// Checks whether a clone can borrow the objects of a repository.
///
/// # Errors
/// git writes their path on one line, so it cannot use a path with a line break.
pub fn lends(top: &Path) -> Result<(), Refusal> {
    match top.as_os_str().as_bytes().contains(&b'\n') {
        true => Err(Refusal::LineBreak(top.into())),
        false => Ok(()),
    }
}

/// The hint for a repository whose objects cannot be borrowed.
pub const RENAME: &str = "give the directory a name without one";

/// Returns the commit that is checked out, if there is one.
pub async fn head(dir: &Path) -> Option<String> {
    run(git(dir).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]), "").await.ok()
}

/// Returns the commit of a branch. A tag of the same name, or another expression for a commit, does
/// not count.
pub async fn tip(dir: &Path, branch: &str) -> Option<String> {
    let name = format!("refs/heads/{branch}");
    run(git(dir).args(["show-ref", "--verify", "--hash", &name]), "").await.ok()
}

/// Whether the commit that is checked out has something at a path.
pub async fn has(dir: &Path, path: &str) -> bool {
    run(git(dir).args(["ls-tree", "HEAD", "--", path.trim_end_matches('/')]), "")
        .await
        .is_ok_and(|listed| !listed.is_empty())
}

pub async fn is_branch_name(dir: &Path, name: &str) -> bool {
    run(git(dir).args(["check-ref-format", "--branch", name]), "").await.is_ok()
}

/// Returns the branch that is checked out. git's own short form has `heads/` in front if a tag has
/// the same name.
pub async fn branch(dir: &Path) -> Option<String> {
    let name = run(git(dir).args(["symbolic-ref", "HEAD"]), "").await.ok()?;
    name.strip_prefix("refs/heads/").map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// git does not clone into a folder that is not empty.
    #[tokio::test]
    async fn incomplete_clone_of_a_killed_daemon_is_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (project, id) = (dir.path().join("project"), "abcd2345");
        std::fs::create_dir(&project).expect("a directory");
        for args in [
            &["init", "--quiet"][..],
            &[
                "-c",
                "user.name=T",
                "-c",
                "user.email=t@example.invalid",
                "commit",
                "--quiet",
                "--allow-empty",
                "-mstart",
            ],
        ] {
            run(git(&project).args(args), "a repository").await.expect("a repository");
        }
        let worktree = dir.path().join("worktrees/it");
        let partial = dir.path().join(format!("worktrees/.{id}.partial/.git/objects"));
        std::fs::create_dir_all(&partial).expect("a part");
        let branch_name = format!("muleteer/{id}");
        let new = NewClone { id, branch: &branch_name, has_email: false, path: None };
        ensure(&project, &worktree, new).await.expect("a clone");
        assert_eq!(branch(&worktree).await, Some(branch_name));
        assert!(!partial.exists());
    }
}
