//! Dispatches of a fleet together with those that it archived, which the database has.

mod reader;

pub use reader::Reader;

use crate::db::Projection;
use crate::error::StoreError;
use muleteer_model::agent::backend::TraitsOf;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::{Fleet, LookupError};
use muleteer_model::event::id::{self, DispatchId, Unfound};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a dispatch cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The daemon fills the database again from the events, or will do so at its next start.
    #[error("{} does not have all archived dispatches yet", .0.display())]
    Behind(PathBuf),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A fleet with its archive. Reading blocks for a moment.
#[derive(Debug, Clone, Copy)]
pub struct Archive<'a> {
    fleet: &'a Fleet,
    database: &'a Path,
    traits: TraitsOf,
}

impl<'a> Archive<'a> {
    /// `database` is the projection of the log that `fleet` is folded from. Archived dispatches get
    /// these traits of their backends.
    pub fn new(fleet: &'a Fleet, database: &'a Path, traits: TraitsOf) -> Self {
        Self { fleet, database, traits }
    }

    /// Finds the one dispatch whose id begins with `prefix`. If the archive cannot be read, that is
    /// the only unfinished one: a person must be able to end an agent at any time.
    ///
    /// # Errors
    /// When no id fits, or more than one; when the archive cannot be read.
    pub fn find(&self, prefix: &str) -> Result<Arc<Dispatch>, ArchiveError> {
        match self.find_in_all(prefix) {
            Err(error @ (ArchiveError::Behind(_) | ArchiveError::Store(_))) => {
                let unfinished = self.fleet.unfinished().map(|one| (one.id.as_str(), one));
                id::by_beginning(unfinished, prefix).cloned().map_err(|_| error)
            }
            outcome => outcome,
        }
    }

    fn find_in_all(&self, prefix: &str) -> Result<Arc<Dispatch>, ArchiveError> {
        if self.fleet.archived() == 0 {
            return Ok(self.fleet.find(prefix)?.clone());
        }
        if let Ok(id) = DispatchId::try_from(prefix.to_string())
            && let Some(dispatch) = self.get(&id)?
        {
            return Ok(dispatch);
        }
        let archived = self.open()?.finished_with(prefix)?;
        let all: BTreeSet<&DispatchId> =
            self.fleet.matches(prefix).into_iter().chain(&archived).collect();
        let found = id::by_beginning(all.into_iter().map(|id| (id.as_str(), id)), prefix);
        let id = found.map_err(|unfound| match unfound {
            Unfound::Unknown => LookupError::Unknown(prefix.into()),
            Unfound::Ambiguous(ids) => LookupError::Ambiguous { prefix: prefix.into(), ids },
        })?;
        self.get(id)?.ok_or_else(|| LookupError::Unknown(prefix.into()).into())
    }

    /// Returns the dispatch with this id, if there is one.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn get(&self, id: &DispatchId) -> Result<Option<Arc<Dispatch>>, ArchiveError> {
        self.get_through(id, &Reader::default())
    }

    /// Returns the same as [`Self::get`], through a database that `reader` may have open already.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn get_through(
        &self,
        id: &DispatchId,
        reader: &Reader,
    ) -> Result<Option<Arc<Dispatch>>, ArchiveError> {
        if let Some(dispatch) = self.fleet.get(id) {
            return Ok(Some(dispatch.clone()));
        }
        if self.fleet.archived() == 0 {
            return Ok(None);
        }
        let found = reader.read(self, |database| database.finished(id))?;
        Ok(found.map(|dispatch| Arc::new(self.with_traits(dispatch))))
    }

    /// Passes on the archived dispatches that were created at `from_seq` or later, oldest first,
    /// until `each` returns false. With `states`, only those in one of them.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn each(
        &self,
        from_seq: u64,
        states: Option<&[&str]>,
        mut each: impl FnMut(Dispatch) -> bool,
    ) -> Result<(), ArchiveError> {
        if self.fleet.archived() == 0 {
            return Ok(());
        }
        let each = |dispatch: Dispatch| {
            self.fleet.get(&dispatch.id).is_some() || each(self.with_traits(dispatch))
        };
        Ok(self.open()?.each_finished(from_seq, states, each)?)
    }

    /// Opens the database, if it has all archived dispatches.
    ///
    /// # Errors
    /// When it does not, or cannot be read.
    pub fn open(&self) -> Result<Projection, ArchiveError> {
        let behind = || ArchiveError::Behind(self.database.into());
        match Projection::open_read_only(self.database) {
            Ok(Some(database)) if database.applied_now()? >= self.fleet.archived_until() => {
                Ok(database)
            }
            Ok(_) | Err(StoreError::DbCorrupt { .. }) => Err(behind()),
            Err(error) => Err(error.into()),
        }
    }

    fn with_traits(&self, mut dispatch: Dispatch) -> Dispatch {
        dispatch.traits = self.traits.get(&dispatch.created.backend);
        dispatch
    }
}
