//! The journal of a dispatch: one Markdown file that a person or another agent can read when every
//! process is dead.
//!
//! ```text
//! # Journal: login
//! Spec: docs/specs/login.md            (only where there is one)
//! Task: Users log in with a password   (the title of the dispatch)
//! Project: /work/shop
//! Branch: muleteer/abcd2345
//! Started: 2026-02-17 12:34
//! Status: in-progress
//!
//! ## Log
//!
//! - 12:34 — [harness] attempt 1 started
//! - 12:35 — [agent] Starting §1
//! ```
//!
//! Muleteer and the agent write the same file. The `[harness]` lines are a function of the events
//! ([`harness_line`]), so they can always be restored ([`reconcile()`]). Every other line belongs
//! to an agent or a person, is never lost, and becomes exactly one event ([`agent_lines`]). While
//! another writer has the file open, Muleteer does not change it ([`writer_detection`]).

mod archive;
mod lines;
mod reconcile;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod writer_detection;

pub use archive::archived;
pub use lines::harness_line;
pub use reconcile::{agent_lines, reconcile};

use crate::dispatch::{Dispatch, Phase};
use crate::event::FinalState;
pub(crate) use crate::text::one_line::one_line;
use jiff::{Timestamp, tz::Offset};
use std::fmt;

/// The limit of a journal, in bytes. The daemon leaves a larger file alone from then on, and
/// records a fault.
pub const FILE_LIMIT: u64 = 8 * 1024 * 1024;
/// The longest entry in an event, in bytes; the file has the whole entry.
pub const ENTRY_LIMIT: usize = 2000;

pub(crate) const TITLE: &str = "# Journal:";
pub(crate) const LOG: &str = "## Log";
pub(crate) const SPEC: &str = "Spec:";
pub(crate) const TASK: &str = "Task:";

/// The header above the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub feature: String,
    /// The file that the task is from.
    pub spec: Option<String>,
    /// The title of the task.
    pub task: Option<String>,
    pub project: String,
    pub branch: String,
    pub started: Timestamp,
}

/// The `Status:` line (contract.md, "States and outcomes").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    InProgress,
    Completed,
    Failed,
    Blocked,
    Stalled,
    Killed,
}

impl Status {
    pub const ALL: [Self; 6] = [
        Self::InProgress,
        Self::Completed,
        Self::Failed,
        Self::Blocked,
        Self::Stalled,
        Self::Killed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in-progress",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Blocked => "blocked",
            Self::Stalled => "stalled",
            Self::Killed => "killed",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns the status for a dispatch's journal. `partial` becomes `failed`, as in the exit codes:
/// the journal has no word for it, and unfinished work must not look done.
pub fn status_of(dispatch: &Dispatch) -> Status {
    match &dispatch.phase {
        Phase::Finished { state } => match state {
            FinalState::Success => Status::Completed,
            FinalState::Partial | FinalState::Failed => Status::Failed,
            FinalState::Blocked => Status::Blocked,
            FinalState::Killed => Status::Killed,
            FinalState::Stalled => Status::Stalled,
        },
        _ => Status::InProgress,
    }
}

/// Returns the text of a new journal through the empty line below `## Log`. Times are at `offset`.
pub fn header(header: &Header, status: Status, offset: Offset) -> String {
    let mut text = String::new();
    for (key, value) in fields(header, status, offset) {
        text.push_str(&field(key, &value));
    }
    text.push_str("\n## Log\n\n");
    text
}

/// Returns the header's lines in order: the key that begins the line, and the value.
pub(crate) fn fields(
    header: &Header,
    status: Status,
    offset: Offset,
) -> Vec<(&'static str, String)> {
    let started =
        header.started.to_zoned(offset.to_time_zone()).strftime("%Y-%m-%d %H:%M").to_string();
    let mut fields = vec![(TITLE, one_line(&header.feature))];
    fields.extend(header.spec.as_ref().map(|spec| (SPEC, one_line(spec))));
    fields.extend(header.task.as_ref().map(|task| (TASK, one_line(task))));
    fields.push(("Project:", one_line(&header.project)));
    fields.push(("Branch:", one_line(&header.branch)));
    fields.push(("Started:", started));
    fields.push(("Status:", status.to_string()));
    fields
}

pub(crate) fn field(key: &str, value: &str) -> String {
    if value.is_empty() { format!("{key}\n") } else { format!("{key} {value}\n") }
}

/// The summary of one journal, for `journal --summary`.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Summary {
    pub feature: Option<String>,
    pub spec: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub project: Option<String>,
    pub branch: Option<String>,
    pub started: Option<String>,
    pub status: Option<String>,
    /// The number of lines in the log that begin with `- `.
    pub entries: usize,
    pub last_entry: Option<String>,
    pub last_agent_entry: Option<String>,
}

/// Parses a journal's header and log. A damaged journal yields less, never an error.
pub fn summarize(text: &str) -> Summary {
    let mut summary = Summary::default();
    let (head, log) = match text.lines().position(|line| line.trim_end() == LOG) {
        Some(at) => (at, at + 1),
        None => (text.lines().count(), 0),
    };
    for line in text.lines().take(head) {
        let slots = [
            (TITLE, &mut summary.feature),
            (SPEC, &mut summary.spec),
            (TASK, &mut summary.task),
            ("Project:", &mut summary.project),
            ("Branch:", &mut summary.branch),
            ("Started:", &mut summary.started),
            ("Status:", &mut summary.status),
        ];
        for (key, slot) in slots {
            if let Some(value) = line.strip_prefix(key)
                && slot.is_none()
            {
                *slot = Some(value.trim().to_string()).filter(|value| !value.is_empty());
            }
        }
    }
    for line in text.lines().skip(log) {
        let Some(entry) = line.strip_prefix("- ") else { continue };
        let entry = entry.trim_end();
        summary.entries += 1;
        summary.last_entry = Some(crate::agent::event::cut(entry, ENTRY_LIMIT));
        if !entry.contains("[harness]") {
            summary.last_agent_entry.clone_from(&summary.last_entry);
        }
    }
    summary
}
