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
//! - [`adapter`]: the processes that connect threads to people elsewhere;
//! - [`event`]: the content of the events;
//! - [`command`]: the commands that people write, parsed;
//! - [`context`]: the prompt of an agent that continues a thread without the earlier session;
//! - [`directed`]: messages that are not for the thread's agent, as pure functions;
//! - [`meeting`]: several roles and people in one thread, whose turns a chair gives;
//! - [`route`]: the way of a message: a command, an answer, or a message for an agent;
//! - [`schedule`]: the messages that Muleteer writes at configured times;
//! - [`thread`]: the state of one thread, and the bounds of threads ([`limits`]);
//! - [`fold`]: all threads;
//! - [`window`]: the messages of a thread that stay in memory;
//! - [`step`]: the next events and the next effect of a thread, as pure functions;
//! - [`notify`]: the matters of which a person is notified;
//! - [`question`]: everything that waits for the answer of a person.

pub mod adapter;
pub mod command;
pub mod context;
pub mod directed;
pub mod event;
pub mod fold;
pub mod meeting;
pub mod notify;
pub mod question;
pub mod route;
pub mod schedule;
pub mod step;
pub mod thread;

pub use thread::limits::{ANSWER_LIMIT, BY, DEFAULT_ROLE, KEY_LIMIT, MOST_OPEN, TEXT_LIMIT};
pub use thread::{limits, window};

use crate::event::id::{DispatchId, key_of};

/// Returns the key of the prompt that delivers a message.
pub fn prompt_key(thread: &str, message: &str) -> String {
    key_of(&format!("{BY}{thread}/{message}"))
}

/// Returns the key of the first prompt of a dispatch: its first message.
pub fn initial_key(dispatch: &DispatchId) -> String {
    crate::dispatch::life::prompt_key(dispatch, crate::event::PromptKind::Initial, 0)
}
