//! `send`: a further turn.

use crate::commands::act;
use crate::commands::spawn::{check_prompt, random, read_prompt};
use crate::connect::unexpected;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer send k3f9 \"Now add a test for it\"
  muleteer send k3f9 - < review.txt

Answered when the prompt is durable: no crash loses it, and none sends it twice.";

/// Give an agent a further turn in the same session
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch, by id or its beginning
    id: String,
    /// What to do next; `-` reads it from stdin
    text: String,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let text = if args.text == "-" { read_prompt(std::io::stdin().lock())? } else { args.text.clone() };
    if text.trim().is_empty() {
        return Err(Failure::new("E_PROMPT_MISSING", "the prompt is empty"));
    }
    let text = check_prompt(text)?;
    let id = act::target(context, &args.id).await?;
    // Ours, so that the prompt sent again after a lost answer is known to be the same one.
    let key = muleteer_model::id::encode(&[random()?, random()?].concat());
    match context.ask(Request::Send { id, key, text }).await? {
        Reply::Sent { dispatch_id, queued } if context.out.json => {
            context.out.document(&json!({ "dispatch_id": dispatch_id, "queued": queued }))?;
        }
        Reply::Sent { dispatch_id, queued: true } => {
            context.out.note(format!("{dispatch_id}: queued behind the running turn"))
        }
        Reply::Sent { dispatch_id, queued: false } => context.out.note(format!("{dispatch_id}: sent")),
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
