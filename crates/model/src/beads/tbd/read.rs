//! Reads the files of tbd as beads.

use crate::beads::tbd::marks::{DISCARDED, KEY, NO_CHANGE, STAGED, is_mark};
use crate::beads::tbd::{Known, NOTES, SHARED, body, kind, shared, status, title};
use crate::beads::{BLOCKS, Bead, Dependency, Status};
use crate::text::controls::{breaks_line, plain_line};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Map;
use std::collections::{BTreeMap, BTreeSet};

/// One issue as it is in its file.
#[derive(Debug, Clone, Deserialize)]
struct Issue {
    id: String,
    title: String,
    #[serde(default = "task")]
    kind: String,
    #[serde(default = "open")]
    status: String,
    #[serde(default = "middle")]
    priority: u8,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    dependencies: Vec<Link>,
    created_at: String,
    updated_at: String,
    closed_at: Option<String>,
    close_reason: Option<String>,
    assignee: Option<String>,
    created_by: Option<String>,
    spec_path: Option<String>,
    due_date: Option<String>,
    deferred_until: Option<String>,
    extensions: Option<Extensions>,
    #[serde(skip)]
    description: String,
    #[serde(skip)]
    notes: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Link {
    #[serde(rename = "type")]
    kind: String,
    target: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Extensions {
    muleteer: Option<Kept>,
}

/// A bead as it was imported, in JSON.
#[derive(Debug, Clone, Deserialize)]
struct Kept {
    bead: String,
}

fn task() -> String {
    "task".into()
}

fn open() -> String {
    "open".into()
}

fn middle() -> u8 {
    2
}

/// The issues of tbd by the names of their files, so that a changed file can be read alone.
#[derive(Debug, Clone, Default)]
pub struct Issues {
    issues: BTreeMap<String, Issue>,
    /// The parts of the ids that tbd shows, by the internal ids.
    shown: BTreeMap<String, String>,
}

impl Issues {
    /// Reads the file of an issue, in place of what was read from it before.
    ///
    /// # Errors
    /// Why it is not an issue.
    pub fn put(&mut self, file: &str, text: &str) -> Result<(), Unreadable> {
        let issue = parse(text)?;
        self.issues.insert(file.into(), issue);
        Ok(())
    }

    /// Forgets the issue of a file that is gone.
    pub fn remove(&mut self, file: &str) {
        self.issues.remove(file);
    }

    /// Reads `ids.yml`, in place of what was read from it before.
    ///
    /// # Errors
    /// Why it is unreadable.
    pub fn set_ids(&mut self, text: &str) -> Result<(), Unreadable> {
        let ids: BTreeMap<String, String> = match text.trim() {
            "" | "{}" => BTreeMap::new(),
            text => serde_saphyr::from_str(text)?,
        };
        self.shown = ids.into_iter().map(|(short, ulid)| (format!("is-{ulid}"), short)).collect();
        Ok(())
    }

    /// Returns whether each issue has an id that tbd shows. While tbd creates an issue it has none.
    pub fn is_whole(&self) -> bool {
        self.issues.values().all(|issue| self.shown.contains_key(&issue.id))
    }

    /// Returns the beads. `prefix` is the prefix of the ids that tbd shows.
    pub fn known(&self, prefix: &str) -> Known {
        let name = |internal: &String| match self.shown.get(internal) {
            Some(short) => format!("{prefix}-{short}"),
            None => internal.clone(),
        };
        let gone = |issue: &&Issue| issue.labels.iter().any(|label| label == DISCARDED);
        let issues: Vec<&Issue> = self.issues.values().filter(|issue| !gone(issue)).collect();
        let mut waits: BTreeMap<&String, Vec<String>> = BTreeMap::new();
        for issue in &issues {
            for link in issue.dependencies.iter().filter(|link| link.kind == BLOCKS) {
                waits.entry(&link.target).or_default().push(name(&issue.id));
            }
        }
        let exist: BTreeSet<String> = issues.iter().map(|issue| name(&issue.id)).collect();
        let mut known = Known::default();
        for issue in issues {
            let id = name(&issue.id);
            let on = waits.remove(&issue.id).unwrap_or_default();
            known.internal.insert(id.clone(), issue.id.clone());
            known.beads.insert(id.clone(), bead(issue.clone(), id, on, &exist));
        }
        known
    }
}

/// Reads the files that `tbd save` has written: the issues by file name, and `ids.yml`.
///
/// # Errors
/// The first file that is not an issue, and why.
pub fn read(
    files: &[(String, String)],
    ids: &str,
    prefix: &str,
) -> Result<Known, (String, String)> {
    let mut issues = Issues::default();
    issues.set_ids(ids).map_err(|error| ("ids.yml".to_string(), error.to_string()))?;
    for (file, text) in files {
        issues.put(file, text).map_err(|error| (file.clone(), error.to_string()))?;
    }
    Ok(issues.known(prefix))
}

/// Why a text is not a file of tbd.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error("it does not begin with `---`")]
    NoFrontMatter,
    #[error("its front matter is not closed")]
    Unended,
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::Error),
}

/// Parses an issue's file: front matter, description, and optional notes.
fn parse(text: &str) -> Result<Issue, Unreadable> {
    let rest = text.strip_prefix("---\n").ok_or(Unreadable::NoFrontMatter)?;
    let (front, body) = match rest.split_once("\n---\n") {
        Some(parts) => parts,
        None => (rest.strip_suffix("\n---").ok_or(Unreadable::Unended)?, ""),
    };
    let mut issue: Issue = serde_saphyr::from_str(front)?;
    let body = format!("\n{body}");
    let (description, notes) = match body.split_once(&format!("\n{NOTES}\n")) {
        Some((description, notes)) => (description, Some(notes.trim())),
        None => (body.as_str(), None),
    };
    issue.description = description.trim().into();
    issue.notes = notes.filter(|notes| !notes.is_empty()).map(Into::into);
    Ok(issue)
}

fn bead(issue: Issue, id: String, on: Vec<String>, exist: &BTreeSet<String>) -> Bead {
    let mark = |mark: &str| {
        issue.labels.iter().find_map(|label| label.strip_prefix(mark)).map(str::to_string)
    };
    let mut extra = Map::new();
    let fields = [
        &issue.assignee,
        &issue.created_by,
        &issue.spec_path,
        &issue.due_date,
        &issue.deferred_until,
        &issue.notes,
    ];
    for (name, value) in SHARED.iter().zip(fields) {
        if let Some(value) = value {
            extra.insert((*name).into(), value.clone().into());
        }
    }
    let closed = issue.status == "closed";
    let bead = Bead {
        title: issue.title,
        description: issue.description,
        status: Status::parse(&issue.status).unwrap_or(Status::Other(issue.status)),
        priority: issue.priority,
        issue_type: issue.kind,
        no_change: closed && issue.labels.iter().any(|label| label == NO_CHANGE),
        key: mark(KEY),
        staged: mark(STAGED),
        labels: issue.labels.into_iter().filter(|label| !is_mark(label)).collect(),
        dependencies: on.iter().map(|on| blocks(&id, on)).collect(),
        created_at: issue.created_at,
        updated_at: issue.updated_at,
        closed_at: issue.closed_at.filter(|_| closed),
        close_reason: issue.close_reason.filter(|_| closed),
        extra,
        id,
    };
    let kept = issue.extensions.and_then(|extensions| extensions.muleteer);
    let mut bead = match kept.and_then(|kept| serde_json::from_str::<Bead>(&kept.bead).ok()) {
        Some(kept) => as_imported(bead, kept, exist),
        None => bead,
    };
    // tbd accepts titles that Muleteer refuses; one of them must not stop a run.
    if bead.title.contains(breaks_line) {
        bead.title = plain_line(&bead.title);
    }
    bead
}

fn blocks(id: &str, on: &str) -> Dependency {
    Dependency {
        issue_id: id.into(),
        depends_on_id: on.into(),
        kind: BLOCKS.into(),
        extra: Map::new(),
    }
}

/// Restores the imported values of fields that tbd cannot store, unless they have changed since.
fn as_imported(mut bead: Bead, kept: Bead, exist: &BTreeSet<String>) -> Bead {
    let same = |one: &str, other: &str| match (one.parse::<Timestamp>(), other.parse::<Timestamp>())
    {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    };
    if same(&bead.created_at, &kept.created_at) {
        bead.created_at = kept.created_at;
    }
    if same(&bead.updated_at, &kept.updated_at) {
        bead.updated_at = kept.updated_at;
    }
    if let (Some(ours), Some(theirs)) = (&bead.closed_at, &kept.closed_at)
        && same(ours, theirs)
    {
        bead.closed_at = kept.closed_at;
    }
    if bead.status.as_str() == status(&kept.status) {
        bead.status = kept.status;
    }
    if bead.issue_type == kind(&kept.issue_type) {
        bead.issue_type = kept.issue_type;
    }
    if bead.priority == kept.priority.min(4) {
        bead.priority = kept.priority;
    }
    if bead.title == title(&kept.title) {
        bead.title = kept.title;
    }
    if bead.description == body(&kept.description) {
        bead.description = kept.description;
    }
    let sorted = |labels: &[String]| labels.iter().cloned().collect::<BTreeSet<_>>();
    if sorted(&bead.labels) == sorted(&kept.labels) {
        bead.labels = kept.labels;
    }
    let now: BTreeSet<String> = bead.blockers().map(Into::into).collect();
    let mut dependencies: Vec<Dependency> = kept
        .dependencies
        .into_iter()
        // tbd has no other kinds, and no dependencies on missing issues.
        .filter(|one| {
            !one.is_blocking()
                || now.contains(&one.depends_on_id)
                || !exist.contains(&one.depends_on_id)
        })
        .collect();
    let listed: BTreeSet<String> =
        dependencies.iter().map(|one| one.depends_on_id.clone()).collect();
    dependencies
        .extend(bead.dependencies.into_iter().filter(|one| !listed.contains(&one.depends_on_id)));
    bead.dependencies = dependencies;
    let mut extra = kept.extra;
    for name in SHARED {
        match bead.extra.remove(name) {
            // tbd stores a slightly different spelling of the same text.
            Some(value) if shared(&extra, name).as_deref() == value.as_str() => {}
            Some(value) => drop(extra.insert(name.into(), value)),
            None if shared(&extra, name).is_some() => drop(extra.remove(name)),
            None => {}
        }
    }
    bead.extra = extra;
    bead
}
