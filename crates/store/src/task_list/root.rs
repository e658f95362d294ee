//! Where a list lives, and the names of what is beside it.

use crate::hash::sha256;
use crate::task_list::TaskListError;
use muleteer_model::task_list::{ACTIVE, BACKUP, DAMAGED, INIT, PROGRESS, TASKS, TEMPORARY};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory that contains `harness-tasks.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The root that is meant by somebody in `from`: `pinned` (`HARNESS_STATE_ROOT`), else the
    /// nearest directory from there upwards that holds a list.
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

    /// This directory, list or none. Its real name: whoever comes by a link must take the same
    /// lock.
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

    /// Where the `number`-th list is kept that could not be read, counted from 1.
    pub(super) fn damaged(&self, number: u32) -> PathBuf {
        self.0.join(if number == 1 { DAMAGED.to_string() } else { format!("{DAMAGED}.{number}") })
    }

    pub fn progress(&self) -> PathBuf {
        self.0.join(PROGRESS)
    }

    pub fn init_script(&self) -> PathBuf {
        self.0.join(INIT)
    }

    /// The activation marker: hooks do nothing without it.
    pub fn active(&self) -> PathBuf {
        self.0.join(ACTIVE)
    }

    /// What Muleteer keeps beside the list and other tools need not know.
    pub fn private(&self) -> PathBuf {
        self.0.join(".muleteer/tasks")
    }

    /// Whose run works on a concurrent list.
    pub(super) fn at_work(&self) -> PathBuf {
        self.private().join("run.json")
    }

    /// What a session has written last.
    pub(super) fn session(&self) -> PathBuf {
        self.private().join("session.json")
    }

    /// Output of a task's validation: `before` the first attempt, or the `last` one.
    pub fn output(&self, task: &str, which: &str) -> PathBuf {
        let name: String = task
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
            .collect();
        // Two ids may become one name.
        self.private().join(format!("{name}-{}.{which}.txt", &sha256(task.as_bytes())[..8]))
    }

    /// The lock every tool of this format takes: in `/tmp` to the letter,
    /// whatever TMPDIR says, by the first 16 hex digits of the SHA-256 of the root's path.
    pub fn lock_dir(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/harness-{}.lock", &sha256(self.0.as_os_str().as_bytes())[..16]))
    }
}
