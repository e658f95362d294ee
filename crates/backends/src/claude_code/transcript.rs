//! Reads Claude Code's transcripts: `projects/<directory>/<session>.jsonl` in its configuration
//! directory.
//!
//! The CLI has accepted a prompt if a `user` record has its uuid, or, for a prompt that came during
//! a turn, if an attachment names it. A prompt that is only `enqueue`d is dropped when the session
//! is resumed. The CLI writes the record when it sends the first request to the model, and every
//! tool call before the tool runs. So work that is not in the transcript has had no effect.

use crate::transcript::{self, Account, Place, PlaceError, Transcripts};
use muleteer_model::agent::event::ModelUsage;
use muleteer_model::agent::transcript::{Reading, Standing};
use serde_json::Value;
use std::io::{self, BufRead};

#[derive(Debug)]
pub(super) struct ClaudeTranscripts;

impl Transcripts for ClaudeTranscripts {
    fn place(&self, env: &[(String, String)]) -> Result<Place, PlaceError> {
        let home = transcript::home(crate::claude_code::HOME, env)?;
        Ok(Place { root: home.join("projects"), depth: 1 })
    }

    fn chooses_session(&self) -> bool {
        true
    }

    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading> {
        transcript::read(source, key, record)
    }

    fn says_lost(&self, stderr: &str) -> bool {
        stderr.contains(crate::claude_code::result::UNKNOWN_SESSION)
    }
}

fn record(account: &mut Account, record: &Value, key: &str) {
    let text = |name: &str| record.get(name).and_then(Value::as_str).unwrap_or_default();
    let flag = |name: &str| record.get(name).and_then(Value::as_bool).unwrap_or_default();
    if flag("isSidechain") {
        return;
    }
    let message = record.get("message");
    match text("type") {
        "user" => {
            hold(account, record);
            if text("uuid") == key {
                account.prompted();
            } else if has_part(message, "tool_result") {
                // The tool by which the agent returns its result document ends the turn.
                account.now(if flag("toolEndsTurn") {
                    Standing::Answered
                } else {
                    Standing::MidTool
                });
            }
        }
        "attachment" => {
            let source =
                record.get("attachment").and_then(|attachment| attachment.get("source_uuid"));
            if source.and_then(Value::as_str) == Some(key) {
                account.prompted();
            }
        }
        "assistant" => {
            hold(account, record);
            let field =
                |name: &str| message.and_then(|message| message.get(name)).and_then(Value::as_str);
            // Text that the CLI writes in the model's name (an API error, a placeholder) is no
            // answer.
            if flag("isApiErrorMessage") || field("model") == Some("<synthetic>") {
                return;
            }
            if let Some((name, usage)) = message.and_then(usage) {
                account.answer(name, usage);
            }
            let ends = matches!(
                field("stop_reason"),
                Some("end_turn" | "stop_sequence" | "max_tokens" | "refusal")
            );
            let calls = has_part(message, "tool_use");
            account.now(if ends && !calls { Standing::Answered } else { Standing::MidTool });
        }
        _ => {}
    }
}

/// Reads the usage of one record. An answer is written in parts, each with the usage of the whole
/// answer so far.
fn usage(message: &Value) -> Option<(&str, ModelUsage)> {
    let usage = message.get("usage")?;
    let number = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let usage = ModelUsage {
        model: text("model").unwrap_or_default().to_string(),
        input: number("input_tokens"),
        output: number("output_tokens"),
        cache_read: number("cache_read_input_tokens"),
        cache_write: number("cache_creation_input_tokens"),
        cost_usd: 0.0,
    };
    Some((text("id")?, usage))
}

fn hold(account: &mut Account, record: &Value) {
    account.held = true;
    if account.session_id.is_none() {
        account.session_id = record.get("sessionId").and_then(Value::as_str).map(str::to_string);
    }
}

fn has_part(message: Option<&Value>, kind: &str) -> bool {
    let parts = message.and_then(|message| message.get("content")).and_then(Value::as_array);
    parts
        .into_iter()
        .flatten()
        .any(|part| part.get("type").and_then(Value::as_str) == Some(kind))
}
