//! `close`: ends stalled or idle dispatches for good.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer close k3f9
  muleteer close k3f9 m2mz

Its state becomes killed, its reason \"closed\". It accepts no further messages.";

/// End dispatches that stalled or wait for a message; use `kill` while one works
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatches: their ids, or the beginnings of them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    dispatch_action::each(context, &args.ids, |id| Request::Close { id }, "closed").await
}
