//! Recognises the lines of agent CLIs that run headless with JSON output, behind any command.
//!
//! | CLI | started with | a line has |
//! |---|---|---|
//! | opencode | `run --format json` | `sessionID` and `part` |
//! | pi | `--mode json` | one of pi's types and their fields |
//! | gemini | `--output-format stream-json` | `timestamp` and a type's own field |
//! | copilot | `--output-format json` | a type with a dot, `data` and `parentId` |
//! | cline | `--json` | `ts` and one of cline's types |
//! | qwen, claude | `--output-format stream-json` | `session_id` and `uuid` |
//!
//! Each line is recognised by its own shape, because a parser remembers nothing across lines. Every
//! other line is none of these, and the backend reads it as it reads any output.

mod claude;
mod cline;
mod copilot;
mod gemini;

use crate::stream::lines::Understood;
use muleteer_model::agent::event::AgentEvent;
use serde_json::Value;

type Events = fn(&Value) -> Option<Vec<AgentEvent>>;

/// The parsers of the CLIs whose lines are told apart by their fields.
const PARSERS: [Events; 6] = [
    crate::opencode::parser::events,
    crate::pi::parser::events,
    gemini::events,
    copilot::events,
    cline::events,
    claude::events,
];

/// Returns the meaning of a line of one of these CLIs; `None` for any other line.
pub(crate) fn read(value: &Value) -> Option<Understood> {
    let events = PARSERS.iter().find_map(|events| events(value))?;
    let mut understood = Understood::quietly(events);
    let parent = copilot::parent(value).or_else(|| claude::parent(value));
    for timed in &mut understood.events {
        timed.parent.clone_from(&parent);
    }
    Some(understood)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_other_programs_are_not_recognised() {
        for line in [
            json!({"type": "result", "status": "success", "summary": "x"}),
            json!({"type": "result", "ok": true}),
            json!({"type": "result", "status": "success", "summary": "x", "timestamp": "now"}),
            json!({"type": "text", "text": "x"}),
            json!({"type": "tool_call", "id": "c", "name": "Bash", "input": {}}),
            json!({"type": "tool_result", "id": "c", "ok": true, "timestamp": "now"}),
            json!({"type": "session", "session_id": "s", "model": "m"}),
            json!({"type": "message", "role": "user", "content": "x"}),
            json!({"type": "error", "message": "x"}),
            json!({"type": "error", "ts": 1, "message": "x"}),
            json!({"type": "user.login", "data": {"name": "x"}}),
            json!({"type": "assistant", "message": {"content": "x"}}),
            json!({"level": "info", "ts": "now", "msg": "x"}),
            json!({"type": "agent_start", "id": 1}),
            json!({}),
        ] {
            assert!(read(&line).is_none(), "{line}");
        }
    }
}
