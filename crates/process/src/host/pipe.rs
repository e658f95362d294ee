//! Pipes, close-on-exec on every host.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Returns the read end and the write end.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = std::io::pipe()?;
    Ok((read.into(), write.into()))
}

/// Makes reads and writes through this descriptor return at once.
pub fn set_nonblocking(fd: impl AsFd) -> io::Result<()> {
    let flags = fcntl_getfl(&fd)?;
    Ok(fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?)
}
