//! The parts of the events that archive dispatches and restore them.

use crate::event::id::DispatchId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A finished dispatch that is archived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Archived {
    /// The dispatch.
    pub id: DispatchId,
    /// The sequence number of the newest event about it.
    pub last_seq: u64,
}

/// Archived dispatches that are restored, and everything that is needed to fold their events again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Restored {
    /// The dispatches.
    pub ids: Vec<DispatchId>,
    /// The sequence number of the first event about any of them.
    pub first_seq: u64,
    /// The sequence number of the last event about any of them.
    pub last_seq: u64,
    /// The kernel's id of the boot at the first of these events.
    pub boot_id: String,
}
