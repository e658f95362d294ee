//! The properties of one confined agent.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The properties of one agent, saved with its request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Confined {
    pub write: Vec<PathBuf>,
    pub show: Vec<PathBuf>,
    /// Paths that would be shown otherwise.
    #[serde(default)]
    pub hide: Vec<PathBuf>,
    /// The folder of its CLI's conversations, if nobody else may read them; else they are in HOME.
    #[serde(default)]
    pub talk: Option<PathBuf>,
    /// It gets a HOME of its own. False for agents from before there were any.
    #[serde(default)]
    pub private_home: bool,
    /// The most processes and threads; 0 is no limit.
    #[serde(default)]
    pub max_processes: u32,
    /// The most memory in MiB. `None` is three quarters of the machine's, 0 is no limit.
    #[serde(default)]
    pub max_memory_mib: Option<u64>,
    /// The most disk space of its private HOME in MiB. `None` is half of what is free, 0 is no
    /// limit.
    #[serde(default)]
    pub max_home_mib: Option<u64>,
    /// It may make user namespaces, for a sandbox of its own.
    #[serde(default)]
    pub nested: bool,
    /// It runs no programs of the repository, so it needs no network but its model's API.
    #[serde(default)]
    pub only_model: bool,
}
