//! Opens a log in any state in which it may have been left.

use crate::atomic::{Temporary, sync_dir, write_atomic};
use crate::error::StoreError;
use crate::events::chain::{self, Chain};
use crate::events::line::Cursor;
use crate::events::{fold, mark, scan, snapshot};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::Record;
use scan::Scan;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The result of reading a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// 0 if there are no records.
    pub last_seq: u64,
    pub records: u64,
    /// The length of the valid part of the whole log in bytes.
    pub len: u64,
    /// How many bytes after it are no line, or lines of an unfinished batch.
    /// [`EventLog::open`](crate::events::EventLog::open) cuts them, [`read`] skips them.
    pub cut_bytes: u64,
    pub cut_why: Option<String>,
    /// The file that keeps the cut bytes, if they were more than an unfinished write.
    pub cut_kept: Option<PathBuf>,
    /// The last process had stopped appending after a failed fsync. The valid part was copied to a
    /// new file.
    pub copied: bool,
    pub created: bool,
}

/// Reads all valid records of a log and changes nothing; a missing file has none. While a writer
/// appends, the last line may be missing.
///
/// # Errors
/// As [`EventLog::open`](crate::events::EventLog::open), except `E_DB_AHEAD`.
pub fn read(path: &Path, each: impl FnMut(Record)) -> Result<Recovery, StoreError> {
    read_after(path, Cursor::default(), each)
}

fn read_after(path: &Path, from: Cursor, each: impl FnMut(Record)) -> Result<Recovery, StoreError> {
    // Before the file, because a living writer may advance the mark meanwhile.
    let marked = mark::read(path).unwrap_or(0);
    let mut chain = Chain::open(path)?;
    let found = scan::scan(&mut chain, marked, from, each)?;
    check_length(path, &found, marked, 0)?;
    Ok(report(&chain, &found))
}

/// Reads and checks every event, for a diagnosis.
///
/// # Errors
/// As [`read`].
pub fn check(path: &Path) -> Result<Recovery, StoreError> {
    patiently(|| read(path, |_| {}))
}

/// Folds all dispatches from the events, without a daemon: `status` shows them from disk. Where a
/// snapshot fits, only the events after it are read and checked.
///
/// # Errors
/// As [`read`].
pub fn fold_fleet(path: &Path) -> Result<(Fleet, Recovery), StoreError> {
    patiently(|| {
        let (mut fleet, at) =
            snapshot::read(path).map(|found| (found.fleet, found.at)).unwrap_or_default();
        let mut folded = Ok(());
        let recovery = read_after(path, at, |record| {
            if folded.is_ok() {
                folded = fold(&mut fleet, path, &record);
            }
        })?;
        folded.map(|()| (fleet, recovery))
    })
}

/// Folds all dispatches from the events, archived ones too, and without a snapshot. It takes as
/// long as the log is, and as much memory as all dispatches need.
///
/// # Errors
/// As [`read`].
pub fn fold_everything(path: &Path) -> Result<Fleet, StoreError> {
    patiently(|| {
        let mut fleet = Fleet::with_archived();
        read(path, |record| fleet.apply(&record))?;
        Ok(fleet)
    })
}

/// Retries a read. A living writer on a full disk may have cut and rewritten the end during the
/// first one.
fn patiently<T>(mut read: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    const MORE: u32 = 2;
    for _ in 0..MORE {
        match read() {
            Err(
                StoreError::Corrupt { .. }
                | StoreError::Gap { .. }
                | StoreError::Segment { .. }
                | StoreError::SegmentMissing { .. },
            ) => {}
            other => return other,
        }
    }
    read()
}

/// A log that is ready for appending.
pub(super) struct Opened {
    pub file: File,
    /// Where the file begins in the whole log.
    pub begin: Cursor,
    pub recovery: Recovery,
}

pub(super) fn open(
    path: &Path,
    applied_seq: u64,
    from: Cursor,
    each: impl FnMut(Record),
) -> Result<Opened, StoreError> {
    let marked = mark::read(path).unwrap_or(0);
    let file = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(StoreError::io(path, "open")(error)),
    };
    let mut chain = Chain::open(path)?;
    let found = scan::scan(&mut chain, marked.max(applied_seq), from, each)?;
    check_length(path, &found, marked, applied_seq)?;
    let (mut recovery, begin) = (report(&chain, &found), chain.begin());
    let Some(file) = file else {
        recovery.created = true;
        return Ok(Opened { file: create(path)?, begin, recovery });
    };
    chain::finish(path)?;
    let len = found.len - begin.offset;
    if found.tail.as_ref().is_some_and(|tail| tail.damaged) {
        recovery.cut_kept = Some(keep_tail(path, &file, len)?);
    }
    if poison_marker(path).exists() {
        let file = copy_anew(path, &file, len)?;
        recovery.copied = true;
        return Ok(Opened { file, begin, recovery });
    }
    if found.tail.is_some() {
        file.set_len(len).map_err(StoreError::io(path, "remove the incomplete last write of"))?;
    }
    // The daemon is about to act on records that a killed process wrote and did not sync.
    if let Err(error) = file.sync_all() {
        leave_poison_marker(path, "fsync failed at start");
        return Err(StoreError::io(path, "make durable")(error));
    }
    // A killed process may have created the file without syncing its directory.
    sync_dir(directory(path))?;
    Ok(Opened { file, begin, recovery })
}

fn report(chain: &Chain, found: &Scan) -> Recovery {
    Recovery {
        last_seq: found.last_seq,
        records: chain.records(found.last_seq),
        len: found.len,
        cut_bytes: found.tail.as_ref().map_or(0, |tail| tail.bytes),
        cut_why: found.tail.as_ref().map(|tail| format!("line {}: {}", tail.line, tail.why)),
        ..Recovery::default()
    }
}

/// Checks that all durable records are there.
fn check_length(path: &Path, found: &Scan, marked: u64, applied: u64) -> Result<(), StoreError> {
    let last = found.last_seq;
    if marked > last {
        return Err(StoreError::Short { file: path.into(), last, durable: marked });
    }
    if applied > last {
        return Err(StoreError::DbAhead { file: path.into(), applied, last });
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, StoreError> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(StoreError::io(path, "create"))?;
    file.sync_all().map_err(StoreError::io(path, "make durable"))?;
    sync_dir(directory(path))?;
    drop(fs::remove_file(poison_marker(path)));
    Ok(file)
}

/// Copies the valid part to a new file. The pages of the old file may be only in memory and marked
/// clean, so they reach the disk only if they are written as new ones.
fn copy_anew(path: &Path, old: &File, len: u64) -> Result<File, StoreError> {
    let fail = |doing| StoreError::io(path, doing);
    let temporary = Temporary::beside(path).map_err(fail("copy"))?;
    let mut options = OpenOptions::new();
    let new = options.read(true).write(true).create_new(true).mode(0o600).open(&temporary.0);
    let mut new = new.map_err(fail("copy"))?;
    let mut valid = old;
    valid.seek(SeekFrom::Start(0)).map_err(fail("copy"))?;
    let copied = io::copy(&mut valid.take(len), &mut new).map_err(fail("copy"))?;
    if copied != len {
        return Err(fail("copy all of")(io::ErrorKind::UnexpectedEof.into()));
    }
    new.sync_all().map_err(fail("make durable"))?;
    temporary.rename(path)?;
    // Last, because a death before this only causes one more copy.
    let marker = poison_marker(path);
    fs::remove_file(&marker).map_err(StoreError::io(&marker, "remove"))?;
    Ok(new)
}

/// Keeps the bytes of a damaged tail. A bad line with a newline is damage, not an interrupted
/// write, so somebody may need its bytes.
fn keep_tail(path: &Path, file: &File, offset: u64) -> Result<PathBuf, StoreError> {
    const KEPT: u64 = 16 * 1024 * 1024;
    let mut tail = Vec::new();
    let mut from = file;
    from.seek(SeekFrom::Start(offset)).map_err(StoreError::io(path, "read"))?;
    from.take(KEPT).read_to_end(&mut tail).map_err(StoreError::io(path, "read"))?;
    let kept = path.with_extension(format!("cut-{offset}"));
    write_atomic(&kept, &tail, 0o600)?;
    Ok(kept)
}

fn poison_marker(path: &Path) -> PathBuf {
    path.with_extension("poisoned")
}

/// Leaves the marker if possible: the disk that failed may be the one for the marker.
pub(super) fn leave_poison_marker(path: &Path, why: &str) {
    drop(write_atomic(&poison_marker(path), why.as_bytes(), 0o600));
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_beside_a_writer_retries_a_limited_number_of_times() {
        let gap = || StoreError::Gap { file: "f".into(), line: 2, offset: 9, wanted: 2, found: 3 };
        let io = || StoreError::io(Path::new("f"), "read")(io::ErrorKind::PermissionDenied.into());
        for (bad, error, calls) in
            [(0, None, 1), (2, None, 3), (9, Some("gap"), 3), (9, Some("io"), 1)]
        {
            let mut called = 0;
            let outcome = patiently(|| {
                called += 1;
                match error {
                    _ if called > bad => Ok(()),
                    Some("io") => Err(io()),
                    _ => Err(gap()),
                }
            });
            assert_eq!((outcome.is_err(), called), (error.is_some(), calls), "{bad} {error:?}");
        }
    }

    #[test]
    fn a_name_alone_is_in_the_current_directory() {
        assert_eq!(directory(Path::new("/a/b.jsonl")), Path::new("/a"));
        assert_eq!(directory(Path::new("b.jsonl")), Path::new("."));
    }

    /// The file exists but cannot be opened, which is no reason to create a new one.
    #[test]
    fn a_log_that_cannot_be_opened_is_not_a_missing_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("events.jsonl");
        std::os::unix::fs::symlink(&path, &path).expect("a link to itself");
        assert!(read(&path, |_| {}).is_err());
        let error = open(&path, 0, Cursor::default(), |_| {}).err().expect("a loop").to_string();
        assert!(error.contains("cannot open"), "nothing was tried beyond that: {error}");
    }
}
