//! Reads an agent's output from its spool. The judge's two passes use it, and so does the next
//! attempt, which gets the last lines.

use muleteer_backends::Assembly;
use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::Parser;
use muleteer_model::agent::event::AgentEvent;
use muleteer_shim::spool::{Cursor, Reader, State, Stream};
use std::path::Path;

/// The limit of the output. If an agent prints more, only the end is kept.
const LIMIT: usize = 2 * 1024 * 1024;
const TAIL_LINES: usize = 50;

#[derive(Debug, Default)]
pub struct Said {
    /// All messages of the agent, in order.
    text: String,
    /// The final text of its last turn, if its CLI reports it.
    last: Option<String>,
    /// The last structured document that its CLI demanded.
    document: Option<serde_json::Value>,
    /// Its stdout, byte for byte.
    raw: String,
    stderr: String,
}

impl Said {
    /// Returns the agent's answer: the text of the last turn if there is one, else all its
    /// messages.
    pub fn answer(&self) -> String {
        match &self.last {
            Some(last)
                if !last.trim().is_empty() && last.trim().len() * 2 >= self.text.trim().len() =>
            {
                last.clone()
            }
            _ if !self.text.trim().is_empty() => self.text.clone(),
            Some(last) => last.clone(),
            None => self.raw.clone(),
        }
    }

    /// Returns the document that the agent gave its CLI as structured output, or an empty text.
    pub fn document(&self) -> String {
        self.document.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns all output, for a reader that searches for a document in it.
    pub fn everything(&self) -> String {
        format!("{}\n{}\n{}", self.raw, self.text, self.last.as_deref().unwrap_or_default())
    }

    /// Returns the last lines of its output.
    pub fn tail(&self) -> String {
        let said = if self.text.trim().is_empty() { &self.raw } else { &self.text };
        let all: Vec<&str> = said.lines().chain(self.stderr.lines()).collect();
        all[all.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

/// Reads the spool of an agent that has ended. Unreadable records are left out.
pub fn read(spool: &Path, backend: &str) -> Said {
    let Ok(backend) = muleteer_backends::by_name(backend) else { return Said::default() };
    let mut listener = Listener::new(backend);
    let mut reader = Reader::open(spool);
    let mut cursor = Cursor::default();
    while let Ok(batch) = reader.read(cursor, 256 * 1024) {
        for record in &batch.records {
            match record.stream {
                Stream::Stdout => listener.stdout(&record.bytes),
                Stream::Stderr => keep(&mut listener.stderr, &record.bytes),
                _ => {}
            }
        }
        if batch.next == cursor || batch.state != State::More {
            break;
        }
        cursor = batch.next;
    }
    listener.finish()
}

/// Assembles an agent's messages from its output.
struct Listener {
    parser: Box<dyn Parser>,
    /// Joins messages that come in chunks, because a verdict has no line break where a chunk ends.
    pieces: Option<Assembly>,
    said: Said,
    raw: Vec<u8>,
    stderr: Vec<u8>,
}

impl Listener {
    fn new(backend: &dyn Backend) -> Self {
        let pieces = backend.by_calls().then(|| Assembly::whole(LIMIT));
        Self {
            parser: backend.parser(),
            pieces,
            said: Said::default(),
            raw: vec![],
            stderr: vec![],
        }
    }

    fn stdout(&mut self, bytes: &[u8]) {
        keep(&mut self.raw, bytes);
        let lines = self.parser.push(bytes);
        self.hear(lines);
    }

    fn hear(&mut self, lines: Vec<Line>) {
        let events = lines.into_iter().flat_map(|line| line.events).map(|timed| timed.event);
        match &mut self.pieces {
            Some(pieces) => take(&mut self.said, pieces.push(events).into_iter()),
            None => take(&mut self.said, events),
        }
    }

    fn finish(mut self) -> Said {
        let lines = self.parser.finish();
        self.hear(lines);
        take(&mut self.said, self.pieces.iter_mut().flat_map(Assembly::finish));
        self.said.raw = String::from_utf8_lossy(&self.raw).into_owned();
        self.said.stderr = String::from_utf8_lossy(&self.stderr).into_owned();
        self.said
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::spec_run::judge;
    use serde_json::{Value, json};

    fn update(update: &Value) -> String {
        json!({
            "jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": "s", "update": update}
        })
        .to_string()
    }

    fn chunk(text: &str) -> String {
        update(&json!({
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}
        }))
    }

    fn said(lines: &[String], at_once: usize) -> Said {
        let mut listener = Listener::new(muleteer_backends::by_name("acp").unwrap());
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        text.as_bytes().chunks(at_once).for_each(|bytes| listener.stdout(bytes));
        listener.finish()
    }

    /// A verdict is one document wherever its text is cut into chunks, even with cost reports
    /// between them.
    #[test]
    fn a_verdict_in_chunks_is_read_whole_wherever_it_is_cut() {
        let verdict = json!({
            "status": "success",
            "specDrift": {"detected": false, "issues": []},
            "acceptance": {"passed": true, "results": [
                {"criterion": "ten", "passed": true, "evidence": "seen \"x\" "}
            ]},
            "observations": [], "newBeads": [],
        });
        let verdict = format!(
            "Here it is:\n```json\n{}\n```\n",
            serde_json::to_string_pretty(&verdict).unwrap()
        );
        let cost = json!({
            "sessionUpdate": "usage_update", "used": 1, "cost": {"amount": 0.1, "currency": "USD"}
        });
        for size in [1, 2, 3, 7, 50, 5000] {
            let all: Vec<char> = verdict.chars().collect();
            let mut lines: Vec<String> =
                all.chunks(size).map(|piece| chunk(&piece.iter().collect::<String>())).collect();
            lines.insert(lines.len() / 2, update(&cost));
            let said = said(&lines, 100);
            assert_eq!(said.answer(), format!("{verdict}\n"), "{size}");
            judge::read([said.answer().as_str()]).unwrap_or_else(|bad| panic!("{size}: {bad:?}"));
        }
    }

    #[test]
    fn a_long_reasoning_is_not_cut() {
        let word = "reason ".repeat(10);
        let lines: Vec<String> = (0..2000).map(|_| chunk(&word)).collect();
        assert_eq!(said(&lines, 4096).answer().trim_end(), word.repeat(2000).trim_end());
    }

    /// The next attempt reads the last lines as a person would have seen them.
    #[test]
    fn the_last_lines_are_lines_of_messages_and_not_of_chunks() {
        let call = json!({
            "sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "title": "ls",
            "status": "completed", "rawInput": {"command": "ls"}
        });
        let lines = [chunk("I lo"), chunk("ok."), update(&call), chunk("No"), chunk(" time left.")];
        assert_eq!(said(&lines, 64).tail(), "I look.\nNo time left.");
    }
}
