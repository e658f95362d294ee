//! Measures the folder of an agent's private HOME, a part with each sample: the agent decides how
//! much there is, and the shim has one thread.

use crate::launch::PRIVATE;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The entries that one sample looks at. It takes a few milliseconds.
const ENTRIES: usize = 4096;
/// The most folders that wait to be looked at. More are as much a burden as too many bytes.
const FOLDERS: usize = 1 << 16;
/// The least size of an entry: a file system can keep small ones without a block of their own.
const LEAST: u64 = 4096;
/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// A measurement in progress. It starts again when all folders were looked at.
#[derive(Debug, Default)]
pub(super) struct PrivateSize {
    bytes: u64,
    open: Option<(PathBuf, Dir)>,
    folders: Vec<PathBuf>,
}

impl PrivateSize {
    /// Looks at some more entries, and describes how the folder exceeds `most` bytes, as far as is
    /// known; `None` if it does not. A file with several names counts in parts. If the agent
    /// replaces a folder by a link, the folders behind it count against this agent, too.
    pub(super) fn excess(&mut self, most: u64) -> Option<String> {
        if self.open.is_none() && self.folders.is_empty() {
            self.bytes = 0;
            self.folders.push(PRIVATE.into());
        }
        let mut left = ENTRIES;
        while left > 0 {
            let Some((path, folder)) = &mut self.open else {
                let Some(path) = self.folders.pop() else { break };
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(CWD, &path, flags, Mode::empty());
                self.open = opened.and_then(Dir::new).ok().map(|folder| (path, folder));
                left -= 1;
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
            let Ok(stat) = folder
                .fd()
                .and_then(|folder| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW))
            else {
                continue;
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
                self.folders.push(path.join(name));
            }
            if self.bytes > most {
                return Some(format!("its HOME has {} of {most} bytes", self.bytes));
            }
            if self.folders.len() > FOLDERS {
                return Some(format!("its HOME has more than {FOLDERS} folders side by side"));
            }
        }
        None
    }
}
