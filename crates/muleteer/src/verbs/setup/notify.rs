//! `notify`: shows the channels of notifications, and tests them.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::{Failure, chain};
use crate::cli::settings;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, RESET, in_local_time};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::notify::channel::{self, Message};
use muleteer_supervisor::notify::memory::Memory;
use serde_json::{Value, json};
use std::io;

const EXAMPLES: &str = "\
Examples:
  muleteer notify                the channels, with their newest error
  muleteer notify test           send a test on every channel
  muleteer notify test ntfy

A notification says that an agent waits for you, has stalled or has ended. The keys `notify.*` of \
your configuration say when, and on which channels: `command`, `ntfy`, `webhook`, `desktop`, \
`mail`. A daemon reads them when it starts. Tokens come from its environment: MULETEER_NTFY_TOKEN, \
MULETEER_WEBHOOK_TOKEN and MULETEER_MAIL_PASSWORD.";

/// Show the channels of notifications, and test them
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Send a test, from this process
    #[command(after_help = "Example:\n  muleteer notify test webhook")]
    Test {
        /// The channel: `command`, `ntfy`, `webhook`, `desktop` or `mail` [default: all]
        channel: Option<String>,
    },
}

/// Shows or tests the channels.
///
/// # Errors
/// The configuration is invalid, or has no such channel.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let notify = settings::config(context, None)?.notify.clone();
    let channels = notify.channels();
    let Some(What::Test { channel: asked }) = &args.what else {
        return list(context, &channels);
    };
    let chosen: Vec<&str> = match asked {
        Some(asked) if !channels.contains(&asked.as_str()) => return Err(absent(asked)),
        Some(asked) => vec![asked],
        None if channels.is_empty() => return Err(absent("command")),
        None => channels,
    };
    let mut results = vec![];
    for channel in chosen {
        let sent = channel::send(&notify, channel, &Message::test()).await;
        results.push((channel, sent.err().map(|error| chain(&error))));
    }
    let failed = results.iter().any(|(_, error)| error.is_some());
    if context.out.json {
        let all = results.iter().map(|(channel, error)| document(channel, error.as_deref()));
        context.out.document(&json!({ "channels": all.collect::<Vec<_>>() }))?;
    } else {
        for (channel, error) in &results {
            let text = error.as_ref().map_or("sent".into(), |error| format!("failed: {error}"));
            context.out.line(format!("{BOLD}{channel}{RESET}: {text}"))?;
        }
    }
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

fn absent(channel: &str) -> Failure {
    Failure::new(ErrorCode::NotFound, format!("notify.{channel} is not configured"))
        .hint("set it in your config.yaml; `muleteer config show` names the files")
}

fn document(channel: &str, error: Option<&str>) -> Value {
    json!({ "name": channel, "error": error })
}

fn list(context: &Context, channels: &[&str]) -> Result<Exit, Failure> {
    let path = context.paths.notifications();
    let memory = Memory::read(&path, Timestamp::now());
    let memory = memory.map_err(|error: io::Error| {
        Failure::new(ErrorCode::Io, format!("cannot read the notifications: {error}")).file(&path)
    })?;
    let error = |channel: &str| memory.failing.get(channel).map(String::as_str);
    if context.out.json {
        let all: Vec<_> =
            channels.iter().map(|channel| document(channel, error(channel))).collect();
        context.out.document(&json!({ "channels": all }))?;
    } else if channels.is_empty() {
        context
            .out
            .line("no channels: none of notify.{command,ntfy,webhook,desktop,mail} is set")?;
    } else {
        let heads = [("CHANNEL", Align::Left), ("STATE", Align::Main(24))];
        let rows: Vec<Vec<Cell>> = channels
            .iter()
            .map(|channel| {
                let state = error(channel).map_or("ok".into(), |error| format!("failing: {error}"));
                vec![Cell::colored(*channel, BOLD), in_local_time(&state).into()]
            })
            .collect();
        context.out.text(layout(&heads, &rows, &[]))?;
    }
    Ok(Exit::Done)
}
