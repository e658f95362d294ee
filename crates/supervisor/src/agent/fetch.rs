//! Brings home the work of a dispatch that has ended.

use crate::daemon::context::Daemon;
use muleteer_model::dispatch::work::WorkHome;
use muleteer_model::dispatch::{Dispatch, Stop};
use muleteer_vcs::worktree::{BringError, Homecoming};
use std::path::Path;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The number of tries, because another git may hold the locks of the user's repository for a
/// moment.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(200);

/// Fetches the work of a clone into the user's repository. Work that cannot be fetched stays in the
/// clone, and the result says so: a failed fetch must not keep the dispatch from ending.
pub async fn fetch_work(daemon: &Daemon, dispatch: &Dispatch) -> WorkHome {
    let created = &dispatch.created;
    let branch = created.branch.clone().unwrap_or_else(|| format!("muleteer/{}", dispatch.id));
    let nothing = WorkHome { branch: branch.clone(), ..WorkHome::default() };
    let Some(clone) = created.worktree.as_ref().filter(|_| dispatch.files.cloned) else {
        return nothing;
    };
    let stop = CancellationToken::new();
    let home = Homecoming {
        project: Path::new(&created.project),
        clone: Path::new(clone),
        id: dispatch.id.as_str(),
        base: dispatch.files.base.as_deref(),
        branch: &branch,
        before: dispatch.files.work.as_ref(),
        stop: &stop,
    };
    let stopping = async {
        killed(daemon, dispatch).await;
        stop.cancel();
        std::future::pending::<std::convert::Infallible>().await
    };
    let brought = tokio::select! {
        brought = bring(&home) => brought,
        never = stopping => match never {},
    };
    match brought {
        Ok(work) => work,
        Err(error) => {
            let message = error.to_string();
            let fault = format!("{message}; the work of {} remains in {clone}", dispatch.id);
            daemon.fault(&dispatch.id, format!("work of {}", dispatch.id), fault);
            let mut work = WorkHome { trouble: Some(message), ..nothing };
            home.name_earlier(&mut work).await;
            work
        }
    }
}

/// Retries, unless a retry would hang as long as the first try.
async fn bring(home: &Homecoming<'_>) -> Result<WorkHome, BringError> {
    for attempt in 1..TRIES {
        match home.bring().await {
            Err(BringError::Failed(_)) => tokio::time::sleep(PAUSE * attempt).await,
            brought => return brought,
        }
    }
    home.bring().await
}

/// Returns when the user kills the dispatch from now on. If it was killed before, its work comes
/// home with the usual patience.
async fn killed(daemon: &Daemon, dispatch: &Dispatch) {
    let is_killed = |dispatch: &Dispatch| matches!(dispatch.stop, Some(Stop::Kill { .. }));
    let mut fleet = daemon.fleet.subscribe();
    let ended = match is_killed(dispatch) {
        true => false,
        false => fleet
            .wait_for(|fleet| fleet.get(&dispatch.id).is_some_and(|now| is_killed(now)))
            .await
            .is_ok(),
    };
    if !ended {
        std::future::pending::<()>().await;
    }
}
