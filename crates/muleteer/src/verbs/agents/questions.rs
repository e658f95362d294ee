//! `questions`: lists everything that waits for the answer of a person.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::offline;
use crate::render::{BOLD, DIM, RESET, age, safe};
use jiff::Timestamp;
use muleteer_protocol::v1::{QuestionDoc, Reply, Request};
use muleteer_supervisor::question::view;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer questions
  muleteer questions --all
  muleteer questions --json | jq -r '.questions[] | \"\\(.id) \\(.text)\"'

Lists the open questions of all agents, runs and threads, with the command that
answers each. The first answer wins. --all adds the closed ones: who answered
what, and whether the agent has the answer. Without a running daemon, shows the
last state recorded on disk.";

/// List the questions that wait for a person
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Also list the closed ones
    #[arg(long)]
    all: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let questions = fetch(context, args.all).await?;
    if context.out.json {
        context.out.document(&json!({ "questions": questions }))?;
    } else if questions.is_empty() {
        context.out.line("no questions")?;
    } else {
        let pages: Vec<_> = questions.iter().map(page).collect();
        context.out.text(pages.join("\n"))?;
    }
    Ok(Exit::Done)
}

/// Gets the questions from the daemon if one runs, else from disk.
async fn fetch(context: &Context, all: bool) -> Result<Vec<QuestionDoc>, Failure> {
    if let Some(mut client) = context.connect_if_running().await? {
        match client.call(Request::Questions { all }).await {
            Ok(Reply::Questions { questions }) => return Ok(questions),
            Ok(other) => return Err(unexpected(&other)),
            // The daemon died between the handshake and the answer.
            Err(error) if error.is_lost() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let questions = view::questions(&offline::fleet(context)?, all);
    offline::say_so(context);
    Ok(questions)
}

/// Returns a question in a few lines: what is asked, by whom, and the way to answer.
fn page(question: &QuestionDoc) -> String {
    let mut head = vec![question.kind.clone(), question.state.clone(), question.asked_by.clone()];
    head.extend(question.dispatch_id.as_ref().map(|id| format!("dispatch {id}")));
    head.extend(question.thread_id.as_ref().map(|id| format!("thread {id}")));
    head.extend(asked(&question.asked_at));
    let mut text = format!(
        "{BOLD}{}{RESET} {DIM}{}{RESET}\n  {}\n",
        safe(&question.id),
        safe(&head.join(" · ")),
        safe(&question.text)
    );
    for (number, option) in (1..).zip(&question.options) {
        let description = match option.description.as_str() {
            "" => String::new(),
            description => format!(" — {}", safe(description)),
        };
        text.push_str(&format!("  {number}. {}{description}\n", safe(&option.label)));
    }
    if let Some(default) = &question.default {
        let deadline = question.deadline.as_deref().unwrap_or("no deadline");
        text.push_str(&format!("  default: {} at {deadline}\n", safe(default)));
    }
    match (&question.answer, &question.answered_by) {
        (Some(answer), Some(by)) => {
            let said = [answer.options.join(", "), answer.text.clone()];
            let said: Vec<_> = said.into_iter().filter(|part| !part.is_empty()).collect();
            let said = said.join(": ");
            text.push_str(&format!(
                "  answered by {} ({}): {}\n",
                safe(&by.user),
                safe(&by.adapter),
                safe(&said)
            ));
        }
        _ if question.state == "open" => {
            text.push_str(&format!("  muleteer answer {} {}\n", safe(&question.id), how(question)));
        }
        _ => {}
    }
    if let Some(reason) = &question.reason {
        text.push_str(&format!("  {}\n", safe(reason)));
    }
    text
}

/// Returns the words that answer a question.
fn how(question: &QuestionDoc) -> String {
    let mut words: Vec<_> =
        question.options.iter().take(6).map(|option| safe(&option.id).to_string()).collect();
    if question.free_text {
        words.push("TEXT".into());
    }
    words.join("|")
}

fn asked(at: &str) -> Option<String> {
    at.parse::<Timestamp>().ok()?;
    Some(format!("asked {} ago", age(Some(at), Timestamp::now())))
}
