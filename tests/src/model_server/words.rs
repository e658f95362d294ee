//! Translates the calls of a script into the tools that a request declares, so that one script
//! drives every agent.

use serde_json::{Value, json};

/// Returns the names of the tools that a request of any of the APIs declares.
pub(super) fn declared(request: &Value) -> Vec<&str> {
    let tools = request["tools"].as_array().into_iter().flatten();
    tools
        .flat_map(|tool| {
            // Gemini declares its functions in groups.
            let group = tool["functionDeclarations"].as_array();
            let own = tool["name"].as_str().or_else(|| tool["function"]["name"].as_str());
            group.into_iter().flatten().filter_map(|one| one["name"].as_str()).chain(own)
        })
        .collect()
}

/// Returns the name and the arguments of a call as the agent that sent the request knows them: of a
/// shell command (`Bash`), and of an MCP server's tool (`mcp__server__tool`). An argument such as
/// `<dispatch_id>` gets the newest value of that field in the conversation.
pub(super) fn in_words_of(request: &Value, name: &str, input: &Value) -> (String, Value) {
    let input = &filled(request, input);
    let declared = declared(request);
    let has = |name: &str| declared.contains(&name);
    if has(name) {
        return (name.into(), input.clone());
    }
    if name == "Bash" {
        let command = &input["command"];
        // Codex declares its tools in forms of their own, so it comes last, without a look.
        return if has("bash") {
            ("bash".into(), json!({"command": command, "description": input["description"]}))
        } else if has("run_shell_command") {
            let said = json!({"command": command, "description": input["description"],
                "is_background": false});
            ("run_shell_command".into(), said)
        } else if has("run_commands") {
            ("run_commands".into(), json!({"commands": [command]}))
        } else if has("execute_command") {
            let said = json!({"command": command, "requires_approval": false});
            ("execute_command".into(), said)
        } else {
            // Codex's tool answers before the command's end, unless the call tells it to wait.
            ("exec_command".into(), json!({"cmd": command, "yield_time_ms": 30_000}))
        };
    }
    let of_server = name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"));
    let joined = of_server.and_then(|(server, tool)| {
        declared.iter().find(|name| name.contains(server) && name.ends_with(tool))
    });
    (joined.map_or(name, |name| name).into(), input.clone())
}

/// Returns `input` with a value for each `<field>`.
fn filled(request: &Value, input: &Value) -> Value {
    match input {
        Value::String(text) => {
            let field = text.strip_prefix('<').and_then(|text| text.strip_suffix('>'));
            let value = field.and_then(|field| newest(request, field));
            value.map_or_else(|| input.clone(), Value::from)
        }
        Value::Array(all) => all.iter().map(|one| filled(request, one)).collect(),
        Value::Object(all) => {
            let fields = all.iter().map(|(key, one)| (key.clone(), filled(request, one)));
            Value::Object(fields.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => input.clone(),
    }
}

/// Returns the newest value of a text field in the results that a request quotes. They are JSON
/// within strings, once or twice.
fn newest(request: &Value, field: &str) -> Option<String> {
    let told = ["messages", "input", "contents"].iter().find(|name| request[**name].is_array())?;
    let told = request[*told].to_string();
    let values = told.split(field).skip(1).filter_map(|after| {
        let value = after.trim_start_matches(['\\', '"']).strip_prefix(':')?;
        let value = value.trim_start().strip_prefix(['\\', '"'])?.trim_start_matches(['\\', '"']);
        let end = value.find(['\\', '"']).unwrap_or(value.len());
        (end > 0).then(|| value[..end].to_string())
    });
    values.last()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_called_by_the_tool_that_the_request_declares() {
        let chat = |name: &str| json!({"tools": [{"function": {"name": name}}]});
        let gemini = |name: &str| json!({"tools": [{"functionDeclarations": [{"name": name}]}]});
        let input = json!({"command": "ls", "description": "d"});
        for (request, tool) in [
            (json!({"tools": [{"name": "Bash"}]}), "Bash"),
            (chat("bash"), "bash"),
            (chat("run_commands"), "run_commands"),
            (gemini("run_shell_command"), "run_shell_command"),
            (json!({"tools": []}), "exec_command"),
        ] {
            assert_eq!(in_words_of(&request, "Bash", &input).0, tool);
        }
    }

    #[test]
    fn argument_gets_the_newest_value_of_its_field() {
        let result = |id: &str| {
            let result = json!({"dispatch_id": id, "hint": "call it with dispatch_id, or wait"});
            json!({"role": "tool", "content": [{"text": result.to_string()}]})
        };
        let request = json!({"messages": [result("abc"), result("def")],
            "tools": [{"properties": {"dispatch_id": {"type": "string"}}}]});
        let input = json!({"dispatch_ids": ["<dispatch_id>"], "text": "<b>", "any": true});
        let filled = json!({"dispatch_ids": ["def"], "text": "<b>", "any": true});
        assert_eq!(in_words_of(&request, "t", &input).1, filled);
    }

    #[test]
    fn tool_of_a_server_is_called_by_its_declared_name() {
        let request = json!({"tools": [{"function": {"name": "sup-ping"}}]});
        assert_eq!(in_words_of(&request, "mcp__sup__ping", &json!({})).0, "sup-ping");
        assert_eq!(in_words_of(&json!({}), "mcp__sup__ping", &json!({})).0, "mcp__sup__ping");
    }
}
