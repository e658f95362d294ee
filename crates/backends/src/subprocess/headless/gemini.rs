//! Interprets one line of `gemini --output-format stream-json`.
//!
//! Messages arrive in pieces. The result tells the use of the whole process, and no text.

use crate::stream::foreign::{self, id, number, string};
use muleteer_model::agent::event::{AgentEvent, ModelUsage, TEXT_LIMIT, TurnResult, cut};
use serde_json::Value;

/// The beginning of the last line of a failed command's output.
const EXIT_CODE: &str = "Command exited with code: ";

/// Returns the events of a line; `None` for a line that is not gemini's.
pub(super) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    string(value, "timestamp")?;
    Some(match string(value, "type")? {
        "init" => vec![AgentEvent::Session {
            model: Some(string(value, "model")?.to_string()),
            cwd: None,
            session_id: Some(id(value, "session_id")?),
        }],
        "message" => {
            let text = string(value, "content")?;
            match string(value, "role")? {
                "user" => vec![AgentEvent::Prompt {
                    text: cut(text, TEXT_LIMIT),
                    key: None,
                    repeated: false,
                }],
                _ => vec![foreign::message(text)],
            }
        }
        "tool_use" => {
            let name = string(value, "tool_name")?;
            vec![foreign::call(id(value, "tool_id")?, name, value.get("parameters"))]
        }
        "tool_result" => {
            let call = id(value, "tool_id")?;
            let ok = string(value, "status")? == "success";
            let error = || value.pointer("/error/message").and_then(Value::as_str);
            let text = string(value, "output").or_else(error).unwrap_or_default();
            vec![foreign::done(call, ok, text, foreign::exit_code(text, EXIT_CODE))]
        }
        "error" => {
            string(value, "severity")?;
            vec![AgentEvent::Notice { text: cut(string(value, "message")?, TEXT_LIMIT) }]
        }
        "result" => vec![AgentEvent::Result(result(value)?)],
        _ => return None,
    })
}

fn result(value: &Value) -> Option<TurnResult> {
    let stats = value.get("stats").filter(|stats| stats.is_object());
    let error = value.get("error").filter(|error| error.is_object());
    if stats.is_none() && error.is_none() {
        return None;
    }
    let per_model_turn = stats.map(used).unwrap_or_default();
    Some(match string(value, "status")? {
        "success" => TurnResult { ok: true, per_model_turn, ..TurnResult::default() },
        _ => {
            let error = error.unwrap_or(&Value::Null);
            let said = string(error, "message").unwrap_or_default();
            TurnResult { per_model_turn, ..foreign::failure(said, error) }
        }
    })
}

fn used(stats: &Value) -> Vec<ModelUsage> {
    let models = stats.get("models").and_then(Value::as_object).into_iter().flatten();
    let mut used: Vec<_> = models.map(|(model, stats)| usage(model, stats)).collect();
    if used.is_empty() {
        used.push(usage("", stats));
    }
    used.retain(|used| used.input | used.output | used.cache_read > 0);
    used.sort_by(|a, b| a.model.cmp(&b.model));
    used
}

/// `input_tokens` includes the cached ones. Only the total includes the tokens of thoughts.
fn usage(model: &str, stats: &Value) -> ModelUsage {
    let [sent, output, cached, total] =
        ["input_tokens", "output_tokens", "cached", "total_tokens"].map(|key| number(stats, key));
    ModelUsage {
        model: model.to_string(),
        input: sent.saturating_sub(cached),
        output: output.max(total.saturating_sub(sent)),
        cache_read: cached,
        cache_write: 0,
        cost_usd: 0.0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::agent::event::TurnError;
    use serde_json::json;

    fn ended(status: &str, error: &Value) -> TurnResult {
        let line = json!({"type": "result", "timestamp": "now", "status": status, "error": error,
            "stats": {"models": {"m": {"total_tokens": 130, "input_tokens": 100,
                "output_tokens": 20, "cached": 60}}}});
        match events(&line).unwrap().pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn cached_tokens_and_thoughts_are_counted_once() {
        let result = ended("success", &Value::Null);
        let [used] = &result.per_model_turn[..] else { panic!("{result:?}") };
        assert_eq!((used.input, used.cache_read, used.output), (40, 60, 30));
        assert!(result.ok);
    }

    #[test]
    fn api_errors_have_their_kind() {
        let body = |code: i64, status: &str| {
            let body = json!({"error": {"code": code, "message": "x", "status": status}});
            json!({"type": "unknown", "message": format!("[API Error: {body}]")})
        };
        for (error, kind, status) in [
            (body(401, "UNAUTHENTICATED"), TurnError::Auth, Some(401)),
            (body(429, "RESOURCE_EXHAUSTED"), TurnError::RateLimit, Some(429)),
            (body(503, "UNAVAILABLE"), TurnError::ApiError, Some(503)),
            (json!({"message": "[API Error: fetch failed]"}), TurnError::ApiError, None),
            (json!({"message": "the loop was stopped"}), TurnError::Other, None),
        ] {
            let result = ended("error", &error);
            assert_eq!((result.ok, result.error), (false, Some(kind)), "{error}");
            assert_eq!(result.status, status, "{error}");
        }
    }

    #[test]
    fn command_that_exits_with_another_code_than_0_has_failed() {
        let line = json!({"type": "tool_result", "timestamp": "now", "tool_id": "c",
            "status": "success", "output": "no\nCommand exited with code: 3"});
        let told = events(&line).unwrap();
        let [AgentEvent::ToolResult { ok, exit_code, .. }] = &told[..] else { panic!("{told:?}") };
        assert_eq!((*ok, *exit_code), (false, Some(3)));
    }
}
