//! Framing of the daemon's socket: a `u32` length, big-endian, then one rmp-serde value with named
//! fields.
//!
//! Both ends read what a stranger wrote, so the limits live here and not with the callers:
//!
//! - a frame longer than the limit is refused *before* its body is read, and a body is buffered as
//!   it arrives, never allocated from the length a peer claims;
//! - a frame that began must be whole within [`FRAME_DEADLINE`] (a half-open or dripping peer),
//!   while silence *between* frames is nobody's fault;
//! - nesting is bounded, so a frame cannot overflow the stack that decodes it.
//!
//! An error ends the connection it came from. Nothing here can be resynchronised, and nothing
//! tries.

use bytes::{Buf, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use crate::v1::{ClientFrame, Request, VERSIONS};

/// Longest prompt the daemon takes, in bytes.
pub const PROMPT_LIMIT: usize = 8 << 20;
/// Longest frame of a peer that has not said who it is.
pub const HELLO_LIMIT: usize = 64 << 10;
/// Longest request that carries no prompt.
pub const REQUEST_LIMIT: usize = 1 << 20;
/// Longest frame either end reads after the handshake: a prompt and what surrounds it.
pub const FRAME_LIMIT: usize = PROMPT_LIMIT + REQUEST_LIMIT;
/// A frame whose first byte has arrived must be whole within this time.
pub const FRAME_DEADLINE: Duration = Duration::from_secs(10);
/// A peer that does not take what we write for this long is given up.
pub const WRITE_DEADLINE: Duration = Duration::from_secs(30);
/// Deepest nesting decoded; the actor tree with its processes is under twenty.
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

/// Picks the version both sides speak, the best of ours first; none when there is none.
pub fn negotiate(theirs: &[u16]) -> Option<u16> {
    VERSIONS.iter().copied().find(|ours| theirs.contains(ours))
}

/// One frame with its length in front, ready to be written.
///
/// # Errors
/// When `value` cannot be encoded, or is longer than [`FRAME_LIMIT`]: the peer would hang up on it.
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
/// [`FrameError::Malformed`] for anything that is not one whole `T`.
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

/// Only what carries a prompt may be longer than [`REQUEST_LIMIT`]. `len` is of the frame's body.
///
/// # Errors
/// [`FrameError::TooLong`], naming the limit that was passed.
pub fn check_size(frame: &ClientFrame, len: usize) -> Result<(), FrameError> {
    let (prompt, limit) = match frame {
        ClientFrame::Request { body: Request::Spawn(spawn), .. } => {
            (spawn.prompt.len(), FRAME_LIMIT)
        }
        ClientFrame::Request { body: Request::Send { text, .. }, .. } => (text.len(), FRAME_LIMIT),
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
    /// By when the frame that has begun must be whole.
    deadline: Option<Instant>,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub fn new(inner: R, limit: usize) -> Self {
        Self { inner, buffer: BytesMut::new(), limit, deadline: None }
    }

    /// Changes the limit, once the peer is known.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The next frame; none when the peer ended the connection between two frames.
    ///
    /// Cancel safe: what was read stays buffered, and a frame's deadline goes on running.
    ///
    /// # Errors
    /// Any error ends the connection: the reader must not be used again.
    pub async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, FrameError> {
        Ok(self.next_sized().await?.map(|(frame, _)| frame))
    }

    /// As [`Self::next`], with the length of the frame's body, for [`check_size`].
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

    /// As [`Self::next_sized`], of a peer that must begin a frame within `idle`.
    ///
    /// # Errors
    /// As [`Self::next`], and [`FrameError::Slow`] when nothing came.
    pub async fn next_within<T: DeserializeOwned>(
        &mut self,
        idle: Duration,
    ) -> Result<Option<(T, usize)>, FrameError> {
        loop {
            match timeout(idle, self.next_sized()).await {
                Ok(next) => return next,
                Err(_) if self.buffer.is_empty() => return Err(FrameError::Slow(idle)),
                // It has begun one, which has a deadline of its own.
                Err(_) => {}
            }
        }
    }

    /// A first frame that must come within `wait`, whether or not it has begun.
    ///
    /// # Errors
    /// As [`Self::next`], and [`FrameError::Slow`] when nothing came.
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
    /// Not cancel safe: a dropped call may leave half a frame, so the connection is then spent.
    ///
    /// # Errors
    /// [`FrameError::Slow`] when the peer did not take it within [`WRITE_DEADLINE`].
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
