//! Writes the minutes of a meeting: into the thread's folder, and beside the journals of the
//! project, where people and agents find them.

use crate::conversation::files;
use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::error::internal;
use muleteer_model::conversation::event::MessageFile;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::Event;
use muleteer_model::meeting::minutes::NAME;
use muleteer_protocol::v1::{AttachedFile, WireError};
use muleteer_store::atomic;
use muleteer_store::links::stay_within;
use muleteer_vcs::worktree;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of the minutes in a project.
const FOLDER: &str = ".agents/meetings";

/// Writes the document durably. Returns the file of the thread, and the path for people: that of
/// the project, or of the thread's folder if the project cannot be written. A document that is
/// there already has the same content.
///
/// # Errors
/// The disk's, for the thread's folder.
pub(super) async fn write(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    document: String,
) -> Result<(MessageFile, String), WireError> {
    let meeting = thread.meeting().map(|meeting| meeting.id().to_string()).unwrap_or_default();
    let project = PathBuf::from(&thread.opened.project);
    let repository = daemon.caches.repositories.of(&project).await;
    let top = repository.as_ref().map_or(&*project, |repository| &repository.top);
    let checkout = settings::main_checkout(top);
    let git_dir = repository.as_ref().map(|repository| repository.git_dir.clone());
    let (of, id) = (daemon.clone(), thread.id().to_string());
    let write = move || {
        let sent = AttachedFile { name: NAME.into(), content: document.into_bytes() };
        let file = files::write(&of.paths, &id, std::slice::from_ref(&sent))?.pop();
        let file = file.ok_or_else(|| internal("the minutes have no file"))?;
        let path = checkout.join(FOLDER).join(format!("{meeting}.md"));
        let written = into_project(&checkout, git_dir.as_deref(), &path, &sent.content);
        let place = match written {
            Ok(()) => path,
            Err(error) => {
                let message = format!("failed to write the minutes {}: {error}", path.display());
                of.note(Event::Fault { what: format!("thread {id}"), message });
                files::attached(&of.paths, &id, &file)
            }
        };
        Ok((file, place.display().to_string()))
    };
    let written = tokio::task::spawn_blocking(write).await;
    written.map_err(|error| internal(&error.to_string()))?
}

fn into_project(
    checkout: &Path,
    git_dir: Option<&Path>,
    path: &Path,
    content: &[u8],
) -> io::Result<()> {
    // A link of the repository must not choose what is written.
    stay_within(checkout, path)?;
    if let Some(git_dir) = git_dir {
        worktree::exclude(git_dir)?;
    }
    if let Some(folder) = path.parent() {
        atomic::create_dir_durable(folder, 0o700).map_err(io::Error::other)?;
    }
    atomic::write_atomic(path, content, 0o600).map_err(io::Error::other)
}
