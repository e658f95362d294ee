//! Signals as bytes in a pipe, so that one poll waits for them too.

#![allow(unsafe_code)]

use crate::pipe;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The read end: readable when a signal came.
#[derive(Debug)]
pub struct Signals {
    pipe: OwnedFd,
}

impl Signals {
    /// Catches these signals from now on, for the rest of the process's life.
    pub fn catch(signals: &[i32]) -> io::Result<Self> {
        let (pipe, write) = pipe::pair()?;
        pipe::set_nonblocking(&pipe)?;
        pipe::set_nonblocking(&write)?;
        let write = write.into_raw_fd();
        if PIPE.compare_exchange(-1, write, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return Err(io::Error::other("signals are caught already"));
        }
        for &signo in signals {
            // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe (one atomic
            // load, one write(2), errno kept).
            let done = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(i32) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signo, &action, std::ptr::null_mut())
            };
            if done != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { pipe })
    }

    /// The signals that came since the last call, as numbers, some perhaps merged.
    pub fn take(&self) -> Vec<i32> {
        let mut bytes = [0; 64];
        match rustix::io::read(&self.pipe, &mut bytes) {
            Ok(n) => bytes[..n].iter().map(|&byte| i32::from(byte)).collect(),
            Err(_) => vec![],
        }
    }
}

/// Ends this process by a signal, whatever it did with it so far: Rust's own handler of SEGV takes the first and returns.
/// Returns only where the signal does not end a process.
pub fn end_by(signo: i32) {
    // SAFETY: plain numbers; a zeroed set is valid, and made empty before it is used.
    unsafe {
        libc::signal(signo, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        libc::kill(libc::getpid(), signo);
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> i32 {
        self.pipe.as_raw_fd()
    }
}

extern "C" fn on_signal(signo: i32) {
    let byte = signo as u8;
    // SAFETY: write(2) and errno access are async-signal-safe; a full pipe already wakes the loop.
    unsafe {
        let errno = errno();
        let kept = *errno;
        libc::write(PIPE.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
        *errno = kept;
    }
}

#[cfg(target_os = "linux")]
unsafe fn errno() -> *mut i32 {
    // SAFETY: always callable.
    unsafe { libc::__errno_location() }
}

#[cfg(not(target_os = "linux"))]
unsafe fn errno() -> *mut i32 {
    // SAFETY: always callable.
    unsafe { libc::__error() }
}
