//! One step of the scripted model: its answer to one main request.

use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Step {
    pub(super) text: Option<String>,
    pub(super) tools: Vec<(String, Value)>,
    /// The final document: a call of `StructuredOutput` if the request declares that tool (the CLI
    /// was given a schema), else plain text.
    pub(super) document: Option<Value>,
    pub(super) usage: Option<Value>,
    pub(super) stop_reason: Option<String>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) status: Option<u16>,
    pub(super) hang: Option<Duration>,
    pub(super) held: bool,
    pub(super) marks: Vec<String>,
    pub(super) awaits: Vec<String>,
    pub(super) hang_mid: Option<Duration>,
    pub(super) die_mid: bool,
    pub(super) pre_delay: Option<Duration>,
    pub(super) chunk_delay: Option<Duration>,
    times: Option<usize>,
}

impl Step {
    /// Makes a plain answer that ends the turn.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// Makes one tool call.
    pub fn tool(name: &str, input: Value) -> Self {
        Self::default().and_tool(name, input)
    }

    /// Makes a call of the CLI's shell tool.
    pub fn bash(command: &str) -> Self {
        Self::tool("Bash", json!({"command": command, "description": "a step of the script"}))
    }

    /// Makes the final document of a dispatch.
    pub fn document(document: Value) -> Self {
        Self { document: Some(document), ..Self::default() }
    }

    /// Makes a successful result in the form of the contract.
    pub fn success(summary: &str) -> Self {
        Self::document(json!({
            "status": "success", "summary": summary, "changes": [], "issues": [], "questions": [],
            "pr_url": null
        }))
    }

    /// Makes an error answer with this HTTP status.
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Takes the request and sends nothing; then closes the connection.
    pub fn hang(for_how_long: Duration) -> Self {
        Self { hang: Some(for_how_long), ..Self::default() }
    }

    pub fn and_text(mut self, text: impl Into<String>) -> Self {
        self.text = Some(text.into());
        self
    }

    /// Adds a tool call to the same answer.
    pub fn and_tool(mut self, name: &str, input: Value) -> Self {
        self.tools.push((name.into(), input));
        self
    }

    /// Adds a response header (also to errors: `retry-after`).
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn usage(mut self, input: u64, output: u64) -> Self {
        self.usage = Some(json!({"input_tokens": input, "output_tokens": output}));
        self
    }

    pub fn stop_reason(mut self, reason: &str) -> Self {
        self.stop_reason = Some(reason.into());
        self
    }

    /// Delays the answer until [`super::ModelServer::release`].
    pub fn held(mut self) -> Self {
        self.held = true;
        self
    }

    /// Sets a mark before the step answers.
    pub fn tells(mut self, mark: &str) -> Self {
        self.marks.push(mark.into());
        self
    }

    /// Delays the answer until each of `marks` is set.
    pub fn awaits(mut self, marks: &[&str]) -> Self {
        self.awaits.extend(marks.iter().map(ToString::to_string));
        self
    }

    /// Begins to answer, then goes silent.
    pub fn hang_mid(mut self, for_how_long: Duration) -> Self {
        self.hang_mid = Some(for_how_long);
        self
    }

    /// Begins to answer, then cuts the connection.
    pub fn die_mid(mut self) -> Self {
        self.die_mid = true;
        self
    }

    pub fn pre_delay(mut self, delay: Duration) -> Self {
        self.pre_delay = Some(delay);
        self
    }

    pub fn chunk_delay(mut self, delay: Duration) -> Self {
        self.chunk_delay = Some(delay);
        self
    }

    /// Repeats the step for this many requests.
    pub fn times(mut self, times: usize) -> Self {
        self.times = Some(times);
        self
    }

    /// Returns the text and the document, for an API that knows no documents.
    pub(super) fn whole_text(&self) -> String {
        let document = self.document.as_ref().map(Value::to_string);
        self.text.clone().into_iter().chain(document).collect::<Vec<_>>().join("\n")
    }

    /// Returns the input and the output tokens that the answer reports.
    pub(super) fn tokens(&self) -> [u64; 2] {
        let told = |key: &str, without| {
            self.usage.as_ref().and_then(|usage| usage[key].as_u64()).unwrap_or(without)
        };
        [told("input_tokens", 100), told("output_tokens", 20)]
    }

    pub(super) fn repeated(self) -> impl Iterator<Item = Self> {
        let times = self.times.unwrap_or(1);
        std::iter::repeat_n(self, times)
    }
}
