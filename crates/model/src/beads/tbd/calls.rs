//! Translates a change to beads into calls of tbd's command line.

use crate::beads::tbd::marks::DISCARDED;
use crate::beads::tbd::{BODY_LIMIT, Known, NOTES, body, labels, shared, status, title};
use crate::beads::{Bead, Change, Fault, Status};
use muleteer_protocol::ErrorCode;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

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

pub(super) fn call<const N: usize>(args: [&str; N]) -> Call {
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
