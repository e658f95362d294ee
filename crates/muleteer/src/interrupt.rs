//! Ctrl-C in a client that follows: it stops following, and nothing else stops.

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// Runs `following` until it ends or the user has seen enough (Ctrl-C, or TERM), and exits by `otherwise` then.
///
/// # Errors
/// What `following` fails with.
pub async fn until_interrupted(
    context: &Context,
    what: &str,
    otherwise: Exit,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    tokio::select! {
        done = following => return done,
        waited = wait() => waited?,
    }
    stopped(context, what);
    Ok(otherwise)
}

/// The same, where the exit tells of an end that whoever ends us (TERM) has not seen: only Ctrl-C is an answer.
///
/// # Errors
/// What `following` fails with.
pub async fn until_ctrl_c(
    context: &Context,
    what: &str,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::from)?;
    tokio::select! {
        done = following => return done,
        _ = interrupt.recv() => {}
    }
    stopped(context, what);
    Ok(Exit::Done)
}

fn stopped(context: &Context, what: &str) {
    context.out.note(format!("\nstopped following; {what}"));
}

/// Waits for what is told in one document, with `--json`; who does not wait for it (Ctrl-C, or TERM) has `left` instead.
///
/// # Errors
/// What `waiting` fails with.
pub async fn or_left(
    context: &Context,
    left: Failure,
    waiting: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    if !context.out.json {
        return waiting.await;
    }
    tokio::select! {
        done = waiting => return done,
        interrupted = wait() => interrupted?,
    }
    context.out.failure(&left);
    Ok(Exit::Interrupted)
}

/// Returns on Ctrl-C, or TERM.
///
/// # Errors
/// When the system lets nobody listen for signals.
pub async fn wait() -> Result<(), Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::from)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::from)?;
    tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
