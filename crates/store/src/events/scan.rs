//! Reads a whole log in bounded memory, and distinguishes a torn tail from damage.
//!
//! ```text
//!  good lines ──▶ first bad line ──▶ a good line after it?  yes ─▶ named error
//!                                     no ─▶ is a seq missing that was durable?  yes ─▶ named error
//!                                                                              no ─▶ torn tail
//! ```
//!
//! A batch (records with `more` and the one after them) is all or nothing: its records are passed
//! on when it is complete. An incomplete one at the end belongs to the torn tail.

use crate::error::StoreError;
use crate::events::chain::{Chain, Part};
use crate::events::line::{Fault, MAX_LINE, decode_for_fold};
use crate::events::tail::Cursor;
use muleteer_model::event::Record;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
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
    let mut scanner =
        Scanner { file: PathBuf::new(), start: from, found, batch: vec![], batch_bytes: 0, each };
    while let Some(part) = chain.part_at(scanner.found.len)? {
        let (file, closed) = (part.file.clone(), part.closed);
        scanner.part(part).map_err(|error| match closed {
            Some(_) => error.in_segment(),
            None => error,
        })?;
        let Some(name) = closed else { return scanner.finish(durable) };
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
    found: Scan,
    /// The records of a batch whose last record has not come yet.
    batch: Vec<Record>,
    batch_bytes: u64,
    each: F,
}

impl<F: FnMut(Record)> Scanner<F> {
    /// Reads one file to its end.
    fn part(&mut self, part: Part) -> Result<(), StoreError> {
        (self.file, self.start) = (part.file, part.start);
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
        let wanted = self.found.last_seq + self.batch.len() as u64 + 1;
        if record.seq != wanted {
            return Err(StoreError::Gap {
                file: self.file.clone(),
                line: self.lines() + 1,
                offset: self.offset(),
                wanted,
                found: record.seq,
            });
        }
        let complete = !record.entry.more;
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

pub(crate) struct LineRead {
    /// Includes the newline; 0 at the end of the file.
    pub bytes: u64,
    pub newline: bool,
    /// The buffer has the whole line, without its newline.
    pub whole: bool,
}

/// Reads one line of any length and keeps at most [`MAX_LINE`] bytes of it.
pub(crate) fn read_line(reader: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<LineRead> {
    buffer.clear();
    let mut bytes = 0u64;
    loop {
        let chunk = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if chunk.is_empty() {
            return Ok(LineRead { bytes, newline: false, whole: false });
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let take = end.map_or(chunk.len(), |at| at + 1);
        bytes += take as u64;
        if bytes <= MAX_LINE as u64 {
            buffer.extend_from_slice(&chunk[..end.unwrap_or(take)]);
        }
        reader.consume(take);
        if end.is_some() {
            return Ok(LineRead { bytes, newline: true, whole: bytes <= MAX_LINE as u64 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Read};

    /// Returns one prepared answer per read.
    struct Answers(Vec<Result<&'static [u8], io::ErrorKind>>);

    impl Read for Answers {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let bytes = self.0.remove(0)?;
            into[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn interrupted_read_is_retried_and_other_errors_are_returned() {
        use io::ErrorKind::{Interrupted, InvalidData};
        let answers = vec![
            Err(Interrupted),
            Ok(&b"on"[..]),
            Err(Interrupted),
            Ok(&b"e\ntw"[..]),
            Err(InvalidData),
        ];
        let (mut reader, mut line) = (BufReader::new(Answers(answers)), vec![]);
        let read = read_line(&mut reader, &mut line).expect("a line");
        assert_eq!((line.as_slice(), read.bytes, read.whole), (&b"one"[..], 4, true));
        assert_eq!(
            read_line(&mut reader, &mut line).map(|read| read.bytes).map_err(|e| e.kind()),
            Err(InvalidData)
        );
    }

    #[test]
    fn line_is_stored_up_to_the_limit_and_counted_beyond() {
        for (length, whole) in
            [(MAX_LINE - 1, true), (MAX_LINE, true), (MAX_LINE + 1, false), (3 * MAX_LINE, false)]
        {
            let mut text = vec![b'x'; length - 1];
            text.extend_from_slice(b"\nnext");
            let (mut reader, mut line) = (BufReader::new(text.as_slice()), vec![]);
            let read = read_line(&mut reader, &mut line).expect("a line");
            assert_eq!((read.bytes, read.newline, read.whole), (length as u64, true, whole));
            assert!(
                line.len() <= MAX_LINE && (!whole || line.len() == length - 1),
                "{}",
                line.len()
            );
            let rest = read_line(&mut reader, &mut line).expect("the rest");
            assert_eq!((line.as_slice(), rest.newline), (&b"next"[..], false));
        }
    }
}
