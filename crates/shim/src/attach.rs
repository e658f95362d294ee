//! The daemon's side of finding a shim again: does it live, and where is it reached.

use crate::start::read_key;
use muleteer_process::clock::awake;
use muleteer_process::lock::{self, LockGuard};
use muleteer_protocol::shim::v1::{FromShim, MAX_BODY, ToShim, VERSION};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The socket's name in the agent's directory.
pub const SOCKET: &str = "sock";
/// The lock's name in the agent's directory.
pub const LOCK: &str = "lock";

/// Whether an agent's shim lives.
#[derive(Debug)]
pub enum Liveness {
    /// Somebody holds the lock: the shim, or for a moment whoever was forked with it.
    Alive,
    /// Nobody held it. The caller holds it now, so nothing can be started meanwhile; it sweeps,
    /// then starts a successor with this very guard, or drops it.
    Dead(LockGuard),
}

/// Probes an agent's lock. Only the holder of `daemon.lock` may: probing takes the lock.
pub fn probe(agent_dir: &Path) -> io::Result<Liveness> {
    probe_within(agent_dir, Duration::ZERO)
}

/// Like [`probe`], but waits up to `limit` for the lock to become free. Blocks the thread.
pub fn probe_within(agent_dir: &Path, limit: Duration) -> io::Result<Liveness> {
    Ok(lock::lock_within(&agent_dir.join(LOCK), limit)?.map_or(Liveness::Alive, Liveness::Dead))
}

/// Where to connect to the shim, given an open descriptor of its agent's directory: such a path is
/// short however deep the directory lies (a socket's path has about 107 bytes). The descriptor
/// must stay open until the connection stands.
///
/// Elsewhere than on Linux there is no such way, and the directory's own path has to be short.
pub fn socket_path(agent_dir: &Path, dir: BorrowedFd<'_>) -> PathBuf {
    if cfg!(target_os = "linux") {
        PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd()))
    } else {
        agent_dir.join(SOCKET)
    }
}

/// A blocking client, for tests and tools.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    generation: u64,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects and says hello with the agent's own key. The answer is the first frame
    /// [`Client::receive`] gives.
    pub fn connect(agent_dir: &Path, generation: u64) -> io::Result<Self> {
        Self::connect_with(agent_dir, generation, read_key(agent_dir)?)
    }

    /// Connects and says hello with any key.
    pub fn connect_with(agent_dir: &Path, generation: u64, key: [u8; 16]) -> io::Result<Self> {
        let mut client = Self::connect_silently(agent_dir, generation)?;
        client.send(&ToShim::Hello { versions: vec![VERSION], key })?;
        Ok(client)
    }

    /// Connects and says nothing.
    pub fn connect_silently(agent_dir: &Path, generation: u64) -> io::Result<Self> {
        use std::os::fd::AsFd;
        let dir = std::fs::File::open(agent_dir)?;
        let stream = UnixStream::connect(socket_path(agent_dir, dir.as_fd()))?;
        Ok(Self { stream, generation, buffer: vec![] })
    }

    pub fn send(&mut self, frame: &ToShim) -> io::Result<()> {
        let mut bytes = vec![];
        frame.encode(self.generation, &mut bytes);
        self.send_raw(&bytes)
    }

    /// Sends bytes that may be no frame.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next frame. `UnexpectedEof` when the shim closed the connection, `TimedOut` after `limit`.
    pub fn receive(&mut self, limit: Duration) -> io::Result<FromShim> {
        let deadline = awake() + limit;
        loop {
            let decoded =
                FromShim::decode(&self.buffer).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(decoded) = decoded {
                self.buffer.drain(..decoded.used);
                return Ok(decoded.frame);
            }
            let left = deadline.saturating_sub(awake());
            if left.is_zero() || self.buffer.len() > MAX_BODY {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next frame that `wanted` makes something of; others are dropped.
    pub fn receive_until<T>(
        &mut self,
        limit: Duration,
        mut wanted: impl FnMut(&FromShim) -> Option<T>,
    ) -> io::Result<T> {
        let deadline = awake() + limit;
        loop {
            let frame = self.receive(deadline.saturating_sub(awake()))?;
            if let Some(found) = wanted(&frame) {
                return Ok(found);
            }
        }
    }
}
