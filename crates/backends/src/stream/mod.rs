//! The output of an agent CLI: it bounds lines, finds our own events, joins chunks of messages,
//! counts usage once, and replays a recording.

pub(crate) mod assembly;
pub(crate) mod foreign;
pub(crate) mod lines;
pub(crate) mod live;
pub(crate) mod native_events;
pub(crate) mod replay;
pub(crate) mod text;
pub(crate) mod usage_dedup;
