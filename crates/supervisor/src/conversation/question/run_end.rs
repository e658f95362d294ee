//! The message about the end of a spec run, in the thread in which the run was started. The rule is
//! in `model::spec_run::report::end`.
//!
//! ```text
//!  the end in the run's log ─▶ runs/<id>/untold/<message>.json ─▶ `live` is removed
//!                                           │
//!                                           └─▶ the message in the thread ─▶ the file is removed
//! ```
//!
//! A daemon that is killed before the file finds `live`, and writes the file again. The id of the
//! message follows from the run and its end, so a repeated step writes no second message. The file
//! has the whole text: a person may resume the run before the thread has the message.

use crate::conversation::serve;
use crate::daemon::context::{Busy, Daemon};
use crate::dispatch::error::{chain, fault, internal, is_passing, unwritten};
use crate::question::sign_off::derived;
use muleteer_model::event::Event;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::report::end;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The folder in a run's private directory with the messages that no thread has yet.
const UNTOLD: &str = "untold";
/// The pause before a message that could not be recorded is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// A message that its thread does not have yet.
#[derive(Debug, Serialize, Deserialize)]
struct Untold {
    v: u16,
    thread: String,
    message: String,
    text: String,
}

/// Makes the message about the end of a run durable, so that this daemon or a later one tells it.
/// Does nothing for a run without a thread, or without an end. May be repeated. Blocks.
///
/// # Errors
/// The disk's. The run must stay marked as live then, so that the next daemon tries again.
pub(crate) fn save(daemon: &Daemon, private: &Path, run: &Run) -> Result<(), WireError> {
    let Some(end) = end::end(run) else { return Ok(()) };
    point("runend.due");
    let folder = private.join(UNTOLD);
    let message = derived(&end.key);
    let file = folder.join(format!("{message}.json"));
    let untold = Untold { v: 1, thread: end.thread, message, text: end.text };
    let json = serde_json::to_vec(&untold).map_err(|error| internal(&error.to_string()))?;
    create_dir_durable(&folder, 0o700).map_err(|error| unwritten(&error))?;
    write_atomic(&file, &json, 0o600).map_err(|error| unwritten(&error))?;
    point("runend.saved");
    daemon.runs.untold.send_modify(|files| {
        files.insert(file);
    });
    Ok(())
}

/// Tells the ends of runs until the daemon ends. It begins with those that an earlier daemon left.
pub(in crate::conversation) async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.runs.untold.subscribe();
    let runs = daemon.paths.runs();
    let left = tokio::task::spawn_blocking(move || left_in(&runs)).await.unwrap_or_default();
    daemon.runs.untold.send_modify(|files| files.extend(left));
    // A reason that stays is noted once.
    let mut noted = BTreeSet::new();
    loop {
        changes.borrow_and_update();
        // The run may save the same message again at any moment, which puts its file back.
        let mut files = BTreeSet::new();
        daemon.runs.untold.send_if_modified(|known| {
            files = std::mem::take(known);
            false
        });
        let busy = (!files.is_empty()).then(|| Busy::new(&daemon));
        let mut again = false;
        for file in files {
            let Err(error) = tell(&daemon, &file).await else { continue };
            if is_passing(&error) {
                again = true;
                daemon.runs.untold.send_if_modified(|known| {
                    known.insert(file);
                    false
                });
            } else if noted.insert(file.clone()) {
                let what = format!("the end of a run in {}", file.display());
                daemon.note(Event::Fault { what, message: error.message });
            }
        }
        if again {
            tokio::time::sleep(PAUSE).await;
            continue;
        }
        drop(busy);
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the files that an earlier daemon left. Blocks.
fn left_in(runs: &Path) -> Vec<PathBuf> {
    let files_of = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let files = files_of(runs.to_path_buf()).flat_map(|run| files_of(run.join(UNTOLD)));
    files.filter(|file| file.extension().is_some_and(|name| name == "json")).collect()
}

/// Writes one message into its thread, and removes its file.
async fn tell(daemon: &Arc<Daemon>, file: &Path) -> Result<(), WireError> {
    let at = file.to_path_buf();
    let read = move || match std::fs::read(&at) {
        // An earlier try has told it.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault(ErrorCode::StoreIo, &chain(&error), "")),
        Ok(bytes) => {
            let read = serde_json::from_slice::<Untold>(&bytes);
            read.map(Some).map_err(|error| internal(&error.to_string()))
        }
    };
    let read = tokio::task::spawn_blocking(read).await;
    let Some(untold) = read.map_err(|error| internal(&error.to_string()))?? else {
        return Ok(());
    };
    serve::tell_once(daemon, &untold.thread, &untold.message, untold.text).await?;
    point("runend.told");
    let at = file.to_path_buf();
    let removed = tokio::task::spawn_blocking(move || std::fs::remove_file(at)).await;
    removed
        .map_err(|error| internal(&error.to_string()))?
        .map_err(|error| fault(ErrorCode::StoreIo, &chain(&error), ""))
}
