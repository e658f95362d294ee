//! Renders adapters for `adapter list`, in the same way for a live daemon and from disk.

use crate::conversation::adapter::registry::Live;
use crate::dispatch::error::fault;
use jiff::Timestamp;
use muleteer_model::conversation::adapter::outbox::AdapterState;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{AdapterDoc, InboxDoc, OutboxDoc, WireError};
use std::collections::BTreeMap;

/// Returns all adapters, by name.
pub fn adapters(fleet: &Fleet, all: &BTreeMap<String, Live>, now: Timestamp) -> Vec<AdapterDoc> {
    all.iter().map(|(name, live)| document(fleet, name, live, now)).collect()
}

fn document(fleet: &Fleet, name: &str, live: &Live, now: Timestamp) -> AdapterDoc {
    let none = AdapterState::default();
    let known = fleet.conversations.adapter(name).unwrap_or(&none);
    let oldest = known.owing.values().next();
    let oldest = oldest.and_then(|thread| fleet.conversations.get(thread)?.outbox.first());
    let age = |at: Timestamp| now.duration_since(at).as_secs().max(0).cast_unsigned();
    AdapterDoc {
        name: name.into(),
        state: live.state.as_str().into(),
        pid: live.pid,
        restarts: live.restarts,
        since: live.since.map(|since| format!("{since:.3}")),
        connected: live.capabilities().is_some(),
        inbox: InboxDoc { accepted: known.accepted, duplicates: live.duplicates },
        outbox: OutboxDoc {
            pending: known.pending,
            posted: known.posted,
            refused: known.refused,
            oldest_age_s: oldest.map(|(_, post)| age(post.at)),
        },
        capabilities: live.capabilities().unwrap_or_default().to_vec(),
        reason: live.reason.clone(),
    }
}

/// Returns the error for an adapter that is not configured.
pub(super) fn unknown(name: &str) -> WireError {
    let message = format!("no adapter `{name}` is configured");
    fault(ErrorCode::NotFound, &message, "run `muleteer adapter list` to list the adapters")
}
