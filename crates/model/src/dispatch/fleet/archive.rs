//! The archive: finished dispatches that leave the fleet, so that the memory of a daemon does not
//! grow with all that it ever did.
//!
//! ```text
//!            due: old, and no one needs it            a message to it
//!  in fleet ─────────────────────────────▶ archived ─────────────────▶ in fleet
//!            DispatchesArchived                       DispatchesRestored
//! ```
//!
//! No event has the state of a dispatch: the state follows from the dispatch's own events, which
//! [`Part`] folds. So old events can be read by all later versions, and a database that lists the
//! archive can be made again.

use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use crate::event::id::DispatchId;
use crate::event::{Archived, Event, Record, Restored};
use std::collections::{BTreeMap, BTreeSet};

/// The fewest finished dispatches that stay in the fleet: `status` shows as many.
pub const LEAST: usize = 20;
/// The most dispatches that one event archives, and one family more.
const MOST: usize = 500;
/// A larger family stays in the fleet: the line of its event would be too long.
const LARGEST: usize = 20_000;

/// Returns the families of dispatches to archive now: whole families of finished dispatches that
/// are not among the `keep` newest ones. It returns none before there are enough for an event.
/// Families stay together because the limits of a dispatch follow from its ancestors, and its
/// total cost from its descendants.
///
/// `is_held` names dispatches that an active run or an actor still needs.
pub fn due(fleet: &Fleet, keep: usize, is_held: impl Fn(&Dispatch) -> bool) -> Vec<Vec<Archived>> {
    let keep = keep.max(LEAST);
    if fleet.finished() <= keep + keep / 8 {
        return vec![];
    }
    let mut ends: Vec<u64> =
        fleet.iter().filter(|it| it.is_finished()).map(|it| it.last_seq).collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    let Some(&newest) = ends.get(keep) else { return vec![] };
    families(fleet, newest, is_held)
}

/// Returns the families of dispatches to archive because all events about them, up to `newest`, are
/// about to be removed: whole families of finished dispatches without a later event. A call returns
/// as many as one event may have.
///
/// `is_held` names dispatches that an active run or an actor still needs.
pub fn families(
    fleet: &Fleet,
    newest: u64,
    is_held: impl Fn(&Dispatch) -> bool,
) -> Vec<Vec<Archived>> {
    let in_task_lists: BTreeSet<&DispatchId> = fleet
        .task_lists
        .active()
        .flat_map(|run| run.workers.values().map(|work| &work.dispatch))
        .collect();
    // The messages of a busy thread may not have followed the end of its dispatch yet.
    let talks = |it: &Dispatch| {
        it.created.thread().is_some_and(|thread| fleet.conversations.is_busy(thread))
    };
    let may_go = |it: &Dispatch| {
        it.is_finished()
            && it.last_seq <= newest
            && !in_task_lists.contains(&it.id)
            && !talks(it)
            && !is_held(it)
    };
    let mut families: BTreeMap<u64, Option<Vec<Archived>>> = BTreeMap::new();
    for dispatch in fleet.iter() {
        let oldest = ancestor(fleet, dispatch).created_seq;
        let family = families.entry(oldest).or_insert_with(|| Some(vec![]));
        match family {
            Some(members) if may_go(dispatch) => {
                let id = dispatch.id.clone();
                members.push(Archived { id, last_seq: dispatch.last_seq });
            }
            _ => *family = None,
        }
    }
    let mut taken = 0;
    let is_room = |family: &Vec<Archived>| {
        let before = taken;
        taken += family.len();
        before < MOST
    };
    let families = families.into_values().flatten();
    families.filter(|family| family.len() <= LARGEST).take_while(is_room).collect()
}

/// Returns the oldest ancestor of a dispatch, which identifies its family.
pub fn ancestor<'a>(fleet: &'a Fleet, dispatch: &'a Dispatch) -> &'a Dispatch {
    let mut oldest = dispatch;
    // Parents are older, so this ends.
    while let Some(parent) = oldest.created.parent.as_ref().and_then(|parent| fleet.get(parent))
        && parent.created_seq < oldest.created_seq
    {
        oldest = parent;
    }
    oldest
}

/// The fold of the events of a few dispatches, without those of all others.
#[derive(Debug)]
pub struct Part {
    ids: BTreeSet<DispatchId>,
    fleet: Fleet,
}

/// An archived dispatch whose events are not all in the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the events of dispatch {0} are not in the log any more")]
pub struct Incomplete(pub DispatchId);

impl Part {
    /// Creates the fold before any event. It needs all records of the log from
    /// [`Restored::first_seq`] through [`Restored::last_seq`].
    pub fn new(restored: &Restored) -> Self {
        let ids = restored.ids.iter().cloned().collect();
        Self { ids, fleet: Fleet::in_boot(&restored.boot_id) }
    }

    /// Returns the fold of no dispatches.
    pub fn none() -> Self {
        Self { ids: BTreeSet::new(), fleet: Fleet::default() }
    }

    /// Folds one record in, if it concerns these dispatches.
    pub fn apply(&mut self, record: &Record) {
        let concerns = match (&record.entry.event, &record.entry.dispatch_id) {
            // A reboot changes unfinished dispatches.
            (Event::DaemonStarted { .. }, _) => true,
            (_, Some(id)) => self.ids.contains(id),
            (_, None) => false,
        };
        if concerns {
            self.fleet.apply(record);
        }
    }

    /// Checks that the events had all of the dispatches, and that these have ended.
    ///
    /// # Errors
    /// When a part of the log is missing.
    pub fn check(&self) -> Result<(), Incomplete> {
        let has_ended = |id: &&DispatchId| self.fleet.get(id).is_some_and(|it| it.is_finished());
        match self.ids.iter().find(|id| !has_ended(id)) {
            Some(id) => Err(Incomplete(id.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn into_fleet(self) -> Fleet {
        self.fleet
    }
}
