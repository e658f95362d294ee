//! The bead store of a repository, as its configuration chooses.

pub mod embedded;
pub mod records;
pub mod tbd;

use crate::beads::embedded::{BeadError, BeadStore};
use crate::beads::tbd::Tbd;
use crate::beads::tbd::progress::Watcher;
use crate::links::stay_within;
use jiff::Timestamp;
use muleteer_model::beads::{Answer, Beads, Op};
use muleteer_model::config::{self, BeadStoreChoice};
use std::io;
use std::path::Path;

/// A bead store. Every call blocks; with `tbd`, for as long as `tbd` takes.
#[derive(Debug)]
pub enum Store {
    Embedded(BeadStore),
    Tbd(Box<Tbd>),
}

impl Store {
    /// Returns the store of the repository whose top directory is `repo`, without reading or
    /// creating anything. `env` is the environment of other programs; `None` means that of this
    /// process.
    pub fn new(repo: &Path, settings: &config::Beads, env: Option<Vec<(String, String)>>) -> Self {
        match settings.store {
            BeadStoreChoice::Embedded => {
                Self::Embedded(BeadStore::new(&repo.join(".muleteer/beads")))
            }
            BeadStoreChoice::Tbd => Self::Tbd(Box::new(Tbd::new(repo, settings, env))),
        }
    }

    /// Reads all beads.
    ///
    /// # Errors
    /// Says what is wrong with the store.
    pub fn read(&mut self) -> Result<&Beads, BeadError> {
        match self {
            Self::Embedded(store) => store.read(),
            Self::Tbd(store) => store.read(),
        }
    }

    /// Carries out `op` and returns when it is done. `fresh` is an unused id for a created bead; a
    /// store that chooses ids itself returns its own.
    ///
    /// # Errors
    /// Says what is wrong with `op` or with the store; a retry is safe.
    pub fn apply(&mut self, op: &Op, now: Timestamp, fresh: &str) -> Result<Answer, BeadError> {
        match self {
            Self::Embedded(store) => store.apply(op, now, fresh),
            Self::Tbd(store) => store.apply(op, now, fresh),
        }
    }

    /// Carries out operations that neither create nor import beads. Every bead that changes is
    /// written once.
    ///
    /// # Errors
    /// As [`Store::apply`]; it is unknown how many of them were carried out.
    pub fn apply_all(&mut self, ops: &[Op], now: Timestamp) -> Result<Vec<Answer>, BeadError> {
        match self {
            Self::Embedded(store) => ops.iter().map(|op| store.apply(op, now, "")).collect(),
            Self::Tbd(store) => store.apply_all(ops, now),
        }
    }

    /// Sets the function that gets the progress of an operation that takes long.
    pub fn watch(&mut self, watcher: Watcher) {
        match self {
            Self::Embedded(_) => {}
            Self::Tbd(store) => store.watch(watcher),
        }
    }
}

/// Checks that no link of the repository leads the files of a store in `<repo>/.muleteer/beads`
/// elsewhere.
fn stay_in_repository(dir: &Path) -> io::Result<()> {
    let top = dir.ancestors().nth(2).unwrap_or(dir);
    let files = ["beads.jsonl", "records.jsonl", "lock", "records.lock", "tbd.lock"];
    files.iter().try_for_each(|name| stay_within(top, &dir.join(name)))
}
