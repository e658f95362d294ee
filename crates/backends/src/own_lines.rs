//! Lines that are our own agent events (contract.md, "Streams for the monitors"), among others.

use crate::lines::{Before, Meaning, Text, Understood, next_object};
use crate::text;
use muleteer_model::agent_event::{AgentEvent, Timed, TurnError, TurnResult};
use muleteer_model::foreign_json::{Document, may_be_object};
use serde_json::{Map, Value};

/// Lines of our own agent events, among other things.
#[derive(Debug)]
pub(crate) struct OwnLines {
    pub plain: Plain,
}

/// What a line is that is none of our events.
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
        // Most output is no JSON: don't ask the JSON parser about it.
        if !may_be_object(line.bytes) {
            return self.plain(line.bytes);
        }
        let mut document = line.document();
        if document.damage.is_some() {
            return self.damaged(&line, &document);
        }
        let value = std::mem::take(&mut document.value);
        match own_event(value) {
            Own::Event(timed) => Understood { events: vec![*timed], told_at: None }.with_fault(&document),
            // Nobody can tell whether it was a success.
            Own::Malformed { is_result: true } => {
                Understood::one(AgentEvent::Result(TurnResult::damaged("its fields have wrong types")))
            }
            Own::Malformed { is_result: false } => Understood::unknown(line.bytes),
            Own::None => self.plain(line.bytes),
        }
    }

    /// A log line may quote an event; a result is taken nevertheless, because a lost `failed` would become the
    /// success of an exit code 0.
    fn knows(&self, object: &Value, before: Before) -> bool {
        let Value::Object(object) = object else { return false };
        is_ours(object) && (before == Before::Nothing || kind(object) == "result")
    }

    fn is_output(&self, line: &[u8]) -> bool {
        matches!(self.plain, Plain::Output) && !may_be_object(line) && next_object(line, 0).is_none()
    }
}

impl OwnLines {
    fn plain(&self, line: &[u8]) -> Understood {
        match self.plain {
            Plain::Output => Understood::one(AgentEvent::Output { text: text::lossy(line) }),
            Plain::Unknown => Understood::unknown(line),
        }
    }

    /// A line whose beginning only is known. One that may have been a result fails: a lost `failed` must not
    /// become the success of an exit code 0.
    fn damaged(&self, line: &Text<'_>, document: &Document) -> Understood {
        let kind = document.value.get("type").and_then(Value::as_str);
        let holds = |word: &[u8]| line.bytes.windows(word.len()).any(|window| window == word);
        let may_be_result = kind == Some("result") || (kind.is_none() && holds(b"\"type\"") && holds(b"\"result\""));
        match (may_be_result, self.plain) {
            // The process of several turns died as it wrote this, and its end is told.
            (true, Plain::Unknown) if !line.ended => Understood::unknown(line.bytes).with_fault(document),
            (true, _) => {
                let result = TurnResult::damaged(&document.fault().unwrap_or_default());
                Understood::one(AgentEvent::Result(result)).with_fault(document)
            }
            (false, _) if kind.is_some_and(|kind| KINDS.contains(&kind)) => {
                Understood::unknown(line.bytes).with_fault(document)
            }
            (false, _) => self.plain(line.bytes),
        }
    }
}

enum Own {
    Event(Box<Timed>),
    /// Its `type` is ours, its fields are not.
    Malformed {
        is_result: bool,
    },
    None,
}

fn kind(object: &Map<String, Value>) -> &str {
    object.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn is_ours(object: &Map<String, Value>) -> bool {
    // Words that other CLIs use too: without our field they are somebody else's.
    match kind(object) {
        "text" | "thinking" => object.contains_key("text") || object.contains_key("chars"),
        "result" => RESULT_FIELDS.iter().any(|field| object.contains_key(*field)),
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
    // An agent's result document, or the event `result` with its `ok` and HTTP `status`.
    let says_ok = object.get("ok").is_some_and(Value::is_boolean);
    if kind == "result" && (!says_ok || object.get("status").is_some_and(Value::is_string)) {
        object.remove("type");
        let ok = object.remove("ok").and_then(|ok| ok.as_bool()).unwrap_or(true);
        // A script need not have anything to say of what it did.
        object.entry("summary").or_insert_with(|| Value::String(String::new()));
        let error = (!ok).then_some(TurnError::Other);
        let result = TurnResult { ok, error, structured: Some(Value::Object(object)), ..TurnResult::default() };
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

const RESULT_FIELDS: [&str; 7] = ["ok", "status", "summary", "changes", "issues", "questions", "pr_url"];

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

/// What only the harness observes. An agent can print such a line too; it proves nothing, and
/// whoever decides by these events takes them from the harness.
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
