//! The progress of an operation that takes many calls of tbd, for the process that makes them and
//! for every other one.

use muleteer_process::lock;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// An operation of fewer calls ends too soon for a report.
const SHORT: usize = 4;

/// The calls of tbd that an operation has made, and all that it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    pub done: usize,
    pub total: usize,
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tbd has made {} of {} changes", self.done, self.total)
    }
}

/// A function that gets the progress after each call, or none.
#[derive(Default)]
pub struct Watcher(pub Option<Box<dyn Fn(Calls) + Send + Sync>>);

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watcher({})", self.0.is_some())
    }
}

/// Counts the calls of one operation. Dropping it removes the file for other processes.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    file: PathBuf,
    watcher: &'a Watcher,
    calls: Mutex<Calls>,
}

impl<'a> Progress<'a> {
    /// Begins to count. `dir` is the folder of the store's own files.
    pub(super) fn begin(dir: &Path, total: usize, watcher: &'a Watcher) -> Self {
        let calls = Mutex::new(Calls { done: 0, total });
        let progress = Self { file: file(dir), watcher, calls };
        progress.publish(Calls { done: 0, total });
        progress
    }

    /// Counts a call that has ended.
    pub(super) fn step(&self) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.done += 1;
        self.publish(*calls);
    }

    fn publish(&self, calls: Calls) {
        if calls.total < SHORT {
            return;
        }
        if let Some(watcher) = &self.watcher.0 {
            watcher(calls);
        }
        // A reader of a half-written file reads nothing, and the next call writes it again.
        let text = serde_json::to_string(&calls).unwrap_or_default();
        let _ = std::fs::write(&self.file, text);
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn file(dir: &Path) -> PathBuf {
    dir.join("tbd-progress.json")
}

/// Returns the progress of the operation that some process carries out now in the store of `repo`.
pub fn now(repo: &Path) -> Option<Calls> {
    let dir = repo.join(".muleteer/beads");
    // A killed process leaves the file behind, but not its lock.
    let text = std::fs::read(file(&dir)).ok()?;
    lock::is_held(&dir.join("tbd.lock")).then(|| serde_json::from_slice(&text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn progress_of_a_long_operation_is_visible_while_it_runs() {
        let repo = tempfile::tempdir().unwrap();
        let dir = repo.path().join(".muleteer/beads");
        std::fs::create_dir_all(&dir).unwrap();
        let held = lock::try_lock(&dir.join("tbd.lock")).unwrap();
        let seen = std::sync::Arc::new(Mutex::new(vec![]));
        let log = seen.clone();
        let watcher = Watcher(Some(Box::new(move |calls| log.lock().unwrap().push(calls.done))));
        drop(Progress::begin(&dir, SHORT - 1, &watcher));
        assert!(seen.lock().unwrap().is_empty());
        let progress = Progress::begin(&dir, 40, &watcher);
        progress.step();
        assert_eq!(now(repo.path()), Some(Calls { done: 1, total: 40 }));
        assert_eq!(*seen.lock().unwrap(), [0, 1]);
        drop(progress);
        assert_eq!(now(repo.path()), None);
        // The file that a killed process left.
        std::fs::write(file(&dir), r#"{"done":1,"total":40}"#).unwrap();
        drop(held);
        assert_eq!(now(repo.path()), None);
    }
}
