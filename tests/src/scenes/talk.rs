//! Reads a request to the model, of either API: the prompts, and the answers of the tools so far. A
//! player of many parts chooses its next step from them, and so needs no state of its own.

use crate::model_server::Request;
use serde_json::Value;

#[derive(Debug, Clone)]
pub struct Talk {
    /// The conversation: one for each agent, across all its processes.
    pub session: String,
    /// All messages to the agent that are no answers of its tools.
    pub prompt: String,
    /// The answers of its tools, the newest last.
    pub results: Vec<String>,
    /// How often the model has answered.
    pub answers: usize,
}

impl Talk {
    pub fn of(request: &Request) -> Self {
        let mut talk =
            Self { session: session(request), prompt: String::new(), results: vec![], answers: 0 };
        let body = &request.body;
        for message in body["messages"].as_array().into_iter().flatten() {
            talk.answers += usize::from(message["role"] == "assistant");
            if message["role"] == "user" {
                talk.take(&message["content"]);
            }
        }
        for item in body["input"].as_array().into_iter().flatten() {
            match item["type"].as_str() {
                Some("function_call_output" | "custom_tool_call_output") => {
                    talk.results.push(text(&item["output"]))
                }
                Some("function_call" | "custom_tool_call") => talk.answers += 1,
                _ if item["role"] == "user" => talk.take(&item["content"]),
                _ => {}
            }
        }
        talk
    }

    /// Returns the newest answer of a tool.
    pub fn last(&self) -> &str {
        self.results.last().map_or("", String::as_str)
    }

    /// Returns the text between `before` and `after` in the prompt.
    pub fn told(&self, before: &str, after: &str) -> Option<&str> {
        let rest = self.prompt.split_once(before)?.1;
        Some(rest.split_once(after)?.0)
    }

    fn take(&mut self, content: &Value) {
        for block in content.as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_result") => self.results.push(text(&block["content"])),
                _ => self.said(block["text"].as_str().unwrap_or_default()),
            }
        }
        self.said(content.as_str().unwrap_or_default());
    }

    fn said(&mut self, text: &str) {
        self.prompt.push_str(text);
        self.prompt.push('\n');
    }
}

/// Returns the text of a string, or of a list of blocks with one text each.
fn text(content: &Value) -> String {
    let blocks =
        content.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    content
        .as_str()
        .map(String::from)
        .unwrap_or_else(|| blocks.collect::<Vec<_>>().join("\n"))
}

/// Returns the conversation's id. Codex names its cache after it; Claude sends it in its metadata,
/// as JSON in a string.
fn session(request: &Request) -> String {
    if let Some(thread) = request.body["prompt_cache_key"].as_str() {
        return thread.into();
    }
    let user = request.body["metadata"]["user_id"].as_str().unwrap_or_default();
    let user: Value = serde_json::from_str(user).unwrap_or_default();
    user["session_id"].as_str().expect("a session in the metadata").into()
}
