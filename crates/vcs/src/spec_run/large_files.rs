//! The files of a run that git-lfs keeps. The private repository gathers the objects of all agents
//! (`keep.git/lfs/objects`): clones get them from there, and so does the person's repository.

use crate::command::{git, run, run_bytes};
use crate::error::{FileError, RepoError};
use crate::lfs::{self, Store};
use crate::spec_run::RunRepos;
use std::collections::HashSet;
use std::path::Path;

/// Whether the person or an agent of the run keeps files with git-lfs. `dir` is a clone.
fn is_used(repos: &RunRepos, dir: &Path) -> bool {
    let keep = repos.paths.keep();
    let of_agent = std::fs::symlink_metadata(dir.join(".git/lfs")).is_ok();
    of_agent || lfs::has_kept(&keep) || lfs::lender(&keep).is_some_and(|it| lfs::has_kept(&it))
}

/// Gives a new clone the content of its files. Returns a message if its agent will see pointers.
pub(super) async fn bring_in(repos: &RunRepos, clone: &Path) -> Result<Option<String>, RepoError> {
    let keep = repos.paths.keep();
    lfs::bring_in(&repos.repo, clone, Some(&keep), repos.path.as_deref()).await
}

/// Gathers the objects of a clone's commits. Some may be another agent's, and come with its clone.
/// A failure does not fail the agent: the result names files without content.
///
/// # Errors
/// The disk is full.
pub(super) async fn gather(
    repos: &RunRepos,
    dir: &Path,
    tips: &[String],
    base: Option<&str>,
) -> Result<(), RepoError> {
    if !is_used(repos, dir) {
        return Ok(());
    }
    let from = vec![dir.join(".git"), repos.paths.hub()];
    let taken = async {
        let wanted = lfs::wanted(&repos.paths.keep(), tips, &Vec::from_iter(base)).await?;
        lfs::take(wanted, stores(repos).await, from, repos.halt.clone()).await
    };
    match taken.await {
        Err(why) if why.is_disk_full() => Err(why),
        Err(why) => {
            tracing::warn!(dir = %dir.display(), %why, "failed to gather files of git-lfs");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Returns the store of the run, and the person's.
async fn stores(repos: &RunRepos) -> Vec<Store> {
    let keep = repos.paths.keep();
    let mut stores = vec![Store::below(&keep)];
    if let Some(person) = lfs::lender(&keep) {
        stores.push(Store::of_person(&repos.repo, &person).await);
    }
    stores
}

/// Returns the files of a clone that only differ from their commit by the content that git-lfs
/// keeps.
pub(super) async fn unchanged(
    repos: &RunRepos,
    dir: &Path,
    commit: &str,
) -> Result<HashSet<Vec<u8>>, RepoError> {
    if !is_used(repos, dir) || commit.starts_with('-') {
        return Ok(HashSet::new());
    }
    let keep = repos.paths.keep();
    let mut list = git(&keep);
    list.args(["ls-tree", "-r", "-z", "-l", "--full-tree", commit]);
    let tracked = run_bytes(&mut list, "cannot read the tree").await?;
    lfs::unchanged(&|| git(&keep), dir, &tracked).await
}

/// Copies the gathered objects into the person's repository, before a branch that needs them.
///
/// # Errors
/// One cannot be written.
pub(super) async fn bring_home(repo: &Path, keep: &Path) -> Result<(), RepoError> {
    let Some(person) = lfs::lender(keep).filter(|_| lfs::has_kept(keep)) else { return Ok(()) };
    let (store, keep) = (Store::of_person(repo, &person).await, keep.to_owned());
    let copying =
        tokio::task::spawn_blocking(move || store.take_all(&keep).map_err(FileError::at(&keep)));
    Ok(copying.await??)
}

/// Reports files of the result whose content no agent has brought.
pub(super) async fn report_missing(repos: &RunRepos, target: &str) {
    let keep = repos.paths.keep();
    if !lfs::has_kept(&keep) && lfs::lender(&keep).is_none_or(|person| !lfs::has_kept(&person)) {
        return;
    }
    let base = format!("refs/muleteer/base/{}", repos.run_id);
    let base = ["rev-parse", "--verify", "--quiet", &base];
    let base = run(git(&repos.repo).args(base), "").await.ok();
    let tips = [format!("refs/heads/{target}")];
    let found = async {
        let wanted = lfs::wanted(&keep, &tips, &Vec::from_iter(base.as_deref())).await?;
        lfs::take(wanted, stores(repos).await, vec![], repos.halt.clone()).await
    };
    match found.await {
        Ok(missing) if missing.is_empty() => {}
        Ok(missing) => {
            let what = lfs::describe_missing(&missing).unwrap_or_default();
            repos.note_repair(format!("{what}, is not in the result"));
        }
        Err(why) => tracing::warn!(%why, "failed to list the files of git-lfs"),
    }
}
