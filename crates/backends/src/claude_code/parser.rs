//! What one line of `claude --output-format stream-json` means.
//!
//! Lines are read as JSON values, field by field: key order is not stable, every version brings new
//! types and fields, and a missing one must not lose the rest of its line.

use super::{control, result};
use crate::lines::{Meaning, Understood};
use crate::text;
use jiff::Timestamp;
use muleteer_model::agent_event::{AgentEvent, TEXT_LIMIT, cut};
use serde_json::Value;

#[derive(Debug)]
pub(super) struct StreamJson;

impl Meaning for StreamJson {
    fn read(&self, line: &[u8]) -> Understood {
        if line.trim_ascii().is_empty() {
            return Understood::default();
        }
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return Understood::unknown(line);
        };
        let Some(events) = events(value) else {
            return Understood::unknown(line);
        };
        let (events, told_at) = events;
        Understood { told_at, ..Understood::from(events) }
    }
}

/// `None` for a line of a kind this version does not know.
fn events(mut value: Value) -> Option<(Vec<AgentEvent>, Option<f64>)> {
    let told_at = string(&value, "timestamp").and_then(|text| text.parse::<Timestamp>().ok());
    let told_at = told_at.map(|at| at.as_millisecond() as f64 / 1000.0);
    let events = match value.get("type")?.as_str()? {
        "system" => system(&value)?,
        "assistant" => assistant(&mut value)?,
        "user" => user(&value)?,
        "result" => vec![AgentEvent::Result(result::read(&value))],
        "rate_limit_event" => rate_limit(value.get("rate_limit_info")?),
        "control_request" => control::request(&mut value)?,
        "control_response" => control::response(value.get("response")?)?,
        // The turn was interrupted, say: the answer is no longer waited for.
        "control_cancel_request" => vec![AgentEvent::PermissionAnswer { id: string(&value, "request_id")? }],
        // Pieces of messages that come whole as well; signs of life.
        "stream_event" | "keep_alive" | "tool_progress" | "command_lifecycle" => vec![],
        _ => return None,
    };
    Some((events, told_at))
}

fn system(value: &Value) -> Option<Vec<AgentEvent>> {
    Some(match value.get("subtype")?.as_str()? {
        "init" => vec![AgentEvent::Session {
            model: string(value, "model"),
            cwd: string(value, "cwd"),
            session_id: string(value, "session_id"),
        }],
        "api_retry" => vec![AgentEvent::ApiRetry {
            attempt: number(value, "attempt") as u32,
            max: number(value, "max_retries") as u32,
            delay_s: value.get("retry_delay_ms").and_then(Value::as_f64).unwrap_or_default() / 1000.0,
            status: value
                .get("error_status")
                .and_then(Value::as_u64)
                .and_then(|status| u16::try_from(status).ok()),
        }],
        "compact_boundary" => {
            let metadata = value.get("compact_metadata")?;
            vec![AgentEvent::Compaction {
                before: number(metadata, "pre_tokens"),
                after: number(metadata, "post_tokens"),
            }]
        }
        // `permission_denied` says why; the tool's failed result follows.
        "status" | "hook_started" | "hook_progress" | "hook_response" | "permission_denied" => vec![],
        _ => return None,
    })
}

fn assistant(value: &mut Value) -> Option<Vec<AgentEvent>> {
    let message = value.get_mut("message")?;
    let usage = usage(message);
    let mut events = Vec::new();
    for part in message.get_mut("content")?.as_array_mut()? {
        events.push(match part.get("type").and_then(Value::as_str) {
            Some("text") => {
                let text = part.get("text")?.as_str()?;
                AgentEvent::Text { chars: text.chars().count() as u64, text: cut(text, TEXT_LIMIT) }
            }
            Some("thinking") => {
                let text = part.get("thinking")?.as_str()?;
                AgentEvent::Thinking { chars: text.chars().count() as u64, text: cut(text, TEXT_LIMIT) }
            }
            Some("redacted_thinking") => AgentEvent::Thinking { chars: 0, text: String::new() },
            Some("tool_use" | "server_tool_use") => {
                let mut input = part.get_mut("input").map(Value::take).unwrap_or_default();
                text::slim(&mut input);
                AgentEvent::ToolCall { id: string(part, "id")?, name: string(part, "name")?, input }
            }
            _ => AgentEvent::Unknown { raw: cut(&part.to_string(), TEXT_LIMIT) },
        });
    }
    // Last, so that it never stands between a line's other events and their numbers.
    events.extend(usage);
    Some(events)
}

/// A message comes in several lines, one for each part, each with the numbers of the whole call as
/// they were when it began; `call` tells that they are one.
fn usage(message: &Value) -> Option<AgentEvent> {
    let usage = message.get("usage")?;
    let (input, output) = (number(usage, "input_tokens"), number(usage, "output_tokens"));
    let (cache_read, cache_write) =
        (number(usage, "cache_read_input_tokens"), number(usage, "cache_creation_input_tokens"));
    // What the CLI itself puts in an assistant's mouth (an error, say) costs nothing.
    (input + output + cache_read + cache_write > 0).then(|| AgentEvent::Usage {
        input,
        output,
        cost_usd: 0.0,
        cache_read,
        cache_write,
        model: string(message, "model"),
        call: string(message, "id"),
    })
}

fn user(value: &Value) -> Option<Vec<AgentEvent>> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or_default();
    let content = value.get("message")?.get("content")?;
    if flag("isReplay") {
        let text = plain(content);
        // The echo of a control request, not of a prompt.
        if text.starts_with("<local-command-") {
            return Some(vec![]);
        }
        // A message the session already holds is echoed at once, without the moment it was taken at,
        // and nothing more comes of it.
        let repeated = value.get("timestamp").is_none();
        return Some(vec![AgentEvent::Prompt { text: cut(&text, TEXT_LIMIT), key: string(value, "uuid"), repeated }]);
    }
    let mut events = Vec::new();
    for part in content.as_array().map(Vec::as_slice).unwrap_or_default() {
        if part.get("type").and_then(Value::as_str) == Some("tool_result") {
            events.push(tool_result(part, value)?);
        }
    }
    // What else is in a user message nobody typed: the CLI's own reminders, the task of a subagent,
    // the note that a turn was interrupted (which its result tells).
    Some(events)
}

fn tool_result(part: &Value, line: &Value) -> Option<AgentEvent> {
    let ok = !part.get("is_error").and_then(Value::as_bool).unwrap_or_default();
    let text = part.get("content").map(plain).unwrap_or_default();
    let told = line.get("tool_use_result").and_then(|r| r.get("exitCode").or_else(|| r.get("exit_code")));
    Some(AgentEvent::ToolResult {
        id: string(part, "tool_use_id")?,
        ok,
        exit_code: told.and_then(Value::as_i64).or_else(|| (!ok).then(|| exit_code(&text)).flatten()),
        text: cut(&text, TEXT_LIMIT),
    })
}

/// A failed command's output begins with `Exit code N`.
fn exit_code(text: &str) -> Option<i64> {
    text.strip_prefix("Exit code ")?.lines().next()?.trim().parse().ok()
}

fn rate_limit(info: &Value) -> Vec<AgentEvent> {
    let status = info.get("status").and_then(Value::as_str).unwrap_or_default();
    // `allowed` is news about a window, not about a limit.
    if status == "allowed" {
        return vec![];
    }
    vec![AgentEvent::RateLimit {
        resets_in_s: 0.0,
        resets_at: info.get("resetsAt").and_then(Value::as_f64),
        warning: status == "allowed_warning",
    }]
}

/// Text content as the API has it: a text, or parts of which some are text.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_string(),
                None => format!("[{}]", part.get("type").and_then(Value::as_str).unwrap_or("unknown part")),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        other => other.to_string(),
    }
}

pub(super) fn string(value: &Value, key: &str) -> Option<String> {
    value.get(key)?.as_str().map(str::to_string)
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or_default()
}
