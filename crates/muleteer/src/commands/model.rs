//! `model`: go on with another model.

use crate::commands::act;
use crate::commands::spawn::{model_name, random};
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use muleteer_protocol::v1::Request;

const EXAMPLES: &str = "\
Examples:
  muleteer model k3f9 haiku
  muleteer model k3f9 claude-opus-4-6 && muleteer send k3f9 \"Think harder about this one\"

Claude Code changes at once; any other agent with its next process.";

/// Make an agent go on with another model, in the same session
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch, by id or its beginning
    id: String,
    /// The model, as its CLI names it
    #[arg(value_parser = model_name)]
    model: String,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = act::target(context, &args.id).await?;
    let key = muleteer_model::id::encode(&[random()?, random()?].concat());
    act::done(context, Request::SetModel { id, key, model: args.model.clone() }, "changed").await
}
