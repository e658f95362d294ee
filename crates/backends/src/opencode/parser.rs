//! Interprets one line of `opencode run --format json`.
//!
//! Each line has the session's id and one part of a message, printed when the part is complete. So
//! a tool call is told only with its result. The last step of a turn has another reason than
//! `tool-calls`. An error ends the turn, and the process exits with 1.

use crate::stream::foreign::{self, id, money, number, string};
use crate::stream::lines::{Meaning, Text, Understood};
use muleteer_model::agent::event::{AgentEvent, TurnError, TurnResult};
use serde_json::Value;

/// The name under which opencode reports a call of a tool that does not exist.
const INVALID: &str = "invalid";

#[derive(Debug)]
pub(super) struct RunJson;

impl Meaning for RunJson {
    fn read(&self, line: Text<'_>) -> Understood {
        foreign::line(line, events)
    }
}

/// Returns the events of a line; `None` for a line that is not opencode's.
pub(crate) fn events(value: &Value) -> Option<Vec<AgentEvent>> {
    let session = id(value, "sessionID")?;
    value.get("timestamp").filter(|time| time.is_number())?;
    let kind = string(value, "type")?;
    if kind == "error" {
        let result = error(value.get("error")?, session.clone());
        return Some(vec![begun(session), AgentEvent::Result(result)]);
    }
    let part = value.get("part").filter(|part| part.is_object())?;
    let text = || string(part, "text").unwrap_or_default();
    Some(match kind {
        "step_start" => {
            vec![
                begun(session),
                // The model answers the one prompt of this process. There is no other receipt.
                AgentEvent::Prompt { text: String::new(), key: None, repeated: false },
            ]
        }
        "text" => vec![foreign::message(text())],
        "reasoning" => vec![foreign::thought(text())],
        "tool_use" => tool(part)?,
        "step_finish" => step_finish(part, session),
        _ => return None,
    })
}

fn begun(session: String) -> AgentEvent {
    AgentEvent::Session { model: None, cwd: None, session_id: Some(session) }
}

fn tool(part: &Value) -> Option<Vec<AgentEvent>> {
    let (call, name) = (id(part, "callID")?, string(part, "tool")?);
    let state = part.get("state").filter(|state| state.is_object())?;
    let begun = foreign::call(call.clone(), name, state.get("input"));
    let ok = match string(state, "status") {
        Some("pending" | "running") => return Some(vec![begun]),
        status => status == Some("completed") && name != INVALID,
    };
    let text = ["output", "error"].iter().find_map(|key| string(state, key)).unwrap_or_default();
    let code = state.pointer("/metadata/exit").and_then(Value::as_i64);
    Some(vec![begun, foreign::done(call, ok, text, code)])
}

fn step_finish(part: &Value, session: String) -> Vec<AgentEvent> {
    let mut events = vec![];
    if let Some(tokens) = part.get("tokens").filter(|tokens| tokens.is_object()) {
        events.extend(usage(tokens, money(part, "cost")));
    }
    // After these reasons opencode asks the model again.
    if !matches!(string(part, "reason"), Some("tool-calls" | "unknown")) {
        let session_id = Some(session);
        events.push(AgentEvent::Result(TurnResult {
            ok: true,
            session_id,
            ..TurnResult::default()
        }));
    }
    events
}

/// Reads the use of one model call. Tokens of thoughts are counted apart from those of the answer,
/// unless the sum says otherwise.
fn usage(tokens: &Value, cost_usd: f64) -> Option<AgentEvent> {
    let [input, output, thoughts, total] =
        ["input", "output", "reasoning", "total"].map(|key| number(tokens, key));
    let cache = tokens.get("cache").unwrap_or(&Value::Null);
    let [cache_read, cache_write] = ["read", "write"].map(|key| number(cache, key));
    let parts = [input, output, cache_read, cache_write];
    let sum = parts.into_iter().fold(0, u64::saturating_add);
    let apart = if total == sum && total > 0 { 0 } else { thoughts };
    (sum > 0 || thoughts > 0 || cost_usd > 0.0).then_some(AgentEvent::Usage {
        input,
        output: output.saturating_add(apart),
        cost_usd,
        cache_read,
        cache_write,
        model: None,
        call: None,
        total_usd: None,
    })
}

fn error(error: &Value, session: String) -> TurnResult {
    let name = string(error, "name").unwrap_or_default();
    let said = error.pointer("/data/message").and_then(Value::as_str).unwrap_or(name);
    let failed = foreign::failure(said, error);
    let kind = match name {
        "MessageAbortedError" => Some(TurnError::Interrupted),
        "ProviderAuthError" => Some(TurnError::Auth),
        "ContextOverflowError" => Some(TurnError::Context),
        "APIError" if failed.error == Some(TurnError::Other) => Some(TurnError::ApiError),
        _ => failed.error,
    };
    TurnResult { error: kind, session_id: Some(session), ..failed }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_model::monitor::{self, Action, Monitors, Response, Responses, Terms};
    use serde_json::json;

    fn line(kind: &str, part: &Value) -> Vec<AgentEvent> {
        let line = json!({"type": kind, "timestamp": 1, "sessionID": "ses_1", "part": part});
        events(&line).unwrap()
    }

    fn failed(error: &Value) -> TurnResult {
        let line = json!({"type": "error", "timestamp": 1, "sessionID": "ses_1", "error": error});
        match events(&line).unwrap().pop() {
            Some(AgentEvent::Result(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn errors_have_their_kind_and_status() {
        let api = |status: u16, said: &str| {
            let data = json!({"message": said, "statusCode": status});
            json!({"name": "APIError", "data": data})
        };
        for (error, kind, status) in [
            (api(401, "no"), TurnError::Auth, Some(401)),
            (api(429, "slow down"), TurnError::RateLimit, Some(429)),
            (api(503, "Overloaded"), TurnError::ApiError, Some(503)),
            (json!({"name": "APIError", "data": {"message": "x"}}), TurnError::ApiError, None),
            (json!({"name": "ProviderAuthError", "data": {}}), TurnError::Auth, None),
            (json!({"name": "MessageAbortedError"}), TurnError::Interrupted, None),
            (json!({"name": "ContextOverflowError"}), TurnError::Context, None),
            (json!({"name": "UnknownError", "data": {"message": "x"}}), TurnError::Other, None),
        ] {
            let result = failed(&error);
            assert_eq!(
                (result.ok, result.error, result.status),
                (false, Some(kind), status),
                "{error}"
            );
            assert_eq!(result.session_id.as_deref(), Some("ses_1"));
        }
    }

    #[test]
    fn turn_ends_with_the_step_that_calls_no_tool() {
        for (reason, ends) in
            [("tool-calls", false), ("unknown", false), ("stop", true), ("length", true)]
        {
            let told = line("step_finish", &json!({"reason": reason}));
            assert_eq!(!told.is_empty(), ends, "{reason}");
        }
    }

    #[test]
    fn thoughts_are_counted_once() {
        let used = |total: u64| {
            let tokens = json!({"total": total, "input": 10, "output": 5, "reasoning": 3,
                "cache": {"read": 2, "write": 1}});
            let told = line("step_finish", &json!({"reason": "tool-calls", "tokens": tokens}));
            match &told[..] {
                [AgentEvent::Usage { output, .. }] => *output,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((used(21), used(18), used(0)), (8, 5, 8));
    }

    #[test]
    fn rejected_and_failed_calls_are_failures() {
        let call = |tool: &str, state: Value| {
            let told = line("tool_use", &json!({"callID": "c", "tool": tool, "state": state}));
            match &told[..] {
                [AgentEvent::ToolCall { .. }, AgentEvent::ToolResult { ok, exit_code, .. }] => {
                    (*ok, *exit_code)
                }
                other => panic!("{other:?}"),
            }
        };
        let done = |exit: i64| {
            let metadata = json!({"exit": exit});
            json!({"status": "completed", "input": {}, "output": "x", "metadata": metadata})
        };
        assert_eq!(call("bash", done(0)), (true, Some(0)));
        assert_eq!(call("bash", done(3)), (false, Some(3)));
        assert_eq!(call("bash", json!({"status": "error", "error": "rejected"})), (false, None));
        assert_eq!(call(INVALID, json!({"status": "completed", "output": "x"})), (false, None));
    }

    /// Each answer of the model begins with a `step_start`, which is no message of anybody.
    #[test]
    fn command_that_fails_again_and_again_is_a_loop() {
        let responses = Responses { loops: Response::Stop, ..Responses::default() };
        let mut monitors = Monitors::new(&Terms { responses, ..Terms::default() }, None);
        let mut found = vec![];
        for n in 0..8 {
            let state = json!({"status": "completed", "input": {"command": "ls nowhere"},
                "output": "ls: cannot access 'nowhere'", "metadata": {"exit": 2}});
            let call = json!({"callID": format!("c{n}"), "tool": "bash", "state": state});
            let told = [
                line("step_start", &json!({})),
                line("tool_use", &call),
                line("step_finish", &json!({"reason": "tool-calls"})),
            ];
            let seen = told.iter().flatten().filter_map(monitor::observe);
            found.extend(seen.flat_map(|seen| monitors.hear(seen, f64::from(n))));
        }
        let actions: Vec<_> = found.iter().map(|finding| finding.action).collect();
        assert_eq!(actions, [Action::Warn, Action::Stop]);
    }

    #[test]
    fn lines_of_other_programs_are_not_recognised() {
        for line in [
            json!({"type": "text", "text": "x"}),
            json!({"type": "text", "sessionID": "s", "timestamp": "now", "part": {}}),
            json!({"type": "dance", "sessionID": "s", "timestamp": 1, "part": {}}),
            json!({"type": "error", "timestamp": 1, "error": {}}),
        ] {
            assert_eq!(events(&line), None, "{line}");
        }
    }
}
