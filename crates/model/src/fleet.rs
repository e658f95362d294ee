//! All dispatches, folded from the events: what `status` shows and what recovery starts from.

use crate::dispatch::{Dispatch, Phase};
use crate::event::{Created, Event, Record};
use crate::id::DispatchId;
use crate::pressure::{self, Pressures};
use crate::tasklist::session::Runs;
use rpds::{RedBlackTreeMapSync, VectorSync};
use std::sync::Arc;

#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// A snapshot is taken after each event and shares all that has not changed since the one before it.
    dispatches: RedBlackTreeMapSync<DispatchId, Arc<Dispatch>>,
    /// In order of creation.
    order: VectorSync<DispatchId>,
    pub generation: u64,
    /// Of the newest daemon's machine: another one after it was started anew.
    boot_id: String,
    /// Where the model's APIs want to be left alone.
    pub pressures: Pressures,
    /// Runs of task lists.
    pub task_lists: Runs,
    /// The newest record folded in.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no dispatch `{0}`")]
    Unknown(String),
    #[error("`{prefix}` fits {} dispatches: {}", .ids.len(), .ids.join(", "))]
    Ambiguous { prefix: String, ids: Vec<String> },
}

impl Fleet {
    /// Folds one record in. Records arrive in order of `seq`; one already folded is skipped.
    pub fn apply(&mut self, record: &Record) {
        if record.seq <= self.seq {
            return;
        }
        self.seq = record.seq;
        self.task_lists.apply(record);
        match (&record.entry.event, &record.entry.dispatch_id) {
            (Event::DaemonStarted { generation, boot_id, .. }, _) => {
                self.generation = *generation;
                self.boot(boot_id);
            }
            (Event::DispatchCreated(created), Some(id)) => self.create(id, created, record),
            (_, Some(id)) => {
                self.press(id, record);
                if let Some(dispatch) = self.dispatches.get_mut(id) {
                    Arc::make_mut(dispatch).apply(record);
                }
            }
            _ => {}
        }
    }

    /// A daemon begins on the machine as it was started last.
    fn boot(&mut self, boot_id: &str) {
        let known = std::mem::replace(&mut self.boot_id, boot_id.into());
        if known.is_empty() || known == boot_id {
            return;
        }
        let unfinished = self.iter().filter(|dispatch| !dispatch.is_finished());
        for id in unfinished.map(|dispatch| dispatch.id.clone()).collect::<Vec<_>>() {
            if let Some(dispatch) = self.dispatches.get_mut(&id) {
                let dispatch = Arc::make_mut(dispatch);
                dispatch.unsynced = true;
                dispatch.rebooted |= matches!(dispatch.phase, Phase::Starting { .. } | Phase::Working { .. });
            }
        }
    }

    /// The first creation counts: an id is never given to another dispatch.
    fn create(&mut self, id: &DispatchId, created: &Created, record: &Record) {
        if self.dispatches.contains_key(id) {
            return;
        }
        let mut dispatch = Dispatch::new(id.clone(), created.clone(), record.ts);
        dispatch.created_seq = record.seq;
        self.dispatches.insert_mut(id.clone(), Arc::new(dispatch));
        self.order.push_back_mut(id.clone());
    }

    /// A limit that one dispatch met is the limit of all that share it.
    fn press(&mut self, id: &DispatchId, record: &Record) {
        let (Some(strike), Some(struck)) = (pressure::strike(record), self.dispatches.get(id)) else { return };
        let channel = pressure::channel(struck).to_string();
        let shares = |other: &&Arc<Dispatch>| other.is_at_work() && pressure::channel(other) == channel;
        let at_work = u32::try_from(self.iter().filter(shares).count()).unwrap_or(u32::MAX);
        pressure::fold(&mut self.pressures, &channel, strike, at_work, record.ts);
    }

    pub fn get(&self, id: &DispatchId) -> Option<&Arc<Dispatch>> {
        self.dispatches.get(id)
    }

    /// In order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Dispatch>> {
        self.order.iter().filter_map(|id| self.dispatches.get(id))
    }

    /// Finds the one dispatch whose id begins with `prefix`.
    ///
    /// # Errors
    /// When none does, or more than one.
    pub fn find(&self, prefix: &str) -> Result<&Arc<Dispatch>, LookupError> {
        let fits: Vec<_> = self
            .dispatches
            .iter()
            .filter(|(id, _)| !prefix.is_empty() && id.as_str().starts_with(prefix))
            .collect();
        match fits.as_slice() {
            [] => Err(LookupError::Unknown(prefix.into())),
            [(_, one)] => Ok(one),
            _ if self.dispatches.keys().any(|id| id.as_str() == prefix) => fits
                .iter()
                .find(|(id, _)| id.as_str() == prefix)
                .map(|(_, one)| *one)
                .ok_or_else(|| LookupError::Unknown(prefix.into())),
            many => Err(LookupError::Ambiguous {
                prefix: prefix.into(),
                ids: many.iter().map(|(id, _)| id.to_string()).collect(),
            }),
        }
    }
}
