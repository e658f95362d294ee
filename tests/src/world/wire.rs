//! Speaks to the daemon's socket byte by byte, for frames that no well-meaning client would send.

use crate::World;
use muleteer_protocol::v1::{ClientFrame, Hello, Request, ServerFrame, VERSIONS};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A connection that may send anything.
#[derive(Debug)]
pub struct Wire {
    pub stream: UnixStream,
}

/// Returns the path of this world's daemon socket, as `status` reports it.
pub fn socket(world: &World) -> PathBuf {
    let status = world.status();
    status["daemon"]["socket"]
        .as_str()
        .unwrap_or_else(|| panic!("no socket in {status}"))
        .into()
}

/// Returns how many clients are connected to the daemon now, by the kernel's list.
#[cfg(target_os = "linux")]
pub fn clients(socket: &Path) -> usize {
    let all = std::fs::read_to_string("/proc/net/unix").expect("the kernel's list of sockets");
    // The kernel continues to show the name to which a socket was bound before its rename.
    let name = socket.file_name().expect("a name").to_string_lossy().into_owned();
    let is_it = |path: &Path| {
        let bound = path.file_name().unwrap_or_default().to_string_lossy();
        path.parent() == socket.parent() && bound.contains(&name)
    };
    // Number, references, protocol, flags, type, state (3: connected), inode, path.
    let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| {
            fields.get(5) == Some(&"03") && fields.get(7).is_some_and(|path| is_it(Path::new(path)))
        })
        .count()
}

/// Returns the length header of a frame.
pub fn header(length: u32) -> [u8; 4] {
    length.to_be_bytes()
}

impl Wire {
    pub fn connect(world: &World) -> Self {
        let stream = UnixStream::connect(socket(world)).expect("the daemon's socket");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a read timeout");
        Self { stream }
    }

    /// Connects and greets the daemon, with or without the operator key.
    pub fn greeted(world: &World, key: bool) -> Self {
        let key = key.then(|| {
            std::fs::read_to_string(world.state().join("operator.key")).unwrap_or_default()
        });
        Self::greeting(Self::connect(world).stream, key.map(|key| key.trim().to_string()))
    }

    /// Does the same on any connected socket.
    pub fn greeting(stream: UnixStream, operator_key: Option<String>) -> Self {
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a read timeout");
        let mut wire = Self { stream };
        wire.send(&ClientFrame::Hello(Hello {
            versions: VERSIONS.to_vec(),
            client: "tests".into(),
            operator_key,
        }));
        wire
    }

    pub fn send(&mut self, frame: &ClientFrame) {
        let body = rmp_serde::to_vec_named(frame).expect("a frame encodes");
        let _ = self.raw(&header(u32::try_from(body.len()).expect("a small frame")));
        let _ = self.raw(&body);
    }

    pub fn request(&mut self, body: Request) {
        self.send(&ClientFrame::Request { id: 1, trace: None, body });
    }

    /// Sends raw bytes. An error means that the daemon has closed the connection.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads the next frame. Returns `None` when the daemon closed the connection.
    pub fn receive(&mut self) -> Option<ServerFrame> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).ok()?;
        let mut body = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut body).ok()?;
        rmp_serde::from_slice(&body).ok()
    }

    /// Reads until the daemon closes the connection.
    ///
    /// # Panics
    /// When it is still open after `deadline`.
    pub fn expect_closed(&mut self, deadline: Duration) {
        self.stream.set_read_timeout(Some(deadline)).expect("a read timeout");
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                panic!("the connection is still open after {deadline:?}")
            }
            Err(_) => {}
        }
    }
}
