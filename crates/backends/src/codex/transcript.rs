//! Reads Codex's transcripts: `sessions/<year>/<month>/<day>/rollout-<moment>-<thread>.jsonl` in
//! `CODEX_HOME`.
//!
//! Codex has accepted a prompt if a user message ends with its mark. Codex writes that message
//! before it asks the model, but after it printed `turn.started`.

use crate::transcript::{self, Account, Place, PlaceError, Transcripts};
use muleteer_model::agent::prompt;
use muleteer_model::agent::transcript::{Reading, Standing};
use serde_json::Value;
use std::io::{self, BufRead};

#[derive(Debug)]
pub(super) struct Rollouts;

impl Transcripts for Rollouts {
    fn place(&self, env: &[(String, String)]) -> Result<Place, PlaceError> {
        let home = transcript::home(crate::codex::HOME, env)?;
        Ok(Place { root: home.join("sessions"), depth: 3 })
    }

    fn chooses_session(&self) -> bool {
        false
    }

    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading> {
        transcript::read(source, key, record)
    }

    fn says_lost(&self, stderr: &str) -> bool {
        stderr.contains("no rollout found for thread id")
    }
}

fn record(account: &mut Account, record: &Value, key: &str) {
    let Some(payload) = record.get("payload") else { return };
    let text =
        |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_string);
    let kind = text(payload, "type").unwrap_or_default();
    match text(record, "type").unwrap_or_default().as_str() {
        // A forked session repeats its parent's metadata after its own.
        "session_meta" if !account.held => {
            account.held = true;
            account.session_id = text(payload, "id");
        }
        "response_item" => match (kind.as_str(), text(payload, "role").as_deref()) {
            ("message", Some("user")) if is_marked(payload, key) => account.prompted(),
            ("message", Some("assistant")) => account.now(Standing::MidTool),
            (kind, _) if kind.ends_with("_call") || kind.ends_with("_call_output") => {
                account.now(Standing::MidTool)
            }
            _ => {}
        },
        "event_msg" if kind == "token_count" => {
            if let Some(total) = payload.pointer("/info/total_token_usage") {
                account.total(crate::codex::parser::usage(total));
            }
        }
        "event_msg" if kind == "task_complete" => {
            let answered = payload.get("last_agent_message").is_some_and(Value::is_string);
            if answered {
                account.now(Standing::Answered);
            }
        }
        _ => {}
    }
}

fn is_marked(payload: &Value, key: &str) -> bool {
    let parts = payload.get("content").and_then(Value::as_array).into_iter().flatten();
    let texts = parts.filter_map(|part| part.get("text").and_then(Value::as_str));
    texts.filter_map(prompt::marked).any(|marked| marked == key)
}
