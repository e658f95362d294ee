//! What an agent's spool says, piece by piece: the backend's events for its stdout, lines for its
//! stderr, and a mark where something is lost.

use jiff::Timestamp;
use muleteer_backends::{Backend, Line, Parser};
use muleteer_model::agent_event::AgentEvent;
use muleteer_shim::spool::{Record, Stream};
use serde_json::{Value, json};

/// Longest line of stderr shown in one piece.
const STDERR_LIMIT: usize = 64 << 10;

#[derive(Debug)]
pub enum Piece {
    /// As it was printed, for `--raw`.
    Bytes {
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// `t` is seconds since the first record of the agent.
    Event {
        at_ms: u64,
        t: f64,
        event: Box<AgentEvent>,
    },
    Stderr {
        at_ms: u64,
        text: String,
    },
    Gap {
        message: String,
    },
}

impl Piece {
    pub fn raw(record: Record) -> Self {
        Self::Bytes { stream: record.stream, bytes: record.bytes }
    }

    /// One line of `logs --json`: an agent event (docs/contract.md, "Streams for the monitors") with
    /// the time it was read at, or one of `stderr` and `gap`, which only logs have.
    pub fn json(&self) -> Option<Value> {
        let with_time = |at_ms: u64, t: Option<f64>, more: Value| {
            let mut value = json!({ "ts": time(at_ms) });
            if let (Some(object), Value::Object(more)) = (value.as_object_mut(), more) {
                object.extend(t.map(|t| ("t".to_string(), json!(t))));
                object.extend(more);
            }
            value
        };
        match self {
            Self::Bytes { .. } => None,
            Self::Event { at_ms, t, event } => Some(with_time(*at_ms, Some(*t), serde_json::to_value(event).ok()?)),
            Self::Stderr { at_ms, text } => Some(with_time(*at_ms, None, json!({ "type": "stderr", "text": text }))),
            Self::Gap { message } => Some(json!({ "type": "gap", "message": message })),
        }
    }
}

fn time(at_ms: u64) -> Option<String> {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
    Some(format!("{at:.3}"))
}

/// Turns records into pieces. A new epoch is a new process: its first line continues nothing.
pub struct SpoolLines {
    backend: &'static dyn Backend,
    parser: Box<dyn Parser>,
    epoch: u32,
    first_ms: Option<u64>,
    last_ms: u64,
    stderr: Vec<u8>,
}

impl std::fmt::Debug for SpoolLines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpoolLines")
            .field("backend", &self.backend)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl SpoolLines {
    pub fn new(backend: &'static dyn Backend) -> Self {
        Self { backend, parser: backend.parser(), epoch: 0, first_ms: None, last_ms: 0, stderr: vec![] }
    }

    pub fn push(&mut self, record: Record) -> Vec<Piece> {
        let mut pieces = if record.start.epoch == self.epoch { vec![] } else { self.finish() };
        self.epoch = record.start.epoch;
        self.last_ms = record.wall_ms;
        self.first_ms.get_or_insert(record.wall_ms);
        match record.stream {
            Stream::Stdout => {
                let lines = self.parser.push(&record.bytes);
                pieces.extend(self.events(lines));
            }
            Stream::Stderr => {
                self.stderr.extend_from_slice(&record.bytes);
                while let Some(end) = self.stderr.iter().position(|byte| *byte == b'\n').or_else(|| self.overlong()) {
                    let line: Vec<u8> = self.stderr.drain(..=end).collect();
                    pieces.push(self.stderr_line(&line));
                }
            }
            _ => {}
        }
        pieces
    }

    /// The last line of each stream, if it had no newline, and a new beginning.
    pub fn finish(&mut self) -> Vec<Piece> {
        let lines = self.parser.finish();
        self.parser = self.backend.parser();
        let mut pieces = self.events(lines);
        let rest = std::mem::take(&mut self.stderr);
        if !rest.is_empty() {
            pieces.push(self.stderr_line(&rest));
        }
        pieces
    }

    #[allow(clippy::cast_precision_loss)] // Milliseconds of a life fit a float.
    fn events(&self, lines: Vec<Line>) -> Vec<Piece> {
        let (at_ms, first) = (self.last_ms, self.first_ms.unwrap_or(self.last_ms));
        let t = at_ms.saturating_sub(first) as f64 / 1e3;
        lines
            .into_iter()
            .flat_map(|line| line.events)
            .map(|timed| Piece::Event { at_ms, t, event: Box::new(timed.event) })
            .collect()
    }

    fn stderr_line(&self, bytes: &[u8]) -> Piece {
        Piece::Stderr {
            at_ms: self.last_ms,
            text: String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).to_string(),
        }
    }

    fn overlong(&self) -> Option<usize> {
        (self.stderr.len() >= STDERR_LIMIT).then_some(STDERR_LIMIT - 1)
    }
}
