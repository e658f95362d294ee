//! Brings the branch of a run that ends before it has passed, or is stopped, into the repository.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::survive;
use crate::spec_run::host::Hosted;
use crate::spec_run::repairs;
use muleteer_model::event::Event;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::{KeptWork, Phase};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_vcs::error::{Refusal, RepoError};
use muleteer_vcs::spec_run::{hub, publish};
use muleteer_vcs::worktree;
use std::time::Duration;

/// The timeout of the fetch, which stays on this machine. A run that is being stopped does not wait
/// longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The code of a run that ended because an agent pushed to the remote by itself.
const TRESPASSED: ErrorCode = ErrorCode::RemoteChanged;

/// Why the branch was not brought into the repository.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Repo(#[from] RepoError),
    #[error("it took more than {} s", PATIENCE.as_secs())]
    TimedOut,
}

/// Brings the branch into the repository and returns an event that names it. Returns `None` if the
/// run has no branch yet, or its result was published. It never fails, so that it keeps no run from
/// ending.
pub async fn keep_early(daemon: &Daemon, hosted: &Hosted, run: &Run) -> Option<Event> {
    survive(keep(daemon, hosted, run)).await.unwrap_or_else(|why| {
        let trouble =
            Some(format!("{why}; the work is in {}", hosted.repos.paths.keep().display()));
        Some(Event::RunWorkKept(KeptWork { trouble, ..KeptWork::default() }))
    })
}

async fn keep(daemon: &Daemon, hosted: &Hosted, run: &Run) -> Option<Event> {
    let frozen = run.frozen.as_ref()?;
    let is_published = run.phase() == Phase::Finish && run.publication.branch.is_some();
    if is_published || run.spawns == 0 {
        return None;
    }
    let mut kept = KeptWork { clones: clones(hosted), ..KeptWork::default() };
    fault::point("run.before_kept");
    let bringing = bring(daemon, hosted, run, &frozen.base_commit, &mut kept);
    let brought = tokio::time::timeout(PATIENCE, bringing).await;
    let outcome = match brought {
        Ok(done) => done.map_err(KeepError::from),
        Err(_) => Err(KeepError::TimedOut),
    };
    fault::point("run.after_kept");
    if let Err(why) = outcome {
        kept.branch = None;
        kept.trouble =
            Some(format!("{why}; the work is in {}", hosted.repos.paths.keep().display()));
    }
    Some(Event::RunWorkKept(kept))
}

/// Returns the folder of the run's clones, if it has any.
fn clones(hosted: &Hosted) -> Option<String> {
    let folder = &hosted.places.worktrees;
    let is_clone = |name: &std::ffi::OsStr| !name.as_encoded_bytes().starts_with(b".");
    let mut entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.any(|entry| is_clone(&entry.file_name())).then(|| folder.display().to_string())
}

async fn bring(
    daemon: &Daemon,
    hosted: &Hosted,
    run: &Run,
    base: &str,
    kept: &mut KeptWork,
) -> Result<(), RepoError> {
    let target = run.target();
    hub::unlock(&hosted.repos, &target).await;
    // Terminated agents may have pushed just before. From the start of the judge no push counts.
    let gathered = match run.settings.judge && matches!(run.phase(), Phase::Judge | Phase::Finish) {
        true => hub::hold(&hosted.repos, &target, None).await,
        false => hub::guard(&hosted.repos, &target, None).await,
    };
    repairs::report(daemon, hosted);
    match gathered {
        Ok(Some(message)) => {
            daemon.note(Event::Fault { what: format!("the hub of {}", hosted.run_id), message })
        }
        Ok(None) => {}
        // Pushes that were gathered before are in the private repository.
        Err(error) => {
            tracing::warn!(run = %hosted.run_id, %error, "failed to inspect the last push")
        }
    }
    let tip = hub::commit(&hosted.repos, &target)
        .await
        .ok_or_else(|| Refusal::NoBranch(target.clone()))?;
    kept.commits = publish::count_commits(&hosted.repos, base, &tip).await?;
    if kept.commits == 0 {
        return Ok(());
    }
    kept.branch = Some(bring_beside(hosted, run, &target, &tip).await?);
    kept.commit = Some(tip);
    Ok(())
}

/// Brings the branch under a name of the run's own. Work that has not passed does not move a branch
/// that a person chose by name.
async fn bring_beside(
    hosted: &Hosted,
    run: &Run,
    target: &str,
    tip: &str,
) -> Result<String, RepoError> {
    if run.stopping().is_some_and(|stop| stop.code == TRESPASSED) {
        // A ref outside of `refs/heads` can be inspected, but nobody merges it by accident.
        let name = format!("refs/muleteer/run/{}", hosted.run_id);
        return publish::bring_ref(&hosted.repos, tip, &name).await.map(|()| name);
    }
    let is_ours =
        run.started.target == "auto" || worktree::tip(&hosted.repo, target).await.is_none();
    let flat = format!("muleteer-{}", hosted.run_id);
    let names = is_ours
        .then(|| target.to_string())
        .into_iter()
        .chain([format!("muleteer/{}", hosted.run_id), flat.clone()])
        .chain((2..publish::MOST_BESIDE).map(|number| format!("{flat}-{number}")));
    publish::bring_as(&hosted.repos, tip, names).await
}
