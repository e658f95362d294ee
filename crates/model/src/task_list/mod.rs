//! The rules of the task-list harness. A task list has tasks with validation commands, and is
//! worked through across sessions.
//!
//! ```text
//!             claim                      validation passed
//!  pending ─────────▶ in_progress ───────────────────────────▶ completed
//!                      ▲       │ failed, timed out, lost
//!                      │       ▼
//!                      └──── failed ── attempts used up, or a dependency that will never be done
//!                      retry           (then it is failed for good)
//! ```
//!
//! - [`document`]: the file `harness-tasks.json`, with unknown fields preserved: positions in it,
//!   merges of two changes, repair of tampering, equivalent spellings;
//! - [`select`]: cycles, blocked tasks, and the next task;
//! - [`session`]: runs inside the daemon, claims, hooks, the check of HEAD, recovery;
//! - [`outcome`]: the end of work on a task, and failures that are new; [`category`]: kinds of
//!   failure;
//! - [`log`]: the lines of `harness-progress.txt`; [`stats`]: counts, and the conditions to stop;
//! - [`prompt`]: the prompt of an agent; [`settings`]: hook entries in an agent CLI's settings;
//! - [`import`]: lists of other kinds; [`repeated_import`]: items that an import has added before.

pub mod category;
pub mod document;
pub mod import;
pub mod log;
pub mod outcome;
pub mod prompt;
pub mod repeated_import;
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
/// Holds an unreadable or unusable list. Further ones have `.2`, `.3`, … after the name.
pub const DAMAGED: &str = "harness-tasks.json.damaged";
pub const PROGRESS: &str = "harness-progress.txt";
pub const INIT: &str = "harness-init.sh";
pub const ACTIVE: &str = ".harness-active";

/// All names above. These files are never committed, rolled back or cleaned away.
pub const OWN_FILES: &[&str] = &[TASKS, BACKUP, TEMPORARY, DAMAGED, PROGRESS, INIT, ACTIVE];
