//! The output and the actions of an agent, for `logs`.

use crate::render::{
    BLUE, BOLD, DIM, GREEN, RED, RESET, YELLOW, clip, count, local_time, safe, span, usd,
};
use jiff::Timestamp;
use muleteer_model::agent::event::{AgentEvent, target};
use muleteer_model::spec_run::judge::readable;
use std::borrow::Cow;
use std::time::Duration;

/// The width of one line that summarises several.
const LINE: usize = 160;
/// The start of a further line: as long as a time with its date.
const INDENT: &str = "\n                    ";
/// The number of lines of a tool's result that are shown.
const RESULT_LINES: usize = 5;

/// Formats one event as lines. `None` for events that only machines read, unless `verbose`.
pub fn lines(at_ms: u64, event: &AgentEvent, verbose: bool) -> Option<String> {
    let text = describe(event, verbose)?;
    // Further lines are indented to the text of the first.
    Some(format!("{} {}", clock(at_ms), text.trim_end().replace('\n', INDENT)))
}

/// Formats the title of the agent's task.
pub fn task(at_ms: u64, title: &str) -> String {
    format!("{} {BOLD}task{RESET} {}", clock(at_ms), clip(title, LINE))
}

/// Formats one line of the agent's stderr.
pub fn stderr(at_ms: u64, text: &str) -> String {
    format!("{} {YELLOW}stderr{RESET} {}", clock(at_ms), safe(text))
}

fn clock(at_ms: u64) -> String {
    let at = i64::try_from(at_ms)
        .ok()
        .and_then(|ms| Timestamp::from_millisecond(ms).ok())
        .unwrap_or_default();
    format!("{DIM}{}{RESET}", local_time(at))
}

fn describe(event: &AgentEvent, verbose: bool) -> Option<String> {
    let line = |text: &str| clip(text.trim().lines().next().unwrap_or_default(), LINE);
    let warn = |text: String| format!("{YELLOW}{text}{RESET}");
    Some(match event {
        AgentEvent::Session { model, session_id, .. } => {
            let model = model.as_deref().map(|model| format!(", {}", clip(&safe(model), LINE)));
            let session = session_id.as_deref().map_or("begins".into(), |id| clip(&safe(id), LINE));
            format!("{DIM}session {session}{}{RESET}", model.unwrap_or_default())
        }
        AgentEvent::Prompt { text, .. } => format!("{BOLD}{BLUE}▶{RESET} {}", safe(text)),
        AgentEvent::Thinking { text, .. } if text.is_empty() => return None,
        AgentEvent::Thinking { text, .. } => {
            format!("{DIM}… {}{RESET}", if verbose { safe(text) } else { line(text) })
        }
        AgentEvent::Text { text, .. } | AgentEvent::Output { text } => safe(&plain(text)),
        AgentEvent::ToolCall { name, input, .. } => {
            format!(
                "{BOLD}● {}{RESET} {}",
                clip(&safe(name), LINE),
                clip(&target(name, input), LINE)
            )
        }
        AgentEvent::ToolResult { ok: true, text, .. } => {
            format!("{GREEN}└{RESET} {DIM}{}{RESET}", head(text, verbose))
        }
        AgentEvent::ToolResult { text, exit_code, .. } => {
            let code = exit_code.map(|code| format!("exit {code}: ")).unwrap_or_default();
            format!("{RED}└ {code}{RESET}{}", head(text, verbose))
        }
        AgentEvent::ApiRetry { attempt, max, delay_s, status, .. } => {
            let status = status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
            warn(format!(
                "the CLI retries the model API{status}: {attempt}/{max}, in {delay_s:.0}s"
            ))
        }
        AgentEvent::RateLimit { resets_in_s, .. } => {
            let wait = Duration::try_from_secs_f64(*resets_in_s).unwrap_or_default();
            warn(format!("rate limited for {}", span(wait)))
        }
        AgentEvent::Compaction { before, after, .. } => {
            warn(format!("context compacted from {} to {} tokens", count(*before), count(*after)))
        }
        AgentEvent::Permission { ask, .. } => warn(safe(&ask.describe())),
        AgentEvent::Notice { text } => warn(safe(text)),
        AgentEvent::Question { text, .. } => warn(format!("asks: {}", safe(text))),
        AgentEvent::Answer { text, .. } => format!("answer: {}", safe(text)),
        AgentEvent::Result(result) => {
            let cost =
                result.cost_usd.map(|cost| format!(", {} so far", usd(cost))).unwrap_or_default();
            let text = result
                .text
                .as_deref()
                .filter(|_| verbose)
                .map(|text| format!("\n{}", safe(&plain(text))))
                .unwrap_or_default();
            match (result.ok, result.error) {
                (true, _) => format!("{GREEN}■ turn done{RESET}{cost}{text}"),
                (false, error) => {
                    let error = error
                        .and_then(|error| serde_json::to_value(error).ok())
                        .and_then(|e| e.as_str().map(str::to_string));
                    format!(
                        "{RED}■ turn failed{RESET}: {}{cost}{text}",
                        error.unwrap_or_else(|| "unknown".into())
                    )
                }
            }
        }
        AgentEvent::Exit { code } => {
            format!(
                "{DIM}exit {}{RESET}",
                code.map_or_else(|| "by a signal".into(), |code| code.to_string())
            )
        }
        AgentEvent::Unknown { raw } => {
            format!("{DIM}{}{RESET}", if verbose { safe(raw) } else { line(raw) })
        }
        AgentEvent::Usage { input, output, cost_usd, .. } if verbose => {
            format!("{DIM}{} in, {} out, {}{RESET}", count(*input), count(*output), usd(*cost_usd))
        }
        other if verbose => {
            format!("{DIM}{}{RESET}", clip(&serde_json::to_string(other).ok()?, LINE))
        }
        _ => return None,
    })
}

/// Returns the text, or a verdict's document as text.
fn plain(text: &str) -> Cow<'_, str> {
    readable(text).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Returns the beginning of a tool's result and the number of omitted lines.
fn head(text: &str, all: bool) -> String {
    let text = safe(text);
    let text = text.trim_end();
    let total = text.lines().count();
    if all || total <= RESULT_LINES {
        return text
            .lines()
            .map(|line| if all { line.to_string() } else { clip(line, LINE) })
            .collect::<Vec<_>>()
            .join("\n  ");
    }
    let shown: Vec<_> = text.lines().take(RESULT_LINES).map(|line| clip(line, LINE)).collect();
    format!("{}\n  … {} more lines", shown.join("\n  "), total - RESULT_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(event: &AgentEvent) -> Option<String> {
        describe(event, false).map(|text| anstream::adapter::strip_str(&text).to_string())
    }

    #[test]
    fn lines_begin_with_date_and_time_and_further_lines_are_indented() {
        let said = AgentEvent::Output { text: "one\ntwo".into() };
        let text = lines(1_767_323_045_000, &said, false).expect("shown");
        let text = anstream::adapter::strip_str(&text).to_string();
        let (first, second) = text.split_once('\n').expect("two lines");
        assert!(first.starts_with("2026-01-0") && first.ends_with(" one"), "{first}");
        assert_eq!(first.find("one"), second.find("two"));
    }

    /// The agent's CLI chooses all of these texts.
    #[test]
    fn no_text_of_an_agent_drives_the_terminal() {
        let evil = "\u{1b}[31;8mm\u{1b}[0m\u{9b}1m\u{7f}\u{202e}\u{1b}]0;t\u{7}\r\u{8}";
        for event in [
            json!({"type": "session", "model": evil, "session_id": evil, "cwd": evil}),
            json!({"type": "prompt", "text": evil, "key": evil}),
            json!({"type": "text", "text": evil, "chars": 1}),
            json!({"type": "thinking", "text": evil, "chars": 1}),
            json!({"type": "output", "text": evil}),
            json!({"type": "tool_call", "id": evil, "name": evil, "input": {"command": evil}}),
            json!({"type": "tool_result", "id": evil, "ok": true, "text": evil}),
            json!({"type": "tool_result", "id": evil, "ok": false, "text": evil, "exit_code": 1}),
            json!({"type": "notice", "text": evil}),
            json!({"type": "question", "id": evil, "text": evil}),
            json!({"type": "answer", "id": evil, "text": evil}),
            json!({"type": "usage", "input": 1, "output": 1, "cost_usd": 0.0, "model": evil}),
            json!({"type": "result", "ok": true, "text": evil, "session_id": evil}),
            json!({"type": "unknown", "raw": evil}),
        ] {
            let event: AgentEvent = serde_json::from_value(event.clone())
                .unwrap_or_else(|error| panic!("{event}: {error}"));
            for verbose in [false, true] {
                let shown = describe(&event, verbose).unwrap_or_default();
                let ours = [RED, YELLOW, GREEN, BLUE, RESET, BOLD, DIM];
                let left = ours.iter().fold(shown.clone(), |text, colour| text.replace(colour, ""));
                let drives = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
                assert!(!left.contains(drives), "{event:?}: {shown:?}");
            }
        }
    }

    #[test]
    fn tools_show_their_target_and_shortened_results() {
        let call = AgentEvent::ToolCall {
            id: "1".into(),
            name: "Bash".into(),
            input: json!({"command": "cargo test\nls"}),
        };
        assert_eq!(shown(&call).as_deref(), Some("● Bash cargo test"));
        let text: String = (0..9).map(|n| format!("line {n}\n")).collect();
        let result: AgentEvent = serde_json::from_value(
            json!({"type": "tool_result", "id": "1", "ok": false, "text": text, "exit_code": 1}),
        )
        .expect("event");
        let shown = shown(&result).expect("shown");
        assert!(
            shown.starts_with("└ exit 1: line 0") && shown.ends_with("… 4 more lines"),
            "{shown}"
        );
    }
}
