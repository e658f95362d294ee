//! Interprets one line of `claude --output-format stream-json`.
//!
//! Lines are read as JSON values, field by field: the key order is not stable, every version adds
//! types and fields, and a missing field must not lose the rest of its line.

use crate::claude_code::{control, result};
use crate::stream::lines::{Meaning, Text, Understood};
use crate::stream::text;
use jiff::Timestamp;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, both_ends, cut};
use muleteer_model::text::foreign_json::Document;
use serde_json::Value;

#[derive(Debug)]
pub(super) struct StreamJson;

impl Meaning for StreamJson {
    fn read(&self, mut line: Text<'_>) -> Understood {
        if line.is_blank() {
            return Understood::default();
        }
        let mut document = line.document();
        let mut value = std::mem::take(&mut document.value);
        if document.damage.is_some() && !line.ended {
            // The process died while it wrote this. Its exit is reported separately.
            return Understood::unknown(line.bytes).with_fault(&document);
        }
        // Every line of a subagent names the tool call that runs it.
        let parent = string(&value, "parent_tool_use_id").filter(|id| !id.is_empty());
        let id = string(&value, "request_id");
        if document.damage.is_some() && line.is_no_object() {
            return Understood::unknown(line.bytes);
        }
        let asks = value.get("type").and_then(Value::as_str) == Some("control_request");
        let told = match (document.damage, id) {
            // Nobody may allow a request of which a part is missing, so it is rejected.
            (Some(_), Some(id)) if asks => {
                Some((vec![AgentEvent::Request { id, what: "an invalid request".into() }], None))
            }
            _ => events(&mut value),
        };
        let Some((events, told_at)) = told else {
            return Understood::unknown(line.bytes).with_fault(&document);
        };
        let mut understood = Understood { told_at, ..Understood::from(events) };
        for timed in &mut understood.events {
            timed.parent.clone_from(&parent);
            mend(&mut timed.event, &document);
        }
        understood.with_fault(&document)
    }
}

/// Corrects an event of a line that was damaged or repaired.
fn mend(event: &mut AgentEvent, document: &Document) {
    let Some(fault) = document.fault() else { return };
    match event {
        // The CLI must use its own input: ours may differ from it.
        AgentEvent::Permission { ask, .. } => ask.input_cut = true,
        AgentEvent::Result(result) if document.damage.is_some() => {
            *result = std::mem::take(result).spoilt(&fault)
        }
        // The missing part may have said that the tool failed.
        AgentEvent::ToolResult { ok, .. } if document.damage.is_some() => *ok = false,
        _ => {}
    }
}

/// Returns `None` for a line of a kind that this version does not know.
pub(crate) fn events(value: &mut Value) -> Option<(Vec<AgentEvent>, Option<f64>)> {
    let told_at = string(value, "timestamp").and_then(|text| text.parse::<Timestamp>().ok());
    let told_at = told_at.map(|at| at.as_millisecond() as f64 / 1000.0);
    let events = match value.get("type")?.as_str()? {
        "system" => system(value)?,
        "assistant" => assistant(value)?,
        "user" => user(value)?,
        "result" => vec![AgentEvent::Result(result::read(value))],
        "rate_limit_event" => rate_limit(value.get("rate_limit_info")?)?,
        "control_request" => control::request(value)?,
        "control_response" => control::response(value.get("response")?)?,
        // The CLI no longer waits for the answer, for example after an interrupt.
        "control_cancel_request" => {
            vec![AgentEvent::PermissionAnswer { id: string(value, "request_id")? }]
        }
        // Chunks of messages that also arrive whole; signs of life.
        "stream_event" | "keep_alive" | "tool_progress" | "command_lifecycle" => vec![],
        _ => return None,
    };
    Some((events, told_at))
}

fn system(value: &Value) -> Option<Vec<AgentEvent>> {
    let subtype = value.get("subtype")?.as_str()?;
    Some(match subtype {
        "init" => {
            let mut events = vec![AgentEvent::Session {
                model: string(value, "model"),
                cwd: string(value, "cwd"),
                session_id: string(value, "session_id"),
            }];
            events.extend(broken_servers(value));
            events
        }
        "api_retry" => vec![AgentEvent::ApiRetry {
            attempt: small(number(value, "attempt")),
            max: small(number(value, "max_retries")),
            delay_s: value
                .get("retry_delay_ms")
                .and_then(Value::as_f64)
                .unwrap_or_default()
                .max(0.0)
                / 1000.0,
            status: status(value.get("error_status")),
        }],
        "compact_boundary" => {
            let nothing = Value::Null;
            let metadata = value.get("compact_metadata").unwrap_or(&nothing);
            vec![AgentEvent::Compaction {
                before: number(metadata, "pre_tokens"),
                after: number(metadata, "post_tokens"),
            }]
        }
        "model_fallback"
        | "model_consent_fallback"
        | "model_refusal_fallback"
        | "model_refusal_no_fallback" => {
            vec![notice(fallback(value))]
        }
        "hook_response" if string(value, "outcome").as_deref() == Some("error") => {
            let hook = string(value, "hook_name").unwrap_or_else(|| "a hook".into());
            let why = string(value, "stderr").filter(|text| !text.trim().is_empty());
            let why = why.map(|text| format!(": {}", text.trim())).unwrap_or_default();
            vec![notice(format!("hook {hook} failed{why}"))]
        }
        // Messages for people at a screen. Warnings and errors are among them.
        "informational"
        | "notification"
        | "mirror_error"
        | "session_writes_lost"
        | "instruction_size_warning" => {
            let level = string(value, "level").unwrap_or_default();
            let said =
                ["content", "message", "text", "error"].iter().find_map(|key| string(value, key));
            match said
                .filter(|_| matches!(level.as_str(), "warning" | "error") || subtype.contains("_"))
            {
                Some(text) => vec![notice(text)],
                None => vec![],
            }
        }
        // `permission_denied` gives the reason; the tool's failed result follows. The others are
        // signs of life or housekeeping, or concern subagents and background tasks, whose calls
        // have their own lines.
        "status"
        | "hook_started"
        | "hook_progress"
        | "hook_response"
        | "permission_denied"
        | "task_started"
        | "task_progress"
        | "task_updated"
        | "task_notification"
        | "task_summary"
        | "background_tasks"
        | "background_tasks_changed"
        | "agents_killed"
        | "session_state_changed"
        | "session_title_changed"
        | "thinking_tokens"
        | "turn_duration"
        | "post_turn_summary"
        | "stop_hook_summary"
        | "files_persisted"
        | "commands_changed"
        | "elicitation_complete"
        | "memory_recall"
        | "memory_saved"
        | "local_command"
        | "local_command_output" => vec![],
        _ => return None,
    })
}

fn notice(text: String) -> AgentEvent {
    AgentEvent::Notice { text: cut(text.trim(), TEXT_LIMIT) }
}

/// Returns notices about MCP servers that the agent cannot use.
fn broken_servers(init: &Value) -> impl Iterator<Item = AgentEvent> {
    let servers = init.get("mcp_servers").and_then(Value::as_array).into_iter().flatten();
    servers.filter_map(|server| {
        let status = server.get("status")?.as_str()?;
        let name = cut(server.get("name")?.as_str()?, 200);
        let told = string(server, "error").map(|text| format!(" ({text})")).unwrap_or_default();
        match status {
            "failed" => Some(notice(format!("MCP server `{name}` does not work{told}"))),
            "needs-auth" => Some(notice(format!("MCP server `{name}` needs a login{told}"))),
            _ => None,
        }
    })
}

fn fallback(value: &Value) -> String {
    let model = |snake: &str, camel: &str| string(value, snake).or_else(|| string(value, camel));
    string(value, "content").unwrap_or_else(|| {
        let from = model("original_model", "originalModel").unwrap_or_else(|| "its model".into());
        let to = model("fallback_model", "fallbackModel").unwrap_or_else(|| "another".into());
        format!("the CLI switched from {from} to {to}")
    })
}

fn assistant(value: &mut Value) -> Option<Vec<AgentEvent>> {
    let message = value.get_mut("message").filter(|message| message.is_object())?;
    let usage = usage(message);
    let mut events: Vec<_> = match message.get_mut("content") {
        Some(Value::String(text)) if !text.is_empty() => vec![said(text)],
        // A part that we cannot read must not lose the other parts.
        Some(Value::Array(parts)) => parts
            .iter_mut()
            .map(|part| {
                assistant_part(part).unwrap_or_else(|| AgentEvent::Unknown {
                    raw: cut(&part.to_string(), TEXT_LIMIT),
                })
            })
            .collect(),
        _ => vec![],
    };
    // Usage comes last, so that it never separates a line's other events from their numbers.
    events.extend(usage);
    Some(events)
}

fn said(text: &str) -> AgentEvent {
    AgentEvent::Text { chars: text.chars().count() as u64, text: cut(text, TEXT_LIMIT) }
}

fn assistant_part(part: &mut Value) -> Option<AgentEvent> {
    Some(match part.get("type")?.as_str()? {
        "text" => said(part.get("text")?.as_str()?),
        "thinking" => {
            let text = part.get("thinking")?.as_str()?;
            AgentEvent::Thinking { chars: text.chars().count() as u64, text: cut(text, TEXT_LIMIT) }
        }
        "redacted_thinking" => AgentEvent::Thinking { chars: 0, text: String::new() },
        "tool_use" | "server_tool_use" | "mcp_tool_use" => {
            let (id, name) = (string(part, "id")?, string(part, "name")?);
            let mut input = part.get_mut("input").map(Value::take).unwrap_or_default();
            text::slim(&mut input);
            AgentEvent::ToolCall { id, name, input }
        }
        // Results of the API's own tools, in the same message.
        kind if kind.ends_with("_tool_result") => {
            let content = part.get("content");
            let failed = content.and_then(|content| content.get("error_code")).is_some();
            let ok = !failed && !part.get("is_error").and_then(Value::as_bool).unwrap_or_default();
            let text = both_ends(&content.map(plain).unwrap_or_default(), TEXT_LIMIT);
            AgentEvent::ToolResult { id: string(part, "tool_use_id")?, ok, text, exit_code: None }
        }
        _ => return None,
    })
}

/// Reads the usage of a message. A message arrives in several lines, one for each part. Each line
/// has the numbers of the whole call at its beginning; `call` shows that they belong together.
fn usage(message: &Value) -> Option<AgentEvent> {
    let usage = message.get("usage")?;
    let (input, output) = (number(usage, "input_tokens"), number(usage, "output_tokens"));
    let (cache_read, cache_write) =
        (number(usage, "cache_read_input_tokens"), number(usage, "cache_creation_input_tokens"));
    // Messages that the CLI itself writes in the assistant's name (an error, say) cost nothing.
    (input | output | cache_read | cache_write > 0).then(|| AgentEvent::Usage {
        total_usd: None,
        input,
        output,
        cost_usd: 0.0,
        cache_read,
        cache_write,
        model: string(message, "model"),
        // A call without an id is still a call: the result repeats its numbers.
        call: Some(string(message, "id").unwrap_or_default()),
    })
}

fn user(value: &Value) -> Option<Vec<AgentEvent>> {
    let flag = |name: &str| value.get(name).and_then(Value::as_bool).unwrap_or_default();
    let content = value.get("message")?.get("content")?;
    if flag("isReplay") {
        let text = plain(content);
        // This echoes a control request, not a prompt.
        if text.starts_with("<local-command-") {
            return Some(vec![]);
        }
        // The CLI echoes a message that the session already holds at once, without a timestamp, and
        // does nothing more with it.
        let repeated = value.get("timestamp").is_none();
        return Some(vec![AgentEvent::Prompt {
            text: cut(&text, TEXT_LIMIT),
            key: string(value, "uuid"),
            repeated,
        }]);
    }
    let mut events = Vec::new();
    for part in content.as_array().map(Vec::as_slice).unwrap_or_default() {
        if part.get("type").and_then(Value::as_str) == Some("tool_result") {
            let raw = || AgentEvent::Unknown { raw: cut(&part.to_string(), TEXT_LIMIT) };
            events.push(tool_result(part, value).unwrap_or_else(raw));
        }
    }
    // Nobody typed the other parts of a user message: they are the CLI's own reminders, the task of
    // a subagent, or the note that a turn was interrupted (which its result reports).
    Some(events)
}

fn tool_result(part: &Value, line: &Value) -> Option<AgentEvent> {
    let ok = !part.get("is_error").and_then(Value::as_bool).unwrap_or_default();
    let text = part.get("content").map(plain).unwrap_or_default();
    let told =
        line.get("tool_use_result").and_then(|r| r.get("exitCode").or_else(|| r.get("exit_code")));
    Some(AgentEvent::ToolResult {
        id: string(part, "tool_use_id")?,
        ok,
        exit_code: told
            .and_then(Value::as_i64)
            .or_else(|| (!ok).then(|| exit_code(&text)).flatten()),
        text: both_ends(&text, TEXT_LIMIT),
    })
}

/// Reads the exit code from a failed command's output, which begins with `Exit code N`.
fn exit_code(text: &str) -> Option<i64> {
    text.strip_prefix("Exit code ")?.lines().next()?.trim().parse().ok()
}

fn rate_limit(info: &Value) -> Option<Vec<AgentEvent>> {
    let status = info.get("status")?.as_str()?;
    // `allowed` is information about a window, not about a limit.
    if status == "allowed" {
        return Some(vec![]);
    }
    Some(vec![AgentEvent::RateLimit {
        resets_in_s: 0.0,
        resets_at: info.get("resetsAt").and_then(Value::as_f64),
        warning: status == "allowed_warning",
    }])
}

/// Returns text content in either form of the API: a text, or parts of which some are text.
fn plain(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_string(),
                None => format!(
                    "[{}]",
                    part.get("type").and_then(Value::as_str).unwrap_or("unknown part")
                ),
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
    value.get(key).map_or(0, text::number)
}

fn small(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Reads an HTTP status, given as a number or in digits.
pub(super) fn status(value: Option<&Value>) -> Option<u16> {
    let value = value?;
    let number = value.as_u64().or_else(|| value.as_str()?.trim().parse().ok())?;
    u16::try_from(number).ok().filter(|status| (100..600).contains(status))
}
