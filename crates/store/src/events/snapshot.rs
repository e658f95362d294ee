//! `events.snapshot`: the fold of the log up to one record, beside the log, so that a start reads
//! only what came later.
//!
//! A snapshot is never trusted beyond what the log confirms. Its header names the record at which
//! it was taken, by seq, position and checksum, and the log must have exactly that line there. One
//! that is missing, damaged, of another fold, or not of this log costs a longer start and nothing
//! else: the log is folded from its beginning, and the next snapshot replaces it.
//!
//! Format: one line of JSON (`Header`), then the fleet as JSON. Nothing but the log decides, so
//! there are no migrations.

use crate::atomic::write_atomic;
use crate::error::StoreError;
use crate::events::chain::Chain;
use crate::events::line::{Cursor, checksum_of, decode, read_line};
use crate::events::recent::RecentIds;
use crate::links::open_to_read;
use muleteer_model::dispatch::fleet::{FOLD_VERSION, Fleet};
use muleteer_model::event::Record;
use muleteer_process::fault;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The version of the file's format. The version of its contents is [`FOLD_VERSION`].
const VERSION: u32 = 1;
/// The longest header that is read.
const HEADER_LIMIT: u64 = 4096;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    v: u32,
    fold: u32,
    /// The newest folded record.
    seq: u64,
    /// The position after its line in the log, in bytes.
    offset: u64,
    /// The checksum of its line.
    line: String,
    /// The length and the CRC-32C of the rest of this file.
    bytes: u64,
    crc: String,
}

/// The fields that the header of every version has.
#[derive(Deserialize)]
struct Versions {
    v: u32,
    fold: u32,
}

/// A snapshot that fits its log.
#[derive(Debug)]
pub struct Snapshot {
    pub fleet: Fleet,
    /// The position in the log after the newest folded record.
    pub at: Cursor,
    /// The length of the snapshot in bytes.
    pub bytes: u64,
}

/// Why there is no snapshot to start from.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    #[error("there is none")]
    Absent,
    /// An older or newer muleteer wrote it; the next one is of this version.
    #[error("it is of another version of muleteer")]
    Version,
    #[error("{0}")]
    Damaged(String),
}

impl Unusable {
    /// Whether somebody should know of it: a new log and an upgrade are no faults.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Damaged(_))
    }
}

/// Whether a snapshot should be written, after the log has grown by `grown` bytes since the last
/// one of `bytes` bytes. Snapshots then cost no more writing than the events, and a start reads no
/// more events than snapshot.
pub fn is_due(grown: u64, bytes: u64) -> bool {
    /// Reading less than this again takes a moment only.
    const LEAST: u64 = 4 * 1024 * 1024;
    grown >= bytes.max(LEAST)
}

/// Returns the end of the snapshot's part of the log and the length of the snapshot, both in bytes
/// and as its header says; `None` without a header of this version.
pub fn extent(events: &Path) -> Option<(u64, u64)> {
    let mut reader = BufReader::new(open_to_read(&path_of(events)).ok()?);
    let (header, length) = header(&mut reader).ok()?;
    Some((header.offset, length + header.bytes))
}

/// Returns the file of a log's snapshot.
pub fn path_of(events: &Path) -> PathBuf {
    events.with_extension("snapshot")
}

/// Replaces the snapshot of a log by `fleet`, durably. `fleet` must be the fold of a durable
/// beginning of this log that ends with a whole batch. Returns where the log continues, and the
/// length of the snapshot in bytes. Blocks; a kill leaves the old snapshot or the new one.
///
/// # Errors
/// `E_STORE_IO`, also if the log has no record with the fleet's seq.
pub fn write(events: &Path, fleet: &Fleet) -> Result<(Cursor, u64), StoreError> {
    let (at, line) = find(events, fleet.seq)?;
    let path = path_of(events);
    let encoded = serde_json::to_vec(fleet).map_err(io::Error::from);
    let body = encoded.map_err(StoreError::io(&path, "encode"))?;
    let header = Header {
        v: VERSION,
        fold: FOLD_VERSION,
        seq: at.seq,
        offset: at.offset,
        line,
        bytes: body.len() as u64,
        crc: format!("{:08x}", crc32c::crc32c(&body)),
    };
    let head = serde_json::to_vec(&header).map_err(io::Error::from);
    let mut file = head.map_err(StoreError::io(&path, "encode"))?;
    file.push(b'\n');
    file.extend_from_slice(&body);
    drop(body);
    fault::point("snapshot.before_write");
    write_atomic(&path, &file, 0o600)?;
    fault::point("snapshot.after_write");
    Ok((at, file.len() as u64))
}

/// Reads the snapshot of a log, and checks it against the log. Its dispatches have no traits of
/// their backends ([`Fleet::with_traits`]).
///
/// # Errors
/// When there is none, or it cannot be used; the caller then folds the whole log.
pub fn read(events: &Path) -> Result<Snapshot, Unusable> {
    let path = path_of(events);
    let file = match open_to_read(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::Absent),
        Err(error) => return Err(damaged(error)),
    };
    let length = file.metadata().map_err(damaged)?.len();
    let mut reader = BufReader::new(file);
    let (header, head) = header(&mut reader)?;
    if length != head + header.bytes {
        return Err(damaged(format!("it has {length} bytes, which is not what its header says")));
    }
    // Before the body, which is longer than the line.
    confirm(events, &header)?;
    let mut body = Vec::new();
    reader.read_to_end(&mut body).map_err(damaged)?;
    if format!("{:08x}", crc32c::crc32c(&body)) != header.crc {
        return Err(damaged("its checksum is wrong"));
    }
    let fleet: Fleet = serde_json::from_slice(&body).map_err(damaged)?;
    if fleet.seq != header.seq {
        return Err(damaged("its fleet ends at another record than its header says"));
    }
    let at = Cursor { offset: header.offset, seq: header.seq };
    Ok(Snapshot { fleet: fleet.at_hand(), at, bytes: length })
}

/// Returns the header and its length in bytes.
fn header(reader: &mut impl BufRead) -> Result<(Header, u64), Unusable> {
    let mut line = String::new();
    reader.take(HEADER_LIMIT).read_line(&mut line).map_err(damaged)?;
    // Other versions may have other fields.
    let versions: Versions = serde_json::from_str(&line).map_err(damaged)?;
    if (versions.v, versions.fold) != (VERSION, FOLD_VERSION) {
        return Err(Unusable::Version);
    }
    let header = serde_json::from_str(&line).map_err(damaged)?;
    Ok((header, line.len() as u64))
}

fn damaged(why: impl ToString) -> Unusable {
    Unusable::Damaged(why.to_string())
}

/// Checks that the log has the line that the header names, at its position.
fn confirm(events: &Path, header: &Header) -> Result<(), Unusable> {
    let found = Chain::open(events)
        .and_then(|mut chain| chain.line_before(header.offset))
        .map_err(|error| damaged(format!("the log cannot be read: {error}")))?;
    let fits = found.as_deref().is_some_and(|line| {
        checksum_of(line) == Some(header.line.as_str())
            && decode(line).is_ok_and(|record| record.seq == header.seq && !record.entry.more)
    });
    if fits {
        Ok(())
    } else {
        Err(damaged("the log does not have the record at which it was taken"))
    }
}

/// Returns the position after the line of the record `seq`, and the checksum of that line.
fn find(events: &Path, seq: u64) -> Result<(Cursor, String), StoreError> {
    let mut chain = Chain::open(events)?;
    let begin = chain.before(seq)?;
    let mut found = None;
    lines(&mut chain, begin.offset, |end, line| {
        let record = decode(line).map_err(|fault| io::Error::other(format!("{fault:?}")))?;
        if record.seq == seq
            && let Some(line) = checksum_of(line)
        {
            found = Some((Cursor { offset: end, seq }, line.to_owned()));
        }
        Ok(record.seq < seq)
    })?;
    let missing = || StoreError::io(events, "find the newest folded record in");
    found.ok_or_else(|| missing()(io::ErrorKind::NotFound.into()))
}

/// Passes on each whole line from `offset` on, where one begins, with the position after it, until
/// `each` returns false.
fn lines(
    chain: &mut Chain,
    offset: u64,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<bool>,
) -> Result<(), StoreError> {
    let (mut position, mut buffer) = (offset, vec![]);
    while let Some(part) = chain.part_at(position)? {
        let fail = |error| StoreError::io(&part.file, "read")(error);
        let mut reader = BufReader::with_capacity(256 * 1024, part.source);
        reader.seek(SeekFrom::Start(position - part.start.offset)).map_err(fail)?;
        loop {
            let read = read_line(&mut reader, &mut buffer).map_err(fail)?;
            if !read.newline {
                break;
            }
            position += read.bytes;
            if !each(position, &buffer).map_err(fail)? {
                return Ok(());
            }
        }
        if part.closed.is_none_or(|name| position < name.end) {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the records before `at`, in order: at most the last `bytes` bytes of them, and none
/// before the record `seq`. Returns none at all if one of them is damaged: a journal that needs
/// them reads the log, and gets the error.
///
/// # Errors
/// `E_STORE_IO`.
pub fn records_before(
    events: &Path,
    at: Cursor,
    seq: u64,
    bytes: u64,
) -> Result<Vec<Record>, StoreError> {
    let (mut records, mut is_whole) = (vec![], true);
    lines_before(events, at, seq, bytes, |line| match decode(line) {
        Ok(record) if record.seq >= seq => records.push(record),
        Ok(_) => {}
        Err(_) => is_whole = false,
    })?;
    Ok(if is_whole { records } else { vec![] })
}

/// Returns the ids of the newest records before `at`, as many as a fold would remember.
///
/// # Errors
/// `E_STORE_IO`.
pub fn ids_before(events: &Path, at: Cursor) -> Result<RecentIds, StoreError> {
    #[derive(Deserialize)]
    struct Id<'a> {
        seq: u64,
        #[serde(borrow)]
        id: std::borrow::Cow<'a, str>,
    }
    let mut ids = RecentIds::default();
    let from = at.seq.saturating_sub(RecentIds::DEFAULT as u64);
    lines_before(events, at, from, u64::MAX, |line| {
        if let Ok(Id { seq, id }) = serde_json::from_slice(line) {
            ids.insert(&id, seq);
        }
    })?;
    Ok(ids)
}

fn lines_before(
    events: &Path,
    at: Cursor,
    seq: u64,
    bytes: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<(), StoreError> {
    let mut chain = Chain::open(events)?;
    let least = at.offset.saturating_sub(bytes);
    let mut begin = chain.before(seq)?.offset;
    if begin < least {
        // Whole lines only.
        begin = chain.line_start(least)?;
    }
    if begin >= at.offset {
        return Ok(());
    }
    lines(&mut chain, begin, |end, line| {
        each(line);
        Ok(end < at.offset)
    })
}
