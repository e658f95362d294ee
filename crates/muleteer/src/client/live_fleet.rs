//! A fleet folded from the file and kept up to date: for verbs that read the disk while a daemon
//! may append to it.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::offline::{Files, everything, lookup, stored};
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_store::archive::{Archive, ArchiveError};
use muleteer_store::events::tail::{Reader, Start};
use muleteer_store::events::{fold, fold_everything, snapshot};
use std::sync::Arc;

#[derive(Debug)]
pub struct LiveFleet {
    files: Files,
    fleet: Fleet,
    reader: Reader,
    /// The fold of the whole log without archiving, once the archive could not be read.
    whole: Option<Fleet>,
}

impl LiveFleet {
    /// Opens the file and folds its events, those after its snapshot if that fits.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn open(context: &Context) -> Result<Self, Failure> {
        let events = context.paths.events();
        let (fleet, at) =
            snapshot::read(&events).map(|found| (found.fleet, found.at)).unwrap_or_default();
        let reader = Reader::open(&events, Start::Cursor(at)).map_err(stored)?;
        let mut live = Self { files: Files::of(context), fleet, reader, whole: None };
        live.refresh()?;
        Ok(live)
    }

    /// Folds the events that were appended since the last call.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn refresh(&mut self) -> Result<(), Failure> {
        while let Some(line) = self.reader.next_line().map_err(stored)? {
            fold(&mut self.fleet, &self.files.events, &line.record).map_err(stored)?;
        }
        Ok(())
    }

    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Returns the only dispatch whose id begins with `id`.
    ///
    /// # Errors
    /// `E_NOT_FOUND`, `E_AMBIGUOUS`.
    pub fn find(&self, id: &str) -> Result<Arc<Dispatch>, Failure> {
        lookup(&self.fleet, &self.files, id)
    }

    /// Returns the dispatch with this id, if there is one.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn get(&mut self, id: &DispatchId) -> Result<Option<Arc<Dispatch>>, Failure> {
        let archive = Archive::new(&self.fleet, &self.files.database, TRAITS);
        match archive.get(id) {
            Ok(found) => Ok(found),
            Err(ArchiveError::Lookup(_)) => Ok(None),
            Err(ArchiveError::Behind(_) | ArchiveError::Store(_)) => {
                Ok(self.whole()?.get(id).cloned())
            }
        }
    }

    /// Returns a fleet with the last states of all archived dispatches. Folding the whole log takes
    /// long, so that is done again only after a further archival.
    fn whole(&mut self) -> Result<&Fleet, Failure> {
        let is_old = |whole: &Fleet| whole.seq < self.fleet.archived_until();
        if self.whole.as_ref().is_none_or(is_old) {
            self.whole = Some(fold_everything(&self.files.events).map_err(stored)?);
        }
        Ok(self.whole.get_or_insert_default())
    }

    /// Returns all dispatches, the archived ones too, in the order of their creation. With
    /// `states`, only those archived ones that are in one of them.
    ///
    /// # Errors
    /// When the archive cannot be read.
    pub fn all(&self, states: Option<&[&str]>) -> Result<Vec<Arc<Dispatch>>, Failure> {
        everything(&self.fleet, &self.files, states)
    }
}
