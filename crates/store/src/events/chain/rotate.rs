//! Closes `events.jsonl`: it becomes a segment, and a new empty file takes its place.
//!
//! ```text
//!   events/<name>.jsonl ── a second name of the file, durable
//!     ──▶ an empty file is renamed to events.jsonl ──▶ durable
//! ```
//!
//! A file that still has both names is not closed: the first record of `events.jsonl` says so. The
//! next opening removes the second name. There is no moment without an `events.jsonl`.

use crate::atomic::{Temporary, create_dir_durable, sync_dir};
use crate::error::StoreError;
use crate::events::chain::name::{Form, Name};
use crate::events::chain::{first_of, folder, list, open, remnant, take_second_names};
use muleteer_process::fault;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// How far a rotation that failed had come.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The log is as before.
    Before(StoreError),
    /// Nobody knows which of the two files has the name after a power failure.
    Between(StoreError),
}

/// Closes the file, which is durable, as the segment `name`. Returns the new file.
pub(crate) fn rotate(events: &Path, name: Name) -> Result<File, Failed> {
    let folder = folder(events);
    let segment = folder.join(name.of(Form::Plain));
    let (temporary, file) = second_name(events, &segment).map_err(Failed::Before)?;
    fault::point("rotate.linked");
    fs::rename(&temporary.0, events)
        .map_err(|error| Failed::Before(StoreError::io(events, "replace")(error)))?;
    fault::point("rotate.renamed");
    sync_dir(events.parent().unwrap_or(Path::new("."))).map_err(Failed::Between)?;
    fault::point("rotate.durable");
    Ok(file)
}

/// Gives the file its second name, and makes the file that will replace it.
fn second_name(events: &Path, segment: &Path) -> Result<(Temporary, File), StoreError> {
    let folder = folder(events);
    create_dir_durable(&folder, 0o700)?;
    // An earlier try may have failed after this step.
    finish(events)?;
    fault::point("rotate.begun");
    let linked = match fs::hard_link(events, segment) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if has_no_links(&error) => copy(events, segment),
        other => other,
    };
    linked.map_err(StoreError::io(segment, "create"))?;
    sync_dir(&folder)?;
    let fail = |doing| StoreError::io(events, doing);
    let temporary = Temporary::beside(events).map_err(fail("replace"))?;
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&temporary.0);
    let file = file.map_err(fail("replace"))?;
    reserve(&file).map_err(fail("reserve room for"))?;
    file.sync_all().map_err(fail("make durable"))?;
    Ok((temporary, file))
}

/// Reserves room for the next events. On a full disk the file that is there stays: its last block
/// may have room for the event that ends an agent, and an empty file has none.
fn reserve(file: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        /// In bytes: some hundred events.
        const ROOM: u64 = 64 << 10;
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, ROOM) {
            // Not every file system supports it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            outcome => outcome?,
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
    Ok(())
}

fn has_no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), PermissionDenied | TooManyLinks | Unsupported)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = Temporary::beside(to)?;
    fs::copy(from, &temporary.0)?;
    File::open(&temporary.0)?.sync_all()?;
    fs::rename(&temporary.0, to)
}

/// Removes the second names of a file that was not closed, and segments whose removal was not
/// finished. Only the writer may call this.
pub(crate) fn finish(events: &Path) -> Result<(), StoreError> {
    let Some(active) = open(events)? else { return Ok(()) };
    let first = first_of(&active).map_err(StoreError::io(events, "read"))?;
    if first.as_ref().is_some_and(|first| first.seq == 1) {
        remnant::check_absent(events)?;
    } else {
        remnant::finish(events)?;
    }
    let Some(first) = first else { return Ok(()) };
    let length = active.metadata().map_err(StoreError::io(events, "inspect"))?.len();
    let base = remnant::header(events)?.map(|removed| removed.after()).unwrap_or_default();
    for segment in take_second_names(events, &mut list(events)?, first.seq, length, base)? {
        let path = folder(events).join(segment.name.of(segment.form));
        fs::remove_file(&path).map_err(StoreError::io(&path, "remove"))?;
    }
    Ok(())
}
