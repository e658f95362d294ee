//! Reads a session file as the transcript of a rehearsed agent.
//!
//! The file is replaced as a whole, so it is never incomplete. It contains a prompt before the
//! agent reports it as accepted, and every step's effect before the agent reports the step.

use crate::rehearsal::DIR_VARIABLE;
use crate::transcript::{Place, PlaceError, Transcripts, folder};
use muleteer_model::agent::transcript::{self, Reading, Seen, Standing, Used};
use serde::Deserialize;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

/// A session file is a list of keys and one prompt, so a larger file is not one.
const FILE_LIMIT: u64 = 64 * 1024 * 1024;

/// The version of the session file.
pub const VERSION: u32 = 1;

/// The part of a session file that tells what became of a prompt. The player writes the whole.
#[derive(Debug, Deserialize)]
struct SessionFile {
    v: u32,
    session_id: String,
    /// Keys of the accepted prompts.
    keys: Vec<String>,
    open: Option<OpenTurn>,
}

/// A turn that has begun and not ended.
#[derive(Debug, Deserialize)]
struct OpenTurn {
    /// How many steps are done.
    done: usize,
}

/// The stderr message of a process that cannot find the session to resume.
pub const UNKNOWN_SESSION: &str = "No conversation found with session ID";

/// Returns the file of the session `id` in a rehearsed agent's folder.
pub fn session_file(folder: &Path, id: &str) -> PathBuf {
    sessions(folder).join(format!("{id}.jsonl"))
}

/// This folder contains only session files.
fn sessions(folder: &Path) -> PathBuf {
    folder.join("sessions")
}

#[derive(Debug)]
pub(super) struct RehearsalTranscripts;

impl Transcripts for RehearsalTranscripts {
    fn place(&self, env: &[(String, String)]) -> Result<Place, PlaceError> {
        let folder =
            folder(env, DIR_VARIABLE).ok_or(PlaceError::NoFolder { variable: DIR_VARIABLE })?;
        Ok(Place { root: sessions(&folder), depth: 0 })
    }

    fn chooses_session(&self) -> bool {
        true
    }

    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading> {
        let mut text = Vec::new();
        source.take(FILE_LIMIT).read_to_end(&mut text)?;
        let session: SessionFile = serde_json::from_slice(&text)?;
        if session.v != VERSION {
            return Ok(Reading::unread(format!("its session file has version {}", session.v)));
        }
        let taken = session.keys.iter().any(|known| known == key);
        let standing = match &session.open {
            None => Standing::Answered,
            Some(open) if open.done == 0 => Standing::Unanswered,
            Some(_) => Standing::MidTool,
        };
        let prompt = if taken { Seen::Present(standing) } else { Seen::Absent };
        Ok(Reading {
            session: transcript::Session::Held,
            session_id: Some(session.session_id),
            prompt,
            used: Used::default(),
        })
    }

    fn says_lost(&self, stderr: &str) -> bool {
        stderr.contains(UNKNOWN_SESSION)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(file: &str) -> io::Result<Reading> {
        RehearsalTranscripts.read(&mut file.as_bytes(), "k")
    }

    #[test]
    fn invalid_session_file_is_not_empty() {
        assert!(read("{\"v\":1").is_err());
        let newer = format!(r#"{{"v":{},"session_id":"s","keys":[],"open":null}}"#, VERSION + 1);
        assert!(matches!(read(&newer).unwrap().prompt, Seen::Unclear(_)));
    }
}
