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

use crate::beads::{BLOCKS, Bead, Beads, Change, Dependency, Fault, Status};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Labels with this prefix belong to Muleteer and have the meanings in the table above.
pub const MARK: &str = "muleteer-";
const KEY: &str = "muleteer-key:";
const STAGED: &str = "muleteer-staged:";
const NO_CHANGE: &str = "muleteer-no-change";
const DISCARDED: &str = "muleteer-discarded";

/// The length limit of tbd.
const TITLE_LIMIT: usize = 500;
const BODY_LIMIT: usize = 50_000;
/// Begins the notes in an issue's file. A line of a description that looks like it is changed a
/// little.
const NOTES: &str = "## Notes";
/// Issue fields that `issues.jsonl` has under the same names.
const SHARED: [&str; 6] =
    ["assignee", "created_by", "spec_path", "due_date", "deferred_until", "notes"];

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

/// All beads of tbd by the ids that it shows, and its internal ids.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub beads: Beads,
    internal: BTreeMap<String, String>,
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
    let ids: BTreeMap<String, String> = match ids.trim() {
        "" | "{}" => BTreeMap::new(),
        text => serde_saphyr::from_str(text)
            .map_err(|error| ("ids.yml".to_string(), error.to_string()))?,
    };
    let shown: BTreeMap<String, String> = ids
        .into_iter()
        .map(|(short, ulid)| (format!("is-{ulid}"), format!("{prefix}-{short}")))
        .collect();
    let name = |internal: &String| shown.get(internal).unwrap_or(internal).clone();
    let mut issues = Vec::with_capacity(files.len());
    for (file, text) in files {
        let issue = parse(text).map_err(|error| (file.clone(), error.to_string()))?;
        if !issue.labels.iter().any(|label| label == DISCARDED) {
            issues.push(issue);
        }
    }
    let mut waits: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for issue in &issues {
        for link in issue.dependencies.iter().filter(|link| link.kind == BLOCKS) {
            waits.entry(link.target.clone()).or_default().push(name(&issue.id));
        }
    }
    let exist: BTreeSet<String> = issues.iter().map(|issue| name(&issue.id)).collect();
    let mut known = Known::default();
    for issue in issues {
        let id = name(&issue.id);
        let on = waits.remove(&issue.id).unwrap_or_default();
        known.internal.insert(id.clone(), issue.id.clone());
        known.beads.insert(id.clone(), bead(issue, id, on, &exist));
    }
    Ok(known)
}

/// Why a text is not an issue's file.
#[derive(Debug, thiserror::Error)]
enum IssueError {
    #[error("it does not begin with `---`")]
    NoFrontMatter,
    #[error("its front matter is not closed")]
    Unended,
    #[error(transparent)]
    Yaml(#[from] serde_saphyr::Error),
}

/// Parses an issue's file: front matter, description, and optional notes.
fn parse(text: &str) -> Result<Issue, IssueError> {
    let rest = text.strip_prefix("---\n").ok_or(IssueError::NoFrontMatter)?;
    let (front, body) = match rest.split_once("\n---\n") {
        Some(parts) => parts,
        None => (rest.strip_suffix("\n---").ok_or(IssueError::Unended)?, ""),
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
    match kept.and_then(|kept| serde_json::from_str::<Bead>(&kept.bead).ok()) {
        Some(kept) => as_imported(bead, kept, exist),
        None => bead,
    }
}

/// Returns whether a label is one of Muleteer's own, which users may not set.
pub fn is_mark(label: &str) -> bool {
    label.starts_with(KEY) || label.starts_with(STAGED) || label == NO_CHANGE || label == DISCARDED
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

/// One call of tbd: its arguments and its input files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Call {
    pub args: Vec<String>,
    /// A separate file, passed with an option.
    pub file: Option<File>,
    /// The call creates the bead with this id; tbd answers with the id that it has chosen.
    pub makes: Option<String>,
    /// A directory in the format of `tbd save`, with these files; its path is the last argument.
    pub folder: Vec<(String, String)>,
}

/// An option that takes the path of a file with this text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    pub option: &'static str,
    pub text: String,
}

fn call<const N: usize>(args: [&str; N]) -> Call {
    Call { args: args.iter().map(|arg| (*arg).to_string()).collect(), ..Call::default() }
}

/// Checks that tbd can store the beads of `change`.
///
/// # Errors
/// `E_BAD_INPUT`.
pub fn check(change: &Change) -> Result<(), Fault> {
    let long = |what: &str, id: &str, limit: usize| {
        Fault::new(
            ErrorCode::BadInput,
            format!("the {what} of {id} is too long for tbd"),
            format!("use at most {limit} characters"),
        )
    };
    for bead in &change.put {
        if bead.description.chars().count() > BODY_LIMIT {
            return Err(long("description", &bead.id, BODY_LIMIT));
        }
    }
    Ok(())
}

/// Returns the calls that turn the stored state into the result of `change`.
pub fn calls(known: &Known, change: &Change) -> Vec<Call> {
    let mut calls = Vec::new();
    for bead in &change.put {
        match known.beads.get(&bead.id) {
            None => make(bead, &mut calls),
            Some(before) => alter(before, bead, &mut calls),
        }
    }
    for id in &change.delete {
        // One call, so that no reader can see the label without the closed status.
        calls.push(call(["update", id, "--status=closed", &format!("--add-label={DISCARDED}")]));
    }
    calls
}

fn make(bead: &Bead, calls: &mut Vec<Call>) {
    let mut made = call([
        "create",
        &format!("--type={}", bead.issue_type),
        &format!("--priority={}", bead.priority),
    ]);
    made.args.extend(labels(bead).into_iter().map(|label| format!("--label={label}")));
    let text = body(&bead.description);
    made.file = Some(File { option: "--file", text }).filter(|file| !file.text.is_empty());
    made.makes = Some(bead.id.clone());
    // Last and after `--`, because a title may begin with a dash.
    made.args.extend(["--".into(), title(&bead.title)]);
    calls.push(made);
    calls.extend(bead.blockers().map(|on| call(["dep", "add", &bead.id, on])));
}

fn alter(before: &Bead, bead: &Bead, calls: &mut Vec<Call>) {
    let id = bead.id.as_str();
    let was_closed = before.status == Status::Closed;
    let closed = bead.status == Status::Closed;
    let told_anew = was_closed && closed && before.close_reason != bead.close_reason;
    if was_closed && (!closed || told_anew) {
        calls.push(call(["reopen", id]));
    }
    let now = if was_closed && (!closed || told_anew) { &Status::Open } else { &before.status };
    let mut update = call(["update", id]);
    if bead.title != before.title {
        update.args.push(format!("--title={}", title(&bead.title)));
    }
    if bead.priority != before.priority {
        update.args.push(format!("--priority={}", bead.priority));
    }
    if bead.issue_type != before.issue_type {
        update.args.push(format!("--type={}", bead.issue_type));
    }
    if bead.status != *now && !closed {
        update.args.push(format!("--status={}", status(&bead.status)));
    }
    let (old, new) = (labels(before), labels(bead));
    update.args.extend(
        new.iter()
            .filter(|label| !old.contains(*label))
            .map(|label| format!("--add-label={label}")),
    );
    update.args.extend(
        old.iter()
            .filter(|label| !new.contains(*label))
            .map(|label| format!("--remove-label={label}")),
    );
    if update.args.len() > 2 {
        calls.push(update);
    }
    if bead.description != before.description {
        let mut described = call(["update", id]);
        let mut text = format!(
            "---\ntitle: {}\n---\n{}\n",
            Value::from(title(&bead.title)),
            body(&bead.description)
        );
        if let Some(notes) = shared(&bead.extra, "notes") {
            let _ = write!(text, "\n{NOTES}\n\n{notes}\n");
        }
        described.file = Some(File { option: "--from-file", text });
        calls.push(described);
    }
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (before.blockers().collect(), bead.blockers().collect());
    calls.extend(new.difference(&old).map(|on| call(["dep", "add", id, on])));
    calls.extend(old.difference(&new).map(|on| call(["dep", "remove", id, on])));
    if closed && (!was_closed || told_anew) {
        let mut close = call(["close", id]);
        close.args.extend(bead.close_reason.as_ref().map(|reason| format!("--reason={reason}")));
        calls.push(close);
    }
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

/// Returns the calls that import whole beads of an `issues.jsonl`. `fresh` yields unused ULIDs.
///
/// # Errors
/// `E_BAD_INPUT` for an id that tbd cannot show, because tbd would give the bead another id.
pub fn import(
    known: &Known,
    change: &Change,
    prefix: &str,
    fresh: &mut dyn Iterator<Item = String>,
    now: Timestamp,
) -> Result<Vec<Call>, Fault> {
    if change.put.is_empty() {
        return Ok(vec![]);
    }
    let (mut internal, mut ids) = (known.internal.clone(), String::new());
    let mut after = known.beads.clone();
    for bead in &change.put {
        let short = bead.id.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('-'));
        let fine =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
        let Some(short) = short.filter(|short| !short.is_empty() && short.chars().all(fine)) else {
            return Err(Fault::new(
                ErrorCode::BadInput,
                format!("tbd would change the id of {}: its ids begin with `{prefix}-`", bead.id),
                format!(
                    "import them with `tbd import FILE`, or set up a new repository with `tbd init \
                     --prefix={}`",
                    bead.id.split('-').next().unwrap_or("bd")
                ),
            ));
        };
        if !internal.contains_key(&bead.id) {
            internal.extend(fresh.next().map(|ulid| (bead.id.clone(), format!("is-{ulid}"))));
        }
        let id = internal.get(&bead.id).map(String::as_str).unwrap_or_default();
        let _ = writeln!(ids, "{}: {}", Value::from(short), id.trim_start_matches("is-"));
        after.insert(bead.id.clone(), bead.clone());
    }
    let put: BTreeSet<&str> = change.put.iter().map(|bead| bead.id.as_str()).collect();
    let mut folder = vec![("mappings/ids.yml".to_string(), ids)];
    let mut calls = Vec::new();
    for bead in &change.put {
        let targets: Vec<&String> = after
            .values()
            .filter(|other| other.blockers().any(|on| on == bead.id))
            .filter_map(|other| internal.get(&other.id))
            .collect();
        let replaces = known.beads.contains_key(&bead.id);
        let Some(id) = internal.get(&bead.id) else { continue };
        folder
            .push((format!("issues/{id}.md"), issue(bead, id, &targets, replaces.then_some(now))));
        let old: BTreeSet<&str> =
            known.beads.get(&bead.id).into_iter().flat_map(Bead::blockers).collect();
        let new: BTreeSet<&str> = bead.blockers().collect();
        // These dependencies are stored in issues that the import does not rewrite.
        let apart = |on: &&&str| !put.contains(**on) && known.beads.contains_key(**on);
        calls.extend(
            new.difference(&old).filter(apart).map(|on| call(["dep", "add", &bead.id, on])),
        );
        calls.extend(
            old.difference(&new).filter(apart).map(|on| call(["dep", "remove", &bead.id, on])),
        );
    }
    let taken = Call { folder, ..call(["import", "--dir"]) };
    calls.insert(0, taken);
    Ok(calls)
}

/// Returns the text of an issue's file. Of two versions tbd takes the newer one, so a replacement
/// gets the time `replaces`.
fn issue(bead: &Bead, id: &str, targets: &[&String], replaces: Option<Timestamp>) -> String {
    let created = utc(&bead.created_at).unwrap_or_else(|| "1970-01-01T00:00:00Z".into());
    let updated = match replaces {
        Some(now) => format!("{now:.3}"),
        None => utc(&bead.updated_at).unwrap_or_else(|| created.clone()),
    };
    let links: Vec<Value> = targets
        .iter()
        .map(|target| serde_json::json!({"type": BLOCKS, "target": target}))
        .collect();
    let mut front: Vec<(&str, Value)> = vec![
        ("type", "is".into()),
        ("id", id.into()),
        ("title", title(&bead.title).into()),
        ("kind", kind(&bead.issue_type).into()),
        ("status", status(&bead.status).into()),
        ("priority", bead.priority.min(4).into()),
        ("version", 1.into()),
        ("labels", labels(bead).into_iter().collect()),
        ("dependencies", links.into()),
        ("created_at", created.into()),
        ("updated_at", updated.into()),
    ];
    for name in SHARED.into_iter().filter(|name| *name != "notes") {
        front.extend(shared(&bead.extra, name).map(|value| (name, Value::from(value))));
    }
    if status(&bead.status) == "closed" {
        front.extend(
            bead.closed_at.as_deref().and_then(utc).map(|at| ("closed_at", Value::from(at))),
        );
        front.extend(bead.close_reason.clone().map(|reason| ("close_reason", Value::from(reason))));
    }
    let whole = serde_json::to_string(bead).unwrap_or_default();
    front.push(("extensions", serde_json::json!({"muleteer": {"bead": whole}})));
    // JSON values are valid YAML.
    let mut text: String = front.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    text = format!("---\n{text}---\n{}\n", body(&bead.description));
    if let Some(notes) = shared(&bead.extra, "notes") {
        let _ = write!(text, "\n{NOTES}\n\n{notes}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::beads::{Op, apply};

    fn file(id: &str, front: &str, body: &str) -> (String, String) {
        let head =
            format!("type: is\nid: is-{id}\nkind: task\nstatus: open\npriority: 2\nversion: 1\n");
        let times = "created_at: 2026-11-22T08:55:17.804Z\nupdated_at: 2026-11-22T08:55:21.140Z\n";
        (format!("is-{id}.md"), format!("---\n{head}{front}{times}---\n{body}"))
    }

    fn two() -> Known {
        let blocker = "title: yes\nlabels:\n  - muleteer-key:r/1\n  - x\ndependencies:\
                       \n  - type: blocks\n    target: is-b\n";
        let files = [
            file("a", blocker, "Two\nlines\n\n## Notes\n\nnoted\n"),
            file("b", "title: \"2026\"\nlabels: []\n", ""),
            file("c", "title: gone\nlabels: [muleteer-discarded]\n", ""),
        ];
        read(&files, "1e3: a\n\"007\": b\nc: c\n", "sup").unwrap()
    }

    fn said(known: &Known, op: Value) -> Vec<String> {
        let op: Op = serde_json::from_value(op).unwrap();
        let change = apply(&known.beads, &op, Timestamp::UNIX_EPOCH, "fresh").unwrap();
        calls(known, &change)
            .into_iter()
            .map(|call| {
                let file = call
                    .file
                    .map(|file| format!(" {} {:?}", file.option, file.text))
                    .unwrap_or_default();
                format!("{}{file}", call.args.join(" "))
            })
            .collect()
    }

    #[test]
    fn tbd_blocks_become_dependencies() {
        let known = two();
        assert_eq!(known.beads.keys().collect::<Vec<_>>(), ["sup-007", "sup-1e3"]);
        let (a, b) = (&known.beads["sup-1e3"], &known.beads["sup-007"]);
        assert_eq!((a.title.as_str(), b.title.as_str()), ("yes", "2026"));
        assert!(a.dependencies.is_empty());
        assert_eq!(b.blockers().collect::<Vec<_>>(), ["sup-1e3"]);
        assert_eq!(
            (a.key.as_deref(), a.labels.as_slice()),
            (Some("r/1"), ["x".to_string()].as_slice())
        );
        assert_eq!(
            (a.description.as_str(), &a.extra["notes"]),
            ("Two\nlines", &Value::from("noted"))
        );
    }

    #[test]
    fn an_issue_that_cannot_be_read_is_named() {
        for (text, why) in [
            ("", "begin"),
            ("---\nid: is-a\n", "not closed"),
            ("---\nid: [\n---\n", "is-a.md"),
            ("---\nid: is-a\n---\n", "title"),
        ] {
            let (file, told) = read(&[("is-a.md".into(), text.into())], "", "sup").unwrap_err();
            assert_eq!(file, "is-a.md");
            assert!(format!("{file} {told}").contains(why), "{text:?}: {told}");
        }
        assert_eq!(read(&[], "a: [", "sup").unwrap_err().0, "ids.yml");
    }

    /// A change and the calls that it needs.
    #[test]
    fn bead_change_becomes_the_missing_tbd_calls() {
        let known = two();
        let table = [
            (
                serde_json::json!(
                    {"op": "create", "title": "-t", "description": "d", "labels": ["l"], "key": "k",
                    "depends_on": ["sup-007"]}),
                vec![
                    "create --type=task --priority=2 --label=l --label=muleteer-key:k -- -t \
                     --file \"d\"",
                    "dep add fresh sup-007",
                ],
            ),
            (serde_json::json!({"op": "create", "title": "again", "key": "r/1"}), vec![]),
            (
                serde_json::json!(
                    {"op": "create", "title": "again", "key": "r/1", "depends_on": ["sup-007"]}),
                vec!["dep add sup-1e3 sup-007"],
            ),
            (
                serde_json::json!(
                    {"op": "update", "id": "sup-1e3", "status": "in_progress", "priority": 0,
                    "add_labels": ["y"], "remove_labels": ["x"]}),
                vec![
                    "update sup-1e3 --priority=0 --status=in_progress --add-label=y \
                     --remove-label=x",
                ],
            ),
            // The call repeats the notes, which tbd would otherwise drop with the old description.
            (
                serde_json::json!({"op": "update", "id": "sup-1e3", "description": "new\n## \
                    Notes\nof its own"}),
                vec![
                    "update sup-1e3 --from-file \"---\\ntitle: \\\"yes\\\"\\n---\\nnew\\n##  \
                     Notes\\nof its own\\n\\n## Notes\\n\\nnoted\\n\"",
                ],
            ),
            (
                serde_json::json!(
                    {"op": "close", "id": "sup-007", "reason": "r", "no_change": true}),
                vec!["update sup-007 --add-label=muleteer-no-change", "close sup-007 --reason=r"],
            ),
            (serde_json::json!({"op": "reopen", "id": "sup-007"}), vec![]),
            (
                serde_json::json!({"op": "dep_rm", "id": "sup-007", "on": "sup-1e3"}),
                vec!["dep remove sup-007 sup-1e3"],
            ),
        ];
        for (op, wanted) in table {
            assert_eq!(said(&known, op.clone()), wanted, "{op}");
        }
        let gone = Change { delete: vec!["sup-007".into()], ..Change::default() };
        assert_eq!(
            calls(&known, &gone)[0].args[2..],
            ["--status=closed", "--add-label=muleteer-discarded"]
        );
    }

    #[test]
    fn a_closed_bead_is_opened_before_it_is_anything_else() {
        let closed = "title: t\nclosed_at: 2026-11-22T08:55:17.804Z\nclose_reason: r\
                      \nlabels: [muleteer-no-change]\n";
        let (name, text) = file("a", closed, "");
        let known =
            read(&[(name, text.replace("status: open", "status: closed"))], "a: a", "sup").unwrap();
        assert!(known.beads["sup-a"].no_change);
        let told = |op| said(&known, op);
        assert_eq!(
            told(serde_json::json!({"op": "update", "id": "sup-a", "status": "blocked"})),
            ["reopen sup-a", "update sup-a --status=blocked --remove-label=muleteer-no-change"]
        );
        assert_eq!(
            told(serde_json::json!({"op": "close", "id": "sup-a", "reason": "other"})),
            [
                "reopen sup-a",
                "update sup-a --remove-label=muleteer-no-change",
                "close sup-a --reason=other"
            ]
        );
        assert_eq!(
            told(
                serde_json::json!({"op": "close", "id": "sup-a", "reason": "r", "no_change": true})
            ),
            [""; 0]
        );
    }

    #[test]
    fn tbd_import_round_trips_and_rejects_another_prefix() {
        let line = r#"{"id":"sup-x","title":"T","description":" d \n## Notes\ne","status":"tombstone","priority":1,"issue_type":"question","labels":["b","a"],"dependencies":[{"issue_id":"sup-x","depends_on_id":"sup-y","type":"parent-child","created_by":"me"},{"issue_id":"sup-x","depends_on_id":"gone","type":"blocks"}],"created_at":"2025-10-16T13:36:17.123456-07:00","updated_at":"2025-10-16T13:36:17-07:00","closed_at":null,"close_reason":null,"assignee":"a","due_date":"soon","comments":[{"id":1}]}"#;
        let bead: Bead = serde_json::from_str(line).unwrap();
        let change =
            apply(&Beads::new(), &Op::Import { beads: vec![bead] }, Timestamp::UNIX_EPOCH, "")
                .unwrap();
        let known = Known::default();
        let fresh = || ["01m817f21c9ant6y2ekbcavnrp".to_string()].into_iter();
        let calls = import(&known, &change, "sup", &mut fresh(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((calls.len(), calls[0].args.join(" ")), (1, "import --dir".into()));
        let [(_, ids), (name, text)] = calls[0].folder.as_slice() else {
            panic!("{:?}", calls[0].folder)
        };
        assert_eq!(name, "issues/is-01m817f21c9ant6y2ekbcavnrp.md");
        let back = read(&[(name.clone(), text.clone())], ids, "sup").unwrap();
        assert_eq!(serde_json::to_string(&back.beads["sup-x"]).unwrap(), line);
        let refused =
            import(&known, &change, "bd", &mut fresh(), Timestamp::UNIX_EPOCH).unwrap_err();
        assert!(
            refused.message.contains("would change the id")
                && refused.hint.contains("--prefix=sup"),
            "{refused:?}"
        );
    }
}
