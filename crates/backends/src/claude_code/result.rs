//! Reads a `result` line: whether a turn succeeded, and if not, why.
//!
//! No single field decides: an API error has `subtype: "success", is_error: true`, older versions
//! report a limit with `is_error: false`, and the exit code after an interrupt is 0.

use crate::claude_code::parser;
use crate::stream::text;
use muleteer_model::admission::usage_limit;
use muleteer_model::agent::event::{ModelUsage, TurnError, TurnResult};
use serde_json::Value;

pub(super) fn read(value: &Value) -> TurnResult {
    let mut said = said(value);
    let status =
        parser::status(value.get("api_error_status")).or_else(|| told_status(said.as_deref()?));
    let subtype = value.get("subtype").and_then(Value::as_str).unwrap_or_default();
    // Without `is_error` only a plain success counts. Older versions report a limit without calling
    // it an error.
    let ok = match value.get("is_error").and_then(Value::as_bool) {
        Some(is_error) => !is_error && !subtype.starts_with("error"),
        None => subtype == "success" && status.is_none(),
    };
    let status = status.filter(|_| !ok);
    let error = (!ok).then(|| error(value, status, said.as_deref().unwrap_or_default()));
    if error == Some(TurnError::Interrupted) {
        // The CLI's text about an interrupt describes its internals only.
        said = None;
    }
    TurnResult {
        session_lost: !ok && said.as_deref().is_some_and(|said| said.contains(UNKNOWN_SESSION)),
        ok,
        error,
        status,
        cost_usd: value.get("total_cost_usd").and_then(Value::as_f64),
        session_id: value.get("session_id").and_then(Value::as_str).map(str::to_string),
        text: said.map(|said| text::tail(&said, text::RESULT_TEXT_LIMIT)),
        structured: value.get("structured_output").filter(|doc| !doc.is_null()).cloned(),
        per_model: per_model(value.get("modelUsage")),
        per_model_turn: per_model(value.get("model_usage_since_last_result")),
        per_session: vec![],
        keys: keys(value.get("user_message_uuids")),
        damage: None,
        quoted: false,
        num_turns: value
            .get("num_turns")
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok()),
    }
}

/// The CLI's message if the session to resume is not on this machine.
pub(super) const UNKNOWN_SESSION: &str = "No conversation found with session ID";

/// Returns the final text, or the errors if there is none.
fn said(value: &Value) -> Option<String> {
    if let Some(text) = value.get("result").and_then(Value::as_str) {
        return Some(text.to_string());
    }
    let errors = value.get("errors")?.as_array()?;
    let text = |error: &Value| match error {
        Value::String(text) => Some(text.clone()),
        error => error.get("message").and_then(Value::as_str).map(str::to_string),
    };
    let texts: Vec<_> = errors.iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

fn error(value: &Value, status: Option<u16>, said: &str) -> TurnError {
    let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    match field("subtype") {
        "error_max_turns" => return TurnError::MaxTurns,
        "error_max_budget_usd" => return TurnError::Budget,
        "error_max_structured_output_retries" => return TurnError::StructuredOutput,
        _ => {}
    }
    match field("terminal_reason") {
        "max_turns" => return TurnError::MaxTurns,
        "budget_exhausted" => return TurnError::Budget,
        "structured_output_retry_exhausted" => return TurnError::StructuredOutput,
        "aborted_tools" | "aborted_streaming" => return TurnError::Interrupted,
        "prompt_too_long" | "blocking_limit" | "rapid_refill_breaker" => return TurnError::Context,
        _ => {}
    }
    match status {
        Some(401 | 403) => TurnError::Auth,
        Some(429) => TurnError::RateLimit,
        _ if usage_limit::is_reported(said) => TurnError::RateLimit,
        None if is_about_login(said) => TurnError::Auth,
        _ if said.contains("Prompt is too long") => TurnError::Context,
        Some(_) => TurnError::ApiError,
        None if matches!(field("terminal_reason"), "api_error" | "model_error") => {
            TurnError::ApiError
        }
        None => TurnError::Other,
    }
}

/// Reads `API Error: 529 …` from versions that have no field for the status.
fn told_status(said: &str) -> Option<u16> {
    let digits = said.strip_prefix("API Error: ")?.get(..3)?;
    digits.parse().ok().filter(|status| (400..600).contains(status))
}

/// Whether the text is about a missing login. Without any key the CLI sends no request, so no HTTP
/// status says so.
fn is_about_login(said: &str) -> bool {
    ["Not logged in", "Please run /login", "Invalid API key"]
        .iter()
        .any(|sign| said.contains(sign))
}

fn keys(value: Option<&Value>) -> Vec<String> {
    let keys = value.and_then(Value::as_array).into_iter().flatten();
    keys.filter_map(Value::as_str).map(str::to_string).collect()
}

/// Sorted by the models' names, because the CLI's order may change between two lines.
fn per_model(value: Option<&Value>) -> Vec<ModelUsage> {
    let mut models: Vec<_> = value
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(model, usage)| {
            let number = |key: &str| usage.get(key).map_or(0, text::number);
            ModelUsage {
                model: model.clone(),
                input: number("inputTokens"),
                output: number("outputTokens"),
                cache_read: number("cacheReadInputTokens"),
                cache_write: number("cacheCreationInputTokens"),
                cost_usd: usage.get("costUSD").and_then(Value::as_f64).unwrap_or_default(),
            }
        })
        .collect();
    models.sort_by(|a, b| a.model.cmp(&b.model));
    models
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usage_limit_is_a_rate_limit_in_every_wording() {
        for said in [
            "Claude AI usage limit reached|1759813200",
            "5-hour limit reached ∙ resets 3pm",
            "You've hit your limit · resets 3pm (Europe/Berlin)",
            "Opus weekly limit reached ∙ resets Oct 7, 1am",
        ] {
            let line = json!({"type": "result", "is_error": true, "result": said});
            assert_eq!(read(&line).error, Some(TurnError::RateLimit), "{said}");
        }
        let line = json!({"type": "result", "is_error": true, "result": "Prompt is too long"});
        assert_eq!(read(&line).error, Some(TurnError::Context));
    }
}
