//! `clean`: removes clones whose work is in the repository, and archives journals.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::render::clean::text;
use crate::verbs::agents::prune::{Pruned, prune};
use muleteer_model::config::Span;
use muleteer_protocol::v1::{Archived, Clean, Cleaned, Compressed, Kept, Removed, Reply, Request};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  muleteer clean                          what would be removed, what stays, why
  muleteer clean --apply
  muleteer clean --apply --older-than 7d  only what ended a week ago or earlier
  muleteer clean --apply --failed         also those that failed or stalled

Removes the clones of `spawn --worktree` after it has fetched all their work into the repository: \
branches, and refs below refs/muleteer/left. A clone with work that cannot be fetched stays. \
Journals move to .agents/journals/archive, where `muleteer journal` finds them. A dispatch \
without its clone takes no more messages. `retention.clean_after` in the configuration does the \
same regularly.

Compresses the output of agents and the logs of runs that have ended; every command reads them \
as before, and `retention.compress_after` does the same regularly. With --output, files attached \
to archived threads go too, once no session of the thread has its files.

With `retention.events` in the configuration, events of that age go too, but for those of \
dispatches that are unfinished or have files, of threads and of task lists. Costs, durations and \
outcomes stay in the folder metrics.";

/// Remove clones whose work is in the repository, and archive journals
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Carry it out; without this, only show what would be removed
    #[arg(long)]
    apply: bool,
    /// Only dispatches that ended this long ago: 30d, 12h, 15m or bare seconds
    #[arg(long, value_name = "AGE", default_value = "0s")]
    older_than: Span,
    /// Include dispatches that stalled, failed, were blocked or did only a part
    #[arg(long)]
    failed: bool,
    /// Also delete the output, prompts and requests of agents, so `logs` and `send` stop working
    #[arg(long)]
    output: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let mut report = Cleaned::default();
    let mut from_seq = Some(0);
    while let Some(seq) = from_seq {
        let request = Request::Clean(Clean {
            older_than_s: args.older_than.as_secs(),
            apply: args.apply,
            failed: args.failed,
            from_seq: seq,
        });
        match context.ask(request).await? {
            Reply::Cleaned(more) => {
                report.removed.extend(more.removed);
                report.archived.extend(more.archived);
                report.kept.extend(more.kept);
                report.faults += more.faults;
                report.events = more.events.or(report.events);
                if let Some(more) = more.compressed {
                    report.compressed.get_or_insert_default().add(more);
                }
                from_seq = more.next_seq;
            }
            other => return Err(unexpected(&other)),
        }
    }
    let pruned = match args.output {
        true => Some(prune(args.older_than, !args.apply, context).await?),
        false => None,
    };
    if context.out.json {
        context.out.document(&document(&report, pruned.as_ref(), !args.apply))?;
    } else {
        context.out.text(text(&report, pruned.as_ref().map(|pruned| pruned.bytes), args.apply))?;
        for fault in pruned.iter().flat_map(|pruned| &pruned.faults) {
            context.out.note(format!("not removed: {fault}"));
        }
    }
    let faults = pruned.is_some_and(|pruned| !pruned.faults.is_empty());
    Ok(if report.faults == 0 && !faults { Exit::Done } else { Exit::Failed })
}

fn removed(Removed { path, bytes, dispatch_id }: &Removed) -> Value {
    json!({ "path": path, "bytes": bytes, "dispatch_id": dispatch_id })
}

fn archived(Archived { path, to, dispatch_id }: &Archived) -> Value {
    json!({ "path": path, "to": to, "dispatch_id": dispatch_id })
}

fn kept(Kept { path, reason, dispatch_id }: &Kept) -> Value {
    json!({ "path": path, "reason": reason, "dispatch_id": dispatch_id })
}

fn document(report: &Cleaned, pruned: Option<&Pruned>, dry_run: bool) -> Value {
    let clones: u64 = report.removed.iter().map(|clone| clone.bytes).sum();
    let mut document = json!({
        "removed": report.removed.iter().map(removed).collect::<Vec<_>>(),
        "archived": report.archived.iter().map(archived).collect::<Vec<_>>(),
        "kept": report.kept.iter().map(kept).collect::<Vec<_>>(),
        "bytes": clones + pruned.map_or(0, |pruned| pruned.bytes),
        "dry_run": dry_run,
    });
    if let Some(events) = report.events {
        document["events"] = json!({
            "through": events.through, "events": events.events, "bytes": events.bytes,
            "kept": events.kept,
        });
    }
    if let Some(Compressed { outputs, runs, bytes }) = report.compressed {
        document["compressed"] = json!({ "outputs": outputs, "runs": runs, "bytes": bytes });
    }
    if let Some(pruned) = pruned {
        document["output"] = json!({
            "dispatches": pruned.dispatches, "bytes": pruned.bytes, "faults": pruned.faults,
        });
        if pruned.threads > 0 {
            document["output"]["threads"] = pruned.threads.into();
        }
    }
    document
}
