//! What survives the process: events, the database projected from them, and files replaced whole.
//!
//! Architecture invariant: nothing here decides, and nothing here holds state that is not on disk
//! first. Every call blocks; the ledger actor is the only writer and calls from a blocking thread.
//!
//! - [`events`]: `events.jsonl`, the truth. [`tail`]: reading it while someone appends.
//! - [`db`]: `muleteer.db`, a projection that can always be thrown away and rebuilt.
//! - [`atomic`]: files that are replaced whole or not at all.
//! - [`tasklist`]: the files of the task-list harness.
//! - [`bead_store`]: the bead store that the configuration names; [`beads`]: the embedded one;
//!   [`tbd`]: `tbd`'s.
//! - [`catalog`]: every event once, as a sample and for `docs/events.md`.
//! - [`hash`]: what says whether something is still what it was.
//! - [`removal`]: directory trees of any depth, removed and measured.

pub mod atomic;
pub mod beads;
pub mod db;
pub mod error;
pub mod events;
pub mod hash;
pub mod removal;
pub mod task_list;

pub use error::{AppendError, StoreError, is_full};
