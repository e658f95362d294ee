//! Turns signals into a descriptor that becomes readable, so that one poll waits for them too.
//!
//! `signal-hook` owns the signal handlers of this process. It shares them with tokio, which learns
//! of ended children through the same registry. Only [`crate::crash`] installs its own handlers,
//! and says why. Blocked and ignored signals are inherited: see [`inherited`].

pub mod inherited;

use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Caught signals. The descriptor is readable when a signal has arrived.
///
/// Several of these may catch the same signal, and each receives it. After the last one is dropped,
/// the signal is ignored, because its default action is not restored. `R` is the end of a socket
/// pair on which the caller waits.
#[derive(Debug)]
pub struct Signals<R = UnixStream> {
    delivery: SignalDelivery<R, SignalOnly>,
}

impl Signals {
    /// Catches these signals from now on.
    ///
    /// # Errors
    /// If the system provides no descriptors or no handler.
    ///
    /// # Panics
    /// For a signal that cannot be caught (KILL, STOP), and for SEGV, ILL and FPE: a handler that
    /// returns from those runs the faulting instruction again, for ever.
    pub fn catch(signals: &[i32]) -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        Self::catch_through(read, write, signals)
    }
}

impl<R: AsRawFd + Send + Sync + 'static> Signals<R> {
    /// Works like [`Signals::catch`], with a socket pair of the caller: `read` becomes readable.
    /// HUP is left out if the starter of this program wants it ignored, as `nohup` does.
    ///
    /// # Errors
    /// As [`Signals::catch`].
    ///
    /// # Panics
    /// As [`Signals::catch`].
    pub fn catch_through(read: R, write: UnixStream, signals: &[i32]) -> io::Result<Self> {
        let hangup = |signo: i32| signo == libc::SIGHUP && inherited::is_ignored(signo);
        let signals: Vec<i32> = signals.iter().copied().filter(|signo| !hangup(*signo)).collect();
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, &signals)?;
        Ok(Self { delivery })
    }

    /// Returns the end that becomes readable. Its bytes are not signals: [`Self::take`] returns
    /// those.
    pub fn reader(&mut self) -> &mut R {
        self.delivery.get_read_mut()
    }

    /// Returns the signals that arrived since the last call, each once. Does not block.
    pub fn take(&mut self) -> Vec<i32> {
        self.delivery.pending().collect()
    }
}

/// Ends this process by a signal, whatever handler or mask it has: Rust's own handler of SEGV would
/// take the first one and return. It returns only if the signal does not end a process.
///
/// # Errors
/// If the signal is unknown.
pub fn end_by(signo: i32) -> io::Result<()> {
    signal_hook::low_level::emulate_default_handler(signo)
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::unix::process::ExitStatusExt;

    fn is_readable(signals: &Signals) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    fn raise(signo: i32) {
        signal_hook::low_level::raise(signo).unwrap();
    }

    #[test]
    fn caught_signals_reach_every_catcher_once_and_the_next_ones_again() {
        let (urg, winch) = (libc::SIGURG, libc::SIGWINCH);
        let mut first = Signals::catch(&[urg, winch]).unwrap();
        let mut second = Signals::catch(&[urg]).unwrap();
        assert!(!is_readable(&first) && first.take().is_empty());
        [urg, winch, urg].into_iter().for_each(raise);
        assert!(is_readable(&first) && is_readable(&second));
        let mut taken = first.take();
        taken.sort_unstable();
        assert_eq!((taken, second.take()), (vec![urg.min(winch), urg.max(winch)], vec![urg]));
        assert!(!is_readable(&first) && first.take().is_empty(), "they are taken");
        drop(second);
        raise(urg);
        assert!(is_readable(&first), "another catcher has gone, and this one still hears");
        assert_eq!(first.take(), [urg]);
    }

    /// A signal ends the test process itself, so the test program runs itself for each signal.
    #[test]
    fn end_by_ends_a_process_that_catches_the_signal() {
        const VAR: &str = "MULETEER_TEST_END_BY";
        if let Ok(signo) = std::env::var(VAR) {
            let signo = signo.parse().unwrap();
            let _caught = Signals::catch(&[libc::SIGTERM, libc::SIGINT]).unwrap();
            end_by(signo).unwrap();
            std::process::exit(0);
        }
        for signo in [libc::SIGTERM, libc::SIGINT, libc::SIGSEGV, libc::SIGKILL] {
            let mut command = crate::command::helper(std::env::current_exe().unwrap());
            command.args(["signals::tests::end_by", "--nocapture"]).env(VAR, signo.to_string());
            assert_eq!(command.output().unwrap().status.signal(), Some(signo));
        }
    }
}
