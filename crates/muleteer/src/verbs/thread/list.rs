//! `thread list`, `thread show` and `thread archive`.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::offline;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, DIM, RESET, clip, local_time, safe};
use crate::verbs::thread::send::target;
use jiff::Timestamp;
use muleteer_protocol::v1::{MessageDoc, Reply, Request, ThreadDoc, ThreadInFull, ThreadTaskDoc};
use muleteer_supervisor::conversation::view;
use serde_json::json;

const LIST_EXAMPLES: &str = "\
Examples:
  muleteer thread list
  muleteer thread list --json | jq '.threads[] | select(.state == \"open\") | .id'

Without a running daemon, shows the last state recorded on disk.";

const SHOW_EXAMPLES: &str = "\
Examples:
  muleteer thread show k3f9
  muleteer thread show k3f9 --json | jq -r '.messages[-1].text'

Shows each message with its state: accepted, queued (with what it waits for),
delivered, read, answered; refused or unknown with the reason. Without a running
daemon, shows the last state recorded on disk.";

const ARCHIVE_EXAMPLES: &str = "\
Examples:
  muleteer thread archive k3f9

An archived thread opens again when somebody writes to it.";

/// List the threads, the most recently active first
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {}

/// Show a thread with its messages and tasks
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// The thread: its id, or the beginning of it
    thread: String,
}

/// Archive a thread; the next message opens it again
#[derive(Debug, clap::Args)]
#[command(after_help = ARCHIVE_EXAMPLES)]
pub struct ArchiveArgs {
    /// The thread: its id, or the beginning of it
    thread: String,
}

pub async fn list(context: &Context) -> Result<Exit, Failure> {
    let threads = threads(context).await?;
    if context.out.json {
        context.out.document(&json!({ "threads": threads }))?;
    } else if threads.is_empty() {
        context.out.line("no threads")?;
    } else {
        context.out.text(table(&threads))?;
    }
    Ok(Exit::Done)
}

/// Lists all threads, the most recently active first: from the daemon if one runs, else from disk.
///
/// # Errors
/// The error of the connection or the files.
pub async fn threads(context: &Context) -> Result<Vec<ThreadDoc>, Failure> {
    if let Some(mut client) = context.connect_if_running().await? {
        match client.call(Request::Threads).await {
            Ok(Reply::Threads { threads }) => return Ok(threads),
            Ok(other) => return Err(unexpected(&other)),
            // The daemon died between the handshake and the answer.
            Err(error) if error.is_lost() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let threads = view::threads(&offline::fleet(context)?);
    offline::say_so(context);
    Ok(threads)
}

pub async fn show(args: &ShowArgs, context: &Context) -> Result<Exit, Failure> {
    let thread = fetch(context, &args.thread).await?;
    if context.out.json {
        context.out.document(&thread)?;
    } else {
        context.out.text(page(&thread))?;
    }
    Ok(Exit::Done)
}

/// Gets a thread from the daemon if one runs, else from disk.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`, or the error of the connection or the files.
pub async fn fetch(context: &Context, id: &str) -> Result<ThreadInFull, Failure> {
    if let Some(mut client) = context.connect_if_running().await? {
        match client.call(Request::ThreadShow { thread: id.into() }).await {
            Ok(Reply::Thread(thread)) => return Ok(*thread),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) if error.is_lost() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let fleet = offline::fleet(context)?;
    let thread = offline::thread_in_full(&fleet, &offline::Files::of(context), id)?;
    offline::say_so(context);
    Ok(thread)
}

pub async fn archive(args: &ArchiveArgs, context: &Context) -> Result<Exit, Failure> {
    let thread = target(context, &args.thread).await?;
    match context.ask(Request::ThreadArchive { thread }).await? {
        Reply::ThreadArchived { thread_id } if context.out.json => {
            context.out.document(&json!({ "thread_id": thread_id }))?;
        }
        Reply::ThreadArchived { thread_id } => context.out.note(format!("{thread_id}: archived")),
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}

fn table(threads: &[ThreadDoc]) -> String {
    let heads = ["THREAD", "STATE", "ROLE", "MESSAGES", "LAST MESSAGE", "TITLE"]
        .map(|head| (head, if head == "TITLE" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = threads
        .iter()
        .map(|thread| {
            vec![
                Cell::colored(&thread.id, BOLD),
                thread.state.as_str().into(),
                thread.role.as_str().into(),
                thread.message_count.to_string().into(),
                time(&thread.last_activity).into(),
                clip(thread.title.as_deref().unwrap_or("-"), 60).into(),
            ]
        })
        .collect();
    layout(&heads, &rows, &["LAST MESSAGE", "MESSAGES", "STATE"])
}

fn page(shown: &ThreadInFull) -> String {
    let thread = &shown.thread;
    let mut text = format!(
        "{BOLD}{}{RESET} {} · {} in {} · {}\n",
        thread.id,
        thread.title.as_deref().unwrap_or("(no title)"),
        thread.role,
        thread.project,
        thread.state,
    );
    for task in &shown.tasks {
        text.push_str(&format!("task {} · {}{}\n", task.id, task.state, agents(task)));
    }
    for question in shown.questions.iter().filter(|question| question.state == "open") {
        text.push_str(&format!(
            "{BOLD}asks{RESET} {} {DIM}(muleteer answer {} …){RESET}\n",
            safe(&question.text),
            safe(&question.id)
        ));
    }
    for message in &shown.messages {
        text.push('\n');
        text.push_str(&entry(message));
    }
    text
}

/// Returns the title and the dispatches of a task, for its line.
fn agents(task: &ThreadTaskDoc) -> String {
    let title = match task.title.as_str() {
        "" => String::new(),
        title => format!(" · {}", clip(title, 60)),
    };
    match task.dispatches.is_empty() {
        true => title,
        false => format!("{title} · {}", task.dispatches.join(", ")),
    }
}

/// Returns a message with a line about its author, time and state.
fn entry(message: &MessageDoc) -> String {
    let reason = message.reason.as_deref().map(|reason| format!(": {reason}"));
    let state = match message.direction.as_str() {
        "out" if message.reason.is_none() => String::new(),
        _ => format!(" · {}{}", message.state, reason.unwrap_or_default()),
    };
    let files: String = message
        .files
        .iter()
        .map(|file| format!("[{} · {} bytes]\n", file.name, file.bytes))
        .collect();
    format!(
        "{BOLD}{}{RESET} {DIM}{}{state}{RESET}\n{}\n{files}",
        message.author.name,
        time(&message.at),
        message.text.trim_end(),
    )
}

fn time(text: &str) -> String {
    text.parse::<Timestamp>().map_or_else(|_| text.to_string(), local_time)
}
