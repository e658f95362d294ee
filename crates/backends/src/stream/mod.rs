//! The output of an agent CLI: lines of bounded length, our own events among them, pieces that are
//! put together, and usage that is counted once.

pub(crate) mod assembly;
pub(crate) mod lines;
pub(crate) mod native_events;
pub(crate) mod text;
pub(crate) mod usage_dedup;
