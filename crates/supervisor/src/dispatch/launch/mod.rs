//! Finds or starts the shim of an agent. Every effect has its probe (the lock, the clone, the
//! spool), and may be repeated.
//!
//! - `command_line`: the launch file; `login_shell`: PATH in login shells;
//! - `project_settings`: whether the repository's settings count; `sealed_home`: the homes of an
//!   agent that judges; `obeyed`: the files that it must not obey;
//! - `model_ports`: the network of an agent that only talks to its model;
//! - `private_home`: the folders of a private HOME, with the logins;
//! - `secret_values`: the values of secret variables in lists and in memory;
//! - `secrets`: keys leave the files when their agent has ended;
//! - `sweep`: terminates what a dead shim left.

pub(crate) mod command_line;
mod login_shell;
mod model_ports;
mod obeyed;
pub(crate) mod private_home;
pub(crate) mod project_settings;
pub(crate) mod sealed_home;
pub(crate) mod secret_values;
pub(crate) mod secrets;
mod start_error;
pub(crate) mod sweep;

use crate::daemon::context::Daemon;
use crate::dispatch::confine;
use crate::dispatch::launch::command_line::{launch_of, set};
use crate::dispatch::launch::project_settings::project_settings;
use crate::dispatch::launch::start_error::StartError;
use crate::dispatch::launch::sweep::sweep;
use crate::dispatch::saved::identity_file;
use crate::dispatch::shim::error::ShimError;
use crate::dispatch::shim::watchdog::Stuck;
use crate::ledger::{append, entry};
use crate::ports::agent::JournalMsg;
use muleteer_model::dispatch::life::{self, Input};
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault;
use muleteer_process::lock::LockGuard;
use muleteer_shim::attach::{self, Liveness};
use muleteer_shim::launch::Launch;
use muleteer_shim::{meta, spool, start};
use muleteer_vcs::error::RepoError;
use muleteer_vcs::worktree::{NewClone, Places};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The time for an earlier shim to terminate what its agent left (TERM, 10 s, KILL, 30 s).
const PREDECESSOR: Duration = Duration::from_secs(90);

/// The state of an epoch's shim.
#[derive(Debug)]
pub enum Standing {
    /// It runs. `adopted` has its pid if an earlier daemon started it.
    Alive { adopted: Option<u32> },
    /// It ran, or may have run, and is dead. Nobody can start another one while `lock` is held.
    Dead { lock: LockGuard },
    /// Nothing was started, because it failed.
    CannotStart { error: String, permanent: bool },
    /// Processes of an earlier attempt could not be terminated, so nothing may start beside them.
    Unswept { killed: u32 },
}

/// Finds the shim of `epoch`, or starts it if it certainly never ran.
pub async fn stand(
    daemon: &Arc<Daemon>,
    dispatch: &Arc<Dispatch>,
    epoch: u32,
    resume: Option<&str>,
) -> Result<Standing, ShimError> {
    let dir = daemon.paths.agent(dispatch.id.as_str());
    let deadline = tokio::time::Instant::now() + PREDECESSOR;
    let mut pause = Duration::from_millis(2);
    let mut started = None;
    let mut stuck = Stuck::new();
    loop {
        match attach::probe(&dir).map_err(ShimError::Probe)? {
            Liveness::Alive => match meta::read(&dir)? {
                Some(meta) if meta.epoch == epoch => {
                    let adopted =
                        (meta.generation != daemon.settings.generation).then_some(meta.shim.pid);
                    return Ok(Standing::Alive { adopted });
                }
                _ if tokio::time::Instant::now() > deadline => {
                    return Err(ShimError::Held { lock: dir.join(attach::LOCK) });
                }
                // The shim has just started and not written its file yet, or an earlier one still
                // terminates its agent's processes, which takes time.
                meta if stuck.due() <= tokio::time::Instant::now() => {
                    let killed = || {
                        daemon.snapshot().get(&dispatch.id).is_some_and(|now| now.stop.is_some())
                    };
                    stuck.look(daemon, &dispatch.id, meta.is_none() && killed()).await?;
                }
                _ => {}
            },
            Liveness::Dead(lock) if was_tried(&dir, dispatch, epoch)? => {
                return Ok(Standing::Dead { lock });
            }
            Liveness::Dead(lock) => {
                if epoch > 1 && !daemon.agent(&dispatch.id).is_swept_before(epoch) {
                    let swept = sweep(daemon, &dispatch.id, None, &lock).await?;
                    if !swept.clean {
                        return Ok(Standing::Unswept { killed: swept.killed });
                    }
                }
                stuck = match begin(daemon, dispatch, epoch, resume, &lock).await {
                    Ok(forked) => Stuck::of(forked),
                    Err(error) => {
                        let permanent = error.is_permanent();
                        return Ok(Standing::CannotStart { error: error.to_string(), permanent });
                    }
                };
                pause = started.insert(daemon.shims.starting()).due();
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Whether a shim of this epoch may have run: by the ledger, its launch file, or its spool. A power
/// cut may have removed the files.
fn was_tried(dir: &Path, dispatch: &Dispatch, epoch: u32) -> Result<bool, ShimError> {
    let told = dispatch.was_rebooted() || matches!(dispatch.phase, Phase::Working { .. });
    if told && dispatch.epoch == epoch {
        return Ok(true);
    }
    if Launch::path(dir, epoch).exists() {
        return Ok(true);
    }
    let newest = spool::newest_epoch(&spool::dir_of(dir)).map_err(ShimError::Spool)?;
    Ok(newest >= epoch)
}

/// Starts the shim of `epoch`. Returns its pid if that is known.
async fn begin(
    daemon: &Arc<Daemon>,
    dispatch: &Arc<Dispatch>,
    epoch: u32,
    resume: Option<&str>,
    lock: &LockGuard,
) -> Result<Option<u32>, StartError> {
    if let Some(stop) = &dispatch.stop {
        return Err(StartError::Stopped(stop.clone()));
    }
    let dir = daemon.paths.agent(dispatch.id.as_str());
    // The file that the request wrote a moment ago is also in memory.
    let saved = match daemon.agent(&dispatch.id).take_saved().filter(|_| epoch == 1) {
        Some(saved) => *saved,
        None => secrets::give_back(daemon, &dispatch.id).await?,
    };
    if let Some(worktree) = &dispatch.created.worktree {
        let (project, worktree) = (Path::new(&dispatch.created.project), Path::new(worktree));
        let again = dispatch.distrusts_clone() && discard(worktree).await?;
        if again {
            let message = "the machine restarted before the agent used it, so it is created again";
            daemon.fault(&dispatch.id, format!("the clone of {}", dispatch.id), message);
        }
        let branch =
            dispatch.created.branch.clone().unwrap_or_else(|| format!("muleteer/{}", dispatch.id));
        let mut given = saved.env.iter().chain(&saved.extra_env).chain(&saved.backend_env);
        let has_email = given.clone().any(|(name, value)| name == "EMAIL" && !value.is_empty());
        // A later variable replaces an earlier one.
        let path = given.rfind(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
        let new = NewClone { id: dispatch.id.as_str(), branch: &branch, has_email, path };
        let made = muleteer_vcs::worktree::ensure(project, worktree, new).await;
        if let Some(message) = made? {
            daemon.fault(&dispatch.id, format!("the clone of {}", dispatch.id), message);
        }
        fault::point("clone.made");
        tell_clone(daemon, &dispatch.id, worktree, again).await?;
    }
    if saved.confined.as_ref().is_some_and(|confined| confined.private_home) {
        // A daemon that continues a dispatch has not tried it yet. If it fails, so does the start.
        let _ = confine::possible(daemon).await;
    }
    let settings = project_settings(daemon, dispatch, &saved).await?;
    let mut launch = launch_of(daemon, dispatch, &saved, (epoch, resume), settings)?;
    if dispatch.created.clone_of_its_own().is_none() {
        // A clone has the identity in its configuration. The sandbox shows both places.
        let (shared, own) = (daemon.paths.identity(), identity_file(&dir));
        let places = Places { shared: &shared, own: &own };
        let project = Path::new(&dispatch.created.project);
        let missing = daemon.caches.identities.missing(project, &launch.env, Some(places)).await;
        for (name, value) in missing {
            set(&mut launch.env, &name, &value);
        }
    }
    start::prepare(&dir, &launch)?;
    fault::point("start.before_shim");
    let forked = daemon.shims.start(&dir, lock, epoch).await?;
    fault::point("start.after_shim");
    Ok(forked)
}

/// Removes an incomplete clone. An agent decides how long that takes, so it must not block the
/// runtime.
async fn discard(worktree: &Path) -> Result<bool, StartError> {
    let worktree = worktree.to_owned();
    let discarding =
        tokio::task::spawn_blocking(move || muleteer_vcs::worktree::discard(&worktree));
    Ok(discarding.await?.map_err(RepoError::from)?)
}

/// Records the clone that an agent will work in, unless that was done. A clone that somebody has
/// worked in is not recorded: its checkout has changed since, and its configuration is its agent's.
async fn tell_clone(
    daemon: &Daemon,
    id: &DispatchId,
    worktree: &Path,
    again: bool,
) -> Result<(), StartError> {
    let Some(dispatch) = daemon.snapshot().get(id).cloned() else { return Ok(()) };
    if dispatch.containment.is_some() || (dispatch.files.cloned && !again) {
        return Ok(());
    }
    let base = muleteer_vcs::worktree::head(worktree).await.unwrap_or_default();
    let made = Input::WorktreeMade { path: worktree.display().to_string(), base, again };
    let entries: Vec<_> = life::decide(&dispatch, made)
        .into_iter()
        .map(|(at, event)| entry(id, at, event))
        .collect();
    let records = append(daemon, entries).await?;
    daemon.agent(id).journal.cast(JournalMsg::Records(records));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    #[tokio::test]
    async fn an_agent_that_was_killed_before_it_began_is_not_started() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let id = test_daemon::id("abcd2345");
        let past =
            ["dispatch_created", "attempt_started", "kill_requested"].map(test_daemon::sample);
        past.into_iter().for_each(|event| daemon.fold(&id, event));
        std::fs::create_dir_all(daemon.paths.agent(id.as_str())).expect("a directory");
        let dispatch = daemon.snapshot().get(&id).cloned().expect("it is there");
        let standing = stand(&daemon, &dispatch, 1, None).await;
        let Ok(Standing::CannotStart { error, permanent: false }) = standing else {
            panic!("{standing:?}")
        };
        assert!(error.starts_with("not started: Kill"), "{error}");
    }
}
