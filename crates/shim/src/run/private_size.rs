//! Measures the folder of an agent's private HOME, a part with each sample: the agent decides how
//! much there is, and the shim has one thread.

use crate::launch::PRIVATE;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The entries that one sample looks at. It takes a few milliseconds.
const ENTRIES: usize = 4096;
/// The most folders that wait to be looked at. More are as much a burden as too many bytes.
const FOLDERS: usize = 1 << 16;
/// The most bytes of the paths of the folders that wait. The agent decides how long they are.
const PATHS: usize = 1 << 24;
/// The longest path of a folder. The kernel has no limit for an agent that goes down step by step.
const LONGEST: usize = 1 << 14;
/// The longest path that is opened at once: the kernel refuses more than 4096 bytes.
const PIECE: usize = 2048;
/// The least size of an entry: a file system can keep small ones without a block of their own.
const LEAST: u64 = 4096;
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;
/// The owner may list a folder and look at its entries.
const LISTED: Mode = Mode::RUSR.union(Mode::XUSR);

/// A measurement in progress. It starts again when all folders were looked at.
#[derive(Debug, Default)]
pub(super) struct PrivateSize {
    bytes: u64,
    open: Option<(PathBuf, Dir)>,
    folders: Vec<PathBuf>,
    /// The bytes of the paths of `folders`.
    paths: usize,
}

/// The outcome of opening a folder.
enum Opened {
    Folder(Dir),
    /// It was removed or replaced.
    Gone,
    /// The shim has no descriptor or memory for it now.
    Later,
}

impl PrivateSize {
    /// Looks at some more entries, and describes how the folder exceeds `most` bytes, as far as is
    /// known; `None` if it does not. A file with several names counts in parts. A folder that
    /// cannot be read counts as an excess, because an agent could hide any size in it. If the agent
    /// replaces a folder by a link, the folders behind it count against this agent, too.
    pub(super) fn excess(&mut self, most: u64) -> Option<String> {
        self.excess_of(Path::new(PRIVATE), most)
    }

    fn excess_of(&mut self, root: &Path, most: u64) -> Option<String> {
        if self.open.is_none() && self.folders.is_empty() {
            self.bytes = 0;
            self.push(root.into());
        }
        let mut left = ENTRIES;
        while left > 0 {
            let Some((path, folder)) = &mut self.open else {
                let Some(path) = self.folders.pop() else { break };
                self.paths -= path.as_os_str().len();
                left = left.saturating_sub(1 + path.as_os_str().len() / PIECE);
                match open(&path) {
                    Ok(Opened::Folder(folder)) => self.open = Some((path, folder)),
                    Ok(Opened::Gone) => {}
                    Ok(Opened::Later) => {
                        self.push(path);
                        break;
                    }
                    Err(error) => return Some(unreadable(&path, error)),
                }
                continue;
            };
            // The folder may be gone by now.
            let Some(Ok(entry)) = folder.read() else {
                self.open = None;
                continue;
            };
            let name = Path::new(OsStr::from_bytes(entry.file_name().to_bytes()));
            if name == Path::new(".") || name == Path::new("..") {
                continue;
            }
            left -= 1;
            let stat = match folder
                .fd()
                .and_then(|folder| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW))
            {
                Ok(stat) => stat,
                // The agent has taken the right away after the folder was opened.
                Err(Errno::ACCESS) => return Some(unreadable(path, Errno::ACCESS)),
                Err(_) => continue,
            };
            let is_folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            // The links of a folder are its folders.
            // Its type depends on the architecture.
            #[allow(clippy::useless_conversion)]
            let names = if is_folder { 1 } else { u64::from(stat.st_nlink).max(1) };
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
            let bytes = blocks.saturating_mul(BLOCK).max(LEAST);
            self.bytes = self.bytes.saturating_add(bytes / names);
            if is_folder {
                let path = path.join(name);
                self.push(path);
            }
            if let Some(excess) = self.is_over(most) {
                return Some(excess);
            }
        }
        None
    }

    fn push(&mut self, folder: PathBuf) {
        self.paths += folder.as_os_str().len();
        self.folders.push(folder);
    }

    fn is_over(&self, most: u64) -> Option<String> {
        if self.bytes > most {
            return Some(format!("its private HOME exceeds {most} bytes: it has {}", self.bytes));
        }
        if self.folders.len() > FOLDERS || self.paths > PATHS {
            return Some(format!("its private HOME has more than {FOLDERS} folders side by side"));
        }
        let newest = self.folders.last().map_or(0, |path| path.as_os_str().len());
        (newest > LONGEST)
            .then(|| format!("its private HOME has a path of more than {LONGEST} bytes"))
    }
}

fn unreadable(path: &Path, error: Errno) -> String {
    let shown: String = path.to_string_lossy().chars().take(200).collect();
    format!("its private HOME has a folder that cannot be measured: {shown}: {error}")
}

/// Opens a folder whose path may be longer than the kernel takes at once. It makes the folder
/// readable for its owner if it is not.
fn open(path: &Path) -> Result<Opened, Errno> {
    let opened = open_pieces(path).and_then(|folder| {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&folder)?.st_mode);
        if !mode.contains(LISTED) {
            rustix::fs::fchmod(&folder, mode | Mode::RWXU)?;
        }
        Dir::new(folder)
    });
    match opened {
        Ok(folder) => Ok(Opened::Folder(folder)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(Opened::Gone),
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Ok(Opened::Later),
        Err(error) => Err(error),
    }
}

/// Opens a folder without the permission to list it, where the system can.
#[cfg(target_os = "linux")]
const LOCATED: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const LOCATED: OFlags = OFlags::RDONLY;

fn open_pieces(path: &Path) -> Result<OwnedFd, Errno> {
    let mut above: Option<OwnedFd> = None;
    let mut piece = PathBuf::new();
    for name in path.components() {
        if piece.as_os_str().len() > PIECE {
            above = Some(open_at(above.as_ref(), &piece, LOCATED)?);
            piece.clear();
        }
        piece.push(name);
    }
    match open_at(above.as_ref(), &piece, OFlags::RDONLY) {
        Err(Errno::ACCESS) => {
            let unread = open_at(above.as_ref(), &piece, LOCATED)?;
            // By the descriptor, because the agent may put a link in its place at any time.
            let itself = PathBuf::from(format!("/proc/self/fd/{}", raw(&unread)));
            rustix::fs::chmod(&itself, Mode::RWXU)?;
            open_at(above.as_ref(), &piece, OFlags::RDONLY)
        }
        opened => opened,
    }
}

fn raw(descriptor: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(descriptor)
}

fn open_at(above: Option<&OwnedFd>, path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    let above = above.map_or(CWD, AsFd::as_fd);
    let flags = access | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(above, path, flags, Mode::empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const MIB: u64 = 1 << 20;

    /// Measures all of a folder.
    fn measured(root: &Path, most: u64) -> Option<String> {
        let mut size = PrivateSize::default();
        loop {
            let excess = size.excess_of(root, most);
            if excess.is_some() || (size.open.is_none() && size.folders.is_empty()) {
                return excess;
            }
        }
    }

    fn file(bytes: u64) -> Vec<u8> {
        vec![1; usize::try_from(bytes).unwrap()]
    }

    #[test]
    fn folders_without_rights_count() {
        for mode in [0o300, 0o600, 0o000] {
            let dir = tempfile::tempdir().unwrap();
            let hidden = dir.path().join("a/hidden");
            std::fs::create_dir_all(hidden.join("below")).unwrap();
            std::fs::write(hidden.join("below/large"), file(4 * MIB)).unwrap();
            std::fs::set_permissions(&hidden, PermissionsExt::from_mode(mode)).unwrap();
            let excess = measured(dir.path(), 2 * MIB).unwrap();
            assert!(excess.contains("its private HOME exceeds 2097152 bytes"), "{excess}");
            assert_eq!(measured(dir.path(), 8 * MIB), None);
        }
    }

    #[test]
    fn folders_below_long_paths_count() {
        let dir = tempfile::tempdir().unwrap();
        let name = "n".repeat(100);
        let mut folder = open_pieces(dir.path()).unwrap();
        for _ in 0..100 {
            rustix::fs::mkdirat(&folder, name.as_str(), Mode::RWXU).unwrap();
            folder = open_at(Some(&folder), Path::new(&name), OFlags::RDONLY).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let large = rustix::fs::openat(&folder, "large", flags, Mode::RWXU).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(large), &file(4 * MIB)).unwrap();
        let excess = measured(dir.path(), 2 * MIB).unwrap();
        assert!(excess.contains("its private HOME exceeds 2097152 bytes"), "{excess}");
        assert_eq!(measured(dir.path(), 8 * MIB), None);
        for _ in 0..100 {
            rustix::fs::mkdirat(&folder, name.as_str(), Mode::RWXU).unwrap();
            folder = open_at(Some(&folder), Path::new(&name), OFlags::RDONLY).unwrap();
        }
        let excess = measured(dir.path(), 8 * MIB).unwrap();
        assert!(excess.contains("a path of more than"), "{excess}");
    }
}
