//! The hub of a run: a bare repository that its agents push to. Agents can write its files, so the
//! harness never runs git *in* it. The harness fetches from the hub into its private repository
//! (`keep`), verifies the commits there, and writes the one ref that it sets in the hub as a file.

mod repair;
mod structure;
mod taken;

use crate::command::{DURABLE, git, run};
use crate::error::{FileError, Refusal, RepoError};
use crate::partial_clone;
use crate::spec_run::RunRepos;
use crate::spec_run::private_repo::{self, HUB, UNDONE};
use crate::untrusted_path;
use muleteer_process::fault;
use muleteer_store::atomic::put_dir;
use repair::Pushes;
use std::path::{Path, PathBuf};

pub use crate::spec_run::clones::{
    discard, is_dirty, outlived_the_machine, was_pushed, work, worktree,
};

/// Makes the hub and the private repository, with the integration branch at `base`, unless they
/// exist.
pub async fn ensure(repos: &RunRepos, base: &str, target: &str) -> Result<(), RepoError> {
    let _one = repos.git.lock().await;
    // Agents' clones borrow these objects and fetch none. It is asked again after a restart, until
    // there is a hub.
    if !repos.paths.hub().join("HEAD").exists() {
        partial_clone::complete(&repos.repo, base).await?;
    }
    private_repo::ensure(repos, target, Some(base)).await?;
    let hub = repos.paths.hub();
    if std::fs::symlink_metadata(&hub).is_ok() || repair::is_known(&repos.paths) {
        return repair::mend(repos, target, false).await;
    }
    let partial = build(repos, target).await?;
    Ok(put_dir(&partial, &hub)?)
}

/// Makes a new hub in a temporary folder, with the integration branch at the verified commit.
async fn build(repos: &RunRepos, target: &str) -> Result<PathBuf, RepoError> {
    let name = format!("refs/heads/{target}");
    let tip = private_repo::at(repos, &name).await.ok_or(Refusal::NoIntegrationBranch)?;
    let partial = repos.paths.private.join(".hub.partial");
    crate::spec_run::clones::remove(&partial).await?;
    private_repo::bare(repos, &partial).await?;
    // Gathered commits stay readable even if the hub's own objects are damaged.
    let lenders = partial.join("objects/info/alternates");
    let own = format!("{}\n", repos.paths.keep().join("objects").display());
    std::fs::read_to_string(&lenders)
        .and_then(|known| std::fs::write(&lenders, known + &own))
        .map_err(FileError::at(&lenders))?;
    // The folder must exist, because sandboxes mount it read-only.
    let hooks = partial.join("hooks");
    std::fs::create_dir_all(&hooks).map_err(FileError::at(&hooks))?;
    for (key, value) in [
        // Only fast-forward pushes are accepted, and no branch may be deleted.
        ("receive.denyNonFastForwards", "true"),
        ("receive.denyDeletes", "true"),
        // After a successful push the agent's clone may be removed, so git syncs the push first.
        DURABLE.split_once('=').unwrap_or((DURABLE, "")),
        ("gc.auto", "0"),
        ("core.logAllRefUpdates", "true"),
        // A push need not advertise the other refs of the person's repository.
        ("core.alternateRefsCommand", "true"),
    ] {
        run(git(&partial).args(["config", key, value]), "cannot configure the hub").await?;
    }
    // No other ref may be pushed, because the harness gathers only the target.
    for hidden in ["refs", &format!("!{name}")] {
        run(
            git(&partial).args(["config", "--add", "receive.hideRefs", hidden]),
            "cannot configure the hub",
        )
        .await?;
    }
    run(git(&partial).args(["symbolic-ref", "HEAD", &name]), "cannot set the hub's branch").await?;
    // The ref is written before any agent can write here.
    run(git(&partial).args(["update-ref", &name, &tip]), "cannot create the integration branch")
        .await?;
    repair::remember(&repos.paths, &partial)?;
    Ok(partial)
}

/// Repairs the hub unless the harness is working with it right now. Running agents can push again
/// afterwards.
pub async fn watch(repos: &RunRepos, target: &str) -> Result<(), RepoError> {
    let Ok(_one) = repos.git.try_lock() else { return Ok(()) };
    if !repos.paths.keep().join("HEAD").exists() {
        return Ok(());
    }
    repair::mend(repos, target, false).await
}

/// Returns the object folder that clones borrow from, and those that it borrows from in turn.
pub async fn lenders(repos: &RunRepos) -> Vec<PathBuf> {
    let own = repos.paths.keep().join("objects");
    let mut found = vec![own.clone()];
    let mut next = vec![own];
    while let Some(objects) = next.pop().filter(|_| found.len() < 100) {
        let lent = untrusted_path::read(
            &objects,
            Path::new("info/alternates"),
            private_repo::ALTERNATES_LIMIT,
        );
        let lent = lent.ok().flatten().unwrap_or_default();
        for line in String::from_utf8_lossy(&lent).lines().filter(|line| line.starts_with('/')) {
            let path = PathBuf::from(line);
            if !found.contains(&path) {
                next.push(path.clone());
                found.push(path);
            }
        }
    }
    found
}

/// A fetch of a push is tried this often before the hub counts as damaged.
const TAKE_TRIES: u32 = 2;

/// How the hub's target relates to the commit that was verified before.
enum Pushed {
    Nothing,
    Forward,
    /// The target is no fast-forward, or is gone.
    Rewritten(Option<String>),
}

/// Verifies the hub's target and undoes anything but a fast-forward; the undone commit keeps a ref.
/// Returns a message about it. The job that has ended gets the same message when it asks again.
pub async fn guard(
    repos: &RunRepos,
    target: &str,
    job: Option<&str>,
) -> Result<Option<String>, RepoError> {
    let _one = repos.git.lock().await;
    private_repo::ensure(repos, target, None).await?;
    repair::mend(repos, target, true).await?;
    let hub = repos.paths.hub();
    // With this file every git here would use another repository. Only an agent makes one.
    let led_away = untrusted_path::remove(&hub, Path::new("commondir"));
    let pushed = take(repos, target).await?;
    if let Pushed::Rewritten(now) = pushed {
        let kept = kept_as(now.as_deref());
        if let Some(now) = &now {
            private_repo::set(repos, &kept, now, "cannot save the pushed commits").await?;
        }
        let said = format!(
            "undid a push to {target} that was not a fast-forward: its commits are in {kept}"
        );
        return undo(repos, target, job, said).await.map(Some);
    }
    let noted = noted(repos, job)?;
    Ok(noted.or_else(|| {
        led_away
            .then(|| "removed a file `commondir` that pointed the hub to another repository".into())
    }))
}

/// Resets the target to the verified commit; from the start of the judge nobody may push any more.
/// A push that came nevertheless is undone and keeps a ref. Returns a message about it, as
/// [`guard`] does.
pub async fn hold(
    repos: &RunRepos,
    target: &str,
    job: Option<&str>,
) -> Result<Option<String>, RepoError> {
    let _one = repos.git.lock().await;
    private_repo::ensure(repos, target, None).await?;
    repair::mend(repos, target, true).await?;
    let hub = repos.paths.hub();
    let name = format!("refs/heads/{target}");
    untrusted_path::remove(&hub, Path::new("commondir"));
    let seen = private_repo::at(repos, &name).await;
    let now = match stands(repos, &name).await {
        Err(why) if !why.is_disk_full() => {
            repair::rebuild(repos, target, &why.to_string(), Pushes::Taken).await?;
            stands(repos, &name).await?
        }
        now => now?,
    };
    if now == seen {
        return noted(repos, job);
    }
    let mut kept = kept_as(now.as_deref());
    if let Some(now) = &now
        && let Err(why) = private_repo::fetch(
            repos,
            &hub,
            now,
            &[&format!("+{kept}")],
            "cannot save the pushed commits",
        )
        .await
    {
        if why.is_disk_full() {
            return Err(why);
        }
        kept = format!("nothing readable ({why})");
    }
    let said = format!(
        "undid a push to {target} during or after the judgement: its commits are in {kept}"
    );
    undo(repos, target, job, said).await.map(Some)
}

/// Returns the message that was saved when a push was undone for this job.
fn noted(repos: &RunRepos, job: Option<&str>) -> Result<Option<String>, RepoError> {
    let Some(path) = job.map(|job| repos.paths.undone(job)) else { return Ok(None) };
    match std::fs::read_to_string(&path) {
        Ok(said) => Ok(Some(said)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError::at(&path)(error).into()),
    }
}

/// Returns the ref of an undone push, or "nothing" if the push only deleted the branch.
fn kept_as(now: Option<&str>) -> String {
    now.map_or_else(|| "nothing".into(), |now| format!("{UNDONE}/{now}"))
}

/// Resets the target to the verified commit; the caller has given the old one a ref. The message
/// `said` is saved for the job first. Afterwards nothing in the hub shows the push, so a daemon
/// that died before the record would take the job for one that pushed nothing.
async fn undo(
    repos: &RunRepos,
    target: &str,
    job: Option<&str>,
    said: String,
) -> Result<String, RepoError> {
    let hub = repos.paths.hub();
    let name = format!("refs/heads/{target}");
    let seen = private_repo::at(repos, &name).await.ok_or(Refusal::NoIntegrationBranch)?;
    if let Some(job) = job {
        muleteer_store::atomic::write_atomic(&repos.paths.undone(job), said.as_bytes(), 0o600)?;
    }
    fault::point("hub.push_noted");
    if let Err(error) =
        untrusted_path::replace(&hub, Path::new(&name), format!("{seen}\n").as_bytes())
    {
        repair::rebuild(repos, target, &format!("{name}: {error}"), Pushes::LeftOut).await?;
    }
    fault::point("hub.push_undone");
    Ok(said)
}

/// Returns the commit of a branch of the hub; `None` if the branch is gone.
async fn stands(repos: &RunRepos, name: &str) -> Result<Option<String>, RepoError> {
    let hub = repos.paths.hub();
    match private_repo::loose(&hub, name) {
        Some(now) => Ok(Some(now)),
        // Without a loose ref file, git is asked.
        None => private_repo::asked(repos, &hub, name).await,
    }
}

/// Returns the commit to begin from: the target with the pushes since. Invalid pushes are left for
/// [`guard`] to undo.
pub async fn tip(repos: &RunRepos, target: &str) -> Result<String, RepoError> {
    let _one = repos.git.lock().await;
    private_repo::ensure(repos, target, None).await?;
    repair::mend(repos, target, true).await?;
    take(repos, target).await?;
    Ok(commit(repos, target).await.ok_or_else(|| Refusal::NoBranch(target.into()))?)
}

/// Fetches what was pushed, if it is a fast-forward. A hub that git cannot read is rebuilt, and the
/// pushes recovered from it are verified.
async fn take(repos: &RunRepos, target: &str) -> Result<Pushed, RepoError> {
    if let Some(pushed) = take_once(repos, target).await? {
        return Ok(pushed);
    }
    Ok(take_once(repos, target).await?.unwrap_or(Pushed::Nothing))
}

/// Returns `None` if the hub was rebuilt.
async fn take_once(repos: &RunRepos, target: &str) -> Result<Option<Pushed>, RepoError> {
    let hub = repos.paths.hub();
    let name = format!("refs/heads/{target}");
    let seen = private_repo::at(repos, &name).await.ok_or(Refusal::NoIntegrationBranch)?;
    let now = match stands(repos, &name).await {
        Err(why) if !why.is_disk_full() => {
            repair::rebuild(repos, target, &why.to_string(), Pushes::Taken).await?;
            return Ok(None);
        }
        now => now?,
    };
    let Some(now) = now else { return Ok(Some(Pushed::Rewritten(None))) };
    if now == seen {
        return Ok(Some(Pushed::Nothing));
    }
    // git rejects the first ref unless it is a fast-forward; the second is fetched in any case.
    let names = [name.as_str(), &format!("+{HUB}")];
    for tries in 1.. {
        let why = match private_repo::fetch(
            repos,
            &hub,
            &now,
            &names,
            "cannot inspect the pushed commits",
        )
        .await
        {
            Ok(()) => return Ok(Some(Pushed::Forward)),
            Err(why) => why,
        };
        let brought = private_repo::at(repos, HUB).await.as_ref() == Some(&now);
        if brought && !private_repo::is_ancestor(repos, &seen, &now).await {
            return Ok(Some(Pushed::Rewritten(Some(now))));
        }
        // It is a fast-forward that failed for another reason: the caller retries later.
        if brought || why.is_disk_full() {
            return Err(why);
        }
        if tries == TAKE_TRIES {
            // The branch names a commit that is missing or unreadable, so nobody can work with the
            // hub.
            repair::rebuild(repos, target, &why.to_string(), Pushes::Taken).await?;
            break;
        }
    }
    Ok(None)
}

/// Returns the verified commit of the target.
pub async fn commit(repos: &RunRepos, branch: &str) -> Option<String> {
    private_repo::at(repos, &format!("refs/heads/{branch}")).await
}

/// Removes stale locks. A killed git leaves them behind, and they block every push.
pub async fn unlock(repos: &RunRepos, target: &str) {
    if !std::fs::symlink_metadata(repos.paths.hub()).is_ok_and(|meta| meta.is_dir()) {
        return;
    }
    let locks = ["HEAD.lock", "packed-refs.lock", "config.lock"].map(String::from);
    let locks = locks.into_iter().chain([format!("refs/heads/{target}.lock")]).collect::<Vec<_>>();
    private_repo::unlock(&repos.paths.hub(), &locks).await;
}

#[cfg(test)]
mod tests;
