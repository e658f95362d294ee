//! The private files of a thread: the template of its dispatches, and the files that people attach.

use crate::daemon::context::Daemon;
use crate::daemon::paths::Paths;
use crate::dispatch::error::{fault, internal, unwritten};
use crate::dispatch::launch::secret_values;
use muleteer_model::conversation::event::MessageFile;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{AttachedFile, FILES_LIMIT, Spawn, WireError};
use muleteer_store::atomic;
use muleteer_store::hash::sha256;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The folder of a thread with the files that people attached.
pub const ATTACHED: &str = "files";
/// The longest name of a file, in bytes.
const NAME_LIMIT: usize = 200;
/// The most files of a message.
const MOST_FILES: usize = 32;
/// The most bytes of a thread's files, up to which agents attach more.
const MOST_BYTES: u64 = 256 << 20;

/// The version of the template's file.
const VERSION: u32 = 1;

/// The names of variables that the opener of a thread gave, and that its template does not have.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Withheld {
    /// The variables for the push, which only the memory of the daemon has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub push: Vec<String>,
    /// The keys that were removed when the thread was archived.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// A template with the version of its file. The first files have none.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    #[serde(default)]
    v: u32,
    #[serde(flatten)]
    withheld: Withheld,
    #[serde(flatten)]
    dispatch: T,
}

/// Returns the path of an attached file. The hash of its content is a folder, so that the file
/// keeps its name.
pub(super) fn attached(paths: &Paths, thread: &str, file: &MessageFile) -> PathBuf {
    paths.thread(thread).join(ATTACHED).join(&file.sha256).join(&file.name)
}

/// Reads an attached file.
///
/// # Errors
/// The file cannot be read, or has another content ([`io::ErrorKind::InvalidData`]).
pub(super) fn read(path: &Path, file: &MessageFile) -> io::Result<Vec<u8>> {
    let mut content = vec![];
    std::fs::File::open(path)?.take(file.bytes + 1).read_to_end(&mut content)?;
    match content.len() as u64 == file.bytes && sha256(&content) == file.sha256 {
        true => Ok(content),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "its content has changed")),
    }
}

/// Whether a read that failed with this error fails in future too. Any other failure may pass: of
/// the disk, or of a process without free file descriptors.
pub(super) fn is_lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData)
}

/// Reads the end of a file, and one byte before it, so that a cut line is seen to be cut.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub(super) fn end_of(path: &Path, bytes: u64) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(bytes + 1)))?;
    let mut read = vec![];
    file.take(bytes + 1).read_to_end(&mut read)?;
    Ok(String::from_utf8_lossy(&read).into_owned())
}

/// Writes the template of the dispatches of a thread. It may hold secrets of the environment.
///
/// # Errors
/// The disk's.
pub(super) fn write_template(
    daemon: &Daemon,
    thread: &str,
    template: &Spawn,
    withheld: &Withheld,
) -> Result<(), WireError> {
    let folder = daemon.paths.thread(thread);
    atomic::create_dir_durable(&folder, 0o700).map_err(|error| unwritten(&error))?;
    let versioned = Versioned { v: VERSION, withheld: withheld.clone(), dispatch: template };
    let bytes = serde_json::to_vec(&versioned).map_err(|error| internal(&error.to_string()))?;
    atomic::write_atomic(&daemon.paths.thread_request(thread), &bytes, 0o600)
        .map_err(|error| unwritten(&error))
}

/// Reads the template of the dispatches of a thread.
///
/// # Errors
/// The file is missing or damaged.
pub(super) fn template(daemon: &Daemon, thread: &str) -> Result<Spawn, WireError> {
    read_template(daemon, thread).map(|(template, _)| template)
}

/// Reads the names of the variables that the template of a thread does not have.
///
/// # Errors
/// Those of [`template`].
pub(super) fn withheld(daemon: &Daemon, thread: &str) -> Result<Withheld, WireError> {
    read_template(daemon, thread).map(|(_, withheld)| withheld)
}

fn read_template(daemon: &Daemon, thread: &str) -> Result<(Spawn, Withheld), WireError> {
    let path = daemon.paths.thread_request(thread);
    let unread = |message: String| WireError {
        file: Some(path.display().to_string()),
        ..fault(ErrorCode::Io, &message, "open another thread")
    };
    let bytes = std::fs::read(&path)
        .map_err(|error| unread(format!("cannot read the request of the thread: {error}")))?;
    let found: Versioned<Spawn> = serde_json::from_slice(&bytes)
        .map_err(|error| unread(format!("the request of the thread is damaged: {error}")))?;
    if found.v > VERSION {
        let v = found.v;
        return Err(unread(format!("the request of the thread is of a newer version ({v})")));
    }
    Ok((found.dispatch, found.withheld))
}

/// Removes the secret variables from the template of a thread that is archived. Their names stay,
/// so that a run without them is refused.
///
/// # Errors
/// The file is damaged, or the disk's.
pub(super) fn put_away_secrets(daemon: &Daemon, thread: &str) -> Result<(), WireError> {
    let path = daemon.paths.thread_request(thread);
    if !path.exists() {
        return Ok(());
    }
    let (mut left, mut withheld) = read_template(daemon, thread)?;
    let taken = [secret_values::take(&mut left.env), secret_values::take(&mut left.extra_env)];
    match taken.iter().all(Vec::is_empty) {
        true => Ok(()),
        false => {
            let names = taken.iter().flatten().map(|(name, _)| name.clone());
            withheld.removed.extend(names);
            withheld.removed.sort();
            withheld.removed.dedup();
            write_template(daemon, thread, &left, &withheld)
        }
    }
}

/// Checks the files of a message.
///
/// # Errors
/// `E_BAD_INPUT` for a name that is none, or too many bytes.
pub(super) fn check(files: &[AttachedFile]) -> Result<(), WireError> {
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    if files.len() > MOST_FILES || bytes > FILES_LIMIT {
        let message = format!(
            "a message may have {MOST_FILES} files with {} MiB together",
            FILES_LIMIT >> 20
        );
        return Err(fault(ErrorCode::BadInput, &message, "name larger files by their path"));
    }
    let is_name = |file: &AttachedFile| {
        let name = &file.name;
        !name.is_empty()
            && name.len() <= NAME_LIMIT
            && !matches!(name.as_str(), "." | "..")
            && !name.chars().any(|c| c == '/' || c.is_control())
    };
    match files.iter().find(|file| !is_name(file)) {
        Some(file) => {
            Err(fault(ErrorCode::BadInput, &format!("`{}` is no name of a file", file.name), ""))
        }
        None => Ok(()),
    }
}

/// Writes the files of a message. They have been checked.
///
/// # Errors
/// The disk's.
pub(super) async fn attach(
    paths: &Paths,
    thread: &str,
    files: Vec<AttachedFile>,
) -> Result<Vec<MessageFile>, WireError> {
    if files.is_empty() {
        return Ok(vec![]);
    }
    let (paths, thread) = (paths.clone(), thread.to_string());
    let written = tokio::task::spawn_blocking(move || write(&paths, &thread, &files));
    written.await.map_err(|error| internal(&error.to_string()))?
}

/// Checks and writes the files of an agent's message, as long as the files of the thread have at
/// most [`MOST_BYTES`]: an agent sets the pace of its messages.
///
/// # Errors
/// Those of [`check`]; `E_BAD_INPUT` if the thread has too many bytes; the disk's.
pub(crate) async fn attach_for_agent(
    paths: &Paths,
    thread: &str,
    files: Vec<AttachedFile>,
) -> Result<Vec<MessageFile>, WireError> {
    if files.is_empty() {
        return Ok(vec![]);
    }
    check(&files)?;
    let new: u64 = files.iter().map(|file| file.content.len() as u64).sum();
    let folder = paths.thread(thread).join(ATTACHED);
    let used = tokio::task::spawn_blocking(move || bytes_below(&folder));
    let used = used.await.map_err(|error| internal(&error.to_string()))?;
    let used = used.map_err(|error| internal(&error.to_string()))?;
    if used.saturating_add(new) > MOST_BYTES {
        let most = MOST_BYTES >> 20;
        let message = format!("the files of the thread would have more than {most} MiB");
        return Err(fault(ErrorCode::BadInput, &message, "name the path of the file in the text"));
    }
    attach(paths, thread, files).await
}

/// Returns the length of all files below a folder, which may be missing.
fn bytes_below(folder: &Path) -> io::Result<u64> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut sum = 0;
    for entry in entries {
        let (entry, meta) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        sum += if meta.is_dir() { bytes_below(&entry)? } else { meta.len() };
    }
    Ok(sum)
}

/// Writes the files of a message, before the message is durable. A file that is there already has
/// the same content.
///
/// # Errors
/// The disk's.
pub(super) fn write(
    paths: &Paths,
    thread: &str,
    sent: &[AttachedFile],
) -> Result<Vec<MessageFile>, WireError> {
    let mut written = vec![];
    for file in sent {
        let entry = MessageFile {
            name: file.name.clone(),
            bytes: file.content.len() as u64,
            sha256: sha256(&file.content),
        };
        let path = attached(paths, thread, &entry);
        if let Some(folder) = path.parent() {
            atomic::create_dir_durable(folder, 0o700).map_err(|error| unwritten(&error))?;
        }
        atomic::write_atomic(&path, &file.content, 0o600).map_err(|error| unwritten(&error))?;
        written.push(entry);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn agent_attaches_no_more_files_to_a_thread_that_is_full() {
        let dir = tempfile::tempdir().expect("a folder");
        let paths = Paths { state_dir: dir.path().into(), ..Paths::nowhere() };
        let file = |name: &str| vec![AttachedFile { name: name.into(), content: b"one".to_vec() }];
        let attach = |name: &str| attach_for_agent(&paths, "t1", file(name));
        let attached_one = attach("a").await.expect("a file");
        assert_eq!((attached_one[0].name.as_str(), attached_one[0].bytes), ("a", 3));
        let large = attached(&paths, "t1", &attached_one[0]).with_file_name("large");
        let large = std::fs::File::create(large).expect("a file");
        large.set_len(MOST_BYTES - 6).expect("a length");
        attach("b").await.expect("there is room for it");
        let refused = attach("c").await.expect_err("it is full");
        assert!(refused.message.contains("more than 256 MiB"), "{}", refused.message);
        let refused = attach("../c").await.expect_err("no name");
        assert!(refused.message.contains("is no name"), "{}", refused.message);
    }
}
