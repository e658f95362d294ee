//! The daemon's local socket, for both ends. No other module uses `interprocess`.

use interprocess::ConnectWaitMode;
use interprocess::local_socket::tokio::prelude::*;
use interprocess::local_socket::tokio::{Listener as LocalListener, Stream as LocalStream};
use interprocess::local_socket::{ConnectOptions, GenericFilePath, ListenerOptions};
use interprocess::os::unix::local_socket::ListenerOptionsExt;
use std::fs::Permissions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::coop::poll_proceed;

/// Only the owner may connect.
const MODE: u16 = 0o600;
/// The kernel's limit for a socket's path, including the terminating zero.
const SUN_PATH: usize = 108;
/// The pause between two attempts to connect while the kernel's queue of a socket is full.
const PAUSE: Duration = Duration::from_millis(20);

/// A socket to which clients can connect. Dropping it leaves the file.
#[derive(Debug)]
pub struct Listener(LocalListener);

impl Listener {
    /// Listens at `path` and replaces an existing file: the caller holds a lock that says that no
    /// other process listens.
    ///
    /// A socket has its name before it listens, and the kernel refuses a client that connects in
    /// between. Therefore it is bound under another name and renamed: a client that sees `path` can
    /// connect.
    ///
    /// # Errors
    /// If the folder is missing or the socket cannot be created in it.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let new = unlistened(path);
        remove(&new)?;
        let short = ShortPath::of(&new)?;
        let name = short.path.as_path().to_fs_name::<GenericFilePath>()?;
        // Reclaiming the name would remove the file of a later listener.
        let options = ListenerOptions::new().name(name).reclaim_name(false);
        // Linux applies the mode before the socket has a name; macOS does not.
        let early = cfg!(target_os = "linux");
        let options = if early { options.mode(MODE.into()) } else { options };
        let listener = options.create_tokio()?;
        let private = || match early {
            true => Ok(()),
            false => std::fs::set_permissions(&new, Permissions::from_mode(MODE.into())),
        };
        if let Err(error) = private().and_then(|()| std::fs::rename(&new, path)) {
            drop(remove(&new));
            return Err(error);
        }
        Ok(Self(listener))
    }

    /// Returns the next client. Cancel safe.
    ///
    /// # Errors
    /// For example if descriptors run out; the next call may succeed.
    pub async fn accept(&self) -> io::Result<Stream> {
        Ok(Stream(Arc::new(self.0.accept().await?)))
    }
}

/// Returns the name of a socket until it listens, in the folder of its final name.
fn unlistened(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let pid = std::process::id();
    path.with_file_name(if cfg!(target_os = "linux") {
        format!(".{name}.{pid}")
    } else {
        // As short as possible, because this system has no shortcut to a socket with a long path.
        format!(".{}", pid % 1000)
    })
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Connects. If the kernel's queue of the socket is full, it waits for a place.
///
/// # Errors
/// `NotFound` and `ConnectionRefused` if no process listens there.
pub async fn connect(path: &Path) -> io::Result<Stream> {
    let short = ShortPath::of(path)?;
    let name = short.path.as_path().to_fs_name::<GenericFilePath>()?;
    let options = ConnectOptions::new().name(name).wait_mode(ConnectWaitMode::Deferred);
    loop {
        match options.connect_tokio().await {
            Ok(stream) => {
                let stream = Stream(Arc::new(stream));
                if stream.is_connected() {
                    return Ok(stream);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether a process listens at `path`. Blocks while the kernel's queue of the socket is full.
pub fn answers(path: &Path) -> bool {
    let connect = || {
        let short = ShortPath::of(path)?;
        let name = short.path.as_path().to_fs_name::<GenericFilePath>()?;
        ConnectOptions::new().name(name).connect_sync()
    };
    connect().is_ok()
}

/// One end of a connection. Clones share it: one reads and one writes. The last clone closes it.
#[derive(Debug, Clone)]
pub struct Stream(Arc<LocalStream>);

/// The process at the other end, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// 0 for a process of a pid namespace that we cannot see; `None` if the system does not report
    /// it.
    pub pid: Option<u32>,
}

impl Stream {
    /// Returns the process that connected.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn peer(&self) -> io::Result<Peer> {
        // `peer_creds` of `interprocess` fails for a process of a hidden pid namespace, although
        // its uid is known.
        let credentials = self.socket().peer_cred()?;
        let pid = credentials.pid().and_then(|pid| u32::try_from(pid).ok());
        Ok(Peer { uid: credentials.uid(), pid })
    }

    /// Returns false if the kernel's queue of the socket was full. `interprocess` takes that answer
    /// for a connection in progress, which does not exist for local sockets on Linux.
    fn is_connected(&self) -> bool {
        !self.socket().peer_addr().is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
    }

    fn socket(&self) -> &UnixStream {
        let LocalStream::UdSocket(stream) = &*self.0;
        stream.inner()
    }
}

/// Runs `poll` within the task's budget. `interprocess` reads and writes without one, so a peer
/// that sends without end would keep its task from ever seeing a deadline.
fn within_budget<T>(
    cx: &mut Context<'_>,
    poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
) -> Poll<T> {
    let budget = ready!(poll_proceed(cx));
    let polled = poll(cx);
    if polled.is_ready() {
        budget.made_progress();
    }
    polled
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        within_budget(cx, |cx| Pin::new(&mut &*self.0).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        within_budget(cx, |cx| Pin::new(&mut &*self.0).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_shutdown(cx)
    }
}

/// A name for a socket's path that is short enough for the kernel, because an agent's socket is as
/// deep as its state directory. Without `/proc` the kernel reports a long path as an error.
struct ShortPath {
    path: PathBuf,
    /// Kept open while the name is used.
    _folder: Option<std::fs::File>,
}

impl ShortPath {
    fn of(path: &Path) -> io::Result<Self> {
        let parts = path.parent().zip(path.file_name());
        let Some((folder, name)) =
            parts.filter(|_| path.as_os_str().len() >= SUN_PATH && cfg!(target_os = "linux"))
        else {
            return Ok(Self { path: path.into(), _folder: None });
        };
        let folder = std::fs::File::open(folder)?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}
