//! Reads why a turn of Codex failed, or what Codex does without. Codex says so only in prose.

use crate::stream::text;
use muleteer_model::admission::usage_limit;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError, TurnResult, cut};

/// Returns the result of a `turn.failed` with this message.
pub(super) fn result(said: &str) -> TurnResult {
    let status = status(said);
    TurnResult {
        ok: false,
        error: Some(error(said, status)),
        status,
        text: (!said.is_empty()).then(|| text::tail(said, text::RESULT_TEXT_LIMIT)),
        ..TurnResult::default()
    }
}

/// Reads `Reconnecting... 1/5 (why)`. Codex does not report how long it waits.
pub(super) fn retry(said: &str) -> Option<AgentEvent> {
    let rest = said.strip_prefix("Reconnecting... ")?;
    let (attempt, rest) = rest.split_once('/')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (max, why) = rest.split_at(digits);
    Some(AgentEvent::ApiRetry {
        attempt: attempt.parse().ok()?,
        max: max.parse().ok()?,
        delay_s: 0.0,
        status: status(why),
    })
}

/// Reads a line of its log: `… WARN codex_mcp::rmcp_client: MCP server startup failed
/// server_name="x" error=why`. The output of `exec --json` does not report such a failure.
pub(super) fn broken_server(line: &str) -> Option<AgentEvent> {
    let (_, rest) = line.split_once("MCP server startup failed server_name=\"")?;
    let (name, rest) = rest.split_once('"')?;
    let why = rest.trim_start().strip_prefix("error=").unwrap_or(rest).trim();
    let why = if why.is_empty() { String::new() } else { format!(" ({})", cut(why, 200)) };
    let text = cut(&format!("MCP server `{}` does not work{why}", cut(name, 200)), TEXT_LIMIT);
    Some(AgentEvent::Notice { text })
}

/// Reads the number after `unexpected status ` or `last status: `.
fn status(said: &str) -> Option<u16> {
    let (_, rest) =
        said.split_once("status: ").or_else(|| said.split_once("unexpected status "))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|status| (100..600).contains(status))
}

fn error(said: &str, status: Option<u16>) -> TurnError {
    let says = |signs: &[&str]| signs.iter().any(|sign| said.contains(sign));
    match status {
        Some(401 | 403) => TurnError::Auth,
        Some(429) => TurnError::RateLimit,
        _ if says(&["context window", "context_length_exceeded"]) => TurnError::Context,
        _ if usage_limit::is_reported(said) || says(&["rate limit"]) => TurnError::RateLimit,
        _ if says(&[
            "not logged in",
            "Please run `codex login`",
            "Missing environment variable",
        ]) =>
        {
            TurnError::Auth
        }
        Some(_) => TurnError::ApiError,
        None if says(&[
            "high demand",
            "stream disconnected",
            "retry limit",
            "_error\"",
            "error sending request",
        ]) =>
        {
            TurnError::ApiError
        }
        None => TurnError::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_has_its_number_and_reason() {
        let retry =
            retry("Reconnecting... 2/5 (exceeded retry limit, last status: 429 Too Many Requests)");
        assert_eq!(
            retry,
            Some(AgentEvent::ApiRetry { attempt: 2, max: 5, delay_s: 0.0, status: Some(429) })
        );
        assert_eq!(super::retry("Reconnecting... soon"), None);
    }

    #[test]
    fn a_server_that_does_not_start_is_named() {
        let line = "2026-11-22T05:42:43.3Z  WARN codex_mcp::rmcp_client: MCP server startup failed \
                    server_name=\"gone\" error=No such file or directory (os error 2)";
        let text =
            "MCP server `gone` does not work (No such file or directory (os error 2))".to_string();
        assert_eq!(broken_server(line), Some(AgentEvent::Notice { text }));
        let later =
            "WARN codex_mcp::rmcp_client: failed to initialize MCP client during shutdown: no";
        assert_eq!(broken_server(later), None);
    }

    #[test]
    fn error_reason_is_parsed_from_text() {
        for (said, error) in [
            ("Codex ran out of room in the model's context window.", TurnError::Context),
            ("You've hit your usage limit. Try again later.", TurnError::RateLimit),
            ("You've hit your weekly limit. Try again at 3:05 PM.", TurnError::RateLimit),
            ("Missing environment variable: `OPENAI_API_KEY`.", TurnError::Auth),
            ("something new", TurnError::Other),
        ] {
            assert_eq!(result(said).error, Some(error), "{said}");
        }
    }
}
