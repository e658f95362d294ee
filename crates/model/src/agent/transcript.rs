//! What a CLI's own transcript says about a prompt after its process died, and what follows from it
//! (docs/design/dispatch-lifecycle.md): *not taken* is sent again, *taken* is gone on with,
//! *unknown* is asked about.
//!
//! ```text
//!   process gone, a prompt sent or taken, its turn not ended
//!        │ probe: the transcript's bytes → Reading
//!        ▼
//!   judge(reading, had a receipt) → Standing, durable as `prompt_probed` before anything is sent
//!        ├─ not_taken ───────────────────▶ sent again under its key
//!        ├─ unanswered mid_tool answered ▶ "go on" in the resumed session, in words that fit
//!        └─ unknown ─────────────────────▶ blocked: a person is asked
//! ```

use crate::agent::event::ModelUsage;
use serde::{Deserialize, Serialize};

/// What became of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// Its session does not hold it, so nothing has been done for it.
    NotTaken,
    /// The session holds it, and no word of an answer.
    Unanswered,
    /// It was being worked on: a tool may have run fully, partly or not at all.
    MidTool,
    /// The answer is complete in the session; it did not reach us.
    Answered,
    /// It cannot be told.
    #[serde(other)]
    Unknown,
}

impl Standing {
    pub fn is_taken(self) -> bool {
        matches!(self, Self::Unanswered | Self::MidTool | Self::Answered)
    }
}

/// What was found of the session itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Session {
    /// It can be resumed.
    Held,
    /// It was begun and holds nothing yet: it can neither be resumed nor begun again under its id.
    Empty,
    /// There is none where its CLI keeps them.
    Missing,
    /// The CLI itself says that there is none.
    Lost,
    /// It could not be looked at.
    #[serde(other)]
    Unread,
}

/// A transcript as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Reading {
    pub session: Session,
    /// Whose transcript it is, where one was found.
    pub session_id: Option<String>,
    pub prompt: Seen,
    /// By the turn of the prompt, which has no end that could tell it.
    pub used: Used,
}

/// What a turn has used that was cut off.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Used {
    pub models: Vec<ModelUsage>,
    /// The sums that its CLI tells later go on from it.
    pub told_again: bool,
}

/// Where a prompt stands in a transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    Absent,
    Present(Standing),
    /// Why it cannot be told.
    Unclear(String),
}

impl Reading {
    /// There is no transcript.
    pub fn missing() -> Self {
        Self {
            session: Session::Missing,
            session_id: None,
            prompt: Seen::Absent,
            used: Used::default(),
        }
    }

    /// There may be one.
    pub fn unread(why: impl Into<String>) -> Self {
        Self {
            session: Session::Unread,
            session_id: None,
            prompt: Seen::Unclear(why.into()),
            used: Used::default(),
        }
    }
}

/// What a reading means for a prompt. `worked_in`: its process said that it has the prompt, or its
/// session has taken others before. A receipt alone proves little (Codex gives it before it writes
/// the prompt down), but a session that was worked in and cannot be found is not one that never
/// was: more likely we look in the wrong place.
pub fn judge(reading: &Reading, worked_in: bool) -> (Standing, String) {
    match &reading.prompt {
        Seen::Unclear(why) => (Standing::Unknown, why.clone()),
        Seen::Present(standing) => (*standing, String::new()),
        Seen::Absent if worked_in && reading.session == Session::Missing => (
            Standing::Unknown,
            "it was worked in, and its transcript is nowhere to be found".into(),
        ),
        Seen::Absent => (Standing::NotTaken, String::new()),
    }
}
