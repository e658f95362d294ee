//! Applies an operation to a set of beads.

use crate::beads::graph::Graph;
use crate::beads::{
    Answer, BEADS_LIMIT, BLOCKS, Bead, Beads, Change, Dependency, Fault, LABELS_LIMIT, Op, Status,
    TEXT_LIMIT, TITLE_LIMIT, TYPES, find, named,
};
use crate::text::controls::breaks_line;
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use serde_json::Map;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Returns the change that `op` makes to `beads`. `fresh` is an unused id; `now` is the current
/// time.
///
/// # Errors
/// The reason why the operation is rejected.
pub fn apply(beads: &Beads, op: &Op, now: Timestamp, fresh: &str) -> Result<Change, Fault> {
    let now = format!("{now:.3}");
    match op {
        Op::Create { .. } => create(beads, op, &now, fresh),
        Op::Show { id } => {
            Ok(Change { answer: Answer::of(find(beads, id)?.clone()), ..Change::default() })
        }
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
        Op::Ready { labels } => Ok(Change {
            answer: Answer { beads: ready(beads, labels), warnings: vec![] },
            ..Change::default()
        }),
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
            // A bead that is closed twice keeps its first time; a new reason is added.
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
                return Err(Fault::new(
                    ErrorCode::NotFound,
                    format!("{} does not depend on {on}", named(&bead.id, Some(&bead.title))),
                    "",
                ));
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
            Ok(Change {
                answer: Answer { beads: put.clone(), warnings: vec![] },
                put,
                delete: vec![],
            })
        }
        Op::Discard { run, keep } => {
            let mark = format!("{run}:");
            let doomed = |bead: &&Bead| {
                bead.staged.as_ref().is_some_and(|staged| staged.starts_with(&mark))
                    && bead.staged != *keep
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
    let Op::Create { title, description, issue_type, priority, labels, depends_on, key, staged } =
        op
    else {
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
    check_title("the title", title, TITLE_LIMIT)?;
    check_text("the description", description, TEXT_LIMIT)?;
    check_type(issue_type)?;
    check_priority(*priority)?;
    if beads.len() >= BEADS_LIMIT {
        return Err(Fault::input(
            format!("the store already has {BEADS_LIMIT} beads"),
            "export and remove old beads",
        ));
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

/// Returns the bead of a repeated request. A store that creates a bead in steps may have been
/// killed before the last step, so missing dependencies are added.
fn made_before(
    beads: &Beads,
    known: &Bead,
    depends_on: &[String],
    now: &str,
) -> Result<Change, Fault> {
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
    let Op::Update {
        id,
        title,
        description,
        status,
        priority,
        issue_type,
        add_labels,
        remove_labels,
    } = op
    else {
        return Ok(Change::default());
    };
    let mut bead = find(beads, id)?.clone();
    if let Some(title) = title {
        let title = title.trim();
        if title.is_empty() {
            return Err(Fault::input("the title is empty", ""));
        }
        check_title("the title", title, TITLE_LIMIT)?;
        bead.title = title.into();
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
        return Err(Fault::new(ErrorCode::GraphCycle, format!("{on} cannot depend on itself"), ""));
    }
    if bead.blockers().any(|known| known == on) {
        return Ok(Change { answer: Answer::of(bead), ..Change::default() });
    }
    bead.dependencies.push(blocks(&bead.id, &on));
    let mut after = beads.clone();
    after.insert(bead.id.clone(), bead.clone());
    let mut change = put(bead, now);
    // A cycle is only a warning here, because the user may fix the graph in the next step. A run
    // rejects it.
    let cycle = Graph::of_beads(after.values()).cycle_through(&change.put[0].id);
    let title = |id: &String| named(id, after.get(id).map(|bead| bead.title.as_str()));
    let cycle = cycle.map(|chain| chain.iter().map(title).collect::<Vec<_>>().join(" → "));
    change
        .answer
        .warnings
        .extend(cycle.map(|chain| format!("this would create a cycle: {chain}")));
    Ok(change)
}

fn blocks(id: &str, on: &str) -> Dependency {
    Dependency {
        issue_id: id.into(),
        depends_on_id: on.into(),
        kind: BLOCKS.into(),
        extra: Map::new(),
    }
}

/// Imports beads unchanged. A bead with a known id replaces the known one, unless that one is
/// newer.
fn import(beads: &Beads, new: &[Bead]) -> Result<Change, Fault> {
    let (mut seen, mut put, mut warnings) = (BTreeSet::new(), Vec::new(), Vec::new());
    for bead in new {
        let id = &bead.id;
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if id.is_empty() || id.len() > 100 || !id.chars().all(fine) || id.starts_with(['-', '.']) {
            return Err(Fault::input(
                format!("`{id}` cannot be the id of a bead"),
                "use letters, digits, `-`, `_` and `.`",
            ));
        }
        check_foreign(bead)?;
        if !seen.insert(id) {
            return Err(Fault::input(format!("{id} appears twice"), "give each bead its own id"));
        }
        match beads.get(id) {
            Some(known) if known == bead => {}
            Some(known) if is_newer(known, bead) => {
                warnings.push(format!(
                    "{} was changed here later ({}), so it is not imported",
                    named(id, Some(&known.title)),
                    known.updated_at
                ));
            }
            _ => put.push(bead.clone()),
        }
    }
    Ok(Change { answer: Answer { beads: put.clone(), warnings }, put, delete: vec![] })
}

/// Checks the fields of a foreign bead that Muleteer uses.
///
/// # Errors
/// The invalid field and the reason.
pub fn check_foreign(bead: &Bead) -> Result<(), Fault> {
    check_title("`title`", &bead.title, TITLE_LIMIT * 4)?;
    if bead.title.trim().is_empty() {
        return Err(Fault::input("`title` is empty", "give a title"));
    }
    if bead.priority > 4 {
        return Err(Fault::input(
            format!("`priority` is {}", bead.priority),
            "use 0 (most urgent) to 4",
        ));
    }
    let times = [("created_at", Some(&bead.created_at)), ("updated_at", Some(&bead.updated_at))];
    for (name, time) in times.into_iter().chain([("closed_at", bead.closed_at.as_ref())]) {
        let is_bad = |time: &&String| !time.is_empty() && time.parse::<Timestamp>().is_err();
        if let Some(time) = time.filter(is_bad) {
            return Err(Fault::input(
                format!("`{name}` is not a time: {time:?}"),
                "like 2026-01-31T12:00:00Z",
            ));
        }
    }
    Ok(())
}

fn is_newer(known: &Bead, other: &Bead) -> bool {
    // A bead without a time of change is as old as itself.
    let changed = |bead: &Bead| {
        let updated = Some(&bead.updated_at).filter(|at| !at.is_empty());
        updated.unwrap_or(&bead.created_at).parse::<Timestamp>()
    };
    match (changed(known), changed(other)) {
        (Ok(known), Ok(other)) => known > other,
        _ => false,
    }
}

fn ready(beads: &Beads, labels: &[String]) -> Vec<Bead> {
    let graph = Graph::of_beads(beads.values());
    let impact = graph.impact();
    let rank = |bead: &Bead| graph.index(&bead.id).map_or(0, |at| impact[at]);
    let is_settled = |id: &str| beads.get(id).is_some_and(|bead| !bead.status.is_blocking());
    let mut found: Vec<Bead> = beads
        .values()
        .filter(|bead| {
            bead.status == Status::Open && bead.staged.is_none() && !bead.is_observation()
        })
        .filter(|bead| labels.iter().all(|label| bead.has_label(label)))
        .filter(|bead| bead.blockers().all(is_settled))
        .cloned()
        .collect();
    found.sort_by_cached_key(|bead| (Reverse(rank(bead)), bead.priority, bead.age()));
    found
}

fn check_text(what: &str, text: &str, limit: usize) -> Result<(), Fault> {
    if text.len() > limit {
        return Err(Fault::input(
            format!("{what} has {} bytes", text.len()),
            format!("use at most {limit} bytes"),
        ));
    }
    if text.contains('\0') {
        return Err(Fault::input(format!("{what} contains a NUL"), ""));
    }
    Ok(())
}

/// Checks that a title is one line of plain text. Titles stand in prompts, tables and journals,
/// where a line feed could begin a section or an entry.
fn check_title(what: &str, title: &str, limit: usize) -> Result<(), Fault> {
    check_text(what, title, limit)?;
    match title.chars().find(|c| breaks_line(*c)) {
        None => Ok(()),
        Some(c) => Err(Fault::input(
            format!("{what} contains the control character U+{:04X}", u32::from(c)),
            "use one line of text for the title; the description may have several",
        )),
    }
}

fn check_type(kind: &str) -> Result<(), Fault> {
    if TYPES.contains(&kind) {
        return Ok(());
    }
    let hint = format!("use one of {}; an imported bead keeps its own type", TYPES.join(", "));
    Err(Fault::input(format!("`{kind}` is not a type of beads"), hint))
}

fn check_priority(priority: u8) -> Result<(), Fault> {
    if priority <= 4 {
        Ok(())
    } else {
        Err(Fault::input(format!("{priority} is not a priority"), "use 0 (most urgent) to 4"))
    }
}

fn add_label(labels: &mut Vec<String>, label: &str) -> Result<(), Fault> {
    let fine = !label.is_empty()
        && label.len() <= 100
        && !label.contains(|c| c == ',' || breaks_line(c))
        && label.trim() == label;
    if crate::beads::tbd::marks::is_mark(label) {
        return Err(Fault::input(
            format!("the label `{label}` is reserved for Muleteer"),
            "choose another label",
        ));
    }
    if !fine {
        return Err(Fault::input(
            format!("`{label}` cannot be a label"),
            "use at most 100 characters, without commas",
        ));
    }
    if labels.len() >= LABELS_LIMIT {
        return Err(Fault::input("too many labels", format!("use at most {LABELS_LIMIT} labels")));
    }
    if !labels.iter().any(|known| known == label) {
        labels.push(label.into());
    }
    Ok(())
}
