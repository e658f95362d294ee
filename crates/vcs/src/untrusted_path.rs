//! Access to files in folders that agents can write. It goes step by step from a folder of ours,
//! follows no link, limits the size, and never blocks on a pipe without a writer.

use rustix::fs::{AtFlags, Mode, OFlags, fstat, mkdirat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::Duration;

const FOLDER: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the folder that `name` is in, below `root`, and returns it with the last part of the name.
/// `None` if it does not exist and `make` is false.
fn parent<'a>(root: &Path, name: &'a Path, make: bool) -> io::Result<Option<(OwnedFd, &'a OsStr)>> {
    let mut at = rustix::fs::open(
        root,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut parts = vec![];
    for part in name.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{} leads away", name.display()),
                ));
            }
        }
    }
    let Some((last, folders)) = parts.split_last() else { return Ok(None) };
    for folder in folders {
        at = match openat(&at, *folder, FOLDER, Mode::empty()) {
            Ok(next) => next,
            Err(Errno::NOENT) if make => {
                match mkdirat(&at, *folder, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                openat(&at, *folder, FOLDER, Mode::empty())?
            }
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
    }
    Ok(Some((at, *last)))
}

/// Opens the file `name` below `root` for reading; `None` if it does not exist.
///
/// # Errors
/// When it, or a folder on the way, is a link; when it is no regular file.
pub fn open(root: &Path, name: &Path) -> io::Result<Option<File>> {
    let Some((folder, last)) = parent(root, name, false)? else { return Ok(None) };
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match openat(&folder, last, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let stat = fstat(&file)?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(Some(File::from(file)))
}

/// Reads the file `name` below `root`; `None` if it does not exist.
///
/// # Errors
/// Those of [`open`]; when it is longer than `limit`.
pub fn read(root: &Path, name: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(root, name)? else { return Ok(None) };
    let mut bytes = vec![];
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {limit} bytes"),
        ));
    }
    Ok(Some(bytes))
}

/// Does the same as [`read`], for a file in a folder of ours: only the last part may be an agent's.
///
/// # Errors
/// Those of [`read`]; `NotFound` when it does not exist.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    read(folder, Path::new(name), limit)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Appends to an existing file in a folder of ours: only the last part may be an agent's.
///
/// # Errors
/// When it does not exist, or is a link or no regular file.
pub fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    (&file).write_all(bytes)
}

/// Writes `name` below `root` as git writes a ref. A lock file beside it excludes other writers,
/// and is renamed to it.
///
/// # Errors
/// When another process has the lock, or a folder on the way is a link.
pub fn replace(root: &Path, name: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some((folder, last)) = parent(root, name, true)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let mut lock = last.to_owned();
    lock.push(".lock");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&folder, &lock, flags, Mode::from_raw_mode(0o644))?;
    let written = File::from(file)
        .write_all(bytes)
        .and_then(|()| renameat(&folder, &lock, &folder, last).map_err(io::Error::from));
    if written.is_err() {
        let _ = unlinkat(&folder, &lock, AtFlags::empty());
    }
    written
}

/// Returns the time since `name` below `root` was written. `None` if it does not exist, or the way
/// to it has links.
pub fn age(root: &Path, name: &Path) -> Option<Duration> {
    let (folder, last) = parent(root, name, false).ok()??;
    let stat = statat(&folder, last, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let written = Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    Some(Duration::from_millis(muleteer_process::clock::wall_ms()).saturating_sub(written))
}

/// Returns the names in the folder `name` below `root`, at most `most` of them; none if it does not
/// exist or the way to it has links.
pub fn entries(root: &Path, name: &Path, most: usize) -> Vec<OsString> {
    // The last part only stands for an entry of the folder.
    let Ok(Some((folder, _))) = parent(root, &name.join("entry"), false) else { return vec![] };
    let Ok(entries) = rustix::fs::Dir::read_from(&folder) else { return vec![] };
    let names =
        entries.flatten().map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    names.filter(|name| name != "." && name != "..").take(most).collect()
}

/// Removes `name` below `root`, if it is no folder and the way to it has no links.
pub fn remove(root: &Path, name: &Path) -> bool {
    let Ok(Some((folder, last))) = parent(root, name, false) else { return false };
    unlinkat(&folder, last, AtFlags::empty()).is_ok()
}

/// Makes the folder `old` equal to `new`, with the same files, and moves everything that differs
/// into `aside`. All three are in one file system, and the first is an agent's. Equal entries stay
/// as they are, because a sandbox may show them. `HEAD` comes last.
///
/// # Errors
/// When something cannot be moved; earlier moves stay.
pub fn exchange(old: &Path, new: &Path, aside: &Path) -> io::Result<()> {
    let open = |path: &Path| rustix::fs::open(path, FOLDER, Mode::empty());
    swap(&open(old)?, &open(new)?, &open(aside)?)
}

/// The recursion is as deep as `new`, which is ours.
fn swap(old: &OwnedFd, new: &OwnedFd, aside: &OwnedFd) -> io::Result<()> {
    let kind = |at: &OwnedFd, name: &OsStr| {
        let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(rustix::fs::FileType::from_raw_mode(stat.st_mode))
    };
    let mut wanted = names(new)?;
    for name in names(old)?.iter().filter(|name| !wanted.contains(name)) {
        renameat(old, name, aside, name)?;
    }
    wanted.sort_by_key(|name| name == "HEAD");
    for name in &wanted {
        let (before, after) = (kind(old, name), kind(new, name));
        if before.is_some_and(rustix::fs::FileType::is_dir)
            && after.is_some_and(rustix::fs::FileType::is_dir)
        {
            mkdirat(aside, name, Mode::RWXU)?;
            let open = |at: &OwnedFd| openat(at, name, FOLDER, Mode::empty());
            swap(&open(old)?, &open(new)?, &open(aside)?)?;
            continue;
        }
        if before.is_some() {
            if same(old, new, name) {
                continue;
            }
            renameat(old, name, aside, name)?;
        }
        renameat(new, name, old, name)?;
    }
    Ok(())
}

fn names(folder: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut found = vec![];
    for entry in rustix::fs::Dir::read_from(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// Whether both folders have the same small file of that name.
fn same(old: &OwnedFd, new: &OwnedFd, name: &OsStr) -> bool {
    const LONGEST: u64 = 64 << 10;
    let read = |at: &OwnedFd| {
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(at, name, flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let mut bytes = vec![];
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        (is_file && File::from(file).take(LONGEST).read_to_end(&mut bytes).is_ok()).then_some(bytes)
    };
    read(old).is_some_and(|bytes| read(new) == Some(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        std::fs::create_dir_all(inside.join("refs")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("x"), "theirs").unwrap();
        symlink(&outside, inside.join("refs/heads")).unwrap();
        symlink(outside.join("x"), inside.join("x")).unwrap();
        let name = Path::new("refs/heads/x");
        assert!(read(&inside, name, 100).is_err() && read(&inside, Path::new("x"), 100).is_err());
        assert!(replace(&inside, name, b"ours").is_err());
        assert!(!remove(&inside, name) && age(&inside, name).is_none());
        assert_eq!(std::fs::read_to_string(outside.join("x")).unwrap(), "theirs");
        assert!(read(&inside, Path::new("../out/x"), 100).is_err());
        assert!(append(&inside.join("x"), b"ours").is_err());
        append(&outside.join("x"), b", and ours").unwrap();
        assert_eq!(std::fs::read_to_string(outside.join("x")).unwrap(), "theirs, and ours");
    }

    #[test]
    fn pipes_devices_and_long_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        symlink("/dev/zero", dir.path().join("zero")).unwrap();
        std::fs::write(dir.path().join("long"), "12345").unwrap();
        for name in ["pipe", "zero", "long"] {
            assert!(read(dir.path(), Path::new(name), 4).is_err(), "{name}");
        }
        assert_eq!(read_file(&dir.path().join("long"), 5).unwrap(), b"12345");
        assert!(read_file(&dir.path().join("none"), 5).is_err());
    }

    #[test]
    fn replacement_is_whole_and_excluded_by_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let name = Path::new("refs/heads/a/b");
        replace(dir.path(), name, b"1\n").unwrap();
        replace(dir.path(), name, b"2\n").unwrap();
        assert_eq!(read(dir.path(), name, 10).unwrap().unwrap(), b"2\n");
        std::fs::write(dir.path().join("refs/heads/a/b.lock"), "").unwrap();
        assert!(replace(dir.path(), name, b"3\n").is_err());
        assert!(age(dir.path(), Path::new("refs/heads/a/b.lock")).is_some());
        assert!(remove(dir.path(), Path::new("refs/heads/a/b.lock")));
        assert_eq!(read(dir.path(), name, 10).unwrap().unwrap(), b"2\n");
    }
}
