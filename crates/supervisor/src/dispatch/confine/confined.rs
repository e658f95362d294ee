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
}
