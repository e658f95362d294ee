//! Reserves disk space in the state directory for a start on a full disk. A daemon that cannot
//! record its start cannot terminate anything, even if an agent fills the disk.

use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// In bytes. A start writes a note beside its lock and one or two events: a page or two.
const SIZE: u64 = 64 << 10;

/// Carries out `step`. If the disk is full, it deletes the reserve and retries once.
///
/// # Errors
/// Those of `step`.
pub(crate) fn at_need<T, E>(
    path: &Path,
    full: impl Fn(&E) -> bool,
    mut step: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    match step() {
        Err(error) if full(&error) && std::fs::remove_file(path).is_ok() => {
            tracing::warn!(
                path = %path.display(),
                "the disk is full: using the reserved space for this start"
            );
            step()
        }
        outcome => outcome,
    }
}

/// Makes the reserve unless it exists. If there is no room, the next start tries again.
pub(crate) fn keep(path: &Path) {
    if std::fs::metadata(path).is_ok_and(|file| file.len() == SIZE) {
        return;
    }
    let made = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(allocate);
    if let Err(error) = made {
        tracing::warn!(
            path = %path.display(),
            %error,
            "failed to reserve disk space for a start on a full disk"
        );
        let _ = std::fs::remove_file(path);
    }
}

fn allocate(file: File) -> io::Result<()> {
    match fallocate(&file, FallocateFlags::empty(), 0, SIZE) {
        // Not every file system supports it. These zeros take room on all but compressing ones.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            io::copy(&mut io::Read::take(io::repeat(0), SIZE), &mut &file).map(|_| ())
        }
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_reserve_is_used_once_and_recreated() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("reserve");
        let mut tried = 0;
        let mut fails = |path: &Path, full: bool| {
            tried = 0;
            let outcome: Result<(), bool> = at_need(
                path,
                |full| *full,
                || {
                    tried += 1;
                    Err(full)
                },
            );
            assert_eq!(outcome, Err(full));
            tried
        };
        assert_eq!(fails(&path, true), 1, "there is none yet");
        keep(&path);
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), SIZE);
        assert_eq!((fails(&path, false), path.exists()), (1, true), "it would not help");
        assert_eq!((fails(&path, true), path.exists()), (2, false));
        keep(&path);
        assert!(path.exists());
    }
}
