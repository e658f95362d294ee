//! Reads a request to the model, of any API: the prompts, and the answers of the tools so far. A
//! player of many parts chooses its next step from them, and so needs no state of its own.

use crate::model_server::Request;
use serde_json::Value;

/// One part of a conversation, as a request tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A message to the agent.
    Said(String),
    /// The answer of a tool.
    Result(String),
    /// An answer of the model.
    Answered,
}

#[derive(Debug, Clone)]
pub struct Talk {
    /// The conversation: one for each agent, across all its processes. Empty if the API names none.
    pub session: String,
    /// Everything, in its order.
    pub heard: Vec<Heard>,
    /// All messages to the agent that are no answers of its tools.
    pub prompt: String,
    /// The answers of its tools, the newest last.
    pub results: Vec<String>,
    /// How often the model has answered.
    pub answers: usize,
}

impl Talk {
    pub fn of(request: &Request) -> Self {
        let heard = heard(&request.body);
        let (mut prompt, mut results, mut answers) = (String::new(), vec![], 0);
        for one in &heard {
            match one {
                Heard::Said(text) => {
                    prompt.push_str(text);
                    prompt.push('\n');
                }
                Heard::Result(text) => results.push(text.clone()),
                Heard::Answered => answers += 1,
            }
        }
        Self { session: session(request), heard, prompt, results, answers }
    }

    /// Finds the newest message that has one of `keys`. Returns the key's place, and the number of
    /// results since.
    pub fn newest(&self, keys: &[&str]) -> Option<(usize, usize)> {
        let at = |one: &Heard| match one {
            Heard::Said(text) => keys.iter().position(|key| text.contains(key)),
            _ => None,
        };
        let (index, key) =
            self.heard.iter().enumerate().rev().find_map(|(index, one)| Some((index, at(one)?)))?;
        let results =
            self.heard[index..].iter().filter(|one| matches!(one, Heard::Result(_))).count();
        Some((key, results))
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
}

/// The words with which Claude Code gives a message during a turn to the model, sometimes as a
/// message of the system.
const MID_TURN: &str = "The user sent a new message while you were working";

fn heard(body: &Value) -> Vec<Heard> {
    let mut heard = vec![];
    let items = |key: &str| body[key].as_array().into_iter().flatten();
    for message in items("messages").chain(items("input")) {
        match (message["role"].as_str(), message["type"].as_str()) {
            (_, Some("function_call_output" | "custom_tool_call_output")) => {
                heard.push(Heard::Result(text(&message["output"])))
            }
            (_, Some("function_call" | "custom_tool_call")) => heard.push(Heard::Answered),
            // A text of the Responses API has a type, and is no answer of its own.
            (Some("assistant"), None) => heard.push(Heard::Answered),
            (Some("tool"), _) => heard.push(Heard::Result(text(&message["content"]))),
            (Some("user"), _) => take(&message["content"], &mut heard),
            (Some("system"), _) if text(&message["content"]).contains(MID_TURN) => {
                take(&message["content"], &mut heard);
            }
            _ => {}
        }
    }
    for message in items("contents") {
        if message["role"] == "model" {
            heard.push(Heard::Answered);
            continue;
        }
        for part in message["parts"].as_array().into_iter().flatten() {
            let result = &part["functionResponse"];
            if result.is_object() {
                heard.push(Heard::Result(result["response"].to_string()));
            }
            heard.extend(part["text"].as_str().map(|text| Heard::Said(text.into())));
        }
    }
    heard
}

fn take(content: &Value, heard: &mut Vec<Heard>) {
    for block in content.as_array().into_iter().flatten() {
        heard.push(match block["type"].as_str() {
            Some("tool_result") => Heard::Result(text(&block["content"])),
            _ => Heard::Said(block["text"].as_str().unwrap_or_default().into()),
        });
    }
    heard.extend(content.as_str().map(|text| Heard::Said(text.into())));
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
    user["session_id"].as_str().unwrap_or_default().into()
}
