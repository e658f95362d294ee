//! Brings the branch of a run into the person's repository.

use crate::command::{CommandError, fetching, git, run as git_run};
use crate::error::{Refusal, RepoError};
use crate::git_repair;
use crate::spec_run::{RunRepos, hub, large_files};
use crate::user_repo::{Git, GitError};
use crate::worktree;
use std::path::Path;

/// The limit of names that are tried for a result, because people may have committed on earlier
/// ones.
pub const MOST_BESIDE: u32 = 10;

/// Fetches the integration branch into the repository, under its own name if possible.
pub async fn bring_home(repos: &RunRepos, target: &str) -> Result<String, RepoError> {
    large_files::report_missing(repos, target).await;
    let (repo, own) = (&repos.repo, &repos.paths.keep());
    let fetch = |name: String| async move {
        run_fetch(repo, own, &format!("refs/heads/{target}:refs/heads/{name}"))
            .await
            .map(|()| name)
    };
    if let Some(dir) = worktree::git_dir(repo).await {
        // A stale lock would make git bring it under another name.
        git_repair::forget_stale_locks(&dir);
    }
    let checked_out = worktree::branch(repo).await.as_deref() == Some(target);
    if !checked_out && let Ok(name) = fetch(target.to_string()).await {
        return Ok(name);
    }
    if checked_out {
        // The checked-out branch only moves by a fast-forward that damages nothing in the working
        // directory.
        let came = format!("refs/muleteer/run/{}", repos.run_id);
        run_fetch(repo, own, &format!("+refs/heads/{target}:{came}")).await?;
        let commit =
            git_run(git(repo).args(["rev-parse", &format!("{came}^{{commit}}")]), "nothing came")
                .await?;
        let (dir, global) = (repo.clone(), repos.paths.configuration());
        let merged = tokio::task::spawn_blocking(move || forward(&dir, &global, &commit)).await;
        git_run(git(repo).args(["update-ref", "-d", &came]), "cannot tidy").await?;
        match merged? {
            Ok(()) => return Ok(target.to_string()),
            Err(error) => tracing::info!(%error, "fetching the branch under another name"),
        }
    }
    // The branch has moved on, or the working directory is in the way, so the result gets a branch
    // of its own. That one only moves forward too: commits of a person on an earlier result stay.
    let commit =
        hub::commit(repos, target).await.ok_or_else(|| Refusal::NoBranch(target.into()))?;
    let beside = format!("muleteer/{}", repos.run_id);
    let beside = if beside == target { format!("{beside}-result") } else { beside };
    // If a branch `muleteer` exists, git cannot make one below it.
    let names = [beside, format!("muleteer-{}", repos.run_id)].into_iter().flat_map(|name| {
        let numbered: Vec<_> = (2..MOST_BESIDE).map(|n| format!("{name}-{n}")).collect();
        [name].into_iter().chain(numbered)
    });
    bring_as(repos, &commit, names).await
}

/// Brings a commit of the private repository as the first of these branches that has it already, or
/// that can move forward to it. Returns the branch.
pub async fn bring_as(
    repos: &RunRepos,
    commit: &str,
    names: impl IntoIterator<Item = String>,
) -> Result<String, RepoError> {
    let (repo, own) = (&repos.repo, &repos.paths.keep());
    let mut refused = RepoError::from(Refusal::NoName);
    for name in names {
        let branch = format!("refs/heads/{name}");
        let has_it = ["merge-base", "--is-ancestor", commit, &branch];
        if git_run(git(repo).args(has_it), "").await.is_ok() {
            return Ok(name);
        }
        match run_fetch(repo, own, &format!("{commit}:{branch}")).await {
            Ok(()) => return Ok(name),
            Err(why) => refused = why,
        }
    }
    Err(refused)
}

/// Brings a commit of the private repository as a ref, whatever that was before.
pub async fn bring_ref(repos: &RunRepos, commit: &str, name: &str) -> Result<(), RepoError> {
    run_fetch(&repos.repo, &repos.paths.keep(), &format!("+{commit}:{name}")).await
}

/// Sets a ref for the run's start commit in the person's repository, or removes it. The run's own
/// repositories borrow objects from there, and git may delete commits that a person rewrote.
///
/// # Errors
/// git cannot write the ref.
pub async fn keep_base(repos: &RunRepos, commit: Option<&str>) -> Result<(), RepoError> {
    let name = format!("refs/muleteer/base/{}", repos.run_id);
    if let Some(dir) = worktree::git_dir(&repos.repo).await {
        // A killed git of ours may have left the lock. Nobody else writes this ref, and one run has
        // one daemon.
        let _ = std::fs::remove_file(dir.join(format!("{name}.lock")));
    }
    let args: &[&str] = match commit {
        Some(commit) => &["update-ref", &name, commit],
        None => &["update-ref", "-d", &name],
    };
    git_run(git(&repos.repo).args(args), &name).await?;
    Ok(())
}

/// Counts the commits of the private repository that `tip` has and `base` does not.
///
/// # Errors
/// git cannot read them.
pub async fn count_commits(repos: &RunRepos, base: &str, tip: &str) -> Result<u32, RepoError> {
    let mut count = git(&repos.paths.keep());
    count.args(["rev-list", "--count", &format!("{base}..{tip}")]);
    let counted = git_run(&mut count, "cannot count the commits").await?;
    Ok(counted.parse().map_err(|_| CommandError::NotACount(counted))?)
}

/// Returns the size of the difference between two commits of the private repository, in the words
/// of `git diff --shortstat`.
///
/// # Errors
/// git cannot read them.
pub async fn diff_stat(repos: &RunRepos, base: &str, tip: &str) -> Result<String, RepoError> {
    let mut diff = git(&repos.paths.keep());
    diff.args(["diff-tree", "-r", "--shortstat", "--no-ext-diff", "--no-textconv", base, tip]);
    Ok(git_run(&mut diff, "cannot compare the commits").await?.trim().to_string())
}

/// Whether the private repository has a commit that the person's repository does not have.
pub async fn is_only_of_run(repos: &RunRepos, commit: &str) -> bool {
    let object = format!("{commit}^{{commit}}");
    let has =
        async |repo: &Path| git_run(git(repo).args(["cat-file", "-e", &object]), "").await.is_ok();
    has(&repos.paths.keep()).await && !has(&repos.repo).await
}

/// Moves the checked-out branch to the commit. Blocks.
fn forward(repo: &Path, configuration: &Path, commit: &str) -> Result<(), GitError> {
    let git = Git::open_obeying(repo, configuration)?;
    git.forward(&git.head()?, commit)?;
    git.settle()?;
    git.forwarded()
}

async fn run_fetch(repo: &Path, own: &Path, refspec: &str) -> Result<(), RepoError> {
    // They come before the commits that need them: a checkout would fail.
    large_files::bring_home(repo, own).await?;
    git_run(fetching(repo, own).arg(refspec), "cannot fetch the branch into the repository")
        .await?;
    Ok(())
}
