//! Ends ssh with this process: an ssh that outlives it would keep the verb of the other host
//! waiting for somebody who is gone.

use muleteer_process::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const CAUGHT: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

#[derive(Debug, Default)]
struct State {
    ssh: Option<Pid>,
    signal: Option<i32>,
}

/// Waits for signals, and ends the ssh that runs when one arrives.
#[derive(Debug, Clone, Default)]
pub struct Guard(Arc<Mutex<State>>);

impl Guard {
    /// Begins to wait. The thread ends with the process.
    ///
    /// # Errors
    /// If the system rejects the handlers.
    pub fn begin() -> io::Result<Self> {
        let mut signals = Signals::catch(&CAUGHT.map(Signal::as_raw))?;
        let guard = Self::default();
        let watching = guard.clone();
        std::thread::spawn(move || {
            loop {
                let ready = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
                match ready {
                    Err(error) if error != Errno::INTR => return,
                    _ => signals.take().into_iter().for_each(|signal| watching.caught(signal)),
                }
            }
        });
        Ok(guard)
    }

    /// Names the ssh to end; `None` before it is reaped, after which its id may be another's.
    pub fn watch(&self, ssh: Option<Pid>) {
        self.with(|state| {
            state.ssh = ssh;
            state.end_if_caught();
        });
    }

    /// Returns the signal that arrived.
    pub fn signal(&self) -> Option<i32> {
        self.with(|state| state.signal)
    }

    fn caught(&self, signal: i32) {
        self.with(|state| {
            state.signal = state.signal.or(Some(signal));
            state.end_if_caught();
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl State {
    fn end_if_caught(&self) {
        if let (Some(ssh), Some(_)) = (self.ssh, self.signal) {
            // It fails only if ssh has ended.
            let _ = kill_process(ssh, Signal::TERM);
        }
    }
}
