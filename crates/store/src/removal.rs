//! Removes directory trees that somebody else has filled, and measures them.
//!
//! An agent may nest directories as deep as it likes. `std::fs::remove_dir_all` calls itself for
//! each level, so a tree of many thousand levels overflows the stack and takes the whole process
//! down. Here nothing calls itself, at most `OPEN` directories are open at a time, every name is
//! relative to an open directory, so that no path is too long, no link is followed, and a deadline
//! is kept.

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

/// Directories open at a time. What lies deeper is moved up first.
const OPEN: usize = 64;
/// A directory that somebody goes on writing to is emptied so often.
const TRIES: usize = 8;
/// The time that a removal may take. What is left then goes with the next one.
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
    /// The directories in it that are still there.
    below: Vec<OsString>,
    tries: usize,
}

/// Removes a file, or a directory with all that is in it, within `patience`. Blocks.
///
/// # Errors
/// `NotFound` if it is not there; `TimedOut` if it was not done in time. What was removed until an
/// error stays removed.
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

/// The bytes that a directory takes up on the disk with all that is in it, as far as it can be read
/// within `patience`. Blocks.
///
/// # Errors
/// `NotFound` if it is not there, or why it cannot be opened.
pub fn tree_size(path: &Path, patience: Duration) -> io::Result<u64> {
    /// Blocks as `stat` counts them.
    const BLOCK: u64 = 512;
    let deadline = awake().saturating_add(patience);
    let top = rustix::fs::open(path, FOLDER, Mode::empty())?;
    let mut bytes = 0;
    // What is deeper than may be open is left out: no honest tree is.
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

/// Removes all that is in a directory.
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

/// Removes the last level's directory, which was emptied, and goes on with the one above.
fn close(levels: &mut Vec<Level>, deadline: Duration) -> io::Result<()> {
    let Some(mut level) = levels.pop() else { return Ok(()) };
    let Some(above) = levels.last() else { return Ok(()) };
    let removed =
        with_access(&above.folder, || unlinkat(&above.folder, &level.name, AtFlags::REMOVEDIR));
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        // Somebody still writes there, or the listing left something out while we removed.
        Err(Errno::NOTEMPTY | Errno::EXIST) if level.tries < TRIES => {
            level.below = clear(&level.folder, deadline)?;
            level.tries += 1;
            levels.push(level);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Moves a directory to the top, under a name that nothing there has; none if it is gone.
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

/// Opens a directory; none if it is gone, or was replaced by something else, which is removed.
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

/// Removes what is no directory from a directory; the names of the directories in it.
fn clear(folder: &OwnedFd, deadline: Duration) -> io::Result<Vec<OsString>> {
    let mut below = vec![];
    // It is opened once more to be read, which needs search permission.
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
            // Linux says the one and POSIX the other of a directory.
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

/// Runs an operation on an entry of `folder`. Where that is denied, makes the directory writable
/// and searchable and runs the operation again: removing or moving an entry needs both, whatever
/// the mode of the entry is. Set by the open file, because a name in a directory without search
/// permission cannot be looked up, not even `.`.
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

/// Lets us into a directory of ours that its owner locked. A link is not followed.
fn allow(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    #[cfg(target_os = "linux")]
    let flags = flags | OFlags::PATH;
    let reached = openat(folder, name, flags, Mode::empty())?;
    // An open file of this kind cannot be changed itself.
    let path = format!("/proc/self/fd/{}", reached.as_raw_fd());
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::mkdirat;
    use std::os::unix::fs::symlink;

    /// Directories one in the other, deeper than any path is long, with a file in each hundredth.
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
        // The stack of a thread of the daemon's is no larger than this.
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

    /// Runs as a user to whom permissions apply, also where the tests run as root.
    #[cfg(target_os = "linux")]
    fn without_override<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let held = move || {
            let mut sets = capabilities(None).unwrap();
            let overriding = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            sets.effective.remove(overriding);
            // Of this thread only.
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
    fn a_removal_that_takes_too_long_ends() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        nest(&top, 200);
        assert_eq!(remove_tree(&top, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(top.exists());
        remove_tree(&top, PATIENCE).unwrap();
    }
}
