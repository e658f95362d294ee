//! Imports whole beads into tbd, as a directory in the format of `tbd save`.

use crate::beads::tbd::calls::call;
use crate::beads::tbd::{
    Call, Known, NOTES, SHARED, body, kind, labels, shared, status, title, utc,
};
use crate::beads::{BLOCKS, Bead, Change, Fault};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

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
    calls
        .iter_mut()
        .enumerate()
        .for_each(|(chain, call): (usize, &mut Call)| call.chain = chain);
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
