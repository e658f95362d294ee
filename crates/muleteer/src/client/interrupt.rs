//! Ctrl-C in a client that follows: the client stops following, and nothing else stops.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_supervisor::daemon::service::signals::AsyncSignals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::os::fd::AsFd;
use tokio::sync::oneshot;

/// Runs `following` until it ends or the user interrupts it (Ctrl-C or TERM). Returns `otherwise`
/// after an interrupt.
///
/// # Errors
/// The errors of `following`.
pub async fn until_interrupted(
    context: &Context,
    what: &str,
    otherwise: Exit,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut ending = endings()?;
    tokio::select! {
        done = following => return done,
        _ = ending.next() => {}
    }
    stopped(context, what);
    Ok(otherwise)
}

/// As [`until_interrupted`], for output that reports no awaited outcome. It also ends as soon as
/// the reader of stdout is gone, without waiting for the next line to fail.
///
/// # Errors
/// As [`until_interrupted`].
pub async fn until_unheard(
    context: &Context,
    what: &str,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    tokio::select! {
        done = until_interrupted(context, what, Exit::Done, following) => done,
        () = reader_gone() => Err(Failure::OutputClosed),
    }
}

/// As [`until_interrupted`], where the exit code reports an outcome. Only Ctrl-C ends it with
/// success: a process that sends TERM has not seen the outcome.
///
/// # Errors
/// The errors of `following`.
pub async fn until_ctrl_c(
    context: &Context,
    what: &str,
    following: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut interrupt = interrupts()?;
    tokio::select! {
        done = following => return done,
        _ = interrupt.next() => {}
    }
    stopped(context, what);
    Ok(Exit::Done)
}

/// Subscribes to Ctrl-C from now on. Callers subscribe before they wait: a future that subscribes
/// when it is first polled may be polled after the one that it is to end.
fn interrupts() -> Result<AsyncSignals, Failure> {
    AsyncSignals::catch(&[Signal::INT]).map_err(Failure::from)
}

/// Subscribes to Ctrl-C and TERM from now on. Callers subscribe before they wait.
///
/// # Errors
/// When the system rejects the signal handlers.
pub fn endings() -> Result<AsyncSignals, Failure> {
    AsyncSignals::catch(&[Signal::INT, Signal::TERM]).map_err(Failure::from)
}

fn stopped(context: &Context, what: &str) {
    context.out.note(format!("\nstopped following; {what}"));
}

/// Returns when the reader of our stdout has closed it. A file has no reader, so then it never
/// returns.
async fn reader_gone() {
    let (gone, heard) = oneshot::channel();
    // The thread blocks in the kernel until the process ends. No async primitive can wait for this
    // condition alone.
    let watching = std::thread::Builder::new().name("stdout".into()).spawn(move || {
        if closed(&std::io::stdout()) {
            let _ = gone.send(());
        }
    });
    if watching.is_err() || heard.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Blocks until nobody reads `output` any more. Returns false if that cannot be determined.
pub fn closed(output: &impl AsFd) -> bool {
    loop {
        let mut output = [PollFd::new(output, PollFlags::empty())];
        match poll(&mut output, None) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return output[0].revents().intersects(PollFlags::ERR | PollFlags::HUP),
        }
    }
}

/// Waits for an outcome that the exit code reports. A user who presses Ctrl-C gets `left`, which
/// says what continues to run. With `--json` `left` is the only document, also after TERM; without
/// it TERM terminates us as usual.
///
/// # Errors
/// The errors of `waiting`.
pub async fn or_left(
    context: &Context,
    left: Failure,
    waiting: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut ending = if context.out.json { endings()? } else { interrupts()? };
    tokio::select! {
        done = waiting => return done,
        _ = ending.next() => {}
    }
    if context.out.json {
        context.out.failure(&left);
    } else if let Failure::Told(told) = &left {
        let hint = told.error.hint.iter().map(|hint| format!("\n{hint}")).collect::<String>();
        context.out.note(format!("\n{}{hint}", told.error.message));
    }
    Ok(Exit::Interrupted)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn output_closes_when_its_reader_exits() {
        let (reader, writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut &writer, b"a line").unwrap();
        let waiting = std::thread::spawn(move || closed(&writer));
        assert!(!waiting.is_finished(), "it has a reader");
        drop(reader);
        assert!(waiting.join().unwrap());
    }
}
