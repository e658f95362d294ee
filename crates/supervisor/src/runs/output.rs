//! What an agent printed, read from its spool: for the judge's two passes, and for the last lines that the
//! next attempt is told.

use muleteer_model::agent_event::AgentEvent;
use muleteer_shim::spool::{Cursor, Reader, State, Stream};
use std::path::Path;

/// Of an agent that floods, the end counts.
const LIMIT: usize = 2 * 1024 * 1024;
const TAIL_LINES: usize = 50;

#[derive(Debug, Default)]
pub struct Said {
    /// Everything it said, in order.
    text: String,
    /// The final text of its last turn, where its CLI tells one.
    last: Option<String>,
    /// The document its CLI had it make, last.
    document: Option<serde_json::Value>,
    /// Its stdout, byte for byte.
    raw: String,
    stderr: String,
}

impl Said {
    /// Its answer: the last turn's text where there is one, else all it said.
    pub fn answer(&self) -> String {
        match &self.last {
            Some(last) if !last.trim().is_empty() && last.trim().len() * 2 >= self.text.trim().len() => last.clone(),
            _ if !self.text.trim().is_empty() => self.text.clone(),
            Some(last) => last.clone(),
            None => self.raw.clone(),
        }
    }

    /// What its CLI held it to; nothing where there is no such thing.
    pub fn document(&self) -> String {
        self.document.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// For a reader that finds a document anywhere.
    pub fn everything(&self) -> String {
        format!("{}\n{}\n{}", self.raw, self.text, self.last.as_deref().unwrap_or_default())
    }

    /// The last lines, as the reference keeps them.
    pub fn tail(&self) -> String {
        let said = if self.text.trim().is_empty() { &self.raw } else { &self.text };
        let all: Vec<&str> = said.lines().chain(self.stderr.lines()).collect();
        all[all.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

/// Reads the spool of an agent that has ended. What cannot be read is left out.
pub fn read(spool: &Path, backend: &str) -> Said {
    let mut said = Said::default();
    let Ok(backend) = muleteer_backends::by_name(backend) else { return said };
    let mut parser = backend.parser();
    let mut reader = Reader::open(spool);
    let mut cursor = Cursor::default();
    let mut raw = Vec::new();
    let mut stderr = Vec::new();
    let mut events = Vec::new();
    while let Ok(batch) = reader.read(cursor, 256 * 1024) {
        for record in &batch.records {
            match record.stream {
                Stream::Stdout => {
                    keep(&mut raw, &record.bytes);
                    events.extend(parser.push(&record.bytes).into_iter().flat_map(|line| line.events));
                }
                Stream::Stderr => keep(&mut stderr, &record.bytes),
                _ => {}
            }
        }
        take(&mut said, events.drain(..).map(|timed| timed.event));
        if batch.next == cursor || batch.state != State::More {
            break;
        }
        cursor = batch.next;
    }
    take(&mut said, parser.finish().into_iter().flat_map(|line| line.events).map(|timed| timed.event));
    said.raw = String::from_utf8_lossy(&raw).into_owned();
    said.stderr = String::from_utf8_lossy(&stderr).into_owned();
    said
}

fn keep(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(bytes);
    if into.len() > LIMIT * 2 {
        into.drain(..into.len() - LIMIT);
    }
}

fn take(said: &mut Said, events: impl Iterator<Item = AgentEvent>) {
    for event in events {
        match event {
            AgentEvent::Text { text, .. } => {
                said.text.push_str(&text);
                said.text.push('\n');
                if said.text.len() > LIMIT * 2 {
                    let mut from = said.text.len() - LIMIT;
                    while !said.text.is_char_boundary(from) {
                        from += 1;
                    }
                    said.text.drain(..from);
                }
            }
            AgentEvent::Result(result) => {
                said.last = result.text.or(said.last.take());
                said.document = result.structured.or(said.document.take());
            }
            _ => {}
        }
    }
}
