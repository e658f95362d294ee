//! `spawn --follow`: what one dispatch does, until it has ended.

use crate::commands::wait;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::history::{self, Seen};
use crate::interrupt::until_interrupted;
use crate::render::event;
use muleteer_model::event::Event;
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
        history::events(context, client, from, true, &mut each).await?;
        wait::one(context, id).await
    };
    until_interrupted(context, &format!("{id} goes on (`muleteer logs {id} -f`)"), Exit::Done, following).await
}
