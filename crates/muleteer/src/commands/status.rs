//! `status`: dispatches and agents, live or as last recorded.

use crate::commands::watching;
use crate::connect::unexpected;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::offline;
use crate::render::status::{detail, table};
use clap::builder::PossibleValuesParser;
use jiff::Timestamp;
use muleteer_protocol::v1::{Reply, Request, StatusReport};

/// All that a dispatch can be in (contract.md, "States and outcomes").
const STATES: [&str; 10] =
    ["queued", "starting", "running", "waiting", "stalled", "success", "partial", "failed", "blocked", "killed"];

const EXAMPLES: &str = "\
Examples:
  muleteer status
  muleteer status k3f9            everything about one dispatch
  muleteer status --state running --state waiting
  muleteer status --limit 20      the newest 20
  muleteer status --watch
  muleteer status --state failed --json | jq -r '.dispatches[].id'

With no daemon running, shows what was last recorded on disk, and says so.";

/// Show dispatches: their state, cost, tokens and results
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// One dispatch, by id or its beginning
    id: Option<String>,
    /// Only those in this state; may be given more than once
    #[arg(long = "state", value_name = "STATE", value_parser = PossibleValuesParser::new(STATES), conflicts_with = "id")]
    states: Vec<String>,
    /// Only the newest so many, of those that fit
    #[arg(long, value_name = "N", conflicts_with = "id")]
    limit: Option<usize>,
    /// Show it again whenever something happens
    #[arg(short, long)]
    watch: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.watch {
        return watching::run(context, || wanted(context, args), |report| render(report, args)).await;
    }
    let report = wanted(context, args).await?;
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

async fn wanted(context: &Context, args: &Args) -> Result<StatusReport, Failure> {
    let mut report = fetch(context, args.id.as_deref()).await?;
    keep(&mut report.dispatches, &args.states, args.limit, |one| &one.state);
    Ok(report)
}

/// `dispatches` come the oldest first, and what is kept stays so.
fn keep<T>(dispatches: &mut Vec<T>, states: &[String], limit: Option<usize>, state: impl Fn(&T) -> &str) {
    dispatches.retain(|one| states.is_empty() || states.iter().any(|wanted| wanted == state(one)));
    let over = dispatches.len().saturating_sub(limit.unwrap_or(usize::MAX));
    dispatches.drain(..over);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_a_state_are_kept_and_of_them_the_newest() {
        let all = ["0 running", "1 failed", "2 waiting", "3 running", "4 running"];
        for (states, limit, expected) in [
            (&[][..], None, "01234"),
            (&["running"], None, "034"),
            (&["failed", "waiting"], None, "12"),
            (&[], Some(2), "34"),
            (&["running"], Some(1), "4"),
            (&["failed"], Some(9), "1"),
            (&["killed"], None, ""),
            (&[], Some(0), ""),
        ] {
            let states: Vec<String> = states.iter().map(ToString::to_string).collect();
            let mut kept = all.to_vec();
            keep(&mut kept, &states, limit, |one| &one[2..]);
            assert_eq!(kept.iter().map(|one| &one[..1]).collect::<String>(), expected, "{states:?} {limit:?}");
        }
    }
}
