//! The bounds of threads, and the names that other modules need. This module imports nothing.

/// The role of a thread that names none: a person talks with an analyst before anything is built.
pub const DEFAULT_ROLE: &str = "product-analyst";
/// The most bytes of a message's text. A message is one line of the log.
pub const TEXT_LIMIT: usize = 512 * 1024;
/// The most bytes of an answer that becomes a message.
pub const ANSWER_LIMIT: usize = 256 * 1024;
/// The most bytes of a message's key.
pub const KEY_LIMIT: usize = 256;
/// The most unanswered messages of a thread: a writer that is faster than the agent has to wait.
pub const MOST_OPEN: usize = 256;

/// The dispatches of a thread have this in front of the thread's id as the author of the request.
pub const BY: &str = "thread/";

/// The user that opened the threads that no person and no schedule opened: those of runs.
pub const OURSELVES: &str = "muleteer";
