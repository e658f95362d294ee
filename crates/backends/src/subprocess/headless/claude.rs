//! Interprets one line of `qwen --output-format stream-json`, which has Claude's shape, and of
//! `claude --output-format stream-json`.
//!
//! qwen tells the use of a process with its result, and not by model.

use crate::claude_code::parser;
use crate::stream::foreign::{self, number, string};
use muleteer_model::agent::event::{AgentEvent, ModelUsage, TurnError, TurnResult};
use serde_json::Value;

/// The line before the exit code in the output of a command.
const EXIT_CODE: &str = "Exit Code:";

/// Returns the events of a line; `None` for a line without Claude's shape.
pub(super) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    for key in ["session_id", "uuid"] {
        string(value, key).filter(|id| !id.is_empty())?;
    }
    let mut line = value.clone();
    let (mut events, _) = parser::events(&mut line)?;
    for event in &mut events {
        match event {
            AgentEvent::ToolCall { name, .. } => *name = foreign::tool(name),
            AgentEvent::ToolResult { ok, text, exit_code, .. } => {
                *exit_code = exit_code.or_else(|| named_exit_code(text));
                *ok = *ok && exit_code.is_none_or(|code| code == 0);
            }
            AgentEvent::Result(result) => *result = mended(std::mem::take(result), value),
            _ => {}
        }
    }
    Some(events)
}

/// Returns the tool call in which a subagent says this line.
pub(super) fn parent(value: &Value) -> Option<String> {
    foreign::id(value, "parent_tool_use_id")
}

fn named_exit_code(output: &str) -> Option<i64> {
    let is_report = output.starts_with("Command: ");
    let mut lines = output.lines().rev().filter(|_| is_report);
    lines.find_map(|line| line.strip_prefix(EXIT_CODE)?.trim().parse().ok())
}

/// Adds what qwen tells in its own way: the error, and the use without a model.
fn mended(mut result: TurnResult, value: &Value) -> TurnResult {
    if let Some(error) = value.get("error").filter(|error| !result.ok && error.is_object())
        && result.text.is_none()
    {
        let failed = foreign::failure(string(error, "message").unwrap_or_default(), error);
        let kind = result.error.filter(|kind| *kind != TurnError::Other);
        result.error = kind.or(failed.error);
        result.status = result.status.or(failed.status);
        result.text = failed.text;
    }
    if result.per_model.is_empty()
        && result.per_model_turn.is_empty()
        && let Some(usage) = value.get("usage")
    {
        result.per_model_turn.extend(used(usage));
    }
    result
}

/// Cached tokens are part of `input_tokens` if the total says so.
fn used(usage: &Value) -> Option<ModelUsage> {
    let [sent, output, cache_read, cache_write, total] = [
        "input_tokens",
        "output_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "total_tokens",
    ]
    .map(|key| number(usage, key));
    let is_sum = total > 0 && total == sent.saturating_add(output);
    let input = if is_sum { sent.saturating_sub(cache_read) } else { sent };
    (input | output | cache_read | cache_write > 0).then(|| ModelUsage {
        model: String::new(),
        input,
        output,
        cache_read,
        cache_write,
        cost_usd: 0.0,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn ended(fields: &Value) -> TurnResult {
        let mut line = json!({"type": "result", "session_id": "s", "uuid": "u"});
        line.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        match events(&line).unwrap().pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn error_of_qwen_has_its_kind() {
        for (said, kind, status) in [
            ("[API Error: 401 invalid x-api-key]", TurnError::Auth, Some(401)),
            ("[API Error: 429 Rate limit reached]", TurnError::RateLimit, Some(429)),
            ("[API Error: Connection error.]", TurnError::ApiError, None),
            ("it broke", TurnError::Other, None),
        ] {
            let result = ended(&json!({"subtype": "error_during_execution", "is_error": true,
                "error": {"message": said}}));
            assert_eq!((result.ok, result.error, result.status), (false, Some(kind), status));
            assert_eq!(result.text.as_deref(), Some(said));
        }
    }

    #[test]
    fn tokens_of_the_process_are_counted_once() {
        let usage = json!({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120,
            "cache_read_input_tokens": 60});
        let success = json!({"subtype": "success", "is_error": false, "result": "done",
            "usage": usage});
        let result = ended(&success);
        let [used] = &result.per_model_turn[..] else { panic!("{result:?}") };
        assert_eq!((used.input, used.cache_read, used.output), (40, 60, 20));
        let mut of_claude = success;
        of_claude["modelUsage"] = json!({"m": {"inputTokens": 100}});
        assert!(ended(&of_claude).per_model_turn.is_empty());
    }

    #[test]
    fn exit_code_of_a_command_decides() {
        let output = "Command: exit 3\nOutput: (empty)\nExit Code: 3\nSignal: (none)";
        let part = json!({"type": "tool_result", "tool_use_id": "c", "is_error": false,
            "content": output});
        let line = json!({"type": "user", "session_id": "s", "uuid": "u",
            "message": {"role": "user", "content": [part]}});
        let told = events(&line).unwrap();
        let [AgentEvent::ToolResult { ok, exit_code, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!((*ok, *exit_code), (false, Some(3)));
    }
}
