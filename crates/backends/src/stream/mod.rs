//! The output of an agent CLI: it bounds lines, finds our own events, joins chunks of messages, and
//! counts usage once.

pub(crate) mod assembly;
pub(crate) mod lines;
pub(crate) mod native_events;
pub(crate) mod text;
pub(crate) mod usage_dedup;
