//! The live view of the thread from the daemon, over lost connections.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::v1::{Item, OPEN_LIMIT, Part, Request, ThreadFollow, ThreadPlace};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::time::sleep;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A report of the feed.
#[derive(Debug)]
pub enum Fed {
    Part(Part),
    /// The connection is lost, and the feed connects again.
    Lost,
    /// It is connected again.
    Back,
    /// The daemon does not give the view.
    Failed(Failure),
}

/// Sends every part of the thread once and in order, until the receiver is gone or the daemon
/// rejects the request. It starts no daemon.
pub async fn feed(context: &Context, thread: &str, history: u32, parts: Sender<Fed>) {
    let mut known = Known::default();
    let mut pause = FIRST_PAUSE;
    let mut is_lost = false;
    loop {
        let outcome = match context.dial().await {
            Ok(client) => {
                pause = FIRST_PAUSE;
                if std::mem::take(&mut is_lost) && parts.send(Fed::Back).await.is_err() {
                    return;
                }
                once(client, thread, history, &mut known, &parts).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            // The receiver is gone.
            Ok(()) => return,
            Err(error) if error.is_lost() => {
                if !std::mem::replace(&mut is_lost, true) && parts.send(Fed::Lost).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                drop(parts.send(Fed::Failed(error.into())).await);
                return;
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// This client's knowledge of the thread.
#[derive(Default)]
struct Known {
    place: Option<ThreadPlace>,
    open: BTreeSet<String>,
}

async fn once(
    mut client: Client,
    thread: &str,
    history: u32,
    known: &mut Known,
    parts: &Sender<Fed>,
) -> Result<(), ClientError> {
    let open = known.open.iter().take(OPEN_LIMIT).cloned().collect();
    let from = known.place.clone();
    let follow = ThreadFollow { thread: thread.into(), history, from, open };
    let mut stream = client.stream(Request::ThreadFollow(Box::new(follow))).await?;
    loop {
        match stream.next().await? {
            Next::Item(Item::ThreadPart(part)) => {
                known.place = Some(part.at);
                if let Part::Message(message) = &part.part
                    && message.direction == "in"
                {
                    match is_final(&message.state) {
                        true => known.open.remove(&message.id),
                        false => known.open.insert(message.id.clone()),
                    };
                }
                if parts.send(Fed::Part(part.part)).await.is_err() {
                    return Ok(());
                }
            }
            Next::Item(_) => {}
            // A daemon of another version ends the stream in its own way.
            Next::End(_) => return Err(ClientError::Lost),
        }
    }
}

/// Whether an inbound message in this state changes no more.
pub fn is_final(state: &str) -> bool {
    !matches!(state, "accepted" | "queued" | "delivered" | "read")
}
