//! Reads how a turn ended: the answer to `session/prompt`.

use crate::acp::api_error::{is_about_login, reason, status, status_in};
use crate::stream::text;
use muleteer_model::admission::usage_limit;
use muleteer_model::agent::event::{AgentEvent, ModelUsage, TurnError, TurnResult};
use serde_json::Value;

pub(super) fn read(key: Option<&str>, result: &Value) -> TurnResult {
    let error = match result.get("stopReason").and_then(Value::as_str).unwrap_or_default() {
        "end_turn" => None,
        "cancelled" => Some(TurnError::Interrupted),
        "max_turn_requests" => Some(TurnError::MaxTurns),
        // The model's answer was cut. A retry would be cut as well.
        "max_tokens" => Some(TurnError::Context),
        _ => Some(TurnError::Other),
    };
    let text = match result.get("stopReason").and_then(Value::as_str) {
        Some("refusal") => Some("the model refuses to continue".into()),
        Some("max_tokens") => Some("the model's answer reached its token limit".into()),
        Some(other) if error == Some(TurnError::Other) => {
            Some(format!("the turn ended with `{other}`"))
        }
        _ => None,
    };
    TurnResult {
        ok: error.is_none(),
        error,
        text,
        per_model_turn: used(result),
        keys: key.map(str::to_string).into_iter().collect(),
        ..TurnResult::default()
    }
}

/// Returns the usage of this turn: by model if the agent reports that, else as one sum.
fn used(result: &Value) -> Vec<ModelUsage> {
    let by_model = result.pointer("/_meta/quota/model_usage").and_then(Value::as_array);
    let models = by_model.into_iter().flatten().filter_map(|usage| {
        let model = usage.get("model")?.as_str()?.to_string();
        Some(ModelUsage { model, ..tokens(usage.get("token_count")?) })
    });
    let models: Vec<_> = models.collect();
    if !models.is_empty() {
        return models;
    }
    let sum = result.get("usage").or_else(|| result.pointer("/_meta/quota/token_count"));
    sum.filter(|sum| sum.is_object()).map(tokens).into_iter().collect()
}

/// Returns the usage of one model call, which some agents (qwen) report with the end of a message
/// and not with the end of the turn.
pub(super) fn used_by_call(update: &Value) -> Option<AgentEvent> {
    let usage = update.pointer("/_meta/usage").filter(|usage| usage.is_object())?;
    let ModelUsage { input, output, cache_read, cache_write, .. } = tokens(usage);
    let model = usage.get("model").and_then(Value::as_str).map(str::to_string);
    // The input of an OpenAI API includes the cached tokens; the total shows it.
    let total = usage.get("totalTokens").and_then(Value::as_u64);
    let cached = if total == input.checked_add(output) { cache_read } else { 0 };
    ([input, output, cache_read, cache_write] != [0; 4]).then_some(AgentEvent::Usage {
        input: input.saturating_sub(cached),
        output,
        cost_usd: 0.0,
        cache_read,
        cache_write,
        model,
        call: None,
        total_usd: None,
    })
}

/// Reads token counts. All agents that report cached tokens count them separately.
fn tokens(usage: &Value) -> ModelUsage {
    let number =
        |keys: &[&str]| keys.iter().find_map(|key| usage.get(*key)?.as_u64()).unwrap_or_default();
    ModelUsage {
        model: String::new(),
        input: number(&["inputTokens", "input_tokens"]),
        output: number(&["outputTokens", "output_tokens"]),
        cache_read: number(&["cachedReadTokens", "cachedInputTokens", "cached_input_tokens"]),
        cache_write: number(&["cachedWriteTokens", "cacheWriteInputTokens"]),
        cost_usd: 0.0,
    }
}

/// Returns the result of a turn that was answered with an error.
pub(super) fn refused(key: Option<&str>, error: &Value) -> TurnResult {
    let (mut said, auth) = message(error);
    let status = status(error, &said);
    if let Some(limit) = limit_in_data(error) {
        said = format!("{said} ({limit})");
    }
    TurnResult {
        ok: false,
        error: Some(if auth { TurnError::Auth } else { reason(&said, status) }),
        status,
        text: Some(text::tail(&said, text::RESULT_TEXT_LIMIT)),
        keys: key.map(str::to_string).into_iter().collect(),
        session_lost: is_session_lost(&said),
        ..TurnResult::default()
    }
}

/// Whether the error of a prompt says that the session does not exist, so that nothing was done for
/// the prompt. codex-acp 2.6.0 loads a session whose file was deleted, and reports it then.
fn is_session_lost(said: &str) -> bool {
    said.to_lowercase().contains("thread not found: ")
}

/// Returns the fields of an error about a usage limit as prose: some agents put the reset time
/// there, and not into the message.
fn limit_in_data(error: &Value) -> Option<String> {
    let data = error.get("data")?;
    let at = ["resets_at", "resetsAt", "reset_at"].iter().find_map(|key| data.get(*key)?.as_f64());
    let within = ["resets_in_seconds", "resetsInSeconds", "retry_after"]
        .iter()
        .find_map(|key| data.get(*key)?.as_f64());
    let kind = ["codexErrorInfo", "type", "code"].iter().find_map(|key| data.get(*key)?.as_str());
    let is_limit = kind.is_some_and(usage_limit::is_reported);
    match (at, within) {
        (Some(at), _) => Some(format!("usage limit, resets at {at:.0}")),
        (None, Some(within)) => Some(format!("usage limit, resets in {within:.0} seconds")),
        (None, None) => is_limit.then(|| "usage limit".to_string()),
    }
}

/// Returns the text of a JSON-RPC error, and whether it is about a login. `Internal error` alone
/// says nothing; agents put the reason into `data`.
pub(super) fn message(error: &Value) -> (String, bool) {
    let said = error.get("message").and_then(Value::as_str).unwrap_or("an error without a message");
    let data = error.get("data").and_then(|data| match data {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => ["details", "message", "error", "reason"]
            .iter()
            .find_map(|key| fields.get(*key)?.as_str())
            .map(str::to_string),
        _ => None,
    });
    let said = match data {
        Some(data) if !said.contains(&data) => format!("{said}: {data}"),
        _ => said.to_string(),
    };
    let auth = is_about_login(error, &said);
    (said, auth)
}

/// Corrects the result of a turn that claims success but broke off. The reason exists only as text.
pub(crate) fn broken_off(result: &mut TurnResult, said: Option<&str>) {
    let said = said.unwrap_or_default().trim();
    result.ok = false;
    result.status = status_in(said);
    result.error = Some(match reason(said, result.status) {
        TurnError::Other => TurnError::ApiError,
        known => known,
    });
    result.text = (!said.is_empty()).then(|| text::tail(said, text::RESULT_TEXT_LIMIT));
}

/// Corrects the result of a turn that claims success without any answer of the model. The agent
/// has kept the reason to itself.
pub(crate) fn unanswered(result: &mut TurnResult) {
    result.ok = false;
    result.error = Some(TurnError::ApiError);
    result.text = Some("the agent ended its turn without an answer of the model".into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// As qwen 0.24.4 reports them: the OpenAI API counts cached tokens as a part of the input.
    #[test]
    fn tokens_of_a_model_call_are_counted_once() {
        let update = |usage: Value| {
            json!({"sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": ""}, "_meta": {"usage": usage}})
        };
        let chunk = update(json!({"inputTokens": 100, "outputTokens": 20, "totalTokens": 120,
            "thoughtTokens": 0, "cachedReadTokens": 30}));
        let turn = |end: Value| {
            let mut assembly = crate::Assembly::default();
            let chunks = [&chunk, &chunk].into_iter().filter_map(crate::acp::update::read);
            let mut told = assembly.push(chunks.flatten());
            told.extend(assembly.push([AgentEvent::Result(read(None, &end))]));
            let mut sum = (0, 0, 0);
            for event in told {
                match event {
                    AgentEvent::Usage { input, output, cache_read, call: None, .. } => {
                        sum = (sum.0 + input, sum.1 + output, sum.2 + cache_read);
                    }
                    AgentEvent::Result(result) => {
                        for used in result.per_model_turn {
                            sum = (sum.0 + used.input, sum.1 + used.output, sum.2);
                        }
                    }
                    _ => {}
                }
            }
            sum
        };
        assert_eq!(turn(json!({"stopReason": "end_turn"})), (140, 40, 60));
        let both = json!({"stopReason": "end_turn", "usage": {"inputTokens": 140,
            "outputTokens": 40}});
        assert_eq!(turn(both), (140, 40, 60));
        assert_eq!(used_by_call(&update(json!({"inputTokens": 0}))), None);
    }

    #[test]
    fn usage_limit_in_any_field_is_a_rate_limit_with_its_reset() {
        for (error, reset) in [
            (
                json!({"code": -32603, "message": "Internal error",
                    "data": {"details": "5-hour limit reached ∙ resets 3pm"}}),
                "resets 3pm",
            ),
            (
                json!({"code": -32603, "message": "You've hit your limit · resets 3pm"}),
                "resets 3pm",
            ),
            (
                json!({"code": -32603, "message": "Internal error", "data": {
                    "codexErrorInfo": "usage_limit_exceeded", "resets_at": 1_791_300_000}}),
                "resets at 1791300000",
            ),
            (
                json!({"code": -32603, "message": "slow down", "data": {"resetsInSeconds": 90}}),
                "resets in 90 seconds",
            ),
            (json!({"code": 1, "message": "x", "data": {"type": "usage_limit_reached"}}), "limit"),
        ] {
            let result = refused(None, &error);
            assert_eq!((result.ok, result.error), (false, Some(TurnError::RateLimit)), "{error}");
            assert!(result.text.is_some_and(|text| text.contains(reset)), "{error}");
        }
        let other = refused(None, &json!({"code": 1, "message": "x", "data": {"type": "bug"}}));
        assert_eq!(other.error, Some(TurnError::Other));
    }
}
