//! Reads lines that are our own agent events (contract.md, "Streams for the monitors") among
//! others.

use crate::stream::lines::{Before, Meaning, Text, Understood, next_object};
use crate::stream::text;
use muleteer_model::agent::event::{AgentEvent, Timed, TurnError, TurnResult};
use muleteer_model::agent::result;
use muleteer_model::text::foreign_json::{Damage, Document, may_be_object};
use serde_json::{Map, Value};

/// Interprets lines of our own agent events among other output.
#[derive(Debug)]
pub(crate) struct OwnLines {
    pub plain: Plain,
}

/// How a line that is not one of our events is reported.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Plain {
    Output,
    Unknown,
}

impl Meaning for OwnLines {
    fn read(&self, mut line: Text<'_>) -> Understood {
        if line.is_blank() && matches!(self.plain, Plain::Unknown) {
            return Understood::default();
        }
        // Most output is not JSON: skip the JSON parser for it.
        if !may_be_object(line.bytes) {
            return self.plain(line.bytes);
        }
        let mut document = line.document();
        if document.damage.is_some() {
            return self.damaged(&line, &document);
        }
        let value = std::mem::take(&mut document.value);
        match own_event(value) {
            Own::Event(timed) => {
                Understood { events: vec![*timed], ..Understood::default() }.with_fault(&document)
            }
            // Nobody can know whether it was a success.
            Own::Malformed { is_result: true } => Understood::one(AgentEvent::Result(
                TurnResult::damaged("its fields have wrong types"),
            )),
            Own::Malformed { is_result: false } => Understood::unknown(line.bytes),
            Own::None => self.plain(line.bytes),
        }
    }

    /// A log line may quote an event. A quoted result counts nevertheless, because a lost `failed`
    /// would become the success of an exit code 0.
    fn knows(&self, object: &Value, before: Before) -> bool {
        let Value::Object(object) = object else { return false };
        is_ours(object) && (before == Before::Nothing || kind(object) == "result")
    }

    fn is_output(&self, line: &[u8]) -> bool {
        matches!(self.plain, Plain::Output)
            && !may_be_object(line)
            && next_object(line, 0).is_none()
    }
}

impl OwnLines {
    fn plain(&self, line: &[u8]) -> Understood {
        match self.plain {
            Plain::Output => Understood::one(AgentEvent::Output { text: text::lossy(line) }),
            Plain::Unknown => Understood::unknown(line),
        }
    }

    /// Interprets a line of which only the beginning could be parsed. If it may have been a result,
    /// it is a failure: a lost `failed` must not become the success of an exit code 0.
    fn damaged(&self, line: &Text<'_>, document: &Document) -> Understood {
        let kind = document.value.get("type").and_then(Value::as_str);
        match (may_be_result(line.bytes, document), self.plain) {
            // A process of several turns died while it wrote this. Its exit is reported separately.
            (true, Plain::Unknown) if !line.ended => {
                Understood::unknown(line.bytes).with_fault(document)
            }
            (true, _) => {
                let result = TurnResult::damaged(&document.fault().unwrap_or_default());
                Understood::one(AgentEvent::Result(result)).with_fault(document)
            }
            (false, _) if kind.is_some_and(|kind| kind != "result" && KINDS.contains(&kind)) => {
                Understood::unknown(line.bytes).with_fault(document)
            }
            (false, _) => self.plain(line.bytes),
        }
    }
}

/// Whether a damaged line was meant to be a result. Its `type` must say so, and it must have one of
/// a result's fields. A log line that is cut off, or the first line of an indented document, is not
/// one.
fn may_be_result(line: &[u8], document: &Document) -> bool {
    let fault = match document.damage {
        Some(Damage::Garbled { at }) => usize::try_from(at).unwrap_or(line.len()).min(line.len()),
        _ => line.len(),
    };
    let (before, mut after) = line.split_at(fault);
    // In a list that is not closed, a key becomes an element, and the fault is at its colon.
    if let Some(list) = before.trim_ascii_end().strip_suffix(b"\"type\"")
        && after.starts_with(b":")
    {
        after = &line[list.len()..];
    }
    // The member whose value is incomplete.
    let (key, begun) = last_member(before).unwrap_or_default();
    let is_typed = match document.value.get("type") {
        Some(kind) => kind == "result",
        None => {
            (key == b"type" && begun.len() > 1 && b"\"result\"".starts_with(begun))
                || holds_type(after)
        }
    };
    let has_field = |field: &str| {
        document.value.get(field).is_some()
            || key == field.as_bytes()
            || holds_key(after, field.as_bytes())
    };
    is_typed && result_keys().any(has_field)
}

/// Returns the last key of the outermost object that is followed by a colon, and the text after the
/// colon. `text` is the beginning of a JSON document.
fn last_member(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut at, mut depth, mut last) = (0, 0_usize, None);
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let begin = at;
                while text.get(at).is_some_and(|byte| *byte != b'"') {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                let key = text.get(begin..at)?;
                at += 1;
                let rest = text.get(at..).unwrap_or_default().trim_ascii_start();
                if let (1, Some(value)) = (depth, rest.strip_prefix(b":")) {
                    last = Some((key, value.trim_ascii_start()));
                }
            }
            _ => {}
        }
    }
    last
}

/// Whether `"type": "result"` occurs anywhere in a text that is not JSON.
fn holds_type(text: &[u8]) -> bool {
    memchr::memmem::find_iter(text, b"\"type\"").any(|at| {
        let rest = text[at + b"\"type\"".len()..].trim_ascii_start().strip_prefix(b":");
        rest.is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\"result\""))
    })
}

/// Whether a key occurs anywhere in a text that is not JSON, with any quotes.
fn holds_key(text: &[u8], key: &[u8]) -> bool {
    memchr::memmem::find_iter(text, key).any(|at| {
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let rest = &text[at + key.len()..];
        let rest = rest.strip_prefix(b"\"").or(rest.strip_prefix(b"'")).unwrap_or(rest);
        !text[..at].last().is_some_and(is_word) && rest.trim_ascii_start().starts_with(b":")
    })
}

enum Own {
    Event(Box<Timed>),
    /// Its `type` is ours, but its fields are not.
    Malformed {
        is_result: bool,
    },
    None,
}

fn kind(object: &Map<String, Value>) -> &str {
    object.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn is_ours(object: &Map<String, Value>) -> bool {
    // Other CLIs use these words too: without one of our fields the line is theirs.
    match kind(object) {
        "text" | "thinking" => object.contains_key("text") || object.contains_key("chars"),
        "result" => result_keys().any(|key| object.contains_key(key)),
        kind => KINDS.contains(&kind),
    }
}

fn own_event(value: Value) -> Own {
    let Value::Object(mut object) = value else { return Own::None };
    let t = object.remove("t").and_then(|t| t.as_f64()).unwrap_or_default();
    if !is_ours(&object) {
        return Own::None;
    }
    let kind = kind(&object).to_string();
    // Either an agent's result document, or the event `result` with its `ok` and HTTP `status`.
    let says_ok = object.get("ok").is_some_and(Value::is_boolean);
    if kind == "result" && (!says_ok || object.get("status").is_some_and(Value::is_string)) {
        object.remove("type");
        let ok = object.remove("ok").and_then(|ok| ok.as_bool()).unwrap_or(true);
        // A script need not give a summary.
        object.entry("summary").or_insert_with(|| Value::String(String::new()));
        let error = (!ok).then_some(TurnError::Other);
        let result = TurnResult {
            ok,
            error,
            structured: Some(Value::Object(object)),
            ..TurnResult::default()
        };
        return Own::Event(Box::new(Timed { t, event: AgentEvent::Result(result), parent: None }));
    }
    match serde_json::from_value::<AgentEvent>(Value::Object(object)) {
        Ok(mut event) => {
            text::bound(&mut event);
            Own::Event(Box::new(Timed { t, event, parent: None }))
        }
        Err(_) => Own::Malformed { is_result: kind == "result" },
    }
}

/// The keys of a line of type `result`: of the event, or of an agent's result document.
fn result_keys() -> impl Iterator<Item = &'static str> {
    ["ok"].into_iter().chain(result::FIELDS)
}

/// The `type`s of [`AgentEvent`].
pub const KINDS: [&str; 24] = [
    "session",
    "prompt",
    "thinking",
    "text",
    "tool_call",
    "tool_output",
    "tool_result",
    "usage",
    "compaction",
    "api_retry",
    "rate_limit",
    "permission",
    "permission_answer",
    "request",
    "reply",
    "notice",
    "question",
    "answer",
    "process",
    "backpressure",
    "result",
    "exit",
    "output",
    "unknown",
];

/// Whether only the harness observes this event. An agent can print such a line as well, which
/// proves nothing. Code that decides by these events must take them from the harness.
pub fn is_observed(event: &AgentEvent) -> bool {
    matches!(
        event,
        AgentEvent::Process { .. }
            | AgentEvent::Backpressure { .. }
            | AgentEvent::Exit { .. }
            | AgentEvent::PermissionAnswer { .. }
            | AgentEvent::Answer { .. }
    )
}
