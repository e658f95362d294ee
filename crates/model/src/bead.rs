//! Beads: the nodes of a run's dependency graph, with the field names of beads' `issues.jsonl`, and
//! every operation on a set of them as a pure function ([`apply`]). A store only keeps what comes out.

use crate::graph::Graph;
use crate::schedule::Age;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub const TITLE_LIMIT: usize = 500;
pub const TEXT_LIMIT: usize = 256 * 1024;
pub const LABELS_LIMIT: usize = 64;
/// Beads of one repository.
pub const BEADS_LIMIT: usize = 200_000;
/// Carried by beads that are noted for the judge and not worked on.
pub const OBSERVATION: &str = "observation";
/// The only kind of dependency that holds a bead back.
pub const BLOCKS: &str = "blocks";
/// What a bead can be made or called (contract.md, "Beads"); one that comes from elsewhere keeps what it is.
pub const TYPES: [&str; 4] = ["bug", "task", "feature", "chore"];

/// The label that puts a bead into a run.
pub fn run_label(run: &str) -> String {
    format!("run:{run}")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bead {
    pub id: String,
    pub title: String,
    #[serde(default)]
    pub description: String,
    pub status: Status,
    #[serde(default = "default_priority")]
    pub priority: u8,
    #[serde(default = "default_type")]
    pub issue_type: String,
    #[serde(default)]
    pub labels: Vec<String>,
    #[serde(default)]
    pub dependencies: Vec<Dependency>,
    /// RFC 3339, kept as it was written: an import must come out again byte for byte.
    pub created_at: String,
    #[serde(default)]
    pub updated_at: String,
    #[serde(default)]
    pub closed_at: Option<String>,
    #[serde(default)]
    pub close_reason: Option<String>,
    /// Closed as needing no change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_change: bool,
    /// Made by this effect of a run: asked for again, it is answered and not repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Part of a decomposition that is not accepted yet, and hidden from all but its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub staged: Option<String>,
    /// Fields of other programs, kept.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

fn default_priority() -> u8 {
    2
}

fn default_type() -> String {
    "task".into()
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Open,
    InProgress,
    Blocked,
    Closed,
    /// Of another program (`deferred`, …): kept, and never worked on.
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

    /// # Errors
    /// A word that is none of the four.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        match text {
            "open" => Ok(Self::Open),
            "in_progress" | "in-progress" => Ok(Self::InProgress),
            "blocked" => Ok(Self::Blocked),
            "closed" => Ok(Self::Closed),
            _ => Err(Fault::input(format!("`{text}` is no status"), "open, in_progress, blocked or closed")),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dependency {
    pub issue_id: String,
    pub depends_on_id: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Bead {
    /// The beads that hold this one back while they are not closed.
    pub fn blockers(&self) -> impl Iterator<Item = &str> {
        self.dependencies
            .iter()
            .filter(|dependency| dependency.kind == BLOCKS && dependency.issue_id == self.id)
            .map(|dependency| dependency.depends_on_id.as_str())
    }

    pub fn has_label(&self, label: &str) -> bool {
        self.labels.iter().any(|known| known == label)
    }

    /// A run with this label may work on it: it is open, or begun by that very run. What is deferred, blocked or
    /// in somebody's hands is nobody's to give out.
    pub fn is_free(&self, own: &str) -> bool {
        let begun = self.status == Status::InProgress && self.has_label(own);
        (self.status == Status::Open || begun) && self.staged.is_none() && !self.is_observation()
    }

    /// What is older comes before it.
    pub fn age(&self) -> (Age, String) {
        (Age::of(&self.created_at), self.id.clone())
    }

    pub fn is_observation(&self) -> bool {
        self.has_label(OBSERVATION)
    }
}

/// Which open beads a run would be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Of the label asked for.
    pub selected: usize,
    /// Of no run at all.
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
        let selected = |label: &str| open().filter(|bead| bead.has_label(label) && bead.is_free("")).count();
        Self {
            selected: label.map_or(0, selected),
            unscoped: open().filter(|bead| !bead.labels.iter().any(|label| label.starts_with("run:"))).count(),
        }
    }
}

pub type Beads = BTreeMap<String, Bead>;

/// What is wrong with an operation; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Fault {
    pub code: String,
    pub message: String,
    pub hint: String,
}

impl Fault {
    pub fn new(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), hint: hint.into() }
    }

    fn input(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new("E_BAD_INPUT", message, hint)
    }
}

/// Everything that can be asked of a set of beads.
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
        /// Staged ones of this mark are shown too.
        #[serde(default)]
        staged: Option<String>,
    },
    /// Open, and nothing holds them back; in the order in which they would be worked on.
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
    /// A decomposition is accepted: its beads are there for all.
    Accept {
        staged: String,
    },
    /// What a decomposition that came to nothing has made is taken away.
    Discard {
        run: String,
        keep: Option<String>,
    },
}

/// What an operation comes to: beads to put in place of what was, ids to take away, and the answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Change {
    pub put: Vec<Bead>,
    pub delete: Vec<String>,
    pub answer: Answer,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The beads shown, listed, made or changed.
    pub beads: Vec<Bead>,
    /// Said to a person; not an error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Answer {
    fn of(bead: Bead) -> Self {
        Self { beads: vec![bead], warnings: vec![] }
    }
}

/// Finds a bead by its id, by the key of the effect that made it, or by a unique beginning of its id.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn find<'a>(beads: &'a Beads, id: &str) -> Result<&'a Bead, Fault> {
    if let Some(bead) = beads.get(id) {
        return Ok(bead);
    }
    // Where the store chooses ids, a run knows those of its own beads by key only.
    if let Some(bead) = beads.values().find(|bead| bead.key.as_deref() == Some(id)) {
        return Ok(bead);
    }
    let mut matching = beads
        .range(id.to_string()..)
        .take_while(|(known, _)| known.starts_with(id))
        .map(|(_, b)| b);
    match (matching.next(), matching.next()) {
        (Some(bead), None) if !id.is_empty() => Ok(bead),
        (Some(_), Some(_)) if !id.is_empty() => {
            Err(Fault::new("E_AMBIGUOUS", format!("more than one bead begins with `{id}`"), "give more of the id"))
        }
        _ => Err(Fault::new("E_NOT_FOUND", format!("there is no bead `{id}`"), "`muleteer bead list` shows them")),
    }
}

/// What `op` does to `beads`. `fresh` is an id nobody has; `now` is the present.
///
/// # Errors
/// What is wrong with it.
pub fn apply(beads: &Beads, op: &Op, now: Timestamp, fresh: &str) -> Result<Change, Fault> {
    let now = format!("{now:.3}");
    match op {
        Op::Create { .. } => create(beads, op, &now, fresh),
        Op::Show { id } => Ok(Change { answer: Answer::of(find(beads, id)?.clone()), ..Change::default() }),
        Op::List { labels, status, staged } => {
            let status = status.as_deref().map(Status::parse).transpose()?;
            let mut found: Vec<Bead> = beads
                .values()
                .filter(|bead| bead.staged.is_none() || bead.staged == *staged)
                .filter(|bead| labels.iter().all(|label| bead.has_label(label)))
                .filter(|bead| status.as_ref().is_none_or(|status| bead.status == *status))
                .cloned()
                .collect();
            found.sort_by_cached_key(Bead::age);
            Ok(Change { answer: Answer { beads: found, warnings: vec![] }, ..Change::default() })
        }
        Op::Ready { labels } => {
            Ok(Change { answer: Answer { beads: ready(beads, labels), warnings: vec![] }, ..Change::default() })
        }
        Op::Update { .. } => update(beads, op, &now),
        Op::Close { id, reason, no_change } => {
            let before = find(beads, id)?;
            check_text("the reason", reason, TEXT_LIMIT)?;
            let mut bead = before.clone();
            if bead.status != Status::Closed {
                bead.status = Status::Closed;
                bead.closed_at = Some(now.clone());
            }
            if !reason.is_empty() {
                bead.close_reason = Some(reason.clone());
            }
            bead.no_change = *no_change;
            // Closed again it stays closed since when it was; what is said anew is added.
            if bead == *before {
                return Ok(Change { answer: Answer::of(bead), ..Change::default() });
            }
            Ok(put(bead, &now))
        }
        Op::Reopen { id } => {
            let mut bead = find(beads, id)?.clone();
            if bead.status == Status::Open {
                return Ok(Change { answer: Answer::of(bead), ..Change::default() });
            }
            open(&mut bead, Status::Open);
            Ok(put(bead, &now))
        }
        Op::DepAdd { id, on } => dep_add(beads, id, on, &now),
        Op::DepRm { id, on } => {
            let mut bead = find(beads, id)?.clone();
            let on = find(beads, on).map_or(on.clone(), |bead| bead.id.clone());
            let before = bead.dependencies.len();
            bead.dependencies.retain(|known| known.depends_on_id != on);
            if bead.dependencies.len() == before {
                return Err(Fault::new("E_NOT_FOUND", format!("{} does not depend on {on}", bead.id), ""));
            }
            Ok(put(bead, &now))
        }
        Op::Import { beads: new } => import(beads, new),
        Op::Accept { staged } => {
            let put: Vec<Bead> = beads
                .values()
                .filter(|bead| bead.staged.as_ref() == Some(staged))
                .map(|bead| Bead { staged: None, ..bead.clone() })
                .collect();
            Ok(Change { answer: Answer { beads: put.clone(), warnings: vec![] }, put, delete: vec![] })
        }
        Op::Discard { run, keep } => {
            let mark = format!("{run}:");
            let doomed = |bead: &&Bead| {
                bead.staged.as_ref().is_some_and(|staged| staged.starts_with(&mark)) && bead.staged != *keep
            };
            let delete = beads.values().filter(doomed).map(|bead| bead.id.clone()).collect();
            Ok(Change { delete, ..Change::default() })
        }
    }
}

fn put(mut bead: Bead, now: &str) -> Change {
    bead.updated_at = now.into();
    Change { answer: Answer::of(bead.clone()), put: vec![bead], delete: vec![] }
}

fn open(bead: &mut Bead, status: Status) {
    bead.status = status;
    bead.closed_at = None;
    bead.close_reason = None;
    bead.no_change = false;
}

fn create(beads: &Beads, op: &Op, now: &str, fresh: &str) -> Result<Change, Fault> {
    let Op::Create { title, description, issue_type, priority, labels, depends_on, key, staged } = op else {
        return Ok(Change::default());
    };
    if let Some(key) = key
        && let Some(known) = beads.values().find(|bead| bead.key.as_ref() == Some(key))
    {
        return made_before(beads, known, depends_on, now);
    }
    let title = title.trim();
    if title.is_empty() {
        return Err(Fault::input("the title is empty", "give --title TEXT"));
    }
    check_text("the title", title, TITLE_LIMIT)?;
    check_text("the description", description, TEXT_LIMIT)?;
    check_type(issue_type)?;
    check_priority(*priority)?;
    if beads.len() >= BEADS_LIMIT {
        return Err(Fault::input(format!("there are {BEADS_LIMIT} beads already"), "export and remove old ones"));
    }
    let mut own: Vec<String> = Vec::new();
    for label in labels {
        add_label(&mut own, label)?;
    }
    let mut dependencies = Vec::new();
    for on in depends_on {
        dependencies.push(blocks(fresh, &find(beads, on)?.id));
    }
    let bead = Bead {
        id: fresh.into(),
        title: title.into(),
        description: description.clone(),
        status: Status::Open,
        priority: *priority,
        issue_type: issue_type.clone(),
        labels: own,
        dependencies,
        created_at: now.into(),
        updated_at: now.into(),
        closed_at: None,
        close_reason: None,
        no_change: false,
        key: key.clone(),
        staged: staged.clone(),
        extra: Map::new(),
    };
    Ok(put(bead, now))
}

/// The answer to what was asked before. A store that makes a bead in steps may have been cut off before the
/// last: what it is to wait for is added then.
fn made_before(beads: &Beads, known: &Bead, depends_on: &[String], now: &str) -> Result<Change, Fault> {
    let mut bead = known.clone();
    for on in depends_on {
        let on = &find(beads, on)?.id;
        if !bead.blockers().any(|known| known == on) {
            bead.dependencies.push(blocks(&known.id, on));
        }
    }
    if bead == *known {
        return Ok(Change { answer: Answer::of(bead), ..Change::default() });
    }
    Ok(put(bead, now))
}

fn update(beads: &Beads, op: &Op, now: &str) -> Result<Change, Fault> {
    let Op::Update { id, title, description, status, priority, issue_type, add_labels, remove_labels } = op else {
        return Ok(Change::default());
    };
    let mut bead = find(beads, id)?.clone();
    if let Some(title) = title {
        check_text("the title", title, TITLE_LIMIT)?;
        if title.trim().is_empty() {
            return Err(Fault::input("the title is empty", ""));
        }
        bead.title = title.trim().into();
    }
    if let Some(description) = description {
        check_text("the description", description, TEXT_LIMIT)?;
        bead.description.clone_from(description);
    }
    if let Some(priority) = priority {
        check_priority(*priority)?;
        bead.priority = *priority;
    }
    if let Some(kind) = issue_type {
        check_type(kind)?;
        bead.issue_type.clone_from(kind);
    }
    if let Some(status) = status {
        let status = Status::parse(status)?;
        if status == Status::Closed {
            bead.closed_at.get_or_insert_with(|| now.to_string());
            bead.status = status;
        } else if bead.status != status {
            open(&mut bead, status);
        }
    }
    for label in add_labels {
        add_label(&mut bead.labels, label)?;
    }
    bead.labels.retain(|label| !remove_labels.contains(label));
    Ok(put(bead, now))
}

fn dep_add(beads: &Beads, id: &str, on: &str, now: &str) -> Result<Change, Fault> {
    let mut bead = find(beads, id)?.clone();
    let on = find(beads, on)?.id.clone();
    if on == bead.id {
        return Err(Fault::new("E_GRAPH_CYCLE", format!("{on} cannot depend on itself"), ""));
    }
    if bead.blockers().any(|known| known == on) {
        return Ok(Change { answer: Answer::of(bead), ..Change::default() });
    }
    bead.dependencies.push(blocks(&bead.id, &on));
    let mut after = beads.clone();
    after.insert(bead.id.clone(), bead.clone());
    let mut change = put(bead, now);
    // Not refused: whoever builds a graph may mend it in the next step. A run refuses it.
    let cycle = Graph::of_beads(after.values()).cycle_through(&change.put[0].id);
    change
        .answer
        .warnings
        .extend(cycle.map(|chain| format!("this closes a cycle: {}", chain.join(" → "))));
    Ok(change)
}

fn blocks(id: &str, on: &str) -> Dependency {
    Dependency { issue_id: id.into(), depends_on_id: on.into(), kind: BLOCKS.into(), extra: Map::new() }
}

/// Takes beads over as they are. One that is known by its id is replaced, if it is not the same.
fn import(beads: &Beads, new: &[Bead]) -> Result<Change, Fault> {
    let (mut seen, mut put, mut warnings) = (BTreeSet::new(), Vec::new(), Vec::new());
    for bead in new {
        let id = &bead.id;
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if id.is_empty() || id.len() > 100 || !id.chars().all(fine) || id.starts_with(['-', '.']) {
            return Err(Fault::input(format!("`{id}` cannot be a bead's id"), "letters, digits, `-`, `_` and `.`"));
        }
        check_foreign(bead)?;
        if !seen.insert(id) {
            return Err(Fault::input(format!("{id} is there twice"), "every id may stand on one line only"));
        }
        match beads.get(id) {
            Some(known) if known == bead => {}
            Some(known) if is_newer(known, bead) => {
                warnings.push(format!("{id} was changed here since ({}): it is left as it is", known.updated_at));
            }
            _ => put.push(bead.clone()),
        }
    }
    Ok(Change { answer: Answer { beads: put.clone(), warnings }, put, delete: vec![] })
}

/// Checks what another program wrote, as far as we would go by it.
///
/// # Errors
/// What is wrong, with the field's name.
pub fn check_foreign(bead: &Bead) -> Result<(), Fault> {
    check_text("`title`", &bead.title, TITLE_LIMIT * 4)?;
    if bead.title.trim().is_empty() {
        return Err(Fault::input("`title` is empty", "say what is to be done"));
    }
    if bead.priority > 4 {
        return Err(Fault::input(format!("`priority` is {}", bead.priority), "0 (most urgent) to 4"));
    }
    let times = [("created_at", Some(&bead.created_at)), ("updated_at", Some(&bead.updated_at))];
    for (name, time) in times.into_iter().chain([("closed_at", bead.closed_at.as_ref())]) {
        if let Some(time) = time.filter(|time| time.parse::<Timestamp>().is_err()) {
            return Err(Fault::input(format!("`{name}` is no time: {time:?}"), "like 2026-01-31T12:00:00Z"));
        }
    }
    Ok(())
}

fn is_newer(known: &Bead, other: &Bead) -> bool {
    match (known.updated_at.parse::<Timestamp>(), other.updated_at.parse::<Timestamp>()) {
        (Ok(known), Ok(other)) => known > other,
        _ => false,
    }
}

fn ready(beads: &Beads, labels: &[String]) -> Vec<Bead> {
    let graph = Graph::of_beads(beads.values());
    let impact = graph.impact();
    let rank = |bead: &Bead| graph.index(&bead.id).map_or(0, |at| impact[at]);
    let is_closed = |id: &str| beads.get(id).is_some_and(|bead| bead.status == Status::Closed);
    let mut found: Vec<Bead> = beads
        .values()
        .filter(|bead| bead.status == Status::Open && bead.staged.is_none() && !bead.is_observation())
        .filter(|bead| labels.iter().all(|label| bead.has_label(label)))
        .filter(|bead| bead.blockers().all(is_closed))
        .cloned()
        .collect();
    found.sort_by_cached_key(|bead| (Reverse(rank(bead)), bead.priority, bead.age()));
    found
}

fn check_text(what: &str, text: &str, limit: usize) -> Result<(), Fault> {
    if text.len() > limit {
        return Err(Fault::input(format!("{what} is {} bytes long", text.len()), format!("at most {limit}")));
    }
    if text.contains('\0') {
        return Err(Fault::input(format!("{what} holds a NUL"), ""));
    }
    Ok(())
}

fn check_type(kind: &str) -> Result<(), Fault> {
    if TYPES.contains(&kind) {
        return Ok(());
    }
    let hint = format!("{}; an imported bead keeps the type it came with", TYPES.join(", "));
    Err(Fault::input(format!("`{kind}` is no type that a bead can be given"), hint))
}

fn check_priority(priority: u8) -> Result<(), Fault> {
    if priority <= 4 { Ok(()) } else { Err(Fault::input(format!("{priority} is no priority"), "0 (first) to 4")) }
}

fn add_label(labels: &mut Vec<String>, label: &str) -> Result<(), Fault> {
    let fine = !label.is_empty() && label.len() <= 100 && !label.contains([',', '\n', '\0']) && label.trim() == label;
    if crate::tbd::is_mark(label) {
        return Err(Fault::input(format!("`{label}` is a label of Muleteer's own"), "choose another"));
    }
    if !fine {
        return Err(Fault::input(format!("`{label}` cannot be a label"), "at most 100 characters, no comma"));
    }
    if labels.len() >= LABELS_LIMIT {
        return Err(Fault::input("too many labels", format!("at most {LABELS_LIMIT}")));
    }
    if !labels.iter().any(|known| known == label) {
        labels.push(label.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("a time")
    }

    fn run(beads: &mut Beads, op: &Op, fresh: &str) -> Answer {
        let change = apply(beads, op, at(beads.len() as i64), fresh).expect("applies");
        for bead in change.put {
            beads.insert(bead.id.clone(), bead);
        }
        for id in change.delete {
            beads.remove(&id);
        }
        change.answer
    }

    fn create(title: &str) -> Op {
        serde_json::from_value(serde_json::json!({"op": "create", "title": title})).expect("an op")
    }

    #[test]
    fn a_bead_lives_from_open_to_closed_and_back() {
        let mut beads = Beads::new();
        run(&mut beads, &create("one"), "aaaa");
        run(&mut beads, &create("two"), "bbbb");
        run(&mut beads, &Op::DepAdd { id: "a".into(), on: "bbbb".into() }, "");
        let ready = run(&mut beads, &Op::Ready { labels: vec![] }, "");
        assert_eq!(ready.beads.iter().map(|bead| bead.id.as_str()).collect::<Vec<_>>(), ["bbbb"]);
        run(&mut beads, &Op::Close { id: "bbbb".into(), reason: "did it".into(), no_change: false }, "");
        assert_eq!(beads["bbbb"].close_reason.as_deref(), Some("did it"));
        let since = beads["bbbb"].closed_at.clone();
        // Closed again: what is known stays, what is said anew is taken.
        run(&mut beads, &Op::Close { id: "bbbb".into(), reason: String::new(), no_change: true }, "");
        assert_eq!((beads["bbbb"].close_reason.as_deref(), beads["bbbb"].no_change), (Some("did it"), true));
        run(&mut beads, &Op::Close { id: "bbbb".into(), reason: "by hand".into(), no_change: true }, "");
        assert_eq!(beads["bbbb"].close_reason.as_deref(), Some("by hand"));
        assert_eq!(beads["bbbb"].closed_at, since);
        let ready = run(&mut beads, &Op::Ready { labels: vec![] }, "");
        assert_eq!(ready.beads[0].id, "aaaa");
        run(&mut beads, &Op::Reopen { id: "bbbb".into() }, "");
        assert_eq!((&beads["bbbb"].status, &beads["bbbb"].closed_at), (&Status::Open, &None));
    }

    #[test]
    fn labels_are_anded_staged_beads_are_hidden_and_keys_are_answered_not_repeated() {
        let mut beads = Beads::new();
        let op = |labels: &[&str], key: Option<&str>, staged: Option<&str>| Op::Create {
            title: "t".into(),
            description: String::new(),
            issue_type: "task".into(),
            priority: 1,
            labels: labels.iter().map(|label| (*label).to_string()).collect(),
            depends_on: vec![],
            key: key.map(Into::into),
            staged: staged.map(Into::into),
        };
        run(&mut beads, &op(&["x", "y"], Some("k"), None), "aaaa");
        run(&mut beads, &op(&["x"], None, Some("r:1")), "bbbb");
        assert_eq!(run(&mut beads, &op(&["x", "y"], Some("k"), None), "cccc").beads[0].id, "aaaa");
        let list = |labels: &[&str], staged: Option<&str>| Op::List {
            labels: labels.iter().map(|label| (*label).to_string()).collect(),
            status: None,
            staged: staged.map(Into::into),
        };
        assert_eq!(run(&mut beads, &list(&["x"], None), "").beads.len(), 1);
        assert_eq!(run(&mut beads, &list(&["x"], Some("r:1")), "").beads.len(), 2);
        assert_eq!(run(&mut beads, &list(&["x", "y"], Some("r:1")), "").beads.len(), 1);
        run(&mut beads, &Op::Discard { run: "r".into(), keep: Some("r:1".into()) }, "");
        assert!(beads.contains_key("bbbb"));
        run(&mut beads, &Op::Discard { run: "r".into(), keep: None }, "");
        assert!(!beads.contains_key("bbbb"));
    }

    #[test]
    fn faults_name_what_is_wrong() {
        let mut beads = Beads::new();
        run(&mut beads, &create("one"), "aabb");
        run(&mut beads, &create("two"), "aacc");
        let fault = |op: &Op| apply(&beads, op, at(0), "zzzz").expect_err("a fault").code;
        assert_eq!(fault(&Op::Show { id: "aa".into() }), "E_AMBIGUOUS");
        assert_eq!(fault(&Op::Show { id: "x".into() }), "E_NOT_FOUND");
        assert_eq!(fault(&Op::Show { id: String::new() }), "E_NOT_FOUND");
        assert_eq!(fault(&create("  ")), "E_BAD_INPUT");
        assert_eq!(fault(&Op::DepAdd { id: "aabb".into(), on: "aabb".into() }), "E_GRAPH_CYCLE");
        let list = Op::List { labels: vec![], status: Some("done".into()), staged: None };
        assert_eq!(fault(&list), "E_BAD_INPUT");
    }

    #[test]
    fn an_epic_is_kept_as_it_came_and_none_is_made() {
        let mut beads = Beads::new();
        run(&mut beads, &create("here"), "bd-1");
        let kept = Bead { id: "bd-2".into(), issue_type: "epic".into(), ..beads["bd-1"].clone() };
        run(&mut beads, &Op::Import { beads: vec![kept] }, "");
        run(&mut beads, &Op::Close { id: "bd-2".into(), reason: String::new(), no_change: false }, "");
        let change = |id: &str, title: Option<&str>, kind: Option<&str>| Op::Update {
            id: id.into(),
            title: title.map(Into::into),
            description: None,
            status: None,
            priority: None,
            issue_type: kind.map(Into::into),
            add_labels: vec![],
            remove_labels: vec![],
        };
        run(&mut beads, &change("bd-2", Some("renamed"), None), "");
        assert_eq!((beads["bd-2"].title.as_str(), beads["bd-2"].issue_type.as_str()), ("renamed", "epic"));
        let mut made = create("one");
        if let Op::Create { issue_type, .. } = &mut made {
            *issue_type = "epic".into();
        }
        for op in [made, change("bd-1", None, Some("epic"))] {
            let fault = apply(&beads, &op, at(0), "bd-3").expect_err("a fault");
            assert_eq!(fault.code, "E_BAD_INPUT");
            assert!(fault.hint.starts_with("bug, task, feature, chore;"), "{}", fault.hint);
        }
    }

    #[test]
    fn what_is_imported_is_checked_and_never_older_than_what_is_here() {
        let mut beads = Beads::new();
        run(&mut beads, &create("here"), "bd-1");
        let here = beads["bd-1"].clone();
        let with = |change: &dyn Fn(&mut Bead)| {
            let mut bead = here.clone();
            change(&mut bead);
            bead
        };
        let import = |bead: Bead| apply(&beads, &Op::Import { beads: vec![bead] }, at(9), "");
        let older = |bead: &mut Bead| {
            (bead.title, bead.updated_at) = ("older".into(), "1960-01-01T00:00:00+02:00".into());
        };
        let kept = import(with(&older)).expect("is left out");
        assert!(kept.put.is_empty() && kept.answer.warnings.len() == 1, "{kept:?}");
        let newer = |bead: &mut Bead| {
            (bead.title, bead.updated_at) = ("newer".into(), "2100-01-01T00:00:00Z".into());
        };
        assert_eq!(import(with(&newer)).expect("is taken").put[0].title, "newer");
        let refused = |field: &str, change: &dyn Fn(&mut Bead)| {
            let fault = import(with(change)).expect_err(field);
            assert!(fault.code == "E_BAD_INPUT" && fault.message.starts_with(field), "{fault:?}");
        };
        refused("`title`", &|bead| bead.title = " ".into());
        refused("`priority`", &|bead| bead.priority = 5);
        refused("`created_at`", &|bead| bead.created_at = "yesterday".into());
        refused("`updated_at`", &|bead| bead.updated_at = String::new());
        refused("`closed_at`", &|bead| bead.closed_at = Some("then".into()));
    }

    #[test]
    fn a_line_of_issues_jsonl_comes_out_as_it_went_in() {
        let line = r#"{"id":"bd-1","title":"T","description":"","status":"deferred","priority":1,"issue_type":"bug","labels":[],"dependencies":[{"issue_id":"bd-1","depends_on_id":"bd-2","type":"discovered-from","created_by":"me"}],"created_at":"2025-10-16T13:36:17.123456-07:00","updated_at":"2025-10-16T13:36:17-07:00","closed_at":null,"close_reason":null,"estimated_minutes":30,"comments":[{"id":1}]}"#;
        let bead: Bead = serde_json::from_str(line).expect("parses");
        assert_eq!(serde_json::to_string(&bead).expect("writes"), line);
        assert_eq!(bead.blockers().count(), 0);
    }
}
