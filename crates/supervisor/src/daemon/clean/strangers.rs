//! Directories beside the clones of dispatches that `clean` leaves alone, and why.

use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::Kept;
use muleteer_vcs::worktree::removed_id;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// At most this many directories are named.
const MOST: usize = 200;
/// The folder of the clones of task-list workers.
const TASKS: &str = "tasks";

/// Returns the directories among the clones that belong to no dispatch.
pub(super) fn find(fleet: &Fleet) -> Vec<Kept> {
    let mut folders = BTreeSet::new();
    for dispatch in fleet.iter() {
        let created = &dispatch.created;
        folders.insert(Path::new(created.project_name()).join(".muleteer/worktrees"));
        let own = created.worktree.as_deref().and_then(|clone| Path::new(clone).parent());
        folders.extend(own.map(Path::to_owned));
    }
    let entries = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut kept: Vec<Kept> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            reason(fleet, &name).map(|reason| kept(entry.path(), reason))
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
fn reason(fleet: &Fleet, name: &str) -> Option<&'static str> {
    let known = |name: &str| {
        DispatchId::try_from(name.to_string()).is_ok_and(|id| fleet.get(&id).is_some())
    };
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
