//! The bounds of meetings. This module imports nothing.

/// The most roles of a meeting.
pub const MOST_ROLES: usize = 16;
/// The most meetings of a thread: each stays in memory.
pub const MOST_MEETINGS: usize = 32;
/// The most turns of a meeting.
pub const MOST_TURNS: u32 = 200;
/// The turns of a meeting that names no number.
pub const USUAL_TURNS: u32 = 12;
/// The time in seconds after which an unanswered turn is lost, unless the meeting names another.
pub const USUAL_LIMIT_S: u64 = 600;
/// The most bytes of a topic.
pub const TOPIC_LIMIT: usize = 4096;
/// A role that lost so many turns in a row takes no more.
pub const MOST_LOST: u32 = 2;
/// The most roles that are asked for the minutes. Then Muleteer lists the turns alone.
pub const MOST_WRITERS: usize = 2;
/// The most bytes that are kept of what was said in a turn.
pub(super) const RECORD_LIMIT: usize = 600;
