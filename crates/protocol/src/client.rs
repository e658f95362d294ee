//! The client's end of the daemon's socket: connect, shake hands, request, stream.
//!
//! One connection handles one request at a time; a client that needs two at once opens two
//! connections. So there is no task to own and no map of pending requests, and dropping the client
//! cleans up everything.

use crate::ErrorCode;
use crate::codec::{FRAME_LIMIT, FrameError, FrameReader, FrameWriter};
use crate::socket::{self, Stream as Socket};
use crate::v1::{
    ClientFrame, DaemonStatus, Hello, INITIAL_CREDITS, Item, Reply, Request, ServerFrame,
    StatusReport, VERSIONS, Welcome, WireError,
};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::timeout;

/// How long a daemon may take to accept a connection and to answer `Hello`.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens there: there is no daemon, or a dead one left the socket.
    #[error("no daemon answers at {}", .path.display())]
    NoDaemon { path: PathBuf, source: io::Error },
    #[error("cannot connect to {}", .path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("the daemon refused the connection: {}", .0.message)]
    Refused(WireError),
    /// The connection ended before the answer. The daemon may have accepted the request, and the
    /// client may repeat it with the same id or key.
    #[error("the connection to the daemon was lost before it answered")]
    Lost,
    #[error("the daemon does not use Muleteer's protocol")]
    Frame(#[source] FrameError),
    #[error("the daemon did not answer within {}s", .0.as_secs())]
    Slow(Duration),
    /// The daemon answered with an error.
    #[error("{}", .0.message)]
    Remote(WireError),
    #[error("this version does not know the daemon's kind of answer: {0}")]
    Unexpected(String),
}

impl ClientError {
    /// Whether the client may repeat the same request on a new connection, because the daemon went
    /// away instead of rejecting it.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::NoDaemon { .. } | Self::Lost => true,
            // Like a lost connection, this answer does not say whether the request was carried out.
            Self::Remote(error) => error.code == ErrorCode::DaemonEnding,
            _ => false,
        }
    }
}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        match error {
            FrameError::Io(_) | FrameError::Truncated => Self::Lost,
            other => Self::Frame(other),
        }
    }
}

#[derive(Debug)]
pub struct Client {
    reader: FrameReader<Socket>,
    writer: FrameWriter<Socket>,
    welcome: Welcome,
    trace: Option<String>,
    next_id: u64,
}

impl Client {
    /// Connects to the daemon at `path` and shakes hands. `name` is for the daemon's logs.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`] if no process listens; the others mean that one listens but cannot
    /// be used, and say why.
    pub async fn connect(
        path: &Path,
        name: &str,
        operator_key: Option<String>,
    ) -> Result<Self, ClientError> {
        let slow = |_| ClientError::Slow(HANDSHAKE_DEADLINE);
        let failed = |source: io::Error| match source.kind() {
            // Reset: the daemon was killed after the kernel queued our connection and before it
            // accepted.
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => ClientError::NoDaemon { path: path.into(), source },
            _ => ClientError::Connect { path: path.into(), source },
        };
        let stream = timeout(HANDSHAKE_DEADLINE, socket::connect(path)).await.map_err(slow)?;
        let stream = stream.map_err(failed)?;
        let mut reader = FrameReader::new(stream.clone(), FRAME_LIMIT);
        let mut writer = FrameWriter::new(stream);
        let hello = Hello { versions: VERSIONS.to_vec(), client: name.into(), operator_key };
        writer.write(&ClientFrame::Hello(hello)).await?;
        let answer =
            timeout(HANDSHAKE_DEADLINE, reader.next::<ServerFrame>()).await.map_err(slow)?;
        match answer?.ok_or(ClientError::Lost)? {
            ServerFrame::Welcome(welcome) => {
                Ok(Self { reader, writer, welcome, trace: None, next_id: 1 })
            }
            ServerFrame::Refused { error } => Err(ClientError::Refused(error)),
            other => Err(ClientError::Unexpected(format!("{other:?}"))),
        }
    }

    /// Returns the daemon's answer to `Hello`.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Sets the W3C `traceparent` that every later request carries.
    pub fn set_trace(&mut self, trace: Option<String>) {
        self.trace = trace;
    }

    /// Sends a request and waits for its reply, however long that takes (`wait` may take days).
    ///
    /// Not cancel safe: after a dropped call the client must be dropped too.
    ///
    /// # Errors
    /// [`ClientError::Remote`] has the daemon's own error; see [`ClientError::is_lost`].
    pub async fn call(&mut self, body: Request) -> Result<Reply, ClientError> {
        let mut stream = self.stream(body).await?;
        let (mut ahead, mut threads, mut messages) = (vec![], vec![], vec![]);
        let mut questions = vec![];
        loop {
            match stream.next().await? {
                Next::Item(Item::Dispatch(dispatch)) => ahead.push(*dispatch),
                Next::Item(Item::Thread(thread)) => threads.push(*thread),
                Next::Item(Item::Message(message)) => messages.push(*message),
                Next::Item(Item::Question(question)) => questions.push(*question),
                Next::Item(_) => {}
                Next::End(mut reply) => {
                    match &mut reply {
                        Reply::Status(StatusReport { dispatches, .. })
                        | Reply::Waited { dispatches } => drop(dispatches.splice(..0, ahead)),
                        Reply::Threads { threads: rest } => drop(rest.splice(..0, threads)),
                        Reply::Questions { questions: rest } => {
                            drop(rest.splice(..0, questions));
                        }
                        Reply::Thread(thread) => drop(thread.messages.splice(..0, messages)),
                        _ => {}
                    }
                    return Ok(reply);
                }
            }
        }
    }

    /// Waits until the daemon has closed the connection, as it does when it ends. Cancel safe.
    pub async fn closed(mut self) {
        while let Ok(Some(_)) = self.reader.next::<ServerFrame>().await {}
    }

    /// Requests a stream of items; [`Stream::next`] returns them one by one.
    ///
    /// # Errors
    /// If the request cannot be sent.
    pub async fn stream(&mut self, body: Request) -> Result<Stream<'_>, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        self.writer.write(&ClientFrame::Request { id, trace: self.trace.clone(), body }).await?;
        Ok(Stream { client: self, id, taken: 0 })
    }
}

/// An element of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    Item(Item),
    /// The last element: the reply that ends the stream.
    End(Reply),
}

/// A streamed reply. Items arrive only while credits last. The client grants more as the caller
/// *takes* items, so a slow reader delays only its own stream.
#[derive(Debug)]
pub struct Stream<'a> {
    client: &'a mut Client,
    id: u64,
    taken: u32,
}

impl Stream<'_> {
    /// Returns the next item, or the reply that ends the stream.
    ///
    /// Cancel safe only between items: if a call is dropped while it grants credits, the client is
    /// unusable. That does not matter to a caller that drops the client as well.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn next(&mut self) -> Result<Next, ClientError> {
        if self.taken >= INITIAL_CREDITS / 2 {
            let credit = ClientFrame::Credit { id: self.id, n: self.taken };
            self.taken = 0;
            // A daemon that ended may have sent the rest before, so ignore the error and read on.
            drop(self.client.writer.write(&credit).await);
        }
        loop {
            match self.client.reader.next::<ServerFrame>().await?.ok_or(ClientError::Lost)? {
                ServerFrame::Item { id, item } if id == self.id => {
                    self.taken += 1;
                    return Ok(Next::Item(item));
                }
                ServerFrame::Reply { id, body } if id == self.id => return Ok(Next::End(body)),
                ServerFrame::Error { id, error } if id == self.id => {
                    return Err(ClientError::Remote(error));
                }
                // The daemon ends a connection with this frame if it cannot continue it.
                ServerFrame::Refused { error } => return Err(ClientError::Refused(error)),
                // Left over from a cancelled stream, or sent by a newer daemon.
                _ => {}
            }
        }
    }

    /// Asks the daemon to end the stream and waits for its end, so that the client can be used
    /// again.
    ///
    /// # Errors
    /// If the connection fails; an error of the daemon counts as the end.
    pub async fn cancel(mut self) -> Result<(), ClientError> {
        self.client.writer.write(&ClientFrame::Cancel { id: self.id }).await?;
        loop {
            match self.next().await {
                Ok(Next::Item(_)) => {}
                Ok(Next::End(_)) | Err(ClientError::Remote(_)) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Welcome {
    /// Returns the daemon's part of `status --json`.
    pub fn daemon_status(&self, socket: &Path) -> DaemonStatus {
        DaemonStatus {
            running: true,
            pid: Some(self.daemon_pid),
            version: Some(self.daemon_version.clone()),
            socket: Some(socket.display().to_string()),
            config_faults: vec![],
            role_faults: vec![],
        }
    }
}
