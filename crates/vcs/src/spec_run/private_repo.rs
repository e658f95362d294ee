//! The harness's private repository of a run: the verified target branch, and everything else that
//! must not get lost. Only the harness writes it. The hub, which agents can write, is only fetched
//! from.
//!
//! ```text
//! keep.git/refs/heads/<target>            the verified integration branch
//!          refs/muleteer/hub              the hub's target at the last fetch
//!          refs/muleteer/taken            the target of a damaged hub
//!          refs/muleteer/work/<clone>     an agent's commits
//!          refs/muleteer/rescue/<clone>   its uncommitted files
//!          refs/muleteer/left/<clone>/    its other branches, or an interrupted rebase
//!          refs/muleteer/undone/<commit>  a push that was undone
//!          refs/muleteer/rebased/<tip>    the branch, rebased onto the remote's base
//!          refs/muleteer/pushed/<name>    a branch that was pushed to the remote
//! heads/<clone>                           a clone's HEAD
//! bases/<clone>                           the commit that it began at
//! own/<clone>                             its agent's newest commit
//! lost/<clone>                            the base of a clone that could not be read
//! ```

use crate::command::{CommandError, UPLOAD_PACK, fetching, git, run, run_within};
use crate::error::{FileError, Refusal, RepoError};
use crate::git_files;
pub use crate::git_files::{check_files, hash, head, loose};
use crate::spec_run::RunRepos;
use crate::untrusted_path;
use muleteer_store::atomic::put_dir;
use std::path::Path;
use std::time::Duration;

/// The hub's target at the last fetch.
pub const HUB: &str = "refs/muleteer/hub";
/// The folder of refs with each clone's commits, by the clone's name.
pub const WORK: &str = "refs/muleteer/work";
pub const LEFT: &str = "refs/muleteer/left";
pub const RESCUE: &str = "refs/muleteer/rescue";
pub const UNDONE: &str = "refs/muleteer/undone";
/// The timeout for listing refs. A repository answers at once unless its agent makes git hang.
const AT_ONCE: Duration = Duration::from_secs(20);
/// The timeout for a fetch from an agent's repository. The run's other agents wait meanwhile.
const BRINGING: Duration = Duration::from_secs(5 * 60);
/// The timeout of both once the run was stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// A git lock older than this is stale.
pub const STALE: Duration = Duration::from_secs(4);
/// The file in which git lists commits without their parents.
pub const SHALLOW: &str = "shallow";
/// The limit of an alternates file.
pub const ALTERNATES_LIMIT: u64 = 64 * 1024;

/// Makes the private repository unless it exists, with `target` at `base`. For a run that began
/// before there was such a repository, it is made from the hub.
///
/// The caller holds [`RunRepos::git`].
pub async fn ensure(repos: &RunRepos, target: &str, base: Option<&str>) -> Result<(), RepoError> {
    let keep = repos.paths.keep();
    if keep.join("HEAD").exists() {
        return Ok(());
    }
    let partial = repos.paths.private.join(".keep.partial");
    crate::spec_run::clones::remove(&partial).await?;
    bare(repos, &partial).await?;
    let name = format!("refs/heads/{target}");
    let hub = repos.paths.hub();
    if hub.join("HEAD").exists() {
        adopt(repos, &partial, &hub, &name).await?;
    } else {
        let base = base.ok_or(Refusal::NoPrivateRepository)?;
        run(
            git(&partial).args(["update-ref", &name, base]),
            "cannot create the integration branch",
        )
        .await?;
    }
    Ok(put_dir(&partial, &keep)?)
}

/// Makes an empty bare repository that borrows the objects of the person's repository.
pub async fn bare(repos: &RunRepos, dir: &Path) -> Result<(), RepoError> {
    let asked = run(
        git(&repos.repo).args([
            "rev-parse",
            "--show-object-format",
            "--path-format=absolute",
            "--git-path",
            "objects",
            "--git-path",
            "shallow",
        ]),
        "cannot find the repository's objects",
    )
    .await?;
    let mut answers = asked.lines();
    let mut next = || answers.next().ok_or(CommandError::NoObjectFolder);
    let (format, objects, shallow) = (next()?, next()?, next()?);
    let format = format!("--object-format={format}");
    run(
        git(&repos.paths.private)
            .args(["init", "--quiet", "--bare", "--template=", &format])
            .arg(dir),
        "cannot create a repository",
    )
    .await?;
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.and_then(|()| std::fs::write(&path, text)).map_err(FileError::at(&path))
    };
    write("objects/info/alternates", format!("{objects}\n"))?;
    // If the person's clone is shallow, its missing history is not needed here either.
    if let Ok(roots) = std::fs::read_to_string(shallow) {
        write(SHALLOW, roots)?;
    }
    Ok(write("info/exclude", String::new())?)
}

/// Imports the refs from the hub of an earlier version's run. Agents could write that hub, so refs
/// that could lead to a pull request of unjudged work are left behind.
async fn adopt(repos: &RunRepos, keep: &Path, hub: &Path, name: &str) -> Result<(), RepoError> {
    let mut fetch = fetching(keep, hub);
    fetch.arg(format!("+{name}:{HUB}"));
    for folder in [WORK, RESCUE, UNDONE] {
        fetch.arg(format!("+{folder}/*:{folder}/*"));
    }
    run(&mut fetch, "cannot import the hub").await?;
    let seen = repos.paths.private.join("seen");
    let seen =
        untrusted_path::read_file(&seen, git_files::REF_LIMIT).ok().and_then(|bytes| hash(&bytes));
    let tip = seen.as_deref().unwrap_or(HUB);
    run(git(keep).args(["update-ref", name, tip]), "cannot import the integration branch").await?;
    let list = ["for-each-ref", "--format=%(objectname) %(refname:lstrip=3)", WORK];
    let listed = run(git(keep).args(list), "cannot list the refs of the hub").await?;
    for (head, clone) in listed.lines().filter_map(|line| line.split_once(' ')) {
        crate::spec_run::clones::remember(repos, clone, head)?;
        crate::spec_run::clones::remember_own(repos, clone, head)?;
    }
    Ok(())
}

/// Returns the commit of a ref in the private repository.
pub async fn at(repos: &RunRepos, name: &str) -> Option<String> {
    let keep = repos.paths.keep();
    match loose(&keep, name) {
        Some(commit) => Some(commit),
        None => run(git(&keep).args(["rev-parse", "--verify", "--quiet", name]), "").await.ok(),
    }
}

pub async fn set(repos: &RunRepos, name: &str, commit: &str, what: &str) -> Result<(), RepoError> {
    let update = || {
        let mut command = git(&repos.paths.keep());
        command.args(["update-ref", name, commit]);
        command
    };
    write(repos, &[name], what, &update, None).await
}

/// Asks git for the commit of a ref in an agent's repository; `None` if the ref does not exist.
pub async fn asked(repos: &RunRepos, from: &Path, name: &str) -> Result<Option<String>, RepoError> {
    let mut ask = git(&repos.paths.keep());
    ask.args(["ls-remote", "--upload-pack", UPLOAD_PACK]).arg(from).arg(name);
    let said = read(repos, from, &mut ask, AT_ONCE, "it does not answer").await?;
    Ok(said.split_whitespace().next().and_then(|word| hash(word.as_bytes())))
}

/// Returns the commits of all branches of an agent's repository.
pub async fn branches(repos: &RunRepos, from: &Path) -> Result<Vec<String>, RepoError> {
    let mut ask = git(&repos.paths.keep());
    ask.args(["ls-remote", "--upload-pack", UPLOAD_PACK]).arg(from).arg("refs/heads/*");
    let said = read(repos, from, &mut ask, AT_ONCE, "its branches cannot be listed").await?;
    Ok(said.lines().filter_map(|line| hash(line.split_whitespace().next()?.as_bytes())).collect())
}

/// Fetches a commit from an agent's repository into the refs `names`; a `+` overwrites them. It
/// fetches by hash, because for a name git would search all refs, and links among them can be
/// endless.
pub async fn fetch(
    repos: &RunRepos,
    from: &Path,
    commit: &str,
    names: &[&str],
    what: &str,
) -> Result<(), RepoError> {
    let fetch = || {
        let mut command = fetching(&repos.paths.keep(), from);
        for name in names {
            let force = if name.starts_with('+') { "+" } else { "" };
            command.arg(format!("{force}{commit}:{}", name.trim_start_matches('+')));
        }
        command
    };
    let written: Vec<&str> = names.iter().map(|name| name.trim_start_matches('+')).collect();
    write(repos, &written, what, &fetch, Some(from)).await
}

/// Runs a git that reads an agent's repository. It times out after `patience`, and sooner once the
/// run is stopped, because an agent can make git hang.
async fn read(
    repos: &RunRepos,
    from: &Path,
    command: &mut tokio::process::Command,
    patience: Duration,
    what: &str,
) -> Result<String, RepoError> {
    let git_dir = from.to_owned();
    let looking = tokio::task::spawn_blocking(move || check_files(&git_dir));
    looking.await?.map_err(RepoError::step(what))?;
    let stopped = async {
        repos.halt.cancelled().await;
        tokio::time::sleep(STOPPED).await;
    };
    tokio::select! {
        said = run_within(command, patience, what) => Ok(said?),
        // The dropped future kills git with all its child processes.
        () = stopped => Err(CommandError::RunStopped { purpose: what.into() }.into()),
    }
}

pub async fn is_ancestor(repos: &RunRepos, one: &str, other: &str) -> bool {
    run(git(&repos.paths.keep()).args(["merge-base", "--is-ancestor", one, other]), "")
        .await
        .is_ok()
}

/// Runs a git that writes refs here, and that reads an agent's repository if `from` names one. The
/// git of a killed daemon leaves locks. Only this harness writes here, so a lock that stays is
/// stale.
async fn write(
    repos: &RunRepos,
    written: &[&str],
    what: &str,
    command: &(impl Fn() -> tokio::process::Command + Sync),
    from: Option<&Path>,
) -> Result<(), RepoError> {
    let once = async || match from {
        Some(from) => read(repos, from, &mut command(), BRINGING, what).await,
        None => run(&mut command(), what).await.map_err(RepoError::from),
    };
    let done = once().await;
    let mut locks: Vec<String> = written.iter().map(|name| format!("{name}.lock")).collect();
    locks.extend(["HEAD.lock", "packed-refs.lock", "shallow.lock"].map(String::from));
    let own = repos.paths.keep();
    if done.is_ok() || locks.iter().all(|lock| untrusted_path::age(&own, Path::new(lock)).is_none())
    {
        return done.map(drop);
    }
    unlock(&own, &locks).await;
    once().await.map(drop)
}

/// Waits for these locks, and removes those that stay: a living git holds them for milliseconds.
pub async fn unlock(git_dir: &Path, locks: &[String]) {
    for _ in 0..60 {
        let mut held = false;
        for lock in locks {
            let Some(age) = untrusted_path::age(git_dir, Path::new(lock)) else { continue };
            held = true;
            if age > STALE && untrusted_path::remove(git_dir, Path::new(lock)) {
                tracing::warn!(%lock, "removed a lock of a killed git");
            }
        }
        if !held {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
