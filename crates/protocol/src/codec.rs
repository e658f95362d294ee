//! Framing of the daemon's socket: a big-endian `u32` length, then one rmp-serde value with named
//! fields.
//!
//! Both ends read data of a peer that they cannot trust, so the limits are here and not in the
//! callers:
//!
//! - a frame longer than the limit is rejected *before* its body is read, and a body is buffered as
//!   it arrives, never allocated from the length that a peer claims;
//! - a frame that began must be complete within [`FRAME_DEADLINE`] (against half-open and slow
//!   peers), while silence *between* frames is not an error;
//! - nesting is bounded, so that decoding a frame cannot overflow the stack.
//!
//! An error ends its connection. The stream cannot be resynchronised, and this code does not try.

use bytes::{Buf, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::v1::{ClientFrame, Request, VERSIONS};

/// The longest prompt that the daemon accepts, in bytes.
pub const PROMPT_LIMIT: usize = 8 << 20;
/// The longest frame of a peer that has not identified itself.
pub const HELLO_LIMIT: usize = 64 << 10;
/// The longest request without a prompt.
pub const REQUEST_LIMIT: usize = 1 << 20;
/// The longest frame that either end reads after the handshake: a prompt with its request.
pub const FRAME_LIMIT: usize = PROMPT_LIMIT + REQUEST_LIMIT;
/// A frame whose first byte has arrived must be complete within this time.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(10);
/// A connection is closed if the peer does not read our data for this long.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// The deepest nesting that is decoded; the actor tree with its processes is below twenty.
const DEPTH_LIMIT: usize = 96;

const HEADER: usize = 4;
const READ_CHUNK: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {len} bytes is over the limit of {limit}")]
    TooLong { len: usize, limit: usize },
    #[error("an empty frame")]
    Empty,
    #[error("a frame is malformed: {0}")]
    Malformed(String),
    #[error("a frame was not complete within {}s", .0.as_secs())]
    Slow(Duration),
    #[error("the connection ended in the middle of a frame")]
    Truncated,
    #[error("cannot encode a frame: {0}")]
    Encode(String),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
}

/// Returns the best version that both sides speak; `None` if there is none.
pub fn negotiate(theirs: &[u16]) -> Option<u16> {
    VERSIONS.iter().copied().find(|ours| theirs.contains(ours))
}

/// Encodes one frame with its length in front.
///
/// # Errors
/// If `value` cannot be encoded, or is longer than [`FRAME_LIMIT`]: the peer would close the
/// connection.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER];
    let mut serializer = rmp_serde::Serializer::new(&mut bytes).with_struct_map();
    value.serialize(&mut serializer).map_err(|error| FrameError::Encode(error.to_string()))?;
    let len = bytes.len() - HEADER;
    let header = u32::try_from(len).ok().filter(|_| len <= FRAME_LIMIT);
    let header = header.ok_or(FrameError::TooLong { len, limit: FRAME_LIMIT })?;
    bytes[..HEADER].copy_from_slice(&header.to_be_bytes());
    Ok(bytes)
}

/// Decodes the body of one frame (without its length). Every byte must belong to the value.
///
/// # Errors
/// [`FrameError::Malformed`] for anything that is not exactly one `T`.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    if body.is_empty() {
        return Err(FrameError::Empty);
    }
    let mut rest = body;
    let mut deserializer = rmp_serde::Deserializer::new(&mut rest);
    deserializer.set_max_depth(DEPTH_LIMIT);
    let value = T::deserialize(&mut deserializer)
        .map_err(|error| FrameError::Malformed(error.to_string()))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(FrameError::Malformed(format!("{} bytes follow the value", rest.len())))
    }
}

/// Checks the length of a frame's body. Only a request with a prompt or a message may be longer
/// than [`REQUEST_LIMIT`].
///
/// # Errors
/// [`FrameError::TooLong`], with the limit that was exceeded.
pub fn check_size(frame: &ClientFrame, len: usize) -> Result<(), FrameError> {
    let (prompt, limit) = match frame {
        ClientFrame::Request { body: Request::Spawn(spawn), .. } => {
            (spawn.prompt.len(), FRAME_LIMIT)
        }
        ClientFrame::Request { body: Request::Send { text, .. }, .. } => (text.len(), FRAME_LIMIT),
        ClientFrame::Request { body: Request::ThreadSend(sent), .. } => {
            (sent.text.len() + sent.file_bytes(), FRAME_LIMIT)
        }
        ClientFrame::Request { body: Request::Tool(call), .. } if !call.files.is_empty() => {
            (call.arguments.len() + call.file_bytes(), FRAME_LIMIT)
        }
        _ => (0, REQUEST_LIMIT),
    };
    if prompt > PROMPT_LIMIT {
        return Err(FrameError::TooLong { len: prompt, limit: PROMPT_LIMIT });
    }
    if len > limit {
        return Err(FrameError::TooLong { len, limit });
    }
    Ok(())
}

/// Reads frames from one half of a socket.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    buffer: BytesMut,
    limit: usize,
    /// The deadline of the frame that has begun.
    deadline: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(inner: R, limit: usize) -> Self {
        Self { inner, buffer: BytesMut::new(), limit, deadline: None }
    }

    /// Changes the limit once the peer is known.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the next frame; `None` if the peer ended the connection between two frames.
    ///
    /// Cancel safe: data already read stays buffered, and a frame's deadline keeps running.
    ///
    /// # Errors
    /// Any error ends the connection: the reader must not be used again.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        Ok(self.next_sized().await?.map(|(frame, _)| frame))
    }

    /// Like [`Self::next`], with the length of the frame's body, for [`check_size`].
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn next_sized<T: DeserializeOwned>(
        &mut self,
    ) -> Result<Option<(T, usize)>, FrameError> {
        loop {
            if let Some(body) = self.take()? {
                self.deadline = None;
                return Ok(Some((decode(&body)?, body.len())));
            }
            let began = !self.buffer.is_empty();
            self.buffer.reserve(READ_CHUNK);
            let read = self.inner.read_buf(&mut self.buffer);
            let count = if began {
                let deadline =
                    *self.deadline.get_or_insert_with(|| Instant::now() + FRAME_DEADLINE);
                timeout_at(deadline, read).await.map_err(|_| FrameError::Slow(FRAME_DEADLINE))??
            } else {
                read.await?
            };
            match count {
                0 if self.buffer.is_empty() => return Ok(None),
                0 => return Err(FrameError::Truncated),
                _ => {}
            }
        }
    }

    /// Like [`Self::next_sized`], for a peer that must begin a frame within `idle`.
    ///
    /// # Errors
    /// As [`Self::next`], and [`FrameError::Slow`] if no frame began.
    pub async fn next_within<T: DeserializeOwned>(
        &mut self,
        idle: Duration,
    ) -> Result<Option<(T, usize)>, FrameError> {
        loop {
            match timeout(idle, self.next_sized()).await {
                Ok(next) => return next,
                Err(_) if self.buffer.is_empty() => return Err(FrameError::Slow(idle)),
                // The peer has begun a frame, which has its own deadline.
                Err(_) => {}
            }
        }
    }

    /// Returns a first frame that must be complete within `wait`, whether or not it has begun.
    ///
    /// # Errors
    /// As [`Self::next`], and [`FrameError::Slow`] if none was complete.
    pub async fn first<T: DeserializeOwned>(
        &mut self,
        wait: Duration,
    ) -> Result<Option<T>, FrameError> {
        timeout(wait, self.next()).await.map_err(|_| FrameError::Slow(wait))?
    }

    /// Takes one whole body out of the buffer, if it is there.
    fn take(&mut self) -> Result<Option<BytesMut>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER>() else { return Ok(None) };
        let len = u32::from_be_bytes(*header) as usize;
        if len > self.limit {
            return Err(FrameError::TooLong { len, limit: self.limit });
        }
        if self.buffer.len() < HEADER + len {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
        Ok(Some(self.buffer.split_to(len)))
    }
}

/// Writes frames to one half of a socket.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub fn new(inner: W) -> Self {
        Self { inner }
    }

    /// Writes one frame and flushes it.
    ///
    /// Not cancel safe: a dropped call may leave half a frame, and the connection is then unusable.
    ///
    /// # Errors
    /// [`FrameError::Slow`] if the peer did not read it within [`WRITE_DEADLINE`].
    pub async fn write<T: Serialize>(&mut self, frame: &T) -> Result<(), FrameError> {
        let bytes = encode(frame)?;
        let write = async {
            self.inner.write_all(&bytes).await?;
            self.inner.flush().await
        };
        timeout(WRITE_DEADLINE, write).await.map_err(|_| FrameError::Slow(WRITE_DEADLINE))??;
        Ok(())
    }
}
