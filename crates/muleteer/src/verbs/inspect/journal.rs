//! `journal`: shows the entries of the harness and the agent from the journal file.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::client::file_watch::FileWatch;
use crate::client::interrupt::until_unheard;
use crate::client::live_fleet::LiveFleet;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, safe, state_color};
use crate::verbs::inspect::journal_times::{JournalTimes, dated_last};
use jiff::Timestamp;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::journal::{FILE_LIMIT, Summary, archived, status_of, summarize};
use muleteer_protocol::ErrorCode;
use muleteer_vcs::untrusted_path;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How long a journal's last entry may come after the end of its dispatch.
const LAST_LINES: Duration = Duration::from_secs(5);
/// The width to which a narrow terminal shortens the last entry before it leaves out columns: the
/// time, the author and two words.
const LAST: usize = 44;

const EXAMPLES: &str = "\
Examples:
  muleteer journal k3f9
  muleteer journal k3f9 -f
  muleteer journal                      one line for each open journal
  muleteer journal --all                includes the closed ones
  muleteer journal --role tester --project web

The file has times in UTC, without dates. They are shown with their dates, in
the local time zone.";

/// Show an agent's journal, or the status of every open journal
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it [default: one line for each open journal]
    #[arg(conflicts_with = "Filter")]
    id: Option<String>,
    /// Print new entries as they are written, until the dispatch has ended
    #[arg(short, long, requires = "id")]
    follow: bool,
    /// Print one line for each open journal; this is the default without an id
    #[arg(long, conflicts_with_all = ["id", "follow"])]
    summary: bool,
    /// Without an id: include completed, failed and killed dispatches
    #[arg(long, conflicts_with = "id")]
    all: bool,
    #[command(flatten)]
    only: Filter,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let fleet = LiveFleet::open(context)?;
    let Some(id) = &args.id else { return summary(context, &fleet, args) };
    let dispatch = fleet.find(id)?;
    let mut times = JournalTimes::open(context, &dispatch)?;
    let (id, path) = (dispatch.id.to_string(), place(&dispatch));
    if args.follow {
        let following = follow(context, fleet, &id, &path, times);
        return until_unheard(context, &format!("{id} continues"), following).await;
    }
    let text = read(&path)?.ok_or_else(|| {
        Failure::new(ErrorCode::NotFound, format!("no journal at {}", path.display()))
            .file(&path)
            .dispatch(&id)
    })?;
    if context.out.json {
        let status = summarize(&text).status;
        context.out.document(&json!({
            "dispatch_id": id, "path": path.display().to_string(), "status": status,
            "text": text,
        }))?;
    } else {
        context.out.text(safe(&times.dated_text(&text)?))?;
    }
    Ok(Exit::Done)
}

async fn follow(
    context: &Context,
    mut fleet: LiveFleet,
    id: &str,
    path: &Path,
    mut times: JournalTimes,
) -> Result<Exit, Failure> {
    let mut watch = FileWatch::on(&[&context.paths.state_dir])?;
    let mut watched = false;
    let mut seen = Seen::default();
    let mut until = None;
    let mut opened = false;
    loop {
        if !watched && let Some(dir) = path.parent().filter(|dir| dir.is_dir()) {
            watch.add(dir)?;
            watched = true;
        }
        // The fleet is refreshed before the journal is read, so that the journal's last lines are
        // shown.
        fleet.refresh()?;
        let ended = fleet.find(id)?.is_finished();
        let text = read(path)?.unwrap_or_default();
        for line in seen.fresh(&text) {
            if context.out.json {
                context.out.json_line(&json!({ "dispatch_id": id, "line": line }))?;
            } else {
                // The daemon may not have read a line yet that the agent has just written.
                let now = opened.then(Timestamp::now);
                context.out.line(safe(&times.dated(&line, now)?))?;
            }
        }
        opened = true;
        if ended {
            // The end is durable before the journal reports it.
            let dispatch = fleet.find(id)?;
            let told = summarize(&text).status == Some(status_of(&dispatch).to_string());
            let until = *until.get_or_insert_with(|| Instant::now() + LAST_LINES);
            if !told && tokio::time::timeout_at(until, watch.changed()).await.is_ok() {
                continue;
            }
            context.out.note(format!("{id} has ended: {}", fleet.find(id)?.state()));
            return Ok(Exit::Done);
        }
        watch.changed().await;
    }
}

/// The lines that have been shown, with their counts. Agents rewrite their journal as often as they
/// append to it, so offsets would not work. A new line is shown wherever it is.
#[derive(Debug, Default)]
struct Seen(HashMap<String, usize>);

impl Seen {
    fn fresh(&mut self, text: &str) -> Vec<String> {
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let mut fresh = Vec::new();
        // A line without a newline is still being written.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let count = counts.entry(line).or_default();
            *count += 1;
            let shown = self.0.entry(line.to_string()).or_default();
            if *count > *shown {
                *shown = *count;
                fresh.push(line.to_string());
            }
        }
        fresh
    }
}

fn summary(context: &Context, fleet: &LiveFleet, args: &Args) -> Result<Exit, Failure> {
    let all = args.all;
    let mut open = Vec::new();
    // The journal of an archived dispatch is complete.
    let states = (!all).then_some(&["blocked", "stalled"][..]);
    let dispatches = fleet.all(states)?;
    for dispatch in dispatches.iter().filter(|dispatch| args.only.selects(&***dispatch)) {
        // An unreadable journal must not hide the others.
        let summary = match read(&place(dispatch)) {
            Ok(found) => found.as_deref().map(summarize).unwrap_or_default(),
            Err(Failure::Told(told)) => {
                Summary { last_entry: Some(told.error.message), ..Summary::default() }
            }
            Err(error) => return Err(error),
        };
        let status = summary.status.clone().unwrap_or_else(|| status_of(dispatch).to_string());
        if all || !matches!(status.as_str(), "completed" | "failed" | "killed") {
            open.push((&**dispatch, status, summary));
        }
    }
    if context.out.json {
        let journals: Vec<_> = open
            .iter()
            .map(|(dispatch, status, summary)| document(dispatch, status, summary))
            .collect();
        context.out.document(&json!({ "journals": journals }))?;
    } else if open.is_empty() {
        context.out.line(if all { "no journals" } else { "no open journals" })?;
    } else {
        let heads = [
            ("ID", Align::Left),
            ("STATUS", Align::Left),
            ("ROLE", Align::Left),
            ("FEATURE", Align::Left),
            ("ENTRIES", Align::Right),
            ("LAST", Align::Main(LAST)),
        ];
        let mut rows = vec![];
        for (dispatch, status, summary) in &open {
            let last = summary.last_entry.as_deref();
            let dated = match last {
                Some(last) => dated_last(context, dispatch, &format!("- {last}"))?,
                None => None,
            };
            let shown = dated.as_deref().and_then(|line| line.strip_prefix("- ")).or(last);
            rows.push(row(dispatch, status, summary, shown));
        }
        context.out.text(layout(&heads, &rows, &["ENTRIES", "FEATURE", "STATUS"]))?;
    }
    Ok(Exit::Done)
}

fn document(dispatch: &Dispatch, status: &str, summary: &Summary) -> Value {
    json!({
        "dispatch_id": dispatch.id.to_string(),
        "role": dispatch.created.role,
        "feature": dispatch.created.feature,
        "title": dispatch.created.title,
        "path": place(dispatch).display().to_string(),
        "status": status,
        "entries": summary.entries,
        "last_entry": summary.last_entry,
        "last_agent_entry": summary.last_agent_entry,
    })
}

fn row(dispatch: &Dispatch, status: &str, summary: &Summary, last: Option<&str>) -> Vec<Cell> {
    vec![
        Cell::colored(dispatch.id.to_string(), BOLD),
        Cell::colored(status, state_color(status)),
        clip(&dispatch.created.role, 20).into(),
        clip(&dispatch.created.feature, 24).into(),
        summary.entries.to_string().into(),
        clip(last.unwrap_or_default(), 80).into(),
    ]
}

/// Returns the place of a dispatch's journal, which may be in the archive.
fn place(dispatch: &Dispatch) -> PathBuf {
    let journal = PathBuf::from(&dispatch.created.journal);
    match archived(&journal).filter(|archived| !journal.exists() && archived.exists()) {
        Some(archived) => archived,
        None => journal,
    }
}

/// Returns the text of the file; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    // The agent may have created anything at this path: a link that leads elsewhere, or a file that
    // never ends.
    match untrusted_path::read_file(path, FILE_LIMIT) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Failure::new(ErrorCode::Io, format!("cannot read {}: {error}", path.display()))
                .file(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_entries_are_shown_after_growth_and_rewrites() {
        let mut seen = Seen::default();
        assert_eq!(
            seen.fresh("Status: in-progress\n- a\n- a\n- hal"),
            ["Status: in-progress", "- a", "- a"]
        );
        assert_eq!(seen.fresh("Status: in-progress\n- a\n- a\n- half\n"), ["- half"]);
        assert_eq!(
            seen.fresh("Status: completed\n- a\n- new\n- a\n- half\n- a\n"),
            ["Status: completed", "- new", "- a"]
        );
        assert!(seen.fresh("").is_empty());
    }
}
