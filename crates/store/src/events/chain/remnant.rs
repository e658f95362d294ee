//! `events/begin.jsonl.zst`: what is left of the removed beginning of a log.
//!
//! ```text
//!   events/begin.jsonl.zst     the records up to seq 69001 that are still needed
//!   events/000000069002-…      the first segment that is there as a whole
//! ```
//!
//! Format, compressed: one line of JSON ([`Header`]), then lines as they were in the log. They are
//! a part of the removed lines, and shorter: their place in the whole log is right before the first
//! segment, so that all later positions stay as they are. Their seqs have gaps, and `more` means
//! nothing in them.
//!
//! The file is replaced by a rename, which is the removal: segments that it covers do not count
//! any more, and the next opening for writing removes those that are left.

use crate::atomic::{Temporary, sync_dir};
use crate::error::StoreError;
use crate::events::chain::name::{Form, Name};
use crate::events::chain::{folder, list};
use crate::events::line::Cursor;
use crate::links::open_to_read;
use muleteer_process::fault;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The version of the file's format.
const VERSION: u32 = 1;
/// The longest header that is read.
const HEADER_LIMIT: u64 = 4096;
const LEVEL: i32 = 9;
/// The name of the file.
pub(crate) const FILE: &str = "begin.jsonl.zst";

/// The first line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    v: u32,
    /// The seq of the last record that was removed, or is in this file.
    pub through: u64,
    /// Where the next record begins in the whole log, in bytes.
    pub end: u64,
    /// The number, the length in bytes and the CRC-32C of the lines of this file.
    pub records: u64,
    pub bytes: u64,
    crc: String,
    /// The number of all records that this and earlier removals took out.
    pub removed: u64,
    /// The SHA-256 of the text that the newest removal read, after the one of the removal before.
    pub sha256: String,
}

/// The fields that the header of every version has.
#[derive(Deserialize)]
struct Versions {
    v: u32,
}

impl Header {
    /// Returns the place of the lines in the whole log.
    pub(crate) fn name(&self) -> Name {
        let begin = self.end.saturating_sub(self.bytes);
        Name { first: 1, last: self.through, begin, end: self.end }
    }

    /// Returns the position after the last removed record.
    pub(crate) fn after(&self) -> Cursor {
        Cursor { offset: self.end, seq: self.through }
    }
}

/// Returns the file of a log.
pub(crate) fn path_of(events: &Path) -> PathBuf {
    folder(events).join(FILE)
}

/// Returns the header of a log whose beginning was removed.
///
/// # Errors
/// `E_EVENTS_CORRUPT` if the file is damaged or of another version; `E_STORE_IO`.
pub(crate) fn header(events: &Path) -> Result<Option<Header>, StoreError> {
    let path = path_of(events);
    let file = match open_to_read(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(&path, "open")(error)),
    };
    let damaged = |error: io::Error| damaged(&path, error);
    let mut reader = BufReader::new(zstd::Decoder::new(file).map_err(damaged)?);
    read_header(&mut reader).map(Some).map_err(damaged)
}

fn damaged(path: &Path, why: impl ToString) -> StoreError {
    StoreError::Segment { file: path.into(), why: why.to_string() }
}

fn read_header(reader: &mut impl BufRead) -> io::Result<Header> {
    let mut line = String::new();
    reader.take(HEADER_LIMIT).read_line(&mut line)?;
    let versions: Versions = serde_json::from_str(&line)?;
    if versions.v != VERSION {
        let found = versions.v;
        let why = format!("it has version {found}, but this muleteer knows {VERSION}");
        return Err(io::Error::other(why));
    }
    let header: Header = serde_json::from_str(&line)?;
    let is_sane = 0 < header.through && header.bytes <= header.end;
    is_sane.then_some(header).ok_or_else(|| io::Error::other("its header makes no sense"))
}

/// Returns the lines, and checks them.
pub(super) fn text(file: &File) -> io::Result<Vec<u8>> {
    let mut reader = BufReader::new(zstd::Decoder::new(file)?);
    let header = read_header(&mut reader)?;
    let mut text = vec![];
    reader.take(header.bytes.saturating_add(1)).read_to_end(&mut text)?;
    if text.len() as u64 != header.bytes {
        return Err(io::Error::other("it has another length than its header says"));
    }
    if crc_of(&text) != header.crc {
        return Err(io::Error::other("its checksum is wrong"));
    }
    text.shrink_to_fit();
    Ok(text)
}

fn crc_of(text: &[u8]) -> String {
    format!("{:08x}", crc32c::crc32c(text))
}

/// Returns the lines without the header.
pub(super) fn beginning(path: &Path, file: File) -> Result<Box<dyn Read>, StoreError> {
    let read = || {
        let mut reader = BufReader::new(zstd::Decoder::new(file)?);
        read_header(&mut reader)?;
        Ok(reader)
    };
    Ok(Box::new(read().map_err(|error: io::Error| damaged(path, error))?))
}

/// The content of the file.
#[derive(Debug)]
pub(crate) struct Remnant {
    /// The position after the last removed record.
    pub after: Cursor,
    pub lines: Vec<u8>,
    pub records: u64,
    pub removed: u64,
    pub sha256: String,
}

/// Replaces the file, durably: the removal. A kill leaves the old file or the new one.
pub(crate) fn write(events: &Path, remnant: &Remnant) -> Result<(), StoreError> {
    let path = path_of(events);
    let fail = |doing| StoreError::io(&path, doing);
    let header = Header {
        v: VERSION,
        through: remnant.after.seq,
        end: remnant.after.offset,
        records: remnant.records,
        bytes: remnant.lines.len() as u64,
        crc: crc_of(&remnant.lines),
        removed: remnant.removed,
        sha256: remnant.sha256.clone(),
    };
    let mut head = serde_json::to_vec(&header).map_err(io::Error::from).map_err(fail("encode"))?;
    head.push(b'\n');
    let temporary = Temporary::beside(&path).map_err(fail("write"))?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&temporary.0);
    let mut encoder =
        file.and_then(|file| zstd::Encoder::new(file, LEVEL)).map_err(fail("write"))?;
    let written = encoder
        .include_checksum(true)
        .and_then(|()| encoder.write_all(&head))
        .and_then(|()| encoder.write_all(&remnant.lines))
        .and_then(|()| encoder.finish())
        .and_then(|file| file.sync_all());
    written.map_err(fail("write"))?;
    fault::point("retention.written");
    let back = File::open(&temporary.0).and_then(|file| text(&file)).map_err(fail("read back"))?;
    if back != remnant.lines {
        return Err(fail("compress")(io::Error::other("it was not read back as it was written")));
    }
    temporary.rename(&path)?;
    sync_dir(&folder(events))?;
    fault::point("retention.renamed");
    Ok(())
}

/// Checks that a log that begins with its first record has no remnant: its segments would be
/// removed.
pub(crate) fn check_absent(events: &Path) -> Result<(), StoreError> {
    match header(events)? {
        None => Ok(()),
        Some(_) => {
            let why = "events.jsonl begins with seq 1, but this file says that it was removed";
            Err(damaged(&path_of(events), why))
        }
    }
}

/// Removes the segments that the remnant covers. Only the writer of the log may call this.
pub(crate) fn finish(events: &Path) -> Result<(), StoreError> {
    let Some(header) = header(events)? else { return Ok(()) };
    let folder = folder(events);
    let mut removed = false;
    let mut gone = list(events)?;
    gone.retain(|segment| segment.name.last <= header.through);
    // The oldest first, so that those that a kill leaves join.
    gone.sort_by_key(|segment| (segment.name.first, segment.form == Form::Plain));
    for segment in gone {
        let path = folder.join(segment.name.of(segment.form));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io(&path, "remove")(error));
            }
            _ => removed = true,
        }
        fault::point("retention.removed_one");
    }
    if removed { sync_dir(&folder) } else { Ok(()) }
}
