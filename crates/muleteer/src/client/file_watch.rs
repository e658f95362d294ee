//! Waits for files to grow by kernel notifications (inotify) instead of polling.

use crate::cli::failure::Failure;
use muleteer_protocol::ErrorCode;
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::Notify;

/// Watches directories until it is dropped.
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
    /// Watches `dirs`, without their subdirectories. It watches directories and not files, because
    /// a file may not exist yet or may be replaced.
    ///
    /// # Errors
    /// When a directory does not exist, or the system's limit of watches is reached.
    pub fn on(dirs: &[&Path]) -> Result<Self, Failure> {
        let changed = Arc::new(Notify::new());
        let wake = Arc::clone(&changed);
        // Our own reads are events too (access); waking on them would loop forever.
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

    /// Returns when something has changed since the last return. It does not miss a change between
    /// two calls, so callers read first and wait afterwards. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

fn failed(error: &notify::Error) -> Failure {
    Failure::new(ErrorCode::Io, format!("cannot follow: {error}"))
}
