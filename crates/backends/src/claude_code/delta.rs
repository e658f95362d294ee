//! Reads the pieces of a message that Claude Code prints before the message
//! (`--include-partial-messages`).

use serde::Deserialize;

/// The text that every such line has.
const MARK: &[u8] = b"text_delta";

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    /// Set for the text of a subagent.
    parent_tool_use_id: Option<String>,
    event: Event,
}

#[derive(Deserialize)]
struct Event {
    delta: Option<Delta>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// Returns the piece of the agent's own text in a line.
pub(super) fn text(line: &[u8]) -> Option<String> {
    // Most lines are none, and need not be parsed.
    line.windows(MARK.len()).any(|window| window == MARK).then_some(())?;
    let line: Line = serde_json::from_slice(line).ok()?;
    let is_own = line.parent_tool_use_id.is_none_or(|id| id.is_empty());
    let delta = line.event.delta.filter(|delta| delta.kind == "text_delta")?;
    delta.text.filter(|_| line.kind == "stream_event" && is_own)
}
