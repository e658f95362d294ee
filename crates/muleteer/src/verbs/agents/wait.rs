//! `wait`: waits until dispatches have ended.

use crate::cli::context::Context;
use crate::cli::exit::{self, Exit};
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::history::{self, Seen};
use crate::client::interrupt;
use crate::client::offline;
use crate::render::safe;
use crate::render::status::ending;
use muleteer_model::agent::ask::AskKind;
use muleteer_model::event::Event;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{DispatchStatus, Reply, Request};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::ops::ControlFlow;

const EXAMPLES: &str = "\
Examples:
  muleteer wait k3f9
  muleteer wait k3f9 m2mz
  muleteer wait --any k3f9 m2mz        until the first of them has ended
  muleteer wait $(muleteer spawn tester . \"Run the tests\") && echo passed

Exits 0 if all succeeded; 4 if one was partial, failed, blocked or stalled;
6 if one was killed; 130 at Ctrl-C, which does not stop the agents. With --any
only those count that have ended.";

/// Wait until dispatches have ended; the exit code is their outcome
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatches: their ids, or the beginnings of them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Wait only until one of them has ended, and print those that have
    #[arg(long)]
    any: bool,
}

/// The condition that ends a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    All,
    Any,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    interrupt::or_left(context, left(&args.ids), all(args, context)).await
}

/// The message for a user who stops waiting.
pub fn left(ids: &[String]) -> Failure {
    let all = ids.join(" ");
    let left = Failure::new(
        ErrorCode::Cancelled,
        format!("stopped waiting for {all}; the dispatches continue"),
    )
    .hint(format!("wait again with `muleteer wait {all}`"));
    if let [one] = ids { left.dispatch(one) } else { left }
}

async fn all(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let until = if args.any { Until::Any } else { Until::All };
    let dispatches = each_once(ended(context, args.ids.clone(), until).await?);
    let out = &context.out;
    if out.json {
        Failure::unless_closed(out.document(&json!({ "dispatches": dispatches })))?;
    } else {
        for dispatch in &dispatches {
            Failure::unless_closed(out.line(ending(dispatch)))?;
        }
    }
    Ok(worst(&dispatches))
}

/// Removes duplicates: a user may name a dispatch twice, or by two beginnings of its id.
fn each_once(mut dispatches: Vec<DispatchStatus>) -> Vec<DispatchStatus> {
    let mut known = HashSet::new();
    dispatches.retain(|dispatch| known.insert(dispatch.id.clone()));
    dispatches
}

/// Waits for one dispatch, for `spawn --wait`. Its id is already on stdout, except with `--json`:
/// that prints only one document, at the end.
pub async fn one(context: &Context, id: &str) -> Result<Exit, Failure> {
    let dispatches = ended(context, vec![id.to_string()], Until::All).await?;
    for dispatch in &dispatches {
        if context.out.json {
            Failure::unless_closed(context.out.document(&document(dispatch)))?;
        } else {
            context.out.note(ending(dispatch));
        }
    }
    Ok(worst(&dispatches))
}

/// Returns a dispatch as `status` shows it, with the key of `spawn --json` added.
pub fn document(dispatch: &DispatchStatus) -> Value {
    let mut value = json!({ "dispatch_id": dispatch.id });
    if let (Some(object), Ok(Value::Object(more))) =
        (value.as_object_mut(), serde_json::to_value(dispatch))
    {
        object.extend(more);
    }
    value
}

/// Waits until all dispatches, or any of them, have ended, across daemon restarts and without a
/// time limit. Returns those that have ended.
///
/// Without a daemon, dispatches that have ended are answered from disk. Otherwise a daemon is
/// started, because without one nothing unfinished ever ends.
pub async fn ended(
    context: &Context,
    ids: Vec<String>,
    until: Until,
) -> Result<Vec<DispatchStatus>, Failure> {
    if context.connect_if_running().await?.is_none()
        && let Some(all) = offline::ended(context, &ids, until == Until::Any)?
    {
        offline::say_so(context);
        return Ok(all);
    }
    // These notes are a convenience, and a failure to print them must not end the waiting.
    let telling = async {
        let _ = tell(context, &ids).await;
        std::future::pending::<()>().await;
    };
    let request = match until {
        Until::All => Request::Wait { ids: ids.clone() },
        Until::Any => Request::WaitAny { ids: ids.clone() },
    };
    tokio::select! {
        reply = context.ask(request) => match reply? {
            Reply::Waited { dispatches } => Ok(dispatches),
            other => Err(unexpected(&other)),
        },
        () = telling => Ok(vec![]),
    }
}

/// Reports on stderr when a dispatch waits for an answer. The waiting user may be the one to give
/// it.
async fn tell(context: &Context, ids: &[String]) -> Result<(), Failure> {
    if context.out.quiet {
        return Ok(());
    }
    // The requests that were reported: the dispatch, and when it asked. The events have the agent's
    // own ids of requests, and the status has those of the questions.
    let mut told: Vec<(String, String)> = Vec::new();
    let from = history::last_seqs(context, 0);
    for id in ids {
        let Reply::Status(report) =
            context.ask(Request::Status { id: Some(id.clone()), archived: false }).await?
        else {
            continue;
        };
        let is_new = |dispatch: &&DispatchStatus| {
            let mut asks = dispatch.waiting_for.iter();
            asks.any(|ask| !told.contains(&(dispatch.id.clone(), ask.since.clone())))
        };
        for dispatch in report.dispatches.iter().filter(is_new).collect::<Vec<_>>() {
            let asks = dispatch.waiting_for.iter();
            told.extend(asks.map(|ask| (dispatch.id.clone(), ask.since.clone())));
            let what = dispatch.reason.as_deref().unwrap_or("it has an open request");
            context.out.note(format!("{}: {}", dispatch.id, safe(what)));
        }
    }
    let mut each = |seen: Seen<'_>| {
        if let Some(record) = seen.record
            && let Some(id) = record
                .entry
                .dispatch_id
                .as_ref()
                .filter(|id| ids.iter().any(|wanted| id.as_str().starts_with(wanted.as_str())))
            && let Event::PermissionRequested { answered: false, ask, .. } = &record.entry.event
            && !told.contains(&(id.to_string(), format!("{:.3}", record.ts)))
        {
            let words = if ask.kind == AskKind::Question { "TEXT|deny" } else { "allow|deny|TEXT" };
            context
                .out
                .note(format!("{id}: {} `muleteer answer {id} {words}`", safe(&ask.describe())));
        }
        Ok(ControlFlow::Continue(()))
    };
    let client = context.connect_if_running().await?;
    history::events(context, client, from, true, &mut each).await
}

pub fn worst(dispatches: &[DispatchStatus]) -> Exit {
    dispatches
        .iter()
        .map(|dispatch| exit::of_state(&dispatch.state))
        .max()
        .unwrap_or(Exit::Done)
}
