//! Remembers the list as a run wrote it last, or read and accepted it. With it the run detects
//! manual edits and restores a list that somebody made unreadable. A copy is stored beside the
//! list, for the daemon that succeeds a killed one.

use crate::atomic::write_atomic;
use crate::task_list::contents::bytes;
use crate::task_list::error::TaskListError;
use crate::task_list::intent::{Mark, mark};
use crate::task_list::root::Root;
use muleteer_model::task_list::document::tamper::{self, Overwritten};
use muleteer_model::task_list::log::Doings;
use muleteer_model::task_list::{Mode, TaskList};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The list that a run remembers.
#[derive(Debug, Clone)]
pub struct Written {
    run: String,
    /// For a concurrent list, which others may change too: the prefix of the names of the run's
    /// workers, before their number.
    beside: Option<String>,
    last: Arc<Mutex<Option<Last>>>,
}

#[derive(Debug)]
struct Last {
    list: TaskList,
    /// The backup at that time. While it is unchanged, nobody has changed the list by the protocol.
    backup: Option<Mark>,
    /// The length of the log at that time.
    log: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    run: String,
    /// The file that this list replaces, as it was: somebody may have written over it.
    before: Mark,
    /// The list that the run had written before.
    was: Option<String>,
    list: String,
    #[serde(default)]
    log: u64,
}

impl Root {
    /// Returns what a run of a concurrent list remembers of it, also from a killed predecessor.
    /// `workers` is the prefix of the names of its workers, before their number.
    ///
    /// # Errors
    /// If the list is locked for longer than a change takes.
    pub fn remember(&self, run: &str, workers: &str) -> Result<Written, TaskListError> {
        let _flock = self.flock()?;
        Ok(Written::adopt(self, run, Some(workers.into())))
    }

    /// Returns the mode of a run's list from the run's own copy, if the list itself cannot say it.
    pub fn mode_of(&self, run: &str) -> Option<Mode> {
        let record = Record::of(self, run)?;
        Some(TaskList::parse(&record.list).ok()?.mode)
    }
}

impl Record {
    fn of(root: &Root, run: &str) -> Option<Self> {
        let record: Self = serde_json::from_slice(&std::fs::read(root.session()).ok()?).ok()?;
        (record.run == run).then_some(record)
    }
}

impl Written {
    /// Loads the list that a run remembers, also from a killed predecessor. The caller holds our
    /// flock, here and below.
    pub(super) fn adopt(root: &Root, run: &str, beside: Option<String>) -> Self {
        let last = || -> Option<Last> {
            let record = Record::of(root, run)?;
            let there = mark(&bytes(&root.tasks()).unwrap_or_default());
            // The predecessor was killed before it replaced the list, so its copy is not in the
            // file.
            let is_written = there != record.before || there == mark(record.list.as_bytes());
            let list = TaskList::parse(&if is_written { record.list } else { record.was? }).ok()?;
            Some(Last { list, backup: is_written.then_some(record.before), log: record.log })
        };
        Self { run: run.into(), beside, last: Arc::new(Mutex::new(last())) }
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the parts of a list that must be as the run wrote them last. If the run remembers
    /// no list yet, it accepts the given one.
    pub(super) fn put_back(&self, root: &Root, list: &mut TaskList) -> Vec<Overwritten> {
        let mut last = self.last();
        let said = match (last.as_ref(), &self.beside) {
            (Some(written), None) => tamper::put_back(list, &written.list),
            (Some(written), Some(workers)) => put_back_beside(root, list, written, workers),
            (None, _) => vec![],
        };
        let is_settled = said.is_empty() || self.beside.is_some();
        if is_settled && last.as_ref().is_none_or(|last| last.list != *list) {
            let backup = bytes(&root.backup()).ok().map(|bytes| mark(&bytes));
            *last = Some(Last { list: list.clone(), backup, log: root.log_length() });
        }
        said
    }

    /// Whether a list is the remembered one, so that nobody has changed it since.
    pub fn knows(&self, list: &TaskList) -> bool {
        self.last().as_ref().is_some_and(|last| last.list == *list)
    }

    /// Returns the remembered list, unless the given backup is newer.
    pub(super) fn known(&self, backup: Option<Mark>) -> Option<TaskList> {
        let last = self.last();
        let last = last.as_ref().filter(|last| backup.is_none() || last.backup == backup)?;
        Some(last.list.clone())
    }

    /// Records durably the list that is about to be written. Otherwise a successor, or a process
    /// after a power cut, would take our last decision for a manual edit.
    pub(super) fn is_about_to_write(&self, root: &Root, list: &TaskList) -> std::io::Result<()> {
        let before = mark(&bytes(&root.tasks()).unwrap_or_default());
        let was = self.last().as_ref().map(|last| last.list.to_text());
        let log = root.log_length();
        let record = Record { run: self.run.clone(), before, was, list: list.to_text(), log };
        std::fs::create_dir_all(root.private())?;
        write_atomic(&root.session(), &serde_json::to_vec(&record)?, 0o600)
            .map_err(std::io::Error::other)
    }

    /// Remembers a written list. `backup` is the backup that was written before, if there was one.
    pub(super) fn has_written(&self, root: &Root, list: &TaskList, backup: Option<Mark>) {
        let mut last = self.last();
        let backup = backup.or_else(|| last.as_ref()?.backup);
        *last = Some(Last { list: list.clone(), backup, log: root.log_length() });
    }
}

/// Reverts manual edits in a concurrent list. If the log has grown by more than is read, the edits
/// cannot be judged, and the list stays as it is.
fn put_back_beside(
    root: &Root,
    list: &mut TaskList,
    known: &Last,
    workers: &str,
) -> Vec<Overwritten> {
    if tamper::newly_completed(list, &known.list).is_empty() {
        return vec![];
    }
    let Some(lines) = root.log_since(known.log) else { return vec![] };
    let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = |worker: &str| worker.strip_prefix(workers).is_some_and(is_number);
    tamper::put_back_beside(list, &known.list, &Doings::of(lines.lines()), is_ours)
}
