//! Adapters: processes that connect threads to places where people are.
//!
//! ```text
//!              process started     hello with its key
//!  disabled ─▶ starting ─────────▶ running ──── exit ───▶ backoff ──▶ starting
//!                                                  └─ too often ─▶ set_aside (until a person acts)
//! ```
//!
//! Inbound messages are durable before the adapter gets an acknowledgement. Outbound messages are
//! events first. The adapter gets them in order for each thread, under a key, again and again until
//! it acknowledges them ([`outbox`]).
//!
//! - [`abilities`]: what an outside system can do, and the texts for what it cannot;
//! - [`asks`]: questions as outbound items;
//! - [`event`]: the content of the events;
//! - [`live`]: streams, reactions and states, which no record owes;
//! - [`settings`]: the keys of `adapters.<name>` that the daemon reads;
//! - [`outbox`]: the items that each adapter still owes, as pure functions.

pub mod abilities;
pub mod asks;
pub mod event;
pub mod live;
pub mod outbox;
pub mod settings;
