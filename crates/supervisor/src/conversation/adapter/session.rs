//! One connection of an adapter: what comes from it is made durable and acknowledged, and what its
//! threads owe it is given in order, as far as its credits last.

use crate::conversation::adapter::frame::{Item, owed};
use crate::conversation::adapter::inbound;
use crate::conversation::adapter::live::{self, LiveThreads};
use crate::conversation::adapter::registry::Seat;
use crate::conversation::deliver::entries;
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::own;
use crate::dispatch::error::fault;
use crate::ledger::append;
use crate::ports::ledger::LedgerError;
use futures_util::future::{BoxFuture, select_all};
use muleteer_model::conversation::adapter::abilities::Abilities;
use muleteer_model::conversation::adapter::outbox::{self, Outcome, REFERENCE_LIMIT};
use muleteer_model::event::title;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::{FRAME_LIMIT, FrameError, FrameReader, FrameWriter};
use muleteer_protocol::socket::Stream;
use muleteer_protocol::v1::{
    ADAPTER_VERSION, Ack, AdapterHello, AdapterWelcome, FromAdapter, MOST_CREDITS, Outbound,
    ToAdapter, WireError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The operations of this daemon.
const OPS: &[&str] =
    &["post", "update", "document", "upload", "ask", "resolve", "stream", "react", "status"];
/// The shortest time between two looks at the work that goes on.
const LOOK: Duration = Duration::from_millis(100);
/// The most capabilities of an adapter, and the longest one in bytes.
const MOST_CAPABILITIES: usize = 64;
const CAPABILITY_LIMIT: usize = 64;
/// The most items that become durable together before they are given.
const BATCH: usize = 64;
/// The most frames that wait to be written.
const FRAMES: usize = 64;
/// The most bytes of content that wait to be written. The last item may exceed it.
const CONTENT: usize = 8 << 20;
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
    let abilities = Abilities::of(&hello.capabilities, hello.longest_text);
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
    let (frames, queued) = mpsc::channel(FRAMES);
    let waiting = watch::Sender::new(0);
    let writing = own(write(writer, queued, waiting.clone()));
    let mut session = Session {
        daemon: daemon.clone(),
        name: seat.name.clone(),
        abilities,
        live: LiveThreads::new(&seat.name, abilities, daemon.snapshot().seq),
        looked: None,
        look_at: Some(Instant::now()),
        frames,
        waiting,
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
async fn write(
    mut writer: FrameWriter<Stream>,
    mut frames: mpsc::Receiver<ToAdapter>,
    waiting: watch::Sender<usize>,
) {
    while let Some(frame) = frames.recv().await {
        let bytes = bytes_of(&frame);
        let written = writer.write(&frame).await;
        drop(frame);
        waiting.send_modify(|waiting| *waiting -= bytes);
        if let Err(error) = written {
            tracing::warn!(%error, "an adapter takes no frames");
            return;
        }
    }
}

/// Returns the bytes of a frame's content, which it has only as an item.
fn bytes_of(frame: &ToAdapter) -> usize {
    match frame {
        ToAdapter::Outbound(frame) => weight(frame),
        _ => 0,
    }
}

fn weight(frame: &Outbound) -> usize {
    frame.text.len() + frame.content.as_ref().map_or(0, Vec::len)
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
    what: What,
}

enum What {
    /// An item that a record owes, with its key.
    Owed(String),
    /// A piece of the stream of this turn.
    Piece(u32),
    /// A mark or a state. Nothing follows from its acknowledgement.
    Passing,
}

struct Session {
    daemon: Arc<Daemon>,
    name: String,
    abilities: Abilities,
    live: LiveThreads,
    /// The newest look at the work that goes on, and the next one.
    looked: Option<Instant>,
    look_at: Option<Instant>,
    /// The frames that wait to be written.
    frames: mpsc::Sender<ToAdapter>,
    /// The bytes of content among them. The session gives no item while they are too many; it does
    /// not wait, because an adapter may submit a large file before it reads.
    waiting: watch::Sender<usize>,
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
    fn send(
        &self,
        frame: ToAdapter,
    ) -> impl Future<Output = Result<(), SessionError>> + Send + use<> {
        let frames = self.frames.clone();
        async move { frames.send(frame).await.map_err(|_| SessionError::Unread) }
    }

    async fn run(&mut self, reader: &mut FrameReader<Stream>) -> Result<(), SessionError> {
        let frames = self.frames.clone();
        let mut waiting = self.waiting.subscribe();
        let mut changes = self.daemon.fleet.subscribe();
        let mut growing = vec![];
        loop {
            changes.borrow_and_update();
            self.resume();
            if self.look_at.is_some_and(|at| at <= Instant::now()) {
                growing = self.look();
            }
            let is_full = self.give().await?;
            let next = self.pauses.values().min().copied().into_iter().chain(self.look_at).min();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                frame = reader.next::<FromAdapter>() => match frame? {
                    Some(frame) => self.hear(frame).await?,
                    None => return Ok(()),
                },
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    self.look_soon();
                }
                () = any(&mut growing) => {
                    growing.clear();
                    self.look_soon();
                }
                () = due => {}
                () = room(&mut waiting), if is_full => {}
                () = frames.closed() => return Err(SessionError::Unread),
            }
        }
    }

    /// Looks at the work that goes on. Returns what is ready when there is more.
    fn look(&mut self) -> Vec<BoxFuture<'static, ()>> {
        let fleet = self.daemon.snapshot();
        let (daemon, live) = (&self.daemon, &mut self.live);
        let look = tokio::task::block_in_place(|| live.look(daemon, &fleet));
        (self.looked, self.look_at) = (Some(Instant::now()), None);
        if look.more {
            self.look_soon();
        }
        look.growing
    }

    /// Looks again, a while after the last look: changes in between are seen together.
    fn look_soon(&mut self) {
        if self.abilities.is_live() {
            let now = Instant::now();
            let at = self.looked.map_or(now, |looked| (looked + LOOK).max(now));
            self.look_at.get_or_insert(at);
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

    /// Gives items while there are credits, and returns whether too much content waits to be
    /// written. That an item is on its way is durable first.
    async fn give(&mut self) -> Result<bool, SessionError> {
        loop {
            let fleet = self.daemon.snapshot();
            let all = &fleet.conversations;
            let Some(adapter) = all.adapter(&self.name) else { return Ok(false) };
            let (mut frames, mut events) = (vec![], vec![]);
            let mut is_full = false;
            while self.credits > 0 && frames.len() < BATCH {
                let content: usize = frames.iter().map(weight).sum();
                is_full = content + *self.waiting.borrow() >= CONTENT;
                if is_full {
                    break;
                }
                let thread = |id: &str| all.get(id).map(|thread| &**thread);
                if let Some(mark) = self.live.next_mark(&self.held, &fleet) {
                    frames.push(self.passing(mark));
                    continue;
                }
                let Some((thread, post)) = outbox::next(adapter, &self.held, thread) else {
                    let Some(item) = self.live.next(&self.held, &fleet) else { break };
                    frames.push(self.passing(item));
                    continue;
                };
                if let Some(mark) = self.live.mark_before(thread, post) {
                    frames.push(self.passing(mark));
                    continue;
                }
                let stream = self.live.place(thread.id(), post.stream.as_ref());
                let (seq, abilities) = (self.seq + 1, self.abilities);
                let item = Item { seq, thread, post, abilities, stream };
                let Some(frame) = owed(&self.daemon, item).await else {
                    self.held.insert(thread.id().into());
                    self.pauses.insert(thread.id().into(), Instant::now() + PAUSE);
                    continue;
                };
                events.extend(outbox::sent(thread, post));
                frames.push(self.giving(thread.id(), What::Owed(post.key.clone()), frame));
            }
            if frames.is_empty() {
                return Ok(is_full);
            }
            if !events.is_empty() {
                append(&self.daemon, entries(events)).await?;
            }
            point("adapter.sent");
            for frame in frames {
                self.waiting.send_modify(|waiting| *waiting += weight(&frame));
                self.send(ToAdapter::Outbound(Box::new(frame))).await?;
            }
            point("adapter.given");
        }
    }

    /// Takes a credit for an item that no record owes.
    fn passing(&mut self, item: live::Item) -> Outbound {
        let what = item.turn.map_or(What::Passing, What::Piece);
        self.giving(&item.thread, what, item.frame)
    }

    /// Takes a credit for an item. Its thread gets no other one until it is acknowledged.
    fn giving(&mut self, thread: &str, what: What, frame: Outbound) -> Outbound {
        self.credits -= 1;
        self.seq += 1;
        self.held.insert(thread.into());
        self.given.insert(self.seq, Given { thread: thread.into(), what });
        Outbound { seq: self.seq, ..frame }
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
        let Some(Given { thread, what }) = self.given.remove(&ack.seq) else {
            let message = format!("item {} was not given, or is acknowledged already", ack.seq);
            let error = fault(ErrorCode::BadInput, &message, "acknowledge each item once");
            return self.send(ToAdapter::Error { seq: Some(ack.seq), error }).await;
        };
        let place = ack.external_ref.filter(|place| place.len() <= REFERENCE_LIMIT);
        let key = match what {
            What::Owed(key) => key,
            What::Piece(turn) => {
                let taken = if ack.error.is_none() { Ok(place) } else { Err(()) };
                self.live.streamed(&thread, turn, taken);
                self.held.remove(&thread);
                return Ok(());
            }
            What::Passing => {
                self.held.remove(&thread);
                return Ok(());
            }
        };
        let outcome = match ack.error {
            None => Outcome::Posted { external_ref: place },
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

/// Waits until little content waits to be written.
async fn room(waiting: &mut watch::Receiver<usize>) {
    // The session itself keeps the sender.
    drop(waiting.wait_for(|bytes| *bytes < CONTENT).await);
}

/// Waits until one of these is ready; for ever if there is none.
async fn any(growing: &mut [BoxFuture<'static, ()>]) {
    match growing.is_empty() {
        true => std::future::pending().await,
        false => drop(select_all(growing.iter_mut()).await),
    }
}

/// Returns the pause that an adapter asks for, within bounds.
fn pause(asked: Option<f64>) -> Duration {
    let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.unwrap_or(PAUSE).min(LONGEST_PAUSE)
}

// The frames are tested with a real adapter in tests/tests/conversation/adapters.rs.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::conversation::event::{Author, AuthorKind, MessageRecorded, ThreadOpened};
    use muleteer_model::event::Event;

    /// Adds a thread that owes its adapter a message.
    fn owe(daemon: &Daemon, thread: &str, text: String) {
        daemon.fold_plain(Event::ThreadOpened(Box::new(ThreadOpened {
            thread: thread.into(),
            role: "product-analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "slack".into(),
            external: Some(thread.into()),
            by: "U1".into(),
            bang: None,
        })));
        daemon.fold_plain(Event::MessageRecorded(Box::new(MessageRecorded {
            thread: thread.into(),
            message: format!("m{}", &thread[1..]),
            author: Author { kind: AuthorKind::Agent, id: "a".into(), name: "a".into() },
            text,
            answers: vec![],
            dispatch: None,
            turn: None,
            files: vec![],
            reports_through: None,
        })));
        let fleet = daemon.snapshot();
        let thread = fleet.conversations.get(thread).expect("a thread");
        let (_, post) = thread.outbox.first().expect("an owed item");
        outbox::sent(thread, post).into_iter().for_each(|event| daemon.fold_plain(event));
    }

    #[tokio::test]
    async fn content_that_waits_to_be_written_is_bounded() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let size = 512 << 10;
        for number in 0..20 {
            let letter = char::from(b'a' + number);
            owe(&daemon, &format!("thrd222{letter}"), "x".repeat(size));
        }
        let (frames, mut queued) = mpsc::channel(FRAMES);
        let abilities = Abilities::default();
        let mut session = Session {
            daemon,
            name: "slack".into(),
            abilities,
            live: LiveThreads::new("slack", abilities, 0),
            looked: None,
            look_at: None,
            frames,
            waiting: watch::Sender::new(0),
            credits: 64,
            seq: 0,
            given: BTreeMap::new(),
            held: BTreeSet::new(),
            pauses: BTreeMap::new(),
        };
        assert!(session.give().await.expect("items"));
        assert_eq!((queued.len(), *session.waiting.borrow()), (CONTENT / size, CONTENT));
        let written = queued.recv().await.expect("a frame");
        session.waiting.send_modify(|waiting| *waiting -= bytes_of(&written));
        room(&mut session.waiting.subscribe()).await;
        session.give().await.expect("items");
        assert_eq!(queued.len(), CONTENT / size);
        session.waiting.send_replace(0);
        assert!(!session.give().await.expect("items"), "all is given");
        assert_eq!(queued.len(), 19);
    }

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
