//! `chat`: a conversation in a terminal, or over a pipe.
//!
//! ```text
//!  input (line editor) ──▶ terminal ──▶ requests: send, answer, interrupt
//!  feed (live view)    ──▶    │
//!                             └──▶ view (lines) ──▶ screen (above the prompt)
//! ```

mod completion;
mod feed;
mod input;
mod markdown;
mod pipe;
mod questions;
mod screen;
mod terminal;
mod view;

use crate::cli::context::{Context, here};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render;
use crate::verbs::thread::list;
use crate::verbs::thread::new::{self, Agent};
use crate::verbs::thread::send::target;
use muleteer_protocol::ErrorCode;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  muleteer chat
  muleteer chat product-analyst web
  muleteer chat --thread k3f9
  muleteer chat --continue
  printf 'Hello\\nAnd now?\\n' | muleteer chat reviewer .

On a terminal the answer appears as the agent writes it, with its tool calls. You may type \
meanwhile: a message says what it waits for. Answer a question of the agent in place, by a number, \
a word or a text. A line that ends with a backslash goes on in the next one, and /editor opens \
your editor. Ctrl-C interrupts the agent's turn, a second one leaves, and Ctrl-D leaves. The \
conversation is a thread and stays: --thread or --continue goes on with it.

With stdin a pipe, each line is a message (with -0 each NUL-terminated text), and each answer is \
printed when it is complete, before the next message is sent. Exits with 4 if a message got no \
answer.";

/// Talk with an agent; with stdin a pipe, one message a line
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The role that answers [default: product-analyst]
    #[arg(conflicts_with = "thread")]
    role: Option<String>,
    /// The project: a directory, or a configured name [default: the current directory]
    #[arg(conflicts_with = "thread")]
    project: Option<String>,
    /// Continue this thread: its id, or the beginning of it
    #[arg(long, conflicts_with = "Agent")]
    thread: Option<String>,
    /// Continue the newest thread of this directory
    #[arg(long = "continue", conflicts_with_all = ["thread", "role", "project", "Agent"])]
    newest: bool,
    /// Show so many earlier messages
    #[arg(long, value_name = "N", default_value_t = 10)]
    history: u32,
    /// Messages on stdin end with NUL instead of a newline
    #[arg(short = '0', long)]
    null: bool,
    #[command(flatten)]
    agent: Agent,
}

pub async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if context.out.json {
        return Err(Failure::new(ErrorCode::Usage, "chat has no --json")
            .hint("use `muleteer thread send --wait --json`"));
    }
    let is_typed = render::terminal::is_typed();
    let end_of_message = if args.null { 0 } else { b'\n' };
    let history = args.history;
    let thread = match args.thread {
        Some(thread) => target(context, &thread).await?,
        None if args.newest => newest(context).await?,
        None => {
            let Args { role, project, agent, .. } = args;
            new::open(&new::Args { role, project, title: None, agent }, context).await?
        }
    };
    // It is needed for the first message anyway.
    drop(context.connect_or_start().await?);
    match is_typed {
        true => terminal::typed(&thread, history, context).await,
        false => {
            context.out.note(terminal::continues(&thread));
            pipe::piped(&thread, end_of_message, context).await
        }
    }
}

/// Returns the newest open thread of the current directory.
async fn newest(context: &Context) -> Result<String, Failure> {
    let here = here(ErrorCode::ProjectNotFound)?;
    let threads = list::threads(context).await?;
    let of_here = threads.into_iter().find(|thread| {
        let is_here = Path::new(&thread.project) == here;
        is_here && thread.state == "open" && thread.adapter == "cli"
    });
    of_here.map(|thread| thread.id).ok_or_else(|| {
        let message = format!("{} has no open thread", here.display());
        Failure::new(ErrorCode::NotFound, message)
            .hint("begin one with `muleteer chat`, or name one of `muleteer thread list`")
    })
}
