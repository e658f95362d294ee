//! `kill`: ends an agent permanently.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer kill k3f9
  muleteer kill k3f9 --reason \"superseded by #42\"

The whole process group gets SIGTERM, and SIGKILL after 10 s. A killed agent is never restarted.";

/// Kill an agent and all its processes; it is not restarted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
    /// The reason, for the journal and the events
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = dispatch_action::target(context, &args.id).await?;
    dispatch_action::done(context, Request::Kill { id, reason: args.reason.clone() }, "killed")
        .await
}
