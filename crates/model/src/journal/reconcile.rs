//! Restores a journal after any change to it, without losing a foreign line.
//!
//! A line is Muleteer's if its content is that of an event; the prefix does not decide. A
//! `[harness]` line that no event explains was written by another writer. A duplicate of an own
//! line may stay (it occurs if two writers rewrite the file at once) and becomes no event.

use crate::agent::event::cut;
use crate::journal::{
    ENTRY_LIMIT, Header, LOG, SPEC, Status, TASK, TITLE, field, fields, header as render,
};
use jiff::tz::Offset;
use std::collections::{HashMap, HashSet, VecDeque};

/// Returns the text that the journal must have, or `None` if it has it already.
///
/// `expected` are the harness's lines so far, in order, without newlines. Missing ones return to
/// their places, the newest at the end. A damaged header is rebuilt from its remains, and the
/// `Status:` line is set. Every other line stays, in its order. If only new lines at the end are
/// missing, the new text begins with the old one, so that the caller can append and need not
/// replace a file that an agent may be writing.
pub fn reconcile(
    existing: &str,
    header: &Header,
    expected: &[String],
    status: Status,
    offset: Offset,
) -> Option<String> {
    let fresh = |status| render(header, status, offset);
    // The file was torn while it was created, so it has no foreign text.
    let torn = Status::ALL.iter().any(|status| fresh(*status).starts_with(existing));
    let text = if torn { fresh(status) } else { with_header(existing, header, status, offset) };
    let text = with_lines(&text, expected);
    (text != existing).then_some(text)
}

/// Returns the lines of agents and people that are not in `known`; each becomes one event.
/// `expected` is as for [`reconcile`]; `known` are the lines returned before. A last line without a
/// newline may still grow and is left for later. Headings and empty lines are skipped. Entries are
/// cut to [`ENTRY_LIMIT`] bytes.
pub fn agent_lines(text: &str, expected: &[String], known: &[String]) -> Vec<String> {
    let ours: HashSet<&str> = expected.iter().map(|line| line.trim_end()).collect();
    let mut seen = counts(known.iter().map(String::as_str));
    let head = Head::find(text);
    let mut fresh = vec![];
    for (at, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') || head.owns(at) {
            continue;
        }
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('#') || ours.contains(line) {
            continue;
        }
        let entry = cut(line, ENTRY_LIMIT);
        if !take(&mut seen, &entry) {
            fresh.push(entry);
        }
    }
    fresh
}

fn counts<'a>(lines: impl Iterator<Item = &'a str>) -> HashMap<&'a str, usize> {
    let mut counts = HashMap::new();
    for line in lines {
        *counts.entry(line).or_default() += 1;
    }
    counts
}

fn take(counts: &mut HashMap<&str, usize>, line: &str) -> bool {
    match counts.get_mut(line) {
        Some(left) if *left > 0 => {
            *left -= 1;
            true
        }
        _ => false,
    }
}

/// The header of a text, with the lines of its keys.
struct Head {
    /// The number of lines before the log: before `## Log` or, without it, before the first entry
    /// or other heading.
    end: usize,
    log: Option<usize>,
    /// The first line of each key.
    keys: Vec<(&'static str, usize)>,
}

const KEYS: [&str; 7] = [TITLE, SPEC, TASK, "Project:", "Branch:", "Started:", "Status:"];

impl Head {
    fn find(text: &str) -> Self {
        let lines = || text.lines().enumerate();
        let log = lines().find(|(_, line)| line.trim_end() == LOG).map(|(at, _)| at);
        let body = |line: &str| {
            line.starts_with("- ")
                || line.starts_with("* ")
                || (line.starts_with('#') && !line.starts_with(TITLE))
        };
        let end = log.or_else(|| lines().find(|(_, line)| body(line)).map(|(at, _)| at));
        let end = end.unwrap_or_else(|| text.lines().count());
        let mut keys: Vec<(&'static str, usize)> = vec![];
        for (at, line) in lines().take(end) {
            let key = KEYS.into_iter().find(|key| line.starts_with(key));
            if let Some(key) = key.filter(|key| !keys.iter().any(|(known, _)| known == key)) {
                keys.push((key, at));
            }
        }
        Self { end, log, keys }
    }

    fn line(&self, key: &str) -> Option<usize> {
        self.keys.iter().find(|(known, _)| *known == key).map(|(_, at)| *at)
    }

    fn owns(&self, at: usize) -> bool {
        self.log == Some(at) || self.keys.iter().any(|(_, line)| *line == at)
    }
}

/// Sets the status, and rebuilds the header if a key or `## Log` is missing. Values that differ are
/// corrections (an agent names the branch that it made) and stay, except the status.
fn with_header(text: &str, header: &Header, status: Status, offset: Offset) -> String {
    let head = Head::find(text);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let wanted = fields(header, status, offset);
    let intact = head.log.is_some() && wanted.iter().all(|(key, _)| head.line(key).is_some());
    if intact {
        let mut new = String::with_capacity(text.len() + 16);
        for (at, line) in lines.iter().enumerate() {
            let ending = &line[line.trim_end_matches(['\r', '\n']).len()..];
            match head.line("Status:") {
                Some(place) if place == at && line["Status:".len()..].trim() != status.as_str() => {
                    new.push_str("Status: ");
                    new.push_str(status.as_str());
                    new.push_str(ending);
                }
                _ => new.push_str(line),
            }
        }
        return new;
    }

    let mut new = String::with_capacity(text.len() + 256);
    // Lines that an agent or a person added to a header that has none of its own.
    let kept = [(SPEC, header.spec.is_none()), (TASK, header.task.is_none())];
    let kept = kept.into_iter().filter(|(_, is_missing)| *is_missing);
    let kept: Vec<usize> = kept.filter_map(|(key, _)| head.line(key)).collect();
    for (key, value) in &wanted {
        match head.line(key).filter(|_| *key != "Status:") {
            Some(at) => push_line(&mut new, lines[at]),
            None => new.push_str(&field(key, value)),
        }
        if *key == TITLE {
            kept.iter().for_each(|at| push_line(&mut new, lines[*at]));
        }
    }
    let others: Vec<&str> = lines[..head.end]
        .iter()
        .enumerate()
        .filter(|(at, line)| !head.owns(*at) && !line.trim().is_empty())
        .map(|(_, line)| *line)
        .collect();
    if !others.is_empty() {
        new.push('\n');
        others.iter().for_each(|line| push_line(&mut new, line));
    }
    new.push_str("\n## Log\n");
    let rest = &lines[head.log.map_or(head.end, |log| log + 1)..];
    if rest.first().is_none_or(|line| !line.trim().is_empty()) {
        new.push('\n');
    }
    // The last line stays without its newline, because it may be half of an entry.
    rest.iter().for_each(|line| new.push_str(line));
    new
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    if !line.ends_with('\n') {
        text.push('\n');
    }
}

/// Restores missing harness lines: each before the next remaining one, and the others at the end.
fn with_lines(text: &str, expected: &[String]) -> String {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let mut places: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (at, line) in lines.iter().enumerate() {
        places.entry(line.trim_end()).or_default().push_back(at);
    }
    let found: Vec<Option<usize>> = expected
        .iter()
        .map(|line| places.get_mut(line.trim_end()).and_then(VecDeque::pop_front))
        .collect();

    let mut before: HashMap<usize, Vec<&str>> = HashMap::new();
    let mut tail = vec![];
    let mut next = None;
    for (line, place) in expected.iter().zip(&found).rev() {
        match (place, next) {
            (Some(at), _) => next = Some(*at),
            (None, Some(at)) => before.entry(at).or_default().push(line.trim_end()),
            (None, None) => tail.push(line.trim_end()),
        }
    }

    let mut new = String::with_capacity(text.len() + 64 * expected.len());
    for (at, line) in lines.iter().enumerate() {
        for missing in before.get(&at).into_iter().flatten().rev() {
            new.push_str(missing);
            new.push('\n');
        }
        new.push_str(line);
    }
    let mut tail = tail.into_iter().rev();
    let last_is_ours = found.contains(&lines.len().checked_sub(1));
    if !new.is_empty() && !new.ends_with('\n') && (last_is_ours || tail.len() > 0) {
        // An own line that a crash has torn (maybe inside a character) is completed; a foreign one
        // is ended.
        let partial = lines.last().copied().unwrap_or_default();
        let whole = partial.trim_end_matches('\u{fffd}');
        let rest = tail.clone().next().and_then(|first| first.strip_prefix(whole));
        if let Some(rest) = rest.filter(|_| !last_is_ours) {
            tail.next();
            new.truncate(new.len() - (partial.len() - whole.len()));
            new.push_str(rest);
        }
        new.push('\n');
    }
    for missing in tail {
        new.push_str(missing);
        new.push('\n');
    }
    new
}
