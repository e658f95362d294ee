//! Reads events line by line, also while a writer appends: `muleteer events`, with or without `-f`.
//!
//! A line is returned once it and its batch are complete. An incomplete line counts as not yet
//! there: a later call reads it again from its beginning, and never joins it to bytes that were cut
//! meanwhile. Events that this version does not know come as
//! [`Event::Unknown`](muleteer_model::event::Event::Unknown), for the viewer to skip.

use crate::error::StoreError;
use crate::events::{Backwards, Fault, decode, read_line, read_mark};
use jiff::Timestamp;
use muleteer_model::event::{Record, VERSION};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The position at which reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Beginning,
    /// The first record with this seq or a higher one.
    Seq(u64),
    /// The first record with this time or a later one. In a long log it is searched for, so that
    /// records from before a clock was set back may be left out.
    Time(Timestamp),
    /// After everything that exists when the reader is created.
    End,
    /// The position of another reader ([`Reader::cursor`]).
    Cursor(Cursor),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    pub offset: u64,
    /// The seq of the last returned record; 0 before the first.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The line as in the file, without the newline.
    pub raw: String,
    pub record: Record,
}

/// Returns the seq of the newest record with a complete batch, durable or not; 0 if there is none.
/// It reads only the end of the file, so it does not notice earlier damage.
///
/// # Errors
/// `E_STORE_IO`.
pub fn newest_seq(path: &Path) -> Result<u64, StoreError> {
    let Some(file) = open(path)? else { return Ok(0) };
    let fail = |error| StoreError::io(path, "read")(error);
    let mut lines = Backwards::new(&file).map_err(fail)?;
    while let Some(line) = lines.next().map_err(fail)? {
        if let Some(record) = line.bytes.and_then(|bytes| decode(&bytes).ok())
            && !record.entry.more
        {
            return Ok(record.seq);
        }
    }
    Ok(0)
}

/// Opens the file; `None` if it does not exist.
fn open(path: &Path) -> Result<Option<File>, StoreError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(path, "open")(error)),
    }
}

/// A shorter distance is read and not searched.
const NEAR: u64 = 64 * 1024;

/// Returns a position shortly before the record with `seq`, found by binary search. It is before
/// any unreadable line that the search met, so that the reader reports that line.
pub(crate) fn before(file: &File, seq: u64) -> io::Result<Cursor> {
    search(file, |record| record.seq <= seq)
}

/// Returns a position shortly before the first record for which `is_early` is false, which must be
/// so for all later records too.
fn search(file: &File, is_early: impl Fn(&Record) -> bool) -> io::Result<Cursor> {
    let mut reader = BufReader::new(file);
    let mut buffer = vec![];
    let (mut low, mut high) = (Cursor::default(), file.metadata()?.size());
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

#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// The position of the next line to read. It is ahead of `returned` by the batch that is being
    /// read or returned.
    at: Cursor,
    returned: Cursor,
    batch: VecDeque<(Line, Cursor)>,
    /// Earlier records are skipped.
    from_seq: u64,
    from_time: Option<Timestamp>,
    durable_only: bool,
    /// The mark when it was last read.
    durable: u64,
    buffer: Vec<u8>,
}

impl Reader {
    /// Reads everything in the file from `start` on, durable or not, without a daemon. It jumps to
    /// the start without reading the earlier lines. The file need not exist yet.
    ///
    /// # Errors
    /// `E_STORE_IO`.
    pub fn open(path: &Path, start: Start) -> Result<Self, StoreError> {
        Self::new(path, start, false)
    }

    /// Like [`Reader::open`], but returns a record only once its writer has made it durable. It
    /// follows a living writer, which may still cut an unsynced batch on a full disk.
    ///
    /// # Errors
    /// `E_STORE_IO`.
    pub fn follow(path: &Path, start: Start) -> Result<Self, StoreError> {
        Self::new(path, start, true)
    }

    fn new(path: &Path, start: Start, durable_only: bool) -> Result<Self, StoreError> {
        let mut reader = Self {
            path: path.into(),
            file: None,
            at: Cursor::default(),
            returned: Cursor::default(),
            batch: VecDeque::new(),
            from_seq: 0,
            from_time: None,
            durable_only,
            durable: 0,
            buffer: vec![],
        };
        match start {
            Start::Beginning => {}
            Start::Seq(seq) => {
                reader.from_seq = seq;
                if let Some(file) = open(path)? {
                    // After the mark a line may still be cut, and another one may replace it.
                    let certain = read_mark(path).map_or(seq, |durable| durable.min(seq));
                    reader.at = before(&file, certain).map_err(StoreError::io(path, "read"))?;
                }
            }
            Start::Time(time) => {
                reader.from_time = Some(time);
                if let Some(file) = open(path)? {
                    let is_early = |record: &Record| record.ts < time;
                    reader.at = search(&file, is_early).map_err(StoreError::io(path, "read"))?;
                }
            }
            Start::Cursor(cursor) => reader.at = cursor,
            Start::End => reader.at.offset = reader.end()?,
        }
        reader.returned = reader.at;
        Ok(reader)
    }

    /// Returns where the next line begins, and which record was last returned.
    pub fn cursor(&self) -> Cursor {
        self.returned
    }

    /// Returns the next requested record; `None` while there is none: call again after the file
    /// changed.
    ///
    /// # Errors
    /// `E_EVENTS_CORRUPT` for a bad line with good ones after it, `E_EVENTS_GAP`,
    /// `E_EVENTS_VERSION`, `E_STORE_IO`. The reader stays before that line.
    pub fn next_line(&mut self) -> Result<Option<Line>, StoreError> {
        loop {
            let Some((line, cursor)) = self.batch.pop_front() else {
                if self.fill_batch()? {
                    continue;
                }
                return Ok(None);
            };
            self.returned = cursor;
            let wanted = line.record.seq >= self.from_seq
                && self.from_time.is_none_or(|from| line.record.ts >= from);
            if wanted {
                // A clock that is set back later must not hide records.
                self.from_time = None;
                return Ok(Some(line));
            }
        }
    }

    /// Reads to the end of a batch. If the batch is incomplete, the position does not change.
    fn fill_batch(&mut self) -> Result<bool, StoreError> {
        loop {
            let read = self.next_any();
            if let Ok(Some(line)) = read {
                let complete = !line.record.entry.more;
                self.batch.push_back((line, self.at));
                if complete {
                    return Ok(true);
                }
                continue;
            }
            if !self.batch.is_empty() {
                self.batch.clear();
                self.at = self.returned;
                self.file = None;
            }
            return read.map(|_| false);
        }
    }

    fn next_any(&mut self) -> Result<Option<Line>, StoreError> {
        let mut tries = 3;
        loop {
            if !self.is_durable() || !self.open_file()? {
                return Ok(None);
            }
            let Some(file) = &mut self.file else { return Ok(None) };
            let read =
                read_line(file, &mut self.buffer).map_err(StoreError::io(&self.path, "read"))?;
            if !read.newline {
                // Dropped with its buffer; the next call reads the line from its beginning.
                self.file = None;
                if read.bytes == 0 && self.was_shortened()? {
                    continue;
                }
                return Ok(None);
            }
            let decoded = if read.whole {
                decode(&self.buffer)
            } else {
                Err(Fault::Garbled("it is too long".into()))
            };
            let record = match decoded {
                Ok(record) => record,
                Err(fault) => {
                    let follows = read.whole && self.good_line_follows()?;
                    self.file = None;
                    tries -= 1;
                    if tries > 0 {
                        // The writer may have cut and rewritten it just now.
                        continue;
                    }
                    return match fault {
                        Fault::Garbled(_) if !follows => Ok(None),
                        other => Err(self.error(other)),
                    };
                }
            };
            if self.at.seq != 0 && record.seq != self.at.seq + 1 {
                return Err(self.gap(record.seq));
            }
            self.at = Cursor { offset: self.at.offset + read.bytes, seq: record.seq };
            let raw = String::from_utf8_lossy(&self.buffer).into_owned();
            return Ok(Some(Line { raw, record }));
        }
    }

    /// Opens the file at the cursor; returns whether there is one.
    fn open_file(&mut self) -> Result<bool, StoreError> {
        if self.file.is_some() {
            return Ok(true);
        }
        let Some(mut file) = open(&self.path)? else { return Ok(false) };
        file.seek(SeekFrom::Start(self.at.offset)).map_err(StoreError::io(&self.path, "read"))?;
        self.file = Some(BufReader::with_capacity(64 * 1024, file));
        Ok(true)
    }

    /// Whether the next record may be returned. Without a mark every record may be.
    fn is_durable(&mut self) -> bool {
        if !self.durable_only || self.at.seq < self.durable {
            return true;
        }
        let Some(durable) = read_mark(&self.path) else { return true };
        self.durable = durable;
        // Data read ahead is older than this mark, and may have been cut since.
        self.file = None;
        self.at.seq < durable
    }

    /// Handles a file that became shorter than the position. Records that were never durable are
    /// gone, and their seqs are used again. Reading continues by seq from the beginning.
    fn was_shortened(&mut self) -> Result<bool, StoreError> {
        let len = match std::fs::metadata(&self.path) {
            Ok(meta) => meta.size(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(StoreError::io(&self.path, "read")(error)),
        };
        if len >= self.at.offset {
            return Ok(false);
        }
        self.batch.clear();
        self.at = Cursor::default();
        if self.returned.seq == 0 {
            // Nothing was returned yet, so the reader still starts at the end.
            self.at.offset = self.end()?;
        }
        self.from_seq = self.from_seq.max(self.returned.seq + 1);
        self.returned = self.at;
        Ok(true)
    }

    fn good_line_follows(&mut self) -> Result<bool, StoreError> {
        let Some(file) = &mut self.file else { return Ok(false) };
        let mut buffer = Vec::new();
        loop {
            let read = read_line(file, &mut buffer).map_err(StoreError::io(&self.path, "read"))?;
            if !read.newline {
                return Ok(false);
            }
            if read.whole && decode(&buffer).is_ok() {
                return Ok(true);
            }
        }
    }

    /// Returns the position after the last newline.
    fn end(&self) -> Result<u64, StoreError> {
        let fail = |error| StoreError::io(&self.path, "read")(error);
        let Some(file) = open(&self.path)? else { return Ok(0) };
        let last = Backwards::new(&file).and_then(|mut lines| lines.next()).map_err(fail)?;
        Ok(last.map_or(0, |line| line.end))
    }

    fn error(&self, fault: Fault) -> StoreError {
        let (file, line, offset) = (self.path.clone(), self.line_number(), self.at.offset);
        match fault {
            Fault::Garbled(why) => StoreError::Corrupt {
                file,
                line,
                offset,
                why: format!("{why}, but valid lines follow"),
            },
            Fault::Unreadable(source) => StoreError::Unreadable { file, line, offset, source },
            Fault::Version(found) => {
                StoreError::Version { file, line, found, known: VERSION.into() }
            }
            Fault::Unknown(event) => StoreError::UnknownEvent { file, line, event },
        }
    }

    fn gap(&self, found: u64) -> StoreError {
        let (file, line, offset) = (self.path.clone(), self.line_number(), self.at.offset);
        StoreError::Gap { file, line, offset, wanted: self.at.seq + 1, found }
    }

    /// Counts lines only for an error, because a reader may have begun in the middle.
    fn line_number(&self) -> u64 {
        let Ok(file) = File::open(&self.path) else { return 0 };
        let mut reader = BufReader::new(file.take(self.at.offset));
        let (mut lines, mut buffer) = (0, Vec::new());
        while read_line(&mut reader, &mut buffer).is_ok_and(|read| read.newline) {
            lines += 1;
        }
        lines + 1
    }
}
