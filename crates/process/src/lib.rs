//! OS processes: spawning, groups, signals, identity, locks, and the points at which tests crash us.

pub mod fault;
