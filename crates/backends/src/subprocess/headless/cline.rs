//! Interprets one line of `cline --json`.

use crate::stream::foreign::{self, id, money, number, string};
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError, TurnResult, cut};
use serde_json::Value;

/// The beginning of the error of a failed command.
const EXIT_CODE: &str = "Command exited with code ";

/// Returns the events of a line; `None` for a line that is not cline's.
pub(super) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    string(value, "ts")?;
    Some(match string(value, "type")? {
        "agent_event" => agent_event(value.get("event")?)?,
        "hook_event" => {
            string(value, "hookEventName")?;
            vec![]
        }
        "run_result" => vec![AgentEvent::Result(result(value)?)],
        // It repeats the error of the result, or tells why there is none.
        "error" => vec![AgentEvent::Notice { text: cut(string(value, "message")?, TEXT_LIMIT) }],
        _ => return None,
    })
}

fn agent_event(event: &Value) -> Option<Vec<AgentEvent>> {
    let of_tool = string(event, "contentType") == Some("tool");
    let text = || string(event, "text").or_else(|| string(event, "reasoning")).unwrap_or_default();
    Some(match string(event, "type")? {
        "usage" => vec![usage(event)],
        "content_start" if of_tool => {
            let name = string(event, "toolName")?;
            vec![foreign::call(id(event, "toolCallId")?, name, event.get("input"))]
        }
        "content_update" if of_tool => {
            let chunk = event.pointer("/update/chunk").and_then(Value::as_str).unwrap_or_default();
            vec![AgentEvent::ToolOutput { id: id(event, "toolCallId")?, bytes: chunk.len() as u64 }]
        }
        "content_end" if of_tool => vec![tool_end(event)?],
        "content_end" => match string(event, "contentType")? {
            "text" => vec![foreign::message(text())],
            "reasoning" => vec![foreign::thought(text())],
            _ => vec![],
        },
        // Pieces of messages, steps, and the end that `run_result` tells again.
        _ => vec![],
    })
}

/// The output has one element for each command of the call.
fn tool_end(event: &Value) -> Option<AgentEvent> {
    let output = event.get("output").unwrap_or(&Value::Null);
    let parts = match output {
        Value::Array(parts) => parts.as_slice(),
        one => std::slice::from_ref(one),
    };
    let failed = |part: &Value| part.get("success").and_then(Value::as_bool) == Some(false);
    let text = |part: &Value| match part {
        Value::Object(_) => {
            let said = |key: &str| string(part, key).filter(|text| !text.is_empty());
            said("result").or_else(|| said("output")).or_else(|| said("error")).map(str::to_string)
        }
        other => Some(foreign::plain(other)),
    };
    let texts: Vec<_> = parts.iter().filter_map(text).collect();
    let error = string(event, "error");
    let mut codes = parts.iter().filter_map(|part| string(part, "error"));
    let code = codes.find_map(|said| foreign::exit_code(said, EXIT_CODE));
    let ok = error.is_none() && !parts.iter().any(failed);
    let text = error.map_or_else(|| texts.join("\n"), str::to_string);
    Some(foreign::done(id(event, "toolCallId")?, ok, &text, code))
}

fn usage(event: &Value) -> AgentEvent {
    let [input, output, cache_read, cache_write] =
        ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"]
            .map(|key| number(event, key));
    AgentEvent::Usage {
        input,
        output,
        cost_usd: money(event, "cost"),
        cache_read,
        cache_write,
        model: None,
        call: None,
        total_usd: None,
    }
}

fn result(value: &Value) -> Option<TurnResult> {
    let reason = string(value, "finishReason")?;
    let said = string(value, "text").unwrap_or_default();
    let cost_usd = value.pointer("/usage/totalCost").and_then(Value::as_f64);
    let num_turns = value.get("iterations").and_then(Value::as_u64);
    let num_turns = num_turns.and_then(|turns| u32::try_from(turns).ok());
    let result = match reason {
        "completed" => {
            let text = crate::stream::text::tail(said, crate::stream::text::RESULT_TEXT_LIMIT);
            TurnResult { ok: true, text: Some(text), ..TurnResult::default() }
        }
        reason => {
            let failed = foreign::failure(said, value.get("error").unwrap_or(&Value::Null));
            let error = match reason {
                "aborted" | "cancelled" => Some(TurnError::Interrupted),
                "max_iterations" | "max_turns" => Some(TurnError::MaxTurns),
                "mistake_limit" => Some(TurnError::Mistakes),
                _ => failed.error,
            };
            let text = failed.text.clone().or_else(|| Some(format!("it ended with `{reason}`")));
            TurnResult { error, text, ..failed }
        }
    };
    Some(TurnResult { cost_usd, num_turns, ..result })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn ended(reason: &str, said: &str) -> TurnResult {
        let line = json!({"ts": "now", "type": "run_result", "finishReason": reason, "text": said});
        match events(&line).unwrap().pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_have_their_kind() {
        for (reason, said, kind) in [
            ("error", "invalid x-api-key", TurnError::Auth),
            ("error", "Rate limit reached", TurnError::RateLimit),
            ("error", "it broke", TurnError::Other),
            ("aborted", "", TurnError::Interrupted),
            ("max_iterations", "", TurnError::MaxTurns),
            ("mistake_limit", "", TurnError::Mistakes),
        ] {
            let result = ended(reason, said);
            assert_eq!((result.ok, result.error), (false, Some(kind)), "{reason} {said}");
            assert!(result.text.is_some_and(|text| !text.is_empty()), "{reason} {said}");
        }
        assert!(ended("completed", "done").ok);
    }

    #[test]
    fn one_failed_command_fails_its_call() {
        let part = |ok: bool| {
            let error = if ok { "" } else { "Command exited with code 3" };
            json!({"query": "x", "result": "y", "success": ok, "error": error})
        };
        let end = |parts: &[bool]| {
            let output: Vec<_> = parts.iter().map(|ok| part(*ok)).collect();
            let event = json!({"type": "content_end", "contentType": "tool", "toolCallId": "c",
                "output": output});
            let line = json!({"ts": "now", "type": "agent_event", "event": event});
            match events(&line).unwrap().pop() {
                Some(AgentEvent::ToolResult { ok, exit_code, .. }) => (ok, exit_code),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(end(&[true, true]), (true, None));
        assert_eq!(end(&[true, false]), (false, Some(3)));
    }
}
