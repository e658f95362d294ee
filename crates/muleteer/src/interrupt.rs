//! Ctrl-C in a client that follows: it stops following, and nothing else stops.

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `following` until it ends or the user has seen enough (Ctrl-C, or TERM).
///
/// # Errors
/// What `following` fails with.
pub async fn until_interrupted(
    context: &Context,
    what: &str,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::from)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::from)?;
    tokio::select! {
        done = following => return done,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    context.out.note(format!("\nstopped following; {what}"));
    Ok(Exit::Done)
}
