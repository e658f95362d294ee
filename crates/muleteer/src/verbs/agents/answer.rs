//! `answer`: answers a question of an agent, a run or a thread.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::{random, unexpected};
use crate::client::offline;
use crate::verbs::agents::dispatch_action;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer answer k3f9 allow
  muleteer answer k3f9 deny
  muleteer answer k3f9 \"Use git clean instead\"  deny, with this reason
  muleteer answer k3f9 \"Blue\"                   answer a question
  muleteer answer q7hx 2                        choose the second option
  muleteer answer q7hx red \"blue, dark\"         choose two options
  muleteer answer q7hx --text \"deny\"            answer with this very text

`muleteer questions` lists the open questions. If an agent asked several \
questions at once, give one line for each. The first answer wins: a later one \
exits 3 and says who was first. Exits 3 too if there is no open question.";

/// Answer a question or a permission request
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The question, or a dispatch with one: its id, or the beginning of it
    id: String,
    /// `allow`, `deny`, options, or a text: the answer, or the reason for a denial
    #[arg(required_unless_present = "text")]
    answer: Vec<String>,
    /// The answer as a text, whatever its words are
    #[arg(long, conflicts_with = "answer")]
    text: Option<String>,
    /// The request to answer if several are open: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    request: Option<String>,
}

/// Resolves the id of a question or a dispatch. Without a running daemon it is looked up on disk
/// first, so that a mistyped id does not start a daemon.
async fn target(context: &Context, id: &str) -> Result<String, Failure> {
    let is_live = context.is_agent || context.connect_if_running().await?.is_some();
    match is_live || offline::fleet(context)?.questions.find(id).is_ok() {
        true => Ok(id.to_string()),
        false => dispatch_action::target(context, id).await,
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let id = target(context, &args.id).await?;
    let said = args.text.clone().unwrap_or_else(|| args.answer.join(" "));
    let key = muleteer_model::event::id::encode(&[random()?, random()?].concat());
    let arguments = if args.answer.len() > 1 { args.answer.clone() } else { vec![] };
    let request =
        Request::Answer { id, request: args.request.clone(), answer: said, arguments, key };
    match context.ask(request).await? {
        Reply::Answered { dispatch_id, request_id, answer } if context.out.json => {
            let dispatch_id = (!dispatch_id.is_empty()).then_some(dispatch_id);
            let document =
                json!({ "dispatch_id": dispatch_id, "request_id": request_id, "answer": answer });
            context.out.document(&document)?;
        }
        Reply::Answered { dispatch_id, request_id, answer } => {
            let what = match answer.as_str() {
                "allow" => "allowed",
                "deny" => "denied",
                "approve" => "approved",
                "reject" => "rejected",
                "change" => "changes requested",
                _ => "answered",
            };
            let of = if dispatch_id.is_empty() { request_id } else { dispatch_id };
            context.out.note(format!("{of}: {what}"));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
