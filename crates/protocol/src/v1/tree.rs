//! The supervision tree, as `tree` shows it.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreeNode {
    pub name: String,
    /// `one-for-one`, `one-for-all`, `rest-for-one`, or `-` for a leaf.
    pub strategy: String,
    /// `permanent`, `transient` or `temporary`.
    pub restart: String,
    pub restarts_in_window: u32,
    pub state: String,
    pub children: Vec<TreeNode>,
    pub process: Option<ProcessStatus>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    pub pid: u32,
    pub rss_bytes: u64,
    pub cpu_percent: f32,
}
