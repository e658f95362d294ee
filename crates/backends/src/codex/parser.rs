//! Interprets one line of `codex exec --json`.
//!
//! It reads field by field, like the Claude parser, because versions add items and fields. Tools
//! get the names that they have in Claude Code, so that monitors and people see one set of names.

use crate::codex::failure;
use crate::stream::lines::{Meaning, Text, Understood};
use crate::stream::text::{self, RESULT_TEXT_LIMIT};
use muleteer_model::agent::event::{
    AgentEvent, ModelUsage, TEXT_LIMIT, TurnResult, both_ends, cut,
};
use muleteer_model::agent::result;
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct ExecJson;

impl Meaning for ExecJson {
    fn read(&self, mut line: Text<'_>) -> Understood {
        if line.is_blank() {
            return Understood::default();
        }
        let document = line.document();
        if document.damage.is_some() && (!line.ended || line.is_no_object()) {
            // Either somebody merged stderr into stdout, or the process died while it wrote this.
            let aside = std::str::from_utf8(line.bytes).ok().and_then(failure::broken_server);
            return aside.map_or_else(|| Understood::unknown(line.bytes), Understood::one);
        }
        let told = events(&document.value)
            .map_or_else(|| Understood::unknown(line.bytes), Understood::from);
        let mut told = told.with_fault(&document);
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

    fn aside(&self, line: &str) -> Option<AgentEvent> {
        failure::broken_server(line)
    }
}

/// Returns `None` for a line of a kind that this version does not know.
fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    Some(match value.get("type")?.as_str()? {
        "thread.started" => {
            vec![AgentEvent::Session {
                model: None,
                cwd: None,
                session_id: Some(string(value, "thread_id")?),
            }]
        }
        // Codex has read the one prompt of this process. There is no other receipt.
        "turn.started" => {
            vec![AgentEvent::Prompt { text: String::new(), key: None, repeated: false }]
        }
        "turn.completed" => vec![completed(value.get("usage"))],
        "turn.failed" => {
            let said = value
                .get("error")
                .and_then(|error| string(error, "message").or_else(|| text_of(error)));
            vec![AgentEvent::Result(failure::result(&said.unwrap_or_default()))]
        }
        "error" => {
            let said = string(value, "message")?;
            // An error that ends the turn is repeated in `turn.failed`.
            vec![failure::retry(&said).unwrap_or_else(|| notice(&said))]
        }
        "item.started" => item_started(value.get("item")?)?,
        "item.updated" => item_updated(value.get("item")?)?,
        "item.completed" => item_completed(value.get("item")?)?,
        _ => return None,
    })
}

/// `usage` is the session's total across its processes. Cached tokens are part of `input_tokens`;
/// we count them separately.
fn completed(session: Option<&Value>) -> AgentEvent {
    let per_session = session.filter(|usage| usage.is_object()).map(usage).into_iter().collect();
    AgentEvent::Result(TurnResult { ok: true, per_session, ..TurnResult::default() })
}

/// Reads token counts in the form that Codex uses in its output and in its transcript.
pub(super) fn usage(usage: &Value) -> ModelUsage {
    let number = |key: &str| usage.get(key).map_or(0, text::number);
    let (cache_read, cache_write) =
        (number("cached_input_tokens"), number("cache_write_input_tokens"));
    ModelUsage {
        model: String::new(),
        input: number("input_tokens").saturating_sub(cache_read).saturating_sub(cache_write),
        output: number("output_tokens"),
        cache_read,
        cache_write,
        cost_usd: 0.0,
    }
}

fn item_started(item: &Value) -> Option<Vec<AgentEvent>> {
    let id = string(item, "id")?;
    Some(match item.get("type")?.as_str()? {
        "command_execution" => {
            let command = command(item.get("command")?.as_str()?);
            vec![call(id, "Bash", json!({"command": command}))]
        }
        "file_change" => changes(item)?.map(|(id, name, input)| call(id, name, input)).collect(),
        "mcp_tool_call" => {
            let name = format!("mcp__{}__{}", string(item, "server")?, string(item, "tool")?);
            vec![call(id, &name, item.get("arguments").cloned().unwrap_or_default())]
        }
        "collab_tool_call" => {
            let input = json!({"tool": item.get("tool"), "prompt": item.get("prompt")});
            vec![call(id, "Task", input)]
        }
        "web_search" => vec![call(id, "WebSearch", json!({"query": item.get("query")}))],
        "todo_list" => todo(id, item)?,
        // These arrive whole when they are complete.
        "agent_message" | "reasoning" | "error" => vec![],
        _ => return None,
    })
}

fn item_updated(item: &Value) -> Option<Vec<AgentEvent>> {
    match item.get("type")?.as_str()? {
        "todo_list" => todo(string(item, "id")?, item),
        "agent_message" | "reasoning" | "error" | "command_execution" | "file_change"
        | "mcp_tool_call" | "collab_tool_call" | "web_search" => Some(vec![]),
        _ => None,
    }
}

fn item_completed(item: &Value) -> Option<Vec<AgentEvent>> {
    let kind = item.get("type")?.as_str()?;
    // These items are identified by their text.
    match kind {
        "agent_message" => return Some(vec![said(&string(item, "text")?)]),
        "reasoning" => {
            let text = item.get("text")?.as_str()?;
            return Some(vec![AgentEvent::Thinking {
                chars: text.chars().count() as u64,
                text: cut(text, TEXT_LIMIT),
            }]);
        }
        "error" => return Some(vec![notice(&string(item, "message")?)]),
        // Its last state was reported when it was created or changed.
        "todo_list" => return Some(vec![]),
        _ => {}
    }
    let id = string(item, "id")?;
    let ok = item.get("status").and_then(Value::as_str).is_none_or(|status| status == "completed");
    Some(match kind {
        "command_execution" => {
            let exit_code = item.get("exit_code").and_then(Value::as_i64);
            let text = string(item, "aggregated_output").unwrap_or_default();
            let ok = ok && exit_code.is_none_or(|code| code == 0);
            vec![AgentEvent::ToolResult { id, ok, text: both_ends(&text, TEXT_LIMIT), exit_code }]
        }
        "file_change" => changes(item)?.map(|(id, ..)| done(id, ok, "")).collect(),
        "mcp_tool_call" => {
            let error = item.get("error").and_then(|error| string(error, "message"));
            let text = error.unwrap_or_else(|| item.get("result").map(content).unwrap_or_default());
            vec![done(id, ok, &text)]
        }
        "collab_tool_call" | "web_search" => vec![done(id, ok, "")],
        _ => return None,
    })
}

/// Returns a message that a person may want to read and that does not end the turn.
fn notice(said: &str) -> AgentEvent {
    AgentEvent::Output { text: cut(said, TEXT_LIMIT) }
}

/// Keeps a result document whole, because the turn's end does not repeat it.
fn said(text: &str) -> AgentEvent {
    let is_result = text.len() <= RESULT_TEXT_LIMIT && result::find_in_text(text).is_some();
    let limit = if is_result { RESULT_TEXT_LIMIT } else { TEXT_LIMIT };
    AgentEvent::Text { chars: text.chars().count() as u64, text: cut(text, limit) }
}

fn call(id: String, name: &str, mut input: Value) -> AgentEvent {
    text::slim(&mut input);
    AgentEvent::ToolCall { id, name: name.into(), input }
}

fn done(id: String, ok: bool, text: &str) -> AgentEvent {
    AgentEvent::ToolResult { id, ok, text: both_ends(text, TEXT_LIMIT), exit_code: None }
}

/// Splits the patch of one item into one call per file, because scope and loop monitors judge by
/// file.
fn changes(item: &Value) -> Option<impl Iterator<Item = (String, &'static str, Value)>> {
    let id = string(item, "id")?;
    let changes = item.get("changes")?.as_array()?;
    let several = changes.len() > 1;
    Some(changes.iter().enumerate().map(move |(n, change)| {
        let kind = change.get("kind").and_then(Value::as_str).unwrap_or_default();
        let name = if kind == "add" { "Write" } else { "Edit" };
        let id = if several { format!("{id}.{}", n + 1) } else { id.clone() };
        (id, name, json!({"file_path": change.get("path"), "kind": kind}))
    }))
}

/// A todo list is only written; it has no result.
fn todo(id: String, item: &Value) -> Option<Vec<AgentEvent>> {
    let todos = item.get("items")?.as_array()?.iter().map(|entry| {
        let done = entry.get("completed").and_then(Value::as_bool).unwrap_or_default();
        json!({"content": entry.get("text"), "status": if done { "completed" } else { "pending" }})
    });
    let input = json!({"todos": todos.collect::<Vec<_>>()});
    Some(vec![call(id.clone(), "TodoWrite", input), done(id, true, "")])
}

/// Returns the command without the shell in which Codex runs it, if its quotes are the only ones.
fn command(line: &str) -> &str {
    let inner = line
        .split_once(" -lc '")
        .filter(|(shell, _)| shell.ends_with("sh") && !shell.contains(' '));
    let inner =
        inner.and_then(|(_, rest)| rest.strip_suffix('\'')).filter(|inner| !inner.contains('\''));
    inner.unwrap_or(line)
}

fn content(result: &Value) -> String {
    let parts = result.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts = parts.map(|part| match part.get("text").and_then(Value::as_str) {
        Some(text) => text.to_string(),
        None => format!("[{}]", part.get("type").and_then(Value::as_str).unwrap_or("unknown part")),
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn string(value: &Value, key: &str) -> Option<String> {
    text_of(value.get(key)?)
}

fn text_of(value: &Value) -> Option<String> {
    value.as_str().map(str::to_string)
}
