//! The uncommitted files of a clone: they are saved before the clone is removed.

use crate::command::{git, run};
use crate::error::{Damage, FileError, Refusal, RepoError};
use crate::spec_run::clones::index::Index;
use crate::spec_run::clones::{base, known, work};
use crate::spec_run::private_repo::{self, RESCUE};
use crate::spec_run::{RunRepos, name_of};
use crate::user_repo::large_files::{self, Large};
use muleteer_process::fault;
use muleteer_store::removal;
use std::path::Path;
use std::time::Duration;

/// The timeout for saving uncommitted files.
const RESCUING: Duration = Duration::from_secs(5 * 60);

/// Whether the clone has changed or untracked files; `.gitignore` is obeyed.
pub async fn is_dirty(repos: &RunRepos, dir: &Path) -> Result<bool, RepoError> {
    let base = base(repos, &name_of(dir));
    match changes(repos, dir, base.as_deref()).await {
        Err(why) if why.exceeds_output() => {
            tracing::warn!(dir = %dir.display(), "a clone has too many untracked files to list");
            Ok(true)
        }
        changes => Ok(!changes?.is_empty()),
    }
}

async fn changes(repos: &RunRepos, dir: &Path, base: Option<&str>) -> Result<String, RepoError> {
    const WHAT: &str = "cannot compare";
    if !dir.is_dir() {
        return Ok(String::new());
    }
    let index = Index::new(repos, dir);
    let base = base.unwrap_or("--empty");
    run(index.git(repos, dir).args(["read-tree", base]), "cannot read the tree").await?;
    let left_out = index.leave_out_large(repos, dir, base).await?;
    let left_out = left_out.all.iter().map(|one| format!("?? {}", one.path.display()));
    // The status compares with the commit as well, because a new index does not know deleted files.
    // A nested repository is ignored: its git would obey its own configuration.
    let status = [
        "status",
        "--porcelain",
        // The branch line comes first, because `run` trims the beginning of the first line.
        "--branch",
        "--untracked-files=normal",
        "--no-renames",
        "--ignore-submodules=all",
    ];
    let listed = run(index.git(repos, dir).args(status), WHAT).await.map_err(RepoError::from);
    let text = match listed {
        Err(why) if !why.is_disk_full() && !why.exceeds_output() => {
            // git fails on some attributes.
            run(index.plain(repos, dir, base).args(status), WHAT).await?
        }
        text => text?,
    };
    Ok(text
        .lines()
        .filter(|line| !line.starts_with("## "))
        .filter(|line| {
            !line.starts_with("M ") && !line.starts_with("A ") && !line.starts_with("D ")
        })
        .map(String::from)
        .chain(left_out)
        .collect::<Vec<_>>()
        .join("\n"))
}

/// Saves the uncommitted files of a clone as a commit. Returns its ref, and the files that are too
/// large to save.
async fn rescue(repos: &RunRepos, dir: &Path) -> Result<(Option<String>, Vec<Large>), RepoError> {
    let clone = name_of(dir);
    let head = known(repos, "heads", &clone).or_else(|| base(repos, &clone));
    let Some(head) = head else { return Ok((None, vec![])) };
    let changes = match changes(repos, dir, Some(&head)).await {
        // The clone is the only place that has them, so it stays.
        Err(why) if why.exceeds_output() => return Err(Refusal::TooManyFiles.into()),
        changes => changes?,
    };
    if changes.is_empty() {
        return Ok((None, vec![]));
    }
    let what = "cannot save the uncommitted changes";
    let index = Index::new(repos, dir);
    run(index.git(repos, dir).args(["read-tree", &head]), "cannot read the tree").await?;
    index.forget_submodules(repos, dir, &head).await?;
    let left_out = index.leave_out_large(repos, dir, &head).await?;
    index.add_all(repos, dir, &head, (RESCUING, what)).await?;
    index.forget(repos, dir, &head, &left_out.new).await?;
    let tree = run(index.plain(repos, dir, &head).args(["write-tree"]), what).await?;
    if !left_out.all.is_empty() {
        let before = format!("{head}^{{tree}}");
        let before = run(git(&repos.paths.keep()).args(["rev-parse", &before]), what).await?;
        if before == tree {
            return Ok((None, left_out.all));
        }
    }
    let mut commit = git(&repos.paths.keep());
    for role in ["AUTHOR", "COMMITTER"] {
        commit
            .env(format!("GIT_{role}_NAME"), "Muleteer")
            .env(format!("GIT_{role}_EMAIL"), "rescue@muleteer.invalid");
    }
    let message = format!("uncommitted changes of {clone}");
    let commit =
        run(commit.args(["commit-tree", &tree, "-p", &head, "-m", &message]), what).await?;
    let name = format!("{RESCUE}/{clone}");
    private_repo::set(repos, &name, &commit, what).await?;
    Ok((Some(name), left_out.all))
}

/// The suffix of a clone that is no longer needed and may be half removed: `.<name>.gone`.
const GONE: &str = ".gone";

/// Removes a clone after it has saved work that exists nowhere else. If it is killed on the way,
/// the next call for the folder's new name finishes, because half a clone cannot be read any more.
pub async fn discard(
    repos: &RunRepos,
    dir: &Path,
    target: &str,
) -> Result<Option<String>, RepoError> {
    let name = name_of(dir);
    if name.starts_with('.') && name.ends_with(GONE) {
        return remove(dir).await.map(|()| None);
    }
    if !dir.is_dir() {
        return Ok(None);
    }
    if let Some(why) = work(repos, dir, target).await?.unreadable {
        // It may hold work that exists nowhere else, so it stays.
        return Err(Damage::Unreadable(why).into());
    }
    let (saved, left_out) = rescue(repos, dir).await?;
    if !left_out.is_empty() {
        // It is the only place that has them, so it stays.
        return Err(Refusal::TooLarge { names: large_files::names(&left_out), saved }.into());
    }
    let gone = dir.with_file_name(format!(".{name}{GONE}"));
    remove(&gone).await?;
    std::fs::rename(dir, &gone).map_err(FileError::at(dir))?;
    fault::point("run.mid_discard");
    remove(&gone).await?;
    Ok(saved)
}

/// Removes a tree of any depth, which an agent may have made. The git of a killed daemon, or the
/// agent of a killed shim, may still write in it for a moment, so removal is retried.
pub async fn remove(path: &Path) -> Result<(), RepoError> {
    const TRIES: usize = 20;
    for last in (0..=TRIES).map(|n| n == TRIES) {
        let tree = path.to_owned();
        // An agent decides how long this takes, so it must not block a task of the daemon.
        let removing =
            tokio::task::spawn_blocking(move || removal::remove_tree(&tree, removal::PATIENCE));
        match removing.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) if last || error.kind() == std::io::ErrorKind::TimedOut => {
                return Err(FileError::at(path)(error).into());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    Ok(())
}
