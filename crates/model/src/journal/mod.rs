//! The journal of a dispatch: one markdown file that a person or another agent can read when every
//! process is dead.
//!
//! ```text
//! # Journal: login
//! Spec: docs/specs/login.md            (only where there is one)
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
//! Two hands write the same file. The `[harness]` lines are a function of the events
//! ([`harness_line`]), so they can always be restored ([`reconcile()`]); every other line belongs
//! to an agent or a person, is never lost, and becomes an event once ([`agent_lines`]). Who is at
//! the file decides what we may do to it ([`writer_detection`]).

mod lines;
mod reconcile;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub mod writer_detection;

pub use lines::harness_line;
pub use reconcile::{agent_lines, reconcile};

use crate::dispatch::{Dispatch, Phase};
use crate::event::FinalState;
use jiff::{Timestamp, tz::Offset};
use std::fmt;

/// Longest entry taken into an event, in bytes; the file keeps the whole.
pub const ENTRY_LIMIT: usize = 2000;

pub(crate) const TITLE: &str = "# Journal:";
pub(crate) const LOG: &str = "## Log";

/// What stands above the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub feature: String,
    pub spec: Option<String>,
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

/// The status a dispatch's journal is to show. `partial` is `failed`, as in the exit codes: the
/// journal has no word between, and what is left to do must not look done.
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

/// A new journal, up to and with the empty line below `## Log`. Times are shown at `offset`.
pub fn header(header: &Header, status: Status, offset: Offset) -> String {
    let mut text = String::new();
    for (key, value) in fields(header, status, offset) {
        text.push_str(&field(key, &value));
    }
    text.push_str("\n## Log\n\n");
    text
}

/// The header's lines in order: the key as it begins the line, and the value.
pub(crate) fn fields(
    header: &Header,
    status: Status,
    offset: Offset,
) -> Vec<(&'static str, String)> {
    let started =
        header.started.to_zoned(offset.to_time_zone()).strftime("%Y-%m-%d %H:%M").to_string();
    let mut fields = vec![(TITLE, one_line(&header.feature))];
    fields.extend(header.spec.as_ref().map(|spec| ("Spec:", one_line(spec))));
    fields.push(("Project:", one_line(&header.project)));
    fields.push(("Branch:", one_line(&header.branch)));
    fields.push(("Started:", started));
    fields.push(("Status:", status.to_string()));
    fields
}

pub(crate) fn field(key: &str, value: &str) -> String {
    if value.is_empty() { format!("{key}\n") } else { format!("{key} {value}\n") }
}

/// Text from outside must not break out of its line.
pub(crate) fn one_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// One journal in a line, for `journal --summary`.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Summary {
    pub feature: Option<String>,
    pub spec: Option<String>,
    pub project: Option<String>,
    pub branch: Option<String>,
    pub started: Option<String>,
    pub status: Option<String>,
    /// Lines of the log that begin with `- `.
    pub entries: usize,
    pub last_entry: Option<String>,
    pub last_agent_entry: Option<String>,
}

/// Reads what a journal says about itself. A damaged one yields less, never an error.
pub fn summarize(text: &str) -> Summary {
    let mut summary = Summary::default();
    let (head, log) = match text.lines().position(|line| line.trim_end() == LOG) {
        Some(at) => (at, at + 1),
        None => (text.lines().count(), 0),
    };
    for line in text.lines().take(head) {
        let slots = [
            (TITLE, &mut summary.feature),
            ("Spec:", &mut summary.spec),
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
