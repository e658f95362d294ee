//! Interprets a `session/update` notification.
//!
//! Tools get the names that they have in Claude Code, so that monitors and people see one set of
//! names. A call is reported in several updates, each with more detail; [`crate::Assembly`] merges
//! them.

use crate::acp::{api_error, names, parser, result};
use crate::stream::text;
use muleteer_model::agent::acp_handshake::CallAnswer;
use muleteer_model::agent::ask::ID_LIMIT;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, both_ends, cut};
use muleteer_model::agent::prompt;
use serde_json::{Map, Value, json};

/// Returns `None` for an update that this version does not know.
pub(super) fn read(update: &Value) -> Option<Vec<AgentEvent>> {
    Some(match update.get("sessionUpdate")?.as_str()? {
        "agent_message_chunk" => {
            let said = plain(update.get("content")?);
            if let Some(report) = api_error::report(&said) {
                return Some(report);
            }
            // Some agents report the end of the model's answer by an empty piece.
            let text = (!said.is_empty()).then(|| AgentEvent::Text {
                chars: said.chars().count() as u64,
                text: cut(&said, text::RESULT_TEXT_LIMIT),
            });
            let used = result::used_by_call(update);
            of_message(update).into_iter().chain(text).chain(used).collect()
        }
        "agent_thought_chunk" => {
            let thought = plain(update.get("content")?);
            let thought = (!thought.is_empty()).then(|| AgentEvent::Thinking {
                chars: thought.chars().count() as u64,
                text: cut(&thought, TEXT_LIMIT),
            });
            of_message(update).into_iter().chain(thought).collect()
        }
        // An echo of a prompt, or the history of a session that is loaded.
        "user_message_chunk" => {
            let said = plain(update.get("content")?);
            let key = prompt::marked(&said).map(str::to_string);
            vec![AgentEvent::Prompt { text: cut(&said, TEXT_LIMIT), key, repeated: false }]
        }
        "tool_call" | "tool_call_update" => tool(update)?,
        "plan" => plan(update)?,
        "usage_update" => usage(update).into_iter().collect(),
        // An update for a user interface only.
        "available_commands_update" => vec![],
        "current_mode_update" => mode(update.get("currentModeId").and_then(Value::as_str)),
        "config_option_update" => {
            mode(parser::modes(update).and_then(|modes| modes.current).as_deref())
        }
        // codex-acp reports a failure of the model's API only here: the turn then ends like any
        // other.
        "session_info_update" => {
            match update.pointer("/_meta/codex/threadStatus/type").and_then(Value::as_str) {
                Some("systemError") => vec![AgentEvent::CallAnswer(CallAnswer::BrokeOff {})],
                // pi ends a turn in which the API failed like any other, and gives no reason.
                _ if update.pointer("/_meta/piAcp/running") == Some(&Value::Bool(true)) => {
                    vec![AgentEvent::CallAnswer(CallAnswer::TurnRuns {})]
                }
                _ => vec![],
            }
        }
        _ => return None,
    })
}

fn mode(mode: Option<&str>) -> Vec<AgentEvent> {
    let changed =
        |mode| AgentEvent::CallAnswer(CallAnswer::ModeChanged { mode: cut(mode, ID_LIMIT) });
    mode.map(changed).into_iter().collect()
}

/// Returns the id of the message to which a chunk belongs, if the agent gives one.
fn of_message(update: &Value) -> Option<AgentEvent> {
    let message = cut(update.get("messageId")?.as_str()?, 200);
    Some(AgentEvent::CallAnswer(CallAnswer::Says { message }))
}

fn tool(update: &Value) -> Option<Vec<AgentEvent>> {
    let id = update.get("toolCallId")?.as_str()?.to_string();
    let status = update.get("status").and_then(Value::as_str);
    let ended = match status {
        Some("completed") => Some(true),
        Some("failed") => Some(false),
        _ => None,
    };
    let mut events = Vec::new();
    let begins = update.get("sessionUpdate").and_then(Value::as_str) == Some("tool_call");
    let input = input(update);
    let name = names::tool(update);
    let runs = status == Some("in_progress");
    let tells = !input.is_empty() || (runs && !name.is_empty());
    if begins || (ended.is_none() && tells) {
        let (is_told, is_announced) = (!input.is_empty(), !runs && is_announcement(&input));
        events.push(AgentEvent::ToolCall { id: id.clone(), name, input: Value::Object(input) });
        if runs && is_told {
            events.push(AgentEvent::CallAnswer(CallAnswer::ToolRuns { id: id.clone() }));
        } else if ended.is_none() && is_announced {
            events.push(AgentEvent::CallAnswer(CallAnswer::ToolAnnounced { id: id.clone() }));
        }
    }
    // Content shown with a call may only describe it, so it does not count as output.
    let gives_out = |place: &str| update.pointer(place).is_some_and(|output| !output.is_null());
    if status == Some("in_progress")
        && (gives_out("/rawOutput") || gives_out("/_meta/terminal_output"))
    {
        events.push(AgentEvent::CallAnswer(CallAnswer::ToolOutput { id: id.clone() }));
    }
    if let Some(ok) = ended {
        events.push(AgentEvent::ToolResult {
            id,
            ok: ok && !tells_failure(update),
            text: both_ends(&output(update), TEXT_LIMIT),
            exit_code: exit_code(update),
        });
    }
    Some(events)
}

/// Returns the call whose permission the agent requests. Some agents report a call only there.
pub(super) fn asked(call: &Value) -> Option<AgentEvent> {
    let id = call.get("toolCallId")?.as_str().filter(|id| !id.is_empty())?.to_string();
    let name = Some(names::tool(call)).filter(|name| !name.is_empty())?;
    Some(AgentEvent::ToolCall { id, name, input: Value::Object(input(call)) })
}

/// Whether the input of a call that does not run yet says nothing about the call: the agent
/// announces the call while the model still writes its arguments. Announcements are held back, so a
/// long one is none.
fn is_announcement(input: &Map<String, Value>) -> bool {
    const LIMIT: usize = 4096;
    let is_short = |value: &Value| value.as_str().is_some_and(|text| text.len() <= LIMIT);
    input
        .iter()
        .all(|(key, value)| matches!(&**key, "description" | "cwd") && is_short(value))
}

/// Returns the input of a call, or the file it works on if only that is reported.
pub(super) fn input(update: &Value) -> Map<String, Value> {
    let raw = names::mcp(update).map_or(update.get("rawInput"), |(_, arguments)| arguments);
    let mut input = match raw {
        Some(Value::Object(input)) => input.clone(),
        None | Some(Value::Null) => Map::new(),
        Some(other) => Map::from_iter([("input".to_string(), other.clone())]),
    };
    let is_command = update.get("kind").and_then(Value::as_str) == Some("execute")
        || names::tool(update) == "Bash";
    if let Some(Value::Array(words)) = input.get("command") {
        let line = joined(words, " ");
        input.insert("command".into(), line.into());
    }
    if input.get("command").is_none_or(Value::is_null) {
        match input.get("commands") {
            Some(Value::Array(lines)) => {
                let script = joined(lines, "\n");
                input.insert("command".into(), script.into());
            }
            Some(Value::String(line)) => {
                let line = line.clone();
                input.insert("command".into(), line.into());
            }
            _ => {}
        }
    }
    let first = update.pointer("/locations/0/path").or_else(|| update.pointer("/content/0/path"));
    if let Some(path) = first.filter(|_| !is_command && !input.contains_key("file_path")) {
        input.insert("file_path".into(), path.clone());
    }
    let own = ["filePath", "filepath", "absolute_path"].iter().find_map(|key| input.get(*key));
    if let Some(path) = own.filter(|_| !is_command && !input.contains_key("file_path")).cloned() {
        input.insert("file_path".into(), path);
    }
    if let Some(title) = update.get("title").filter(|_| is_command && input.is_empty()) {
        input.insert("description".into(), title.clone());
    }
    let mut input = Value::Object(input);
    text::slim(&mut input);
    match input {
        Value::Object(input) => input,
        _ => Map::new(),
    }
}

/// Joins the words of a command, or several commands. A rule must see all of it, so a part of
/// unknown form becomes its JSON.
pub(super) fn joined(parts: &[Value], separator: &str) -> String {
    let part = |part: &Value| match (part, part.get("command")) {
        (Value::String(text), _) => text.clone(),
        (Value::Object(fields), Some(Value::String(command)))
            if fields.keys().all(|key| key == "command" || key == "args") =>
        {
            let args = match fields.get("args") {
                Some(Value::Array(args)) => joined(args, " "),
                Some(args) => args.to_string(),
                None => String::new(),
            };
            format!("{command} {args}").trim_end().to_string()
        }
        (other, _) => other.to_string(),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(separator)
}

/// Returns a tool's output: the raw output if it is reported, else the content for display.
fn output(update: &Value) -> String {
    let raw = update.get("rawOutput").and_then(|raw| match raw {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) => said(raw).map(str::to_string),
        // One element for each command of the call.
        Value::Array(parts) if parts.iter().any(Value::is_object) => {
            let texts = parts.iter().filter_map(|part| said(part).or_else(|| part.as_str()));
            Some(texts.collect::<Vec<_>>().join("\n"))
        }
        _ => None,
    });
    raw.unwrap_or_else(|| {
        let parts = update.get("content").and_then(Value::as_array).into_iter().flatten();
        let texts = parts.filter_map(|part| match part.get("type").and_then(Value::as_str) {
            Some("content") => part.get("content").map(plain),
            // The change itself was reported with the call.
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    })
}

/// Returns the text of a tool's raw output. An error counts if there is no other output.
fn said(raw: &Value) -> Option<&str> {
    let texts = ["output", "result", "formatted_output", "aggregated_output", "error", "message"]
        .into_iter()
        .filter_map(|key| raw.get(key)?.as_str());
    let mut texts = texts.collect::<Vec<_>>().into_iter();
    let first = texts.next()?;
    Some(texts.find(|text| first.is_empty() && !text.is_empty()).unwrap_or(first))
}

fn exit_code(update: &Value) -> Option<i64> {
    let one = [
        "/_meta/terminal_exit/exit_code",
        "/rawOutput/exit_code",
        "/rawOutput/exitCode",
        "/rawOutput/metadata/exit",
        "/rawOutput/metadata/exitCode",
    ]
    .iter()
    .find_map(|place| update.pointer(place)?.as_i64());
    one.or_else(|| {
        let codes = parts(update).filter_map(|part| {
            ["exitCode", "exit_code"].iter().find_map(|key| part.get(*key)?.as_i64())
        });
        codes.reduce(|first, code| if first == 0 { code } else { first })
    })
}

/// Whether the output of a call that the agent reports as completed tells that it failed.
fn tells_failure(update: &Value) -> bool {
    let is_failure = |output: &Value| output.get("success").and_then(Value::as_bool) == Some(false);
    let is_signal = |signal: &Value| match signal {
        Value::String(name) => !name.is_empty(),
        other => other.as_i64().is_some_and(|number| number != 0),
    };
    let was_killed = ["/_meta/terminal_exit/signal", "/rawOutput/signal"]
        .iter()
        .any(|place| update.pointer(place).is_some_and(is_signal));
    was_killed
        || exit_code(update).is_some_and(|code| code != 0)
        || update.get("rawOutput").is_some_and(is_failure)
        || parts(update).any(is_failure)
}

/// Returns the parts of a raw output that has one for each command or each kind of content.
fn parts(update: &Value) -> impl Iterator<Item = &Value> {
    let raw = update.get("rawOutput");
    let listed = raw.and_then(|raw| raw.get("contents").or(Some(raw))).and_then(Value::as_array);
    listed.into_iter().flatten()
}

/// A plan is only written; it has no result.
fn plan(update: &Value) -> Option<Vec<AgentEvent>> {
    let todos = update.get("entries")?.as_array()?.iter().map(|entry| {
        let status = entry.get("status").and_then(Value::as_str).unwrap_or("pending");
        json!({"content": entry.get("content"), "status": status})
    });
    let mut input = json!({"todos": todos.collect::<Vec<_>>()});
    text::slim(&mut input);
    let id = "plan".to_string();
    let done =
        AgentEvent::ToolResult { id: id.clone(), ok: true, text: String::new(), exit_code: None };
    Some(vec![AgentEvent::ToolCall { id, name: "TodoWrite".into(), input }, done])
}

/// `used` is the current size of the context; tokens and models come with the turn's end.
fn usage(update: &Value) -> Option<AgentEvent> {
    let used = update.get("used").and_then(Value::as_u64).unwrap_or_default();
    let in_dollars =
        |cost: &Value| cost.get("currency").and_then(Value::as_str).is_none_or(|c| c == "USD");
    let cost = update.get("cost").filter(|cost| in_dollars(cost));
    Some(AgentEvent::Usage {
        input: used,
        output: 0,
        cost_usd: 0.0,
        cache_read: 0,
        cache_write: 0,
        model: update.pointer("/_meta/_claude~1model").and_then(Value::as_str).map(str::to_string),
        call: Some("context".into()),
        total_usd: cost.and_then(|cost| cost.get("amount")?.as_f64()),
    })
}

/// Returns the text of a content block, or the kind of its content.
fn plain(content: &Value) -> String {
    if let Some(text) = content.get("text").and_then(Value::as_str) {
        return text.to_string();
    }
    let kind = content.get("type").and_then(Value::as_str).unwrap_or("unknown content");
    match content.pointer("/resource/uri").or_else(|| content.get("uri")).and_then(Value::as_str) {
        Some(uri) => format!("[{kind} {uri}]"),
        None => format!("[{kind}]"),
    }
}
