//! `model`: continues a session with another model.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::random;
use crate::verbs::agents::dispatch_action;
use crate::verbs::agents::spawn::model_name;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer model k3f9 haiku
  muleteer model k3f9 claude-opus-4-6 && muleteer send k3f9 \"Think harder\"

Claude Code and ACP agents switch at once; Codex switches when its next process starts. A model \
that the agent or its model API refuses leaves the old one. cline and copilot cannot change it.";

/// Switch an agent to another model in the same session
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
    /// The model, by the name that the agent's CLI uses
    #[arg(value_parser = model_name)]
    model: String,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = dispatch_action::target(context, &args.id).await?;
    let key = muleteer_model::event::id::encode(&[random()?, random()?].concat());
    dispatch_action::done(
        context,
        Request::SetModel { id, key, model: args.model.clone() },
        "changed",
    )
    .await
}
