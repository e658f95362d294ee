//! `send`: gives an agent a further turn.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::{random, unexpected};
use crate::verbs::agents::dispatch_action;
use crate::verbs::agents::spawn::{check_prompt, read_prompt};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer send k3f9 \"Now add a test for it\"
  muleteer send k3f9 - < review.txt
  muleteer send k3f9 --cli-command /compact

A message always goes to the model, even if it begins with a slash. Use --cli-command to run a \
command of the agent's own CLI.

Returns when the message is stored durably: no crash loses it or sends it twice.";

/// Send an agent a follow-up message
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
    /// The message; `-` reads it from stdin
    #[arg(required_unless_present = "cli_command")]
    text: Option<String>,
    /// Run a command of the agent's own CLI instead (claude-code, acp)
    #[arg(long, value_name = "COMMAND", conflicts_with = "text")]
    cli_command: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let text = match (&args.cli_command, args.text.as_deref()) {
        (Some(command), _) => command.clone(),
        (None, Some("-")) => read_prompt(std::io::stdin().lock())?,
        (None, text) => text.unwrap_or_default().to_string(),
    };
    if text.trim().is_empty() {
        return Err(Failure::new(ErrorCode::PromptMissing, "the prompt is empty"));
    }
    let text = check_prompt(text)?;
    let id = dispatch_action::target(context, &args.id).await?;
    // The client chooses the key, so that the daemon recognises the prompt when it is resent after
    // a lost answer.
    let key = muleteer_model::event::id::encode(&[random()?, random()?].concat());
    match context
        .ask(Request::Send { id, key, text, cli_command: args.cli_command.is_some() })
        .await?
    {
        Reply::Sent { dispatch_id, queued } if context.out.json => {
            context.out.document(&json!({ "dispatch_id": dispatch_id, "queued": queued }))?;
        }
        Reply::Sent { dispatch_id, queued: true } => {
            context.out.note(format!("{dispatch_id}: queued behind the running turn"))
        }
        Reply::Sent { dispatch_id, queued: false } => {
            context.out.note(format!("{dispatch_id}: sent"))
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
