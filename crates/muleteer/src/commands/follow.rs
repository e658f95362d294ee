//! `spawn --follow`: what one dispatch does, until it has ended.

use crate::commands::wait;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::history::{self, Seen};
use crate::interrupt::until_ctrl_c;
use crate::render::event;
use muleteer_model::event::Event;
use muleteer_protocol::v1::Request;
use std::ops::ControlFlow;

/// Shows the events of dispatch `id`, then exits by how it ended. With `--json` the last line is the
/// dispatch as `status` shows it.
pub async fn dispatch(context: &Context, id: &str) -> Result<Exit, Failure> {
    let following = async {
        let mut each = |seen: Seen<'_>| {
            let Some(record) = seen
                .record
                .filter(|record| record.entry.dispatch_id.as_ref().is_some_and(|of| of.as_str() == id))
            else {
                return Ok(ControlFlow::Continue(()));
            };
            if context.out.json {
                context.out.line(seen.line)?;
            } else if let Some(line) = event::line(record) {
                context.out.line(line)?;
            }
            let ended = matches!(record.entry.event, Event::DispatchFinished { .. });
            Ok(if ended { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let from = history::last_seqs(context, 1000);
        let client = context.connect_if_running().await?;
        let showing = history::events(context, client, from, true, &mut each);
        tokio::pin!(showing);
        // Asks the next daemon where one goes away, and starts it: without one nothing ends.
        tokio::select! {
            shown = &mut showing => shown?,
            waited = context.ask(Request::Wait { ids: vec![id.to_string()] }) => {
                waited?;
                // Its end is durable, and on its way.
                showing.await?;
            }
        }
        wait::one(context, id).await
    };
    until_ctrl_c(context, &format!("{id} goes on (`muleteer logs {id} -f`)"), following).await
}
