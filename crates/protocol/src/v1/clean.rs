//! The request and the reply of the verb `clean`.

use serde::{Deserialize, Serialize};

/// The dispatches whose clones and journals may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clean {
    /// They ended at least this many seconds ago.
    pub older_than_s: u64,
    /// Without it, the reply only reports what would be removed.
    #[serde(default)]
    pub apply: bool,
    /// Includes dispatches that stalled, failed, were blocked or did only a part.
    #[serde(default)]
    pub failed: bool,
    /// Only dispatches created by this event or a later one. The reply says where to continue.
    #[serde(default)]
    pub from_seq: u64,
}

/// The clones and journals that were removed and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Cleaned {
    /// The clones that were removed, or would be.
    pub removed: Vec<Removed>,
    /// The journals that were archived, or would be.
    pub archived: Vec<Archived>,
    pub kept: Vec<Kept>,
    /// There are more: continue from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_seq: Option<u64>,
    /// How many of the kept ones stay because a removal failed.
    #[serde(default)]
    pub faults: u64,
    /// The events that were removed, or would be; absent if the configuration keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<RemovedEvents>,
    /// The files that were compressed, or would be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compressed: Option<Compressed>,
}

/// The output of ended agents and the logs of ended runs that `clean` compressed or would compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Compressed {
    /// The number of dispatches.
    pub outputs: u64,
    /// The number of runs.
    #[serde(default)]
    pub runs: u64,
    /// Their size on the disk; after the compression, what it freed.
    pub bytes: u64,
}

impl Compressed {
    /// Adds the figures of another part of the same request.
    pub fn add(&mut self, more: Self) {
        self.outputs += more.outputs;
        self.runs += more.runs;
        self.bytes += more.bytes;
    }
}

/// The oldest events, which `clean` removed or would remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct RemovedEvents {
    /// The sequence number of the last one; 0 if none is old enough.
    pub through: u64,
    /// Their number; before the removal, with those that will stay.
    pub events: u64,
    /// Their size on the disk.
    pub bytes: u64,
    /// The number of older events that stay, because they are still needed.
    #[serde(default)]
    pub kept: u64,
}

/// A clone that `clean` removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Absolute.
    pub path: String,
    /// Its size on the disk.
    pub bytes: u64,
    #[serde(default)]
    pub dispatch_id: Option<String>,
}

/// A journal that `clean` archived, or would archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// Absolute.
    pub path: String,
    /// Its place in the archive, absolute.
    pub to: String,
    #[serde(default)]
    pub dispatch_id: Option<String>,
}

/// A clone or a journal that `clean` kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Absolute.
    pub path: String,
    /// The reason, for people.
    pub reason: String,
    #[serde(default)]
    pub dispatch_id: Option<String>,
}
