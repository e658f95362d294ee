//! The reasons why a daemon does not start.

use crate::daemon::settings;
use muleteer_model::config::ConfigError;
use muleteer_store::StoreError;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("a daemon already uses {}{}", .state_dir.display(), holder(.note))]
    Running { state_dir: PathBuf, note: Option<Note> },
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} {}", .path.display(), reason(*.owner))]
    NotPrivate {
        path: PathBuf,
        /// The other user that it belongs to. `None`: other users can access it.
        owner: Option<u32>,
        /// The environment variable that moves it elsewhere.
        variable: &'static str,
    },
    #[error("the configuration is invalid")]
    Config(Vec<ConfigError>),
    #[error(transparent)]
    Unreadable(#[from] settings::Unreadable),
    #[error("failed to recover the events")]
    Events(#[from] StoreError),
    #[error("failed to write the first event: {0}")]
    Append(String),
    #[error("the supervision tree failed: {0}")]
    Tree(String),
}

/// The note about the lock's holder, for people. No decision depends on it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Note {
    pub pid: u32,
    pub started: String,
    pub version: String,
    pub boot_id: String,
    /// The socket's path, for clients whose environment leads elsewhere.
    #[serde(default)]
    pub socket: Option<PathBuf>,
}

fn reason(owner: Option<u32>) -> String {
    match owner {
        Some(uid) => format!("belongs to another user of this machine (uid {uid})"),
        None => "can be written by other users, or is no directory".into(),
    }
}

fn holder(note: &Option<Note>) -> String {
    match note {
        Some(note) => format!(" (pid {}, since {})", note.pid, note.started),
        None => String::new(),
    }
}
