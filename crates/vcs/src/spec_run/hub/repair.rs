//! Repairs a hub that an agent has removed or damaged. The hub is rebuilt from the harness's
//! private repository, which has everything that was gathered. A push that is only in the damaged
//! hub is fetched from it first, if its commits can be read whole, and restored, so that it is
//! verified like any other push. The damaged hub is renamed to `hub.damaged`. An agent whose push
//! could not be read finds that its commits are missing and pushes them again.
//!
//! The hub's directory itself stays where possible, because the sandbox of a running agent shows
//! exactly that directory.

use crate::error::{FileError, RepoError};
use crate::spec_run::clones;
use crate::spec_run::hub::{structure, taken};
use crate::spec_run::private_repo::SHALLOW;
use crate::spec_run::{RunPaths, RunRepos};
use crate::untrusted_path;
use crate::worktree::free_name;
use muleteer_store::atomic::{create_dir_durable, put_dir, write_atomic};
use std::path::Path;

/// The files of a hub that no push changes, each with the name of its reference copy in [`FORM`].
pub(super) const FIXED: [(&str, &str); 3] =
    [("HEAD", "HEAD"), ("config", "config"), ("objects/info/alternates", "alternates")];
/// The folder of the reference copies, in the run's private folder.
const FORM: &str = "hub-form";
pub(super) const FIXED_LIMIT: u64 = 64 << 10;

/// Whether pushes are fetched from a damaged hub before it is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushes {
    Taken,
    /// The pushes are saved already and must not come back.
    LeftOut,
}

/// Saves reference copies of the fixed files of `made`, a new hub that no agent has reached yet.
pub(super) fn remember(paths: &RunPaths, made: &Path) -> Result<(), RepoError> {
    let form = paths.private.join(FORM);
    create_dir_durable(&form, 0o700)?;
    for (name, kept) in FIXED {
        let path = made.join(name);
        let bytes = std::fs::read(&path).map_err(FileError::at(&path))?;
        write_atomic(&form.join(kept), &bytes, 0o600)?;
    }
    // This is empty if the person's repository has its whole history.
    let roots = std::fs::read(made.join(SHALLOW)).unwrap_or_default();
    Ok(write_atomic(&form.join(SHALLOW), &roots, 0o600)?)
}

/// Whether this run already had a hub.
pub(super) fn is_known(paths: &RunPaths) -> bool {
    paths.private.join(FORM).join("HEAD").exists()
}

/// Repairs the hub if it is damaged, and records the repair. `objects` says whether the objects are
/// checked too.
///
/// The caller holds [`RunRepos::git`].
pub(super) async fn mend(repos: &RunRepos, target: &str, objects: bool) -> Result<(), RepoError> {
    let (paths, branch, halt) = (repos.paths.clone(), target.to_owned(), repos.halt.clone());
    // An agent decides how many files there are, so the check must not block a task of the daemon.
    let looking = tokio::task::spawn_blocking(move || {
        structure::damage(&paths, &branch)
            .or_else(|| objects.then(|| structure::broken_object(&paths.hub(), &halt))?)
    });
    match looking.await? {
        Some(why) => rebuild(repos, target, &why, Pushes::Taken).await,
        None => restore_fixed(repos, target).await,
    }
}

/// Restores the fixed files that were changed. No push is lost by this.
async fn restore_fixed(repos: &RunRepos, target: &str) -> Result<(), RepoError> {
    let hub = repos.paths.hub();
    for (name, kept) in FIXED {
        let Ok(wanted) = std::fs::read(repos.paths.private.join(FORM).join(kept)) else {
            continue;
        };
        if untrusted_path::read(&hub, Path::new(name), FIXED_LIMIT)
            .is_ok_and(|there| there.as_ref() == Some(&wanted))
        {
            continue;
        }
        let lock = format!("{name}.lock");
        untrusted_path::remove(&hub, Path::new(&lock));
        if let Err(error) = untrusted_path::replace(&hub, Path::new(name), &wanted) {
            return rebuild(repos, target, &format!("{name}: {error}"), Pushes::Taken).await;
        }
        repos.note_repair(format!("the file {name} of the hub was changed; restored it"));
    }
    // A hub that an earlier version made has no reference copy of this file.
    let Ok(wanted) = std::fs::read(repos.paths.private.join(FORM).join(SHALLOW)) else {
        return Ok(());
    };
    match untrusted_path::read(&hub, Path::new(SHALLOW), structure::REFS_LIMIT) {
        Ok(there) if there.as_deref().unwrap_or_default() == wanted => Ok(()),
        _ => rebuild(repos, target, "shallow was changed", Pushes::Taken).await,
    }
}

/// Restores the file that names the folders that the hub borrows objects from, so that its objects
/// can be read. If this fails, they stay unreadable.
pub(super) fn put_back_alternates(repos: &RunRepos) {
    let (name, hub) = (Path::new("objects/info/alternates"), repos.paths.hub());
    let Ok(wanted) = std::fs::read(repos.paths.private.join(FORM).join("alternates")) else {
        return;
    };
    if untrusted_path::read(&hub, name, FIXED_LIMIT)
        .is_ok_and(|there| there.as_ref() == Some(&wanted))
    {
        return;
    }
    untrusted_path::remove(&hub, Path::new("objects/info/alternates.lock"));
    untrusted_path::remove(&hub, name);
    drop(untrusted_path::replace(&hub, name, &wanted));
}

/// Rebuilds the hub and records the reason. Pushes are restored as they were; the caller has to
/// verify them.
///
/// The caller holds [`RunRepos::git`].
pub(super) async fn rebuild(
    repos: &RunRepos,
    target: &str,
    why: &str,
    pushes: Pushes,
) -> Result<(), RepoError> {
    let pushed = match pushes {
        Pushes::Taken => taken::take(repos, target).await?,
        Pushes::LeftOut => None,
    };
    let partial = crate::spec_run::hub::build(repos, target).await?;
    let name = format!("refs/heads/{target}");
    if let Some(pushed) = &pushed {
        untrusted_path::replace(&partial, Path::new(&name), format!("{pushed}\n").as_bytes())
            .map_err(FileError::at(Path::new(&name)))?;
    }
    let hub = repos.paths.hub();
    let aside = free_name(&hub, "damaged");
    let io = |source| FileError::HubNotMoved { path: hub.clone(), source };
    match std::fs::symlink_metadata(&hub) {
        Ok(meta) if meta.is_dir() => {
            std::fs::create_dir(&aside).map_err(io)?;
            match untrusted_path::exchange(&hub, &partial, &aside) {
                Ok(()) => clones::remove(&partial).await?,
                Err(error) => {
                    tracing::warn!(%error, "failed to repair the hub in place");
                    clones::remove(&partial).await?;
                    let partial = crate::spec_run::hub::build(repos, target).await?;
                    if let Some(pushed) = &pushed {
                        untrusted_path::replace(
                            &partial,
                            Path::new(&name),
                            format!("{pushed}\n").as_bytes(),
                        )
                        .map_err(io)?;
                    }
                    std::fs::rename(&hub, aside.join("whole")).map_err(io)?;
                    put_dir(&partial, &hub)?;
                }
            }
        }
        Ok(_) => {
            std::fs::rename(&hub, &aside).map_err(io)?;
            put_dir(&partial, &hub)?;
        }
        Err(_) => put_dir(&partial, &hub)?,
    }
    let what = match pushed {
        Some(pushed) => format!("with its push of {pushed}"),
        None => "later pushes are lost".into(),
    };
    repos.note_repair(format!(
        "the hub was damaged ({why}); rebuilt it from the private repository; {what}"
    ));
    Ok(())
}
