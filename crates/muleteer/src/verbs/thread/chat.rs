//! `chat`: a conversation in a terminal, or over a pipe.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::interrupt;
use crate::render::terminal;
use crate::verbs::thread::list::fetch;
use crate::verbs::thread::new::{self, Agent};
use crate::verbs::thread::send::{author, end, left, new_key, send, target, wait};
use muleteer_model::conversation::TEXT_LIMIT;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::ThreadSend;
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{Config, Editor};
use std::io::{self, BufRead, Read};

const EXAMPLES: &str = "\
Examples:
  muleteer chat
  muleteer chat product-analyst web
  muleteer chat --thread k3f9
  printf 'Hello\\nAnd now?\\n' | muleteer chat reviewer .

With stdin a pipe, each line is a message (with -0 each NUL-terminated text), and each answer is
printed when it is complete, before the next message is sent. Exits with 4 if a message got no
answer. On a terminal a line that ends with a backslash goes on in the next one, Ctrl-C stops
waiting for an answer, and Ctrl-D ends the chat. The conversation is a thread: `muleteer thread
show` has it, and --thread continues it.";

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
    let is_typed = terminal::is_typed();
    let end_of_message = if args.null { 0 } else { b'\n' };
    let thread = match args.thread {
        Some(thread) => target(context, &thread).await?,
        None => {
            let Args { role, project, agent, .. } = args;
            new::open(&new::Args { role, project, title: None, agent }, context).await?
        }
    };
    // It is needed for the first message anyway.
    drop(context.connect_or_start().await?);
    context
        .out
        .note(format!("thread {thread}; `muleteer chat --thread {thread}` continues it"));
    match is_typed {
        true => typed(&thread, context).await,
        false => piped(&thread, end_of_message, context).await,
    }
}

/// Sends each message of stdin, and prints its answer before the next one is read.
async fn piped(thread: &str, end_of_message: u8, context: &Context) -> Result<Exit, Failure> {
    let mut exit = Exit::Done;
    while let Some(text) = blocking(move || read(end_of_message)).await?? {
        if text.trim().is_empty() {
            continue;
        }
        exit = exit.max(exchange(thread, text, context).await?);
        if exit == Exit::Interrupted {
            break;
        }
    }
    Ok(exit)
}

/// Reads one message; `None` at the end of the input. A message that is too long is an error before
/// all of it is read.
fn read(end_of_message: u8) -> Result<Option<String>, Failure> {
    let mut bytes = vec![];
    let mut input = io::stdin().lock().take(TEXT_LIMIT as u64 + 2);
    let count = input.read_until(end_of_message, &mut bytes).map_err(|error| unread(&error))?;
    if count == 0 {
        return Ok(None);
    }
    if bytes.last() == Some(&end_of_message) {
        bytes.pop();
    }
    if bytes.len() > TEXT_LIMIT {
        return Err(too_long());
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Failure::new(ErrorCode::BadInput, "the message is not valid UTF-8"))
}

/// Sends a message and prints its answer.
async fn exchange(thread: &str, text: String, context: &Context) -> Result<Exit, Failure> {
    let sent =
        ThreadSend { thread: thread.into(), key: new_key()?, text, name: author(), files: vec![] };
    let (thread, message, _) = send(context, sent).await?;
    let answered = async {
        let (message, answer) = wait(context, &thread, &message).await?;
        if let Some(answer) = &answer {
            context.out.line(&answer.text)?;
        }
        Ok(end(context, &message))
    };
    interrupt::or_left(context, left(&thread), answered).await
}

/// Reads messages with line editing, until the end of the input. Ctrl-C while an answer is awaited
/// stops only the waiting.
async fn typed(thread: &str, context: &Context) -> Result<Exit, Failure> {
    let mut lines = Lines::new(&earlier(thread, context).await?)?;
    loop {
        let (returned, read) = blocking(move || {
            let mut lines = lines;
            let read = lines.message();
            (lines, read)
        })
        .await?;
        lines = returned;
        match read? {
            None => return Ok(Exit::Done),
            Some(text) if text.trim().is_empty() => {}
            Some(text) if text.len() > TEXT_LIMIT => context.out.failure(&too_long()),
            Some(text) => match exchange(thread, text, context).await {
                Ok(_) => {}
                Err(failure @ Failure::OutputClosed) => return Err(failure),
                Err(failure) => context.out.failure(&failure),
            },
        }
    }
}

/// Returns the earlier messages of people in the thread, for the history of the line editor.
async fn earlier(thread: &str, context: &Context) -> Result<Vec<String>, Failure> {
    let shown = fetch(context, thread).await?;
    let inbound = shown.messages.into_iter().filter(|message| message.direction == "in");
    Ok(inbound.map(|message| message.text).collect())
}

/// The line editor of a terminal.
struct Lines(Editor<(), DefaultHistory>);

impl Lines {
    fn new(earlier: &[String]) -> Result<Self, Failure> {
        let config = Config::builder().auto_add_history(true).bracketed_paste(true).build();
        let mut editor = Editor::with_config(config).map_err(|error| unread(&error))?;
        for text in earlier {
            drop(editor.add_history_entry(text));
        }
        Ok(Self(editor))
    }

    /// Reads one message; `None` at the end of the input. A line that ends with a backslash goes on
    /// in the next one. Ctrl-C drops the line.
    fn message(&mut self) -> Result<Option<String>, Failure> {
        let mut text = String::new();
        loop {
            match self.0.readline(if text.is_empty() { "> " } else { "… " }) {
                Ok(line) => match line.strip_suffix('\\') {
                    Some(start) => {
                        text.push_str(start);
                        text.push('\n');
                    }
                    None => {
                        text.push_str(&line);
                        return Ok(Some(text));
                    }
                },
                Err(ReadlineError::Interrupted) => text.clear(),
                // The input may end within a message.
                Err(ReadlineError::Eof) => return Ok((!text.is_empty()).then_some(text)),
                Err(error) => return Err(unread(&error)),
            }
        }
    }
}

/// Runs a function that waits for the person, on a thread of its own.
async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(read).await.map_err(|error| unread(&error))
}

fn unread(error: &dyn std::error::Error) -> Failure {
    Failure::new(ErrorCode::Io, format!("cannot read the message: {error}"))
}

fn too_long() -> Failure {
    let message = format!("the message is longer than {} KiB", TEXT_LIMIT >> 10);
    Failure::new(ErrorCode::PromptTooLong, message)
        .hint("attach it with `muleteer thread send --file`")
}
