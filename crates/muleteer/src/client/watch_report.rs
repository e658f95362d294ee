//! `--watch`: redraws a report whenever an event arrives.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::history;
use crate::client::interrupt::until_unheard;
use crate::render::clip_line;
use crate::render::terminal;
use muleteer_protocol::v1::StatusReport;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

/// The shortest interval between two reports: a flood of events must not cause a flood of requests.
const SHORTEST: Duration = Duration::from_millis(200);
/// The interval at which ages on the screen ("12s ago") are updated, without a new request.
const TICK: Duration = Duration::from_secs(1);

/// Shows the report of `fetch`, formatted by `render`, until the user interrupts.
pub async fn run<F: Future<Output = Result<StatusReport, Failure>>>(
    context: &Context,
    fetch: impl Fn() -> F,
    render: impl Fn(&StatusReport) -> String,
) -> Result<Exit, Failure> {
    let happened = Notify::new();
    let on_screen = terminal::is_screen() && !context.out.json;
    let from = history::last_seqs(context, 0);
    let mut wake = |_: history::Seen<'_>| {
        happened.notify_one();
        Ok(ControlFlow::Continue(()))
    };
    let client = context.connect_if_running().await?;
    let events = history::events(context, client, from, true, &mut wake);
    let show = async {
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
                    let text = format!("{head}{}", render(&report));
                    if on_screen {
                        let (columns, rows) = (terminal::columns(), terminal::height());
                        let lines = on_one_screen(&text, columns, rows);
                        context.out.redrawn(&lines, columns)?;
                    } else {
                        context.out.text(text)?;
                    }
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

/// Returns the lines of `text` that a screen shows without scrolling; the last one says how many
/// more there are. A line that is too long would take two rows, so it is cut.
fn on_one_screen(text: &str, columns: Option<usize>, rows: Option<usize>) -> Vec<String> {
    // The cursor stays on the row below the last line.
    let room = rows.map_or(usize::MAX, |rows| rows.saturating_sub(1).max(1));
    let all = text.lines().count();
    let shown = if all > room { room - 1 } else { all };
    let cut = |line: &str| columns.map_or_else(|| line.to_string(), |most| clip_line(line, most));
    let mut lines: Vec<_> = text.lines().take(shown).map(cut).collect();
    if all > shown {
        lines.push(cut(&format!("… {} more lines", all - shown)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_screen_shows_the_top_and_counts_the_rest() {
        let text = "one\ntwo\nthree\nfour\n";
        assert_eq!(on_one_screen(text, None, None), ["one", "two", "three", "four"]);
        assert_eq!(on_one_screen(text, None, Some(5)), ["one", "two", "three", "four"]);
        assert_eq!(on_one_screen(text, None, Some(4)), ["one", "two", "… 2 more lines"]);
        assert_eq!(on_one_screen(text, None, Some(1)), ["… 4 more lines"]);
        let cut = on_one_screen("a long line\n", Some(6), Some(5));
        assert_eq!(anstream::adapter::strip_str(&cut[0]).to_string(), "a lon…");
    }
}
