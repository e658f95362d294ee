//! A line of `events.jsonl`, and the request to append one.

use crate::event::Event;
use crate::event::id::DispatchId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version written on every line.
pub const VERSION: u16 = 1;

/// One durable line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Flat")]
pub struct Record {
    pub v: u16,
    pub seq: u64,
    pub ts: Timestamp,
    #[serde(flatten)]
    pub entry: Entry,
}

/// A record in the flat form that serde reads. With two nested levels of `flatten`, serde would
/// buffer the fields and go through them twice.
#[derive(Deserialize)]
struct Flat {
    v: u16,
    seq: u64,
    ts: Timestamp,
    id: String,
    #[serde(default)]
    dispatch_id: Option<DispatchId>,
    #[serde(default)]
    at: Option<Position>,
    #[serde(default)]
    more: bool,
    #[serde(flatten)]
    event: Event,
}

impl From<Flat> for Record {
    fn from(flat: Flat) -> Self {
        let Flat { v, seq, ts, id, dispatch_id, at, more, event } = flat;
        Self { v, seq, ts, entry: Entry { id, dispatch_id, at, more, event } }
    }
}

/// A request to the ledger to append an event. The caller chooses `id`; the ledger acknowledges a
/// repeated id without appending it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<DispatchId>,
    /// The position up to which an agent's output is folded in. Set on events read from its spool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Position>,
    /// The next line belongs to the same batch. A batch is all or nothing: recovery cuts trailing
    /// records back to the last one without `more`. So events that were decided together are never
    /// half recorded; a second decision on half-folded state would differ from the first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    #[serde(flatten)]
    pub event: Event,
}

/// The position in an agent's spool up to which its output has become events.
///
/// `(epoch, offset)` is the record in which the next unread line of stdout begins. `skip` counts
/// the bytes of that record's payload that belong to lines already read. The events of one line are
/// one batch (see [`Entry::more`]), so a position never points into the middle of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Position {
    pub epoch: u32,
    pub offset: u64,
    pub skip: u32,
}
