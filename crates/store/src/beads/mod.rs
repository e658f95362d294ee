//! The bead store of a repository, whichever its configuration names.

pub mod embedded;
pub mod tbd;

use crate::beads::embedded::{BeadError, BeadStore};
use crate::beads::tbd::Tbd;
use jiff::Timestamp;
use muleteer_model::beads::{Answer, Beads, Op};
use muleteer_model::config::{self, BeadStoreChoice};
use std::path::Path;

/// Every call blocks; with `tbd`, for as long as that takes.
#[derive(Debug)]
pub enum Store {
    Embedded(BeadStore),
    Tbd(Box<Tbd>),
}

impl Store {
    /// The store of the repository whose top is `repo`. Nothing is read or made. `env` is what
    /// other programs get as their environment; none for this process's own.
    pub fn new(repo: &Path, settings: &config::Beads, env: Option<Vec<(String, String)>>) -> Self {
        match settings.store {
            BeadStoreChoice::Embedded => {
                Self::Embedded(BeadStore::new(&repo.join(".muleteer/beads")))
            }
            BeadStoreChoice::Tbd => Self::Tbd(Box::new(Tbd::new(repo, settings, env))),
        }
    }

    /// # Errors
    /// What is wrong with the store.
    pub fn read(&mut self) -> Result<&Beads, BeadError> {
        match self {
            Self::Embedded(store) => store.read(),
            Self::Tbd(store) => store.read(),
        }
    }

    /// Carries `op` out, and answers once it is done. `fresh` is an id nobody has, for a bead that
    /// is made; a store that chooses ids itself answers with its own.
    ///
    /// # Errors
    /// What is wrong with `op`, or with the store; asking again is safe.
    pub fn apply(&mut self, op: &Op, now: Timestamp, fresh: &str) -> Result<Answer, BeadError> {
        match self {
            Self::Embedded(store) => store.apply(op, now, fresh),
            Self::Tbd(store) => store.apply(op, now, fresh),
        }
    }
}
