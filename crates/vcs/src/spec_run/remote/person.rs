//! The environment of programs that get the person's tokens: git at the remote, `gh` and the
//! `pre-push` hook. They obey the person's git configuration as it was when the run began, and find
//! the programs of PATH that nobody has changed since.

use crate::command::{GLOBAL, SnapshotError, copy_global_configuration};
use crate::error::FileError;
use crate::spec_run::{RunRepos, is_newer};
use muleteer_process::command::program::only_root_replaces;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::io;
use std::path::{Path, PathBuf};

const PATH: &str = "PATH";
/// A folder of PATH with more entries is left out if it has changed.
const MOST: usize = 1 << 14;

/// Copies the person's global git configuration when a run begins. A copy that is there stays.
/// Blocks.
///
/// # Errors
/// Those of [`copy_global_configuration`].
pub fn copy_configuration(
    repos: &RunRepos,
    environment: &[(String, String)],
) -> Result<(), SnapshotError> {
    let value = |name: &str| {
        let said = environment.iter().rev().find(|(known, _)| known == name);
        said.map(|(_, value)| OsString::from(value))
    };
    copy_global_configuration(&repos.paths.configuration(), &value)
}

/// Returns the environment for programs that get the person's tokens, from the person's. Blocks.
pub fn trusted_environment(
    repos: &RunRepos,
    mut environment: Vec<(String, String)>,
) -> Vec<(String, String)> {
    let kept = repos.paths.configuration();
    if let Some(kept) = kept.to_str().filter(|_| kept.is_file()) {
        environment.retain(|(name, _)| name != GLOBAL);
        environment.push((GLOBAL.into(), kept.into()));
    }
    for (_, path) in environment.iter_mut().filter(|(name, _)| name == PATH) {
        *path = unchanged(path, &repos.paths.begun(), &repos.paths.private.join("programs"));
    }
    environment
}

/// Returns a PATH without the programs that were changed after the file `begun`. A folder that has
/// one is replaced by a folder of links to its other programs, below `links`.
fn unchanged(path: &str, begun: &Path, links: &Path) -> String {
    let _ = std::fs::remove_dir_all(links);
    let mut kept: Vec<String> = vec![];
    let mut seen = BTreeSet::new();
    // A relative folder is one of the repository.
    for folder in path.split(':').filter(|folder| folder.starts_with('/') && seen.insert(*folder)) {
        let dir = Path::new(folder);
        if !dir.exists() || only_root_replaces(dir) {
            kept.push(folder.into());
            continue;
        }
        let to = links.join(kept.len().to_string());
        match without_changed(dir, begun, &to) {
            Ok(None) => kept.push(folder.into()),
            Ok(Some(to)) => {
                tracing::warn!(folder, "left out programs that changed since the run began");
                kept.push(to.display().to_string());
            }
            Err(error) => tracing::warn!(folder, %error, "left out of the PATH of git and gh"),
        }
    }
    kept.join(":")
}

/// Links the programs of a folder into `to`, without those that were changed. `None` if there are
/// no such.
fn without_changed(dir: &Path, begun: &Path, to: &Path) -> Result<Option<PathBuf>, FileError> {
    let failed = FileError::at(dir);
    if dir.is_symlink() && is_newer(dir, begun) {
        return Err(failed(io::Error::other("the link has changed")));
    }
    let listed = std::fs::read_dir(dir).map_err(&failed)?.take(MOST + 1);
    let entries = listed.collect::<io::Result<Vec<DirEntry>>>().map_err(&failed)?;
    if entries.len() > MOST {
        return Err(failed(io::Error::other("it has too many files")));
    }
    let (changed, same): (Vec<_>, Vec<_>) =
        entries.into_iter().map(|entry| entry.path()).partition(|path| is_newer(path, begun));
    if changed.iter().all(|path| path.is_dir()) {
        return Ok(None);
    }
    std::fs::create_dir_all(to).map_err(FileError::at(to))?;
    for program in same {
        let link = to.join(program.file_name().unwrap_or_default());
        std::os::unix::fs::symlink(&program, &link).map_err(FileError::at(&link))?;
    }
    Ok(Some(to.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use std::time::{Duration, SystemTime};

    /// A link that leads nowhere counts as changed: it may lead somewhere later.
    #[test]
    fn path_has_only_the_programs_of_before() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (bin, other, begun) = (root.join("bin"), root.join("other"), root.join("begun"));
        for dir in [&bin, &other] {
            std::fs::create_dir(dir).unwrap();
            std::fs::write(dir.join("old"), "").unwrap();
        }
        let path = format!("{}:bin:/usr/bin:{}:{0}", bin.display(), other.display());
        let file = std::fs::File::create(&begun).unwrap();
        let links = root.join("links");
        let at = |seconds: i64| {
            let now = SystemTime::now();
            let span = Duration::from_secs(seconds.unsigned_abs());
            file.set_modified(if seconds < 0 { now - span } else { now + span }).unwrap();
        };
        at(5);
        let plain = format!("{}:/usr/bin:{}", bin.display(), other.display());
        assert_eq!(unchanged(&path, &begun, &links), plain);
        at(-60);
        let empty = format!("{0}/0:/usr/bin:{0}/2", links.display());
        assert_eq!(unchanged(&path, &begun, &links), empty);
        assert!(!links.join("0/old").exists());
        // One program of `bin` is newer than the beginning, the other is not. The beginning follows
        // the file that was written last, because the clock may have ticked between the folders.
        let meta = other.join("old").metadata().unwrap();
        file.set_modified(meta.modified().unwrap() + Duration::from_millis(1)).unwrap();
        loop {
            std::fs::write(bin.join("git"), "").unwrap();
            if is_newer(&bin.join("git"), &begun) {
                break;
            }
        }
        let mixed = format!("{}/0:/usr/bin:{}", links.display(), other.display());
        assert_eq!(unchanged(&path, &begun, &links), mixed);
        assert!(links.join("0/old").exists() && !links.join("0/git").exists());
    }
}
