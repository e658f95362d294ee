//! Locks that show whether a process lives: an flock on a file that is never unlinked.
//!
//! A pid in a file can be reused, and with "stale, remove, create" two processes can win. The
//! kernel releases an flock when the last descriptor of its open file is closed: exactly when the
//! holder, and every process that inherited the descriptor, is dead.

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Serialize, de::DeserializeOwned};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A held lock. Dropping it closes only this descriptor: a child that inherited the open file keeps
/// the lock. An explicit unlock would take it from the child.
#[derive(Debug)]
pub struct LockGuard {
    file: File,
}

impl LockGuard {
    /// Takes over a descriptor, inherited from a parent, through which a lock is already held.
    /// `None` if the lock is not held through it and cannot be taken.
    pub fn inherit(fd: OwnedFd) -> io::Result<Option<Self>> {
        // flock on an open file that already holds the lock succeeds and changes nothing.
        Ok(flock(fd.as_fd())?.then(|| Self { file: File::from(fd) }))
    }

    /// Returns a second descriptor of the same open file, close-on-exec, to pass to a child.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Whether this lock is on the file that `path` names now.
    pub fn is_on(&self, path: &Path) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let (mine, there) = (self.file.metadata()?, std::fs::metadata(path)?);
        Ok((mine.dev(), mine.ino()) == (there.dev(), there.ino()))
    }
}

impl AsFd for LockGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Takes the lock at `path` (created 0600 if absent); `None` if another process holds it.
pub fn try_lock(path: &Path) -> io::Result<Option<LockGuard>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    LockGuard::inherit(fd)
}

/// Works like [`try_lock`], but waits up to `limit`. After a kill -9 the end of a dead process's
/// socket may be visible before its lock is free, so its successor waits a moment (the daemon: 2
/// s).
///
/// It blocks the calling thread.
pub fn lock_within(path: &Path, limit: Duration) -> io::Result<Option<LockGuard>> {
    lock_unless(path, limit, || false)
}

/// Works like [`lock_within`], but gives up as soon as `vain` returns true.
///
/// It blocks the calling thread.
pub fn lock_unless(
    path: &Path,
    limit: Duration,
    vain: impl Fn() -> bool,
) -> io::Result<Option<LockGuard>> {
    let deadline = crate::clock::awake() + limit;
    loop {
        if let Some(guard) = try_lock(path)? {
            return Ok(Some(guard));
        }
        if vain() || crate::clock::awake() >= deadline {
            return Ok(None);
        }
        // flock has no time limit, and a thread blocked in it could not be cancelled.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process holds the lock exclusively. The check takes a shared lock for a moment, during
/// which an exclusive lock fails.
pub fn is_held(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let asked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    matches!(asked, Err(rustix::io::Errno::WOULDBLOCK))
}

/// Writes information about the holder for people to `<path>.json`. No code decides by it.
pub fn write_note(path: &Path, note: &impl Serialize) -> io::Result<()> {
    let target = note_path(path);
    let mut temporary = target.clone().into_os_string();
    temporary.push(".tmp");
    std::fs::write(&temporary, serde_json::to_vec_pretty(note)?)?;
    std::fs::rename(&temporary, &target)
}

/// Returns the note beside the lock; `None` if there is none that can be read.
pub fn read_note<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(note_path(path)).ok()?).ok()
}

fn note_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

fn flock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    loop {
        return match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn second_lock_is_refused_until_the_last_share_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let guard = try_lock(&path).unwrap().unwrap();
        assert!(guard.is_on(&path).unwrap());
        assert!(try_lock(&path).unwrap().is_none());
        let share = guard.share().unwrap();
        drop(guard);
        assert!(try_lock(&path).unwrap().is_none());
        let inherited = LockGuard::inherit(share).unwrap().unwrap();
        assert!(lock_within(&path, Duration::from_millis(20)).unwrap().is_none());
        drop(inherited);
        assert!(lock_within(&path, Duration::from_secs(2)).unwrap().is_some());
    }

    /// Otherwise it would wait for an hour, and take over from a daemon that was told to stop
    /// meanwhile.
    #[test]
    fn lock_wait_ends_when_the_caller_gives_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = try_lock(&path).unwrap().unwrap();
        let hour = Duration::from_secs(3600);
        assert!(lock_unless(&path, hour, || true).unwrap().is_none());
        drop(held);
        assert!(lock_unless(&path, hour, || true).unwrap().is_some(), "one that is free is taken");
    }

    #[test]
    fn the_note_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        write_note(&path, &("pid", 7)).unwrap();
        assert_eq!(read_note::<(String, u32)>(&path), Some(("pid".into(), 7)));
    }
}
