//! `meta.json`: identifies the newest shim of an agent for a later daemon. The lock says whether
//! that shim lives.

use crate::launch::write_private;
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
    /// Returns the file's path in the agent's directory.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("meta.json")
    }

    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        write_private(&Self::path(dir), &serde_json::to_vec_pretty(self)?)
    }
}

/// Reads `meta.json`; `None` if no shim has written one.
pub fn read(dir: &Path) -> Result<Option<Meta>, MetaError> {
    let path = Meta::path(dir);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(MetaError::Read { path, source }),
    };
    let meta: Meta = serde_json::from_slice(&bytes)
        .map_err(|source| MetaError::Parse { path: path.clone(), source })?;
    if meta.v > VERSION {
        return Err(MetaError::Version { path, found: meta.v });
    }
    Ok(Some(meta))
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
