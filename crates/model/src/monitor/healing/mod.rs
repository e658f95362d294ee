//! Self-healing by configuration: after a stall, a stop by a monitor or a failure of a dispatch, a
//! light agent reads what is known and chooses what follows, within limits. Muleteer carries the
//! choice out.
//!
//! - [`settings`]: the section `healing` of the configuration;
//! - [`event`]: what is durable about it;
//! - [`state`]: the healing of one dispatch, folded from the events;
//! - [`step`]: the decisions;
//! - [`prompt`]: the light agent's prompt, and how its answer is read.
//!
//! ```text
//!  trouble ──▶ HealingBegun ──▶ light agent ──▶ HealingChosen ──▶ effect ──▶ HealingDone
//! ```
//!
//! Each event is durable before what follows it, and each effect has a key that follows from the
//! events. So a daemon that is killed at any point repeats nothing.

pub mod event;
pub mod prompt;
pub mod settings;
pub mod state;
pub mod step;

/// The creator of a light agent: this, and the id of the dispatch in trouble.
pub const LIGHT_BY: &str = "healing/";
/// The creator of a dispatch that tries the task of another one again: this, and the id of that
/// one.
pub const RETRY_BY: &str = "retry/";

/// The text for an agent that is respawned.
pub const CONTINUE: &str = "You were ended because you made no progress or failed. Look at the \
                            state of your work, then continue the task. Do not repeat what led to \
                            the end.";
