//! The errors of a task list. A locked list names the holder of its lock.

use muleteer_model::task_list::document::Fault;
use muleteer_protocol::ErrorCode;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

/// The holder of the lock, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    pub path: PathBuf,
    pub pid: Option<u32>,
    pub holder: Option<Holder>,
    /// The other user who owns the lock, and could have made it to keep this user out.
    pub stranger: Option<u32>,
}

/// The record that a session of ours writes beside its pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Distinguishes the process from a later one with the same pid.
    pub start_time: u64,
    pub boot_id: String,
    /// The run for which it is held: its agents may change the list nevertheless.
    #[serde(default)]
    pub run: Option<String>,
}

/// Why a list cannot be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TaskListError {
    #[error("no {} in {} or above", muleteer_model::task_list::TASKS, .0.display())]
    Missing(PathBuf),
    /// The file is not a valid list; a person must repair it.
    #[error("{}: {}", .file.display(), first(.faults))]
    Invalid { file: PathBuf, faults: Vec<Fault> },
    #[error("{} is corrupted and unrecoverable: {why}", .file.display())]
    Corrupt { file: PathBuf, line: u64, column: u64, why: String },
    #[error("another harness session is active{}", holder(.0))]
    Locked(Locked),
    #[error("cannot {doing} {}", .file.display())]
    Io {
        file: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
}

impl TaskListError {
    pub(super) fn io(
        file: &std::path::Path,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { file: file.into(), doing, source }
    }

    /// Says why a list cannot be read, and where the fault is.
    pub(super) fn why(&self) -> String {
        match self {
            Self::Corrupt { why, .. } => why.clone(),
            Self::Invalid { faults, .. } => first(faults),
            Self::Io { source, .. } => source.to_string(),
            other => other.to_string(),
        }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Missing(_) => ErrorCode::TasksMissing,
            Self::Invalid { .. } => ErrorCode::TasksInvalid,
            Self::Corrupt { .. } => ErrorCode::TasksCorrupt,
            Self::Locked(_) => ErrorCode::TasksLocked,
            Self::Io { .. } => ErrorCode::StoreIo,
        }
    }

    /// Returns a hint that says how to fix the error.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing(_) => "create one with `muleteer tasks init`, or name its directory in \
                HARNESS_STATE_ROOT"
                .into(),
            Self::Invalid { faults, .. } => {
                faults.first().map_or_else(|| "fix the file".into(), |fault| fault.hint.clone())
            }
            Self::Corrupt { .. } => "restore the file from version control or by hand: no valid \
                backup exists; the log has the results, but not the validation commands"
                .into(),
            Self::Locked(Locked { stranger: Some(uid), path, .. }) => format!(
                "if that user (`id -nu {uid}`) does not work on this list, have an administrator \
                 remove the lock: sudo rm -r {}",
                path.display()
            ),
            Self::Locked(_) => {
                "wait until it has ended, or stop a run with `muleteer tasks stop`; `muleteer \
                 tasks status` needs no lock"
                    .into()
            }
            Self::Io { .. } => "check the disk, the permissions and the owner of this file".into(),
        }
    }
}

fn first(faults: &[Fault]) -> String {
    let more =
        if faults.len() > 1 { format!(" (and {} more)", faults.len() - 1) } else { String::new() };
    faults.first().map_or_else(|| "it is invalid".into(), |fault| format!("{fault}{more}"))
}

fn holder(locked: &Locked) -> String {
    let pid = locked.pid.map_or_else(String::new, |pid| format!(" (pid={pid})"));
    let owner = locked.stranger.map_or_else(String::new, |uid| {
        format!(", which belongs to another user of this machine (uid {uid})")
    });
    format!("{pid}: it has {}{owner}", locked.path.display())
}
