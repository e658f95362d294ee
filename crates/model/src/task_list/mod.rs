//! The task-list harness's rules: a list of tasks with validation
//! commands, worked through across sessions, with rollback and recovery.
//!
//! ```text
//!             claim                      validation passed
//!  pending ─────────▶ in_progress ───────────────────────────▶ completed
//!                      ▲       │ failed, timed out, lost
//!                      │       ▼
//!                      └──── failed ── attempts used up, or a dependency that never will be done
//!                      retry           (then it is failed for good)
//! ```
//!
//! - [`list`]: the file `harness-tasks.json`, with whatever others keep in it; [`locate`]: where in
//!   it;
//! - [`select`]: cycles, blocked tasks, and what is next; [`claim`]: who works on it, and how long;
//!   [`overwritten`]: what others have written into it meanwhile; [`merge`]: what they wrote while
//!   a change was being made;
//! - [`outcome`]: completed, failed, retried, checkpoints; [`category`]: kinds of failure;
//! - [`recover`]: what to do with a task found in progress; [`stand`]: where an agent may leave
//!   HEAD; [`stats`]: counts, and when to stop;
//! - [`log`]: the lines of `harness-progress.txt`; [`prompt`]: what an agent is told;
//! - [`hook`]: what the hooks answer; [`settings`]: where they are entered;
//! - [`alike`]: two ways to write the same field;
//! - [`apart`]: old failures and new ones; [`import`]: other lists; [`session`]: runs inside the
//!   daemon, folded from the events.

pub mod category;
pub mod document;
pub mod import;
pub mod log;
pub mod outcome;
pub mod prompt;
pub mod select;
pub mod session;
pub mod settings;
pub mod stats;

pub use category::Category;
pub use document::{Checkpoint, Mode, Status, Task, TaskList};
pub use session::head_check::Stand;

/// The files of the harness, beside each other in its root. A rollback touches none of them.
pub const TASKS: &str = "harness-tasks.json";
pub const BACKUP: &str = "harness-tasks.json.bak";
pub const TEMPORARY: &str = "harness-tasks.json.tmp";
/// What a list held that could not be read, or not be taken over; further ones have `.2`, `.3`, …
/// behind the name.
pub const DAMAGED: &str = "harness-tasks.json.damaged";
pub const PROGRESS: &str = "harness-progress.txt";
pub const INIT: &str = "harness-init.sh";
pub const ACTIVE: &str = ".harness-active";

/// Every name above: what is never committed, rolled back or cleaned away.
pub const OWN_FILES: &[&str] = &[TASKS, BACKUP, TEMPORARY, DAMAGED, PROGRESS, INIT, ACTIVE];
