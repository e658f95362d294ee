//! Converts an agent's output to what a person watches: text as it arrives, and tool calls.
//!
//! Parsers report whole messages. Two kinds of CLI print text earlier: one prints pieces of a
//! message on lines of their own ([`Backend::text_delta`]), and one prints only pieces, which an
//! [`Assembly`] joins. Either way each piece appears here once.

use crate::stream::assembly::Assembly;
use crate::stream::lines::Parser;
use crate::{Backend, Line};
use muleteer_model::agent::acp_handshake::may_be_past;
use muleteer_model::agent::event::{AgentEvent, cut, target};
use std::collections::BTreeSet;

/// A longer line is no piece of text.
const DELTA_LIMIT: usize = 64 * 1024;
/// The most bytes of a tool's result.
const RESULT_LIMIT: usize = 512;

/// One thing that a person watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Live {
    /// The next piece of the agent's text.
    Text(String),
    /// The text block is complete.
    TextEnd,
    Call {
        id: String,
        name: String,
        target: String,
    },
    CallEnd {
        id: String,
        ok: bool,
        text: String,
    },
    TurnEnd {
        ok: bool,
    },
    Notice(String),
}

/// Reads the output of the processes of one agent.
pub struct LiveReader {
    backend: &'static dyn Backend,
    parser: Box<dyn Parser>,
    assembly: Option<Assembly>,
    /// The beginning of a line of stdout; empty if the line is longer than [`DELTA_LIMIT`].
    line: Vec<u8>,
    /// The stream is within a line.
    in_line: bool,
    too_long: bool,
    /// Text was reported since the last end of a block.
    in_text: bool,
    /// No message or call is under way.
    is_idle: bool,
    prompts: BTreeSet<String>,
    /// A prompt was written to an earlier process, or to this one.
    prompted: (bool, bool),
}

impl std::fmt::Debug for LiveReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveReader").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl LiveReader {
    pub fn new(backend: &'static dyn Backend) -> Self {
        Self {
            backend,
            parser: backend.parser(),
            assembly: assembly(backend),
            line: vec![],
            in_line: false,
            too_long: false,
            in_text: false,
            is_idle: true,
            prompts: BTreeSet::new(),
            prompted: (false, false),
        }
    }

    /// Names the prompts of the dispatch, as the shim's records name them. An agent that loads a
    /// session reports the session's past before the next of these; that past is left out.
    pub fn know(&mut self, prompts: impl IntoIterator<Item = String>) {
        self.prompts.extend(prompts);
    }

    /// Whether a new reader may begin at the next byte and report the same.
    pub fn is_at_rest(&self) -> bool {
        !self.in_line && !self.in_text && (self.assembly.is_none() || self.is_idle)
    }

    /// Ends the stream of one process; the next bytes come from its successor.
    pub fn next_process(&mut self) -> Vec<Live> {
        let mut live = vec![];
        let rest = self.parser.finish();
        self.events(rest, &mut live);
        self.flush(&mut live);
        self.end_text(&mut live);
        self.parser = self.backend.parser();
        self.assembly = assembly(self.backend);
        self.line.clear();
        (self.in_line, self.too_long, self.is_idle) = (false, false, true);
        self.prompted = (self.prompted.0 || self.prompted.1, false);
        live
    }

    /// Takes the shim's report that it wrote the bytes of a key.
    pub fn written(&mut self, key: &str) -> Vec<Live> {
        let mut live = vec![];
        if self.assembly.is_some() && self.prompts.contains(key) {
            self.flush(&mut live);
            self.prompted.1 = true;
        }
        live
    }

    /// Takes bytes of the agent's stdout.
    pub fn stdout(&mut self, bytes: &[u8]) -> Vec<Live> {
        let mut live = vec![];
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            if !self.too_long && self.line.len() + part.len() <= DELTA_LIMIT {
                self.line.extend_from_slice(part);
            } else {
                self.line.clear();
                self.too_long = true;
            }
            if is_whole && let Some(text) = self.backend.text_delta(&self.line) {
                self.text(text, &mut live);
            }
            let lines = self.parser.push(part);
            self.events(lines, &mut live);
            self.in_line = !is_whole;
            if is_whole {
                self.line.clear();
                self.too_long = false;
            }
        }
        live
    }

    fn events(&mut self, lines: Vec<Line>, live: &mut Vec<Live>) {
        for timed in lines.into_iter().flat_map(|line| line.events) {
            // A subagent's output is part of the call that runs it.
            if timed.parent.is_some() || self.is_past(&timed.event) {
                continue;
            }
            match (&mut self.assembly, timed.event) {
                (Some(assembly), AgentEvent::Text { text, .. }) => {
                    let held = assembly.push([]);
                    self.is_idle = false;
                    held.into_iter().for_each(|event| self.event(event, live));
                    self.text(text, live);
                }
                (Some(assembly), event) => {
                    self.is_idle = matches!(event, AgentEvent::Result(_));
                    let events = assembly.push([event]);
                    events.into_iter().for_each(|event| self.event(event, live));
                }
                // The message arrived in pieces.
                (None, AgentEvent::Text { .. }) if self.in_text => self.end_text(live),
                (None, AgentEvent::Text { text, .. }) => {
                    self.text(text, live);
                    self.end_text(live);
                }
                (None, event) => self.event(event, live),
            }
        }
    }

    /// Whether an event may be of the past of a loaded session.
    fn is_past(&self, event: &AgentEvent) -> bool {
        self.assembly.is_some() && self.prompted == (true, false) && may_be_past(event)
    }

    fn flush(&mut self, live: &mut Vec<Live>) {
        let held = self.assembly.as_mut().map(Assembly::finish).unwrap_or_default();
        held.into_iter().for_each(|event| self.event(event, live));
    }

    fn text(&mut self, text: String, live: &mut Vec<Live>) {
        if text.is_empty() {
            return;
        }
        self.in_text = true;
        match live.last_mut() {
            Some(Live::Text(last)) => last.push_str(&text),
            _ => live.push(Live::Text(text)),
        }
    }

    fn end_text(&mut self, live: &mut Vec<Live>) {
        if std::mem::take(&mut self.in_text) {
            live.push(Live::TextEnd);
        }
    }

    fn event(&mut self, event: AgentEvent, live: &mut Vec<Live>) {
        let shown = match event {
            AgentEvent::ToolCall { id, name, input } => {
                let target = target(&name, &input);
                Live::Call { id, name, target }
            }
            AgentEvent::ToolResult { id, ok, text, .. } => {
                Live::CallEnd { id, ok, text: cut(&text, RESULT_LIMIT) }
            }
            AgentEvent::Result(result) => Live::TurnEnd { ok: result.ok },
            AgentEvent::Compaction { before, after } if before > 0 => {
                Live::Notice(format!("the context was compacted: {before} to {after} tokens"))
            }
            AgentEvent::Compaction { .. } => Live::Notice("the context was compacted".into()),
            AgentEvent::ApiRetry { attempt, max, .. } => {
                Live::Notice(format!("the model API failed; retry {attempt} of {max}"))
            }
            AgentEvent::Notice { text } => Live::Notice(cut(&text, RESULT_LIMIT)),
            // The return value of an assembly was reported piece by piece.
            _ => return,
        };
        self.end_text(live);
        live.push(shown);
    }
}

fn assembly(backend: &dyn Backend) -> Option<Assembly> {
    backend.by_calls().then(Assembly::default)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    fn read(backend: &str, lines: &[Value], piece: usize) -> Vec<Live> {
        let mut reader = LiveReader::new(crate::by_name(backend).unwrap());
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut all: Vec<Live> = vec![];
        for live in lines.as_bytes().chunks(piece).flat_map(|bytes| reader.stdout(bytes)) {
            match (all.last_mut(), live) {
                (Some(Live::Text(last)), Live::Text(text)) => last.push_str(&text),
                (_, live) => all.push(live),
            }
        }
        assert!(reader.is_at_rest());
        all
    }

    fn claude() -> Vec<Value> {
        let delta = |text: &str| {
            json!({"type": "stream_event", "parent_tool_use_id": null, "event":
                {"type": "content_block_delta", "index": 0,
                    "delta": {"type": "text_delta", "text": text}}})
        };
        let message = |content: Value| {
            json!({"type": "assistant", "parent_tool_use_id": null,
                "message": {"id": "m", "role": "assistant", "model": "x", "content": [content]}})
        };
        let of_a_subagent = json!({"type": "stream_event", "parent_tool_use_id": "t", "event":
            {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hidden"}}});
        vec![
            delta("I "),
            of_a_subagent,
            delta("look."),
            message(json!({"type": "text", "text": "I look."})),
            message(json!({"type": "tool_use", "id": "t", "name": "Bash",
                "input": {"command": "ls"}})),
            json!({"type": "user", "parent_tool_use_id": null, "message": {"role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a"}]}}),
            message(json!({"type": "text", "text": "Done."})),
        ]
    }

    fn text(text: &str) -> Live {
        Live::Text(text.into())
    }

    #[test]
    fn text_appears_once_whether_it_arrives_in_pieces_or_whole() {
        let call = Live::Call { id: "t".into(), name: "Bash".into(), target: "ls".into() };
        let end = Live::CallEnd { id: "t".into(), ok: true, text: "a".into() };
        for piece in [7, 100, 100_000] {
            let all = [
                text("I look."),
                Live::TextEnd,
                call.clone(),
                end.clone(),
                text("Done."),
                Live::TextEnd,
            ];
            assert_eq!(read("claude-code", &claude(), piece), all);
        }
    }

    #[test]
    fn chunks_of_an_acp_agent_are_reported_as_they_arrive() {
        let update = |update: Value| {
            json!({"jsonrpc": "2.0", "method": "session/update",
                "params": {"sessionId": "s", "update": update}})
        };
        let chunk = |text: &str| {
            update(json!({"sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": text}}))
        };
        let mut reader = LiveReader::new(crate::by_name("acp").unwrap());
        let mut push = |line: Value| reader.stdout(format!("{line}\n").as_bytes());
        assert_eq!(push(chunk("I lo")), [text("I lo")]);
        assert_eq!(push(chunk("ok.")), [text("ok.")]);
        let call = update(json!({"sessionUpdate": "tool_call", "toolCallId": "c",
            "kind": "execute", "title": "ls", "status": "in_progress",
            "rawInput": {"command": "ls"}}));
        let shown = push(call);
        assert_eq!(shown[0], Live::TextEnd);
        assert!(matches!(&shown[1], Live::Call { target, .. } if target == "ls"), "{shown:?}");
        assert!(!reader.is_at_rest());
    }
}
