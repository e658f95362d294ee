//! Data that survives the process: events, a database projected from them, and files that are
//! replaced atomically.
//!
//! Invariant: no code here decides anything, and it keeps no state that is not on disk first. Every
//! call blocks. The ledger actor is the only writer, and calls from a blocking thread.
//!
//! - [`archive`]: a fleet with its archived dispatches;
//! - [`events`]: `events.jsonl`, the truth, and reading it while the ledger appends;
//! - [`db`]: `muleteer.db`, a projection that can be deleted and rebuilt;
//! - [`metrics`]: what each dispatch cost and how it ended, which nothing deletes;
//! - [`beads`]: the bead stores, embedded and `tbd`;
//! - [`task_list`]: the files of the task-list harness;
//! - [`atomic`]: files that are replaced whole or not at all;
//! - [`hash`]: hashes that recognise a file or a name;
//! - [`links`]: symbolic links of a repository, through which nothing is written;
//! - [`removal`]: directory trees of any depth, removed and measured.

pub mod archive;
pub mod atomic;
pub mod beads;
pub mod db;
pub mod error;
pub mod events;
pub mod hash;
pub mod links;
pub mod metrics;
pub mod removal;
pub mod task_list;

pub use error::{AppendError, StoreError, is_full};
