//! Converts an agent's spool to pieces: the backend's events for stdout, lines for stderr, and a
//! marker where data is lost.

use jiff::Timestamp;
use muleteer_backends::Assembly;
use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::Parser;
use muleteer_model::agent::acp_handshake::{CallAnswer, may_be_past};
use muleteer_model::agent::event::AgentEvent;
use muleteer_model::agent::permission::Policy;
use muleteer_shim::control::Control;
use muleteer_shim::spool::{Record, Stream};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The longest line of stderr that is shown in one piece.
const STDERR_LIMIT: usize = 64 << 10;
/// The longest message that is shown in one piece.
const MESSAGE_LIMIT: usize = 256 << 10;

#[derive(Debug)]
pub enum Piece {
    /// Bytes as the agent printed them, for `--raw`.
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

    /// Returns one line of `logs --json`. It is an agent event (docs/contract.md, "Streams for the
    /// monitors") with the time at which it was read, or a `stderr` or `gap` line, which only logs
    /// have.
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
            Self::Event { at_ms, t, event } => {
                Some(with_time(*at_ms, Some(*t), serde_json::to_value(event).ok()?))
            }
            Self::Stderr { at_ms, text } => {
                Some(with_time(*at_ms, None, json!({ "type": "stderr", "text": text })))
            }
            Self::Gap { message } => Some(json!({ "type": "gap", "message": message })),
        }
    }
}

fn time(at_ms: u64) -> Option<String> {
    let at = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
    Some(format!("{at:.3}"))
}

fn assembly(backend: &dyn Backend) -> Option<Assembly> {
    backend.by_calls().then(|| Assembly::whole(MESSAGE_LIMIT))
}

/// Converts records to pieces. A new epoch is a new process, so its first line does not continue an
/// earlier one.
pub struct SpoolLines {
    backend: &'static dyn Backend,
    parser: Box<dyn Parser>,
    /// For agents that send messages and calls in parts: each is shown once, completely.
    assembly: Option<Assembly>,
    /// The policy that answers the agent's permission requests, and the agent's working directory.
    policy: Option<(Policy, String)>,
    /// The prompts of the dispatch, by the names that the shim's records give them.
    prompts: BTreeSet<String>,
    /// A prompt was written to an earlier process, or to this one.
    prompted: (bool, bool),
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
        Self {
            backend,
            parser: backend.parser(),
            assembly: assembly(backend),
            policy: None,
            prompts: BTreeSet::new(),
            prompted: (false, false),
            epoch: 0,
            first_ms: None,
            last_ms: 0,
            stderr: vec![],
        }
    }

    /// Leaves out permission requests that the policy allowed, because nobody had to answer them.
    #[must_use]
    pub fn answered_by(self, policy: &Policy, cwd: &str) -> Self {
        Self { policy: Some((policy.clone(), cwd.to_string())), ..self }
    }

    /// Names the prompts of the dispatch. An agent that loads a session reports the session's past
    /// before the next of these is written to it; that past is left out, because earlier output has
    /// it.
    pub fn know(&mut self, prompts: impl IntoIterator<Item = String>) {
        self.prompts.extend(prompts);
    }

    /// Whether the output is the past of a session.
    fn is_past(&self) -> bool {
        self.assembly.is_some() && self.prompted == (true, false)
    }

    pub fn push(&mut self, record: Record) -> Vec<Piece> {
        let mut pieces = vec![];
        if record.start.epoch != self.epoch {
            pieces = self.finish();
            self.prompted = (self.prompted.0 || self.prompted.1, false);
        }
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
                while let Some(end) =
                    self.stderr.iter().position(|byte| *byte == b'\n').or_else(|| self.overlong())
                {
                    let line: Vec<u8> = self.stderr.drain(..=end).collect();
                    pieces.push(self.stderr_line(&line));
                }
            }
            Stream::Control if self.assembly.is_some() => {
                if let Control::StdinWritten { idem, ok: true } = Control::decode(&record.bytes)
                    && self.prompts.contains(&idem)
                {
                    let held = self.assembly.as_mut().map(Assembly::finish).unwrap_or_default();
                    pieces.extend(self.pieces(held));
                    self.prompted.1 = true;
                }
            }
            _ => {}
        }
        pieces
    }

    /// Returns the last line of each stream if it had no newline, and resets the parser.
    pub fn finish(&mut self) -> Vec<Piece> {
        let lines = self.parser.finish();
        self.parser = self.backend.parser();
        let mut pieces = self.events(lines);
        let held = std::mem::replace(&mut self.assembly, assembly(self.backend));
        pieces.extend(
            self.pieces(held.into_iter().flat_map(|mut assembly| assembly.finish()).collect()),
        );
        let rest = std::mem::take(&mut self.stderr);
        if !rest.is_empty() {
            pieces.push(self.stderr_line(&rest));
        }
        pieces
    }

    #[allow(clippy::cast_precision_loss)] // Milliseconds of an agent's life fit a float.
    fn pieces(&self, events: Vec<AgentEvent>) -> Vec<Piece> {
        let (at_ms, first) = (self.last_ms, self.first_ms.unwrap_or(self.last_ms));
        let t = at_ms.saturating_sub(first) as f64 / 1e3;
        let is_past = self.is_past();
        events
            .into_iter()
            .filter(|event| !(is_past && may_be_past(event)))
            // Only the daemon uses these events; the call itself is shown.
            .filter(|event| {
                let is_state = |reply: &CallAnswer| {
                    matches!(reply, CallAnswer::ToolRuns { .. } | CallAnswer::ToolAnnounced { .. })
                };
                !matches!(event, AgentEvent::CallAnswer(reply) if is_state(reply))
            })
            .filter(|event| {
                !self.policy.as_ref().is_some_and(|(policy, cwd)| policy.allows(event, cwd))
            })
            .map(|event| Piece::Event { at_ms, t, event: Box::new(event) })
            .collect()
    }

    fn events(&mut self, lines: Vec<Line>) -> Vec<Piece> {
        let events = lines.into_iter().flat_map(|line| line.events).map(|timed| timed.event);
        let events = match &mut self.assembly {
            Some(assembly) => assembly.push(events),
            None => events.collect(),
        };
        self.pieces(events)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::agent::permission::{Mode, Policy};
    use muleteer_shim::spool::Cursor;

    fn shown(policy: Option<Policy>, lines: &[Value]) -> Vec<Value> {
        let mut spool = SpoolLines::new(muleteer_backends::by_name("acp").unwrap());
        if let Some(policy) = policy {
            spool = spool.answered_by(&policy, "/repo");
        }
        let mut pieces = printed(&mut spool, 1, lines);
        pieces.extend(spool.finish());
        pieces.iter().filter_map(Piece::json).collect()
    }

    /// Feeds what a process printed. Records may end anywhere, even in the middle of a line.
    fn printed(spool: &mut SpoolLines, epoch: u32, lines: &[Value]) -> Vec<Piece> {
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let chunks = lines.as_bytes().chunks(37);
        chunks.flat_map(|bytes| spool.push(record(epoch, Stream::Stdout, bytes))).collect()
    }

    fn record(epoch: u32, stream: Stream, bytes: &[u8]) -> Record {
        let at = Cursor { epoch, offset: 0 };
        let bytes = bytes.to_vec();
        Record { seq: 0, stream, wall_ms: 0, awake_ms: 0, bytes, start: at, end: at }
    }

    fn written(spool: &mut SpoolLines, epoch: u32, prompt: &str) -> Vec<Piece> {
        let written = Control::StdinWritten { idem: prompt.into(), ok: true }.encode();
        spool.push(record(epoch, Stream::Control, &written))
    }

    /// Some agents report the past before they answer `session/load`, some after it. A call of ours
    /// is no prompt.
    #[test]
    fn past_of_a_loaded_session_is_left_out() {
        let mut spool = SpoolLines::new(muleteer_backends::by_name("acp").unwrap());
        spool.know(["p1".to_string(), "p2".to_string()]);
        let mut pieces = printed(&mut spool, 1, &[chunk("Hello. ")]);
        pieces.extend(written(&mut spool, 1, "p1"));
        pieces.extend(printed(&mut spool, 1, &session()));
        let opened = json!({"jsonrpc": "2.0", "id": "session/load", "result": {}});
        pieces.extend(printed(&mut spool, 2, &[chunk("Hello. ")]));
        pieces.extend(written(&mut spool, 2, "call"));
        pieces.extend(printed(&mut spool, 2, &[opened]));
        pieces.extend(printed(&mut spool, 2, &session()));
        pieces.extend(written(&mut spool, 2, "p2"));
        pieces.extend(printed(&mut spool, 2, &[chunk("And "), chunk("more.")]));
        pieces.extend(spool.finish());
        let shown: Vec<_> = pieces.iter().filter_map(Piece::json).collect();
        let texts = shown.iter().filter(|piece| piece["type"] == "text");
        let texts: Vec<_> = texts.map(|piece| piece["text"].clone()).collect();
        assert_eq!(texts, ["Hello. ", "I look.", "Done.", "And more."]);
        let calls = kinds(&shown).into_iter().filter(|kind| kind.starts_with("tool")).count();
        assert_eq!(calls, 2, "{shown:?}");
    }

    fn update(update: Value) -> Value {
        json!({"jsonrpc": "2.0", "method": "session/update",
            "params": {"sessionId": "s", "update": update}})
    }

    fn chunk(text: &str) -> Value {
        update(json!({"sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": text}}))
    }

    fn call(kind: &str, status: &str, input: Value) -> Value {
        update(json!({"sessionUpdate": kind, "toolCallId": "c", "kind": "execute", "title": "ls",
                "status": status,
            "rawInput": input}))
    }

    fn ask() -> Value {
        json!({"jsonrpc": "2.0", "id": 0, "method": "session/request_permission",
            "params": {"sessionId": "s",
            "toolCall": {"toolCallId": "c", "kind": "execute", "title": "ls",
                "rawInput": {"command": "ls"}},
            "options": [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]}})
    }

    fn session() -> Vec<Value> {
        vec![
            chunk("I lo"),
            update(json!({"sessionUpdate": "usage_update", "used": 7})),
            chunk("ok."),
            call("tool_call", "pending", json!({})),
            call("tool_call_update", "pending", json!({"command": "ls"})),
            ask(),
            call("tool_call_update", "in_progress", json!({"command": "ls"})),
            call("tool_call_update", "completed", json!({"command": "ls"})),
            chunk("Do"),
            chunk("ne."),
        ]
    }

    fn kinds(shown: &[Value]) -> Vec<&str> {
        let kinds = shown.iter().map(|piece| piece["type"].as_str().unwrap());
        kinds.filter(|kind| *kind != "usage").collect()
    }

    #[test]
    fn chunks_of_an_acp_agent_are_one_text_and_a_call_is_shown_once() {
        let shown = shown(None, &session());
        assert_eq!(
            kinds(&shown),
            ["text", "tool_call", "permission", "tool_result", "text"],
            "{shown:?}"
        );
        let texts: Vec<_> = shown
            .iter()
            .filter(|piece| piece["type"] == "text")
            .map(|piece| &piece["text"])
            .collect();
        assert_eq!(texts, ["I look.", "Done."]);
    }

    #[test]
    fn a_question_that_the_policy_allows_is_not_shown_and_one_for_a_person_is() {
        for (mode, asked) in [(Mode::Allow, false), (Mode::Ask, true), (Mode::Deny, true)] {
            let shown = shown(Some(Policy { mode, ..Policy::default() }), &session());
            assert_eq!(kinds(&shown).contains(&"permission"), asked, "{mode:?}");
        }
    }
}
