//! Makes events from the values that the JSON lines of many agent CLIs have in common: messages,
//! tool calls, errors.

use crate::acp::{api_error, names};
use crate::stream::lines::{Text, Understood};
use crate::stream::text::{self, RESULT_TEXT_LIMIT};
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnResult, both_ends, cut};
use muleteer_model::agent::{result, vocabulary};
use muleteer_model::text::foreign_json::Document;
use serde_json::Value;

/// The most bytes of an id or of a tool's name.
const NAME_LIMIT: usize = 200;

/// Interprets a line of a CLI that prints only JSON objects. `events` returns `None` for an object
/// of an unknown kind.
pub(crate) fn line(
    mut line: Text<'_>,
    events: impl Fn(&Value) -> Option<Vec<AgentEvent>>,
) -> Understood {
    if line.is_blank() {
        return Understood::default();
    }
    let document = line.document();
    if document.damage.is_some() && (!line.ended || line.is_no_object()) {
        // Either somebody merged stderr into stdout, or the process died while it wrote this.
        return Understood::unknown(line.bytes);
    }
    let told = events(&document.value);
    let told = told.map_or_else(|| Understood::unknown(line.bytes), Understood::quietly);
    mended(told, &document)
}

/// Returns the meaning of a line with a notice about its faults. A damaged line tells no success.
pub(crate) fn mended(told: Understood, document: &Document) -> Understood {
    let mut told = told.with_fault(document);
    for timed in told.events.iter_mut().filter(|_| document.damage.is_some()) {
        match &mut timed.event {
            AgentEvent::Result(result) => {
                *result = std::mem::take(result).spoilt(&document.fault().unwrap_or_default());
            }
            // The missing part may have said that the tool failed.
            AgentEvent::ToolResult { ok, .. } => *ok = false,
            _ => {}
        }
    }
    told
}

/// Returns a message of the agent. A result document stays whole, because the end of the turn may
/// not repeat it.
pub(crate) fn message(text: &str) -> AgentEvent {
    let is_result = text.len() <= RESULT_TEXT_LIMIT && result::find_in_text(text).is_some();
    let limit = if is_result { RESULT_TEXT_LIMIT } else { TEXT_LIMIT };
    AgentEvent::Text { chars: text.chars().count() as u64, text: cut(text, limit) }
}

/// Returns a thought of the agent.
pub(crate) fn thought(text: &str) -> AgentEvent {
    AgentEvent::Thinking { chars: text.chars().count() as u64, text: cut(text, TEXT_LIMIT) }
}

/// Returns a tool call, with the tool's name and the keys of its input as in Claude Code.
pub(crate) fn call(id: String, name: &str, input: Option<&Value>) -> AgentEvent {
    let mut input = input.cloned().unwrap_or_default();
    if let Value::Object(fields) = &mut input {
        names::rename_keys(fields);
    }
    text::slim(&mut input);
    AgentEvent::ToolCall { id, name: tool(name), input }
}

/// Returns the name in Claude Code of a tool that an agent calls `own`.
pub(crate) fn tool(own: &str) -> String {
    vocabulary::tool(own).map_or_else(|| cut(own, NAME_LIMIT), str::to_string)
}

/// Returns the result of a tool call. An exit code other than 0 is a failure, whatever the CLI
/// says about the call.
pub(crate) fn done(id: String, ok: bool, text: &str, exit_code: Option<i64>) -> AgentEvent {
    let ok = ok && exit_code.is_none_or(|code| code == 0);
    AgentEvent::ToolResult { id, ok, text: both_ends(text, TEXT_LIMIT), exit_code }
}

/// Returns the result of a turn that failed. `error` is the error's JSON, in which a status may be.
pub(crate) fn failure(said: &str, error: &Value) -> TurnResult {
    let status = api_error::status(error, said);
    TurnResult {
        ok: false,
        error: Some(api_error::reason(said, status)),
        status,
        text: (!said.is_empty()).then(|| text::tail(said, RESULT_TEXT_LIMIT)),
        ..TurnResult::default()
    }
}

/// Returns the HTTP status of an error that a CLI retries.
pub(crate) fn status(said: &str) -> Option<u16> {
    api_error::status(&Value::Null, said)
}

/// Returns the exit code in the last line of a command's output, if it is after `before`.
pub(crate) fn exit_code(output: &str, before: &str) -> Option<i64> {
    let last = output.trim_end().lines().next_back()?;
    last.trim().strip_prefix(before)?.trim().parse().ok()
}

/// Returns the text of a content: a text itself, or the texts of its parts.
pub(crate) fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match string(part, "text") {
                Some(text) => text.to_string(),
                None => format!("[{}]", string(part, "type").unwrap_or("unknown part")),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

/// Returns a text of an object.
pub(crate) fn string<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// Returns an id of an object. An absurd one is cut, since it becomes part of durable events.
pub(crate) fn id(value: &Value, key: &str) -> Option<String> {
    string(value, key).filter(|id| !id.is_empty()).map(|id| cut(id, NAME_LIMIT))
}

/// Returns a count of an object; 0 if it has none.
pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value.get(key).map_or(0, text::number)
}

/// Returns a number of an object that fits into a `u32`.
pub(crate) fn small(value: &Value, key: &str) -> u32 {
    u32::try_from(number(value, key)).unwrap_or(u32::MAX)
}

/// Returns an amount of money of an object; 0 if it has none.
pub(crate) fn money(value: &Value, key: &str) -> f64 {
    value.get(key).and_then(Value::as_f64).unwrap_or_default()
}

/// Returns milliseconds of an object as seconds.
pub(crate) fn seconds(value: &Value, key: &str) -> f64 {
    money(value, key).max(0.0) / 1000.0
}
