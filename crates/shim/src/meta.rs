//! Identifies the newest shim of an agent for a later daemon: a line of the lock file, and
//! `meta.json` from a shim of an earlier version. The lock says whether that shim lives.

use crate::notes::{self, LOCK, Notes};
use muleteer_process::identity::ProcessId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The `v` that this build writes, and the newest that it reads.
pub const VERSION: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    pub v: u16,
    pub epoch: u32,
    pub generation: u64,
    pub shim: ProcessId,
    /// Absent until the agent is forked.
    #[serde(default)]
    pub agent: Option<ProcessId>,
    /// Pids mean nothing in another boot or namespace.
    pub boot_id: String,
    pub pid_namespace: u64,
    /// The nonce in the agent's environment and in `HelloOk`.
    pub nonce: String,
    #[serde(default)]
    pub containment: String,
    /// The agent's own cgroup, for the sweep, which also removes it.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// The version of the shim's binary, for logs only.
    #[serde(default)]
    pub version: String,
}

impl Meta {
    /// Returns the path of the file that an earlier version wrote.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("meta.json")
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        notes::add_meta(dir, &serde_json::to_string(self)?)
    }
}

/// Returns the identity of the newest shim; `None` if no shim has written one.
///
/// # Errors
/// It cannot be read, or the newest is damaged.
pub fn read(dir: &Path) -> Result<Option<Meta>, MetaError> {
    let path = dir.join(LOCK);
    let notes =
        Notes::read(dir).map_err(|source| MetaError::Read { path: path.clone(), source })?;
    let newest = notes.meta().map(|text| parse(text.as_bytes(), &path)).transpose()?;
    let file = Meta::path(dir);
    let earlier = match std::fs::read(&file) {
        Ok(bytes) => Some(parse(&bytes, &file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => Some(Err(MetaError::Read { path: file, source })),
    };
    match (newest, earlier) {
        (newest, None) => Ok(newest),
        (None, Some(earlier)) => earlier.map(Some),
        // A shim of an earlier version may also have come after one of this.
        (Some(newest), Some(Ok(earlier))) if earlier.epoch > newest.epoch => Ok(Some(earlier)),
        (Some(newest), Some(_)) => Ok(Some(newest)),
    }
}

fn parse(bytes: &[u8], path: &Path) -> Result<Meta, MetaError> {
    let meta: Meta = serde_json::from_slice(bytes)
        .map_err(|source| MetaError::Parse { path: path.into(), source })?;
    if meta.v > VERSION {
        return Err(MetaError::Version { path: path.into(), found: meta.v });
    }
    Ok(meta)
}

#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is damaged")]
    Parse { path: PathBuf, source: serde_json::Error },
    #[error(
        "{path} has version {found}, but this muleteer knows {VERSION}: use the muleteer that \
         wrote it"
    )]
    Version { path: PathBuf, found: u16 },
}
