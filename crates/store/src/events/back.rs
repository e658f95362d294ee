//! Reads the lines of a log from its end, so that finding the newest record costs the same for any
//! length of the log.

use crate::events::line::MAX_LINE;
use std::io::{self, Read, Seek, SeekFrom};

const CHUNK: u64 = 64 * 1024;

/// Returns complete lines, the last first. It holds one chunk and one line in memory, whatever the
/// file contains.
pub(crate) struct Backwards<R> {
    file: R,
    /// Where `chunk` begins.
    begin: u64,
    /// The part of the newest chunk that was not returned yet.
    chunk: Vec<u8>,
    /// The end of a line that began before `chunk`.
    line: Vec<u8>,
    /// The position after the newline of the current line, once that is found.
    end: Option<u64>,
    /// `line` holds everything of the line that follows the chunk.
    whole: bool,
}

pub(crate) struct BackLine {
    /// The position after its newline.
    pub end: u64,
    /// The line without its newline; `None` if it is longer than a record can be.
    pub bytes: Option<Vec<u8>>,
}

impl<R: Read + Seek> Backwards<R> {
    pub(crate) fn new(mut file: R) -> io::Result<Self> {
        let end = file.seek(SeekFrom::End(0))?;
        Ok(Self::ending_at(file, end))
    }

    /// Leaves out everything from the position `end` on.
    pub(crate) fn ending_at(file: R, end: u64) -> Self {
        Self { file, begin: end, chunk: vec![], line: vec![], end: None, whole: true }
    }

    pub(crate) fn next(&mut self) -> io::Result<Option<BackLine>> {
        loop {
            let newline = self.chunk.iter().rposition(|b| *b == b'\n');
            self.prepend(newline.map_or(0, |at| at + 1));
            let found = match newline {
                Some(at) => {
                    self.chunk.truncate(at);
                    self.take(Some(self.begin + at as u64 + 1))
                }
                None if self.begin == 0 => return Ok(self.take(None)),
                None => {
                    self.read_chunk()?;
                    None
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Moves the bytes of the chunk from `from` on to the line to which they belong.
    fn prepend(&mut self, from: usize) {
        let piece = self.chunk.split_off(from);
        self.whole &= self.line.len() + piece.len() < MAX_LINE;
        // Bytes after the last newline are not a line.
        if self.whole && self.end.is_some() {
            self.line.splice(0..0, piece);
        } else {
            self.line = vec![];
        }
    }

    /// Returns the completed line and begins the search for the one before it, which ends at
    /// `next`.
    fn take(&mut self, next: Option<u64>) -> Option<BackLine> {
        let bytes = std::mem::take(&mut self.line);
        let whole = std::mem::replace(&mut self.whole, true);
        let end = std::mem::replace(&mut self.end, next)?;
        Some(BackLine { end, bytes: whole.then_some(bytes) })
    }

    fn read_chunk(&mut self) -> io::Result<()> {
        let begin = self.begin.saturating_sub(CHUNK);
        self.file.seek(SeekFrom::Start(begin))?;
        self.chunk.clear();
        self.file.by_ref().take(self.begin - begin).read_to_end(&mut self.chunk)?;
        self.begin = begin;
        Ok(())
    }
}
