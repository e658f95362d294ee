//! Reads a whole log in bounded memory, and distinguishes a torn tail from damage.
//!
//! ```text
//!  good lines ──▶ first bad line ──▶ a good line after it?  yes ─▶ named error
//!                                     no ─▶ is a seq missing that was durable?  yes ─▶ named error
//!                                                                              no ─▶ torn tail
//! ```
//!
//! A batch (records with `more` and the one after them) is all or nothing: its records are passed
//! on when it is complete. An incomplete one at the end belongs to the torn tail. In what is left
//! of a removed beginning, each record stands alone.

use crate::error::StoreError;
use crate::events::chain::{Chain, Part};
use crate::events::line::{Cursor, Fault, LineRead, MAX_LINE, decode_for_fold, read_line};
use muleteer_model::event::Record;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::PathBuf;

#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub last_seq: u64,
    /// The length of the valid part of the whole log.
    pub len: u64,
    pub tail: Option<Tail>,
}

/// Bytes after the last good line.
#[derive(Debug)]
pub(crate) struct Tail {
    pub line: u64,
    pub bytes: u64,
    pub why: String,
    /// It has a finished line that is bad: this is damage and not an unfinished write.
    pub damaged: bool,
}

/// Reads the log from `from` to its end. `durable` is the highest seq known to have been durable.
pub(crate) fn scan(
    chain: &mut Chain,
    durable: u64,
    from: Cursor,
    each: impl FnMut(Record),
) -> Result<Scan, StoreError> {
    let from = if from.offset < chain.start().offset { chain.start() } else { from };
    let found = Scan { last_seq: from.seq, len: from.offset, ..Scan::default() };
    let mut scanner = Scanner {
        file: PathBuf::new(),
        start: from,
        is_sparse: false,
        found,
        batch: vec![],
        batch_bytes: 0,
        each,
    };
    while let Some(part) = chain.part_at(scanner.found.len)? {
        let (file, closed) = (part.file.clone(), part.closed);
        scanner.part(part).map_err(|error| match closed {
            Some(_) => error.in_segment(),
            None => error,
        })?;
        let Some(name) = closed else { return scanner.finish(durable) };
        if scanner.is_sparse && scanner.found.len == name.end {
            scanner.found.last_seq = name.last;
        }
        let at = Cursor { offset: scanner.found.len, seq: scanner.found.last_seq };
        if at != name.after() {
            let tail = scanner.found.tail.as_ref();
            let why = tail.map_or("its last batch is incomplete", |tail| &tail.why);
            let line = at.seq - scanner.start.seq + 1;
            return Err(StoreError::Segment { file, why: format!("line {line}: {why}") });
        }
    }
    scanner.finish(durable)
}

struct Scanner<F> {
    /// The file that is read, and where it begins.
    file: PathBuf,
    start: Cursor,
    /// The seqs have gaps.
    is_sparse: bool,
    found: Scan,
    /// The records of a batch whose last record has not come yet.
    batch: Vec<Record>,
    batch_bytes: u64,
    each: F,
}

impl<F: FnMut(Record)> Scanner<F> {
    /// Reads one file to its end.
    fn part(&mut self, part: Part) -> Result<(), StoreError> {
        (self.file, self.start, self.is_sparse) = (part.file, part.start, part.is_sparse);
        let fail = |error| StoreError::io(&self.file, "read")(error);
        let mut reader = BufReader::with_capacity(256 * 1024, part.source);
        let local = self.found.len - self.start.offset;
        reader.seek(SeekFrom::Start(local)).map_err(fail)?;
        let mut buffer = Vec::new();
        loop {
            let read = read_line(&mut reader, &mut buffer)
                .map_err(|error| StoreError::io(&self.file, "read")(error))?;
            if read.bytes == 0 {
                return Ok(());
            }
            let decoded = match (read.whole, read.newline) {
                (true, _) => decode_for_fold(&buffer),
                (false, true) => Err(Fault::Garbled(format!("it is longer than {MAX_LINE} bytes"))),
                (false, false) => Err(Fault::Garbled("it is incomplete".into())),
            };
            self.line(decoded, &read)?;
        }
    }

    fn line(&mut self, decoded: Result<Record, Fault>, read: &LineRead) -> Result<(), StoreError> {
        let file = self.file.clone();
        let line = self.found.tail.as_ref().map_or(self.lines() + 1, |tail| tail.line);
        let offset = self.offset();
        match (decoded, &mut self.found.tail) {
            (Err(Fault::Garbled(why)), None) => {
                self.found.tail =
                    Some(Tail { line, bytes: read.bytes, why, damaged: read.newline });
                Ok(())
            }
            (Err(Fault::Garbled(_)), Some(tail)) => {
                tail.bytes += read.bytes;
                tail.damaged |= read.newline;
                Ok(())
            }
            (_, Some(tail)) => {
                let why = format!("{}, but valid lines follow", tail.why);
                Err(StoreError::Corrupt { file, line, offset, why })
            }
            (Ok(record), None) => self.good(record, read.bytes),
            (Err(Fault::Unreadable(source)), None) => {
                Err(StoreError::Unreadable { file, line, offset, source })
            }
            (Err(Fault::Version(found)), None) => {
                let known = muleteer_model::event::VERSION.into();
                Err(StoreError::Version { file, line, found, known })
            }
            (Err(Fault::Unknown(event)), None) => {
                Err(StoreError::UnknownEvent { file, line, event })
            }
        }
    }

    fn good(&mut self, record: Record, bytes: u64) -> Result<(), StoreError> {
        let next = self.found.last_seq + self.batch.len() as u64 + 1;
        let wanted = if self.is_sparse { next.max(record.seq) } else { next };
        if record.seq != wanted {
            return Err(StoreError::Gap {
                file: self.file.clone(),
                line: self.lines() + 1,
                offset: self.offset(),
                wanted,
                found: record.seq,
            });
        }
        let complete = self.is_sparse || !record.entry.more;
        self.batch.push(record);
        self.batch_bytes += bytes;
        if complete {
            self.found.last_seq = wanted;
            self.found.len += std::mem::take(&mut self.batch_bytes);
            self.batch.drain(..).for_each(&mut self.each);
        }
        Ok(())
    }

    /// Returns the number of good lines of this file so far: every line is a record.
    fn lines(&self) -> u64 {
        self.found.last_seq - self.start.seq + self.batch.len() as u64
    }

    /// Returns the position in this file.
    fn offset(&self) -> u64 {
        self.found.len + self.batch_bytes - self.start.offset
    }

    fn finish(mut self, durable: u64) -> Result<Scan, StoreError> {
        let (line, batched) = (self.lines() + 1, self.batch.len());
        if let Some(tail) = &self.found.tail
            && self.found.last_seq < durable
        {
            return Err(StoreError::Corrupt {
                offset: self.offset(),
                file: self.file,
                line: tail.line,
                why: format!("{}, but events up to seq {durable} were durable", tail.why),
            });
        }
        if batched > 0 {
            let why = format!("the batch of {batched} lines before it is incomplete");
            let none = Tail { line, bytes: 0, why, damaged: false };
            self.found.tail.get_or_insert(none).bytes += self.batch_bytes;
        }
        Ok(self.found)
    }
}
