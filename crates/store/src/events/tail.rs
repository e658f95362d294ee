//! Reads events line by line, also while a writer appends: `muleteer events`, with or without `-f`.
//!
//! A line is returned once it and its batch are complete. An incomplete line counts as not yet
//! there: a later call reads it again from its beginning, and never joins it to bytes that were cut
//! meanwhile. Events that this version does not know come as
//! [`Event::Unknown`](muleteer_model::event::Event::Unknown), for the viewer to skip.

use crate::error::StoreError;
use crate::events::chain::{Chain, Name, Source};
use crate::events::line::{Fault, decode, read_line};
use crate::events::mark;
use jiff::Timestamp;
use muleteer_model::event::{Record, VERSION};
use std::collections::VecDeque;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub use crate::events::line::Cursor;

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

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The line as in the file, without the newline.
    pub raw: String,
    pub record: Record,
}

/// Returns the seq of the newest record with a complete batch, durable or not; 0 if there is none.
/// It reads only the end of the log, so it does not notice earlier damage.
///
/// # Errors
/// `E_EVENTS_GAP`, `E_STORE_IO`.
pub fn newest_seq(path: &Path) -> Result<u64, StoreError> {
    Chain::open(path)?.newest_seq()
}

#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    /// Unknown until it is needed.
    chain: Option<Chain>,
    open: Option<Open>,
    /// The position of the next line to read. It is ahead of `returned` by the batch that is being
    /// read or returned.
    at: Cursor,
    returned: Cursor,
    batch: VecDeque<(Line, Cursor)>,
    /// Earlier records are skipped.
    from_seq: u64,
    from_time: Option<Timestamp>,
    durable_only: bool,
    /// Whether `at` is a position of the log as it is now: the beginning of the log may have been
    /// removed after another reader had this position.
    is_confirmed: bool,
    /// The seq up to which the beginning had been removed then.
    base: u64,
    /// The mark when it was last read.
    durable: u64,
    buffer: Vec<u8>,
}

/// The file that is read.
#[derive(Debug)]
struct Open {
    file: PathBuf,
    /// It is a segment: complete, durable and never changed.
    closed: Option<Name>,
    /// It has what is left of the removed beginning.
    is_sparse: bool,
    reader: BufReader<Source>,
}

impl Reader {
    /// Reads everything in the log from `start` on, durable or not, without a daemon. It jumps to
    /// the start without reading the earlier lines. The log need not exist yet.
    ///
    /// # Errors
    /// `E_EVENTS_CORRUPT`, `E_EVENTS_GAP` for a damaged or missing segment; `E_STORE_IO`.
    pub fn open(path: &Path, start: Start) -> Result<Self, StoreError> {
        Self::new(path, start, false)
    }

    /// Like [`Reader::open`], but returns a record only once its writer has made it durable. It
    /// follows a living writer, which may still cut an unsynced batch on a full disk.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn follow(path: &Path, start: Start) -> Result<Self, StoreError> {
        Self::new(path, start, true)
    }

    fn new(path: &Path, start: Start, durable_only: bool) -> Result<Self, StoreError> {
        let mut reader = Self {
            path: path.into(),
            chain: None,
            open: None,
            at: Cursor::default(),
            returned: Cursor::default(),
            batch: VecDeque::new(),
            from_seq: 0,
            from_time: None,
            durable_only,
            is_confirmed: true,
            base: 0,
            durable: 0,
            buffer: vec![],
        };
        match start {
            Start::Beginning => {}
            Start::Seq(seq) => {
                reader.from_seq = seq;
                // After the mark a line may still be cut, and another one may replace it.
                let certain = mark::read(path).map_or(seq, |durable| durable.min(seq));
                reader.at = reader.chain()?.before(certain)?;
            }
            Start::Time(time) => {
                reader.from_time = Some(time);
                reader.at = reader.chain()?.search(|record: &Record| record.ts < time)?;
            }
            Start::Cursor(cursor) => (reader.at, reader.is_confirmed) = (cursor, cursor.seq == 0),
            Start::End => reader.at.offset = reader.chain()?.end()?,
        }
        reader.returned = reader.at;
        Ok(reader)
    }

    /// Returns the files of the log as they are now.
    fn chain(&mut self) -> Result<&mut Chain, StoreError> {
        let chain = match self.chain.take() {
            Some(mut known) => {
                known.refresh()?;
                known
            }
            None => Chain::open(&self.path)?,
        };
        self.is_confirmed &= chain.base().seq == self.base || self.at.seq == 0;
        self.base = chain.base().seq;
        Ok(self.chain.insert(chain))
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
                let is_alone = self.open.as_ref().is_some_and(|open| open.is_sparse);
                let complete = is_alone || !line.record.entry.more;
                self.batch.push_back((line, self.at));
                if complete {
                    return Ok(true);
                }
                continue;
            }
            if !self.batch.is_empty() {
                self.batch.clear();
                self.at = self.returned;
                self.open = None;
            }
            return read.map(|_| false);
        }
    }

    fn next_any(&mut self) -> Result<Option<Line>, StoreError> {
        let mut tries = 3;
        loop {
            if !self.open_file()? || !self.is_durable() || !self.open_file()? {
                return Ok(None);
            }
            let Some(open) = &mut self.open else { return Ok(None) };
            let read = read_line(&mut open.reader, &mut self.buffer)
                .map_err(StoreError::io(&open.file, "read"))?;
            if !read.newline {
                // Dropped with its buffer; the next call reads the line from its beginning.
                let closed = self.open.take().and_then(|open| open.closed);
                if closed.is_some() {
                    return Err(self.incomplete());
                }
                if read.bytes == 0 && (self.has_more()? || self.was_shortened()?) {
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
                    if self.open.as_ref().is_some_and(|open| open.closed.is_some()) {
                        return Err(self.error(fault));
                    }
                    let follows = read.whole && self.good_line_follows()?;
                    self.open = None;
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
            let is_next = match self.open.as_ref().is_some_and(|open| open.is_sparse) {
                true => record.seq > self.at.seq,
                false => record.seq == self.at.seq + 1,
            };
            if self.at.seq != 0 && !is_next {
                return Err(self.gap(record.seq));
            }
            self.at = Cursor { offset: self.at.offset + read.bytes, seq: record.seq };
            let raw = String::from_utf8_lossy(&self.buffer).into_owned();
            return Ok(Some(Line { raw, record }));
        }
    }

    /// Opens the file that holds the position; returns whether there is one.
    fn open_file(&mut self) -> Result<bool, StoreError> {
        let is_read = |open: &Open| open.closed.is_some_and(|name| name.end <= self.at.offset);
        if self.open.as_ref().is_some_and(|open| !is_read(open)) {
            return Ok(true);
        }
        let start = self.chain()?.start();
        if self.at.seq == 0 && self.at.offset < start.offset {
            self.at = start;
        }
        self.confirm()?;
        let offset = self.at.offset;
        let known = self.base;
        let part = self.chain()?.part_at(offset)?;
        let base = self.chain()?.base();
        if base.seq != known {
            // The beginning was removed meanwhile.
            return self.open_file();
        }
        let Some(mut part) = part else { return Ok(false) };
        if self.at.offset == base.offset && self.at.seq != 0 {
            // Between what is left of the beginning and the first whole segment.
            self.at.seq = self.at.seq.max(base.seq);
        }
        let fail = |error| StoreError::io(&part.file, "read")(error);
        let local = self.at.offset - part.start.offset;
        part.source.seek(SeekFrom::Start(local)).map_err(fail)?;
        let reader = BufReader::with_capacity(64 * 1024, part.source);
        let (closed, is_sparse) = (part.closed, part.is_sparse);
        self.open = Some(Open { file: part.file, closed, is_sparse, reader });
        Ok(true)
    }

    /// Checks that the position was not removed: the records after it would be missing.
    fn confirm(&mut self) -> Result<(), StoreError> {
        if self.is_confirmed {
            return Ok(());
        }
        let at = self.at;
        let chain = self.chain()?;
        if chain.has(at)? {
            self.is_confirmed = true;
            return Ok(());
        }
        let through = chain.base().seq;
        Err(StoreError::Removed { file: self.path.clone(), wanted: at.seq + 1, through })
    }

    /// Whether the next record may be returned. Without a mark every record may be.
    fn is_durable(&mut self) -> bool {
        let is_closed = self.open.as_ref().is_some_and(|open| open.closed.is_some());
        if !self.durable_only || is_closed || self.at.seq < self.durable {
            return true;
        }
        let Some(durable) = mark::read(&self.path) else { return true };
        self.durable = durable;
        // Data read ahead is older than this mark, and may have been cut since.
        self.open = None;
        self.at.seq < durable
    }

    /// Whether the file at whose end this is was closed meanwhile, so that another one follows.
    fn has_more(&mut self) -> Result<bool, StoreError> {
        if self.chain.as_ref().is_some_and(|chain| chain.is_current().unwrap_or(true)) {
            return Ok(false);
        }
        let offset = self.at.offset;
        Ok(offset < self.chain()?.length()?)
    }

    /// Handles a file that became shorter than the position. Records that were never durable are
    /// gone, and their seqs are used again. Reading continues by seq from the beginning.
    fn was_shortened(&mut self) -> Result<bool, StoreError> {
        let offset = self.at.offset;
        let chain = self.chain()?;
        if chain.length()? >= offset || !chain.has_active() {
            return Ok(false);
        }
        let (start, end) = (chain.start(), chain.end()?);
        self.batch.clear();
        self.at = start;
        if self.returned.seq == 0 {
            // Nothing was returned yet, so the reader still starts at the end.
            self.at = Cursor { offset: end, seq: 0 };
        }
        self.from_seq = self.from_seq.max(self.returned.seq + 1);
        self.returned = self.at;
        Ok(true)
    }

    fn good_line_follows(&mut self) -> Result<bool, StoreError> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let mut buffer = Vec::new();
        loop {
            let read = read_line(&mut open.reader, &mut buffer)
                .map_err(StoreError::io(&open.file, "read"))?;
            if !read.newline {
                return Ok(false);
            }
            if read.whole && decode(&buffer).is_ok() {
                return Ok(true);
            }
        }
    }

    fn error(&self, fault: Fault) -> StoreError {
        let (file, line, offset) = self.place();
        let error = match fault {
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
        };
        self.of_file(error)
    }

    fn gap(&self, found: u64) -> StoreError {
        let (file, line, offset) = self.place();
        self.of_file(StoreError::Gap { file, line, offset, wanted: self.at.seq + 1, found })
    }

    fn of_file(&self, error: StoreError) -> StoreError {
        let is_closed = self.open.as_ref().is_some_and(|open| open.closed.is_some());
        if is_closed { error.in_segment() } else { error }
    }

    /// Returns the error of a segment that ends within a line.
    fn incomplete(&self) -> StoreError {
        let (file, line, _) = self.place();
        StoreError::Segment { file, why: format!("line {line}: it is incomplete") }
    }

    /// Returns the file, and the line and position in it. It counts lines only for an error,
    /// because a reader may have begun in the middle.
    fn place(&self) -> (PathBuf, u64, u64) {
        let found = self.chain.as_ref().and_then(|chain| chain.find(self.at.offset).ok().flatten());
        let Some(part) = found else {
            return (self.path.clone(), 0, self.at.offset);
        };
        let offset = self.at.offset - part.start.offset;
        let mut reader = BufReader::new(part.source.take(offset));
        let (mut lines, mut buffer) = (0, Vec::new());
        while read_line(&mut reader, &mut buffer).is_ok_and(|read| read.newline) {
            lines += 1;
        }
        (part.file, lines + 1, offset)
    }
}
