//! The repositories of a spec run.
//!
//! - [`hub`]: the bare repository that agents push to;
//! - `private_repo`: the harness's own, with everything that was verified;
//! - [`clones`]: the private ones of the agents;
//! - `large_files`: the files that git-lfs keeps;
//! - [`publish`]: the way of the result into the person's repository;
//! - [`remote`]: and to the person's remote.

pub mod clones;
pub mod hub;
mod large_files;
mod private_repo;
pub mod publish;
pub mod remote;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tokio_util::sync::CancellationToken;

/// Returns the name of a clone: that of its folder.
fn name_of(clone: &Path) -> String {
    clone.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Whether a file, or a link to it, was changed after another was made. The kernel sets the times
/// that are compared.
fn is_newer(file: &Path, made: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let changed = |meta: std::io::Result<std::fs::Metadata>| {
        meta.map(|meta| (meta.ctime(), meta.ctime_nsec())).unwrap_or((i64::MAX, 0))
    };
    let made = std::fs::metadata(made).and_then(|meta| meta.modified());
    let Ok(made) = made.map(|made| made.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    else {
        return true;
    };
    let made = (i64::try_from(made.as_secs()).unwrap_or(i64::MAX), i64::from(made.subsec_nanos()));
    let (link, target) = (std::fs::symlink_metadata(file), std::fs::metadata(file));
    changed(link).max(changed(target)) > made
}

/// The folders of a run's repositories.
#[derive(Debug, Clone)]
pub struct RunPaths {
    /// The run's private folder, which no agent can write.
    pub private: PathBuf,
}

impl RunPaths {
    pub fn hub(&self) -> PathBuf {
        self.private.join("hub.git")
    }

    /// Returns the harness's private repository.
    pub fn keep(&self) -> PathBuf {
        self.private.join("keep.git")
    }

    /// Returns the copy of the person's global git configuration.
    fn configuration(&self) -> PathBuf {
        self.private.join("gitconfig/config")
    }

    /// Returns a file of the private repository that was written when the run began, before any of
    /// its agents.
    fn begun(&self) -> PathBuf {
        self.keep().join("objects/info/alternates")
    }

    /// Returns the time at which a clone was made and nobody had written to it yet.
    fn made_at(&self, clone: &Path) -> Option<SystemTime> {
        let noted = self.private.join("bases").join(name_of(clone));
        std::fs::metadata(noted).and_then(|meta| meta.modified()).ok()
    }

    /// Returns the file with the message about an undone push during this agent's work.
    pub fn undone(&self, job: &str) -> PathBuf {
        self.private.join(format!("undone-{job}"))
    }
}

/// The repositories of one run.
#[derive(Debug)]
pub struct RunRepos {
    pub run_id: String,
    /// The person's repository.
    pub repo: PathBuf,
    pub paths: RunPaths,
    /// The `PATH` of the agents.
    pub path: Option<String>,
    /// Cancelled when the run's agents are terminated. A git that reads an agent's repository does
    /// not outlive that by long.
    pub halt: CancellationToken,
    /// Held by code that writes refs of the private repository.
    pub git: tokio::sync::Mutex<()>,
    /// Repairs that are not recorded yet.
    repairs: Mutex<Vec<String>>,
}

impl RunRepos {
    pub fn new(
        run_id: &str,
        repo: impl AsRef<Path>,
        paths: RunPaths,
        halt: CancellationToken,
    ) -> Self {
        Self {
            run_id: run_id.into(),
            repo: repo.as_ref().into(),
            paths,
            path: std::env::var("PATH").ok(),
            halt,
            git: tokio::sync::Mutex::new(()),
            repairs: Mutex::default(),
        }
    }

    /// Whether a file, or a link to it, was changed since the run began. False before that.
    pub fn is_changed(&self, file: &Path) -> bool {
        let begun = self.paths.begun();
        begun.exists() && is_newer(file, &begun)
    }

    fn note_repair(&self, message: String) {
        tracing::warn!(run = %self.run_id, %message, "repaired the hub");
        self.repairs.lock().unwrap_or_else(PoisonError::into_inner).push(message);
    }

    /// Returns the messages about repairs since the last call. The caller records them.
    pub fn take_repairs(&self) -> Vec<String> {
        std::mem::take(&mut *self.repairs.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
