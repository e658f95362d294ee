//! Makes the folders of an agent's private HOME, and lends it the person's logins.
//!
//! Everything is in one folder beside the agent's other files, which no other agent sees. The
//! folder stays for a session that is continued; logins, keys and caches go when the dispatch ends.

use crate::daemon::context::Daemon;
use crate::dispatch::confine::plan::private;
use crate::dispatch::launch::sealed_home::{self, LoginCopy};
use muleteer_backends::{claude_code, sealed};
use muleteer_model::event::id::DispatchId;
use muleteer_process::fault;
use muleteer_process::sandbox::{Place, Plan, What};
use muleteer_store::StoreError;
use muleteer_store::atomic::{create_dir_durable, sync_dir, write_atomic, write_whole};
use muleteer_store::removal::remove_tree;
use muleteer_vcs::untrusted_path::{self, read_file};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The limit of a file that is copied. The state of Claude Code has a history of all projects.
const FILE_LIMIT: u64 = 16 * 1024 * 1024;
/// The folders of the records of copied logins and states, in which the agent can write nothing.
const LOGINS: &str = "logins";
const STATES: &str = "states";
/// The folder of Claude Code's home for backups of its state.
const BACKUPS: &str = "backups";
/// The ends of the names of the state's copies: of backups, of files that could not be read, and of
/// files that were being written.
const COPIES: [&str; 3] = [".backup", ".corrupted", ".tmp"];
/// The most entries of a folder that are searched for copies.
const MOST_ENTRIES: usize = 100_000;
/// The time for the removal of the caches. The rest then goes with the dispatch.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the folders that the plan names below the agent's private folder, and copies the logins
/// into them. Does nothing if HOME is shared. No process of an earlier attempt is alive. Blocks.
///
/// The folders are not made durable: a power failure ends the agent, and the next start makes them
/// again. A login needs more: see [`lend`].
///
/// # Errors
/// A folder or a file cannot be written, or a renewed login that is only there cannot be brought
/// back.
pub(crate) fn prepare(
    agent_dir: &Path,
    plan: &Plan,
    env: &[(String, String)],
    lends: bool,
) -> Result<(), StoreError> {
    let folder = private::folder(agent_dir);
    sealed_home::bring_back(&copies(&folder, LOGINS))?;
    let own = |path: &&PathBuf| path.starts_with(&folder);
    let named = plan.places.iter().flat_map(|place| match &place.what {
        What::Instead(other) => vec![other],
        What::Overlay { changes, work } => vec![changes, work],
        _ => vec![],
    });
    for path in named.filter(own) {
        clear_way(&folder, path, true);
        make(path)?;
    }
    if !folder.is_dir() {
        return Ok(());
    }
    fault::point("home.made");
    shadow(plan, &folder)?;
    let within = |path: &Path| written_at(plan, path).filter(|path| path.starts_with(&folder));
    // The folder above a place has no links.
    for place in &plan.places {
        let (Some(above), Some(name)) = (place.path.parent(), place.path.file_name()) else {
            continue;
        };
        let is_folder = match &place.what {
            What::Hidden | What::Scratch | What::Instead(_) | What::Overlay { .. } => true,
            What::Show | What::Write => place.path.is_dir(),
            What::Link(_) | What::Closed => false,
        };
        if let Some(above) = within(above) {
            clear_way(&folder, &above.join(name), is_folder);
        }
    }
    if !lends {
        return Ok(());
    }
    let mut is_durable = false;
    for (from, content) in sealed_home::of_person(env) {
        let Some(to) = within(&real(&from)) else { continue };
        let Some(text) = read(&from) else { continue };
        if !is_durable {
            // Otherwise a copy could survive a power failure without its record.
            sync_dir(agent_dir)?;
            is_durable = true;
        }
        // A login behind a link is the file of another program, to which nothing is brought back.
        if content.is_login() && !from.is_symlink() {
            lend(&folder, &from, &to, &text)?;
        } else {
            keep(&folder, &to, &text)?;
        }
    }
    Ok(())
}

/// Makes empty files in place of the person's databases of conversations and histories, which an
/// overlay would show. A file that the agent's own CLI has written there stays.
fn shadow(plan: &Plan, folder: &Path) -> Result<(), StoreError> {
    for place in &plan.places {
        let What::Overlay { changes, .. } = &place.what else { continue };
        if !changes.starts_with(folder) || changes.starts_with(folder.join(private::PASSING[0])) {
            continue;
        }
        let entries = std::fs::read_dir(&place.path).into_iter().flatten().flatten();
        for entry in entries.take(MOST_ENTRIES) {
            let own = changes.join(entry.file_name());
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let is_private = sealed::is_private_file(&entry.file_name().to_string_lossy());
            if is_file && is_private && own.symlink_metadata().is_err() {
                write_whole(&own, b"", 0o600)?;
            }
        }
    }
    Ok(())
}

/// Reads a file of the person's, wherever it is; `None` if there is none, or if it cannot be read.
fn read(from: &Path) -> Option<Vec<u8>> {
    let found = std::fs::canonicalize(from).and_then(|path| read_file(&path, FILE_LIMIT));
    if let Err(error) = &found
        && error.kind() != std::io::ErrorKind::NotFound
    {
        let file = from.display();
        tracing::warn!(%file, %error, "cannot read a file that an agent gets a copy of");
    }
    found.ok()
}

/// Copies the CLI's state, which it changes at every start, unless there is one from an earlier
/// attempt. It may hold a key: a record, which is written first, has it removed at the end, with
/// the backups that the CLI makes of it.
fn keep(folder: &Path, to: &Path, content: &[u8]) -> Result<(), StoreError> {
    let Ok(name) = to.strip_prefix(folder) else { return Ok(()) };
    let record = folder.join(STATES).join(name);
    if !record.exists() {
        write(&record, b"")?;
    }
    fault::point("home.recorded");
    if to.exists() {
        return Ok(());
    }
    clear_way(folder, to, false);
    write(to, content)
}

/// Copies a login, with a record by which a renewed one is brought back. The copy of an earlier
/// attempt goes first: beside the record of a newer login it would look like a renewal. Then the
/// record is written before the copy, so that no copy stays that nobody knows of.
fn lend(folder: &Path, from: &Path, to: &Path, content: &[u8]) -> Result<(), StoreError> {
    let Ok(name) = to.strip_prefix(folder) else { return Ok(()) };
    let copied = LoginCopy {
        top: folder.to_owned(),
        name: name.to_owned(),
        record: folder.join(LOGINS).join(name),
    };
    clear_way(folder, to, false);
    untrusted_path::remove(&copied.top, &copied.name);
    if let Some(above) = copied.record.parent() {
        create_dir_durable(above, 0o700)?;
    }
    copied.write_record(&real(from), content)?;
    fault::point("home.recorded");
    write(to, content)?;
    fault::point("home.lent");
    Ok(())
}

/// Makes a folder and those above it.
fn make(path: &Path) -> Result<(), StoreError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|source| StoreError::Io { file: path.to_owned(), doing: "create", source })
}

fn write(path: &Path, content: &[u8]) -> Result<(), StoreError> {
    if let Some(above) = path.parent() {
        create_dir_durable(above, 0o700)?;
    }
    write_atomic(path, content, 0o600)
}

/// Brings renewed logins back, and removes the copies and the caches of a dispatch that ends.
pub(crate) async fn close(daemon: &Daemon, id: &DispatchId) {
    let dir = daemon.paths.agent(id.as_str());
    if let Err(error) = tokio::task::spawn_blocking(move || leave(&dir)).await {
        daemon.fault(id, "its private HOME", error.to_string());
    }
}

fn leave(agent_dir: &Path) {
    let folder = private::folder(agent_dir);
    if !folder.is_dir() {
        return;
    }
    sealed_home::forget(&copies(&folder, LOGINS));
    fault::point("home.left");
    for state in copies(&folder, STATES) {
        remove_backups(&state);
        untrusted_path::remove(&state.top, &state.name);
        let _ = std::fs::remove_file(&state.record);
    }
    for name in private::PASSING {
        let path = folder.join(name);
        match remove_tree(&path, PATIENCE) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot remove all caches of an agent");
            }
            _ => {}
        }
    }
}

/// Removes the backups that Claude Code made of its state: beside it, in the CLI's home and in a
/// folder there. They hold the same key.
fn remove_backups(state: &LoginCopy) {
    let (Some(above), Some(name)) = (state.name.parent(), state.name.file_name()) else { return };
    let before = name.to_string_lossy();
    let home = above.join(claude_code::HOME.folder);
    for folder in [above.to_owned(), above.join(BACKUPS), home.clone(), home.join(BACKUPS)] {
        for entry in untrusted_path::entries(&state.top, &folder, MOST_ENTRIES) {
            let rest = entry.to_string_lossy().strip_prefix(&*before).map(str::to_owned);
            if rest.is_some_and(|rest| COPIES.iter().any(|copy| rest.starts_with(copy))) {
                untrusted_path::remove(&state.top, &folder.join(entry));
            }
        }
    }
}

/// Returns the files that were copied. Each record has the path of its copy.
fn copies(folder: &Path, records: &str) -> Vec<LoginCopy> {
    let records = folder.join(records);
    let mut found = vec![];
    let mut next = vec![records.clone()];
    while let Some(path) = next.pop() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let record = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                next.push(record);
            } else if let Ok(name) = record.strip_prefix(&records) {
                let (top, name) = (folder.to_owned(), name.to_owned());
                found.push(LoginCopy { top, name, record });
            }
        }
    }
    found
}

/// Returns the path outside of the sandbox at which the agent writes `path`, which has no links.
fn written_at(plan: &Plan, path: &Path) -> Option<PathBuf> {
    let above = plan.places.iter().filter(|place| path.starts_with(&place.path));
    let nearest: Option<&Place> = above.max_by_key(|place| place.path.components().count());
    nearest.and_then(|place| place.instead_of(path))
}

/// Removes what an earlier attempt left on the way to a mount point: links, files in the place of
/// folders, and empty folders in the place of files. The sandbox follows no link, so a single one
/// would keep it from starting.
fn clear_way(folder: &Path, path: &Path, is_folder: bool) {
    let Ok(rest) = path.strip_prefix(folder) else { return };
    let mut at = folder.to_owned();
    for part in rest.components() {
        at.push(part);
        let Ok(meta) = at.symlink_metadata() else { return };
        let is_last = at == path;
        if meta.is_symlink() || (!meta.is_dir() && (!is_last || is_folder)) {
            let _ = std::fs::remove_file(&at);
            return;
        }
        if is_last && !is_folder {
            let _ = std::fs::remove_dir(&at);
        }
    }
}

/// Resolves the links of a path that exists.
fn real(path: &Path) -> PathBuf {
    let resolved = path.parent().and_then(|above| std::fs::canonicalize(above).ok());
    match (resolved, path.file_name()) {
        (Some(above), Some(name)) => above.join(name),
        _ => path.to_owned(),
    }
}
