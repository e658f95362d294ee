//! Folds records of which some need earlier ones: those that restore archived dispatches.

use crate::error::StoreError;
use crate::events::chain::removed_through;
use crate::events::tail::{Reader, Start};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::fleet::archive::Part;
use muleteer_model::event::{Event, Record, Restored};
use std::path::Path;

/// Folds one record of the log `events` into `fleet`. Records arrive in order. The log is read only
/// for a record that restores archived dispatches.
///
/// # Errors
/// Those of [`part`]. Then nothing was folded.
pub fn fold(fleet: &mut Fleet, events: &Path, record: &Record) -> Result<(), StoreError> {
    fold_with(fleet, record, |restored| part(events, restored))
}

/// Does the same as [`fold`], with another source of the events of archived dispatches.
///
/// # Errors
/// Those of `part`. Then nothing was folded.
pub fn fold_with(
    fleet: &mut Fleet,
    record: &Record,
    part: impl FnOnce(&Restored) -> Result<Part, StoreError>,
) -> Result<(), StoreError> {
    if record.seq > fleet.seq
        && let Event::DispatchesRestored(restored) = &record.entry.event
        && restored.ids.iter().any(|id| fleet.get(id).is_none())
    {
        fleet.restore(part(restored)?);
    }
    fleet.apply(record);
    Ok(())
}

/// Folds the events of archived dispatches. There are none if their events were removed.
///
/// # Errors
/// `E_EVENTS_SHORT` if the log does not have all of these events; those of
/// [`Reader::next_line`].
pub fn part(events: &Path, restored: &Restored) -> Result<Part, StoreError> {
    let mut part = Part::new(restored);
    let mut reader = Reader::open(events, Start::Seq(restored.first_seq))?;
    while reader.cursor().seq < restored.last_seq
        && let Some(line) = reader.next_line()?
        && line.record.seq <= restored.last_seq
    {
        part.apply(&line.record);
    }
    match part.check() {
        Ok(()) => Ok(part),
        // They were restored and not used before their events were removed.
        Err(_) if restored.first_seq <= removed_through(events)? => Ok(Part::none()),
        Err(source) => Err(StoreError::Incomplete { file: events.into(), source }),
    }
}
