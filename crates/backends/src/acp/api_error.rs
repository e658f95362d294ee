//! Recognises errors of the model API in what an ACP agent reports: by an HTTP status in any field,
//! and by the words of each agent.
//!
//! | agent | a wrong key | a persistent 429 |
//! |---|---|---|
//! | opencode | error −32603, `Internal error: Incorrect API key …` | the same, with the API's text |
//! | qwen | error −32603, `data.details`: `401 …` | `429 …` |
//! | gemini | the status is the error's code; its message is JSON | the same |
//! | cline | an error with the API's text: `invalid x-api-key` | the API's text |
//! | copilot | a text `Error: … (HTTP 401)`, then `end_turn` | `Error: … Last error: 429 …` |
//! | pi | nothing, then `end_turn` | texts `Retrying (attempt 1/3, …)`, then `end_turn` |

use muleteer_model::admission::usage_limit;
use muleteer_model::agent::acp_handshake::CallAnswer;
use muleteer_model::agent::event::{AgentEvent, TurnError};
use serde_json::Value;

/// The protocol's error code for "log in first".
const AUTH_REQUIRED: i64 = -32000;
/// How deep the fields of an error are searched.
const DEEPEST: usize = 6;
/// The longest text that is nothing but the report of an error, in bytes.
const REPORT_LIMIT: usize = 1024;

/// Fields that hold an HTTP status. `code` holds many other numbers too, so only errors count.
const STATUS_KEYS: [&str; 7] =
    ["httpStatusCode", "statusCode", "status_code", "status", "http_status", "httpStatus", "code"];

/// Texts after which a status follows.
const BEFORE_STATUS: [&str; 12] = [
    "API Error: ",
    "API Error: Request rejected (",
    "status: ",
    "unexpected status ",
    "status code ",
    "status code: ",
    "HTTP ",
    "Error code: ",
    "Last error: ",
    "Internal error: ",
    "statusCode: ",
    "Error: ",
];

/// Returns the HTTP status of an error, if any of its fields or its text has one. An error whose
/// code is a status (gemini) is one too.
pub(crate) fn status(error: &Value, said: &str) -> Option<u16> {
    in_fields(error, 0)
        .or_else(|| status_in(said))
        .or_else(|| status_at_end(said))
        .or_else(|| {
            // A text without a status may name the kind of the error, which has one.
            let said = said.to_lowercase();
            let says = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
            if says(&["overloaded_error"]) {
                Some(529)
            } else if says(&["overloaded", "service unavailable"]) {
                Some(503)
            } else {
                None
            }
        })
}

fn in_fields(value: &Value, depth: usize) -> Option<u16> {
    if depth > DEEPEST {
        return None;
    }
    match value {
        Value::Object(fields) => {
            let own = STATUS_KEYS.iter().find_map(|key| {
                let number = match fields.get(*key)? {
                    Value::Number(number) => number.as_u64(),
                    Value::String(digits) => digits.parse().ok(),
                    _ => None,
                };
                u16::try_from(number?).ok().filter(|status| (400..600).contains(status))
            });
            own.or_else(|| fields.values().find_map(|field| in_fields(field, depth + 1)))
        }
        Value::Array(items) => items.iter().find_map(|item| in_fields(item, depth + 1)),
        // Some agents pass the API's body on as text.
        Value::String(text) => {
            let body = text.get(text.find('{')?..=text.rfind('}')?)?;
            let body: Value = serde_json::from_str(body).ok()?;
            in_fields(&body, depth + 1)
        }
        _ => None,
    }
}

/// Returns the HTTP status that a text names.
pub(super) fn status_in(said: &str) -> Option<u16> {
    let at_start = |text: &str| -> Option<u16> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let is_word = text[digits..].chars().next().is_none_or(|c| !c.is_alphanumeric());
        let status = text[..digits].parse().ok().filter(|_| is_word && digits == 3)?;
        (100..600).contains(&status).then_some(status)
    };
    let named = BEFORE_STATUS.iter().find_map(|before| {
        said.match_indices(before).find_map(|(at, _)| at_start(&said[at + before.len()..]))
    });
    named.or_else(|| at_start(said).filter(|status| *status >= 400))
}

/// Returns the HTTP status that an error names after one word: some gateways send nothing else, and
/// some agents pass on nothing but the API's own text.
fn status_at_end(said: &str) -> Option<u16> {
    let said = said.strip_prefix("Internal error: ").unwrap_or(said);
    let (word, last) = said.trim().split_once(' ')?;
    let is_status = last.len() == 3 && last.bytes().all(|byte| byte.is_ascii_digit());
    let status = last.parse().ok().filter(|_| is_status && !word.is_empty())?;
    (400..600).contains(&status).then_some(status)
}

/// Returns the kind of an error.
pub(crate) fn reason(said: &str, status: Option<u16>) -> TurnError {
    let lower = said.to_lowercase();
    let says = |signs: &[&str]| signs.iter().any(|sign| lower.contains(sign));
    match status {
        Some(401 | 403) => TurnError::Auth,
        Some(429) => TurnError::RateLimit,
        _ if says(&["context window", "context_length_exceeded", "prompt is too long"]) => {
            TurnError::Context
        }
        _ if usage_limit::is_reported(said)
            || says(&["rate limit", "rate_limit", "too many requests", "resource_exhausted"]) =>
        {
            TurnError::RateLimit
        }
        _ if says(&[
            "authenticat",
            "incorrect api key",
            "invalid api key",
            "invalid_api_key",
            "invalid x-api-key",
            "api key not valid",
            "api_key_invalid",
            "api key expired",
            "unauthorized",
            "not logged in",
            "/login",
        ]) =>
        {
            TurnError::Auth
        }
        Some(_) => TurnError::ApiError,
        None if says(&[
            "api error",
            "stream disconnected",
            "retry limit",
            "error sending request",
            "high demand",
            "connection error",
            "failed to get response from the ai model",
        ]) =>
        {
            TurnError::ApiError
        }
        None => TurnError::Other,
    }
}

/// Whether the error of a call says that nobody is logged in, or that the key is wrong.
pub(super) fn is_about_login(error: &Value, said: &str) -> bool {
    let code = error.get("code").and_then(Value::as_i64);
    match status(error, said) {
        None if code == Some(AUTH_REQUIRED) => true,
        status => reason(said, status) == TurnError::Auth,
    }
}

/// Returns the events of a text that is not the model's but the agent's own report about the model
/// API; `None` for any other text. The end of such a turn claims success.
pub(super) fn report(said: &str) -> Option<Vec<AgentEvent>> {
    let said = said.trim();
    if said.len() > REPORT_LIMIT {
        return None;
    }
    // pi: `Retrying (attempt 1/3, waiting 2s)...`
    if let Some(rest) = said.strip_prefix("Retrying (attempt ") {
        let (attempt, rest) = rest.split_once('/')?;
        let (max, rest) = rest.split_once(", waiting ")?;
        let delay = rest.strip_suffix("s)...")?;
        return Some(vec![
            AgentEvent::CallAnswer(CallAnswer::TurnRuns {}),
            AgentEvent::ApiRetry {
                attempt: attempt.parse().ok()?,
                max: max.parse().ok()?,
                delay_s: delay.parse().ok()?,
                status: None,
            },
        ]);
    }
    if said == "Retry finished, resuming." {
        return Some(vec![]);
    }
    // copilot
    if said == "Info: Request failed due to a transient API error. Retrying..." {
        return Some(vec![AgentEvent::Notice { text: said.to_string() }]);
    }
    let is_error = said.starts_with("Error: Authentication failed with provider ")
        || said.starts_with("Error: Failed to get response from the AI model")
        // qwen and gemini
        || (said.starts_with("[API Error: ") && said.ends_with(']'))
        || (said.starts_with("Error: ") && said.contains(" (HTTP ") && status_in(said).is_some());
    is_error.then(|| {
        let text = AgentEvent::Text { chars: said.chars().count() as u64, text: said.to_string() };
        vec![AgentEvent::CallAnswer(CallAnswer::BrokeOff {}), text]
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::acp::result::refused;
    use serde_json::json;

    #[test]
    fn api_errors_of_each_agent_have_their_kind_and_status() {
        let key = json!({"type": "authentication_error", "message": "invalid x-api-key",
            "code": "invalid_api_key"});
        let gemini = json!({"error": {"code": 429, "message": "slow down",
            "status": "RESOURCE_EXHAUSTED"}});
        for (error, kind, status) in [
            // opencode
            (
                json!({"code": -32603, "message": "Internal error: Incorrect API key provided"}),
                TurnError::Auth,
                None,
            ),
            (
                json!({"code": -32603, "message": "Internal error: Rate limit reached"}),
                TurnError::RateLimit,
                None,
            ),
            (
                json!({"code": -32603, "message": "Internal error: refused 401"}),
                TurnError::Auth,
                Some(401),
            ),
            (
                json!({"code": -32603, "message": "Internal error: Overloaded"}),
                TurnError::ApiError,
                Some(503),
            ),
            // qwen
            (
                json!({"code": -32603, "message": "Internal error",
                    "data": {"details": "401 invalid x-api-key"}}),
                TurnError::Auth,
                Some(401),
            ),
            (
                json!({"code": -32603, "message": "Internal error",
                    "data": {"details": "429 Rate limit reached"}}),
                TurnError::RateLimit,
                Some(429),
            ),
            // gemini
            (json!({"code": 401, "message": key.to_string()}), TurnError::Auth, Some(401)),
            (
                json!({"code": -32603, "message": gemini.to_string()}),
                TurnError::RateLimit,
                Some(429),
            ),
            (json!({"code": 503, "message": "x"}), TurnError::ApiError, Some(503)),
            // cline
            (json!({"code": -32603, "message": "invalid x-api-key"}), TurnError::Auth, None),
            (
                json!({"code": -32603, "message": "x", "data": {"error": {"statusCode": 529}}}),
                TurnError::ApiError,
                Some(529),
            ),
            (
                json!({"code": -32603, "message": "x", "data": {"errors": [{"status": "403"}]}}),
                TurnError::Auth,
                Some(403),
            ),
            (json!({"code": -32000, "message": "log in"}), TurnError::Auth, None),
            (
                json!({"code": -32000, "message": "x", "data": {"status": 429}}),
                TurnError::RateLimit,
                Some(429),
            ),
            (json!({"code": -32603, "message": "no such tool: 401k"}), TurnError::Other, None),
            (json!({"code": -32602, "message": "exit code 500 of x"}), TurnError::Other, None),
            (json!({"code": -32603, "message": "it ends at line 401"}), TurnError::Other, None),
        ] {
            let result = refused(None, &error);
            assert!(!result.ok);
            assert_eq!((result.error, result.status), (Some(kind), status), "{error}");
        }
    }

    /// The texts were captured from copilot 1.0.102 and pi-acp 0.0.34.
    #[test]
    fn text_that_reports_an_api_error_fails_the_turn() {
        let refused = "Error: Authentication failed with provider at http://127.0.0.1:1/v1 (HTTP \
                       401).\n  Check your COPILOT_PROVIDER_API_KEY.";
        let limited = "Error: Failed to get response from the AI model; retried 5 times (total \
                       retry wait time: 57.29 seconds) Last error: 429 Rate limit reached";
        let overloaded = "Error: Failed to get response from the AI model; retried 5 times (total \
                          retry wait time: 13.40 seconds) Last error: 529 Overloaded";
        for (said, kind, status) in [
            (refused, TurnError::Auth, 401),
            (limited, TurnError::RateLimit, 429),
            (overloaded, TurnError::ApiError, 529),
            ("[API Error: 401 invalid x-api-key]", TurnError::Auth, 401),
        ] {
            let mut assembly = crate::Assembly::default();
            let retry = "Info: Request failed due to a transient API error. Retrying...";
            let texts = ["I write. ", retry, said].into_iter();
            let told = assembly.push(texts.flat_map(chunk).chain([end()]));
            let Some(AgentEvent::Result(result)) = told.last() else { panic!("{told:?}") };
            assert_eq!(
                (result.ok, result.error, result.status),
                (false, Some(kind), Some(status)),
                "{said}"
            );
            assert_eq!(result.text.as_deref(), Some(said));
        }
        for said in [
            "Error: the test fails with 401 lines of output",
            "The server answers `Error: unauthorized (HTTP 401)` as it should.",
            "Retrying (attempt 1/3) would not help",
        ] {
            let mut assembly = crate::Assembly::default();
            let told: Vec<_> = assembly.push(chunk(said).into_iter().chain([end()]));
            let Some(AgentEvent::Result(result)) = told.last() else { panic!("{told:?}") };
            assert!(result.ok, "{said}");
        }
    }

    #[test]
    fn retries_without_an_answer_fail_the_turn() {
        let retry = |nth: u32| format!("Retrying (attempt {nth}/3, waiting 2s)...");
        let over = "Retry finished, resuming.";
        let begun = json!({"sessionUpdate": "session_info_update",
            "_meta": {"piAcp": {"queueDepth": 0, "running": true}}});
        let begun = || crate::acp::update::read(&begun).unwrap();
        let turn = |said: &[&str]| {
            let mut assembly = crate::Assembly::default();
            let mut told = assembly.push(begun());
            told.extend(said.iter().flat_map(|text| assembly.push(chunk(text))));
            told.extend(assembly.push([end()]));
            let retries = told.iter().filter(|e| matches!(e, AgentEvent::ApiRetry { .. })).count();
            let Some(AgentEvent::Result(result)) = told.last() else { panic!("{told:?}") };
            (retries, result.ok, result.error)
        };
        let failed = Some(TurnError::ApiError);
        assert_eq!(turn(&[&retry(1), &retry(2), &retry(3), over]), (3, false, failed));
        assert_eq!(turn(&[]), (0, false, failed), "pi reports a wrong key in no way at all");
        assert_eq!(turn(&[&retry(1), over, "done"]), (1, true, None));
        assert_eq!(turn(&["done"]), (0, true, None));
    }

    fn chunk(text: &str) -> Vec<AgentEvent> {
        let update = json!({"sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": text}});
        crate::acp::update::read(&update).unwrap()
    }

    fn end() -> AgentEvent {
        AgentEvent::Result(crate::acp::result::read(None, &json!({"stopReason": "end_turn"})))
    }
}
