//! Splits bytes into lines in constant memory, however long the lines are and however they are cut.

use crate::stream::text;
use muleteer_model::agent::event::{AgentEvent, Timed};
use muleteer_model::text::foreign_json::{self, Damage, Document, Reader, may_be_object};
use serde_json::Value;
use split::Part;
pub(crate) use split::{Before, next_object};

mod split;

/// The longest line that is kept whole. A screenshot or a document that an agent read comes back as
/// one line of base64. A longer line that is a JSON object is parsed while it arrives, with its
/// long texts shortened. Any other longer line becomes one `unknown` event with its beginning.
pub const LINE_LIMIT: usize = 8 * 1024 * 1024;

/// How much of a line that is parsed while it arrives is kept for display.
const HEAD: usize = 64 * 1024;

/// The longest line of stderr that is read.
const ASIDE_LIMIT: usize = 16 * 1024;

/// The buffer capacity kept between lines. Memory that a long line needed beyond it is freed.
const ROOM_KEPT: usize = 64 * 1024;

/// A pure function from bytes to events, fed in pieces of any size.
///
/// The events of a line depend on that line only. So a parser created at any line boundary returns,
/// for the rest of the stream, the same events as the old one.
pub trait Parser: Send {
    /// Returns the lines completed by `bytes`, in order. It keeps an incomplete last line for the
    /// next call.
    fn push(&mut self, bytes: &[u8]) -> Vec<Line>;

    /// Ends the stream and returns the last line, if it had no newline.
    fn finish(&mut self) -> Vec<Line>;

    /// From now on the parser does not report lines of plain output one by one: many of them come
    /// as one [`Line`] without events. The daemon uses it, because it has no use for their text.
    /// Nothing else changes.
    fn pass_over_output(&mut self);

    /// Returns the events in `bytes` of the agent's stderr. These bytes do not count as consumed
    /// output.
    fn aside(&mut self, bytes: &[u8]) -> Vec<AgentEvent>;
}

/// The events of one line of stdout.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Bytes of stdout up to and including this line's newline, since the parser began.
    pub consumed: u64,
    /// Usually one event; several for a message of several parts; none for a line that is known to
    /// mean nothing here (an empty line, an acknowledgement).
    pub events: Vec<Timed>,
    /// The line was longer than [`LINE_LIMIT`] and not a JSON object; its events hold only its
    /// beginning.
    pub raw_cut: bool,
    /// The time that the line itself contains, in Unix seconds.
    pub told_at: Option<f64>,
    /// The line contains only white space, or says nothing to a person.
    pub blank: bool,
}

/// One line (without its newline) that may be JSON.
pub(crate) struct Text<'a> {
    /// The line, or the beginning of a line that was parsed while it arrived.
    pub bytes: &'a [u8],
    /// A newline ended it. Without one, the process ended while it wrote the line.
    pub ended: bool,
    /// The parsed JSON, if the line was already parsed.
    read: Option<Document>,
}

impl<'a> Text<'a> {
    pub fn is_blank(&self) -> bool {
        self.read.is_none() && is_blank(self.bytes)
    }

    /// Whether the line is certainly not a JSON object.
    pub fn is_no_object(&self) -> bool {
        !may_be_object(self.bytes)
    }

    /// Returns the line's JSON, and keeps it for [`Text::document`].
    pub fn peek(&mut self) -> &Document {
        self.read.get_or_insert_with(|| foreign_json::read(self.bytes))
    }

    /// Parses the line as JSON.
    pub fn document(&mut self) -> Document {
        self.read.take().unwrap_or_else(|| foreign_json::read(self.bytes))
    }
}

/// Interprets the lines of one CLI.
pub(crate) trait Meaning: Send {
    fn read(&self, line: Text<'_>) -> Understood;

    /// Whether an object that shares its line with other text means anything to this CLI.
    fn knows(&self, object: &Value, _before: Before) -> bool {
        ["type", "jsonrpc", "method", "id"].iter().any(|key| object.get(key).is_some())
    }

    /// Whether a line (with its newline) can only be plain output. This check does not parse the
    /// line.
    fn is_output(&self, _line: &[u8]) -> bool {
        false
    }

    /// Interprets a line of stderr. Most such lines are for people and have no event.
    fn aside(&self, _line: &str) -> Option<AgentEvent> {
        None
    }
}

#[derive(Debug, Default)]
pub(crate) struct Understood {
    pub events: Vec<Timed>,
    pub told_at: Option<f64>,
    /// The line belongs to the CLI's protocol. It is no output, also without an event.
    pub silent: bool,
}

impl Understood {
    pub fn one(event: AgentEvent) -> Self {
        Self::from(vec![event])
    }

    /// Returns the meaning of a line of a protocol, which need not have an event.
    pub fn quietly(events: Vec<AgentEvent>) -> Self {
        Self { silent: events.is_empty(), ..Self::from(events) }
    }

    pub fn unknown(raw: &[u8]) -> Self {
        Self::one(AgentEvent::Unknown { raw: text::lossy(raw) })
    }

    /// Prepends a notice about a line's fault to its events. Each kind of fault has one text,
    /// because a dispatch records each text once.
    #[must_use]
    pub fn with_fault(mut self, document: &Document) -> Self {
        let damage = document.damage.map(|damage| match damage {
            foreign_json::Damage::Garbled { .. } => "it is not JSON".to_string(),
            damage => damage.to_string(),
        });
        let damage = damage.map(|damage| format!("a line of its output is damaged: {damage}"));
        let repaired = |repair| format!("a line of its output had to be repaired: {repair}");
        let notices = damage.into_iter().chain(document.repairs.iter().map(repaired));
        let notices =
            notices.map(|text| Timed { t: 0.0, event: AgentEvent::Notice { text }, parent: None });
        self.events.splice(0..0, notices);
        self
    }
}

impl Understood {
    /// Turns text around a quoted result into `unknown` events. As `output` it would count as
    /// output after the program's own result.
    fn without_output_around_quotes(mut self) -> Self {
        let is_quote =
            |timed: &Timed| matches!(&timed.event, AgentEvent::Result(result) if result.quoted);
        if self.events.iter().any(is_quote) {
            for timed in &mut self.events {
                if let AgentEvent::Output { text } = &mut timed.event {
                    timed.event = AgentEvent::Unknown { raw: std::mem::take(text) };
                }
            }
        }
        self
    }
}

impl From<Vec<AgentEvent>> for Understood {
    fn from(events: Vec<AgentEvent>) -> Self {
        Self {
            events: events.into_iter().map(|event| Timed { t: 0.0, event, parent: None }).collect(),
            told_at: None,
            silent: false,
        }
    }
}

/// Cuts bytes into lines and lets `M` interpret each.
#[derive(Debug)]
pub(crate) struct LineParser<M> {
    meaning: M,
    /// The beginning of the incomplete line, at most [`LINE_LIMIT`] bytes of it.
    partial: Vec<u8>,
    /// More bytes arrived than `partial` holds.
    cut: bool,
    /// Parses an incomplete line that is longer than `partial` can hold, if it may be JSON.
    long: Option<Box<Reader>>,
    /// The number of bytes of the incomplete line, kept or not.
    pending: u64,
    consumed: u64,
    limit: usize,
    /// Plain output is passed over, see [`Parser::pass_over_output`].
    passing: bool,
    /// The incomplete line of stderr, at most [`ASIDE_LIMIT`] bytes of it.
    aside: Vec<u8>,
}

impl<M: Meaning> LineParser<M> {
    pub fn new(meaning: M) -> Self {
        Self::with_limit(meaning, LINE_LIMIT)
    }

    pub fn with_limit(meaning: M, limit: usize) -> Self {
        Self {
            meaning,
            partial: Vec::new(),
            cut: false,
            long: None,
            pending: 0,
            consumed: 0,
            limit,
            passing: false,
            aside: Vec::new(),
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.pending += bytes.len() as u64;
        if let Some(reader) = &mut self.long {
            return reader.push(bytes);
        }
        let room = self.limit - self.partial.len().min(self.limit);
        let over = bytes.len() > room;
        if over
            && !self.cut
            && may_be_object(if self.partial.is_empty() { bytes } else { &self.partial })
        {
            let mut reader = Box::new(Reader::long());
            reader.push(&self.partial);
            reader.push(bytes);
            self.partial.extend_from_slice(&bytes[..bytes.len().min(HEAD)]);
            self.partial.truncate(HEAD);
            self.partial.shrink_to(ROOM_KEPT);
            self.long = Some(reader);
            return;
        }
        self.cut |= over;
        self.partial.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Interprets a line, or each of its parts if it has several.
    fn understood(&self, mut line: Text<'_>) -> Understood {
        let may_be_more = match line.read {
            Some(_) => false,
            None if may_be_object(line.bytes) => {
                let document = foreign_json::read(line.bytes);
                let is_garbled = matches!(document.damage, Some(Damage::Garbled { .. }));
                line.read = Some(document);
                is_garbled
            }
            None => next_object(line.bytes, 0).is_some(),
        };
        let knows = |object: &Value, before| self.meaning.knows(object, before);
        let Some(parts) = may_be_more.then(|| split::split(line.bytes, &knows)).flatten() else {
            return self.meaning.read(line);
        };
        let mut understood = Understood::default();
        let last = parts.len() - 1;
        for (at, Part { bytes, document, is_quoted }) in parts.into_iter().enumerate() {
            let part = Text { bytes, ended: line.ended || at < last, read: document };
            let Understood { mut events, told_at, .. } = self.meaning.read(part);
            for timed in &mut events {
                if let AgentEvent::Result(result) = &mut timed.event {
                    result.quoted = is_quoted;
                }
            }
            understood.events.extend(events);
            understood.told_at = told_at.or(understood.told_at);
        }
        understood.without_output_around_quotes()
    }

    /// Ends the incomplete line with its last bytes `last`, which include the newline if there was
    /// one.
    fn end(&mut self, last: &[u8]) -> Line {
        let ended = last.ends_with(b"\n");
        // A line that arrived in one piece is parsed in place, without a copy.
        let whole = self.partial.is_empty() && !self.cut && last.len() <= self.limit;
        self.consumed += self.pending + last.len() as u64;
        if !whole {
            self.keep(if ended { &last[..last.len() - 1] } else { last });
        }
        let bytes = if whole { trim_end(last, ended) } else { trim_end(&self.partial, false) };
        let text = Text { bytes, ended, read: self.long.take().map(|reader| reader.finish()) };
        let blank = !self.cut && text.is_blank();
        let Understood { events, told_at, silent } = match self.cut {
            true => Understood::unknown(&self.partial),
            false => self.understood(text),
        };
        let blank = blank || silent;
        let line = Line { consumed: self.consumed, events, raw_cut: self.cut, told_at, blank };
        self.partial.clear();
        self.partial.shrink_to(ROOM_KEPT);
        self.cut = false;
        self.pending = 0;
        line
    }
}

impl<M: Meaning> Parser for LineParser<M> {
    fn push(&mut self, bytes: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut rest = bytes;
        let (mut passed, mut blank) = (false, true);
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, after) = rest.split_at(at + 1);
            passed = self.passing && self.pending == 0 && self.meaning.is_output(line);
            if passed {
                self.consumed += line.len() as u64;
                blank = blank && is_blank(line);
            } else {
                lines.push(self.end(line));
                blank = true;
            }
            rest = after;
        }
        if passed {
            lines.push(Line {
                consumed: self.consumed,
                events: vec![],
                raw_cut: false,
                told_at: None,
                blank,
            });
        }
        if !rest.is_empty() {
            self.keep(rest);
        }
        lines
    }

    fn pass_over_output(&mut self) {
        self.passing = true;
    }

    fn finish(&mut self) -> Vec<Line> {
        if self.pending == 0 { vec![] } else { vec![self.end(b"")] }
    }

    fn aside(&mut self, bytes: &[u8]) -> Vec<AgentEvent> {
        let mut told = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = ASIDE_LIMIT.saturating_sub(self.aside.len());
            self.aside.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                told.extend(self.meaning.aside(String::from_utf8_lossy(&self.aside).trim_end()));
                self.aside.clear();
            }
        }
        told
    }
}

fn is_blank(line: &[u8]) -> bool {
    line.trim_ascii_start().is_empty()
}

fn trim_end(line: &[u8], newline: bool) -> &[u8] {
    let line = if newline { &line[..line.len() - 1] } else { line };
    line.strip_suffix(b"\r").unwrap_or(line)
}
