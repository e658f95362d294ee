//! Directories beside the clones of dispatches that `clean` leaves alone, and why.

use crate::daemon::context::Daemon;
use crate::dispatch::error::internal;
use crate::ledger::archive;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::{Kept, WireError};
use muleteer_vcs::worktree::removed_id;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// At most this many directories are named.
const MOST: usize = 200;
/// The folder of the clones of task-list workers.
const TASKS: &str = "tasks";

/// Returns the directories among the clones that belong to no dispatch.
///
/// # Errors
/// The archive cannot be read.
pub(super) async fn find(daemon: &Arc<Daemon>) -> Result<Vec<Kept>, WireError> {
    let (daemon, fleet) = (daemon.clone(), daemon.snapshot());
    let found = tokio::task::spawn_blocking(move || {
        let (mut folders, mut ids) = (BTreeSet::new(), BTreeSet::new());
        let mut take = |dispatch: &Dispatch| {
            let created = &dispatch.created;
            folders.insert(Path::new(created.project_name()).join(".muleteer/worktrees"));
            let own = created.worktree.as_deref().and_then(|clone| Path::new(clone).parent());
            folders.extend(own.map(Path::to_owned));
            ids.insert(dispatch.id.clone());
        };
        fleet.iter().for_each(|dispatch| take(dispatch));
        archive::each(&daemon, &fleet, 0, |dispatch| {
            take(&dispatch);
            true
        })?;
        Ok(in_folders(&folders, &ids))
    });
    found.await.map_err(|error| internal(&error.to_string()))?
}

fn in_folders(folders: &BTreeSet<PathBuf>, ids: &BTreeSet<DispatchId>) -> Vec<Kept> {
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut kept: Vec<Kept> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            reason(ids, &name).map(|reason| kept(entry.path(), reason))
        })
        .take(MOST)
        .collect();
    kept.sort_by(|a, b| a.path.cmp(&b.path));
    kept
}

fn kept(path: PathBuf, reason: &str) -> Kept {
    Kept { path: path.display().to_string(), reason: reason.into(), dispatch_id: None }
}

/// Returns why a directory of this name stays; `None` if it belongs to a dispatch.
fn reason(ids: &BTreeSet<DispatchId>, name: &str) -> Option<&'static str> {
    let known =
        |name: &str| DispatchId::try_from(name.to_string()).is_ok_and(|id| ids.contains(&id));
    if known(removed_id(name).unwrap_or(name)) {
        return None;
    }
    // The daemon makes and removes these beside a clone while it works on it.
    let beside = name.strip_prefix('.').and_then(|name| name.split_once('.'));
    if beside.is_some_and(|(id, part)| known(id) && matches!(part, "partial" | "left")) {
        return None;
    }
    Some(match name {
        TASKS => "the workers of task lists use these clones again",
        _ if name.starts_with("run-") => {
            "a run made these clones, and removes them unless they have work of its agents"
        }
        _ => "no dispatch of this daemon has this clone",
    })
}
