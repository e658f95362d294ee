//! `status`: dispatches and agents, live or as last recorded.

use crate::commands::watching;
use crate::connect::unexpected;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::offline;
use crate::render::status::{detail, table};
use jiff::Timestamp;
use muleteer_protocol::v1::{Reply, Request, StatusReport};

const EXAMPLES: &str = "\
Examples:
  muleteer status
  muleteer status k3f9            everything about one dispatch
  muleteer status --watch
  muleteer status --json | jq '.dispatches[] | select(.state == \"running\") | .id'

With no daemon running, shows what was last recorded on disk, and says so.";

/// Show dispatches: their state, cost, tokens and results
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One dispatch, by id or its beginning
    id: Option<String>,
    /// Show it again whenever something happens
    #[arg(short, long)]
    watch: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.watch {
        return watching::run(context, || fetch(context, args.id.as_deref()), |report| render(report, args)).await;
    }
    let report = fetch(context, args.id.as_deref()).await?;
    if context.out.json {
        context.out.document(&report)?;
    } else {
        if !report.daemon.running {
            offline::say_so(context);
        }
        context.out.text(render(&report, args))?;
    }
    Ok(Exit::Done)
}

fn render(report: &StatusReport, args: &Args) -> String {
    match (&args.id, report.dispatches.as_slice()) {
        (Some(_), [one]) => detail(one, Timestamp::now()),
        (_, dispatches) => table(dispatches, Timestamp::now()),
    }
}

/// From the daemon if there is one, else from disk.
pub async fn fetch(context: &Context, id: Option<&str>) -> Result<StatusReport, Failure> {
    let Some(mut client) = context.connect_if_running().await? else {
        return offline::status(context, id);
    };
    match client.call(Request::Status { id: id.map(str::to_string) }).await {
        Ok(Reply::Status(report)) => Ok(report),
        Ok(other) => Err(unexpected(&other)),
        // It went away between the greeting and the answer.
        Err(error) if error.is_lost() => offline::status(context, id),
        Err(error) => Err(error.into()),
    }
}
