//! The files of a log as one: closed segments, and `events.jsonl` after them.
//!
//! ```text
//!   events/000000000001-000000034567.000000000000000-000000008388999.jsonl.zst
//!   events/000000034568-000000069001.000000008388999-000000016777301.jsonl
//!   events.jsonl                                       from seq 69002, at byte 16777301
//! ```
//!
//! Positions count the bytes of the whole log, so that they stay the same when a file is closed,
//! compressed or split. The names of the segments must join without a gap; a missing or damaged
//! segment is a named error. Two files may hold the same records after a kill: then the longer one
//! counts, and the uncompressed one of two equal ones.
//!
//! A log whose first record has seq 1 is in one file, and nobody looks for segments of it. The
//! oldest segments may have been removed ([`remnant`]).

mod compress;
pub(crate) mod name;
pub(crate) mod remnant;
mod removal;
mod rotate;
mod source;

pub use compress::compress_next;
pub(crate) use name::Name;
pub use removal::{Removable, Removed, removable, remove_through, removed_through};
pub(crate) use rotate::{Failed, finish, rotate};
pub(crate) use source::Source;

use crate::error::StoreError;
use crate::events::back::Backwards;
use crate::events::line::{Cursor, MAX_LINE, decode, read_line};
use crate::links::open_to_read;
use muleteer_model::event::Record;
use name::Form;
use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How often the files are listed again while another process rotates, compresses or splits.
const TRIES: usize = 5;
/// A shorter distance is read and not searched.
const NEAR: u64 = 64 * 1024;

#[derive(Debug)]
struct Segment {
    name: Name,
    form: Form,
    /// The compressed form of the same records is there as well.
    is_double: bool,
}

/// The files of a log as they were at one moment.
#[derive(Debug)]
pub(crate) struct Chain {
    path: PathBuf,
    segments: Vec<Segment>,
    /// Held open, so that its identity cannot pass to another file.
    active: Option<Arc<File>>,
    /// Where `events.jsonl` begins.
    begin: Cursor,
    /// Where the first record is that was not removed.
    base: Cursor,
    /// The number of removed records that are still there.
    kept: u64,
}

/// One file of the chain.
#[derive(Debug)]
pub(crate) struct Part {
    pub file: PathBuf,
    pub start: Cursor,
    /// The name of a segment; `None` for `events.jsonl`, which may grow.
    pub closed: Option<Name>,
    /// It has what is left of the removed beginning: the seqs have gaps.
    pub is_sparse: bool,
    pub source: Source,
}

/// Returns the folder of a log's segments.
pub(crate) fn folder(events: &Path) -> PathBuf {
    events.with_extension("")
}

/// Returns the bytes of the segments that are not compressed.
///
/// # Errors
/// `E_STORE_IO`.
pub fn plain_segments(events: &Path) -> Result<u64, StoreError> {
    let plain = list(events)?.into_iter().filter(|segment| segment.form == Form::Plain);
    Ok(plain.map(|segment| segment.name.end - segment.name.begin).sum())
}

/// Returns the bytes of all files of a log, as they are.
///
/// # Errors
/// `E_STORE_IO`.
pub fn stored_bytes(events: &Path) -> Result<u64, StoreError> {
    let length = |path: &Path| match fs::metadata(path) {
        Ok(meta) => Ok(meta.len()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(StoreError::io(path, "inspect")(error)),
    };
    let mut sum = length(events)?;
    for segment in list(events)? {
        sum += length(&folder(events).join(segment.name.of(segment.form)))?;
    }
    Ok(sum)
}

impl Chain {
    /// Finds the files of a log. It need not exist.
    ///
    /// # Errors
    /// `E_EVENTS_GAP` if segments are missing or overlap; `E_STORE_IO`.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        for more in (0..TRIES).rev() {
            match Self::attempt(path) {
                Ok(Some(chain)) => return Ok(chain),
                Ok(None) => {}
                // While a segment is replaced by its compressed form, a listing may show neither.
                Err(StoreError::SegmentMissing { .. }) if more > 0 => {}
                Err(error) => return Err(error),
            }
        }
        let why = io::Error::other("it was replaced again and again");
        Err(StoreError::io(path, "open")(why))
    }

    /// Returns `None` if the log was rotated meanwhile.
    fn attempt(path: &Path) -> Result<Option<Self>, StoreError> {
        let active = open(path)?.map(Arc::new);
        let first = match &active {
            Some(file) => first_of(Source::file(file.clone()))
                .map_err(StoreError::io(path, "read"))?
                .map(|record| record.seq),
            None => None,
        };
        let removed = if first == Some(1) { None } else { remnant::header(path)? };
        let base = removed.as_ref().map(remnant::Header::after).unwrap_or_default();
        let mut segments = if first == Some(1) { vec![] } else { list(path)? };
        let mut taken = Ok(vec![]);
        if let (Some(first), Some(file)) = (first, &active) {
            let length = file.metadata().map_err(StoreError::io(path, "inspect"))?.len();
            taken = take_second_names(path, &mut segments, first, length, base);
        }
        let joined = taken.and_then(|_| join(path, segments, first, base));
        let chain = Self {
            path: path.into(),
            segments: vec![],
            active,
            begin: base,
            base,
            kept: removed.as_ref().map_or(0, |removed| removed.records),
        };
        if !chain.is_current()? {
            return Ok(None);
        }
        let mut segments = joined?;
        let begin = segments.last().map_or(base, |last| last.name.after());
        if let Some(removed) = removed.filter(|removed| removed.bytes > 0) {
            let name = removed.name();
            segments.insert(0, Segment { name, form: Form::Remnant, is_double: false });
        }
        Ok(Some(Self { segments, begin, ..chain }))
    }

    /// Whether `events.jsonl` is still the file that was found.
    pub(crate) fn is_current(&self) -> Result<bool, StoreError> {
        let fail = |error| StoreError::io(&self.path, "inspect")(error);
        let identity = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let now = match fs::metadata(&self.path) {
            Ok(meta) => Some(identity(meta)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        let found = self.active.as_ref().map(|file| file.metadata()).transpose().map_err(fail)?;
        Ok(now == found.map(identity))
    }

    /// Finds the files again if the log was rotated.
    pub(crate) fn refresh(&mut self) -> Result<(), StoreError> {
        if !self.is_current()? {
            *self = Self::open(&self.path)?;
        }
        Ok(())
    }

    /// Whether there is an `events.jsonl`.
    pub(crate) fn has_active(&self) -> bool {
        self.active.is_some()
    }

    /// Returns where `events.jsonl` begins: the end of the last segment.
    pub(crate) fn begin(&self) -> Cursor {
        self.begin
    }

    /// Returns the position before the first record that is there.
    pub(crate) fn start(&self) -> Cursor {
        self.segments.first().map(|first| first.name.start()).unwrap_or(self.begin)
    }

    /// Returns the position after the last record that was removed, or is only in the remnant; the
    /// beginning if none was.
    pub(crate) fn base(&self) -> Cursor {
        self.base
    }

    /// Returns how many records there are up to the record `seq`, which is not removed.
    pub(crate) fn records(&self, seq: u64) -> u64 {
        self.kept + seq.saturating_sub(self.base.seq)
    }

    /// Whether the record before the position is the one that the position names. Positions in the
    /// removed beginning mean nothing any more.
    pub(crate) fn has(&mut self, at: Cursor) -> Result<bool, StoreError> {
        if at.seq >= self.base.seq {
            return Ok(true);
        }
        let line = self.line_before(at.offset)?;
        let record = line.and_then(|line| decode(&line).ok());
        Ok(record.is_some_and(|record| record.seq == at.seq))
    }

    /// Returns the length of the whole log in bytes.
    pub(crate) fn length(&self) -> Result<u64, StoreError> {
        let fail = StoreError::io(&self.path, "inspect");
        let active = self.active.as_ref().map(|file| file.metadata()).transpose().map_err(fail)?;
        Ok(self.begin.offset + active.map_or(0, |meta| meta.len()))
    }

    /// Opens the file that holds the position; `None` if that is `events.jsonl` and it is missing.
    ///
    /// # Errors
    /// `E_EVENTS_CORRUPT` for a damaged segment, `E_STORE_IO`.
    pub(crate) fn part_at(&mut self, offset: u64) -> Result<Option<Part>, StoreError> {
        for _ in 0..TRIES {
            match self.find(offset) {
                // It was compressed or split meanwhile.
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    *self = Self::open(&self.path)?;
                }
                found => return found,
            }
        }
        self.find(offset)
    }

    /// Works like [`Self::part_at`], with the files as they were found.
    pub(crate) fn find(&self, offset: u64) -> Result<Option<Part>, StoreError> {
        if offset < self.start().offset {
            return Ok(None);
        }
        if offset >= self.begin.offset {
            return Ok(self.active_part());
        }
        let at = self.segments.partition_point(|segment| segment.name.end <= offset);
        self.segments.get(at).map(|segment| self.closed_part(segment)).transpose()
    }

    fn active_part(&self) -> Option<Part> {
        let source = Source::file(self.active.clone()?);
        let file = self.path.clone();
        Some(Part { file, start: self.begin, closed: None, is_sparse: false, source })
    }

    fn closed_part(&self, segment: &Segment) -> Result<Part, StoreError> {
        let open = |form| {
            let file = folder(&self.path).join(segment.name.of(form));
            let source = Source::open(&file, segment.name, form)?;
            let (start, closed) = (segment.name.start(), Some(segment.name));
            Ok(Part { file, start, closed, is_sparse: form == Form::Remnant, source })
        };
        match open(segment.form) {
            Err(StoreError::Segment { .. }) if segment.is_double => open(Form::Compressed),
            other => other,
        }
    }

    /// Returns a position shortly before the record with `seq`, found by search. It is before any
    /// unreadable line that the search met, so that a reader reports that line.
    pub(crate) fn before(&mut self, seq: u64) -> Result<Cursor, StoreError> {
        let at = self.segments.partition_point(|segment| segment.name.last < seq);
        let offset = self.segments.get(at).map_or(self.begin.offset, |found| found.name.begin);
        self.search_in(offset, |record| record.seq <= seq)
    }

    /// Returns a position shortly before the first record for which `is_early` is false, which must
    /// be so for all later records too.
    pub(crate) fn search(
        &mut self,
        is_early: impl Fn(&Record) -> bool,
    ) -> Result<Cursor, StoreError> {
        let is_early_file = |first: io::Result<Option<Record>>, path: &Path| {
            let first = first.map_err(StoreError::io(path, "read"))?;
            Ok::<_, StoreError>(first.is_some_and(|first| is_early(&first)))
        };
        if let Some(active) = self.active_part()
            && is_early_file(first_of(active.source), &self.path)?
        {
            return self.search_in(self.begin.offset, is_early);
        }
        let mut found = self.start().offset;
        let (mut low, mut high) = (0, self.segments.len());
        while low < high {
            let middle = low.midpoint(high);
            let Segment { name, form, .. } = &self.segments[middle];
            let file = folder(&self.path).join(name.of(*form));
            let first = match source::beginning(&file, *form) {
                Ok(read) => first_of(read),
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    // It was compressed or split meanwhile.
                    *self = Self::open(&self.path)?;
                    (low, high) = (0, self.segments.len());
                    continue;
                }
                Err(error) => return Err(error),
            };
            if is_early_file(first, &file)? {
                (found, low) = (name.begin, middle + 1);
            } else {
                high = middle;
            }
        }
        self.search_in(found, is_early)
    }

    fn search_in(
        &mut self,
        offset: u64,
        is_early: impl Fn(&Record) -> bool,
    ) -> Result<Cursor, StoreError> {
        let Some(part) = self.part_at(offset)? else { return Ok(self.begin) };
        let found = search(part.source, is_early).map_err(StoreError::io(&part.file, "read"))?;
        Ok(match found {
            Cursor { offset: 0, .. } => part.start,
            Cursor { offset, seq } => Cursor { offset: part.start.offset + offset, seq },
        })
    }

    /// Returns the seq of the newest record with a complete batch.
    pub(crate) fn newest_seq(&self) -> Result<u64, StoreError> {
        let Some(active) = self.active_part() else { return Ok(self.begin.seq) };
        let fail = |error| StoreError::io(&self.path, "read")(error);
        let mut lines = Backwards::new(active.source).map_err(fail)?;
        while let Some(line) = lines.next().map_err(fail)? {
            if let Some(record) = line.bytes.and_then(|bytes| decode(&bytes).ok())
                && !record.entry.more
            {
                return Ok(record.seq);
            }
        }
        Ok(self.begin.seq)
    }

    /// Returns the position after the last newline.
    pub(crate) fn end(&self) -> Result<u64, StoreError> {
        let Some(active) = self.active_part() else { return Ok(self.begin.offset) };
        let last = Backwards::new(active.source).and_then(|mut lines| lines.next());
        let last = last.map_err(StoreError::io(&self.path, "read"))?;
        Ok(self.begin.offset + last.map_or(0, |line| line.end))
    }

    /// Returns the position at which the first line begins that begins at `offset` or later.
    pub(crate) fn line_start(&mut self, offset: u64) -> Result<u64, StoreError> {
        let Some(inside) = offset.checked_sub(1) else { return Ok(0) };
        let Some(mut part) = self.part_at(inside)? else { return Ok(offset) };
        let fail = |error| StoreError::io(&part.file, "read")(error);
        part.source.seek(SeekFrom::Start(inside - part.start.offset)).map_err(fail)?;
        let mut buffer = vec![];
        let read = read_line(&mut BufReader::new(part.source), &mut buffer).map_err(fail)?;
        Ok(inside + read.bytes)
    }

    /// Returns the line that ends right before `offset`, without its newline.
    pub(crate) fn line_before(&mut self, offset: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(inside) = offset.checked_sub(1) else { return Ok(None) };
        let Some(part) = self.part_at(inside)? else { return Ok(None) };
        let local = offset - part.start.offset;
        let line = Backwards::ending_at(part.source, local).next();
        let line = line.map_err(StoreError::io(&part.file, "read"))?;
        Ok(line.filter(|line| line.end == local).and_then(|line| line.bytes))
    }
}

/// Returns the length of a whole log in bytes, its segments included; 0 if it cannot be read.
pub fn length(events: &Path) -> u64 {
    Chain::open(events).and_then(|chain| chain.length()).unwrap_or(0)
}

/// Opens the file; `None` if it does not exist.
fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match open_to_read(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(path, "open")(error)),
    }
}

/// Returns the first record of a file; `None` if its first line is not whole.
fn first_of(source: impl Read) -> io::Result<Option<Record>> {
    let mut buffer = vec![];
    let line = source.take(MAX_LINE as u64);
    let read = read_line(&mut BufReader::with_capacity(4096, line), &mut buffer)?;
    Ok((read.newline && read.whole).then(|| decode(&buffer).ok()).flatten())
}

/// Returns all segments in the folder, in no order. Files with other names are not ours.
fn list(events: &Path) -> Result<Vec<Segment>, StoreError> {
    let folder = folder(events);
    let fail = |error| StoreError::io(&folder, "list")(error);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(fail(error)),
    };
    let mut found = vec![];
    for entry in entries {
        if let Some((name, form)) = Name::read(&entry.map_err(fail)?.file_name()) {
            found.push(Segment { name, form, is_double: false });
        }
    }
    Ok(found)
}

/// Takes out what also is in `events.jsonl`, whose first record has the seq `first`: the file that
/// is being closed has two names for a moment. After a power failure it may have its first name
/// again although its second one, or pieces of it, were compressed.
fn take_second_names(
    events: &Path,
    segments: &mut Vec<Segment>,
    first: u64,
    length: u64,
    base: Cursor,
) -> Result<Vec<Segment>, StoreError> {
    let names = || segments.iter().map(|segment| segment.name);
    let begin = names().find(|name| name.first == first).map(|name| name.begin);
    let earlier = || names().filter(|name| name.last < first).map(|name| name.end).max();
    let end = begin.or_else(earlier).unwrap_or(base.offset) + length;
    let is_longer = |name: Name| name.first >= first && name.end > end;
    if let Some(Segment { name, form, .. }) = segments.iter().find(|found| is_longer(found.name)) {
        let file = folder(events).join(name.of(*form));
        let why = "events.jsonl begins with the same event, or before it, and is shorter".into();
        return Err(StoreError::Segment { file, why });
    }
    Ok(segments.extract_if(.., |segment| segment.name.first >= first).collect())
}

/// Checks that the segments and `events.jsonl`, whose first record has the seq `first`, join to
/// what follows `base`.
fn join(
    events: &Path,
    mut segments: Vec<Segment>,
    first: Option<u64>,
    base: Cursor,
) -> Result<Vec<Segment>, StoreError> {
    let missing = |wanted: u64, found: u64| StoreError::SegmentMissing {
        file: folder(events),
        wanted,
        found,
    };
    segments.sort_by_key(|Segment { name, form, .. }| (name.first, Reverse(name.last), *form));
    let mut joined: Vec<Segment> = vec![];
    let mut end = base;
    for segment in segments {
        let Name { first, last, begin, .. } = segment.name;
        if last <= end.seq {
            // A leftover: the same records, or a part of them.
            if let Some(same) = joined.last_mut().filter(|same| same.name == segment.name) {
                same.is_double = true;
            }
            continue;
        }
        if first != end.seq + 1 || begin != end.offset {
            return Err(missing(end.seq + 1, first));
        }
        end = segment.name.after();
        joined.push(segment);
    }
    match first {
        Some(first) if first <= base.seq => {
            let file = remnant::path_of(events);
            let why = format!("events.jsonl begins with seq {first}, which was removed");
            Err(StoreError::Segment { file, why })
        }
        Some(first) if first != end.seq + 1 => Err(missing(end.seq + 1, first)),
        _ => Ok(joined),
    }
}

/// Searches one file; positions count from its begin.
fn search(mut source: Source, is_early: impl Fn(&Record) -> bool) -> io::Result<Cursor> {
    let (mut low, mut high) = (Cursor::default(), source.length()?);
    let mut reader = BufReader::new(source);
    let mut buffer = vec![];
    while high.saturating_sub(low.offset) > NEAR {
        let middle = low.offset + (high - low.offset) / 2;
        reader.seek(SeekFrom::Start(middle))?;
        let offset = middle + read_line(&mut reader, &mut buffer)?.bytes;
        let read = read_line(&mut reader, &mut buffer)?;
        let record = if read.newline && read.whole { decode(&buffer).ok() } else { None };
        match record {
            Some(record) if is_early(&record) => {
                low = Cursor { offset, seq: record.seq.saturating_sub(1) }
            }
            _ => high = middle,
        }
    }
    Ok(low)
}
