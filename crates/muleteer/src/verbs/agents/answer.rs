//! `answer`: answers an agent's permission request or question.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::{random, unexpected};
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer answer k3f9 allow
  muleteer answer k3f9 deny
  muleteer answer k3f9 \"Use git clean instead\"  deny, with this reason
  muleteer answer k3f9 \"Blue\"                   answer a question

`muleteer status` shows the open requests. If an agent asked several questions, \
give one line for each. Exits 3 if there is no open request.";

/// Answer an agent's permission request or question
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
    /// `allow`, `deny`, or a text: the answer to a question, or the reason for a denial
    answer: String,
    /// The request to answer if several are open: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = dispatch_action::target(context, &args.id).await?;
    let key = muleteer_model::event::id::encode(&[random()?, random()?].concat());
    let request =
        Request::Answer { id, request: args.request.clone(), answer: args.answer.clone(), key };
    match context.ask(request).await? {
        Reply::Answered { dispatch_id, request_id, answer } if context.out.json => {
            let document =
                json!({ "dispatch_id": dispatch_id, "request_id": request_id, "answer": answer });
            context.out.document(&document)?;
        }
        Reply::Answered { dispatch_id, answer, .. } => {
            let what = match answer.as_str() {
                "allow" => "allowed",
                "deny" => "denied",
                _ => "answered",
            };
            context.out.note(format!("{dispatch_id}: {what}"));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
