//! Removes and measures directory trees that another program has filled.
//!
//! An agent may nest directories to any depth. `std::fs::remove_dir_all` recurses for each level,
//! so a tree of many thousand levels overflows the stack and ends the whole process. This code does
//! not recurse and has at most `OPEN` directories open at a time. Every name is relative to an open
//! directory, so that no path is too long and no link is followed. A deadline bounds the time.

use muleteer_process::clock::awake;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

/// How many directories are open at a time. Deeper ones are moved up first.
const OPEN: usize = 64;
/// How often a directory is emptied to which another process keeps writing.
const TRIES: usize = 8;
/// The time limit of a removal. The next removal deletes the rest.
pub const PATIENCE: Duration = Duration::from_secs(5 * 60);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);

/// A directory that is being emptied.
struct Level {
    folder: OwnedFd,
    /// Its name in the level above.
    name: OsString,
    /// The directories in it that still exist.
    below: Vec<OsString>,
    tries: usize,
}

/// Removes a file, or a directory with its contents, within `patience`. Blocks.
///
/// # Errors
/// `NotFound` if it does not exist; `TimedOut` if the time was too short. Everything removed before
/// an error stays removed.
pub fn remove_tree(path: &Path, patience: Duration) -> io::Result<()> {
    let deadline = awake().saturating_add(patience);
    let top = match rustix::fs::open(path, FOLDER, Mode::empty()) {
        Err(Errno::NOTDIR | Errno::LOOP) => return std::fs::remove_file(path),
        Err(Errno::ACCESS) => {
            allow(rustix::fs::CWD, path.as_os_str())?;
            rustix::fs::open(path, FOLDER, Mode::empty())?
        }
        opened => opened?,
    };
    for _ in 1..TRIES {
        empty(&top, deadline)?;
        match std::fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            done => return done,
        }
    }
    empty(&top, deadline)?;
    std::fs::remove_dir(path)
}

/// Returns the disk space of a directory with its contents, as far as it can be read within
/// `patience`. Blocks.
///
/// # Errors
/// `NotFound` if it does not exist, or the reason why it cannot be opened.
pub fn tree_size(path: &Path, patience: Duration) -> io::Result<u64> {
    /// The size of a block in the result of `stat`.
    const BLOCK: u64 = 512;
    let deadline = awake().saturating_add(patience);
    let top = rustix::fs::open(path, FOLDER, Mode::empty())?;
    let mut bytes = 0;
    // Directories below the limit of open ones are left out: no real tree is so deep.
    let mut levels: Vec<(OwnedFd, Vec<OsString>)> = vec![];
    let mut next = Some(top);
    loop {
        if let Some(folder) = next.take() {
            let mut below = vec![];
            for (entry, _) in entries(Dir::read_from(&folder)?)? {
                let Ok(stat) = statat(&folder, &entry, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                    below.push(entry);
                }
            }
            if levels.len() < OPEN {
                levels.push((folder, below));
            }
        }
        let Some((folder, below)) = levels.last_mut() else { return Ok(bytes) };
        if awake() > deadline {
            return Ok(bytes);
        }
        match below.pop() {
            Some(name) => next = openat(&*folder, &name, FOLDER, Mode::empty()).ok(),
            None => drop(levels.pop()),
        }
    }
}

/// Removes the contents of a directory.
fn empty(top: &OwnedFd, deadline: Duration) -> io::Result<()> {
    let mut moved = 0_u64;
    let folder = top.try_clone()?;
    let below = clear(&folder, deadline)?;
    let mut levels = vec![Level { folder, name: OsString::new(), below, tries: 0 }];
    while let Some(depth) = levels.len().checked_sub(1) {
        if awake() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(name) = levels[depth].below.pop() else {
            close(&mut levels, deadline)?;
            continue;
        };
        if depth + 1 < OPEN {
            if let Some(folder) = open_below(&levels[depth].folder, &name)? {
                let below = clear(&folder, deadline)?;
                levels.push(Level { folder, name, below, tries: 0 });
            }
        } else if let Some(up) =
            move_up(&levels[depth].folder, &name, &levels[0].folder, &mut moved)?
        {
            levels[0].below.push(up);
        }
    }
    Ok(())
}

/// Removes the last level's directory, which was emptied, and continues with the one above.
fn close(levels: &mut Vec<Level>, deadline: Duration) -> io::Result<()> {
    let Some(mut level) = levels.pop() else { return Ok(()) };
    let Some(above) = levels.last() else { return Ok(()) };
    let removed =
        with_access(&above.folder, || unlinkat(&above.folder, &level.name, AtFlags::REMOVEDIR));
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // Another process still writes there, or the listing was incomplete because entries were
        // removed meanwhile.
        Err(Errno::NOTEMPTY | Errno::EXIST) if level.tries < TRIES => {
            level.below = clear(&level.folder, deadline)?;
            level.tries += 1;
            levels.push(level);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Moves a directory to the top under an unused name; `None` if it is gone.
fn move_up(
    from: &OwnedFd,
    name: &OsStr,
    top: &OwnedFd,
    moved: &mut u64,
) -> io::Result<Option<OsString>> {
    let up = loop {
        *moved += 1;
        let up = OsString::from(format!(".removed-{moved}"));
        if statat(top, &up, AtFlags::SYMLINK_NOFOLLOW).is_err() {
            break up;
        }
    };
    let rename = || renameat(from, name, top, &up);
    let moved = match with_access(from, rename) {
        // Its entry `..` changes as well, so the directory itself must be writable.
        Err(Errno::ACCESS) => {
            allow(from.as_fd(), name)?;
            rename()
        }
        moved => moved,
    };
    match moved {
        Ok(()) => Ok(Some(up)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory. Returns `None` if it is gone, or if another kind of file replaced it; that
/// file is removed.
fn open_below(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<OwnedFd>> {
    let open = || openat(folder, name, FOLDER, Mode::empty());
    let opened = match with_access(folder, open) {
        Err(Errno::ACCESS) => {
            allow(folder.as_fd(), name)?;
            open()
        }
        opened => opened,
    };
    match opened {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            match with_access(folder, || unlinkat(folder, name, AtFlags::empty())) {
                Ok(()) | Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(error.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes everything except directories from a directory; returns the names of its directories.
fn clear(folder: &OwnedFd, deadline: Duration) -> io::Result<Vec<OsString>> {
    let mut below = vec![];
    // The directory is opened again for reading, which needs search permission.
    let listing = with_access(folder, || Dir::read_from(folder))?;
    for (name, kind) in entries(listing)? {
        if awake() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if kind == FileType::Directory {
            below.push(name);
            continue;
        }
        match with_access(folder, || unlinkat(folder, &name, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Linux and POSIX differ in the error for a directory.
            Err(Errno::ISDIR | Errno::PERM) if kind == FileType::Unknown => below.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(below)
}

fn entries(listing: Dir) -> io::Result<Vec<(OsString, FileType)>> {
    let mut found = vec![];
    for entry in listing {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((OsStr::from_bytes(name).to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Runs an operation on an entry of `folder`. If that is denied, it makes the directory writable
/// and searchable and repeats the operation: removing or moving an entry needs both, whatever the
/// mode of the entry is. It uses the open file, because no name, not even `.`, can be looked up in
/// a directory without search permission.
fn with_access<T>(
    folder: &OwnedFd,
    run: impl Fn() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    match run() {
        Err(Errno::ACCESS) => {
            rustix::fs::fchmod(folder, Mode::RWXU)?;
            run()
        }
        done => done,
    }
}

/// Makes a directory of ours accessible that its owner locked. It does not follow a link.
fn allow(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    #[cfg(target_os = "linux")]
    let flags = flags | OFlags::PATH;
    let reached = openat(folder, name, flags, Mode::empty())?;
    // A descriptor opened with `O_PATH` cannot be changed itself.
    let path = format!("/proc/self/fd/{}", reached.as_raw_fd());
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::mkdirat;
    use std::os::unix::fs::symlink;

    /// Creates nested directories, deeper than the longest path, with a file in every hundredth.
    fn nest(top: &Path, levels: usize) {
        std::fs::create_dir(top).unwrap();
        let mut at = rustix::fs::open(top, FOLDER, Mode::empty()).unwrap();
        for level in 0..levels {
            mkdirat(&at, "d", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
                drop(openat(&at, "file", flags, Mode::RUSR).unwrap());
            }
            at = openat(&at, "d", FOLDER, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_tree_deeper_than_the_stack_and_any_path_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        nest(&top, 15_000);
        nest(&top.join("d/beside"), 300);
        let path = top.clone();
        // The stack of the daemon's threads is no larger than this.
        let small = std::thread::Builder::new().stack_size(256 * 1024);
        let removing =
            small.spawn(move || (tree_size(&path, PATIENCE), remove_tree(&path, PATIENCE)));
        let (size, removed) = removing.unwrap().join().unwrap();
        removed.unwrap();
        assert!(size.is_ok());
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (top, other) = (dir.path().join("top"), dir.path().join("other"));
        for folder in [&top, &other] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("file"), "x").unwrap();
        }
        symlink(&other, top.join("link")).unwrap();
        symlink("nowhere", top.join("dangling")).unwrap();
        let to_top = dir.path().join("to-top");
        symlink(&top, &to_top).unwrap();
        remove_tree(&to_top, PATIENCE).unwrap();
        assert!(top.join("file").exists() && to_top.symlink_metadata().is_err());
        remove_tree(&top, PATIENCE).unwrap();
        assert!(other.join("file").exists() && !top.exists());
        assert_eq!(remove_tree(&top, PATIENCE).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_locked_directory_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::fs::write(top.join("a/b/file"), "x").unwrap();
        for folder in ["a/b", "a", ""] {
            std::fs::set_permissions(top.join(folder), Permissions::from_mode(0o000)).unwrap();
        }
        remove_tree(&top, PATIENCE).unwrap();
        assert!(!top.exists());
    }

    /// Runs as a user to whom permissions apply, also if the tests run as root.
    #[cfg(target_os = "linux")]
    fn without_override<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let held = move || {
            let mut sets = capabilities(None).unwrap();
            let overriding = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            sets.effective.remove(overriding);
            // Applies to this thread only.
            set_capabilities(None, sets).unwrap();
            run()
        };
        std::thread::spawn(held).join().unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn locked_directories_that_hold_only_directories_are_removed() {
        for mode in [0o555, 0o500, 0o400, 0o444, 0o300, 0o100, 0] {
            let dir = tempfile::tempdir().unwrap();
            let top = dir.path().join("top");
            std::fs::create_dir_all(top.join("a/b/c")).unwrap();
            std::fs::create_dir(top.join("empty")).unwrap();
            std::fs::write(top.join("a/file"), "x").unwrap();
            for folder in ["a/b/c", "a/b", "a", "empty", ""] {
                let locked = Permissions::from_mode(mode);
                std::fs::set_permissions(top.join(folder), locked).unwrap();
            }
            let path = top.clone();
            let removed = without_override(move || remove_tree(&path, PATIENCE));
            assert!(removed.is_ok() && !top.exists(), "{mode:o}: {removed:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn locked_directories_deeper_than_may_be_open_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        nest(&top, 3 * OPEN);
        let (path, mut below) = (top.clone(), top.clone());
        for _ in 0..3 * OPEN {
            below.push("d");
        }
        while below.starts_with(&top) {
            std::fs::set_permissions(&below, Permissions::from_mode(0o555)).unwrap();
            below.pop();
        }
        let removed = without_override(move || remove_tree(&path, PATIENCE));
        assert!(removed.is_ok() && !top.exists(), "{removed:?}");
    }

    #[test]
    fn removal_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        nest(&top, 200);
        assert_eq!(remove_tree(&top, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(top.exists());
        remove_tree(&top, PATIENCE).unwrap();
    }
}
