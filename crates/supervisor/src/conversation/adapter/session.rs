//! One connection of an adapter: what comes from it is made durable and acknowledged, and what its
//! threads owe it is given in order, as far as its credits last.

use crate::conversation::adapter::inbound;
use crate::conversation::adapter::registry::Seat;
use crate::conversation::deliver::entries;
use crate::conversation::older;
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::own;
use crate::dispatch::error::fault;
use crate::ledger::append;
use crate::ports::ledger::LedgerError;
use muleteer_model::conversation::adapter::outbox::{
    self, Content, Outcome, Post, REFERENCE_LIMIT,
};
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::title;
use muleteer_model::question::{AnsweredBy, Choice};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::{FRAME_LIMIT, FrameError, FrameReader, FrameWriter};
use muleteer_protocol::socket::Stream;
use muleteer_protocol::v1::{
    ADAPTER_VERSION, Ack, AdapterHello, AdapterWelcome, AuthorDoc, FromAdapter, MOST_CREDITS,
    Outbound, OutboundOption, ToAdapter, WireError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The operations of this daemon.
const OPS: &[&str] = &["post", "ask", "resolve"];
/// The most capabilities of an adapter, and the longest one in bytes.
const MOST_CAPABILITIES: usize = 64;
const CAPABILITY_LIMIT: usize = 64;
/// The most items that become durable together before they are given.
const BATCH: usize = 64;
/// The most frames that wait to be written.
const FRAMES: usize = 64;
/// The pause before an item that failed without a time is given again, and the longest one.
const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the adapter takes no frames")]
    Unread,
}

/// Serves an adapter until its connection ends, its process ends, or it connects again.
///
/// # Errors
/// It broke the framing, or the ledger cannot write. The adapter connects again.
pub async fn serve(
    daemon: Arc<Daemon>,
    mut reader: FrameReader<Stream>,
    mut writer: FrameWriter<Stream>,
    hello: AdapterHello,
) -> Result<(), SessionError> {
    let seat = match accept(&daemon, hello) {
        Ok((seat, welcome)) => {
            if let Err(error) = writer.write(&ToAdapter::Welcome(welcome)).await {
                daemon.adapters.disconnect(&seat);
                return Err(error.into());
            }
            seat
        }
        Err(error) => return Ok(writer.write(&ToAdapter::Refused { error }).await?),
    };
    reader.set_limit(FRAME_LIMIT);
    let close = seat.close.clone();
    let (frames, waiting) = mpsc::channel(FRAMES);
    let writing = own(write(writer, waiting));
    let mut session = Session {
        daemon: daemon.clone(),
        name: seat.name.clone(),
        frames,
        credits: 0,
        seq: 0,
        given: BTreeMap::new(),
        held: BTreeSet::new(),
        pauses: BTreeMap::new(),
    };
    let outcome = tokio::select! {
        outcome = session.run(&mut reader) => outcome,
        () = close.cancelled() => Ok(()),
    };
    daemon.adapters.disconnect(&seat);
    if let Err(SessionError::Frame(error)) = &outcome {
        // It may be gone; then it needs no reason.
        tracing::warn!(adapter = %seat.name, %error, "an adapter's connection ended");
        let error = fault(ErrorCode::Protocol, &error.to_string(), "");
        let _ = session.send(ToAdapter::Refused { error }).await;
        drop(session);
        let _ = writing.await;
    }
    outcome
}

/// Writes frames until the session ends or the adapter takes no more. The session reads meanwhile:
/// an adapter that submits its history before it reads would block both sides otherwise.
async fn write(mut writer: FrameWriter<Stream>, mut frames: mpsc::Receiver<ToAdapter>) {
    while let Some(frame) = frames.recv().await {
        if let Err(error) = writer.write(&frame).await {
            tracing::warn!(%error, "an adapter takes no frames");
            return;
        }
    }
}

/// Checks an adapter's hello.
fn accept(daemon: &Daemon, hello: AdapterHello) -> Result<(Seat, AdapterWelcome), WireError> {
    if hello.version == 0 {
        let message = "version 0 of the adapters' protocol does not exist";
        return Err(fault(ErrorCode::ProtocolVersion, message, "send a version from 1"));
    }
    let mut capabilities = hello.capabilities;
    capabilities.retain(|one| !one.is_empty() && one.len() <= CAPABILITY_LIMIT);
    capabilities.truncate(MOST_CAPABILITIES);
    let seat = daemon.adapters.connect(&hello.name, &hello.key, capabilities).ok_or_else(|| {
        let message = format!("this is not the key of a running adapter `{}`", hello.name);
        let hint = "send the name in MULETEER_ADAPTER and the key in MULETEER_ADAPTER_KEY";
        fault(ErrorCode::Forbidden, &message, hint)
    })?;
    let welcome = AdapterWelcome {
        version: hello.version.min(ADAPTER_VERSION),
        daemon_version: env!("CARGO_PKG_VERSION").into(),
        most_credits: MOST_CREDITS,
        ops: OPS.iter().map(ToString::to_string).collect(),
    };
    Ok((seat, welcome))
}

/// An item that the adapter has and has not acknowledged in this connection.
struct Given {
    thread: String,
    key: String,
}

struct Session {
    daemon: Arc<Daemon>,
    name: String,
    /// The frames that wait to be written.
    frames: mpsc::Sender<ToAdapter>,
    credits: u32,
    /// The number of the newest item.
    seq: u64,
    given: BTreeMap<u64, Given>,
    /// The threads that get no item now: one is on its way, or failed for a while.
    held: BTreeSet<String>,
    pauses: BTreeMap<String, Instant>,
}

impl Session {
    /// Queues a frame. Waits while too many wait before it.
    async fn send(&self, frame: ToAdapter) -> Result<(), SessionError> {
        self.frames.send(frame).await.map_err(|_| SessionError::Unread)
    }

    async fn run(&mut self, reader: &mut FrameReader<Stream>) -> Result<(), SessionError> {
        let frames = self.frames.clone();
        let mut changes = self.daemon.fleet.subscribe();
        loop {
            changes.borrow_and_update();
            self.resume();
            self.give().await?;
            let next_pause = self.pauses.values().min().copied();
            let resumed = async {
                match next_pause {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                frame = reader.next::<FromAdapter>() => match frame? {
                    Some(frame) => self.hear(frame).await?,
                    None => return Ok(()),
                },
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
                () = resumed => {}
                () = frames.closed() => return Err(SessionError::Unread),
            }
        }
    }

    /// Ends the pauses that are over.
    fn resume(&mut self) {
        let now = Instant::now();
        let over = self.pauses.iter().filter(|(_, at)| **at <= now);
        for thread in over.map(|(thread, _)| thread.clone()).collect::<Vec<_>>() {
            self.pauses.remove(&thread);
            self.held.remove(&thread);
        }
    }

    /// Gives items while there are credits. That an item is on its way is durable first.
    async fn give(&mut self) -> Result<(), SessionError> {
        loop {
            let fleet = self.daemon.snapshot();
            let all = &fleet.conversations;
            let Some(adapter) = all.adapter(&self.name) else { return Ok(()) };
            let (mut frames, mut events) = (vec![], vec![]);
            while self.credits > 0 && frames.len() < BATCH {
                let thread = |id: &str| all.get(id).map(|thread| &**thread);
                let Some((thread, post)) = outbox::next(adapter, &self.held, thread) else { break };
                self.credits -= 1;
                self.seq += 1;
                events.extend(outbox::sent(thread, post));
                frames.push(outbound(&self.daemon, self.seq, thread, post).await);
                self.held.insert(thread.id().into());
                let given = Given { thread: thread.id().into(), key: post.key.clone() };
                self.given.insert(self.seq, given);
            }
            if frames.is_empty() {
                return Ok(());
            }
            append(&self.daemon, entries(events)).await?;
            point("adapter.sent");
            for frame in frames {
                self.send(ToAdapter::Outbound(Box::new(frame))).await?;
            }
            point("adapter.given");
        }
    }

    async fn hear(&mut self, frame: FromAdapter) -> Result<(), SessionError> {
        match frame {
            FromAdapter::Credit { n } => {
                let most = MOST_CREDITS.saturating_sub(self.given.len() as u32);
                self.credits = self.credits.saturating_add(n).min(most);
                Ok(())
            }
            FromAdapter::Inbound(inbound) => {
                let answer = inbound::handle(&self.daemon, &self.name, *inbound).await;
                self.send(answer).await
            }
            FromAdapter::Ack(ack) => self.acknowledged(ack).await,
            // A frame of a newer adapter.
            FromAdapter::Unknown => Ok(()),
        }
    }

    async fn acknowledged(&mut self, ack: Ack) -> Result<(), SessionError> {
        let Some(Given { thread, key }) = self.given.remove(&ack.seq) else {
            let message = format!("item {} was not given, or is acknowledged already", ack.seq);
            let error = fault(ErrorCode::BadInput, &message, "acknowledge each item once");
            return self.send(ToAdapter::Error { seq: Some(ack.seq), error }).await;
        };
        let outcome = match ack.error {
            None => {
                let place = ack.external_ref.filter(|place| place.len() <= REFERENCE_LIMIT);
                Outcome::Posted { external_ref: place }
            }
            Some(reason) if ack.permanent => {
                let reason = title(Some(&reason), "").unwrap_or_default();
                Outcome::Refused { reason }
            }
            Some(reason) => {
                tracing::info!(adapter = %self.name, %reason, "an item failed for now");
                self.pauses.insert(thread, Instant::now() + pause(ack.retry_after_s));
                return Ok(());
            }
        };
        let fleet = self.daemon.snapshot();
        let found = fleet.conversations.get(&thread);
        let events = found.map(|found| outbox::acknowledged(found, &key, &outcome));
        append(&self.daemon, entries(events.unwrap_or_default())).await?;
        point("adapter.posted");
        self.held.remove(&thread);
        Ok(())
    }
}

/// Returns the pause that an adapter asks for, within bounds.
fn pause(asked: Option<f64>) -> Duration {
    let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.unwrap_or(PAUSE).min(LONGEST_PAUSE)
}

/// Returns the frame of an item.
async fn outbound(daemon: &Arc<Daemon>, seq: u64, thread: &Thread, post: &Post) -> Outbound {
    let frame = Outbound {
        seq,
        key: post.key.clone(),
        external: thread.opened.external.clone().unwrap_or_default(),
        op: "post".into(),
        again: post.sent,
        thread_id: thread.id().into(),
        at: format!("{:.3}", post.at),
        ..Outbound::default()
    };
    match &post.content {
        Content::Message(id) => {
            let Some(message) = thread.message(id) else { return frame };
            let reply_to = match message.answers.last() {
                Some(id) => source_of(daemon, thread, id).await,
                None => None,
            };
            let author = &message.author;
            Outbound {
                message_id: Some(id.clone()),
                author: AuthorDoc {
                    kind: author.kind.as_str().into(),
                    id: author.id.clone(),
                    name: author.name.clone(),
                },
                text: message.text.to_string(),
                reply_to,
                ..frame
            }
        }
        Content::Ask(asked) => Outbound {
            op: "ask".into(),
            question_id: Some(asked.id.clone()),
            text: asked.text.clone(),
            options: asked.options.iter().map(option).collect(),
            ..frame
        },
        Content::Resolve(resolved) => Outbound {
            op: "resolve".into(),
            question_id: Some(resolved.id.clone()),
            text: resolved.text.clone(),
            author: resolved.by.as_ref().map(|by| author(thread, by)).unwrap_or_default(),
            options: resolved.options.iter().map(option).collect(),
            external_ref: thread.place_of_question(&resolved.id).map(String::from),
            ..frame
        },
    }
}

fn option(choice: &Choice) -> OutboundOption {
    OutboundOption {
        id: choice.id.clone(),
        label: choice.label.clone(),
        description: choice.description.clone(),
    }
}

/// Returns the author of an answer. A person of the thread's own adapter has the adapter's id.
fn author(thread: &Thread, by: &AnsweredBy) -> AuthorDoc {
    let kind = match by.adapter.as_str() {
        kind @ ("agent" | "muleteer") => kind,
        _ => "person",
    };
    let id = match by.adapter == thread.opened.adapter {
        true => by.user.clone(),
        false => by.to_string(),
    };
    AuthorDoc { kind: kind.into(), id, name: by.user.clone() }
}

/// Returns the source's id of the message that an item answers. The item goes without it if the
/// message left the memory and the database cannot be read.
async fn source_of(daemon: &Arc<Daemon>, thread: &Thread, message: &str) -> Option<String> {
    match older::message(daemon, thread, message).await {
        Ok(answered) => answered.and_then(|answered| inbound::source_of(&answered)),
        Err(error) => {
            let error = error.message;
            tracing::warn!(thread = thread.id(), message, %error, "failed to read a message");
            None
        }
    }
}

// The frames are tested with a real adapter in tests/tests/conversation/adapters.rs.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_of_an_adapter_is_bounded() {
        assert_eq!(pause(Some(0.25)), Duration::from_millis(250));
        assert_eq!(pause(Some(1e300)), PAUSE);
        assert_eq!(pause(Some(f64::NAN)), PAUSE);
        assert_eq!(pause(Some(-1.0)), PAUSE);
        assert_eq!(pause(Some(1e9)), LONGEST_PAUSE);
        assert_eq!(pause(None), PAUSE);
    }
}
