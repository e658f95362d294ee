//! `prune`: removes stored data of dispatches that ended long ago.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::render;
use muleteer_model::config::Span;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Deprecated: `muleteer clean --output` does the same, and removes clones and archives journals.

Examples:
  muleteer prune --dry-run
  muleteer prune --older-than 7d
  muleteer prune --older-than 0s --json      all dispatches that have ended

Removes the output, prompts and request of agents (`agents/<id>` in the state directory). \
`status`, `wait`, `cost`, `events` and `journal` still work for such a dispatch; `logs` and \
`send` do not. Branches, journals, runs and the agents of a running run are not changed.";

/// Deprecated (use `clean --output`): delete the output of agents that ended long ago
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Delete only if they ended this long ago: 30d, 12h, 15m or bare seconds
    #[arg(long, value_name = "AGE", default_value = "30d")]
    older_than: Span,
    /// Only print what would be removed
    #[arg(long, short = 'n')]
    dry_run: bool,
}

/// The data that was removed, or would be.
#[derive(Debug, Default)]
pub(super) struct Pruned {
    pub dispatches: u64,
    /// The archived threads whose attached files were removed.
    pub threads: u64,
    pub bytes: u64,
    /// The removals that failed, as text for people.
    pub faults: Vec<String>,
}

/// Asks the daemon to remove the data of dispatches that ended long ago.
pub(super) async fn prune(
    older_than: Span,
    dry_run: bool,
    context: &Context,
) -> Result<Pruned, Failure> {
    let (mut sum, mut from_seq) = (Pruned::default(), Some(0));
    while let Some(seq) = from_seq {
        let request = Request::Prune { older_than_s: older_than.as_secs(), dry_run, from_seq: seq };
        match context.ask(request).await? {
            Reply::Pruned { dispatches, bytes, next_seq, faults, threads } => {
                sum.threads += threads;
                sum.dispatches += dispatches;
                sum.bytes += bytes;
                sum.faults.extend(faults);
                from_seq = next_seq;
            }
            other => return Err(unexpected(&other)),
        }
    }
    Ok(sum)
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let Pruned { dispatches: count, bytes: freed, faults, threads } =
        prune(args.older_than, args.dry_run, context).await?;
    let (done, size) =
        (if args.dry_run { "would be removed" } else { "removed" }, render::bytes(freed));
    if context.out.json {
        let mut document = json!({
            "dispatches": count, "bytes": freed, "dry_run": args.dry_run, "faults": faults,
        });
        if threads > 0 {
            document["threads"] = threads.into();
        }
        context.out.document(&document)?;
    } else {
        for fault in &faults {
            context.out.note(format!("not removed: {fault}"));
        }
        let of =
            if count == 1 { "one dispatch".to_string() } else { format!("{count} dispatches") };
        let and = match threads {
            0 => String::new(),
            1 => " and those attached to one archived thread".into(),
            many => format!(" and those attached to {many} archived threads"),
        };
        context.out.line(format!("the files of {of}{and} {done}: {size}"))?;
    }
    Ok(if faults.is_empty() { Exit::Done } else { Exit::Failed })
}
