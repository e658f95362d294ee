//! Interprets a `session/update` notification.
//!
//! Tools get the names that they have in Claude Code, so that monitors and people see one set of
//! names. A call is reported in several updates, each with more detail; [`crate::Assembly`] merges
//! them.

use crate::acp::{api_error, parser, result};
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
            let text = AgentEvent::Text {
                chars: said.chars().count() as u64,
                text: cut(&said, text::RESULT_TEXT_LIMIT),
            };
            let used = result::used_by_call(update);
            of_message(update).into_iter().chain([text]).chain(used).collect()
        }
        "agent_thought_chunk" => {
            let thought = plain(update.get("content")?);
            let thought = AgentEvent::Thinking {
                chars: thought.chars().count() as u64,
                text: cut(&thought, TEXT_LIMIT),
            };
            of_message(update).into_iter().chain([thought]).collect()
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
    if begins || (ended.is_none() && !input.is_empty()) {
        let runs = status == Some("in_progress") && !input.is_empty();
        events.push(AgentEvent::ToolCall {
            id: id.clone(),
            name: name(update),
            input: Value::Object(input),
        });
        if runs {
            events.push(AgentEvent::CallAnswer(CallAnswer::ToolRuns { id: id.clone() }));
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
            ok,
            text: both_ends(&output(update), TEXT_LIMIT),
            exit_code: exit_code(update),
        });
    }
    Some(events)
}

/// Returns the tool's name: the agent's own name if it is one of Claude's, else one derived from
/// the kind of the call.
pub(super) fn name(update: &Value) -> String {
    let string =
        |key: &str| update.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let told = string("name")
        .or_else(|| update.pointer("/_meta/claudeCode/toolName").and_then(Value::as_str));
    if let Some(told) = told
        && (told.starts_with(|c: char| c.is_ascii_uppercase()) || told.starts_with("mcp__"))
    {
        return cut(told, 200);
    }
    if let Some((name, _)) = mcp(update) {
        return name;
    }
    match string("kind") {
        Some("execute") => "Bash".into(),
        Some("edit" | "delete" | "move") => "Edit".into(),
        Some("read") => "Read".into(),
        Some("search") => "Grep".into(),
        Some("fetch") => "WebFetch".into(),
        Some("think") => "Think".into(),
        _ => cut(told.or_else(|| string("title")).unwrap_or_default(), 200),
    }
}

/// Reads a call of an MCP server's tool as Codex reports it, with kind `execute`. Returns the
/// tool's name in Claude's form, and its arguments.
fn mcp(update: &Value) -> Option<(String, Option<&Value>)> {
    let raw = update.get("rawInput")?;
    let field = |key: &str| raw.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (server, tool) = (field("server")?, field("tool")?);
    let told =
        update.pointer("/_meta/is_mcp_tool_call").and_then(Value::as_bool).unwrap_or_default();
    let titled = update.get("title").and_then(Value::as_str)
        == Some(format!("mcp.{server}.{tool}").as_str());
    (told || titled).then(|| (cut(&format!("mcp__{server}__{tool}"), 200), raw.get("arguments")))
}

/// Returns the input of a call, or the file it works on if only that is reported.
pub(super) fn input(update: &Value) -> Map<String, Value> {
    let raw = mcp(update).map_or(update.get("rawInput"), |(_, arguments)| arguments);
    let mut input = match raw {
        Some(Value::Object(input)) => input.clone(),
        None | Some(Value::Null) => Map::new(),
        Some(other) => Map::from_iter([("input".to_string(), other.clone())]),
    };
    let is_command = update.get("kind").and_then(Value::as_str) == Some("execute");
    if let Some(Value::Array(words)) = input.get("command") {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
        let line = words.join(" ");
        input.insert("command".into(), line.into());
    }
    if let (Some(Value::Array(lines)), None) = (input.get("commands"), input.get("command")) {
        let lines: Vec<_> = lines.iter().filter_map(Value::as_str).collect();
        let script = lines.join("\n");
        input.insert("command".into(), script.into());
    }
    let first = update.pointer("/locations/0/path").or_else(|| update.pointer("/content/0/path"));
    if let Some(path) = first.filter(|_| !is_command && !input.contains_key("file_path")) {
        input.insert("file_path".into(), path.clone());
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

/// Returns a tool's output: the raw output if it is reported, else the content for display.
fn output(update: &Value) -> String {
    let raw = update.get("rawOutput").and_then(|raw| match raw {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => {
            ["output", "formatted_output", "aggregated_output", "error", "message"]
                .iter()
                .find_map(|key| fields.get(*key)?.as_str())
                .map(str::to_string)
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

fn exit_code(update: &Value) -> Option<i64> {
    [
        "/_meta/terminal_exit/exit_code",
        "/rawOutput/exit_code",
        "/rawOutput/exitCode",
        "/rawOutput/metadata/exit",
    ]
    .iter()
    .find_map(|place| update.pointer(place)?.as_i64())
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
