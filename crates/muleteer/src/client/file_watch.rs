//! Waiting for files to grow, by the kernel's own notice (inotify), never by looking again and
//! again.

use crate::cli::failure::Failure;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Notify;

/// Watches directories; dropped, it stops.
pub struct FileWatch {
    watcher: RecommendedWatcher,
    changed: Arc<Notify>,
}

impl std::fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileWatch")
    }
}

impl FileWatch {
    /// Watches what happens in `dirs`, not below them. Directories and not files, because a file
    /// may not be there yet, or be replaced.
    ///
    /// # Errors
    /// When a directory is not there, or the system has no more watches to give.
    pub fn on(dirs: &[&Path]) -> Result<Self, Failure> {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        // Our own reading is an event too (access): waking on it would never end.
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            if !event.is_ok_and(|event| event.kind.is_access()) {
                wake.notify_one();
            }
        })
        .map_err(|error| failed(&error))?;
        let mut watch = Self { watcher, changed };
        for dir in dirs {
            watch.add(dir)?;
        }
        Ok(watch)
    }

    /// Watches one more directory.
    ///
    /// # Errors
    /// As [`Self::on`].
    pub fn add(&mut self, dir: &Path) -> Result<(), Failure> {
        self.watcher.watch(dir, RecursiveMode::NonRecursive).map_err(|error| failed(&error))
    }

    /// Returns when something has changed since the last return: a change between two calls is not
    /// missed, so read first and wait afterwards. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn failed(error: &notify::Error) -> Failure {
    Failure::new("E_IO", format!("cannot follow: {error}"))
}
