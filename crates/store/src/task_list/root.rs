//! Finds the directory of a list and names its files.

use crate::hash::sha256;
use crate::task_list::error::TaskListError;
use muleteer_model::task_list::{ACTIVE, BACKUP, DAMAGED, INIT, PROGRESS, TASKS, TEMPORARY};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory that contains `harness-tasks.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// Finds the root for a process in `from`: `pinned` (`HARNESS_STATE_ROOT`), else the nearest
    /// directory upwards that contains a list.
    ///
    /// # Errors
    /// [`TaskListError::Missing`].
    pub fn find(from: &Path, pinned: Option<&Path>) -> Result<Self, TaskListError> {
        let there = |dir: &Path| dir.join(TASKS).is_file() || dir.join(BACKUP).is_file();
        let found = match pinned {
            Some(pinned) => Some(pinned).filter(|dir| there(dir)),
            None => from.ancestors().find(|dir| dir.join(TASKS).is_file()),
        };
        let missing = || TaskListError::Missing(pinned.unwrap_or(from).to_path_buf());
        Ok(Self::at(found.ok_or_else(missing)?))
    }

    /// Uses this directory, with or without a list. It resolves links, because a process that comes
    /// by a link must take the same lock.
    pub fn at(dir: &Path) -> Self {
        Self(dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn tasks(&self) -> PathBuf {
        self.0.join(TASKS)
    }

    pub fn backup(&self) -> PathBuf {
        self.0.join(BACKUP)
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.0.join(TEMPORARY)
    }

    /// Returns the name for the `number`-th unreadable list that is kept, counted from 1.
    pub(super) fn damaged(&self, number: u32) -> PathBuf {
        self.0.join(if number == 1 { DAMAGED.to_string() } else { format!("{DAMAGED}.{number}") })
    }

    pub fn progress(&self) -> PathBuf {
        self.0.join(PROGRESS)
    }

    pub fn init_script(&self) -> PathBuf {
        self.0.join(INIT)
    }

    /// Returns the activation marker: hooks do nothing without it.
    pub fn active(&self) -> PathBuf {
        self.0.join(ACTIVE)
    }

    /// Returns the folder for files of Muleteer that other tools need not know.
    pub fn private(&self) -> PathBuf {
        self.0.join(".muleteer/tasks")
    }

    /// Returns the file that names the run of a concurrent list.
    pub(super) fn at_work(&self) -> PathBuf {
        self.private().join("run.json")
    }

    /// Returns the file with the list that a session wrote last.
    pub(super) fn session(&self) -> PathBuf {
        self.private().join("session.json")
    }

    /// Returns the file for a validation's output: `before` the first attempt, or the `last` one.
    pub fn output(&self, task: &str, which: &str) -> PathBuf {
        let name: String = task
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        // Two ids may give the same name.
        self.private().join(format!("{name}-{}.{which}.txt", &sha256(task.as_bytes())[..8]))
    }

    /// Returns the lock that every tool of this format takes: always in `/tmp`, whatever TMPDIR is,
    /// named by the first 16 hex digits of the SHA-256 of the root's path.
    pub fn lock_dir(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/harness-{}.lock", &sha256(self.0.as_os_str().as_bytes())[..16]))
    }
}
