//! `spawn --follow`, `send --follow`: show the activity of one dispatch until it ends.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::file_watch::FileWatch;
use crate::client::history::{self, Seen};
use crate::client::interrupt::{self, until_ctrl_c};
use crate::render::event::Lines;
use crate::verbs::agents::wait;
use crate::verbs::inspect::logs::Printed;
use muleteer_model::event::Event;
use muleteer_protocol::v1::Request;
use std::cell::RefCell;
use std::ops::ControlFlow;
use tokio::sync::Notify;

/// Returns at once, when the dispatch has ended (`wait`), or when it has and its events from `from`
/// on were shown (`follow`).
///
/// # Errors
/// As [`dispatch`] and [`wait::one`].
pub async fn until_asked(
    context: &Context,
    id: &String,
    from: u64,
    (wait, follow): (bool, bool),
) -> Result<Exit, Failure> {
    if follow {
        return dispatch(context, id, from).await;
    }
    if !wait {
        return Ok(Exit::Done);
    }
    // With `--json` the id has not been printed yet, so an interrupted wait must report it.
    let left = wait::left(std::slice::from_ref(id));
    interrupt::or_left(context, left, wait::one(context, id)).await
}

/// Shows the events of dispatch `id` from sequence number `from` on, then exits by its outcome.
/// Events before `from` belong to an earlier life of the dispatch. A command has few events, so its
/// output is shown too. With `--json` it prints only events, and as the last line the dispatch as
/// `status` shows it.
pub async fn dispatch(context: &Context, id: &str, from: u64) -> Result<Exit, Failure> {
    let following = async {
        let (printed, begun) = (RefCell::new(None::<Printed>), Notify::new());
        let lines = Lines::default();
        let mut each = |seen: Seen<'_>| {
            let Some(record) = seen.record.filter(|record| {
                record.entry.dispatch_id.as_ref().is_some_and(|of| of.as_str() == id)
            }) else {
                return Ok(ControlFlow::Continue(()));
            };
            match (&record.entry.event, &mut *printed.borrow_mut()) {
                (Event::DispatchCreated(created), printed)
                    if !created.has_turns() && !context.out.json =>
                {
                    *printed = Some(Printed::of(context, id, &created.backend)?);
                    begun.notify_one();
                }
                // The daemon records these events only after it has read the whole output.
                (Event::AgentExited { .. } | Event::DispatchFinished { .. }, Some(printed)) => {
                    printed.show_rest(context)?;
                }
                _ => {}
            }
            if context.out.json {
                context.out.line(seen.line)?;
            } else if let Some(line) = lines.line(record) {
                context.out.line(line)?;
            }
            let ended = matches!(record.entry.event, Event::DispatchFinished { .. });
            Ok(if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let client = context.connect_if_running().await?;
        let printing = async {
            begun.notified().await;
            let watch = FileWatch::on(&[&context.paths.spool(id)])?;
            loop {
                let show = || {
                    printed
                        .borrow_mut()
                        .as_mut()
                        .map_or(Ok(false), |printed| printed.show_some(context))
                };
                while show()? {
                    tokio::task::yield_now().await;
                }
                watch.changed().await;
            }
        };
        let showing = history::events(context, client, from, true, &mut each);
        let showing = async {
            tokio::select! {
                shown = showing => shown,
                never = printing => never,
            }
        };
        tokio::pin!(showing);
        // Waits through daemon restarts and starts a daemon if there is none, because without a
        // daemon no dispatch ends.
        tokio::select! {
            shown = &mut showing => shown?,
            waited = context.ask(Request::Wait { ids: vec![id.to_string()] }) => {
                waited?;
                // The end is durable, and its event is about to arrive.
                showing.await?;
            }
        }
        wait::one(context, id).await
    };
    until_ctrl_c(
        context,
        &format!("{id} continues; follow it with `muleteer logs {id} -f`"),
        following,
    )
    .await
}
