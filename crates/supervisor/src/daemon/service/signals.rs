//! Catches signals for async code of the daemon and the client.

use muleteer_process::signals::Signals;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::io;
use std::os::unix::net;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

/// Signals that are caught for as long as this lives.
#[derive(Debug)]
pub struct AsyncSignals {
    signals: Signals<UnixStream>,
    /// Signals that were taken from the pipe and not returned yet.
    taken: VecDeque<i32>,
}

impl AsyncSignals {
    /// Catches these signals from now on. Call it in a tokio runtime.
    ///
    /// # Errors
    /// When the system gives no descriptors or no handler.
    pub fn catch(signals: &[Signal]) -> io::Result<Self> {
        let numbers: Vec<i32> = signals.iter().map(|signal| signal.as_raw()).collect();
        let (read, write) = net::UnixStream::pair()?;
        read.set_nonblocking(true)?;
        let signals = Signals::catch_through(UnixStream::from_std(read)?, write, &numbers)?;
        Ok(Self { signals, taken: VecDeque::new() })
    }

    /// Returns the number of the next signal; several of one kind may count as one. Cancel-safe.
    pub async fn next(&mut self) -> i32 {
        loop {
            if let Some(signo) = self.taken.pop_front() {
                return signo;
            }
            self.taken.extend(self.signals.take());
            if self.taken.is_empty() && self.signals.reader().read(&mut [0]).await.is_err() {
                // The runtime is ending, and drops this future.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures_util::FutureExt;
    use rustix::process::{getpid, kill_process};
    use std::time::Duration;

    /// The second Ctrl-C of `muleteer run` has another meaning than the first.
    #[tokio::test]
    async fn second_signal_is_received() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let mut signals = AsyncSignals::catch(&[Signal::URG, Signal::WINCH]).unwrap();
        let mut other = AsyncSignals::catch(&[Signal::WINCH]).unwrap();
        assert_eq!(signals.next().now_or_never(), None);
        for signal in [Signal::URG, Signal::URG, Signal::WINCH] {
            kill_process(getpid(), signal).unwrap();
            let heard = tokio::time::timeout(PATIENCE, signals.next()).await.unwrap();
            assert_eq!(heard, signal.as_raw());
            assert_eq!(signals.next().now_or_never(), None, "it is heard once");
        }
        let heard = tokio::time::timeout(PATIENCE, other.next()).await.unwrap();
        assert_eq!(heard, Signal::WINCH.as_raw());
    }
}
