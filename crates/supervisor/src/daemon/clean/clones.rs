//! The clones of dispatches: which may go, and their removal.

use crate::daemon::clean::{Outcome, Pass, is_folder, is_there, kept};
use crate::dispatch::error::chain;
use muleteer_model::dispatch::retention::{Keep, user_of};
use muleteer_model::dispatch::work::WorkHome;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::Event;
use muleteer_process::fault;
use muleteer_process::host::host;
use muleteer_protocol::v1::WireError;
use muleteer_shim::attach::{self, Liveness};
use muleteer_store::removal;
use muleteer_vcs::worktree::{self, Homecoming, move_away, removal_name, unsaved};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// The timeout for measuring one clone.
const SIZE_PATIENCE: Duration = Duration::from_secs(10);

/// Whether the clone of a dispatch, or the rest of it, is on the disk.
pub(super) fn exists(dispatch: &Dispatch) -> bool {
    dispatch.created.worktree.as_ref().is_some_and(|clone| {
        let clone = Path::new(clone);
        is_there(clone) || removal_name(clone).is_some_and(|away| is_there(&away))
    })
}

/// Removes the clone of a dispatch if it may go and the pass applies its decisions.
///
/// # Errors
/// The removal cannot be recorded.
pub(super) async fn clean(pass: &Pass<'_>, dispatch: &Dispatch) -> Result<Outcome, WireError> {
    let Some(clone) = dispatch.created.worktree.as_ref().map(PathBuf::from) else {
        return Ok(Outcome::Nothing);
    };
    // A link would lead the removal to files of somebody else.
    let is_linked = || clone.ancestors().skip(1).take(2).any(|folder| !is_folder(folder));
    let rest = removal_name(&clone).filter(|away| is_there(away) && !is_linked());
    if let (Some(rest), Phase::Finished { .. }, true) =
        (&rest, &dispatch.phase, dispatch.files.clone_removed)
    {
        // Its work came home before it was renamed.
        let outcome = remove(rest.clone(), pass.asked.apply).await;
        if !is_there(&clone) || matches!(outcome, Outcome::Failed(_)) {
            return Ok(outcome);
        }
    }
    if !is_there(&clone) {
        return Ok(Outcome::Nothing);
    }
    if let Err(why) = may_go(pass, dispatch, &clone) {
        return Ok(kept(&why));
    }
    let project = PathBuf::from(&dispatch.created.project);
    if worktree::git_dir(&project).await.is_none() {
        let place = project.display();
        let why = format!("git does not work in {place}, so its work cannot be fetched");
        return Ok(Outcome::Kept(why));
    }
    let (place, agent) = (clone.clone(), pass.daemon.paths.agent(dispatch.id.as_str()));
    // The guard keeps a shim from starting until the clone is gone.
    let _guard = match blocking(move || obstacle(&place, &agent)).await {
        Ok(Look::Free(guard)) => guard,
        Ok(Look::Held(why)) => return Ok(Outcome::Kept(why)),
        Err(error) => return Ok(Outcome::Failed(chain(&error))),
    };
    if !pass.asked.apply {
        return Ok(match dispatch.files.work.as_ref().and_then(not_home) {
            Some(why) => Outcome::Kept(why),
            None => remove(clone, false).await,
        });
    }
    if let Some(why) = bring_last(pass, dispatch, &clone).await? {
        return Ok(Outcome::Kept(why));
    }
    // Somebody may have begun to work there while the work came home.
    if let Err(why) = may_go(pass, dispatch, &clone) {
        return Ok(kept(&why));
    }
    let place = clone.clone();
    match blocking(move || Ok(process_in(&place))).await {
        Ok(None) => {}
        Ok(Some(user)) => return Ok(Outcome::Kept(in_use(user))),
        Err(error) => return Ok(Outcome::Failed(chain(&error))),
    }
    if !dispatch.files.clone_removed {
        let path = clone.display().to_string();
        let event = Event::CloneRemoved { path, by: pass.by.into() };
        pass.record(&dispatch.id, Some("clone-removed"), event).await?;
    }
    fault::point("clean.recorded");
    let moved = blocking(move || move_away(&clone)).await;
    fault::point("clean.moved");
    Ok(match moved {
        Ok(away) => remove(away, true).await,
        Err(error) => Outcome::Failed(format!("it cannot be removed: {}", chain(&error))),
    })
}

/// Checks the ledger's facts about a clone.
fn may_go(pass: &Pass<'_>, dispatch: &Dispatch, clone: &Path) -> Result<(), Keep> {
    pass.check(dispatch)?;
    match user_of(&pass.daemon.snapshot(), &dispatch.id, clone) {
        Some(user) => Err(Keep::InUse(user.clone())),
        None => Ok(()),
    }
}

/// The result of a look at a clone.
enum Look {
    /// With the lock of the agent, if it has one.
    Free(Option<muleteer_process::lock::LockGuard>),
    /// The clone must stay, for this reason.
    Held(String),
}

/// Looks whether a clone may go. Blocks.
fn obstacle(clone: &Path, agent: &Path) -> io::Result<Look> {
    // The shim has a few last steps after the end of its agent.
    let guard = match agent.is_dir().then(|| attach::probe(agent)).transpose()? {
        Some(Liveness::Alive) => return Ok(Look::Held("its shim has not ended yet".into())),
        Some(Liveness::Dead(guard)) => Some(guard),
        None => None,
    };
    if let Some(user) = process_in(clone) {
        return Ok(Look::Held(in_use(user)));
    }
    Ok(unsaved(clone)?.map_or(Look::Free(guard), |why| Look::Held(why.to_string())))
}

fn in_use((pid, name): (u32, String)) -> String {
    format!("process {pid} ({name}) works in it")
}

/// Returns a living process whose working directory is in the clone.
fn process_in(clone: &Path) -> Option<(u32, String)> {
    // The system reports a working directory without links.
    let clone = clone.canonicalize().unwrap_or_else(|_| clone.to_owned());
    let is_in = |pid: &u32| {
        host().cwd(*pid).is_ok_and(|cwd| cwd.is_some_and(|cwd| cwd.starts_with(&clone)))
    };
    let pid = host().pids().into_iter().find(is_in)?;
    Some((pid, host().name(pid).unwrap_or_default()))
}

/// Brings home what the clone still has, and returns the reason why it must stay nevertheless.
///
/// # Errors
/// The new places of the work cannot be recorded.
async fn bring_last(
    pass: &Pass<'_>,
    dispatch: &Dispatch,
    clone: &Path,
) -> Result<Option<String>, WireError> {
    let (created, stop) = (&dispatch.created, CancellationToken::new());
    let branch = created.branch.clone().unwrap_or_else(|| format!("muleteer/{}", dispatch.id));
    let home = Homecoming {
        project: Path::new(&created.project),
        clone,
        id: dispatch.id.as_str(),
        base: dispatch.files.base.as_deref(),
        branch: &branch,
        before: dispatch.files.work.as_ref(),
        stop: &stop,
    };
    let work = match home.bring_last().await {
        Ok(work) => work,
        Err(error) => return Ok(Some(format!("its work cannot be fetched: {}", chain(&error)))),
    };
    let why = not_home(&work);
    if dispatch.files.work.as_ref() != Some(&work) {
        pass.record(&dispatch.id, None, Event::WorkFetched(work)).await?;
    }
    Ok(why)
}

/// Returns the reason why some work is only in the clone.
fn not_home(work: &WorkHome) -> Option<String> {
    if let Some(trouble) = &work.trouble {
        return Some(format!("its commits were not fetched: {trouble}"));
    }
    (!work.skipped.is_empty()).then(|| format!("not fetched: {}", work.skipped.join(", ")))
}

/// Measures a directory, and removes it if `apply`.
async fn remove(dir: PathBuf, apply: bool) -> Outcome {
    let removed = blocking(move || {
        let bytes = removal::tree_size(&dir, SIZE_PATIENCE)?;
        if apply {
            removal::remove_tree(&dir, removal::PATIENCE)?;
        }
        Ok(bytes)
    });
    match removed.await {
        Ok(bytes) => Outcome::Removed { bytes },
        Err(error) => Outcome::Failed(format!("it cannot be removed: {}", chain(&error))),
    }
}

/// Runs steps that wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StepError> {
    Ok(tokio::task::spawn_blocking(work).await??)
}

/// Why a clone or a journal could not be read, moved or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
}
