//! Reads pi's sessions: `<moment>_<id>.jsonl` in `PI_CODING_AGENT_SESSION_DIR`; without that, in a
//! folder for each directory below `sessions` in `PI_CODING_AGENT_DIR`.
//!
//! pi has accepted a prompt if a user message ends with its mark. It writes a new session with the
//! model's first answer, so an unanswered prompt is in no file, and nothing was done for it.

use crate::pi::{HOME, SESSIONS};
use crate::stream::foreign::{id, string};
use crate::transcript::{self, Account, Place, PlaceError, Transcripts};
use muleteer_model::agent::prompt;
use muleteer_model::agent::transcript::{Reading, Standing};
use serde_json::Value;
use std::io::{self, BufRead};

#[derive(Debug)]
pub(super) struct Sessions;

impl Transcripts for Sessions {
    fn place(&self, env: &[(String, String)]) -> Result<Place, PlaceError> {
        if let Some(root) = transcript::folder(env, SESSIONS) {
            return Ok(Place { root, depth: 0 });
        }
        let home = transcript::home(HOME, env)?;
        Ok(Place { root: home.join("sessions"), depth: 1 })
    }

    fn chooses_session(&self) -> bool {
        true
    }

    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading> {
        transcript::read(source, key, record)
    }

    fn says_lost(&self, stderr: &str) -> bool {
        stderr.contains("No session found matching")
    }
}

fn record(account: &mut Account, record: &Value, key: &str) {
    match string(record, "type") {
        Some("session") => {
            account.held = true;
            account.session_id = id(record, "id");
        }
        Some("message") => {
            if let Some(message) = record.get("message") {
                read_message(account, message, key);
            }
        }
        _ => {}
    }
}

fn read_message(account: &mut Account, message: &Value, key: &str) {
    let stop = string(message, "stopReason").unwrap_or_default();
    match string(message, "role") {
        Some("user") => {
            let text = message.get("content").map(crate::stream::foreign::plain);
            if prompt::marked(&text.unwrap_or_default()) == Some(key) {
                account.prompted();
            }
        }
        // The use of each answer is not read: pi's output told it with the answer.
        Some("assistant") => match stop {
            // The model gave no answer.
            "error" | "aborted" => {}
            "stop" | "length" => account.now(Standing::Answered),
            _ => account.now(Standing::MidTool),
        },
        Some("toolResult") => account.now(Standing::MidTool),
        _ => {}
    }
}
