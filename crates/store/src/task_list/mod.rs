//! The files of a task list: find, lock, read and change them.
//!
//! ```text
//!   SessionLock   /tmp/harness-<hash>.lock/   the protocol's: other tools keep out. Exclusive
//!                                             sessions hold it all the time, others for one change
//!   Tx            .muleteer/tasks.lock        ours: an flock, one change at a time among our
//!                                             processes, because "stale, remove, create" lets two
//!                                             win
//! ```
//!
//! A change reads under both locks, decides (in `model`), writes the backup, writes and renames the
//! list, and appends to the log. If it is killed anywhere in between, the list is either the old
//! one or the new one.

mod change_locks;
mod contents;
mod error;
mod files;
mod holders;
mod intent;
mod lock;
mod progress;
mod root;
mod swap;
mod written;

pub use error::{Holder, Locked, TaskListError};
pub use files::{LOCK_PATIENCE, Reading, Right, Tx};
pub use holders::{Behind, RUN_VARIABLE};
pub use lock::SessionLock;
pub use root::Root;
pub use written::Written;

#[cfg(test)]
mod tests;
