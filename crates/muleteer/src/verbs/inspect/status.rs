//! `status`: shows dispatches and agents, live or as last recorded.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::filter::Filter;
use crate::client::connect::unexpected;
use crate::client::offline;
use crate::client::watch_report;
use crate::render::status::{detail, newest, run_questions, running_first, table, verbose_detail};
use jiff::Timestamp;
use muleteer_protocol::v1::{Reply, Request, StatusReport};

const EXAMPLES: &str = "\
Examples:
  muleteer status
  muleteer status k3f9            one dispatch in full
  muleteer status --watch
  muleteer status --state running --state waiting
  muleteer status --role tester --project web
  muleteer status --all --limit 100
  muleteer status --json | jq '.dispatches[] | select(.turns > 9) | .id'

Without a running daemon, shows the last state recorded on disk.";

/// Show dispatches: their state, cost, tokens and results
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show one dispatch: its id, or the beginning of it
    #[arg(conflicts_with_all = ["all", "limit", "Filter"])]
    id: Option<String>,
    /// Show all dispatches, not only the 20 that ended last
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    only: Filter,
    /// Show only the newest N dispatches
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Redraw the output in place when something changes, running agents first
    #[arg(short, long)]
    watch: bool,
}

/// The number of ended dispatches in the table.
const ENDED: usize = 20;

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let verbose = context.out.verbose > 0;
    if args.watch {
        let fetch = async || args.fetch(context).await.map(|report| args.choose(report));
        let render = |report: &StatusReport| {
            let mut report = report.clone();
            running_first(&mut report.dispatches);
            render(&report, args, verbose)
        };
        return watch_report::run(context, fetch, render).await;
    }
    let report = args.choose(args.fetch(context).await?);
    if context.out.json {
        context.out.document(&report)?;
    } else {
        if !report.daemon.running {
            offline::say_so(context);
        }
        for fault in &report.daemon.role_faults {
            context.out.note(format!("warning: {fault}"));
        }
        for fault in &report.daemon.config_faults {
            context.out.note(format!(
                "warning: the last valid configuration is in force, because of this fault: {fault}"
            ));
        }
        context.out.text(render(&report, args, verbose))?;
    }
    Ok(Exit::Done)
}

fn render(report: &StatusReport, args: &Args, verbose: bool) -> String {
    match (&args.id, report.dispatches.as_slice()) {
        (Some(_), [one]) if verbose => verbose_detail(one, Timestamp::now()),
        (Some(_), [one]) => detail(one, Timestamp::now()),
        (_, dispatches) if args.all || args.limit.is_some() || !args.only.is_empty() => {
            table(dispatches, Timestamp::now())
        }
        (_, dispatches) => {
            let table = newest(dispatches, report.archived, ENDED, Timestamp::now());
            format!("{}{table}", run_questions(&report.run_questions))
        }
    }
}

impl Args {
    async fn fetch(&self, context: &Context) -> Result<StatusReport, Failure> {
        match self.id.as_deref() {
            Some(id) => fetch(context, Some(id)).await,
            // The table has the newest ones only, which are not archived.
            None if !context.out.json
                && !self.all
                && self.limit.is_none()
                && self.only.is_empty() =>
            {
                fetch(context, None).await
            }
            None => fetch_all(context).await,
        }
    }

    fn choose(&self, mut report: StatusReport) -> StatusReport {
        report.dispatches.retain(|dispatch| self.only.selects(dispatch));
        let extra = report.dispatches.len().saturating_sub(self.limit.unwrap_or(usize::MAX));
        report.dispatches.drain(..extra);
        report
    }
}

/// Gets the report from the daemon if one runs, else from disk. Without an id, it leaves archived
/// dispatches out.
pub async fn fetch(context: &Context, id: Option<&str>) -> Result<StatusReport, Failure> {
    ask(context, id, false).await
}

/// Gets the report about all dispatches, the archived ones too.
async fn fetch_all(context: &Context) -> Result<StatusReport, Failure> {
    ask(context, None, true).await
}

async fn ask(context: &Context, id: Option<&str>, archived: bool) -> Result<StatusReport, Failure> {
    let Some(mut client) = context.connect_if_running().await? else {
        return offline::status(context, id, archived);
    };
    match client.call(Request::Status { id: id.map(str::to_string), archived }).await {
        Ok(Reply::Status(report)) => Ok(report),
        Ok(other) => Err(unexpected(&other)),
        // The daemon died between the handshake and the answer.
        Err(error) if error.is_lost() => offline::status(context, id, archived),
        Err(error) => Err(error.into()),
    }
}
