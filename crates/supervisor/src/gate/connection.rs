//! Serves one connection: the greeting, then one request after another. Any failure here ends this
//! connection only.

use crate::conversation::adapter::session::{self, SessionError};
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal};
use crate::gate::handlers;
use crate::gate::peer::{self, Identity};
use crate::gate::places::Place;
use crate::telemetry::own_spans;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::{
    FRAME_LIMIT, FrameError, FrameReader, FrameWriter, HELLO_LIMIT, check_size, negotiate,
};
use muleteer_protocol::socket::Stream;
use muleteer_protocol::v1::{
    AdapterHello, ClientFrame, FirstFrame, INITIAL_CREDITS, Item, Reply, Request, ServerFrame,
    StatusReport, Telemetry, ToAdapter, Welcome, WireError,
};
use std::sync::Arc;
use std::time::Duration;

/// The time for a peer to send its hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// The time after which a peer without a request is disconnected.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

pub struct Connection {
    pub daemon: Arc<Daemon>,
    pub identity: Identity,
    reader: FrameReader<Stream>,
    writer: FrameWriter<Stream>,
    /// The id of the request that is served.
    request: u64,
    credits: u32,
}

/// A frame from the client while its request is served.
pub enum Heard {
    Credit,
    /// The client no longer wants the answer.
    Cancelled,
}

pub async fn serve(daemon: Arc<Daemon>, stream: Stream, through: Option<DispatchId>, place: Place) {
    if let Err(error) = talk(daemon, stream, through, &place).await {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn talk(
    daemon: Arc<Daemon>,
    stream: Stream,
    through: Option<DispatchId>,
    place: &Place,
) -> Result<(), FrameError> {
    let mut reader = FrameReader::new(stream.clone(), HELLO_LIMIT);
    let mut writer = FrameWriter::new(stream.clone());
    let first = tokio::select! {
        biased;
        () = place.closed() => return Ok(()),
        first = reader.first::<FirstFrame>(HELLO_DEADLINE) => first?,
    };
    let first = match first {
        Some(FirstFrame::Adapter(hello)) => {
            return adapter(daemon, stream, place, reader, writer, *hello).await;
        }
        Some(FirstFrame::Client(frame)) => Some(frame),
        None => None,
    };
    let Some(ClientFrame::Hello(hello)) = first else {
        let error = fault(ErrorCode::Protocol, "the first frame must be a hello", "");
        return writer.write(&ServerFrame::Refused { error }).await;
    };
    let Some(version) = negotiate(&hello.versions) else {
        let message =
            format!("no common protocol version (the client offers {:?})", hello.versions);
        let error =
            fault(ErrorCode::ProtocolVersion, &message, "use the muleteer version of the daemon");
        return writer.write(&ServerFrame::Refused { error }).await;
    };
    let identity = {
        let (daemon, key) = (daemon.clone(), hello.operator_key);
        tokio::task::spawn_blocking(move || {
            peer::identify(&daemon, &stream, through.as_ref(), key.as_deref())
        })
        .await
        .ok()
        .flatten()
    };
    let Some(identity) = identity else {
        let error = fault(ErrorCode::Forbidden, "this daemon belongs to another user", "");
        return writer.write(&ServerFrame::Refused { error }).await;
    };
    if !place.greeted(identity == Identity::Operator) {
        let error = fault(
            ErrorCode::Busy,
            "agents use all connections that are not reserved for the operator",
            "try again in 5 s",
        );
        return writer.write(&ServerFrame::Refused { error }).await;
    }
    let telemetry = Telemetry {
        endpoint: daemon.settings.telemetry.as_ref().map(|settings| settings.endpoint.to_string()),
    };
    let welcome = Welcome {
        version,
        daemon_pid: std::process::id(),
        daemon_version: env!("CARGO_PKG_VERSION").into(),
        identity: identity.as_str().into(),
        state_dir: daemon.paths.state_dir.display().to_string(),
        telemetry: matches!(identity, Identity::Operator).then_some(telemetry),
    };
    writer.write(&ServerFrame::Welcome(welcome)).await?;
    reader.set_limit(FRAME_LIMIT);
    let mut connection = Connection { daemon, identity, reader, writer, request: 0, credits: 0 };
    loop {
        let next = tokio::select! {
            biased;
            () = place.closed() => return Ok(()),
            next = connection.reader.next_within::<ClientFrame>(IDLE_LIMIT) => next?,
        };
        let Some((frame, len)) = next else { return Ok(()) };
        check_size(&frame, len)?;
        if let ClientFrame::Request { id, trace, body } = frame {
            if !place.busy() {
                return Ok(());
            }
            connection.request = id;
            connection.credits = INITIAL_CREDITS;
            connection.answer(body, trace).await?;
            place.idle();
        }
    }
}

/// Serves an adapter. Its key identifies it, and it is a process of this user.
async fn adapter(
    daemon: Arc<Daemon>,
    stream: Stream,
    place: &Place,
    reader: FrameReader<Stream>,
    mut writer: FrameWriter<Stream>,
    hello: AdapterHello,
) -> Result<(), FrameError> {
    let is_own = stream.peer().is_ok_and(|peer| peer.uid == rustix::process::getuid().as_raw());
    if !is_own {
        let error = fault(ErrorCode::Forbidden, "this daemon belongs to another user", "");
        return writer.write(&ToAdapter::Refused { error }).await;
    }
    // No later connection takes its place.
    if !place.greeted(true) || !place.busy() {
        return Ok(());
    }
    match session::serve(daemon, reader, writer, hello).await {
        Ok(()) => Ok(()),
        Err(SessionError::Frame(error)) => Err(error),
        Err(error @ (SessionError::Ledger(_) | SessionError::Unread)) => {
            tracing::warn!(%error, "an adapter's connection ended");
            Ok(())
        }
    }
}

impl Connection {
    async fn answer(&mut self, body: Request, trace: Option<String>) -> Result<(), FrameError> {
        let id = self.request;
        let settings = self.daemon.settings.telemetry.as_ref();
        let span = own_spans::request(settings, &body, trace.as_deref());
        let frame = match handlers::handle(self, body, trace).await? {
            Ok(Some(body)) => ServerFrame::Reply { id, body },
            // The client has cancelled, and waits for nothing.
            Ok(None) => {
                ServerFrame::Error { id, error: fault(ErrorCode::Cancelled, "cancelled", "") }
            }
            Err(error) => ServerFrame::Error { id, error },
        };
        own_spans::answered(&span, &frame);
        drop(span);
        match self.writer.write(&frame).await {
            // The frame is too long, and no byte of it was written.
            Err(FrameError::TooLong { len, .. }) => return self.in_parts(frame, len).await,
            outcome => outcome?,
        }
        match frame {
            ServerFrame::Reply { body: Reply::Spawned { .. }, .. } => {
                muleteer_process::fault::point("gate.create_replied")
            }
            // The daemon stops only now, so that the client gets its reply.
            ServerFrame::Reply { body: Reply::Stopping { .. }, .. } => {
                self.daemon.lifecycle.stop.cancel()
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends an answer that is too long for one frame in parts, one dispatch or thread in each.
    /// Other answers have no size that clients control; if one is too long, the client gets an
    /// error. If it were disconnected, it would retry for ever.
    async fn in_parts(&mut self, frame: ServerFrame, len: usize) -> Result<(), FrameError> {
        let id = self.request;
        let (mut body, error) = match frame {
            ServerFrame::Reply { body, .. } => {
                (body, internal(&format!("the answer has {len} bytes")))
            }
            _ => (Reply::Pong, internal(&format!("the error has {len} bytes"))),
        };
        let parts: Vec<Item> = match &mut body {
            Reply::Status(StatusReport { dispatches, .. }) | Reply::Waited { dispatches } => {
                let parts = std::mem::take(dispatches).into_iter();
                parts.map(|dispatch| Item::Dispatch(Box::new(dispatch))).collect()
            }
            Reply::Threads { threads } => {
                let parts = std::mem::take(threads).into_iter();
                parts.map(|thread| Item::Thread(Box::new(thread))).collect()
            }
            Reply::Questions { questions } => {
                let parts = std::mem::take(questions).into_iter();
                parts.map(|question| Item::Question(Box::new(question))).collect()
            }
            _ => return self.writer.write(&ServerFrame::Error { id, error }).await,
        };
        for part in parts {
            if !self.send(part).await? {
                return self
                    .writer
                    .write(&ServerFrame::Error {
                        id,
                        error: fault(ErrorCode::Cancelled, "cancelled", ""),
                    })
                    .await;
            }
        }
        self.writer.write(&ServerFrame::Reply { id, body }).await
    }

    /// Sends one item of a stream, and waits for credit. Returns `false` if the client cancelled.
    pub async fn send(&mut self, item: Item) -> Result<bool, FrameError> {
        while self.credits == 0 {
            if let Heard::Cancelled = self.hear().await? {
                return Ok(false);
            }
        }
        self.credits -= 1;
        self.writer.write(&ServerFrame::Item { id: self.request, item }).await?;
        Ok(true)
    }

    /// Waits for the client's next frame while its request is served. Fails if the client has
    /// disconnected. Cancel-safe.
    pub async fn hear(&mut self) -> Result<Heard, FrameError> {
        loop {
            match self.reader.next::<ClientFrame>().await? {
                None => return Err(FrameError::Truncated),
                Some(ClientFrame::Credit { id, n }) if id == self.request => {
                    self.credits = self.credits.saturating_add(n).min(INITIAL_CREDITS * 16);
                    return Ok(Heard::Credit);
                }
                Some(ClientFrame::Cancel { id }) if id == self.request => {
                    return Ok(Heard::Cancelled);
                }
                Some(_) => {}
            }
        }
    }
}

pub type Answer = Result<Result<Option<Reply>, WireError>, FrameError>;
