//! `thread send`: writes a message into a thread.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::{random, unexpected};
use crate::client::{interrupt, offline};
use crate::render::{safe, terminal};
use crate::verbs::agents::spawn::read_prompt;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{AttachedFile, FILES_LIMIT, MessageDoc, Reply, Request, ThreadSend};
use serde_json::{Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  muleteer thread send k3f9 \"Which formats do we support?\"
  muleteer thread send k3f9 \"And now?\" --wait
  muleteer thread send k3f9 \"Look at this\" --file screenshot.png
  git diff | muleteer thread send k3f9 --key review-42

Returns when the message is stored durably: no crash loses it or delivers it
twice. The same --key in the same thread is the same message, for ever. With
--wait it returns when the message is answered, and prints the answer; it exits
with 4 if the message is refused, or if nobody can tell whether the agent got it.";

/// Write a message; prints its id, or with --wait the answer
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The thread: its id, or the beginning of it
    thread: String,
    /// The message [default: read from stdin]; `-` reads it from stdin too
    text: Option<String>,
    /// Identify the message: the same key is the same message [default: a random one]
    #[arg(long)]
    key: Option<String>,
    /// Attach a file; may be repeated
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Wait for the answer, and print it
    #[arg(long)]
    wait: bool,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let text = text(args)?;
    let files = args.file.iter().map(|path| attached(path)).collect::<Result<Vec<_>, _>>()?;
    if files.iter().map(|file| file.content.len()).sum::<usize>() > FILES_LIMIT {
        return Err(too_large());
    }
    let key = args.key.clone().map_or_else(new_key, Ok)?;
    let thread = target(context, &args.thread).await?;
    let sent = ThreadSend { thread, key, text, name: author(), files };
    let (thread_id, message_id, state) = send(context, sent).await?;
    if !args.wait {
        if context.out.json {
            let document =
                json!({ "thread_id": thread_id, "message_id": message_id, "state": state });
            context.out.document(&document)?;
        } else {
            context.out.line(&message_id)?;
        }
        return Ok(Exit::Done);
    }
    let left = left(&thread_id);
    interrupt::or_left(context, left, answered(context, &thread_id, &message_id)).await
}

/// Sends a message. Returns the ids of the thread and the message, and the message's state.
///
/// # Errors
/// The daemon's.
pub async fn send(
    context: &Context,
    sent: ThreadSend,
) -> Result<(String, String, String), Failure> {
    match context.ask(Request::ThreadSend(Box::new(sent))).await? {
        Reply::MessageAccepted { thread_id, message_id, state } => {
            Ok((thread_id, message_id, state))
        }
        other => Err(unexpected(&other)),
    }
}

/// Waits until the state of a message changes no more. Returns it with its answer.
///
/// # Errors
/// The daemon's.
pub async fn wait(
    context: &Context,
    thread: &str,
    message: &str,
) -> Result<(MessageDoc, Option<MessageDoc>), Failure> {
    let request = Request::ThreadWait { thread: thread.into(), message: message.into() };
    match context.ask(request).await? {
        Reply::Message { message, answer, .. } => Ok((*message, answer.map(|answer| *answer))),
        other => Err(unexpected(&other)),
    }
}

async fn answered(context: &Context, thread: &str, message: &str) -> Result<Exit, Failure> {
    let (message, answer) = wait(context, thread, message).await?;
    if context.out.json {
        let document = document(thread, &message, answer.as_ref());
        Failure::unless_closed(context.out.document(&document))?;
    } else if let Some(answer) = &answer {
        Failure::unless_closed(context.out.line(&answer.text))?;
    }
    Ok(end(context, &message))
}

/// Returns the exit code for a message that changes no more, and says why it has no answer.
pub fn end(context: &Context, message: &MessageDoc) -> Exit {
    let reason = message.reason.as_deref().map(safe).filter(|reason| !reason.is_empty());
    if let Some(reason) = &reason
        && !context.out.json
    {
        context.out.note(format!("message {} is {}: {reason}", message.id, message.state));
    }
    match message.state.as_str() {
        "answered" => Exit::Done,
        _ => Exit::Failed,
    }
}

fn document(thread: &str, message: &MessageDoc, answer: Option<&MessageDoc>) -> Value {
    let mut document =
        json!({ "thread_id": thread, "message_id": message.id, "state": message.state });
    if let Some(reason) = &message.reason {
        document["reason"] = json!(reason);
    }
    if let Some(answer) = answer {
        document["answer"] = json!({ "message_id": answer.id, "text": answer.text });
    }
    document
}

/// The message for a user who stops waiting.
pub fn left(thread: &str) -> Failure {
    Failure::new(ErrorCode::Cancelled, "stopped waiting for the answer; the agent continues")
        .hint(format!("read it later with `muleteer thread show {thread}`"))
}

/// Resolves the thread's id. Without a running daemon it is looked up on disk first, so that a
/// mistyped id does not start a daemon.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub async fn target(context: &Context, id: &str) -> Result<String, Failure> {
    if context.is_agent || context.connect_if_running().await?.is_some() {
        return Ok(id.to_string());
    }
    let fleet = offline::fleet(context)?;
    Ok(offline::thread(&fleet, id)?.id().to_string())
}

/// Returns a key by which the daemon recognises a message that is sent again after a lost answer.
///
/// # Errors
/// When the system provides no random bytes.
pub fn new_key() -> Result<String, Failure> {
    Ok(muleteer_model::event::id::encode(&[random()?, random()?].concat()))
}

/// Returns the name of the user, for people who read the thread.
pub fn author() -> String {
    ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default()
}

fn text(args: &Args) -> Result<String, Failure> {
    match args.text.as_deref() {
        Some("-") => read_prompt(std::io::stdin().lock()),
        Some(text) => Ok(text.to_string()),
        None if !args.file.is_empty() && terminal::is_typed() => Ok(String::new()),
        None if terminal::is_typed() => {
            Err(Failure::new(ErrorCode::PromptMissing, "the message is missing")
                .hint("give it as the last argument, or on stdin"))
        }
        None => read_prompt(std::io::stdin().lock()),
    }
}

fn attached(path: &Path) -> Result<AttachedFile, Failure> {
    let unread = |error: std::io::Error| {
        Failure::new(ErrorCode::NotFound, format!("cannot read the file: {error}")).file(path)
    };
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| Failure::new(ErrorCode::BadInput, "this is no name of a file").file(path))?;
    let mut content = vec![];
    let file = std::fs::File::open(path).map_err(unread)?;
    file.take(FILES_LIMIT as u64 + 1).read_to_end(&mut content).map_err(unread)?;
    if content.len() > FILES_LIMIT {
        return Err(too_large().file(path));
    }
    Ok(AttachedFile { name: name.into(), content })
}

fn too_large() -> Failure {
    let message = format!("the files of a message have at most {} MiB together", FILES_LIMIT >> 20);
    Failure::new(ErrorCode::BadInput, message).hint("name larger files by their path")
}
