//! All schedules, folded from the events.

use crate::conversation::schedule::event::{ScheduleDone, ScheduleDue, ScheduleSet};
use jiff::Timestamp;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The schedules that the daemon follows or has started, by name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Schedules {
    all: RedBlackTreeMapSync<String, Arc<Followed>>,
    /// The number of changes so far.
    changes: u64,
}

/// The state of one schedule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Followed {
    /// The cron pattern and the time zone that are followed; `None` while it is disabled.
    pub times: Option<(String, Option<String>)>,
    /// Moments up to this one are not due.
    pub since: Timestamp,
    /// The start that is under way: its message is not known to be accepted.
    pub pending: Option<ScheduleDue>,
    /// The newest start that is over.
    pub last: Option<Start>,
    /// The configuration has it no more.
    #[serde(default)]
    pub removed: bool,
}

/// One start of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub due: Timestamp,
    pub key: String,
    pub outcome: Outcome,
    /// The id of the thread, if there is one.
    pub thread: Option<String>,
}

/// The outcome of a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The message with this id was accepted.
    Started(String),
    Skipped(String),
    Failed(String),
}

impl Schedules {
    pub fn get(&self, name: &str) -> Option<&Followed> {
        self.all.get(name).map(|followed| &**followed)
    }

    /// All schedules, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Followed)> {
        self.all.iter().map(|(name, followed)| (name.as_str(), &**followed))
    }

    /// Returns the starts whose messages are not known to be accepted.
    pub fn pending(&self) -> impl Iterator<Item = &ScheduleDue> {
        self.all.values().filter_map(|followed| followed.pending.as_ref())
    }

    /// Whether a daemon has to stay for a schedule.
    pub fn is_followed(&self) -> bool {
        self.all.values().any(|it| it.times.is_some() || it.pending.is_some())
    }

    /// The number of changes so far, by which a reader sees that something changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    pub(in crate::conversation) fn set(&mut self, set: &ScheduleSet) {
        self.change(&set.schedule, |followed| {
            followed.times = set.cron.clone().map(|cron| (cron, set.time_zone.clone()));
            followed.since = set.since;
            followed.removed = set.removed;
        });
    }

    pub(in crate::conversation) fn due(&mut self, due: &ScheduleDue) {
        self.change(&due.schedule, |followed| {
            if due.by.is_none() {
                followed.since = followed.since.max(due.due);
            }
            match &due.skipped {
                Some(reason) => {
                    followed.last = Some(Start {
                        due: due.due,
                        key: due.key.clone(),
                        outcome: Outcome::Skipped(reason.clone()),
                        thread: followed.last.as_ref().and_then(|last| last.thread.clone()),
                    });
                }
                None => followed.pending = Some(due.clone()),
            }
        });
    }

    pub(in crate::conversation) fn done(&mut self, done: &ScheduleDone) {
        self.change(&done.schedule, |followed| {
            let Some(pending) = followed.pending.take_if(|it| it.key == done.key) else { return };
            let outcome = match &done.message {
                Some(message) => Outcome::Started(message.clone()),
                None => Outcome::Failed(done.reason.clone()),
            };
            let thread = done.thread.clone();
            followed.last = Some(Start { due: pending.due, key: pending.key, outcome, thread });
        });
    }

    /// Changes a schedule. One that the configuration has no more is forgotten, so the memory is
    /// bounded by the configuration.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Followed)) {
        self.changes += 1;
        let mut followed = self.get(name).cloned().unwrap_or_default();
        change(&mut followed);
        match followed.removed && followed.pending.is_none() {
            true => drop(self.all.remove_mut(name)),
            false => self.all.insert_mut(name.into(), Arc::new(followed)),
        }
    }
}
