//! Lines that are our own agent events (contract.md, "Streams for the monitors"), among others.

use crate::lines::{Meaning, Understood};
use crate::text;
use muleteer_model::agent_event::{AgentEvent, Timed, TurnError, TurnResult};
use serde_json::Value;

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
    fn read(&self, line: &[u8]) -> Understood {
        let timed = match own_event(line) {
            Own::Event(timed) => *timed,
            Own::Malformed => return Understood::unknown(line),
            Own::None => match self.plain {
                Plain::Output => return Understood::one(AgentEvent::Output { text: text::lossy(line) }),
                Plain::Unknown if line.trim_ascii().is_empty() => return Understood::default(),
                Plain::Unknown => return Understood::unknown(line),
            },
        };
        Understood { events: vec![timed], told_at: None }
    }

    fn is_output(&self, line: &[u8]) -> bool {
        matches!(self.plain, Plain::Output) && !may_be_object(line)
    }
}

fn may_be_object(line: &[u8]) -> bool {
    line.trim_ascii_start().starts_with(b"{")
}

enum Own {
    Event(Box<Timed>),
    /// Its `type` is ours, its fields are not.
    Malformed,
    None,
}

fn own_event(line: &[u8]) -> Own {
    // Most output is no JSON: don't ask the JSON parser about it.
    if !may_be_object(line) {
        return Own::None;
    }
    let Ok(Value::Object(mut object)) = serde_json::from_slice::<Value>(line) else {
        return Own::None;
    };
    let t = object.remove("t").and_then(|t| t.as_f64()).unwrap_or_default();
    let kind = object.get("type").and_then(Value::as_str).unwrap_or_default().to_string();
    // Words that other CLIs use too: without our field they are somebody else's.
    let ours = match kind.as_str() {
        "text" | "thinking" => object.contains_key("text") || object.contains_key("chars"),
        "result" => RESULT_FIELDS.iter().any(|field| object.contains_key(*field)),
        kind => KINDS.contains(&kind),
    };
    if !ours {
        return Own::None;
    }
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
        Err(_) => Own::Malformed,
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
