//! The lines of a log from its end, so that what is asked of the newest costs the same however long
//! it is.

use crate::events::line::MAX_LINE;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

const CHUNK: u64 = 64 * 1024;

/// Gives out what ends in a newline, the last first. Holds a chunk and a line, whatever is in the
/// file.
pub(crate) struct Backwards<'a> {
    file: &'a File,
    /// Where `chunk` begins.
    begin: u64,
    /// What is not given out yet of the piece read last.
    chunk: Vec<u8>,
    /// The end of a line that began before `chunk`.
    line: Vec<u8>,
    /// After the newline of the line being looked for, once that is found.
    end: Option<u64>,
    /// `line` is all that follows the chunk of it.
    whole: bool,
}

pub(crate) struct BackLine {
    /// After its newline.
    pub end: u64,
    /// Without its newline; none of a line that is too long to be one.
    pub bytes: Option<Vec<u8>>,
}

impl<'a> Backwards<'a> {
    pub(crate) fn new(mut file: &'a File) -> io::Result<Self> {
        let begin = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, begin, chunk: vec![], line: vec![], end: None, whole: true })
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

    /// Moves what is in the chunk from there on to the line it belongs to.
    fn prepend(&mut self, from: usize) {
        let piece = self.chunk.split_off(from);
        self.whole &= self.line.len() + piece.len() < MAX_LINE;
        // What follows the last newline is no line.
        if self.whole && self.end.is_some() {
            self.line.splice(0..0, piece);
        } else {
            self.line = vec![];
        }
    }

    /// The line that is complete, with the next one, which ends there, to be looked for.
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
        self.file.take(self.begin - begin).read_to_end(&mut self.chunk)?;
        self.begin = begin;
        Ok(())
    }
}
