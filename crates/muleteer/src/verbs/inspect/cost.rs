//! `cost`: the money and tokens spent, by agent, role, model, day or project.
//!
//! The sums come from the database, which has them by hour, and from the events that it lacks:
//! those after its newest record, and those of the hour in which `--since` begins. Without a
//! database that can be read (an agent in its sandbox sees none) they come from the events alone.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::time_arg;
use crate::client::history;
use crate::client::offline;
use crate::render::cost::{report, table};
use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::dispatch::cost::{self, Bill, Row, Use};
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_store::db::Projection;
use muleteer_store::events::tail::{Reader, Start};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  muleteer cost
  muleteer cost --by day --since 7d
  muleteer cost --by model --since 2026-01-01
  muleteer cost --by agent --since 1d
  muleteer cost --report --since 7d > cost.md   a summary in Markdown
  muleteer cost --by project --json | jq '.rows[] | select(.cost_usd > 10)'

The figures are those that the agent CLIs report. Some CLIs report tokens only: `no price` marks \
use without a price, and `+` a cost that lacks a part. Prices are set with `models.prices`.";

/// Show costs and tokens by agent, role, model, day or project
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Group by this; days are in UTC
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    by: By,
    /// Print a summary in Markdown by agent, role, model and day
    #[arg(long, conflicts_with = "by")]
    report: bool,
    /// Count only usage since then: an age (2h, 7d), a day or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = since)]
    since: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum By {
    #[default]
    Role,
    Model,
    Day,
    Project,
    Agent,
}

/// The tables of a report.
const REPORT: [By; 4] = [By::Agent, By::Role, By::Model, By::Day];

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Model => "model",
            Self::Day => "day",
            Self::Project => "project",
            Self::Agent => "agent",
        }
    }
}

impl From<By> for cost::By {
    fn from(by: By) -> Self {
        match by {
            By::Role => Self::Role,
            By::Model => Self::Model,
            By::Day => Self::Day,
            By::Project => Self::Project,
            By::Agent => Self::Agent,
        }
    }
}

fn since(text: &str) -> Result<Timestamp, ArgError> {
    time_arg::parse(text)
        .ok_or(ArgError::Wanted("expected an age (2h, 7d), a day (2026-01-31) or an RFC 3339 time"))
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let client = context.connect_if_running().await?;
    let running = client.is_some();
    if !running && !context.out.json {
        offline::say_so(context);
    }
    let groups = if args.report { REPORT.to_vec() } else { vec![args.by] };
    let mut bills: Vec<(&str, Bill)> =
        groups.into_iter().map(|by| (by.name(), Bill::new(by.into(), args.since))).collect();
    let is_known = match args.since {
        None => add_settled(context, &mut bills)? || add_known(context, None, &mut bills)?,
        since => add_known(context, since, &mut bills)?,
    };
    if !is_known {
        let mut each = |seen: history::Seen<'_>| {
            if let Some(record) = seen.record {
                bills.iter_mut().for_each(|(_, bill)| bill.add(record));
            }
            Ok(ControlFlow::Continue(()))
        };
        history::events(context, client, 0, false, &mut each).await?;
    }
    let since = args.since.map(|since| since.strftime("%Y-%m-%d %H:%M UTC").to_string());
    match &bills[..] {
        _ if args.report && context.out.json => {
            context.out.document(&report_document(&bills, since.as_deref(), running))?;
        }
        _ if args.report => context.out.text(report(&bills, since.as_deref()))?,
        [(by, bill), ..] if context.out.json => {
            context.out.document(&document(bill, by, running))?;
        }
        [(by, bill), ..] => context.out.text(table(bill, by))?,
        [] => {}
    }
    Ok(Exit::Done)
}

/// Adds all use: the sums of archived dispatches from the database, and the use of the others from
/// the database and the events that it lacks. Returns whether there are such sums; else the bills
/// are unchanged.
fn add_settled(context: &Context, bills: &mut [(&str, Bill)]) -> Result<bool, Failure> {
    // A damaged database is no concern of a bill: its daemon makes it again.
    let Ok(Some(database)) = Projection::open_read_only(&context.paths.database()) else {
        return Ok(false);
    };
    let mut rows = vec![];
    let read = database.at_one_moment(|database| {
        let sums: Result<Vec<_>, _> =
            bills.iter().map(|(_, bill)| database.settled(bill.by())).collect();
        let open = database.open_use(|id, at, used| {
            rows.push((id.clone(), at, used.model.to_string(), Use { model: "", ..*used }));
        })?;
        Ok((sums?, open))
    });
    let Ok((applied, (sums, open))) = read else { return Ok(false) };
    let Some(sums) = sums.into_iter().collect::<Option<Vec<_>>>() else { return Ok(false) };
    let events = context.paths.events();
    let mut rest = vec![];
    let mut reader = Reader::open(&events, Start::Seq(applied + 1)).map_err(offline::stored)?;
    while let Some(line) = reader.next_line().map_err(offline::stored)? {
        let is_created = matches!(line.record.entry.event, Event::DispatchCreated(_));
        if is_created || Use::of(&line.record.entry.event).is_some() {
            rest.push(line.record);
        }
    }
    let created = rest.iter().filter(|record| Use::of(&record.entry.event).is_none());
    let mut known: BTreeSet<&DispatchId> = open.iter().map(|open| &open.id).collect();
    known.extend(created.filter_map(|record| record.entry.dispatch_id.as_ref()));
    // A restored dispatch is in the sums, and has new use.
    if rest
        .iter()
        .filter_map(|record| record.entry.dispatch_id.as_ref())
        .any(|id| !known.contains(id))
    {
        return Ok(false);
    }
    // Only use without a cost needs the prices of its dispatch.
    let used = rows.iter().map(|(id, .., used)| (id, used.cost_usd));
    let used_later = rest.iter().filter_map(|record| {
        Some((record.entry.dispatch_id.as_ref()?, Use::of(&record.entry.event)?.cost_usd))
    });
    let unpaid: BTreeSet<DispatchId> = used
        .chain(used_later)
        .filter(|(_, cost)| *cost <= 0.0)
        .map(|(id, _)| id.clone())
        .collect();
    if !unpaid.is_empty() {
        let Ok(fleet) = offline::fleet(context) else { return Ok(false) };
        for id in &unpaid {
            let created = match fleet.get(id) {
                Some(dispatch) => Some(dispatch.created.clone()),
                None => database.finished(id).ok().flatten().map(|dispatch| dispatch.created),
            };
            let Some(created) = created else { continue };
            bills.iter_mut().for_each(|(_, bill)| bill.know(id, &created));
        }
    }
    for ((_, bill), sums) in bills.iter_mut().zip(&sums) {
        sums.rows.iter().for_each(|(key, sums)| bill.settle(key, sums));
        bill.settle_total(&sums.total);
        open.iter().for_each(|open| bill.know_paid(&open.id, &open.role, &open.project));
        for (id, at, model, used) in &rows {
            bill.count(id, *at, &Use { model, ..*used });
        }
        rest.iter().for_each(|record| bill.add(record));
    }
    Ok(true)
}

/// How far the times of neighbouring events may be out of order.
const MARGIN: SignedDuration = SignedDuration::from_hours(1);

/// Adds all use since `since` from the database and from the events that it lacks. Returns whether
/// there is such a database.
fn add_known(
    context: &Context,
    since: Option<Timestamp>,
    bills: &mut [(&str, Bill)],
) -> Result<bool, Failure> {
    let events = context.paths.events();
    // A damaged database is no concern of a bill: its daemon makes it again.
    let Ok(Some(database)) = Projection::open_read_only(&context.paths.database()) else {
        return Ok(false);
    };
    let hours = since.map_or(Timestamp::MIN, next_hour);
    let mut rows = vec![];
    let found = database.use_since(hours, |id, at, used| {
        rows.push((id.clone(), at, used.model.to_string(), Use { model: "", ..*used }));
    });
    let (Ok(applied), Ok(totals)) = (found, database.with_totals()) else { return Ok(false) };
    // After the database: it knows each dispatch of the rows.
    let Ok(fleet) = offline::fleet(context) else { return Ok(false) };
    let mut archived = vec![];
    if fleet.archived() > 0 {
        // Only use without a cost needs the prices of its dispatch.
        let is_unpaid = |used: &Use<'_>| used.cost_usd <= 0.0;
        let unpaid: BTreeSet<&DispatchId> = rows
            .iter()
            .filter(|(id, _, _, used)| is_unpaid(used) && fleet.get(id).is_none())
            .map(|(id, ..)| id)
            .collect();
        for id in unpaid {
            let Ok(found) = database.finished(id) else { return Ok(false) };
            archived.extend(found.map(|dispatch| (id.clone(), dispatch.created)));
        }
    }
    for (_, bill) in bills.iter_mut() {
        fleet.iter().for_each(|dispatch| bill.know(&dispatch.id, &dispatch.created));
        archived.iter().for_each(|(id, created)| bill.know(id, created));
    }
    if fleet.archived() > 0 {
        let roles = database.each_role(|id, role, project| {
            bills.iter_mut().for_each(|(_, bill)| bill.know_paid(&id, role, project));
        });
        if roles.is_err() {
            return Ok(false);
        }
    }
    for (_, bill) in bills.iter_mut() {
        totals.iter().for_each(|id| bill.know_total(id));
        for (id, at, model, used) in &rows {
            bill.count(id, *at, &Use { model, ..*used });
        }
    }
    if let Some(since) = since.filter(|since| *since < hours) {
        // A clock that was set back by less than the margin hides no event.
        let (early, late) = (since.saturating_sub(MARGIN), hours.saturating_add(MARGIN));
        let (early, late) = (early.unwrap_or(since), late.unwrap_or(hours));
        let mut reader = Reader::open(&events, Start::Time(early)).map_err(offline::stored)?;
        while let Some(line) = reader.next_line().map_err(offline::stored)? {
            if line.record.seq > applied || line.record.ts >= late {
                break;
            }
            if line.record.ts < hours {
                bills.iter_mut().for_each(|(_, bill)| bill.add(&line.record));
            }
        }
    }
    let mut rest = Reader::open(&events, Start::Seq(applied + 1)).map_err(offline::stored)?;
    while let Some(line) = rest.next_line().map_err(offline::stored)? {
        bills.iter_mut().for_each(|(_, bill)| bill.add(&line.record));
    }
    Ok(true)
}

/// Returns the next full hour in UTC, or this time if it is one.
fn next_hour(at: Timestamp) -> Timestamp {
    const HOUR: i64 = 3600;
    let whole = at.as_second().div_euclid(HOUR) * HOUR;
    let begin = Timestamp::from_second(whole).unwrap_or(at);
    match begin == at {
        true => at,
        false => Timestamp::from_second(whole + HOUR).unwrap_or(Timestamp::MAX),
    }
}

fn document(bill: &Bill, by: &str, running: bool) -> Value {
    let total = sums(bill, bill.total());
    json!({"running": running, "by": by, "rows": rows(bill, by), "total": total})
}

fn report_document(bills: &[(&str, Bill)], since: Option<&str>, running: bool) -> Value {
    let mut document = json!({
        "running": running,
        "since": since,
        "markdown": report(bills, since),
        "total": bills.first().map(|(_, bill)| sums(bill, bill.total())),
    });
    for (by, bill) in bills {
        document[format!("{by}s")] = json!(rows(bill, by));
    }
    document
}

fn rows(bill: &Bill, by: &str) -> Vec<Value> {
    let row = |(key, row): (&str, &Row)| {
        let mut value = sums(bill, row);
        value[by] = json!(key);
        if let Some((role, project)) = bill.dispatch(key).filter(|_| by == "agent") {
            value["role"] = json!(role);
            value["project"] = json!(project);
        }
        value
    };
    bill.rows().into_iter().map(row).collect()
}

fn sums(bill: &Bill, row: &Row) -> Value {
    let unpriced = bill.unpriced(row);
    json!({
        "unpriced_tokens": unpriced.tokens,
        "unpriced_models": unpriced.models,
        "cost_usd": row.cost_usd,
        "input": row.input,
        "output": row.output,
        "cache_read": row.cache_read,
        "cache_write": row.cache_write,
        "dispatches": row.dispatches(),
    })
}
