//! The daemon's side of finding a shim again: whether it lives, and how to reach it.

use crate::meta::{self, Meta, MetaError};
pub use crate::notes::LOCK;
use crate::start::read_key;
use muleteer_process::clock::awake;
use muleteer_process::host::host;
use muleteer_process::identity::{self, ProcessId};
use muleteer_process::lock::{self, LockGuard};
use muleteer_protocol::shim::v1::{DecodeError, FromShim, MAX_BODY, RefusedCode, ToShim, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketType};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The socket's name in the agent's directory.
pub const SOCKET: &str = "sock";
/// The process name of a shim.
pub(crate) const NAME: &str = "muleteer-shim";

/// Whether an agent's shim lives.
#[derive(Debug)]
pub enum Liveness {
    /// A process holds the lock: the shim, or for a moment a process forked from its starter.
    Alive,
    /// No process held the lock. The caller holds it now, so that nothing can be started meanwhile.
    /// It sweeps, then starts a successor with this guard, or drops it.
    Dead(LockGuard),
}

/// Probes an agent's lock. Only the holder of `daemon.lock` may do this, because it takes the lock.
pub fn probe(agent_dir: &Path) -> io::Result<Liveness> {
    probe_within(agent_dir, Duration::ZERO)
}

/// Like [`probe`], but waits up to `limit` for the lock to become free. Blocks the thread.
pub fn probe_within(agent_dir: &Path, limit: Duration) -> io::Result<Liveness> {
    Ok(lock::lock_within(&agent_dir.join(LOCK), limit)?.map_or(Liveness::Alive, Liveness::Dead))
}

/// Returns the agent's shim, if one lives and is visible: from its identity, or, before it has
/// written that, by its name and its working directory. `forked` is the pid with which it was
/// started, if the caller knows it: without it, all processes are looked through.
pub fn shim_of(agent_dir: &Path, forked: Option<u32>) -> Option<ProcessId> {
    let told = meta::read(agent_dir).ok().flatten();
    let ours = |meta: &Meta| {
        meta.boot_id == identity::boot_id() && meta.pid_namespace == identity::pid_namespace()
    };
    if let Some(meta) = told.filter(|meta| ours(meta) && meta.shim.is_alive()) {
        return Some(meta.shim);
    }
    let dir = agent_dir.canonicalize().ok()?;
    let is_it = |pid: u32| {
        host().name(pid).as_deref() == Some(NAME)
            && host().cwd(pid).is_ok_and(|cwd| cwd.as_ref() == Some(&dir))
    };
    let forked = forked.filter(|pid| is_it(*pid)).and_then(ProcessId::of);
    if let Some(shim) = forked.filter(|shim| shim.is_alive()) {
        return Some(shim);
    }
    // A process that an older shim has forked, and that has not yet executed the agent, has the
    // same name. So take the oldest.
    let found = host().pids().into_iter().filter(|pid| is_it(*pid)).filter_map(ProcessId::of);
    found.filter(|shim| shim.is_alive()).min_by_key(|shim| (shim.start_time, shim.pid))
}

/// Returns the path for connecting to a shim. A socket's path is limited to about 107 bytes, so a
/// longer one goes through an open descriptor of the agent's directory, which must stay open until
/// the connection is made.
///
/// On other systems than Linux this is impossible, and the directory's own path must be short.
///
/// # Errors
/// If the directory cannot be opened.
pub fn socket_path(agent_dir: &Path) -> io::Result<(PathBuf, Option<File>)> {
    const ROOM: usize = 100;
    let path = agent_dir.join(SOCKET);
    if path.as_os_str().len() <= ROOM || !cfg!(target_os = "linux") {
        return Ok((path, None));
    }
    let dir = File::open(agent_dir)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", dir.as_raw_fd())), Some(dir)))
}

/// Why a shim cannot be greeted, or its answer not be accepted.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error("the shim has not identified itself yet")]
    NoMeta,
    #[error("another process answers instead of the shim")]
    Stranger,
    #[error("refused: {code:?} {text}")]
    Refused { code: RefusedCode, text: String },
    #[error("unexpected answer {0:?}")]
    Unexpected(FromShim),
    #[error("the shim closed the connection")]
    HungUp,
    #[error("the shim does not answer")]
    Slow,
    #[error(transparent)]
    Frame(#[from] DecodeError),
}

/// Connects to the shim of an agent and sends `Hello` without blocking; the connection is
/// non-blocking. It also returns the shim's identity, against which [`check`] compares the
/// answer.
///
/// # Errors
/// If no process listens, or too many connections already wait.
pub fn greet(agent_dir: &Path, generation: u64) -> Result<(UnixStream, Meta), AttachError> {
    let connect = || {
        let key = read_key(agent_dir)?;
        let (path, _dir) = socket_path(agent_dir)?;
        let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        let mut hello = vec![];
        ToShim::Hello { versions: vec![VERSION], key }.encode(generation, &mut hello);
        let mut stream = UnixStream::from(socket);
        // Nothing was sent before, so all of it fits.
        stream.write_all(&hello)?;
        Ok::<_, io::Error>(stream)
    };
    let stream = connect()?;
    let meta = meta::read(agent_dir)?.ok_or(AttachError::NoMeta)?;
    Ok((stream, meta))
}

/// Checks that this answer to [`greet`] comes from the shim that `meta` describes.
///
/// # Errors
/// Says which answer came instead.
pub fn check(answer: FromShim, meta: &Meta) -> Result<(), AttachError> {
    match answer {
        FromShim::HelloOk { nonce, .. } if nonce == meta.nonce => Ok(()),
        FromShim::HelloOk { .. } => Err(AttachError::Stranger),
        FromShim::Refused { code, text } => Err(AttachError::Refused { code, text }),
        other => Err(AttachError::Unexpected(other)),
    }
}

/// Waits until `deadline` (of [`awake`]) for the answer to [`greet`]; data that has already arrived
/// is read even after it. Returns the bytes after the answer. Blocks the thread.
///
/// # Errors
/// Those of [`check`], and if the deadline passes or the connection ends.
pub fn hear_answer(
    stream: &mut UnixStream,
    meta: &Meta,
    deadline: Duration,
) -> Result<Vec<u8>, AttachError> {
    let mut heard = vec![];
    loop {
        let mut chunk = [0; 256];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(AttachError::HungUp),
            Ok(n) => heard.extend_from_slice(&chunk[..n]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = deadline.saturating_sub(awake());
                let patience =
                    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                match poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&patience)) {
                    Ok(0) => return Err(AttachError::Slow),
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(errno) => return Err(io::Error::from(errno).into()),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(decoded) = FromShim::decode(&heard)? {
            check(decoded.frame, meta)?;
            heard.drain(..decoded.used);
            return Ok(heard);
        }
    }
}

/// A blocking client for tests and tools.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    generation: u64,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects and sends `Hello` with the agent's own key. [`Client::receive`] returns the answer
    /// as its first frame.
    pub fn connect(agent_dir: &Path, generation: u64) -> io::Result<Self> {
        Self::connect_with(agent_dir, generation, read_key(agent_dir)?)
    }

    /// Connects and sends `Hello` with any key.
    pub fn connect_with(agent_dir: &Path, generation: u64, key: [u8; 16]) -> io::Result<Self> {
        let mut client = Self::connect_silently(agent_dir, generation)?;
        client.send(&ToShim::Hello { versions: vec![VERSION], key })?;
        Ok(client)
    }

    /// Connects and sends nothing.
    pub fn connect_silently(agent_dir: &Path, generation: u64) -> io::Result<Self> {
        let (path, _dir) = socket_path(agent_dir)?;
        let stream = UnixStream::connect(path)?;
        Ok(Self { stream, generation, buffer: vec![] })
    }

    pub fn send(&mut self, frame: &ToShim) -> io::Result<()> {
        let mut bytes = vec![];
        frame.encode(self.generation, &mut bytes);
        self.send_raw(&bytes)
    }

    /// Sends bytes that need not be a frame.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the next frame. `UnexpectedEof` if the shim closed the connection, `TimedOut` after
    /// `limit`.
    pub fn receive(&mut self, limit: Duration) -> io::Result<FromShim> {
        let deadline = awake() + limit;
        loop {
            let decoded = FromShim::decode(&self.buffer)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
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

    /// Returns the result of `wanted` for the first frame for which it has one; drops earlier
    /// frames.
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
