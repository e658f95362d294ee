//! Compresses the spool of an agent that has ended.
//!
//! ```text
//!   <segment>.seg ──▶ <segment>.seg.zst.tmp, durable ──▶ read back and compared
//!     ──▶ renamed to <segment>.seg.zst, durable ──▶ <segment>.seg goes
//! ```
//!
//! While there are both, the plain file counts. So a kill at any step costs nothing but the time of
//! the next compression, and a reader finds one of the two at any moment.

use crate::record::{Cursor, SEGMENT_HEADER, compressed_path, segment_path};
use muleteer_process::fault;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::RangeInclusive;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Higher levels take several times as long for a few percent.
const LEVEL: i32 = 9;
/// The longest segment that is compressed and read again, in bytes: it is held in memory.
const LONGEST: u64 = 256 << 20;
/// A file without a whole header has no record.
const COMPRESSED: RangeInclusive<u64> = SEGMENT_HEADER as u64..=LONGEST;

/// Whether no segment of a spool is left to compress. A folder that cannot be read counts as done.
pub fn is_compressed(spool: &Path) -> bool {
    plain_bytes(spool).unwrap_or(0) == 0
}

/// Returns the length of the segments that [`compress`] would compress, in bytes.
///
/// # Errors
/// The folder cannot be read.
pub fn plain_bytes(spool: &Path) -> io::Result<u64> {
    let length = |segment: Cursor| {
        let meta = fs::symlink_metadata(segment_path(spool, segment)).ok()?;
        (meta.is_file() && COMPRESSED.contains(&meta.len())).then_some(meta.len())
    };
    Ok(super::segments(spool)?.into_iter().filter_map(length).sum())
}

/// Compresses the segments of a spool. The caller holds the lock of its shim, so that none is
/// written meanwhile. Returns the number of bytes on the disk that this freed. It blocks.
///
/// # Errors
/// The disk's; a segment that is not read back as it was stays as it is.
pub fn compress(spool: &Path) -> io::Result<u64> {
    let mut freed = 0;
    for segment in super::segments(spool)? {
        let plain = segment_path(spool, segment);
        let length = match fs::symlink_metadata(&plain) {
            Ok(meta) if meta.is_file() => meta.len(),
            Ok(_) => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if !COMPRESSED.contains(&length) {
            continue;
        }
        let text = fs::read(&plain)?;
        let written = write(spool, segment, &text)?;
        fault::point("spool.renamed");
        fs::remove_file(&plain)?;
        fault::point("spool.removed");
        freed += (text.len() as u64).saturating_sub(written);
    }
    Ok(freed)
}

/// Returns the name of a compressed segment that is being written.
pub(super) fn temporary_path(spool: &Path, segment: Cursor) -> PathBuf {
    compressed_path(spool, segment).with_extension("zst.tmp")
}

/// The file that is being written; removed on drop unless renamed. On a full disk it would keep the
/// room that the agents need.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename no file has this name.
        drop(fs::remove_file(&self.0));
    }
}

/// Writes the compressed file durably, and returns its length.
fn write(spool: &Path, segment: Cursor, text: &[u8]) -> io::Result<u64> {
    let temporary = Temporary(temporary_path(spool, segment));
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary.0)?;
    let mut encoder = zstd::Encoder::new(file, LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.set_pledged_src_size(Some(text.len() as u64))?;
    encoder.write_all(text)?;
    let file = encoder.finish()?;
    file.sync_all()?;
    let length = file.metadata()?.len();
    fault::point("spool.written");
    let back = decompress(&temporary.0).map_err(|error| match error {
        DecompressError::Io(error) | DecompressError::Damaged(error) => error,
    })?;
    if back != text {
        return Err(io::Error::other("the compressed output was not read back as it was written"));
    }
    fs::rename(&temporary.0, compressed_path(spool, segment))?;
    File::open(spool)?.sync_all()?;
    Ok(length)
}

/// Why a compressed segment cannot be read.
#[derive(Debug)]
pub(crate) enum DecompressError {
    /// The disk's; a later read may succeed.
    Io(io::Error),
    /// It is no whole segment.
    Damaged(io::Error),
}

impl From<io::Error> for DecompressError {
    /// Only an error of the system has a number: those of the decoder are about the content.
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(_) => Self::Io(error),
            None => Self::Damaged(error),
        }
    }
}

/// Returns the content of a compressed segment.
pub(crate) fn decompress(file: &Path) -> Result<Vec<u8>, DecompressError> {
    let opened = File::open(file).map_err(DecompressError::Io)?;
    let mut text = vec![];
    zstd::Decoder::new(opened)?.take(LONGEST + 1).read_to_end(&mut text)?;
    match COMPRESSED.contains(&(text.len() as u64)) {
        true => Ok(text),
        false => Err(DecompressError::Damaged(io::Error::other("it has an impossible length"))),
    }
}
