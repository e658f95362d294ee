//! A fleet folded from the file and kept up to date: for verbs that read the disk while a daemon
//! may append to it.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::offline::{lookup, stored};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_store::events::snapshot;
use muleteer_store::events::tail::{Reader, Start};

#[derive(Debug)]
pub struct LiveFleet {
    fleet: Fleet,
    reader: Reader,
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
        let mut live = Self { fleet, reader };
        live.refresh()?;
        Ok(live)
    }

    /// Folds the events that were appended since the last call.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn refresh(&mut self) -> Result<(), Failure> {
        while let Some(line) = self.reader.next_line().map_err(stored)? {
            self.fleet.apply(&line.record);
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
    pub fn find(&self, id: &str) -> Result<&Dispatch, Failure> {
        lookup(&self.fleet, id)
    }
}
