//! Interprets one line of `pi --mode json`.
//!
//! pi prints each message whole when it ends (`message_end`), and the pieces before that. A run of
//! the agent ends with `agent_end`, which repeats the messages of the run. After an error of the
//! model API pi may begin another run by itself; then `willRetry` is true. pi exits with 0 after an
//! API error, so only this line says that the turn failed.

use crate::stream::foreign::{self, id, number, seconds, small, string};
use crate::stream::lines::{Meaning, Text, Understood};
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError, TurnResult, cut};
use serde_json::Value;

/// The beginning of the last line of a failed command's output.
const EXIT_CODE: &str = "Command exited with code ";

#[derive(Debug)]
pub(super) struct ModeJson;

impl Meaning for ModeJson {
    fn read(&self, line: Text<'_>) -> Understood {
        foreign::line(line, events)
    }
}

/// Returns the events of a line; `None` for a line that is not pi's.
pub(crate) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    let object = value.as_object()?;
    let alone = || object.len() == 1;
    Some(match string(value, "type")? {
        "session" if value.get("version").is_some_and(Value::is_number) => {
            vec![AgentEvent::Session {
                model: None,
                cwd: string(value, "cwd").map(str::to_string),
                session_id: Some(id(value, "id")?),
            }]
        }
        "agent_start" | "turn_start" | "agent_settled" if alone() => vec![],
        "message_start" => message_start(value.get("message")?)?,
        "message_update" if value.get("assistantMessageEvent").is_some() => vec![],
        "message_end" => message_end(value.get("message")?)?,
        "tool_execution_start" => {
            let name = string(value, "toolName")?;
            vec![foreign::call(id(value, "toolCallId")?, name, value.get("args"))]
        }
        "tool_execution_update" => {
            let output = value.pointer("/partialResult/content").map(foreign::plain);
            let bytes = output.unwrap_or_default().len() as u64;
            vec![AgentEvent::ToolOutput { id: id(value, "toolCallId")?, bytes }]
        }
        "tool_execution_end" => vec![tool_end(value)?],
        "turn_end" if value.get("toolResults").is_some() => vec![],
        "agent_end" => {
            let messages = value.get("messages")?.as_array()?;
            let goes_on = value.get("willRetry").and_then(Value::as_bool).unwrap_or_default();
            if goes_on { vec![] } else { vec![AgentEvent::Result(result(messages))] }
        }
        "auto_retry_start" | "summarization_retry_scheduled" if object.contains_key("attempt") => {
            vec![AgentEvent::ApiRetry {
                attempt: small(value, "attempt"),
                max: small(value, "maxAttempts"),
                delay_s: seconds(value, "delayMs"),
                status: string(value, "errorMessage").and_then(foreign::status),
            }]
        }
        "auto_retry_end" if object.contains_key("success") => vec![],
        "compaction_start" if object.contains_key("reason") => vec![],
        "compaction_end" if object.contains_key("aborted") => compaction(value),
        "extension_error" => {
            let said = string(value, "error")?;
            let path = string(value, "extensionPath").unwrap_or("an extension");
            vec![notice(&format!("{path} failed: {said}"))]
        }
        "queue_update" if object.contains_key("steering") => vec![],
        "entry_appended" if object.contains_key("entry") => vec![],
        "thinking_level_changed" if object.contains_key("level") => vec![],
        "summarization_retry_attempt_start" | "summarization_retry_finished" => vec![],
        "session_info_changed" => vec![],
        _ => return None,
    })
}

/// The first report of a message names the model that writes it.
fn message_start(message: &Value) -> Option<Vec<AgentEvent>> {
    let is_assistant = string(message, "role")? == "assistant";
    let model = string(message, "model").filter(|_| is_assistant).map(str::to_string);
    let session =
        model.map(|model| AgentEvent::Session { model: Some(model), cwd: None, session_id: None });
    Some(session.into_iter().collect())
}

fn message_end(message: &Value) -> Option<Vec<AgentEvent>> {
    let model = string(message, "model").map(str::to_string);
    let used = usage(message.get("usage"), model);
    Some(match string(message, "role")? {
        "assistant" => {
            let parts = message.get("content").and_then(Value::as_array).into_iter().flatten();
            let mut events: Vec<_> = parts.filter_map(part).collect();
            events.extend(used);
            events
        }
        // The tool itself asked a model.
        "toolResult" => used.into_iter().collect(),
        // The prompt is no receipt: pi writes a new session down with the first answer only.
        _ => vec![],
    })
}

/// Tool calls are reported when they begin to run.
fn part(part: &Value) -> Option<AgentEvent> {
    match string(part, "type")? {
        "text" => string(part, "text").filter(|text| !text.is_empty()).map(foreign::message),
        "thinking" => string(part, "thinking").map(foreign::thought),
        _ => None,
    }
}

/// Reads the use of one model call. The tokens of the cache are not part of `input`, and those of
/// thoughts are part of `output`.
fn usage(usage: Option<&Value>, model: Option<String>) -> Option<AgentEvent> {
    let usage = usage?;
    let [input, output] = ["input", "output"].map(|key| number(usage, key));
    let [cache_read, cache_write] = ["cacheRead", "cacheWrite"].map(|key| number(usage, key));
    let cost_usd = usage.get("cost").map_or(0.0, |cost| foreign::money(cost, "total"));
    (input | output | cache_read | cache_write > 0 || cost_usd > 0.0).then_some(AgentEvent::Usage {
        input,
        output,
        cost_usd,
        cache_read,
        cache_write,
        model,
        call: None,
        total_usd: None,
    })
}

fn tool_end(value: &Value) -> Option<AgentEvent> {
    let ok = !value.get("isError").and_then(Value::as_bool).unwrap_or_default();
    let text = value.pointer("/result/content").map(foreign::plain).unwrap_or_default();
    let code = (!ok).then(|| foreign::exit_code(&text, EXIT_CODE)).flatten();
    Some(foreign::done(id(value, "toolCallId")?, ok, &text, code))
}

/// Returns the result of a run of the agent: that of its last answer.
fn result(messages: &[Value]) -> TurnResult {
    let answers = || messages.iter().filter(|message| string(message, "role") == Some("assistant"));
    let Some(last) = answers().next_back() else {
        let text = "the agent ended its turn without an answer of the model";
        return TurnResult {
            error: Some(TurnError::Other),
            text: Some(text.into()),
            ..TurnResult::default()
        };
    };
    let said = string(last, "errorMessage").unwrap_or_default();
    let num_turns = u32::try_from(answers().count()).ok();
    match string(last, "stopReason").unwrap_or_default() {
        "aborted" => {
            TurnResult { error: Some(TurnError::Interrupted), num_turns, ..TurnResult::default() }
        }
        "error" | "deferred" => {
            let failed = foreign::failure(said, last.get("error").unwrap_or(&Value::Null));
            let text = failed.text.as_deref().map(words);
            // pi stops for this reason only if its provider failed (`terminated`: no answer).
            let error = failed.error.filter(|error| *error != TurnError::Other);
            TurnResult { error: error.or(Some(TurnError::ApiError)), num_turns, text, ..failed }
        }
        _ => {
            let parts = last.get("content").and_then(Value::as_array).into_iter().flatten();
            let texts = parts.filter(|part| string(part, "type") == Some("text"));
            let texts: Vec<_> = texts.filter_map(|part| string(part, "text")).collect();
            let text = crate::stream::text::tail(
                &texts.join("\n"),
                crate::stream::text::RESULT_TEXT_LIMIT,
            );
            let text = Some(text).filter(|text| !text.is_empty());
            TurnResult { ok: true, text, num_turns, ..TurnResult::default() }
        }
    }
}

/// Returns the message of an error that pi reports as `401: {"message": …}`.
fn words(said: &str) -> String {
    let body = said.split_once(": ").filter(|(status, _)| status.parse::<u16>().is_ok());
    let body = body.and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
    let message = body.as_ref().and_then(|body| string(body, "message"));
    message.filter(|message| !message.is_empty()).unwrap_or(said).to_string()
}

fn compaction(value: &Value) -> Vec<AgentEvent> {
    let Some(result) = value.get("result").filter(|result| result.is_object()) else {
        let failed = string(value, "errorMessage");
        return failed
            .map(|said| notice(&format!("compaction failed: {said}")))
            .into_iter()
            .collect();
    };
    let event = AgentEvent::Compaction {
        before: number(result, "tokensBefore"),
        after: number(result, "estimatedTokensAfter"),
    };
    std::iter::once(event).chain(usage(result.get("usage"), None)).collect()
}

fn notice(text: &str) -> AgentEvent {
    AgentEvent::Notice { text: cut(text.trim(), TEXT_LIMIT) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn ended(stop: &str, said: &str) -> TurnResult {
        let answer = json!({"role": "assistant", "stopReason": stop, "errorMessage": said,
            "content": [{"type": "text", "text": "half"}]});
        let line = json!({"type": "agent_end", "messages": [answer], "willRetry": false});
        match events(&line).unwrap().pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn error_of_the_last_answer_is_the_kind_of_the_api_error() {
        for (said, error, status) in [
            ("401: {\"message\":\"invalid x-api-key\"}", TurnError::Auth, Some(401)),
            ("403: forbidden", TurnError::Auth, Some(403)),
            ("429: {\"type\":\"rate_limit_error\"}", TurnError::RateLimit, Some(429)),
            ("503: {\"type\":\"overloaded_error\"}", TurnError::ApiError, Some(503)),
            ("400: prompt is too long", TurnError::Context, Some(400)),
            ("terminated", TurnError::ApiError, None),
            ("", TurnError::ApiError, None),
        ] {
            let result = ended("error", said);
            assert_eq!(
                (result.ok, result.error, result.status),
                (false, Some(error), status),
                "{said}"
            );
        }
        let refused = ended("error", r#"401: {"message":"invalid x-api-key"}"#);
        assert_eq!(refused.text.as_deref(), Some("invalid x-api-key"));
        let result = ended("aborted", "Request was aborted");
        assert_eq!((result.ok, result.error), (false, Some(TurnError::Interrupted)));
        let result = ended("stop", "");
        assert_eq!((result.ok, result.text.as_deref()), (true, Some("half")));
    }

    #[test]
    fn run_without_an_answer_is_no_success() {
        for messages in [json!([]), json!([{"role": "user", "content": "x"}])] {
            let line = json!({"type": "agent_end", "messages": messages});
            let told = events(&line).unwrap();
            let [AgentEvent::Result(result)] = &told[..] else { panic!("{told:?}") };
            assert!(!result.ok && result.error == Some(TurnError::Other));
        }
    }

    #[test]
    fn lines_of_other_programs_are_not_recognised() {
        for line in [
            json!({"type": "session", "id": "x"}),
            json!({"type": "agent_start", "name": "x"}),
            json!({"type": "message_end"}),
            json!({"type": "turn_end"}),
            json!({"type": "queue_update"}),
            json!({"kind": "agent_end"}),
            json!(["agent_end"]),
        ] {
            assert_eq!(events(&line), None, "{line}");
        }
    }
}
