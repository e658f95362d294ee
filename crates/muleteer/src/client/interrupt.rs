//! Ctrl-C in a client that follows: it stops following, and nothing else stops.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_supervisor::signals::AsyncSignals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Signal;
use std::os::fd::AsFd;
use tokio::sync::oneshot;

/// Runs `following` until it ends or the user has seen enough (Ctrl-C, or TERM), and exits by
/// `otherwise` then.
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

/// As [`until_interrupted`], for what tells nobody's end: done is also whoever has lost its reader,
/// at once and not with the next line.
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

/// As [`until_interrupted`], where the exit tells of an end that whoever ends us (TERM) has not
/// seen: only Ctrl-C is an answer.
///
/// # Errors
/// What `following` fails with.
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

/// Ctrl-C, heard from now on.
fn interrupts() -> Result<AsyncSignals, Failure> {
    AsyncSignals::catch(&[Signal::INT]).map_err(Failure::from)
}

fn stopped(context: &Context, what: &str) {
    context.out.note(format!("\nstopped following; {what}"));
}

/// Returns when whoever reads our stdout has closed it. A file has no such reader: then it never
/// does.
async fn reader_gone() {
    let (gone, heard) = oneshot::channel();
    // It waits in the kernel for as long as the process lives, and dies with it: nobody else can
    // wait for this alone.
    let watching = std::thread::Builder::new().name("stdout".into()).spawn(move || {
        if closed(&std::io::stdout()) {
            let _ = gone.send(());
        }
    });
    if watching.is_err() || heard.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until nobody reads any more what is written there; false where that cannot be known.
/// Blocks.
fn closed(output: &impl AsFd) -> bool {
    loop {
        let mut output = [PollFd::new(output, PollFlags::empty())];
        match poll(&mut output, None) {
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => return output[0].revents().intersects(PollFlags::ERR | PollFlags::HUP),
        }
    }
}

/// Waits for an end that the exit tells of; who does not wait for it (Ctrl-C) is told what they
/// `left`. With `--json` that is the one document, and TERM's too; else TERM ends us as it ends
/// anybody.
///
/// # Errors
/// What `waiting` fails with.
pub async fn or_left(
    context: &Context,
    left: Failure,
    waiting: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let mut interrupt = interrupts()?;
    let given_up = async {
        if context.out.json {
            wait().await
        } else {
            interrupt.next().await;
            Ok(())
        }
    };
    tokio::select! {
        done = waiting => return done,
        given_up = given_up => given_up?,
    }
    if context.out.json {
        context.out.failure(&left);
    } else if let Failure::Told(told) = &left {
        let hint = told.error.hint.iter().map(|hint| format!("\n{hint}")).collect::<String>();
        context.out.note(format!("\n{}{hint}", told.error.message));
    }
    Ok(Exit::Interrupted)
}

/// Returns on Ctrl-C, or TERM.
///
/// # Errors
/// When the system lets nobody listen for signals.
pub async fn wait() -> Result<(), Failure> {
    AsyncSignals::catch(&[Signal::INT, Signal::TERM])?.next().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_output_is_closed_when_its_reader_goes_and_not_by_what_is_in_it() {
        let (reader, writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut &writer, b"a line").unwrap();
        let waiting = std::thread::spawn(move || closed(&writer));
        assert!(!waiting.is_finished(), "it has a reader");
        drop(reader);
        assert!(waiting.join().unwrap());
    }
}
