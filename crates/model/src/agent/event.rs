//! The events of an agent's output, independent of the CLI that printed it (contract.md, "Streams
//! for the monitors"). Backends parse bytes into these; monitors, journal and life read nothing
//! else.

use crate::agent::acp_handshake::CallAnswer;
use crate::agent::ask::Ask;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most bytes of a text in an event; the whole text stays in the spool.
pub const TEXT_LIMIT: usize = 4096;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    /// Seconds from the start of the stream; 0 if the line has no time.
    pub t: f64,
    #[serde(flatten)]
    pub event: AgentEvent,
    /// The tool call that runs the subagent of this event; `None` for the agent's own events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl Timed {
    /// Returns the event for consumers that follow the agent: a subagent's event is wrapped.
    pub fn told(self) -> AgentEvent {
        match self.parent {
            Some(parent) => AgentEvent::Subagent { parent, event: Box::new(self.event) },
            None => self.event,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentEvent {
    Session {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cwd: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
    },
    Prompt {
        text: String,
        /// The key that the prompt was sent with, if the CLI echoes it: the receipt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// The session had this key already: this is an acknowledgement, and no turn and no result
        /// follow.
        #[serde(default, skip_serializing_if = "is_false")]
        repeated: bool,
    },
    Thinking {
        #[serde(default)]
        chars: u64,
        #[serde(default)]
        text: String,
    },
    Text {
        #[serde(default)]
        chars: u64,
        #[serde(default)]
        text: String,
    },
    ToolCall {
        id: String,
        name: String,
        #[serde(default)]
        input: Value,
    },
    ToolOutput {
        id: String,
        #[serde(default)]
        bytes: u64,
    },
    ToolResult {
        id: String,
        ok: bool,
        #[serde(default)]
        text: String,
        #[serde(default)]
        exit_code: Option<i64>,
    },
    /// The tokens and the cost of one model call.
    Usage {
        #[serde(default)]
        input: u64,
        #[serde(default)]
        output: u64,
        #[serde(default)]
        cost_usd: f64,
        #[serde(default, skip_serializing_if = "is_zero")]
        cache_read: u64,
        #[serde(default, skip_serializing_if = "is_zero")]
        cache_write: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// Set if the turn's result (`per_model_turn`) repeats these numbers. Such an event is for
        /// monitors: counting it too would count everything twice. It names the model call. A CLI
        /// may report one call on several lines, with the same `call`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<String>,
        /// The total cost of the session, if the CLI reports that instead.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total_usd: Option<f64>,
    },
    Compaction {
        #[serde(default)]
        before: u64,
        #[serde(default)]
        after: u64,
    },
    ApiRetry {
        #[serde(default)]
        attempt: u32,
        #[serde(default)]
        max: u32,
        #[serde(default)]
        delay_s: f64,
        #[serde(default)]
        status: Option<u16>,
    },
    RateLimit {
        /// 0 if only `resets_at` is known and no clock was applied to it yet.
        #[serde(default)]
        resets_in_s: f64,
        /// Unix seconds, if the CLI reports the end of the limit as a time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resets_at: Option<f64>,
        /// The limit is near, not reached.
        #[serde(default, skip_serializing_if = "is_false")]
        warning: bool,
    },
    /// The agent waits for a permission.
    Permission {
        id: String,
        #[serde(flatten)]
        ask: Box<Ask>,
    },
    /// The agent no longer waits: somebody has answered, or it has withdrawn the request.
    PermissionAnswer {
        id: String,
    },
    /// The agent waits for an answer to a request that its parser does not know.
    Request {
        id: String,
        what: String,
    },
    /// A message for people that stops nothing: an MCP server that does not work, or another model
    /// than the requested one.
    Notice {
        text: String,
    },
    /// The answer to a request of ours (an interrupt, another model).
    Reply {
        id: String,
        ok: bool,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
    },
    Question {
        #[serde(default)]
        id: String,
        #[serde(default)]
        text: String,
    },
    Answer {
        #[serde(default)]
        id: String,
        #[serde(default)]
        text: String,
    },
    Process {
        #[serde(default)]
        cpu_s: f64,
        #[serde(default)]
        children: u32,
    },
    Backpressure {
        on: bool,
    },
    /// A turn ended. The fields are as the CLI reports them, before validation.
    Result(TurnResult),
    Exit {
        code: Option<i32>,
    },
    /// A line of plain output (`subprocess`), shown by `logs`.
    Output {
        text: String,
    },
    /// An answer to a call of ours, for `life` alone: `parse` does not print it.
    CallAnswer(CallAnswer),
    /// An event of the subagent that the tool call `parent` runs, for `life` and `monitor`. `parse`
    /// prints the event itself, with its `parent`.
    Subagent {
        parent: String,
        event: Box<AgentEvent>,
    },
    /// A line that the parser does not know, whole up to [`TEXT_LIMIT`].
    Unknown {
        raw: String,
    },
}

fn is_false(b: &bool) -> bool {
    !b
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TurnResult {
    pub ok: bool,
    #[serde(default)]
    pub error: Option<TurnError>,
    /// The HTTP status of the model API, if the API failed.
    #[serde(default)]
    pub status: Option<u16>,
    /// The cumulative cost of the session, if the CLI reports it so; null if it reports none.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    #[serde(default)]
    pub session_id: Option<String>,
    /// The final text of the turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The structured output, if the CLI enforces a schema, or a `subprocess` result line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// The cumulative use, over the session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_model: Vec<ModelUsage>,
    /// The use since this process's previous result, if the CLI reports it. Count this and not
    /// differences of `per_model`, because Claude's totals continue those of the resumed session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_model_turn: Vec<ModelUsage>,
    /// The cumulative use over the session and all its processes, if the CLI counts so. An empty
    /// model is the session's one model, which this CLI does not name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_session: Vec<ModelUsage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_turns: Option<u32>,
    /// The session to resume does not exist: no prompt was taken.
    #[serde(default, skip_serializing_if = "is_false")]
    pub session_lost: bool,
    /// The keys of the prompts that this turn answers, if the CLI names them. A prompt that is sent
    /// into a running turn becomes part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// The reason why the line of this result could not be read whole. Such a result is never a
    /// success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
    /// Other text precedes the result on its line, so the text may only quote the result.
    #[serde(default, skip_serializing_if = "is_false")]
    pub quoted: bool,
}

impl TurnResult {
    /// Returns a failed result in place of one whose line is damaged.
    pub fn damaged(fault: &str) -> Self {
        Self::default().spoilt(fault)
    }

    /// Returns this result as a failure, because its line is damaged.
    #[must_use]
    pub fn spoilt(self, fault: &str) -> Self {
        let said = format!("the line with the result is invalid: {fault}");
        let error = self.error.or(Some(TurnError::Other));
        let text = Some(self.text.filter(|_| !self.ok).unwrap_or_else(|| said.clone()));
        Self { ok: false, error, text, structured: None, damage: Some(said), ..self }
    }
}

/// The use of one model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelUsage {
    pub model: String,
    #[serde(default)]
    pub input: u64,
    #[serde(default)]
    pub output: u64,
    #[serde(default)]
    pub cache_read: u64,
    #[serde(default)]
    pub cache_write: u64,
    #[serde(default)]
    pub cost_usd: f64,
}

/// The kind of the error that ended a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TurnError {
    /// The model API refused the credential.
    Auth,
    /// The model API answered with an error, or not at all.
    ApiError,
    /// A rate limit of the model API is reached.
    RateLimit,
    /// The CLI's own limit of turns is reached.
    MaxTurns,
    /// The CLI's own budget is used up.
    Budget,
    /// The result does not have the requested structure.
    StructuredOutput,
    /// The prompt does not fit into the model's context.
    Context,
    /// The turn was interrupted.
    Interrupted,
    /// The agent ended the turn by itself because its tool calls kept failing.
    Mistakes,
    /// Another error.
    #[serde(other)]
    Other,
}

/// Cuts `text` to at most `limit` bytes at a character boundary, and marks the cut.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_string();
    }
    let mut end = limit.saturating_sub('…'.len_utf8());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

/// Cuts the middle out of `text`, so that at most `limit` bytes stay. Both ends of a tool's output
/// are informative: the error at the top and the count at the bottom.
pub fn both_ends(text: &str, limit: usize) -> String {
    const CUT: &str = "\n…\n";
    if text.len() <= limit || limit < CUT.len() + 8 {
        return cut(text, limit);
    }
    let half = (limit - CUT.len()) / 2;
    let (mut head, mut tail) = (half, text.len() - half);
    while !text.is_char_boundary(head) {
        head -= 1;
    }
    while !text.is_char_boundary(tail) {
        tail += 1;
    }
    format!("{}{CUT}{}", &text[..head], &text[tail..])
}

/// Returns the first line of a tool call's subject: a path, a command, a pattern. It is empty if
/// the input names none.
pub fn target(name: &str, input: &Value) -> String {
    let _ = name;
    subject(input)
        .map(|text| cut(text.lines().next().unwrap_or_default(), 200))
        .unwrap_or_default()
}

/// Returns the whole subject of a tool call; [`target`] is its first line.
pub fn subject(input: &Value) -> Option<&str> {
    const KEYS: &[&str] = &[
        "file_path",
        "notebook_path",
        "path",
        "command",
        "pattern",
        "url",
        "query",
        "description",
    ];
    KEYS.iter().find_map(|key| input.get(*key).and_then(Value::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_long_text_stay() {
        assert_eq!(both_ends("short", 40), "short");
        let long = format!("error: é\n{}\n3 failed", "ö".repeat(5000));
        for limit in 0..200 {
            let kept = both_ends(&long, limit);
            assert!(kept.len() <= limit.max('…'.len_utf8()), "{limit}: {kept}");
            if limit >= 40 {
                assert!(
                    kept.starts_with("error: é\n")
                        && kept.ends_with("\n3 failed")
                        && kept.contains('…'),
                    "{kept}"
                );
            }
        }
    }
}
