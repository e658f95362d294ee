//! Schedules: messages that Muleteer writes into threads at configured times.
//!
//! ```text
//!              schedule_due           the message             schedule_done
//!  waiting ───────────────▶ due ───▶ is accepted ───▶ started ───────────▶ waiting
//!     │                      └────────────────────────────▶ failed (reason)
//!     └── schedule_due with `skipped`: an earlier start has no answer yet
//! ```
//!
//! `schedule_due` is durable before the message is accepted. The key of the message follows from
//! the schedule and the due moment, so a daemon that is killed in between repeats the message
//! without a second one. Times are wall-clock times in the zone of the schedule.
//!
//! - [`settings`]: one entry of `schedules` in the configuration;
//! - [`pattern`]: the due moments of a cron pattern in a time zone;
//! - [`event`]: the content of the events;
//! - [`fold`]: all schedules, folded from the events;
//! - [`step`]: the next events, as pure functions.

pub mod event;
pub mod fold;
pub mod pattern;
pub mod settings;
pub mod step;

pub use settings::{MOST, OnBusy, Schedule};

use jiff::Timestamp;

/// In front of the keys of the messages of schedules, and of the name of a schedule as the one that
/// opened a thread.
pub const PREFIX: &str = "schedule/";

/// Returns the key of the message of a due moment. It is the same after every restart.
pub fn key(schedule: &str, due: Timestamp) -> String {
    format!("{PREFIX}{schedule}/{due}")
}

/// Returns the id of the thread of a schedule that names none. Another role, project or backend is
/// another thread, because a thread keeps them for ever: an edited one is in force with the next
/// start.
pub fn thread_id(schedule: &str, role: &str, project: &str, backend: Option<&str>) -> String {
    let backend = backend.map(|backend| format!("\0{backend}")).unwrap_or_default();
    let key = format!("{PREFIX}{schedule}\0{role}\0{project}{backend}");
    let key = crate::event::id::key_of(&key);
    key.chars().filter(char::is_ascii_alphanumeric).take(12).collect()
}

/// Whether the user of this name that opened a thread is a schedule.
pub fn is_opener(by: &str) -> bool {
    by.starts_with(PREFIX)
}
