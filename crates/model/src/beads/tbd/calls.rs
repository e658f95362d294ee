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
    /// Calls of one chain are made in their order. Those of different chains may be made beside
    /// each other.
    pub chain: usize,
}

impl Call {
    /// Returns whether the call has to end before any call that is not of this kind begins: it
    /// creates beads, to which later calls refer.
    pub fn is_first(&self) -> bool {
        self.makes.is_some() || !self.folder.is_empty()
    }
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
        let (begin, chain) = (calls.len(), calls.len());
        match known.beads.get(&bead.id) {
            // The dependencies of a new bead are stored in different issues.
            None => make(bead, &mut calls),
            Some(before) => {
                alter(before, bead, &mut calls);
                calls[begin..].iter_mut().for_each(|call| call.chain = chain);
            }
        }
    }
    for id in &change.delete {
        // One call, so that no reader can see the label without the closed status.
        let chain = calls.len();
        let close = ["update", id, "--status=closed", &format!("--add-label={DISCARDED}")];
        calls.push(Call { chain, ..call(close) });
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
    made.chain = calls.len();
    calls.push(made);
    for on in bead.blockers() {
        let chain = calls.len();
        calls.push(Call { chain, ..call(["dep", "add", &bead.id, on]) });
    }
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
    let status =
        Some(status(&bead.status)).filter(|_| bead.status != *now && !closed).map(str::to_string);
    let (old, new) = (labels(before), labels(bead));
    let mut update = call(["update", id]);
    if bead.description == before.description {
        let mut set = |option: &str, value: &str| update.args.push(format!("--{option}={value}"));
        if bead.title != before.title {
            set("title", &title(&bead.title));
        }
        if bead.priority != before.priority {
            set("priority", &bead.priority.to_string());
        }
        if bead.issue_type != before.issue_type {
            set("type", &bead.issue_type);
        }
        status.iter().for_each(|status| set("status", status));
        new.difference(&old).for_each(|label| set("add-label", label));
        old.difference(&new).for_each(|label| set("remove-label", label));
    } else {
        // tbd ignores the other options beside a file, so the file has all changes.
        let text = document(before, bead, status, (old != new).then_some(new));
        update.file = Some(File { option: "--from-file", text });
    }
    if update.args.len() > 2 || update.file.is_some() {
        calls.push(update);
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

/// Returns the file of an update: the changed fields, the description and the notes.
fn document(
    before: &Bead,
    bead: &Bead,
    status: Option<String>,
    labels: Option<BTreeSet<String>>,
) -> String {
    let mut front = vec![("title", Value::from(title(&bead.title)))];
    if bead.priority != before.priority {
        front.push(("priority", bead.priority.into()));
    }
    if bead.issue_type != before.issue_type {
        front.push(("kind", bead.issue_type.clone().into()));
    }
    front.extend(status.map(|status| ("status", status.into())));
    front.extend(labels.map(|labels| ("labels", labels.into_iter().collect())));
    // JSON values are valid YAML.
    let front: String = front.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
    let mut text = format!("---\n{front}---\n{}\n", body(&bead.description));
    if let Some(notes) = shared(&bead.extra, "notes") {
        let _ = write!(text, "\n{NOTES}\n\n{notes}\n");
    }
    text
}
