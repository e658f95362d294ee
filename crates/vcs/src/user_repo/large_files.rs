//! Files that are too large for git to read. A sparse file costs an agent nothing and git hours,
//! because git reads every byte that the file claims to have. Such files are not saved, and their
//! names are reported. The same holds for the longest of many files that together are too large.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The limit of one file. Tests make longer files with real content.
const FILE_LIMIT: u64 = if cfg!(test) { 16 << 20 } else { 1 << 30 };
/// The limit of all files together. Above it, the longest are left out.
const TOTAL_LIMIT: u64 = 4 * FILE_LIMIT;
/// At most this many files are named.
const NAMED: usize = 5;

/// A file that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Large {
    /// Relative to the top of the working directory.
    pub path: PathBuf,
    pub bytes: u64,
    /// It is tracked, and nobody has written to it since it was checked out.
    pub is_untouched: bool,
}

/// The files of a working directory, as git lists them with `-z`: its names can be any bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed<'a> {
    pub new: &'a [u8],
    pub tracked: &'a [u8],
    /// The time at which the checkout of the tracked files was complete.
    pub checked_out: Option<SystemTime>,
}

struct File<'a> {
    path: &'a [u8],
    bytes: u64,
    is_new: bool,
    is_untouched: bool,
}

/// Returns the new files and the tracked files that are too large, alone or together. An untouched
/// file counts only alone, because a commit has its content.
pub(crate) fn too_large<'a>(top: &Path, listed: Listed<'a>) -> (Vec<Large>, Vec<Large>) {
    let paths =
        |listing: &'a [u8]| listing.split(|byte| *byte == 0).filter(|path| !path.is_empty());
    let new = paths(listed.new).map(|path| (path, true));
    let tracked = paths(listed.tracked).map(|path| (path, false));
    let look = |(path, is_new): (&'a [u8], bool)| {
        let meta = std::fs::symlink_metadata(top.join(OsStr::from_bytes(path))).ok()?;
        let made = listed.checked_out.filter(|_| !is_new);
        let is_untouched = made.is_some_and(|made| is_untouched(&meta, made));
        meta.is_file().then_some(File { path, bytes: meta.len(), is_new, is_untouched })
    };
    let mut files: Vec<File<'_>> = new.chain(tracked).filter_map(look).collect();
    // The longest are left out first.
    files.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let read = |file: &&File<'_>| file.bytes <= FILE_LIMIT && !file.is_untouched;
    let mut total =
        files.iter().filter(read).fold(0_u64, |sum, file| sum.saturating_add(file.bytes));
    let (mut new, mut tracked) = (vec![], vec![]);
    for file in &files {
        if read(&file) {
            if total <= TOTAL_LIMIT {
                continue;
            }
            total -= file.bytes;
        } else if file.bytes <= FILE_LIMIT {
            continue;
        }
        let (path, bytes) = (OsStr::from_bytes(file.path).into(), file.bytes);
        let large = Large { path, bytes, is_untouched: file.is_untouched };
        if file.is_new { new.push(large) } else { tracked.push(large) }
    }
    (new, tracked)
}

/// Whether a file has not changed since this time. It compares the change time, which the kernel
/// sets, because anybody can set the modification time.
fn is_untouched(meta: &Metadata, since: SystemTime) -> bool {
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(meta.ctime()), u32::try_from(meta.ctime_nsec()))
    else {
        return false;
    };
    UNIX_EPOCH + Duration::new(seconds, nanos) < since
}

/// Returns the names and sizes of the first files, for a message.
pub(crate) fn names(large: &[Large]) -> String {
    let more = large.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = large
        .iter()
        .take(NAMED)
        .map(|one| format!("{} ({} MiB)", one.path.display(), one.bytes >> 20));
    format!("{}{more}", named.collect::<Vec<_>>().join(", "))
}

/// Returns the hash of an empty file. `like` is any hash of the repository and selects the format.
pub(crate) fn empty_blob(like: &str) -> &'static str {
    if like.len() == 64 {
        "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"
    } else {
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    }
}

/// Returns the hash of the empty tree. `like` is any hash of the repository and selects the format.
pub(crate) fn empty_tree(like: &str) -> &'static str {
    if like.len() == 64 {
        "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
    } else {
        "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    }
}

/// Whether a path is a readable regular file, and no link.
pub(crate) fn is_regular(path: &Path) -> bool {
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    is_file && rustix::fs::access(path, rustix::fs::Access::READ_OK).is_ok()
}

/// Returns an entry for `git update-index -z --index-info` with an empty file at this path.
pub(crate) fn as_empty(one: &Large, blob: &str) -> Vec<u8> {
    let path = one.path.as_os_str().as_bytes();
    [format!("100644 {blob} 0\t").as_bytes(), path, b"\0"].concat()
}

/// Returns the paths, each with a NUL after it.
pub(crate) fn paths<'a>(large: impl IntoIterator<Item = &'a Large>) -> Vec<u8> {
    let ended = |one: &'a Large| [one.path.as_os_str().as_bytes(), b"\0"].concat();
    large.into_iter().flat_map(ended).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;

    fn sparse(top: &Path, name: &[u8], bytes: u64) {
        let path = top.join(OsStr::from_bytes(name));
        std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
    }

    #[test]
    fn files_of_any_name_are_measured_alone_and_together() {
        let dir = tempfile::tempdir().unwrap();
        let names: [&[u8]; 3] = [b" big", b"\xff", b"line\n"];
        names.iter().for_each(|name| sparse(dir.path(), name, 2 * FILE_LIMIT));
        (0..6).for_each(|n| sparse(dir.path(), format!("part{n}").as_bytes(), FILE_LIMIT - n));
        let parts: Vec<u8> = (0..6).flat_map(|n| format!("part{n}\0").into_bytes()).collect();
        let new = [b" big\0\xff\0line\n\0".as_slice(), &parts].concat();
        let mut listed = Listed { new: &new, tracked: b"", checked_out: None };
        let (found, tracked) = too_large(dir.path(), listed);
        let is_one = |one: &&Large| one.bytes > FILE_LIMIT;
        let mut alone: Vec<_> = found.iter().filter(is_one).map(|one| one.path.clone()).collect();
        alone.sort();
        assert_eq!(
            alone,
            [" big".as_ref(), "line\n".as_ref(), OsStr::from_bytes(b"\xff")].map(PathBuf::from)
        );
        let together: Vec<_> =
            found.iter().filter(|one| !is_one(one)).map(|one| &one.path).collect();
        assert_eq!(together, [Path::new("part0"), Path::new("part1")]);
        assert!(tracked.is_empty());
        // Untouched since the checkout, they count only alone.
        let later = SystemTime::now() + Duration::from_secs(60);
        (listed.new, listed.tracked, listed.checked_out) = (b"", &new, Some(later));
        let (found, tracked) = too_large(dir.path(), listed);
        assert!(found.is_empty() && tracked.iter().all(|one| one.is_untouched));
        assert_eq!(tracked.len(), 3);
    }
}
