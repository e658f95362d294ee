//! The result of a dispatch and its validation (contract.md: `status summary changes issues
//! questions pr_url`).

use crate::text::foreign_json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The agent's own verdict on its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResultStatus {
    /// The work is done.
    Success,
    /// A part of the work is done.
    Partial,
    /// The work is not done.
    Failed,
    /// The agent needs a decision or help.
    Blocked,
}

/// The result that an agent reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentResult {
    /// The agent's own verdict on its work.
    pub status: ResultStatus,
    /// A summary of the work.
    pub summary: String,
    /// The changes that the agent made, such as files.
    #[serde(default)]
    pub changes: Vec<String>,
    /// The problems that remain.
    #[serde(default)]
    pub issues: Vec<String>,
    /// The questions to a person.
    #[serde(default)]
    pub questions: Vec<String>,
    /// The address of a pull request that the agent created.
    #[serde(default)]
    pub pr_url: Option<String>,
}

/// The keys of [`AgentResult`] in JSON.
pub const FIELDS: [&str; 6] = ["status", "summary", "changes", "issues", "questions", "pr_url"];

impl AgentResult {
    pub fn new(status: ResultStatus, summary: impl Into<String>) -> Self {
        Self {
            status,
            summary: summary.into(),
            changes: vec![],
            issues: vec![],
            questions: vec![],
            pr_url: None,
        }
    }
}

/// The longest list and text that are accepted from an agent.
const LIST_LIMIT: usize = 1000;
const TEXT_LIMIT: usize = 64 * 1024;
/// The most bytes of all texts of the lists together: the result becomes one line of the log, with
/// some of its bytes escaped.
const WHOLE_LIMIT: usize = 512 * 1024;
/// The most characters of an invalid value that a fault repeats.
const SHOWN: usize = 60;

/// Checks a document that an agent returned. On failure, every fault names its field, so that one
/// repair turn can fix all of them.
pub fn validate(value: &Value) -> Result<AgentResult, Vec<String>> {
    let Some(object) = value.as_object() else {
        return Err(vec![format!("expected a JSON object, not {}", kind(value))]);
    };
    let mut faults = Vec::new();
    let status = match object.get("status") {
        None => {
            faults.push("`status` is missing: expected success, partial, failed or blocked".into());
            None
        }
        Some(status) => match serde_json::from_value::<ResultStatus>(status.clone()) {
            Ok(status) => Some(status),
            Err(_) => {
                let shown: String = status.to_string().chars().take(SHOWN).collect();
                faults.push(format!(
                    "`status` is {shown}: expected success, partial, failed or blocked"
                ));
                None
            }
        },
    };
    let summary = match object.get("summary") {
        Some(Value::String(text)) if text.len() <= TEXT_LIMIT => Some(text.clone()),
        Some(Value::String(text)) => {
            faults.push(format!("`summary` has {} bytes: the limit is {TEXT_LIMIT}", text.len()));
            None
        }
        Some(other) => {
            faults.push(format!("`summary` is {}: expected text", kind(other)));
            None
        }
        None => {
            faults.push("`summary` is missing".into());
            None
        }
    };
    let mut list = |key: &str| strings(object, key, &mut faults);
    let (changes, issues, questions) = (list("changes"), list("issues"), list("questions"));
    let pr_url = match object.get("pr_url") {
        None | Some(Value::Null) => None,
        Some(Value::String(url)) if url.len() <= TEXT_LIMIT => Some(url.clone()),
        Some(Value::String(url)) => {
            faults.push(format!("`pr_url` has {} bytes: the limit is {TEXT_LIMIT}", url.len()));
            None
        }
        Some(other) => {
            faults.push(format!("`pr_url` is {}: expected text or null", kind(other)));
            None
        }
    };
    let texts = [&changes, &issues, &questions].into_iter().flatten();
    let whole: usize = texts.map(String::len).sum();
    if whole > WHOLE_LIMIT {
        faults.push(format!(
            "the lists have {whole} bytes: the limit for all together is {WHOLE_LIMIT}"
        ));
    }
    match (status, summary) {
        (Some(status), Some(summary)) if faults.is_empty() => {
            Ok(AgentResult { status, summary, changes, issues, questions, pr_url })
        }
        _ => Err(faults),
    }
}

fn strings(object: &Map<String, Value>, key: &str, faults: &mut Vec<String>) -> Vec<String> {
    match object.get(key) {
        None | Some(Value::Null) => vec![],
        Some(Value::Array(items)) if items.len() > LIST_LIMIT => {
            faults.push(format!("`{key}` has {} entries: the limit is {LIST_LIMIT}", items.len()));
            vec![]
        }
        Some(Value::Array(items)) => items
            .iter()
            .enumerate()
            .filter_map(|(at, item)| match item {
                Value::String(text) if text.len() <= TEXT_LIMIT => Some(text.clone()),
                Value::String(text) => {
                    faults.push(format!(
                        "`{key}[{at}]` has {} bytes: the limit is {TEXT_LIMIT}",
                        text.len()
                    ));
                    None
                }
                other => {
                    faults.push(format!("`{key}[{at}]` is {}: expected text", kind(other)));
                    None
                }
            })
            .collect(),
        Some(other) => {
            faults.push(format!("`{key}` is {}: expected a list of texts", kind(other)));
            vec![]
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Searches a turn's final text for a result: the whole text, the last fenced block, or the last
/// line. The first of them that is a JSON object with a `status` counts.
pub fn find_in_text(text: &str) -> Option<Value> {
    let object = |candidate: &str| {
        foreign_json::whole(candidate.trim().as_bytes())
            .ok()
            .filter(|value| value.get("status").is_some())
    };
    object(text)
        .or_else(|| {
            let mut parts = text.rsplit("```");
            parts.next();
            let block = parts.next()?;
            object(block.strip_prefix("json").unwrap_or(block))
        })
        .or_else(|| text.trim_end().lines().next_back().and_then(object))
}

/// Returns the JSON schema for CLIs that can enforce one.
pub fn schema() -> Value {
    let texts = serde_json::json!({"type": "array", "items": {"type": "string"}});
    serde_json::json!({
        "type": "object",
        "properties": {
            "status": {"type": "string", "enum": ["success", "partial", "failed", "blocked"]},
            "summary": {"type": "string"},
            "changes": texts,
            "issues": texts,
            "questions": texts,
            "pr_url": {"type": ["string", "null"]}
        },
        "required": ["status", "summary"]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_is_named_by_its_field() {
        let faults = validate(&json!({"status": "done", "changes": ["a", 3], "issues": "x"}))
            .expect_err("invalid");
        let text = faults.join("\n");
        for field in
            ["`status` is \"done\"", "`summary` is missing", "`changes[1]`", "`issues` is text"]
        {
            assert!(text.contains(field), "{field} in {text}");
        }
    }

    /// The result becomes one line of the log, and lines are bounded.
    #[test]
    fn a_result_has_a_size() {
        let long = "x".repeat(TEXT_LIMIT + 1);
        let well = |key: &str, value: Value| {
            let mut document = json!({"status": "success", "summary": "ok"});
            document[key] = value;
            validate(&document)
        };
        for (key, value) in [
            ("changes", json!([long])),
            ("changes", json!(vec!["x".repeat(TEXT_LIMIT); 9])),
            ("pr_url", json!(long)),
            ("status", json!(long)),
            ("summary", json!(long)),
        ] {
            let faults = well(key, value).expect_err(key).join("\n");
            assert!(faults.len() < 300, "{key}: {} bytes of faults", faults.len());
        }
        well("changes", json!(vec!["x".repeat(TEXT_LIMIT); 8])).expect("as large as may be");
    }

    #[test]
    fn result_is_found_as_whole_text_in_a_fence_or_on_the_last_line() {
        let doc = r#"{"status":"success","summary":"ok"}"#;
        for text in
            [doc.to_string(), format!("All done.\n```json\n{doc}\n```\n"), format!("bye\n{doc}\n")]
        {
            assert!(find_in_text(&text).is_some_and(|v| validate(&v).is_ok()), "{text}");
        }
        assert!(find_in_text("I am done. {\"status\"").is_none());
    }
}
