//! Interprets one line of `copilot --output-format json`.
//!
//! Its lines are the events of a session. An error of the session ends the turn; the last line
//! tells the exit code alone.

use crate::stream::foreign::{self, id, number, small, string};
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnResult, cut};
use serde_json::Value;

/// The first parts of its types. Further ones of these say nothing that has an event.
const TYPES: [&str; 13] = [
    "session",
    "assistant",
    "user",
    "model",
    "tool",
    "subagent",
    "hook",
    "permission",
    "skill",
    "system",
    "abort",
    "external_tool",
    "mcp",
];

/// Fields of its data that no other program has beside such a type. A line that is cut off has lost
/// those after its data.
const MARKS: [&str; 3] = ["toolCallId", "retryAttempt", "interactionId"];

/// Returns the events of a line; `None` for a line that is not copilot's.
pub(super) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    let kind = string(value, "type")?;
    if kind == "result" {
        return result(value);
    }
    let (first, _) = kind.split_once('.')?;
    let data = value.get("data").filter(|data| data.is_object())?;
    let is_whole = value.get("parentId").is_some() && string(value, "timestamp").is_some();
    let is_begun = MARKS.iter().any(|key| data.get(*key).is_some());
    let is_known = TYPES.contains(&first) && (is_whole || is_begun);
    is_known.then(|| of_type(kind, data).unwrap_or_default())
}

/// Returns the tool call in which a subagent says this line.
pub(super) fn parent(value: &Value) -> Option<String> {
    id(value.get("data")?, "parentToolCallId")
}

fn of_type(kind: &str, data: &Value) -> Option<Vec<AgentEvent>> {
    let text = |key: &str| string(data, key).filter(|text| !text.is_empty());
    Some(match kind {
        "session.start" | "session.tools_updated" | "session.model_change" => {
            let model =
                text("model").or_else(|| text("newModel")).or_else(|| text("selectedModel"));
            let session_id = id(data, "sessionId");
            if model.is_none() && session_id.is_none() {
                return None;
            }
            vec![AgentEvent::Session { model: model.map(str::to_string), cwd: None, session_id }]
        }
        "user.message" => vec![AgentEvent::Prompt {
            text: cut(text("content")?, TEXT_LIMIT),
            key: None,
            repeated: false,
        }],
        "assistant.message" => vec![foreign::message(text("content")?)],
        "assistant.reasoning" => vec![foreign::thought(text("content")?)],
        "assistant.usage" => vec![usage(data)],
        "tool.execution_start" => {
            let name = match (text("mcpServerName"), text("mcpToolName")) {
                (Some(server), Some(tool)) => format!("mcp__{server}__{tool}"),
                _ => text("toolName")?.to_string(),
            };
            vec![foreign::call(id(data, "toolCallId")?, &name, data.get("arguments"))]
        }
        "tool.execution_partial_result" => {
            let bytes = text("partialOutput")?.len() as u64;
            vec![AgentEvent::ToolOutput { id: id(data, "toolCallId")?, bytes }]
        }
        "tool.execution_complete" => {
            let ok = data.get("success").and_then(Value::as_bool).unwrap_or_default();
            let said = ["/result/content", "/error/message"];
            let said = said.iter().find_map(|place| data.pointer(place));
            let codes = ["/shellExecution/exitCode", "/toolTelemetry/metrics/exit_code"];
            let code = codes.iter().find_map(|place| data.pointer(place)?.as_i64());
            let text = said.map(foreign::plain).unwrap_or_default();
            vec![foreign::done(id(data, "toolCallId")?, ok, &text, code)]
        }
        "model.call_failure" => {
            let status = number(data, "statusCode");
            vec![AgentEvent::ApiRetry {
                attempt: small(data, "retryAttempt").saturating_add(1),
                max: 0,
                delay_s: 0.0,
                status: u16::try_from(status).ok().filter(|status| (400..600).contains(status)),
            }]
        }
        "session.error" => {
            let said = text("message").unwrap_or_default();
            vec![AgentEvent::Result(foreign::failure(said, data))]
        }
        "session.warning" => vec![AgentEvent::Notice { text: cut(text("message")?, TEXT_LIMIT) }],
        "session.compaction_complete" => vec![AgentEvent::Compaction {
            before: number(data, "preCompactionTokens"),
            after: number(data, "postCompactionTokens"),
        }],
        _ => return None,
    })
}

/// Its `cost` counts premium requests, not money. Cached tokens are part of `inputTokens`.
fn usage(data: &Value) -> AgentEvent {
    let [input, output, cache_read, cache_write] =
        ["inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens"]
            .map(|key| number(data, key));
    AgentEvent::Usage {
        input: input.saturating_sub(cache_read).saturating_sub(cache_write),
        output,
        cost_usd: 0.0,
        cache_read,
        cache_write,
        model: string(data, "model").map(str::to_string),
        call: None,
        total_usd: None,
    }
}

/// An exit code other than 0 follows the error that explains it.
fn result(value: &Value) -> Option<Vec<AgentEvent>> {
    string(value, "timestamp")?;
    let session_id = Some(id(value, "sessionId")?);
    let code = value.get("exitCode")?.as_i64()?;
    let done = TurnResult { ok: true, session_id, ..TurnResult::default() };
    Some(if code == 0 { vec![AgentEvent::Result(done)] } else { vec![] })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::agent::event::TurnError;
    use serde_json::json;

    fn told(kind: &str, data: &Value) -> Vec<AgentEvent> {
        let line = json!({"type": kind, "data": data, "id": "1", "timestamp": "now",
            "parentId": null});
        events(&line).unwrap()
    }

    #[test]
    fn session_error_is_the_api_error_of_the_turn() {
        for (status, said, kind) in [
            (401, "Authentication failed with provider", TurnError::Auth),
            (429, "slow down", TurnError::RateLimit),
            (503, "x", TurnError::ApiError),
        ] {
            let told = told("session.error", &json!({"message": said, "statusCode": status}));
            let [AgentEvent::Result(result)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((result.ok, result.error), (false, Some(kind)), "{said}");
            assert_eq!(result.status, Some(status), "{said}");
        }
    }

    #[test]
    fn line_without_its_end_is_still_known() {
        let failure = json!({"model": "m", "statusCode": 401, "retryAttempt": 1});
        let line = json!({"type": "model.call_failure", "data": failure});
        let told = events(&line).unwrap();
        let [AgentEvent::ApiRetry { attempt, status, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!((*attempt, *status), (2, Some(401)));
        assert_eq!(events(&json!({"type": "model.call_failure", "data": {"model": "m"}})), None);
    }

    #[test]
    fn successful_call_of_a_failed_command_is_a_failure() {
        let told = told(
            "tool.execution_complete",
            &json!({"toolCallId": "c", "success": true, "result": {"content": "x"},
                "shellExecution": {"exitCode": 3}}),
        );
        let [AgentEvent::ToolResult { ok, exit_code, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!((*ok, *exit_code), (false, Some(3)));
    }

    #[test]
    fn tokens_are_counted_for_each_call() {
        let told = told(
            "assistant.usage",
            &json!({"model": "m", "inputTokens": 100, "cacheReadTokens": 60, "outputTokens": 20,
                "cost": 1}),
        );
        let [AgentEvent::Usage { input, cache_read, output, cost_usd, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!((*input, *cache_read, *output, *cost_usd), (40, 60, 20, 0.0));
    }
}
