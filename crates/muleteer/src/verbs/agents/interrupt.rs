//! `interrupt`: stops the turn and keeps the session.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Example:
  muleteer interrupt k3f9 && muleteer send k3f9 \"Use the other branch instead\"";

/// Stop an agent's running turn; its session accepts further messages
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = dispatch_action::target(context, &args.id).await?;
    dispatch_action::done(context, Request::Interrupt { id }, "interrupted").await
}
