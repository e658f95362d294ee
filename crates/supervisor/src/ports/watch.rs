//! The messages of the file watcher.

use muleteer_model::event::id::DispatchId;
use std::path::PathBuf;

#[derive(Debug)]
pub enum WatchMsg {
    Boot,
    /// Notifies the journal of this dispatch when the file changes.
    Watch(PathBuf, DispatchId),
    Unwatch(DispatchId),
    /// Some watched folder changed. The shared map has the files.
    Changed,
}
