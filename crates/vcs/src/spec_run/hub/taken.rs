//! Fetches the pushes of agents from a hub that is to be rebuilt. It reads only the hub's objects,
//! through a temporary repository of the harness, so no other damage can misdirect git.

use crate::error::{FileError, RepoError};
use crate::spec_run::RunRepos;
use crate::spec_run::clones;
use crate::spec_run::hub::repair;
use crate::spec_run::hub::structure::{PACKED, REFS_LIMIT, packed};
use crate::spec_run::private_repo::{self, UNDONE};
use crate::untrusted_path;
use std::path::Path;

/// The ref in the private repository for the last commit that was fetched from a damaged hub.
const TAKEN: &str = "refs/muleteer/taken";
const REFLOG_LIMIT: u64 = 4 << 20;

/// Fetches the commit of the hub's target into the private repository, unless its target has it.
/// Returns `None` if the hub names no commit, or its objects cannot be read.
pub(super) async fn take(repos: &RunRepos, target: &str) -> Result<Option<String>, RepoError> {
    let name = format!("refs/heads/{target}");
    let objects = repos.paths.hub().join("objects");
    let is_folder = |path: &Path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    if !is_folder(&repos.paths.hub()) || !is_folder(&objects) {
        return Ok(None);
    }
    let Some(now) = stood_at(repos, &name).await else { return Ok(None) };
    if private_repo::is_ancestor(repos, &now, &name).await {
        return Ok(None);
    }
    let dir = repos.paths.private.join(".hub.lent");
    clones::remove(&dir).await?;
    let found = bring(repos, &dir, &objects, &now).await;
    clones::remove(&dir).await?;
    match found {
        Ok(()) => Ok(Some(now)),
        Err(why) if why.is_disk_full() => Err(why),
        Err(why) => {
            tracing::warn!(
                run = %repos.run_id,
                %why,
                "failed to fetch a push from a damaged hub"
            );
            Ok(None)
        }
    }
}

/// Returns the last commit of the hub's branch. It is in its loose file, in `packed-refs`, or else
/// at the end of its reflog. An undone push is in the reflog too, and is ignored.
async fn stood_at(repos: &RunRepos, name: &str) -> Option<String> {
    let hub = repos.paths.hub();
    let loose = private_repo::loose(&hub, name);
    let read = |file: &str, limit: u64| {
        untrusted_path::read(&hub, Path::new(file), limit).ok().flatten().unwrap_or_default()
    };
    let packed = || {
        let text = read(PACKED, REFS_LIMIT);
        let found = text.split(|byte| *byte == b'\n').filter_map(packed);
        let mut found = found.filter(|(_, known)| *known == name.as_bytes());
        found.next().map(|(commit, _)| commit)
    };
    if let Some(now) = loose.or_else(packed) {
        return Some(now);
    }
    let log = read(&format!("logs/{name}"), REFLOG_LIMIT);
    let last = log.trim_ascii_end().rsplit(|byte| *byte == b'\n').next()?;
    let now = private_repo::hash(last.split(|byte| *byte == b' ').nth(1)?)?;
    private_repo::at(repos, &format!("{UNDONE}/{now}")).await.is_none().then_some(now)
}

/// Fetches a commit from a folder of objects that an agent can write.
async fn bring(repos: &RunRepos, dir: &Path, objects: &Path, now: &str) -> Result<(), RepoError> {
    repair::put_back_alternates(repos);
    let lent = objects.to_owned();
    let checking = tokio::task::spawn_blocking(move || private_repo::check_files(&lent));
    checking.await??;
    private_repo::bare(repos, dir).await?;
    let io = FileError::at(dir);
    let lenders = dir.join("objects/info/alternates");
    let known = std::fs::read_to_string(&lenders).map_err(&io)?;
    let own = repos.paths.keep().join("objects");
    std::fs::write(&lenders, format!("{known}{}\n{}\n", own.display(), objects.display()))
        .map_err(&io)?;
    std::fs::write(dir.join("refs/heads/taken"), format!("{now}\n")).map_err(io)?;
    private_repo::fetch(repos, dir, now, &[&format!("+{TAKEN}")], "cannot fetch the pushed commits")
        .await
}
