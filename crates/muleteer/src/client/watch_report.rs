//! `--watch`: redraws a report whenever an event arrives.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::history;
use crate::client::interrupt::until_unheard;
use muleteer_protocol::v1::StatusReport;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The shortest interval between two reports: a flood of events must not cause a flood of requests.
const SHORTEST: Duration = Duration::from_millis(200);
/// The interval at which ages on the screen ("12s ago") are updated, without a new request.
const TICK: Duration = Duration::from_secs(1);
/// Moves the cursor to the top left and clears everything below. This avoids flicker and preserves
/// the scrollback.
const REDRAW: &str = "\x1b[H\x1b[J";
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Shows the report of `fetch`, formatted by `render`, until the user interrupts.
pub async fn run<F: Future<Output = Result<StatusReport, Failure>>>(
    context: &Context,
    fetch: impl Fn() -> F,
    render: impl Fn(&StatusReport) -> String,
) -> Result<Exit, Failure> {
    let happened = Notify::new();
    let on_screen = std::io::stdout().is_terminal() && !context.out.json;
    let from = history::last_seqs(context, 0);
    let mut wake = |_: history::Seen<'_>| {
        happened.notify_one();
        Ok(ControlFlow::Continue(()))
    };
    let client = context.connect_if_running().await?;
    let events = history::events(context, client, from, true, &mut wake);
    let show = async {
        if on_screen {
            context.out.drawn(CLEAR, "")?;
        }
        loop {
            let report = fetch().await?;
            if context.out.json {
                context.out.json_line(&report)?;
            }
            loop {
                if !context.out.json {
                    let head = if report.daemon.running {
                        ""
                    } else {
                        "no daemon is running: last state recorded on disk\n"
                    };
                    let redraw = if on_screen { REDRAW } else { "" };
                    context.out.drawn(redraw, &format!("{head}{}", render(&report)))?;
                }
                let again = if on_screen {
                    timeout(TICK, happened.notified()).await.is_ok()
                } else {
                    happened.notified().await;
                    true
                };
                if again {
                    break;
                }
            }
            sleep(SHORTEST).await;
        }
    };
    let both = async {
        tokio::select! {
            done = show => done,
            ended = events => ended.map(|()| Exit::Done),
        }
    };
    until_unheard(context, "nothing was stopped", both).await
}
