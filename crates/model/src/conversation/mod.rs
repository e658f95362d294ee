//! Threads: conversations between people and agents, folded from the events.
//!
//! ```text
//!            decided       shim wrote it    CLI took it     its turn ended
//!  accepted ────────▶ queued ─────▶ delivered ─────▶ read ─────▶ answered
//!     │                 │               └──────────────┴──▶ unknown (a crash; nobody can tell)
//!     └─────────────────┴──▶ refused (with a reason)
//! ```
//!
//! A message is durable before anybody is told that it is accepted. Which dispatch gets it is
//! durable before that dispatch is created or gets the prompt. The prompt's key follows from the
//! message's id, so a repeated delivery is no second delivery.
//!
//! - [`event`]: the content of the events;
//! - [`thread`]: the state of one thread;
//! - [`fold`]: all threads;
//! - [`step`]: the next events and the next effect of a thread, as pure functions.

pub mod event;
pub mod fold;
pub mod step;
pub mod thread;

use crate::dispatch::life::key_of;
use crate::event::id::DispatchId;

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

/// Returns the key of the prompt that delivers a message.
pub fn prompt_key(thread: &str, message: &str) -> String {
    key_of(&format!("{BY}{thread}/{message}"))
}

/// Returns the key of the first prompt of a dispatch: its first message.
pub fn initial_key(dispatch: &DispatchId) -> String {
    crate::dispatch::life::prompt_key(dispatch, crate::event::PromptKind::Initial, 0)
}
