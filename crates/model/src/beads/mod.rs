//! Beads: the nodes of a run's dependency graph. Their field names are those of beads'
//! `issues.jsonl`. Every operation on a set of beads is a pure function ([`apply`]); a store only
//! saves the results.

pub mod foreign;
pub mod graph;
pub mod graph_layout;
pub mod schedule;
pub mod tbd;

mod change;
mod names;

use crate::beads::schedule::Age;
pub use change::{apply, check_foreign};
use muleteer_protocol::ErrorCode;
pub use names::named;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub const TITLE_LIMIT: usize = 500;
pub const TEXT_LIMIT: usize = 256 * 1024;
pub const LABELS_LIMIT: usize = 64;
/// The most beads of one repository.
pub const BEADS_LIMIT: usize = 200_000;
/// The label of beads that are noted for the judge and not worked on.
pub const OBSERVATION: &str = "observation";
/// The only kind of dependency that blocks a bead.
pub const BLOCKS: &str = "blocks";
/// The types that a bead can be given (contract.md, "Beads"). An imported bead keeps its own type.
pub const TYPES: [&str; 4] = ["bug", "task", "feature", "chore"];

/// Returns the label that assigns a bead to a run.
pub fn run_label(run: &str) -> String {
    format!("run:{run}")
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "foreign::ReadBead")]
pub struct Bead {
    pub id: String,
    pub title: String,
    pub description: String,
    pub status: Status,
    pub priority: u8,
    pub issue_type: String,
    pub labels: Vec<String>,
    pub dependencies: Vec<Dependency>,
    /// RFC 3339, in its original spelling: an imported bead must be exported byte for byte. Empty
    /// if another program left it out.
    pub created_at: String,
    /// As `created_at`.
    pub updated_at: String,
    pub closed_at: Option<String>,
    pub close_reason: Option<String>,
    /// Closed as needing no change.
    pub no_change: bool,
    /// The idempotency key of the effect that created the bead. A repeated request returns this
    /// bead.
    pub key: Option<String>,
    /// The mark of a decomposition that is not accepted yet. The bead is hidden from all but its
    /// run.
    pub staged: Option<String>,
    /// Unknown fields of other programs, preserved. A known field that another program wrote as
    /// `null` is here too, and is written as `null` while it has its default.
    pub extra: Map<String, Value>,
}

fn default_priority() -> u8 {
    2
}

fn default_type() -> String {
    "task".into()
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    #[default]
    Open,
    InProgress,
    Blocked,
    Closed,
    /// A status of another program (`deferred`, …): preserved, and never worked on. [`foreign`]
    /// says which of them block other beads.
    #[serde(untagged)]
    Other(String),
}

impl Status {
    pub fn as_str(&self) -> &str {
        match self {
            Self::Open => "open",
            Self::InProgress => "in_progress",
            Self::Blocked => "blocked",
            Self::Closed => "closed",
            Self::Other(name) => name,
        }
    }

    /// Parses a status.
    ///
    /// # Errors
    /// A word that is none of the four.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "open" => Ok(Self::Open),
            "in_progress" | "in-progress" => Ok(Self::InProgress),
            "blocked" => Ok(Self::Blocked),
            "closed" => Ok(Self::Closed),
            _ => Err(Fault::input(
                format!("`{text}` is not a status"),
                "use open, in_progress, blocked or closed",
            )),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "foreign::ReadDependency")]
pub struct Dependency {
    /// Empty if another program left it out: the bead itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub issue_id: String,
    pub depends_on_id: String,
    /// Empty if another program left it out: [`BLOCKS`].
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// As [`Bead::extra`].
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Dependency {
    fn is_blocking(&self) -> bool {
        self.kind.is_empty() || self.kind == BLOCKS
    }
}

impl Bead {
    /// Returns the ids of the beads that block this one until they are closed.
    pub fn blockers(&self) -> impl Iterator<Item = &str> {
        let is_own = |id: &str| id.is_empty() || id == self.id;
        self.dependencies
            .iter()
            .filter(move |one| one.is_blocking() && is_own(&one.issue_id))
            .map(|dependency| dependency.depends_on_id.as_str())
    }

    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|known| known == label)
    }

    /// Returns whether a run with this label may work on the bead: it is open, or that run has
    /// begun it. Deferred and blocked beads, and those that another run has begun, are not
    /// available.
    pub fn is_free(&self, own: &str) -> bool {
        let begun = self.status == Status::InProgress && self.has_label(own);
        (self.status == Status::Open || begun) && self.staged.is_none() && !self.is_observation()
    }

    /// Returns the sort key by age; older beads come first.
    pub fn age(&self) -> (Age, String) {
        (Age::of(&self.created_at), self.id.clone())
    }

    pub fn is_observation(&self) -> bool {
        self.has_label(OBSERVATION)
    }
}

/// The open beads that a run would cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Beads with the requested label.
    pub selected: usize,
    /// Beads that belong to no run.
    pub unscoped: usize,
}

impl Scope {
    pub fn of(beads: &Beads, label: Option<&str>) -> Self {
        let open = || {
            beads.values().filter(|bead| {
                bead.staged.is_none()
                    && !matches!(bead.status, Status::Closed | Status::Other(_))
                    && !bead.is_observation()
            })
        };
        let selected =
            |label: &str| open().filter(|bead| bead.has_label(label) && bead.is_free("")).count();
        Self {
            selected: label.map_or(0, selected),
            unscoped: open()
                .filter(|bead| !bead.labels.iter().any(|label| label.starts_with("run:")))
                .count(),
        }
    }
}

pub type Beads = BTreeMap<String, Bead>;

/// The reason why an operation was rejected. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Fault {
    pub code: ErrorCode,
    pub message: String,
    pub hint: String,
}

impl Fault {
    pub fn new(code: ErrorCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code, message: message.into(), hint: hint.into() }
    }

    fn input(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(ErrorCode::BadInput, message, hint)
    }
}

/// The operations on a set of beads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    Create {
        title: String,
        #[serde(default)]
        description: String,
        #[serde(default = "default_type")]
        issue_type: String,
        #[serde(default = "default_priority")]
        priority: u8,
        #[serde(default)]
        labels: Vec<String>,
        #[serde(default)]
        depends_on: Vec<String>,
        #[serde(default)]
        key: Option<String>,
        #[serde(default)]
        staged: Option<String>,
    },
    Show {
        id: String,
    },
    List {
        #[serde(default)]
        labels: Vec<String>,
        #[serde(default)]
        status: Option<String>,
        /// Also list beads that are staged with this mark.
        #[serde(default)]
        staged: Option<String>,
    },
    /// Lists open, unblocked beads in the order in which they would be worked on.
    Ready {
        #[serde(default)]
        labels: Vec<String>,
    },
    Update {
        id: String,
        #[serde(default)]
        title: Option<String>,
        #[serde(default)]
        description: Option<String>,
        #[serde(default)]
        status: Option<String>,
        #[serde(default)]
        priority: Option<u8>,
        #[serde(default)]
        issue_type: Option<String>,
        #[serde(default)]
        add_labels: Vec<String>,
        #[serde(default)]
        remove_labels: Vec<String>,
    },
    Close {
        id: String,
        #[serde(default)]
        reason: String,
        #[serde(default)]
        no_change: bool,
    },
    Reopen {
        id: String,
    },
    DepAdd {
        id: String,
        on: String,
    },
    DepRm {
        id: String,
        on: String,
    },
    Import {
        beads: Vec<Bead>,
    },
    /// Accepts a decomposition: its beads become visible to all.
    Accept {
        staged: String,
    },
    /// Deletes the beads of a run's abandoned decompositions, except those with the mark `keep`.
    Discard {
        run: String,
        keep: Option<String>,
    },
}

/// The result of an operation: beads to insert or replace, ids to delete, and the answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub put: Vec<Bead>,
    pub delete: Vec<String>,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The beads shown, listed, created or changed.
    pub beads: Vec<Bead>,
    /// Warnings for people; not errors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Answer {
    fn of(bead: Bead) -> Self {
        Self { beads: vec![bead], warnings: vec![] }
    }
}

/// Finds a bead by its id, by the key of the effect that created it, or by a unique prefix of its
/// id.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn find<'a>(beads: &'a Beads, id: &str) -> Result<&'a Bead, Fault> {
    if let Some(bead) = beads.get(id) {
        return Ok(bead);
    }
    // Where the store chooses the ids, a run knows its own beads by key only.
    if let Some(bead) = beads.values().find(|bead| bead.key.as_deref() == Some(id)) {
        return Ok(bead);
    }
    let mut matching = beads
        .range(id.to_string()..)
        .take_while(|(known, _)| known.starts_with(id))
        .map(|(_, b)| b);
    match (matching.next(), matching.next()) {
        (Some(bead), None) if !id.is_empty() => Ok(bead),
        (Some(_), Some(_)) if !id.is_empty() => Err(Fault::new(
            ErrorCode::Ambiguous,
            format!("the ids of several beads begin with `{id}`"),
            "give a longer part of the id",
        )),
        _ => Err(Fault::new(
            ErrorCode::NotFound,
            format!("no bead `{id}`"),
            "run `muleteer bead list` to list them",
        )),
    }
}

#[cfg(test)]
mod tests;
