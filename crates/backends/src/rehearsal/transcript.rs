//! Reads a session file as the transcript of a rehearsed agent.
//!
//! The file is replaced as a whole, so it is never incomplete. It contains a prompt before the
//! agent reports it as accepted, and every step's effect before the agent reports the step.

use crate::rehearsal::DIR_VARIABLE;
use crate::rehearsal::session::{Session, VERSION};
use crate::transcript::{Place, Transcripts, folder};
use muleteer_model::agent::transcript::{self, Reading, Seen, Standing, Used};
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

/// A session file is a list of keys and one prompt, so a larger file is not one.
const FILE_LIMIT: u64 = 64 * 1024 * 1024;

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
    fn place(&self, env: &[(String, String)]) -> Result<Place, String> {
        let folder = folder(env, DIR_VARIABLE)
            .ok_or_else(|| format!("its environment has no {DIR_VARIABLE}"))?;
        Ok(Place { root: sessions(&folder), depth: 0 })
    }

    fn chooses_session(&self) -> bool {
        true
    }

    fn read(&self, source: &mut dyn BufRead, key: &str) -> io::Result<Reading> {
        let mut text = Vec::new();
        source.take(FILE_LIMIT).read_to_end(&mut text)?;
        let session: Session = serde_json::from_slice(&text)?;
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
    use crate::rehearsal::Vars;
    use crate::rehearsal::scenario::Scenario;

    fn reading(session: &Session, key: &str) -> Reading {
        let file = serde_json::to_vec(session).unwrap();
        RehearsalTranscripts.read(&mut file.as_slice(), key).unwrap()
    }

    #[test]
    fn session_file_has_the_progress_of_its_prompt() {
        let scenario =
            Scenario::parse("{v: 1, turns: [{steps: [{say: a}, {say: b}]}]}", "test").unwrap();
        let mut session = Session::new("s");
        // The session was created, and the process died before it had a prompt. The session must be
        // resumed, not created again.
        let begun = reading(&session, "k");
        assert_eq!(
            (begun.session, begun.session_id, begun.prompt),
            (transcript::Session::Held, Some("s".into()), Seen::Absent)
        );
        session.take(&scenario, &Vars::default(), Some("k"), "go");
        assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::Unanswered));
        session.step_done(&scenario);
        assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::MidTool));
        assert_eq!(reading(&session, "other").prompt, Seen::Absent);
        session.turn_over();
        assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::Answered));
    }

    #[test]
    fn invalid_session_file_is_not_empty() {
        assert!(RehearsalTranscripts.read(&mut &b"{\"v\":1"[..], "k").is_err());
        let newer = Session { v: VERSION + 1, ..Session::new("s") };
        assert!(matches!(reading(&newer, "k").prompt, Seen::Unclear(_)));
    }
}
