//! Finds the name of a call's tool, as Claude Code calls it ([`vocabulary`]).
//!
//! | agent | a command | a tool of an MCP server |
//! |---|---|---|
//! | claude-agent-acp | `name: Bash` | `name: mcp__server__tool` |
//! | codex-acp | kind `execute` | kind `execute`, `rawInput.server` and `rawInput.tool` |
//! | qwen | `_meta.toolName: run_shell_command` | `tool (server MCP Server)`, or by `_meta` |
//! | gemini | kind `execute` | `tool (server MCP Server)` |
//! | opencode | kind `execute`, title `bash` | `server_tool` |
//! | copilot | kind `execute` | `server-tool` |
//! | cline | kind `execute`, title `run_commands: …` | `server__tool` |
//!
//! A name in which a server and its tool are joined by one sign stays as it is, because nothing
//! tells where the server's name ends. The rules match it
//! ([`muleteer_model::agent::permission::Rule`]).

use crate::acp::update;
use muleteer_model::agent::event::cut;
use muleteer_model::agent::vocabulary;
use serde_json::{Map, Value};

/// The most bytes of a tool's name.
const NAME_LIMIT: usize = 200;

/// Returns the name of the tool that a call uses: the agent's own name if it is one of Claude's,
/// else one derived from the kind of the call, or from the agent's own name.
pub(super) fn tool(update: &Value) -> String {
    let told = told(update);
    if let Some(told) = told
        && (told.starts_with(|c: char| c.is_ascii_uppercase()) || told.starts_with("mcp__"))
    {
        let is_command = vocabulary::tool(told) == Some("Bash");
        return if is_command { "Bash".into() } else { cut(told, NAME_LIMIT) };
    }
    if let Some((name, _)) = mcp(update) {
        return name;
    }
    let own = told.or_else(|| string(update, "title")).unwrap_or_default();
    match string(update, "kind") {
        Some("execute") => "Bash".into(),
        Some("edit" | "delete" | "move") => "Edit".into(),
        Some("read") => "Read".into(),
        Some("search") => "Grep".into(),
        Some("fetch") => "WebFetch".into(),
        Some("think") => "Think".into(),
        _ => vocabulary::tool(own).map_or_else(|| cut(own, NAME_LIMIT), str::to_string),
    }
}

/// Reads a call of an MCP server's tool. Returns the tool's name in Claude's form, and its
/// arguments.
pub(super) fn mcp(update: &Value) -> Option<(String, Option<&Value>)> {
    let raw = update.get("rawInput");
    by_fields(update).or_else(|| by_title(update).map(|name| (name, raw)))
}

/// Codex reports such a call like a command, with kind `execute`. Qwen names the server beside the
/// tool.
fn by_fields(update: &Value) -> Option<(String, Option<&Value>)> {
    let raw = update.get("rawInput");
    let meta = |key: &str| string(update.get("_meta")?, key);
    if meta("provenance") == Some("mcp")
        && let (Some(server), Some(tool)) = (meta("serverId"), meta("toolName"))
    {
        return Some((canonical(server, tool), raw));
    }
    let raw = raw?;
    let (server, tool) = (string(raw, "server")?, string(raw, "tool")?);
    let told =
        update.pointer("/_meta/is_mcp_tool_call").and_then(Value::as_bool).unwrap_or_default();
    let titled = string(update, "title") == Some(format!("mcp.{server}.{tool}").as_str());
    (told || titled).then(|| (canonical(server, tool), raw.get("arguments")))
}

/// Reads `tool (server MCP Server)`. The title of a command or of a change of files is the model's
/// text and does not count, nor does a title that may be a file's name.
fn by_title(update: &Value) -> Option<String> {
    let acts = matches!(string(update, "kind"), Some("execute" | "edit" | "delete" | "move"));
    let told = told(update);
    let has_files = update.pointer("/locations/0").is_some();
    if acts || has_files || told.is_some_and(|told| vocabulary::tool(told).is_some()) {
        return None;
    }
    told.into_iter().chain(string(update, "title")).find_map(|text| {
        let (tool, rest) = text.split_once(" (")?;
        let server = rest.strip_suffix(" MCP Server)")?;
        let is_name = |text: &str| {
            !text.is_empty()
                && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':'))
        };
        let server = server.trim().replace(' ', "_");
        (is_name(tool) && is_name(&server)).then(|| canonical(&server, tool))
    })
}

fn canonical(server: &str, tool: &str) -> String {
    let tool = tool.strip_prefix(&format!("mcp__{server}__")).unwrap_or(tool);
    cut(&format!("mcp__{server}__{tool}"), NAME_LIMIT)
}

/// Returns the name that the agent gives to the tool itself.
fn told(update: &Value) -> Option<&str> {
    let meta =
        |place: &str| update.pointer(place).and_then(Value::as_str).filter(|text| !text.is_empty());
    string(update, "name")
        .or_else(|| meta("/_meta/claudeCode/toolName"))
        .or_else(|| meta("/_meta/toolName"))
}

/// Adds Claude's keys to the input of a call that has its own keys for a file or a command.
pub(crate) fn rename_keys(input: &mut Map<String, Value>) {
    let file = ["filePath", "filepath", "absolute_path"].iter().find_map(|key| input.get(*key));
    if let Some(path) = file.filter(|_| !input.contains_key("file_path")).cloned() {
        input.insert("file_path".into(), path);
    }
    if let (None, Some(Value::Array(lines))) = (input.get("command"), input.get("commands")) {
        let script = update::joined(lines, "\n");
        input.insert("command".into(), script.into());
    }
}

fn string<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tools_of_all_agents_have_claudes_names() {
        for (call, name) in [
            (json!({"name": "Bash", "kind": "execute"}), "Bash"),
            (json!({"name": "Write", "title": "a", "kind": "edit"}), "Write"),
            (json!({"name": "Agent", "kind": "think"}), "Agent"),
            (json!({"name": "Shell"}), "Bash"),
            (json!({"title": "Shell", "_meta": {"toolName": "run_shell_command"}}), "Bash"),
            (json!({"title": "Shell"}), "Bash"),
            (json!({"title": "bash", "kind": "other"}), "Bash"),
            (json!({"name": "run_commands", "title": "run_commands: ls"}), "Bash"),
            (json!({"title": "x", "_meta": {"toolName": "write_file"}}), "Write"),
            (json!({"title": "todowrite", "kind": "other"}), "TodoWrite"),
            (json!({"title": "echo hi", "kind": "execute"}), "Bash"),
            (json!({"title": "some step", "kind": "other"}), "some step"),
            (json!({"name": "Skill", "kind": "other"}), "Skill"),
        ] {
            assert_eq!(tool(&call), name, "{call}");
        }
    }

    #[test]
    fn tools_of_mcp_servers_have_claudes_names() {
        for (call, name) in [
            (json!({"title": "ping (sup MCP Server)", "kind": "other"}), "mcp__sup__ping"),
            (json!({"title": "get-x (my docs MCP Server)"}), "mcp__my_docs__get-x"),
            (json!({"title": "{}", "_meta": {"toolName": "mcp__sup__ping"}}), "mcp__sup__ping"),
            (
                json!({"title": "{}", "_meta": {"toolName": "ping", "provenance": "mcp",
                    "serverId": "sup"}}),
                "mcp__sup__ping",
            ),
            (
                json!({"kind": "read", "_meta": {"toolName": "mcp__sup__ping",
                    "provenance": "mcp", "serverId": "sup"}}),
                "mcp__sup__ping",
            ),
            // The title of a command is the model's text.
            (json!({"title": "ping (sup MCP Server)", "kind": "execute"}), "Bash"),
            (
                json!({"title": "ping (sup MCP Server)", "kind": "read",
                    "locations": [{"path": "/a/ping (sup MCP Server)"}]}),
                "Read",
            ),
            (json!({"title": "ping (sup MCP Server)", "_meta": {"toolName": "shell"}}), "Bash"),
        ] {
            assert_eq!(tool(&call), name, "{call}");
        }
    }
}
