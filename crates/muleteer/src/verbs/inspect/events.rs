//! `events`: all events of this state directory.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::cli::time_arg;
use crate::client::history::{self, Seen};
use crate::client::interrupt::until_unheard;
use crate::client::live_fleet::LiveFleet;
use crate::client::offline;
use crate::render::event::Lines;
use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use muleteer_store::events::removed_through;
use muleteer_store::events::tail::Start;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The number of earlier events that `-f` shows without `--since`.
const CONTEXT: u64 = 100;

const EXAMPLES: &str = "\
Examples:
  muleteer events --since 1h
  muleteer events -f
  muleteer events -f --json | jq -c 'select(.event == \"dispatch_finished\")'
  muleteer events --since 120          starts at sequence number 120
  muleteer events --role tester --state failed

Times are local. With --role, --project, --feature or --state only events of
such dispatches are shown; the state is the present one.";

/// Show the events of the daemon and all agents
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print new events as they happen, after the last 100
    #[arg(short, long)]
    follow: bool,
    /// Start there: an age (15m, 2h, 1d), an RFC 3339 time, or a sequence number
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<Since>,
    #[command(flatten)]
    only: Filter,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Since {
    Time(Timestamp),
    Seq(u64),
}

/// Parses `--since`: ages have a unit, times have a `T`, and a bare number is a sequence number.
fn since(text: &str) -> Result<Since, ArgError> {
    if let Ok(seq) = text.trim().parse() {
        return Ok(Since::Seq(seq));
    }
    time_arg::parse(text)
        .map(Since::Time)
        .ok_or(ArgError::Wanted("expected an age (15m, 2h), an RFC 3339 time or a sequence number"))
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let from = match (args.since, args.follow) {
        (Some(Since::Seq(seq)), _) => seq,
        (Some(Since::Time(time)), _) => history::first_seq(context, Start::Time(time)),
        (None, true) => history::last_seqs(context, CONTEXT),
        (None, false) => 0,
    };
    // `-f` alone shows the newest events.
    let removed = removed_through(&context.paths.events()).unwrap_or_default();
    if from <= removed && (args.since.is_some() || !args.follow) && removed > 0 {
        let what = "those of unfinished dispatches, of threads and of task lists are left";
        context.out.note(format!("events up to seq {removed} were removed: {what}"));
    }
    // If the file cannot be read, events before this time are filtered from the stream.
    let not_before = match args.since {
        Some(Since::Time(time)) => Some(time),
        _ => None,
    };
    let not_before = Cell::new(not_before);
    let chosen = Chosen::new(context, &args.only)?;
    let fits = move |seen: &Seen<'_>| {
        Ok(has_begun(&not_before, seen.record.map(|record| record.ts)) && chosen.has(seen)?)
    };
    if args.follow {
        let following = follow(context, from, &fits);
        return until_unheard(context, "the daemon and its agents continue", following).await;
    }
    if context.out.json {
        document(context, from, &fits).await
    } else {
        lines(context, from, &fits).await
    }
}

/// Returns whether the requested time has been reached. The first event at or after it decides, so
/// a clock that is set back later hides nothing.
fn has_begun(not_before: &Cell<Option<Timestamp>>, at: Option<Timestamp>) -> bool {
    let Some(time) = not_before.get() else { return true };
    let begun = at.is_some_and(|at| at >= time);
    if begun {
        not_before.set(None);
    }
    begun
}

/// The dispatches with the requested role, project, feature and state.
struct Chosen<'a> {
    only: &'a Filter,
    /// `None` if all events are shown, so that the file need not be readable.
    fleet: Option<RefCell<LiveFleet>>,
    /// The archived dispatches that were looked for, and whether they are shown.
    archived: RefCell<HashMap<DispatchId, bool>>,
}

impl<'a> Chosen<'a> {
    fn new(context: &Context, only: &'a Filter) -> Result<Self, Failure> {
        let fleet = (!only.is_empty()).then(|| LiveFleet::open(context)).transpose()?;
        Ok(Self { only, fleet: fleet.map(RefCell::new), archived: RefCell::default() })
    }

    /// Whether the event belongs to such a dispatch. Events of the daemon belong to none.
    fn has(&self, seen: &Seen<'_>) -> Result<bool, Failure> {
        let Some(fleet) = &self.fleet else { return Ok(true) };
        let Some(record) = seen.record else { return Ok(false) };
        let mut fleet = fleet.borrow_mut();
        // An event that follows may be about a new dispatch, or change the state of one.
        if fleet.fleet().seq < record.seq {
            fleet.refresh()?;
        }
        let Some(id) = &record.entry.dispatch_id else { return Ok(false) };
        if let Some(dispatch) = fleet.fleet().get(id) {
            return Ok(self.only.selects(&**dispatch));
        }
        // An archived dispatch does not change.
        let mut archived = self.archived.borrow_mut();
        if let Some(is_shown) = archived.get(id) {
            return Ok(*is_shown);
        }
        let is_shown = fleet.get(id)?.is_some_and(|of| self.only.selects(&*of));
        archived.insert(id.clone(), is_shown);
        Ok(is_shown)
    }
}

type Fits<'a> = dyn Fn(&Seen<'_>) -> Result<bool, Failure> + 'a;

async fn follow(context: &Context, from: u64, fits: &Fits<'_>) -> Result<Exit, Failure> {
    let lines = Lines::default();
    let mut each = |seen: Seen<'_>| {
        if fits(&seen)? {
            show(context, &lines, &seen)?;
        }
        Ok(ControlFlow::Continue(()))
    };
    let client = context.connect_if_running().await?;
    history::events(context, client, from, true, &mut each).await?;
    Ok(Exit::Done)
}

async fn lines(context: &Context, from: u64, fits: &Fits<'_>) -> Result<Exit, Failure> {
    let client = context.connect_if_running().await?;
    if client.is_none() {
        offline::say_so(context);
    }
    let lines = Lines::default();
    let mut each = |seen: Seen<'_>| {
        if fits(&seen)? {
            show(context, &lines, &seen)?;
        }
        Ok(ControlFlow::Continue(()))
    };
    history::events(context, client, from, false, &mut each).await?;
    Ok(Exit::Done)
}

/// Writes one document while reading, so that a year of events is not held in memory.
async fn document(context: &Context, from: u64, fits: &Fits<'_>) -> Result<Exit, Failure> {
    let client = context.connect_if_running().await?;
    let daemon = match &client {
        Some(client) => client.welcome().daemon_status(&context.socket),
        None => offline::stopped(context),
    };
    let out = &context.out;
    let daemon = serde_json::to_string(&daemon).map_err(std::io::Error::from)?;
    out.text(format!("{{\"daemon\":{daemon},\"events\":["))?;
    let mut first = true;
    let mut each = |seen: Seen<'_>| {
        if fits(&seen)? {
            out.text(if std::mem::take(&mut first) { "\n" } else { ",\n" })?;
            out.text(seen.line)?;
        }
        Ok(ControlFlow::Continue(()))
    };
    let read = history::events(context, client, from, false, &mut each).await;
    // The document is closed properly even if reading fails.
    match read {
        Err(failure) if failure.code().is_empty() => Err(failure),
        Err(failure) => {
            out.line(format!("\n],\"error\":{}}}", failure.document()["error"]))?;
            Ok(failure.exit())
        }
        Ok(()) => out.line("\n]}").map(|()| Exit::Done),
    }
}

fn show(context: &Context, lines: &Lines, seen: &Seen<'_>) -> Result<(), Failure> {
    match seen.record {
        _ if context.out.json => context.out.line(seen.line),
        Some(record) => lines.line(record).map_or(Ok(()), |line| context.out.line(line)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_set_back_hides_no_later_events() {
        let at = |second| Timestamp::from_second(second).ok();
        let since = Cell::new(at(100));
        let seen = [at(50), None, at(120), at(60), None, at(130)];
        assert_eq!(seen.map(|at| has_begun(&since, at)), [false, false, true, true, true, true]);
    }

    #[test]
    fn since_is_an_age_a_time_or_a_sequence_number() {
        assert_eq!((since("120"), since(" 120 ")), (Ok(Since::Seq(120)), Ok(Since::Seq(120))));
        assert!(matches!(since("2026-01-02T03:04:05Z"), Ok(Since::Time(_))));
        let Ok(Since::Time(hour_ago)) = since("1h") else { panic!("an age") };
        assert!((3590..3610).contains(&hour_ago.duration_until(Timestamp::now()).as_secs()));
        assert!(since("yesterday").is_err());
    }
}
