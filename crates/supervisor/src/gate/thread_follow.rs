//! Streams a thread: its messages, or its live view.

use crate::conversation::follow::Follower;
use crate::conversation::{serve as threads, view};
use crate::dispatch::error::{fault, unappended};
use crate::gate::connection::{Answer, Connection, Heard};
use crate::ports::ledger::LedgerError;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::FrameError;
use muleteer_protocol::v1::{Item, Reply, ThreadFollow, ThreadPart, WireError};
use std::pin::Pin;
use tokio::sync::futures::Notified;

/// The number of batches of output after which messages come although there is more output.
const BATCHES: u32 = 32;

/// Answers when the state of a message changes no more.
pub(super) async fn wait(connection: &mut Connection, thread: &str, message: &str) -> Answer {
    let daemon = connection.daemon.clone();
    answered(connection, threads::wait(&daemon, thread, message)).await
}

/// Answers when a future does, unless the client cancels.
pub(super) async fn answered(
    connection: &mut Connection,
    answered: impl Future<Output = Result<Reply, WireError>>,
) -> Answer {
    tokio::pin!(answered);
    loop {
        tokio::select! {
            answer = &mut answered => return Ok(answer.map(Some)),
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
}

/// Streams the messages of a thread, because a thread has no size that fits a frame.
pub(super) async fn show(connection: &mut Connection, thread: &str) -> Answer {
    let daemon = connection.daemon.clone();
    let (document, mut pages) = match threads::show(&daemon, thread) {
        Ok(found) => found,
        Err(error) => return Ok(Err(error)),
    };
    let fleet = daemon.snapshot();
    loop {
        let page = match pages.next(&daemon).await {
            Ok(page) => page,
            Err(error) => return Ok(Err(error)),
        };
        if page.is_empty() {
            break;
        }
        for message in page {
            let message = view::message(pages.thread(), &message, &fleet);
            if !connection.send(Item::Message(Box::new(message))).await? {
                return Ok(Ok(None));
            }
        }
    }
    Ok(Ok(Some(Reply::Thread(Box::new(document)))))
}

/// Sends the parts of a thread until the client cancels. Each part waits for credit, so a slow
/// client delays only itself, and the rest waits on the disk.
pub(super) async fn follow(connection: &mut Connection, asked: ThreadFollow) -> Answer {
    let daemon = connection.daemon.clone();
    let mut changes = daemon.fleet.subscribe();
    let mut follower = match view::find(&daemon, &asked.thread) {
        Ok(thread) => Follower::new(&daemon, &thread, asked),
        Err(error) => return Ok(Err(error)),
    };
    let mut may_have_grown = true;
    loop {
        let fleet = changes.borrow_and_update().clone();
        let Some(thread) = fleet.conversations.get(follower.thread()).cloned() else {
            let message = format!("no thread `{}`", follower.thread());
            return Ok(Err(fault(ErrorCode::NotFound, &message, "")));
        };
        // It is registered before the output is read, so that no growth in between is missed.
        let slots = thread.dispatch.as_ref().and_then(|id| daemon.agents.get(id));
        let mut grown = std::pin::pin!(slots.as_ref().map(|slots| slots.output.notified()));
        let at_once = grown.as_mut().as_pin_mut().is_some_and(Notified::enable);
        let mut parts = vec![];
        if follower.wants_history() {
            while match follower.messages(&thread, &fleet, &mut parts).await {
                Ok(more) => more,
                Err(error) => return Ok(Err(error)),
            } {
                if !send(connection, &mut parts).await? {
                    return Ok(Ok(None));
                }
            }
        }
        let mut more = false;
        if may_have_grown || at_once || follower.has_changed(&thread, &fleet) {
            for _ in 0..BATCHES {
                more = tokio::task::block_in_place(|| follower.output(&thread, &fleet, &mut parts));
                if !send(connection, &mut parts).await? {
                    return Ok(Ok(None));
                }
                if !more {
                    break;
                }
            }
        }
        loop {
            let more = follower.messages(&thread, &fleet, &mut parts).await;
            if !send(connection, &mut parts).await? {
                return Ok(Ok(None));
            }
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Ok(Err(error)),
            }
        }
        may_have_grown = more;
        if more || at_once {
            may_have_grown = true;
            continue;
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return Ok(Err(unappended(&LedgerError::Ending)));
                }
            }
            () = notified(grown.as_mut().as_pin_mut()) => may_have_grown = true,
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
}

/// Sends all parts. Returns `false` if the client cancelled.
async fn send(
    connection: &mut Connection,
    parts: &mut Vec<ThreadPart>,
) -> Result<bool, FrameError> {
    for part in parts.drain(..) {
        if !connection.send(Item::ThreadPart(Box::new(part))).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns when the link has read output; never for an agent that has none.
async fn notified(output: Option<Pin<&mut Notified<'_>>>) {
    match output {
        Some(output) => output.await,
        None => std::future::pending().await,
    }
}
