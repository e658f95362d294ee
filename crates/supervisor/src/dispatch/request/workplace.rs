//! Finds the journal, clone and branch of a dispatch, and checks that the clone can be made.

use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::error::{fault, internal, linked_away};
use crate::dispatch::request::Part;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use muleteer_store::links::stay_within;
use muleteer_vcs::worktree;
use std::path::Path;

/// Where a dispatch works.
pub(super) struct Workplace {
    pub journal: String,
    /// Its own clone, if it gets one.
    pub clone: Option<String>,
    /// The branch of its clone, or the one that is checked out in its directory.
    pub branch: Option<String>,
}

/// Returns the place of a new dispatch.
///
/// # Errors
/// Its clone could not be made.
pub(super) async fn workplace(
    daemon: &Daemon,
    spawn: &Spawn,
    part: Option<&Part>,
    id: &DispatchId,
    feature: &str,
) -> Result<Workplace, WireError> {
    let project = Path::new(&spawn.project);
    let repository = daemon.caches.repositories.of(project).await;
    let top = repository.as_ref().map_or(project, |repository| &repository.top);
    let checkout = settings::main_checkout(part.map_or(top, |part| &part.repo));
    let open = || checkout.join(".agents/journals").join(feature);
    let journal =
        part.and_then(|part| part.journals.clone()).unwrap_or_else(open).join(format!("{id}.md"));
    stay_within(&checkout, &journal).map_err(|error| linked_away(&error))?;
    if let Some(repository) = &repository {
        worktree::exclude(&repository.git_dir).map_err(|error| {
            let file = repository.git_dir.join("info/exclude");
            internal(&format!("{}: {error}", file.display()))
        })?;
    } else if spawn.worktree {
        return Err(no_repository(project).await);
    }
    let journal = journal.display().to_string();
    if !spawn.worktree {
        let branch = repository.and_then(|repository| repository.branch);
        return Ok(Workplace { journal, clone: None, branch });
    }
    let branch = format!("muleteer/{id}");
    check_clone(top, &branch).await?;
    let clone = top.join(".muleteer/worktrees").join(id.as_str());
    stay_within(top, &clone).map_err(|error| linked_away(&error))?;
    let clone = clone.display().to_string();
    Ok(Workplace { journal, clone: Some(clone), branch: Some(branch) })
}

/// Returns the error of a request for a clone in a directory without a usable repository.
async fn no_repository(project: &Path) -> WireError {
    if let Some(why) = worktree::refusal(project).await {
        let message =
            format!("--worktree needs a git repository, but that of {}: {why}", project.display());
        return fault(ErrorCode::NotARepository, &message, "");
    }
    let message =
        format!("--worktree needs a git repository, but {} is not in one", project.display());
    let hint = "run `git init` there, or omit --worktree";
    fault(ErrorCode::NotARepository, &message, hint)
}

/// Checks that the clone and the branch for the work can be made. Otherwise this would fail only
/// once the work is done.
async fn check_clone(top: &Path, branch: &str) -> Result<(), WireError> {
    worktree::lends(top).map_err(|why| {
        fault(ErrorCode::NotARepository, &format!("--worktree: {why}"), worktree::RENAME)
    })?;
    if worktree::head(top).await.is_none() {
        let message = format!("--worktree clones a commit, but {} has no commit", top.display());
        let hint = "commit something first, or omit --worktree";
        return Err(fault(ErrorCode::NotARepository, &message, hint));
    }
    let Some(other) = worktree::branch_in_the_way(top, branch).await else { return Ok(()) };
    let message = format!(
        "--worktree creates the branch {branch}, but git cannot create it beside the branch {other}"
    );
    let hint = format!("rename that branch: git branch -m {other} {}-old", other.replace('/', "-"));
    Err(fault(ErrorCode::BranchInTheWay, &message, &hint))
}
