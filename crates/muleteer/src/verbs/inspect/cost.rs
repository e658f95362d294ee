//! `cost`: the money and tokens spent, by role, model, day or project.
//!
//! The sums come from the events and not from the database. The database may lag behind (right
//! after a `kill -9`) or be missing. Reading a year of events takes only a moment.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::time_arg;
use crate::client::history;
use crate::client::offline;
use crate::render::cost::table;
use clap::ValueEnum;
use jiff::Timestamp;
use muleteer_model::dispatch::cost::{self, Bill, Row};
use serde_json::{Value, json};
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  muleteer cost
  muleteer cost --by day --since 7d
  muleteer cost --by model --since 2026-01-01
  muleteer cost --by project --json | jq '.rows[] | select(.cost_usd > 10) | .project'

The figures are those that the agent CLIs report. Some CLIs report tokens only.";

/// Show costs and tokens by role, model, day or project
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Group by this; days are in UTC
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    by: By,
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
}

impl By {
    fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Model => "model",
            Self::Day => "day",
            Self::Project => "project",
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
    let mut bill = Bill::new(args.by.into(), args.since);
    let mut each = |seen: history::Seen<'_>| {
        if let Some(record) = seen.record {
            bill.add(record);
        }
        Ok(ControlFlow::Continue(()))
    };
    history::events(context, client, 0, false, &mut each).await?;
    if context.out.json {
        context.out.document(&document(&bill, args.by.name(), running))?;
    } else {
        context.out.text(table(&bill, args.by.name()))?;
    }
    Ok(Exit::Done)
}

fn document(bill: &Bill, by: &str, running: bool) -> Value {
    let rows: Vec<Value> = bill
        .rows()
        .into_iter()
        .map(|(key, row)| {
            let mut value = sums(row);
            value[by] = json!(key);
            value
        })
        .collect();
    json!({"running": running, "by": by, "rows": rows, "total": sums(bill.total())})
}

fn sums(row: &Row) -> Value {
    json!({
        "cost_usd": row.cost_usd,
        "input": row.input,
        "output": row.output,
        "cache_read": row.cache_read,
        "cache_write": row.cache_write,
        "dispatches": row.dispatches.len(),
    })
}
