//! `kill`: ends agents permanently.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer kill k3f9
  muleteer kill k3f9 m2mz zmfe
  muleteer kill k3f9 --reason \"superseded by #42\"

The whole process group gets SIGTERM, and SIGKILL after 10 s. A killed agent is
never restarted, and it accepts no further messages.";

/// Kill agents and all their processes; they are not restarted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatches: their ids, or the beginnings of them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// The reason, for the journal and the events
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let kill = |id| Request::Kill { id, reason: args.reason.clone() };
    dispatch_action::each(context, &args.ids, kill, "killed").await
}
