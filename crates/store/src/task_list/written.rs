//! The list as a run has written it last, or found it and let it stand, so that what somebody
//! writes over it by hand is found, and what somebody makes unreadable is put back. It is kept
//! beside the list too, for the daemon that follows one that was killed.

use crate::atomic::write_atomic;
use crate::task_list::intent::{Mark, mark};
use crate::task_list::{Root, TaskListError, swap};
use muleteer_model::task_list::document::tamper::{self, Overwritten};
use muleteer_model::task_list::log::Doings;
use muleteer_model::task_list::{Mode, TaskList};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a run knows of its list.
#[derive(Debug, Clone)]
pub struct Written {
    run: String,
    /// Where others change the list too by rights: what the names of the run's workers begin with,
    /// before their number.
    beside: Option<String>,
    last: Arc<Mutex<Option<Last>>>,
}

#[derive(Debug)]
struct Last {
    list: TaskList,
    /// The backup of then: as long as it is there nobody has changed the list since, by the
    /// protocol.
    backup: Option<Mark>,
    /// How long the log was then.
    log: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    run: String,
    /// The file that it takes the place of, as it stood: somebody may have written over it.
    before: Mark,
    /// What the run had written until then.
    was: Option<String>,
    list: String,
    #[serde(default)]
    log: u64,
}

impl Root {
    /// What a run of a concurrent list knows of it, also of a predecessor that was killed.
    /// `workers` is what the names of its workers begin with, before their number.
    ///
    /// # Errors
    /// When it is locked for longer than a change takes.
    pub fn remember(&self, run: &str, workers: &str) -> Result<Written, TaskListError> {
        let _flock = self.flock()?;
        Ok(Written::adopt(self, run, Some(workers.into())))
    }

    /// The mode of a run's list as the run wrote it last, where the list itself does not say.
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
    /// Of a run; one that was killed has left what it wrote last. The caller holds our flock, here
    /// and below.
    pub(super) fn adopt(root: &Root, run: &str, beside: Option<String>) -> Self {
        let last = || -> Option<Last> {
            let record = Record::of(root, run)?;
            let there = mark(&swap::bytes(&root.tasks()).unwrap_or_default());
            // Killed before the list was replaced: then it is not written.
            let is_written = there != record.before || there == mark(record.list.as_bytes());
            let list = TaskList::parse(&if is_written { record.list } else { record.was? }).ok()?;
            Some(Last { list, backup: is_written.then_some(record.before), log: record.log })
        };
        Self { run: run.into(), beside, last: Arc::new(Mutex::new(last())) }
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts back what is not as it was written last, and must be. The first to be read is as it is
    /// to be.
    pub(super) fn put_back(&self, root: &Root, list: &mut TaskList) -> Vec<Overwritten> {
        let mut last = self.last();
        let said = match (last.as_ref(), &self.beside) {
            (Some(written), None) => tamper::put_back(list, &written.list),
            (Some(written), Some(workers)) => put_back_beside(root, list, written, workers),
            (None, _) => vec![],
        };
        let is_settled = said.is_empty() || self.beside.is_some();
        if is_settled && last.as_ref().is_none_or(|last| last.list != *list) {
            let backup = swap::bytes(&root.backup()).ok().map(|bytes| mark(&bytes));
            *last = Some(Last { list: list.clone(), backup, log: root.log_length() });
        }
        said
    }

    /// Whether a list is the one that is known, so that nobody has changed it since.
    pub fn knows(&self, list: &TaskList) -> bool {
        self.last().as_ref().is_some_and(|last| last.list == *list)
    }

    /// The list as it is known, unless this backup of it is newer.
    pub(super) fn known(&self, backup: Option<Mark>) -> Option<TaskList> {
        let last = self.last();
        let last = last.as_ref().filter(|last| backup.is_none() || last.backup == backup)?;
        Some(last.list.clone())
    }

    /// Said, and on the disk, before the list is replaced: else a successor, or whoever comes after
    /// a power cut, would take what was decided last for somebody's doing.
    pub(super) fn is_about_to_write(&self, root: &Root, list: &TaskList) -> std::io::Result<()> {
        let before = mark(&swap::bytes(&root.tasks()).unwrap_or_default());
        let was = self.last().as_ref().map(|last| last.list.to_text());
        let log = root.log_length();
        let record = Record { run: self.run.clone(), before, was, list: list.to_text(), log };
        std::fs::create_dir_all(root.private())?;
        write_atomic(&root.session(), &serde_json::to_vec(&record)?, 0o600)
            .map_err(std::io::Error::other)
    }

    /// `backup`: what the backup was written with before, if it was.
    pub(super) fn has_written(&self, root: &Root, list: &TaskList, backup: Option<Mark>) {
        let mut last = self.last();
        let backup = backup.or_else(|| last.as_ref()?.backup);
        *last = Some(Last { list: list.clone(), backup, log: root.log_length() });
    }
}

/// Where more was said since than is looked at, nobody can know, and the list is as it is.
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
