//! Beads in the store of the `tbd` program (npm `get-tbd`). This module reads its files as beads,
//! and translates a change to beads into calls of its command line.
//!
//! | here | in tbd |
//! |---|---|
//! | `A` depends on `B` | `{type: blocks, target: A}` is on **B** |
//! | `key` and `staged` | labels `muleteer-key:…` and `muleteer-staged:…` |
//! | `no_change` | label `muleteer-no-change` |
//! | deleted | closed, with the label `muleteer-discarded`: tbd deletes nothing |
//! | fields that only `issues.jsonl` has | `extensions.muleteer` of the imported issue |
//!
//! The calls are the difference between the stored state and the wanted state. A repeated operation
//! therefore skips what a killed process has done already, and does only the rest.

mod calls;
mod import;
pub(crate) mod marks;
mod read;

use crate::beads::tbd::marks::{KEY, NO_CHANGE, STAGED};
use crate::beads::{Bead, Beads, Status};
use jiff::Timestamp;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

pub use calls::{Call, File, calls, check};
pub use import::import;
pub use marks::MARK;
pub use read::{Issues, read};

/// The length limit of tbd.
const TITLE_LIMIT: usize = 500;
const BODY_LIMIT: usize = 50_000;
/// Begins the notes in an issue's file. A line of a description that looks like it is changed a
/// little.
const NOTES: &str = "## Notes";
/// Issue fields that `issues.jsonl` has under the same names.
const SHARED: [&str; 6] =
    ["assignee", "created_by", "spec_path", "due_date", "deferred_until", "notes"];

/// All beads of tbd by the ids that it shows, and its internal ids.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub beads: Beads,
    internal: BTreeMap<String, String>,
}

/// Returns a field as tbd stores it; `None` if tbd cannot store it.
fn shared(extra: &Map<String, Value>, name: &str) -> Option<String> {
    let text = extra.get(name)?.as_str().map(str::trim).filter(|text| !text.is_empty())?;
    if matches!(name, "due_date" | "deferred_until") { utc(text) } else { Some(text.into()) }
}

fn utc(text: &str) -> Option<String> {
    text.parse::<Timestamp>().ok().map(|at| at.to_string())
}

fn status(status: &Status) -> &str {
    match status {
        over if over.is_over() => "closed",
        // `pinned` of beads never ends, and nobody works on it.
        Status::Other(name) if matches!(name.as_str(), "deferred" | "pinned") => "deferred",
        // `hooked` of beads: an agent has it.
        Status::Other(name) if name == "hooked" => "in_progress",
        Status::Other(_) => "open",
        known => known.as_str(),
    }
}

/// The issue types of tbd.
const KINDS: [&str; 5] = ["bug", "task", "feature", "chore", "epic"];

fn kind(kind: &str) -> &str {
    if KINDS.contains(&kind) { kind } else { "task" }
}

fn title(text: &str) -> String {
    text.chars().take(TITLE_LIMIT).collect()
}

/// Returns a description as tbd stores it: trimmed, and without a line that would begin the notes.
fn body(text: &str) -> String {
    let lines = text
        .trim()
        .lines()
        .map(|line| if line.eq_ignore_ascii_case(NOTES) { "##  Notes" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns a bead's labels, including Muleteer's own.
fn labels(bead: &Bead) -> BTreeSet<String> {
    let marks = [
        bead.key.as_ref().map(|key| format!("{KEY}{key}")),
        bead.staged.as_ref().map(|staged| format!("{STAGED}{staged}")),
        bead.no_change.then(|| NO_CHANGE.into()),
    ];
    bead.labels.iter().cloned().chain(marks.into_iter().flatten()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
