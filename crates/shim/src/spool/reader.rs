//! Reads a spool by cursor, also while its shim writes it.
//!
//! All state that matters is in the cursor, so a new reader continues where an old one, or an old
//! daemon, stopped.

use crate::control::Control;
use crate::record::{
    Cursor, Header, MAX_PAYLOAD, RECORD_HEADER, SEGMENT_HEADER, SegmentHead, Stream,
    compressed_path, read_segment_header, segment_path,
};
use crate::spool::compress::{self, DecompressError};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One complete record with a verified checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it begins.
    pub start: Cursor,
    /// Where the next one begins (in the same epoch).
    pub end: Cursor,
    pub seq: u64,
    pub stream: Stream,
    /// Milliseconds since 1970.
    pub wall_ms: u64,
    /// Milliseconds during which this machine was awake.
    pub awake_ms: u64,
    pub bytes: Vec<u8>,
}

impl Record {
    /// Returns the shim's message, if this is a control record.
    pub fn control(&self) -> Option<Control> {
        (self.stream == Stream::Control).then(|| Control::decode(&self.bytes))
    }
}

/// The result of one [`Reader::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub records: Vec<Record>,
    /// Where to continue. It may name a newer epoch than the last record's.
    pub next: Cursor,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// More can be read at once.
    More,
    /// Everything complete has been read.
    CaughtUp,
    /// Everything complete has been read, and this many bytes of an incomplete record follow. If
    /// the shim lives, it is writing them; if it is dead, they are lost.
    Torn { bytes: u64 },
}

/// Why a spool cannot be read at this position. `resume`, if present, is the next position at which
/// a good record (or the next epoch) begins. A reader that continues there loses the data between,
/// and must record that.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("spool {dir} cannot be read")]
    Io { dir: PathBuf, source: io::Error },
    #[error("spool segment {file} is damaged at byte {at}: {what}")]
    Corrupt { file: PathBuf, at: u64, what: &'static str, resume: Option<Cursor> },
    #[error("spool segment {file} has version {version}, written by a newer shim")]
    Newer { file: PathBuf, version: u16, resume: Option<Cursor> },
    #[error("spool {dir} does not contain position {} of epoch {}", .wanted.offset,
        .wanted.epoch)]
    Missing { dir: PathBuf, wanted: Cursor, resume: Option<Cursor> },
}

impl ReadError {
    /// Returns where reading can continue, if anywhere yet.
    pub fn resume(&self) -> Option<Cursor> {
        match self {
            Self::Io { .. } => None,
            Self::Corrupt { resume, .. }
            | Self::Newer { resume, .. }
            | Self::Missing { resume, .. } => *resume,
        }
    }
}

/// A segment that is being read.
#[derive(Debug)]
enum Held {
    Plain(File),
    /// The decompressed content of a compressed one.
    Text(Vec<u8>),
}

/// Reads the spool of one agent.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    /// The segment that was read last, kept open so that it stays readable after its deletion.
    open: Option<(Cursor, Held)>,
    /// How far it was read, unless that was into another epoch.
    reached: Option<Cursor>,
}

/// How far one segment could be read.
struct Scanned {
    /// The position after the last complete record.
    next: Cursor,
    /// How many bytes of an incomplete record follow it.
    left: u64,
    /// The batch is full.
    full: bool,
}

impl Reader {
    /// Opens a reader; `spool` is that of [`super::dir_of`] and need not exist yet.
    pub fn open(spool: &Path) -> Self {
        Self { dir: spool.to_owned(), open: None, reached: None }
    }

    /// Reads whole records from `from` until their payloads reach `max_bytes`; at least one if one
    /// is complete. At the end of an epoch it continues with the next one.
    ///
    /// It blocks for the disk. `from` must be a cursor from a batch, or the start of an epoch (of
    /// epoch 0: everything there is).
    pub fn read(&mut self, from: Cursor, max_bytes: usize) -> Result<Batch, ReadError> {
        let mut batch = Batch { records: vec![], next: from, state: State::CaughtUp };
        // A reader that continues where it stopped is in the open segment, or at its end, which is
        // detected below. So a reader that keeps up lists the directory only once per read.
        let mut known =
            self.open.as_ref().filter(|_| self.reached == Some(from)).map(|(start, _)| *start);
        self.reached = None;
        loop {
            let start = match known.take() {
                Some(start) => start,
                None => match self.locate(batch.next)? {
                    Some(start) => start,
                    None => return Ok(batch),
                },
            };
            batch.next = batch.next.max(start);
            let scanned = match self.scan(start, batch.next, max_bytes, &mut batch.records) {
                Ok(scanned) => scanned,
                Err(error) if batch.records.is_empty() => return Err(error),
                // The records before the error are good; the next call returns the error alone.
                Err(_) => Scanned {
                    next: batch.records.last().map_or(batch.next, |record| record.end),
                    left: 0,
                    full: true,
                },
            };
            batch.next = scanned.next;
            self.reached = Some(scanned.next);
            if scanned.full {
                batch.state = State::More;
                return Ok(batch);
            }
            // Listed after reading to the end: a following segment may have appeared meanwhile, and
            // this one may have grown before that.
            let follower = self.segments()?.into_iter().find(|other| *other > start);
            if follower.is_some()
                && self.length(start)?
                    > SEGMENT_HEADER as u64 + batch.next.offset - start.offset + scanned.left
            {
                continue;
            }
            match follower {
                None => {
                    batch.state = torn(scanned.left);
                    return Ok(batch);
                }
                Some(follower) if follower.epoch > start.epoch => {
                    batch.next = Cursor::start_of(follower.epoch);
                    if scanned.left > 0 {
                        batch.state = torn(scanned.left);
                        return Ok(batch);
                    }
                }
                // The bytes after the last record here never were a record, so nothing is missing.
                Some(follower) if follower == batch.next => known = Some(follower),
                Some(_) if !batch.records.is_empty() => {
                    batch.state = State::More;
                    return Ok(batch);
                }
                Some(follower) => {
                    return Err(ReadError::Corrupt {
                        file: segment_path(&self.dir, start),
                        at: SEGMENT_HEADER as u64 + batch.next.offset - start.offset,
                        what: "the segment ends before the next one begins",
                        resume: Some(follower),
                    });
                }
            }
        }
    }

    /// Returns the segment that contains `at`, or the first of the next epoch if `at`'s epoch has
    /// none.
    fn locate(&mut self, at: Cursor) -> Result<Option<Cursor>, ReadError> {
        let segments = self.segments()?;
        let holder = segments
            .iter()
            .rev()
            .find(|start| start.epoch == at.epoch && start.offset <= at.offset);
        if let Some(holder) = holder {
            return Ok(Some(*holder));
        }
        // It was deleted, but we still have it open.
        if let Some((start, _)) = self.open
            && start.epoch == at.epoch
            && start.offset <= at.offset
            && self.length(start)? > SEGMENT_HEADER as u64 + at.offset - start.offset
        {
            return Ok(Some(start));
        }
        match segments.iter().find(|start| **start > at) {
            None => Ok(None),
            Some(next) if next.offset == 0 && next.epoch > at.epoch => Ok(Some(*next)),
            // The shim deletes only acknowledged segments: this cursor is before them.
            Some(next) => {
                Err(ReadError::Missing { dir: self.dir.clone(), wanted: at, resume: Some(*next) })
            }
        }
    }

    /// Appends the complete records of one segment from `from` on.
    fn scan(
        &mut self,
        start: Cursor,
        from: Cursor,
        max_bytes: usize,
        records: &mut Vec<Record>,
    ) -> Result<Scanned, ReadError> {
        self.hold(start)?;
        let file = segment_path(&self.dir, start);
        let length = self.length(start)?;
        let mut head = [0; SEGMENT_HEADER];
        if length < SEGMENT_HEADER as u64 {
            return Ok(Scanned { next: from, left: 0, full: false });
        }
        self.pread(start, &mut head, 0)?;
        match read_segment_header(&head) {
            SegmentHead::Good(begins) if begins == start => {}
            SegmentHead::Newer(version) => {
                return Err(ReadError::Newer { file, version, resume: self.behind(start)? });
            }
            SegmentHead::Good(_) => {
                let resume = self.behind(start)?;
                return Err(ReadError::Corrupt {
                    file,
                    at: 0,
                    what: "its name is another segment's",
                    resume,
                });
            }
            // The name has the same information, and each record has its own checksum: nothing is
            // lost.
            SegmentHead::Damaged => {}
        }
        let mut taken: usize = records.iter().map(|record| record.bytes.len()).sum();
        let mut at = SEGMENT_HEADER as u64 + (from.offset - start.offset);
        let mut window = Window::default();
        let mut seq = None;
        loop {
            let next =
                Cursor { epoch: start.epoch, offset: start.offset + at - SEGMENT_HEADER as u64 };
            if taken >= max_bytes.max(1) && !records.is_empty() {
                return Ok(Scanned { next, left: 0, full: true });
            }
            let left = length.saturating_sub(at);
            if left < RECORD_HEADER as u64 {
                return Ok(Scanned { next, left, full: false });
            }
            let header = window.header(self, start, at, length)?;
            let Some(header) = header.filter(|header| seq.is_none_or(|seq| header.seq == seq))
            else {
                if self.only_zeros(start, at, length)? {
                    return Ok(Scanned { next, left, full: false });
                }
                let resume = self.resync(start, at + 1, length)?;
                return Err(ReadError::Corrupt { file, at, what: "a record's header", resume });
            };
            if header.total() > left {
                return Ok(Scanned { next, left, full: false });
            }
            let bytes = window.bytes(
                self,
                start,
                at + RECORD_HEADER as u64,
                header.len as usize,
                length,
            )?;
            if crc32c::crc32c(bytes) != header.payload_crc {
                if header.total() == left {
                    return Ok(Scanned { next, left, full: false });
                }
                let resume = Some(Cursor { offset: next.offset + header.total(), ..next });
                return Err(ReadError::Corrupt { file, at, what: "a record's payload", resume });
            }
            let end = Cursor { offset: next.offset + header.total(), ..next };
            records.push(Record {
                start: next,
                end,
                seq: header.seq,
                stream: header.stream,
                wall_ms: header.wall_ms,
                awake_ms: header.awake_ms,
                bytes: bytes.to_vec(),
            });
            taken += header.len as usize;
            seq = Some(header.seq + 1);
            at += header.total();
        }
    }

    /// Returns the first good record from `at` on in this segment, else the next segment's start.
    fn resync(&self, start: Cursor, mut at: u64, length: u64) -> Result<Option<Cursor>, ReadError> {
        const STEP: usize = 1 << 20;
        let mut chunk = vec![0; STEP + RECORD_HEADER];
        while at + RECORD_HEADER as u64 <= length {
            let n = chunk.len().min((length - at) as usize);
            self.pread(start, &mut chunk[..n], at)?;
            for (skip, bytes) in chunk[..n].windows(RECORD_HEADER).enumerate() {
                if <&[u8; RECORD_HEADER]>::try_from(bytes)
                    .is_ok_and(|bytes| Header::decode(bytes).is_some())
                {
                    let offset = start.offset + at + skip as u64 - SEGMENT_HEADER as u64;
                    return Ok(Some(Cursor { offset, ..start }));
                }
            }
            at += (n + 1 - RECORD_HEADER) as u64;
        }
        self.behind(start)
    }

    /// Returns the start of the segment after this one.
    fn behind(&self, start: Cursor) -> Result<Option<Cursor>, ReadError> {
        Ok(self.segments()?.into_iter().find(|other| *other > start))
    }

    /// Whether the rest is zeros: a power cut can leave a file longer than the data written to it.
    fn only_zeros(&self, start: Cursor, mut at: u64, length: u64) -> Result<bool, ReadError> {
        let mut chunk = [0; 4096];
        while at < length {
            let n = chunk.len().min((length - at) as usize);
            self.pread(start, &mut chunk[..n], at)?;
            if chunk[..n].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            at += n as u64;
        }
        Ok(true)
    }

    fn segments(&self) -> Result<Vec<Cursor>, ReadError> {
        match super::segments(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            listed => listed.map_err(|source| self.io(source)),
        }
    }

    fn hold(&mut self, start: Cursor) -> Result<(), ReadError> {
        if self.open.as_ref().is_some_and(|(open, _)| *open == start) {
            return Ok(());
        }
        let held = match File::open(segment_path(&self.dir, start)) {
            // The plain file counts while a kill has left both.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Held::Text(self.decompressed(start)?)
            }
            opened => Held::Plain(opened.map_err(|source| self.io(source))?),
        };
        self.open = Some((start, held));
        Ok(())
    }

    fn decompressed(&self, start: Cursor) -> Result<Vec<u8>, ReadError> {
        let file = compressed_path(&self.dir, start);
        match compress::decompress(&file) {
            Ok(text) => Ok(text),
            Err(DecompressError::Io(source)) => Err(self.io(source)),
            Err(DecompressError::Damaged(_)) => {
                let (what, resume) = ("its compressed form", self.behind(start)?);
                Err(ReadError::Corrupt { file, at: 0, what, resume })
            }
        }
    }

    fn length(&self, start: Cursor) -> Result<u64, ReadError> {
        match self.held(start)? {
            Held::Plain(file) => {
                file.metadata().map(|meta| meta.len()).map_err(|source| self.io(source))
            }
            Held::Text(text) => Ok(text.len() as u64),
        }
    }

    fn pread(&self, start: Cursor, into: &mut [u8], at: u64) -> Result<(), ReadError> {
        match self.held(start)? {
            Held::Plain(file) => file.read_exact_at(into, at).map_err(|source| self.io(source)),
            Held::Text(text) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX);
                let part = text.get(from..).and_then(|rest| rest.get(..into.len()));
                let Some(part) = part else {
                    return Err(self.io(io::ErrorKind::UnexpectedEof.into()));
                };
                into.copy_from_slice(part);
                Ok(())
            }
        }
    }

    fn held(&self, start: Cursor) -> Result<&Held, ReadError> {
        match &self.open {
            Some((open, held)) if *open == start => Ok(held),
            _ => Err(self.io(io::Error::other("segment is not open"))),
        }
    }

    fn io(&self, source: io::Error) -> ReadError {
        ReadError::Io { dir: self.dir.clone(), source }
    }
}

fn torn(left: u64) -> State {
    if left == 0 { State::CaughtUp } else { State::Torn { bytes: left } }
}

/// A part of a segment in memory, so that small records do not cost a system call each.
#[derive(Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    const SIZE: usize = 256 << 10;

    fn header(
        &mut self,
        reader: &Reader,
        start: Cursor,
        at: u64,
        length: u64,
    ) -> Result<Option<Header>, ReadError> {
        let bytes = self.bytes(reader, start, at, RECORD_HEADER, length)?;
        Ok(<&[u8; RECORD_HEADER]>::try_from(bytes).ok().and_then(Header::decode))
    }

    /// Returns `len` bytes at `at`, which must end before `length`.
    fn bytes(
        &mut self,
        reader: &Reader,
        start: Cursor,
        at: u64,
        len: usize,
        length: u64,
    ) -> Result<&[u8], ReadError> {
        let held = self.at..self.at + self.bytes.len() as u64;
        if !(held.start <= at && at + len as u64 <= held.end) {
            let size = Self::SIZE.max(len + MAX_PAYLOAD).min((length - at) as usize);
            self.bytes.resize(size, 0);
            self.at = at;
            reader.pread(start, &mut self.bytes, at)?;
        }
        let skip = (at - self.at) as usize;
        Ok(&self.bytes[skip..skip + len])
    }
}
