//! The parts of the events that archive dispatches and restore them.

use crate::event::id::DispatchId;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// The removal of the oldest events. The parts that the fold still needs stay in the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EventsRemoved {
    /// The sequence number of the last removed event.
    pub through: u64,
    /// All of them are from before this time.
    #[schemars(with = "String")]
    pub before: Timestamp,
    /// The dispatches that began before and whose events stay.
    pub kept: Vec<DispatchId>,
    /// The number of archived dispatches that are left.
    pub archived: u64,
    /// The amount spent from each purse in US dollars, by the purse's name.
    pub purses: BTreeMap<String, f64>,
    /// The user that requested it, or `retention`.
    pub by: String,
}
