//! The daemon's end of the connection to one shim.

use crate::dispatch::shim::error::ShimError;
use muleteer_protocol::shim::v1::{FromShim, HEADER, MAX_BODY, ToShim};
use muleteer_shim::attach;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The timeout for a frame, which is small and local: a slower shim is stuck or stopped.
const PORT_DEADLINE: Duration = Duration::from_secs(5);

/// A connection to a shim that has proven the nonce of its identity.
#[derive(Debug)]
pub struct ShimPort {
    stream: UnixStream,
    generation: u64,
    buffer: Vec<u8>,
}

impl ShimPort {
    /// Connects and greets the shim. Every step has a deadline, because a stopped shim must not
    /// block the daemon.
    pub async fn connect(dir: &Path, generation: u64) -> Result<Self, ShimError> {
        let hello = async {
            let (stream, meta) = attach::greet(dir, generation)?;
            let mut port = Self::of(stream, generation, vec![]).map_err(ShimError::Port)?;
            let answer = port.receive().await.map_err(ShimError::Port)?;
            attach::check(answer, &meta)?;
            Ok(port)
        };
        tokio::time::timeout(PORT_DEADLINE, hello).await.map_err(|_| ShimError::Silent)?
    }

    /// Continues a connection after the greeting; `heard` has the bytes since the answer.
    pub fn of(
        stream: std::os::unix::net::UnixStream,
        generation: u64,
        heard: Vec<u8>,
    ) -> io::Result<Self> {
        Ok(Self { stream: UnixStream::from_std(stream)?, generation, buffer: heard })
    }

    pub async fn send(&mut self, frame: &ToShim) -> io::Result<()> {
        let mut bytes = Vec::new();
        frame.encode(self.generation, &mut bytes);
        match tokio::time::timeout(PORT_DEADLINE, self.stream.write_all(&bytes)).await {
            Ok(sent) => sent,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Returns the next frame. Cancel-safe: bytes that were read stay in the buffer.
    pub async fn receive(&mut self) -> io::Result<FromShim> {
        loop {
            let decoded = FromShim::decode(&self.buffer)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(decoded) = decoded {
                self.buffer.drain(..decoded.used);
                return Ok(decoded.frame);
            }
            if self.buffer.len() > MAX_BODY + HEADER {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Renews the lease and waits for the answer.
    pub async fn heartbeat(&mut self, lease_ms: u64) -> io::Result<()> {
        self.heartbeat_nowait(lease_ms).await?;
        let answer = async {
            loop {
                if let FromShim::Status { .. } = self.receive().await? {
                    return Ok(());
                }
            }
        };
        tokio::time::timeout(PORT_DEADLINE, answer)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    pub async fn heartbeat_nowait(&mut self, lease_ms: u64) -> io::Result<()> {
        self.send(&ToShim::Heartbeat { lease_ms }).await
    }
}
