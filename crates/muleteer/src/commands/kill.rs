//! `kill`: end an agent for good.

use crate::commands::act;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer kill k3f9
  muleteer kill k3f9 --reason \"superseded by #42\"

The whole process group gets TERM, and after 10 s KILL. A killed agent is never restarted.";

/// End an agent and all its processes; it is not restarted
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch, by id or its beginning
    id: String,
    /// Why, for the journal and the events
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = act::target(context, &args.id).await?;
    act::done(context, Request::Kill { id, reason: args.reason.clone() }, "killed").await
}
