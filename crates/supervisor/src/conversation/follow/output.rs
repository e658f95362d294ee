//! Reads the output of a thread's agent for people who watch, from any place on.
//!
//! A place names a record at which the stream can be read anew, and the number of parts since. The
//! same records give the same parts, so a client that returns its last place gets each part once.

use crate::ports::shim_command::shown;
use muleteer_backends::{BackendError, Live, LiveReader};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::Position;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::{Part, ThreadPlace};
use muleteer_shim::control::Control;
use muleteer_shim::spool::{Cursor, ReadError, Reader, Record, State, Stream};
use std::path::Path;

/// The most bytes of output that are read at a time.
const BATCH_BYTES: usize = 64 * 1024;
/// The most bytes of text in one part, so that a part fits a frame.
const TEXT_LIMIT: usize = 64 * 1024;

/// The output of one dispatch, with the place that was reached.
pub(in crate::conversation) struct Output {
    pub(in crate::conversation) dispatch: DispatchId,
    reader: Reader,
    live: LiveReader,
    cursor: Cursor,
    /// The epoch of the newest record.
    epoch: u32,
    /// The record at which the stream can be read anew, with the bytes to leave out.
    rest: (Cursor, u32),
    /// The parts since that record.
    parts: u32,
    /// So many parts are known to the client already.
    known: u32,
    /// So many bytes of the next record belong to an earlier line.
    skip: u32,
}

impl Output {
    /// Returns the output from `place` on: of its beginning if the place is of another dispatch.
    ///
    /// # Errors
    /// This build has no such backend.
    pub(in crate::conversation) fn new(
        dispatch: &Dispatch,
        spool: &Path,
        place: &ThreadPlace,
    ) -> Result<Self, BackendError> {
        let backend = muleteer_backends::by_name(&dispatch.created.backend)?;
        let is_same = place.dispatch == dispatch.id.as_str();
        let (cursor, skip, known) = match is_same {
            true => (Cursor { epoch: place.epoch, offset: place.offset }, place.skip, place.parts),
            false => (Cursor::start_of(0), 0, 0),
        };
        let mut output = Self {
            dispatch: dispatch.id.clone(),
            reader: Reader::open(spool),
            live: LiveReader::new(backend),
            cursor,
            epoch: cursor.epoch,
            rest: (cursor, skip),
            parts: 0,
            known,
            skip,
        };
        output.know(dispatch);
        Ok(output)
    }

    /// Returns the place of a client that wants what comes from now on.
    pub(in crate::conversation) fn present(dispatch: &Dispatch) -> ThreadPlace {
        Self::place_at(dispatch, dispatch.position)
    }

    /// Returns the place of a client that wants what comes after a position.
    pub(in crate::conversation) fn place_at(dispatch: &Dispatch, at: Position) -> ThreadPlace {
        ThreadPlace {
            messages: 0,
            dispatch: dispatch.id.to_string(),
            epoch: at.epoch,
            offset: at.offset,
            skip: at.skip,
            parts: 0,
        }
    }

    /// Takes note of the prompts of the dispatch.
    pub(in crate::conversation) fn know(&mut self, dispatch: &Dispatch) {
        self.live.know(dispatch.prompts.iter().map(|prompt| shown(&prompt.key)));
    }

    /// Adds the next parts with their places to `parts`. Returns whether there is more. It blocks
    /// for the disk.
    pub(in crate::conversation) fn read(
        &mut self,
        messages: u64,
        parts: &mut Vec<(ThreadPlace, Part)>,
    ) -> bool {
        let batch = match self.reader.read(self.cursor, BATCH_BYTES) {
            Ok(batch) => batch,
            Err(error) => return self.pass_over(&error, messages, parts),
        };
        for record in &batch.records {
            self.take(record, messages, parts);
        }
        self.cursor = batch.next;
        batch.state == State::More
    }

    /// Continues after a part of the output that cannot be read.
    fn pass_over(
        &mut self,
        error: &ReadError,
        messages: u64,
        parts: &mut Vec<(ThreadPlace, Part)>,
    ) -> bool {
        let Some(resume) = error.resume().filter(|resume| *resume > self.cursor) else {
            return false;
        };
        let ended = self.live.next_process();
        self.add(ended, messages, parts);
        let is_cut = matches!(error, ReadError::Missing { .. });
        (self.cursor, self.epoch) = (resume, resume.epoch);
        (self.rest, self.parts, self.known, self.skip) = ((resume, 0), 0, 0, 0);
        // The beginning of a long output is always missing.
        if !is_cut {
            let text = format!("a part of the agent's output is lost: {error}");
            parts.push((self.place(messages), Part::Notice { text }));
        }
        true
    }

    fn take(&mut self, record: &Record, messages: u64, parts: &mut Vec<(ThreadPlace, Part)>) {
        if record.start.epoch != self.epoch {
            let ended = self.live.next_process();
            self.add(ended, messages, parts);
            self.epoch = record.start.epoch;
            (self.rest, self.parts, self.known, self.skip) = ((record.start, 0), 0, 0, 0);
        }
        let skip = std::mem::take(&mut self.skip) as usize;
        let live = match record.stream {
            Stream::Stdout => self.live.stdout(record.bytes.get(skip..).unwrap_or_default()),
            Stream::Control => match Control::decode(&record.bytes) {
                Control::StdinWritten { idem, ok: true } => self.live.written(&idem),
                _ => vec![],
            },
            _ => vec![],
        };
        self.add(live, messages, parts);
        if self.live.is_at_rest() {
            (self.rest, self.parts, self.known) = ((record.end, 0), 0, 0);
            // The client continues after this record.
            if let Some((last, _)) = parts.last_mut() {
                *last = self.place(messages);
            }
        }
    }

    fn add(&mut self, live: Vec<Live>, messages: u64, parts: &mut Vec<(ThreadPlace, Part)>) {
        for one in live {
            for part in parts_of(one) {
                self.parts += 1;
                if self.known >= self.parts {
                    continue;
                }
                parts.push((self.place(messages), part));
            }
        }
    }

    pub(in crate::conversation) fn place(&self, messages: u64) -> ThreadPlace {
        let (at, skip) = self.rest;
        ThreadPlace {
            messages,
            dispatch: self.dispatch.to_string(),
            epoch: at.epoch,
            offset: at.offset,
            skip,
            parts: self.parts.max(self.known),
        }
    }
}

fn parts_of(live: Live) -> Vec<Part> {
    match live {
        Live::Text(text) => pieces(text).into_iter().map(|text| Part::Text { text }).collect(),
        Live::TextEnd => vec![Part::TextEnd],
        Live::Call { id, name, target } => vec![Part::Call { id, name, target }],
        Live::CallEnd { id, ok, text } => vec![Part::CallEnd { id, ok, text }],
        Live::TurnEnd { ok } => vec![Part::TurnEnd { ok }],
        Live::Notice(text) => vec![Part::Notice { text }],
    }
}

/// Cuts a text into pieces that fit a frame.
fn pieces(text: String) -> Vec<String> {
    let mut pieces = vec![];
    let mut rest = text.as_str();
    while rest.len() > TEXT_LIMIT {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(TEXT_LIMIT));
        pieces.push(piece.to_string());
        rest = after;
    }
    pieces.push(rest.to_string());
    pieces
}
