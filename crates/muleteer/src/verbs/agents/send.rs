//! `send`: gives an agent a further turn.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::{random, unexpected};
use crate::client::history;
use crate::verbs::agents::spawn::{check_prompt, read_prompt};
use crate::verbs::agents::{dispatch_action, follow};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer send k3f9 \"Now add a test for it\"
  muleteer send k3f9 - < review.txt
  muleteer send k3f9 --cli-command /compact
  muleteer send k3f9 \"Run the tests again\" --wait && echo passed

A message always goes to the model, even if it begins with a slash. Use
--cli-command to run a command of the agent's own CLI. A dispatch that was
killed accepts no messages.

Returns when the message is stored durably: no crash loses it or sends it
twice. With --wait or --follow it returns when the dispatch has ended, and exits
as `wait` does.";

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
    /// Wait until the dispatch has ended; the exit code is its outcome
    #[arg(long)]
    wait: bool,
    /// Print what happens from now on, until the dispatch has ended
    #[arg(long, conflicts_with = "wait")]
    follow: bool,
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
    let from = history::last_seqs(context, 0);
    let request = Request::Send { id, key, text, cli_command: args.cli_command.is_some() };
    let (dispatch_id, queued) = match context.ask(request).await? {
        Reply::Sent { dispatch_id, queued } => (dispatch_id, queued),
        other => return Err(unexpected(&other)),
    };
    if !context.out.json {
        let what = if queued { "queued behind the running turn" } else { "sent" };
        context.out.note(format!("{dispatch_id}: {what}"));
    } else if !args.wait && !args.follow {
        context.out.document(&json!({ "dispatch_id": dispatch_id, "queued": queued }))?;
    }
    follow::until_asked(context, &dispatch_id, from, (args.wait, args.follow)).await
}
