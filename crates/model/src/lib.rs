//! Every decision Muleteer makes, as pure functions over plain data.
//!
//! Architecture invariant: no IO, no clock, no randomness, no async. What needs `now` or random
//! bytes takes them as an argument, so a million simulated hours run in seconds and every crash
//! point can be tried.
//!
//! - [`event`]: what happened (the lines of `events.jsonl`); [`agent_event`]: what an agent's
//!   output means, whatever CLI printed it.
//! - [`dispatch`]: the state of one dispatch, folded from events; [`life`]: what to decide next.
//! - [`fleet`]: all dispatches, folded; what `status` shows.

pub mod agent_event;
pub mod dispatch;
pub mod event;
pub mod fleet;
pub mod id;
// life follows
pub mod result;
