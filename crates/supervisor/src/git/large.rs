//! Files that are too large for git to read. A sparse file costs an agent nothing and git hours: it reads
//! every byte that the file claims to have. Such files are left out of what is kept, and named.

use std::path::Path;

/// A longer file is left out.
const FILE_LIMIT: u64 = 1 << 30;
/// So many are named.
const NAMED: usize = 5;

/// A file that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Large {
    /// From the top of the working directory.
    pub path: String,
    pub bytes: u64,
}

/// The files that are too large, of a listing whose entries end with NUL.
pub(crate) fn too_large(top: &Path, listed: &str) -> Vec<Large> {
    let size = |path: &str| {
        let meta = std::fs::symlink_metadata(top.join(path)).ok().filter(std::fs::Metadata::is_file)?;
        Some(meta.len()).filter(|bytes| *bytes > FILE_LIMIT)
    };
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    paths.filter_map(|path| Some(Large { bytes: size(path)?, path: path.into() })).collect()
}

/// The names and sizes of some of them, for a message.
pub(crate) fn names(large: &[Large]) -> String {
    let more = large.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = large.iter().take(NAMED).map(|one| format!("{} ({} MiB)", one.path, one.bytes >> 20));
    format!("{}{more}", named.collect::<Vec<_>>().join(", "))
}

/// The name of an empty file's content in a repository whose names are like this one.
pub(crate) fn empty_blob(like: &str) -> &'static str {
    if like.len() == 64 {
        "473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813"
    } else {
        "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    }
}
