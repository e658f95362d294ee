//! Notifications: when a person is told that something waits for them.
//!
//! ```text
//!  waits for a person ──dwell over, no quiet hours, cool-down over──▶ due
//!  due ──────────────── recorded, together with all others that are due ──▶ one notification
//!  notification ─────── each channel: tried (recorded) ─▶ sent | failed ─▶ tried again, bounded
//! ```
//!
//! - [`matter`]: the things that wait for a person, from the folded events;
//! - [`mod@decide`]: which of them are due, as a pure function.

pub mod decide;
pub mod matter;

pub use decide::{Decision, Notice, Told, decide};
pub use matter::{Kind, Matter, matters};
