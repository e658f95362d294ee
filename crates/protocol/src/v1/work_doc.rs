//! The work of a dispatch's clone, as `status --json` shows it.

use serde::{Deserialize, Serialize};

/// The work of a clone, and where it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct WorkDoc {
    /// The branch in the user's repository; null if no commit was fetched.
    pub branch: Option<String>,
    pub commit: Option<String>,
    /// How many commits the agent made on the branch.
    #[serde(default)]
    pub commits: Option<u32>,
    /// Work that was on no branch, as refs of the user's repository.
    #[serde(default)]
    pub left: Vec<LeftDoc>,
    /// Work that is only in the clone, with the reason.
    #[serde(default)]
    pub skipped: Vec<String>,
    /// Why the commits are only in the clone.
    #[serde(default)]
    pub trouble: Option<String>,
    /// A summary of all of this on one line, for people.
    pub summary: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct LeftDoc {
    #[serde(rename = "ref")]
    pub name: String,
    pub what: String,
}
