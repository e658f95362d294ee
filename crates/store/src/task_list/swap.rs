//! Replaces the list by a new one, and reports whether the replaced list was the one that had been
//! read. A person who edits the file takes no lock. Therefore the kernel exchanges the two files in
//! one step, and the old one is checked afterwards, so that no edit between check and replacement
//! is lost.
//!
//! ```text
//!   harness-tasks.json.tmp ──rename──▶ next-<read>-<new>.json ◀──exchange──▶ harness-tasks.json
//!                                      (in .muleteer/tasks/)
//! ```
//!
//! A file of that name is either the complete new list or the replaced file. After a kill, the
//! checksums in its name tell the next process which of them it is ([`left`]).
//!
//! One case is not detected: a program opened the list before it was replaced, and writes after the
//! check. Without support for exchanges (NFS, some others) the list is checked right before it is
//! replaced, and an edit in the microseconds between the two is lost.

use crate::links::open_to_read;
use crate::task_list::contents::{LIST_LIMIT, bytes, parse, write_through};
use crate::task_list::error::TaskListError;
use crate::task_list::intent::{Mark, mark};
use crate::task_list::root::Root;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most damaged lists that are kept.
const DAMAGED_LIMIT: u32 = 1000;
/// How often an exchange is tried with a list that appears and disappears. After that the list is
/// checked before it is replaced.
const EXCHANGES: u32 = 8;
/// How long to wait for a program that has emptied the file and is about to fill it.
const FILLING: Duration = Duration::from_millis(300);

/// The file that the new list replaced.
#[derive(Debug)]
pub(super) enum Stood {
    /// The list as it was read.
    AsRead,
    /// No file: it had disappeared.
    Gone,
    /// A file with a later edit. It is no longer in the list's place, and has this name now.
    Out(PathBuf),
    /// The file with a later edit is still in the list's place, because the file system cannot
    /// exchange files. The new list was not written there.
    Still(Vec<u8>),
}

/// Replaces the list by `text`. The caller holds our flock, here and below. `read` is the list as
/// it was read, if there was one. `exchanges` is false if files cannot be exchanged at all.
pub(super) fn put(
    root: &Root,
    text: &str,
    read: Option<&[u8]>,
    exchanges: bool,
) -> Result<Stood, TaskListError> {
    let (list, temporary) = (root.tasks(), root.temporary());
    let fail = || TaskListError::io(&list, "replace");
    write_through(&temporary, text.as_bytes())?;
    let old = fs::symlink_metadata(&list).ok();
    // A mode without the owner's permissions is not copied, because we could no longer read the
    // list.
    if let Some(meta) = old.as_ref().filter(|meta| meta.is_file() && meta.mode() & 0o600 == 0o600) {
        let mode = fs::Permissions::from_mode(meta.permissions().mode());
        drop(fs::set_permissions(&temporary, mode));
    }
    let next = root.private().join(name(read.map(mark), mark(text.as_bytes())));
    // A link's target would mean something else in another folder, so a link is not moved.
    let is_link = old.is_some_and(|meta| meta.is_symlink());
    let can = exchanges && !is_link && fs::create_dir_all(root.private()).is_ok();
    if !can || fs::rename(&temporary, &next).is_err() {
        return looked_at(root, &temporary, read);
    }
    for _ in 0..EXCHANGES {
        if read.is_some() {
            match renameat_with(CWD, &next, CWD, &list, RenameFlags::EXCHANGE) {
                Ok(()) => {
                    durable(root)?;
                    muleteer_process::fault::point("tasks.list_exchanged");
                    return Ok(came_out(next, read));
                }
                Err(Errno::NOENT) => {}
                Err(_) => return looked_at(root, &next, read),
            }
        }
        match renameat_with(CWD, &next, CWD, &list, RenameFlags::NOREPLACE) {
            Ok(()) => {
                durable(root)?;
                return Ok(if read.is_some() { Stood::Gone } else { Stood::AsRead });
            }
            // The file exists again. Or it exists for the first time, and there is no read version
            // from which it could differ.
            Err(Errno::EXIST) if read.is_some() => {}
            Err(Errno::EXIST) => {
                renameat_with(CWD, &next, CWD, &list, RenameFlags::EXCHANGE)
                    .map_err(|error| fail()(error.into()))?;
                durable(root)?;
                return Ok(Stood::Out(next));
            }
            Err(_) => return looked_at(root, &next, read),
        }
    }
    looked_at(root, &next, read)
}

/// Replaces the list without an exchange, after a check.
fn looked_at(root: &Root, new: &Path, read: Option<&[u8]>) -> Result<Stood, TaskListError> {
    let list = root.tasks();
    let there = bytes(&list);
    if let Ok(there) = &there
        && read != Some(there)
    {
        drop(fs::remove_file(new));
        return Ok(Stood::Still(there.clone()));
    }
    fs::rename(new, &list).map_err(TaskListError::io(&list, "replace"))?;
    durable(root)?;
    Ok(if there.is_err() && read.is_some() { Stood::Gone } else { Stood::AsRead })
}

fn durable(root: &Root) -> Result<(), TaskListError> {
    let folder = File::open(root.path()).and_then(|folder| folder.sync_all());
    folder.map_err(TaskListError::io(root.path(), "make durable"))
}

fn came_out(out: PathBuf, read: Option<&[u8]>) -> Stood {
    if bytes(&out).is_ok_and(|there| read == Some(&there)) {
        // An unreadable list already has another name by now.
        drop(fs::remove_file(&out));
        return Stood::AsRead;
    }
    // A file that is just being filled cannot be parsed yet.
    let deadline = muleteer_process::clock::awake() + FILLING;
    while matches!(parse(&out), Err(TaskListError::Corrupt { .. }))
        && muleteer_process::clock::awake() < deadline
    {
        std::thread::sleep(Duration::from_millis(10));
    }
    Stood::Out(out)
}

pub(super) fn name(read: Option<Mark>, new: Mark) -> String {
    let (before, length) = read.unwrap_or_default();
    format!("next-{before:08x}-{length}-{:08x}-{}.json", new.0, new.1)
}

/// Parses the name of [`name`]: the marks of the list that was read and of the new one.
fn marks(name: &str) -> Option<(Mark, Mark)> {
    let mut parts = name.strip_prefix("next-")?.strip_suffix(".json")?.split('-');
    let mut mark =
        || Some((u32::from_str_radix(parts.next()?, 16).ok()?, parts.next()?.parse().ok()?));
    Some((mark()?, mark()?))
}

/// Cleans up after a killed process. It removes a new list that was never placed, and a replaced
/// list that had been read. It keeps a list with an edit of somebody beside the list, and returns
/// the names of such files.
pub(super) fn left(root: &Root) -> Result<Vec<PathBuf>, TaskListError> {
    let Ok(entries) = fs::read_dir(root.private()) else { return Ok(vec![]) };
    let mut kept = vec![];
    for entry in entries.flatten() {
        let Some((read, new)) = entry.file_name().to_str().and_then(marks) else { continue };
        let path = entry.path();
        let found = bytes(&path).map(|bytes| mark(&bytes));
        let is_kept = || fs::symlink_metadata(&path).is_ok_and(|meta| meta.nlink() > 1);
        let is_known = found.is_ok_and(|found| found == new || found == read);
        // Not every file that was read was a valid list, and an invalid one has another name.
        if is_known && (parse(&path).is_ok() || is_kept()) {
            drop(fs::remove_file(&path));
            continue;
        }
        kept.push(keep(root, &path)?);
    }
    Ok(kept)
}

/// Renames a replaced file to a name beside the list. It overwrites no file.
pub(super) fn keep(root: &Root, out: &Path) -> Result<PathBuf, TaskListError> {
    first_free(root, |to| match renameat_with(CWD, out, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => Err(io::ErrorKind::AlreadyExists.into()),
        // Not every file system supports this flag.
        Err(_) if !to.try_exists()? => fs::rename(out, to),
        Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Ok(()) => Ok(()),
    })
}

/// Gives the list a second name, under which it stays when another list replaces it. It overwrites
/// no file.
pub(super) fn set_aside(root: &Root) -> Result<Option<PathBuf>, TaskListError> {
    let from = root.tasks();
    let kept = first_free(root, |to| match fs::hard_link(&from, to) {
        // A process that was killed before the replacement gave it this name.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&from, to) => Ok(()),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound) =>
        {
            Err(error)
        }
        // Not every file system supports hard links, and not every user may create them.
        Err(_) => copy_new(&from, to),
        Ok(()) => Ok(()),
    });
    match kept {
        Err(TaskListError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        kept => kept.map(Some),
    }
}

fn first_free(
    root: &Root,
    give: impl Fn(&Path) -> io::Result<()>,
) -> Result<PathBuf, TaskListError> {
    for number in 1..=DAMAGED_LIMIT {
        let to = root.damaged(number);
        match give(&to) {
            Ok(()) => return Ok(to),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(TaskListError::io(&to, "save the content of the list as")(error));
            }
        }
    }
    let full = io::Error::other("too many saved copies: check them, and remove them");
    Err(TaskListError::io(&root.damaged(1), "save another list beside")(full))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

fn copy_new(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).open(to)?;
    let copied =
        open_to_read(from).and_then(|from| io::copy(&mut from.take(LIST_LIMIT), &mut file));
    let copied = copied.and_then(|_| file.sync_all());
    if copied.is_err() {
        drop(fs::remove_file(to));
    }
    copied
}
