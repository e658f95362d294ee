//! The list as a session has written it last, so that what somebody writes over it by hand is found. It is kept beside the
//! list too, for the daemon that follows one that was killed.

use super::Root;
use super::intent::{Mark, mark};
use crate::atomic::write_atomic;
use muleteer_model::tasklist::TaskList;
use muleteer_model::tasklist::overwritten::{self, Overwritten};
use serde::{Deserialize, Serialize};
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Clone)]
pub(super) struct Written {
    run: String,
    last: Arc<Mutex<Option<TaskList>>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    run: String,
    /// The file that it takes the place of, as it stood: somebody may have written over it.
    before: Mark,
    /// What the session had written until then.
    was: Option<String>,
    list: String,
}

impl Written {
    /// Of a run's session; one that was killed has left what it wrote last. The caller holds our flock, here and below.
    pub fn adopt(root: &Root, run: &str) -> Self {
        let last = || -> Option<TaskList> {
            let record: Record = serde_json::from_slice(&fs::read(root.session()).ok()?).ok()?;
            let there = mark(&fs::read(root.tasks()).ok()?);
            if record.run != run {
                return None;
            }
            // Killed before the list was replaced: then it is not written.
            let is_written = there != record.before || there == mark(record.list.as_bytes());
            TaskList::parse(&if is_written { record.list } else { record.was? }).ok()
        };
        Self { run: run.into(), last: Arc::new(Mutex::new(last())) }
    }

    /// Puts back what is not as it was written last. The first to be read is as it is to be.
    pub fn put_back(&self, list: &mut TaskList) -> Vec<Overwritten> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match last.as_ref() {
            Some(written) => overwritten::put_back(list, written),
            None => {
                *last = Some(list.clone());
                vec![]
            }
        }
    }

    /// Said, and on the disk, before the list is replaced: else a successor, or whoever comes after a power cut, would take what was
    /// decided last for somebody's doing.
    pub fn is_about_to_write(&self, root: &Root, list: &TaskList) -> std::io::Result<()> {
        let before = mark(&fs::read(root.tasks()).unwrap_or_default());
        let was = self.last.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(TaskList::to_text);
        let record = Record { run: self.run.clone(), before, was, list: list.to_text() };
        fs::create_dir_all(root.private())?;
        write_atomic(&root.session(), &serde_json::to_vec(&record)?, 0o600).map_err(std::io::Error::other)
    }

    pub fn has_written(&self, list: &TaskList) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(list.clone());
    }
}
