//! The copies of specs that were shown for a sign-off. A run starts from the copy, because the file
//! may change after the approval.
//!
//! A copy is written before its question, and goes when no question needs it any more: the run has
//! a copy of its own, or none starts. A copy that a killed daemon left is removed by the next one.
//! A copy is written and asked about under the lock of its thread's copies, so a removal never
//! meets a copy whose question is about to become durable.

use crate::daemon::context::{Alone, Daemon};
use crate::dispatch::error::{chain, fault, internal, unwritten};
use muleteer_model::event::Event;
use muleteer_model::question::sign_off::{ShownCopy, Spec, needed_copies};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use muleteer_store::hash::sha256;
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of a thread with the specs that were shown.
const SPECS: &str = "specs";

/// Runs work that blocks on a thread that may block.
///
/// # Errors
/// Those of the work; `E_INTERNAL` if it panicked.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WireError> + Send + 'static,
) -> Result<T, WireError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| internal(&error.to_string()))?
}

/// Locks the copies of a thread.
pub(super) async fn alone<'a>(daemon: &'a Daemon, thread: &str) -> Alone<'a> {
    daemon.creating(&format!("specs of {thread}")).await
}

fn folder(daemon: &Daemon, thread: &str) -> PathBuf {
    daemon.paths.thread(thread).join(SPECS)
}

fn name(sha256: &str) -> String {
    format!("{sha256}.md")
}

/// Returns the path of a copy.
pub(super) fn path_of(daemon: &Daemon, thread: &str, sha256: &str) -> PathBuf {
    folder(daemon, thread).join(name(sha256))
}

/// Makes a copy durable. The caller holds the lock of the thread's copies.
///
/// # Errors
/// The disk's.
pub(super) async fn write(path: PathBuf, text: String) -> Result<(), WireError> {
    blocking(move || {
        if let Some(folder) = path.parent() {
            create_dir_durable(folder, 0o700).map_err(|error| unwritten(&error))?;
        }
        write_atomic(&path, text.as_bytes(), 0o600).map_err(|error| unwritten(&error))
    })
    .await
}

/// Checks that a copy has the text that was shown.
///
/// # Errors
/// `E_SPEC_HASH_MISMATCH` if it has another one; the copy cannot be read.
pub(super) async fn check(path: PathBuf, spec: Spec) -> Result<(), WireError> {
    blocking(move || {
        let text = std::fs::read(&path).map_err(|error| missing(&spec.path, &error))?;
        if sha256(&text) == spec.sha256 {
            return Ok(());
        }
        let message = format!("the copy {} is damaged", path.display());
        Err(fault(ErrorCode::SpecHashMismatch, &message, "ask for the sign-off again"))
    })
    .await
}

pub(super) fn missing(path: &str, error: &io::Error) -> WireError {
    let message = format!("cannot read the spec {path}: {error}");
    fault(ErrorCode::SpecNotFound, &message, "name a markdown file of the repository")
}

/// Removes copies when nothing needs them any more, until the daemon ends. It begins with those
/// that an earlier daemon left.
pub(super) async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    let mut needed: Option<BTreeSet<ShownCopy>> = None;
    let mut stirred = None;
    loop {
        let fleet = changes.borrow_and_update().clone();
        if stirred.replace(fleet.questions.stirred()) != Some(fleet.questions.stirred()) {
            let now = needed_copies(&fleet.questions);
            let threads = match needed.replace(now.clone()) {
                None => with_copies(&daemon).await,
                Some(before) => before.difference(&now).map(|copy| copy.thread.clone()).collect(),
            };
            drop(fleet);
            for thread in threads {
                let _alone = alone(&daemon, &thread).await;
                remove_unneeded(&daemon, &thread).await;
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the threads that have copies on the disk.
async fn with_copies(daemon: &Arc<Daemon>) -> BTreeSet<String> {
    let of = daemon.clone();
    let found = tokio::task::spawn_blocking(move || {
        let ids = of.snapshot();
        let ids = ids.conversations.iter().map(|thread| thread.id().to_string());
        ids.filter(|id| folder(&of, id).is_dir()).collect()
    });
    found.await.unwrap_or_default()
}

/// Removes the copies of a thread that no question needs. The caller holds the lock of the
/// thread's copies. A fault is noted; the next daemon tries again.
pub(super) async fn remove_unneeded(daemon: &Arc<Daemon>, thread: &str) {
    let needed = needed_copies(&daemon.snapshot().questions);
    let of_thread = needed.into_iter().filter(|copy| copy.thread == thread);
    let names: BTreeSet<_> = of_thread.map(|copy| name(&copy.sha256)).collect();
    let folder = folder(daemon, thread);
    let removed = tokio::task::spawn_blocking(move || remove_others(&folder, &names));
    let removed = removed.await.unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
    if let Err(error) = removed {
        let message = format!("failed to remove the copy of a spec: {}", chain(&error));
        daemon.note(Event::Fault { what: format!("thread {thread}"), message });
    }
}

/// Removes all files of a folder but these, and the folder if it is empty. Blocks.
fn remove_others(folder: &Path, names: &BTreeSet<String>) -> io::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let is_needed = entry.file_name().to_str().is_some_and(|name| names.contains(name));
        if !is_needed {
            point("signoff.copy_unneeded");
            std::fs::remove_file(entry.path())?;
            point("signoff.copy_removed");
        }
    }
    match names.is_empty() {
        true => std::fs::remove_dir(folder),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[tokio::test]
    async fn slow_disk_under_a_copy_blocks_no_other_task() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("ab12.md");
        let mode = rustix::fs::Mode::from(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &copy, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (other_task, was_polled) = mpsc::sync_channel(1);
        // The disk answers when another task was polled, and else late.
        let at = copy.clone();
        let disk = std::thread::spawn(move || {
            let polled = was_polled.recv_timeout(Duration::from_secs(10)).is_ok();
            std::fs::write(&at, "text").unwrap();
            polled
        });
        let spec = Spec {
            path: "/repo/plan.md".into(),
            repo: "/repo".into(),
            title: String::new(),
            sha256: sha256(b"text"),
            bytes: 4,
        };
        let other = async { other_task.send(()) };
        let (checked, sent) = tokio::join!(check(copy, spec), other);
        assert_eq!((checked.map_err(|error| error.message), sent), (Ok(()), Ok(())));
        assert!(disk.join().unwrap(), "the only thread of the runtime waited for the disk");
    }
}
