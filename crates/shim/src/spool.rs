//! An agent's output on disk: only its shim writes it, and the daemon reads it by cursor.
//!
//! Data passed to `write(2)` survives any kill. A power cut loses the tail, but then no agent is
//! alive that could contradict. Every shim opens a new epoch and never appends to an older one.

mod compress;
mod reader;
mod writer;

pub use crate::record::{Cursor, Stream};
pub use compress::{compress, is_compressed, plain_bytes};
pub use reader::{Batch, ReadError, Reader, Record, State};
pub use writer::{Room, Writer};

use crate::record::{compressed_path, parse_segment_name, segment_path};
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

/// Returns the directory with an agent's segments: its own, or the folder `spool` in it, which
/// earlier versions made.
pub fn dir_of(agent_dir: &Path) -> PathBuf {
    let folder = agent_dir.join("spool");
    if folder.is_dir() { folder } else { agent_dir.to_owned() }
}

/// Returns the segments in a spool directory, in the order of their records.
pub fn segments(spool: &Path) -> io::Result<Vec<Cursor>> {
    let mut found: Vec<Cursor> = std::fs::read_dir(spool)?
        .filter_map(|entry| parse_segment_name(entry.ok()?.file_name().to_str()?))
        .collect();
    found.sort_unstable();
    // A kill may leave a segment in both forms.
    found.dedup();
    Ok(found)
}

/// Returns the metadata of a segment's file: of the compressed one if there is no other.
pub(crate) fn inspect(spool: &Path, segment: Cursor) -> io::Result<Metadata> {
    match std::fs::metadata(segment_path(spool, segment)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::metadata(compressed_path(spool, segment))
        }
        found => found,
    }
}

/// Removes a segment in all its forms.
pub(crate) fn remove(spool: &Path, segment: Cursor) -> io::Result<()> {
    // Left by a kill or an error of an earlier compression.
    drop(std::fs::remove_file(compress::temporary_path(spool, segment)));
    let mut removed = false;
    // The plain file counts while there are both, so it goes last.
    for path in [compressed_path(spool, segment), segment_path(spool, segment)] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => {
                outcome?;
                removed = true;
            }
        }
    }
    if removed { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Returns the newest epoch of a spool; 0 if it has none, or if there is no spool.
pub fn newest_epoch(spool: &Path) -> io::Result<u32> {
    match segments(spool) {
        Ok(found) => Ok(found.last().map_or(0, |cursor| cursor.epoch)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Deletes the oldest segments of a spool without a writer, as long as at least `retain_bytes` are
/// left after them. The newest segment always stays.
pub fn trim(spool: &Path, retain_bytes: u64) -> io::Result<()> {
    let mut sizes = Vec::new();
    for segment in segments(spool)? {
        sizes.push((inspect(spool, segment)?.len(), segment));
    }
    let mut kept: u64 = sizes.iter().map(|(size, _)| size).sum();
    sizes.pop();
    for (size, segment) in sizes {
        if kept - size < retain_bytes {
            return Ok(());
        }
        remove(spool, segment)?;
        kept -= size;
    }
    Ok(())
}
