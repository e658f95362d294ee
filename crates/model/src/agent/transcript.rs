//! The finding of a CLI's own transcript about a prompt whose process died, and what follows from
//! it (docs/design/dispatch-lifecycle.md): *not taken* is sent again, *taken* is continued, and
//! about *unknown* a person is asked.
//!
//! ```text
//!   process gone, a prompt sent or taken, its turn not ended
//!        │ probe: the transcript's bytes → Reading
//!        ▼
//!   judge(reading, had a receipt) → Standing, durable as `prompt_probed` before anything is sent
//!        ├─ not_taken ───────────────────▶ sent again under its key
//!        ├─ unanswered mid_tool answered ▶ continued in the resumed session, by a prompt that fits
//!        └─ unknown ─────────────────────▶ blocked: a person is asked
//! ```

use crate::agent::event::ModelUsage;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The fate of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its session does not hold it, so nothing has been done for it.
    NotTaken,
    /// The session holds it, and no part of an answer.
    Unanswered,
    /// The agent was working on it: a tool may have run fully, partly or not at all.
    MidTool,
    /// The answer is complete in the session; it did not reach us.
    Answered,
    /// The transcript does not tell.
    #[serde(other)]
    Unknown,
}

impl Standing {
    pub fn is_taken(self) -> bool {
        matches!(self, Self::Unanswered | Self::MidTool | Self::Answered)
    }
}

/// The state of the session itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "SessionState")]
pub enum Session {
    /// The session can be resumed.
    Held,
    /// The session was begun and holds nothing yet: it can neither be resumed nor begun again under
    /// its id.
    Empty,
    /// There is no session where its CLI stores them.
    Missing,
    /// The CLI itself reports that there is no session.
    Lost,
    /// The session could not be read.
    #[serde(other)]
    Unread,
}

/// A transcript as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub session: Session,
    /// The session of the transcript, if one was found.
    pub session_id: Option<String>,
    pub prompt: Seen,
    /// The use of the prompt's turn, which has no end that could report it.
    pub used: Used,
}

/// The use of a cut turn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Used {
    pub models: Vec<ModelUsage>,
    /// The sums that its CLI reports later include this use.
    pub told_again: bool,
}

/// The state of a prompt in a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Absent,
    Present(Standing),
    /// The reason why it cannot be decided.
    Unclear(String),
}

impl Reading {
    /// Returns the reading for a session without a transcript.
    pub fn missing() -> Self {
        Self {
            session: Session::Missing,
            session_id: None,
            prompt: Seen::Absent,
            used: Used::default(),
        }
    }

    /// Returns the reading for a transcript that may exist and was not read.
    pub fn unread(why: impl Into<String>) -> Self {
        Self {
            session: Session::Unread,
            session_id: None,
            prompt: Seen::Unclear(why.into()),
            used: Used::default(),
        }
    }
}

/// Decides the fate of a prompt from a reading. `worked_in`: its process acknowledged the prompt,
/// or its session has taken others before. A receipt alone proves little: Codex gives it before it
/// writes the prompt down. But if a session that was worked in cannot be found, more likely
/// Muleteer searches in the wrong place than that the session never existed.
pub fn judge(reading: &Reading, worked_in: bool) -> (Standing, String) {
    match &reading.prompt {
        Seen::Unclear(why) => (Standing::Unknown, why.clone()),
        Seen::Present(standing) => (*standing, String::new()),
        Seen::Absent if worked_in && reading.session == Session::Missing => {
            (Standing::Unknown, "the session was used, but its transcript does not exist".into())
        }
        Seen::Absent => (Standing::NotTaken, String::new()),
    }
}
