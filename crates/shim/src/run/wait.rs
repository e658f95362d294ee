//! Waits for the events of the loop.

use super::output::STREAMS;
use super::peers::MAX_PEERS;
use super::{Phase, Shim};
use muleteer_process::clock::awake;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// The result of poll.
#[derive(Debug, Default)]
pub(super) struct Ready {
    pub signals: bool,
    pub listener: bool,
    pub status: bool,
    pub stdin: bool,
    pub output: [bool; STREAMS.len()],
    /// By the index of the connections before anything else was done.
    pub peers: [bool; MAX_PEERS],
}

#[derive(Clone, Copy)]
enum Slot {
    Signals,
    Listener,
    Status,
    Stdin,
    Output(usize),
    Peer(usize),
}

impl Shim {
    /// Waits until something can be done.
    pub(super) fn wait(&self) -> io::Result<Ready> {
        let now = awake();
        let mut slots = Vec::with_capacity(6 + MAX_PEERS);
        let mut fds = Vec::with_capacity(6 + MAX_PEERS);
        let mut watch = |slot, fd, flags| {
            slots.push(slot);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        watch(Slot::Signals, self.signals.as_fd(), PollFlags::IN);
        watch(Slot::Listener, self.listener.as_fd(), PollFlags::IN);
        if let Phase::Starting(released) = &self.phase {
            watch(Slot::Status, released.as_fd(), PollFlags::IN);
        }
        if let Some(pipe) = self.stdin.pipe.as_ref().filter(|_| self.stdin.has_work()) {
            watch(Slot::Stdin, pipe.as_fd(), PollFlags::OUT);
        }
        for (index, pipe) in self.output.pipes.iter().enumerate() {
            let held = self.output.held_until[index].is_some_and(|until| until > now);
            if let Some(pipe) = pipe.as_ref().filter(|_| self.blocked.is_none() && !held) {
                watch(Slot::Output(index), pipe.as_fd(), PollFlags::IN);
            }
        }
        for (index, peer) in self.peers.connected.iter().enumerate().take(MAX_PEERS) {
            let flags =
                if peer.wants_to_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            watch(Slot::Peer(index), peer.as_fd(), flags);
        }
        let timeout = self.next_due(now).map(|at| at.saturating_sub(now));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut ready = Ready::default();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(ready),
            Err(errno) => return Err(errno.into()),
        }
        for (slot, fd) in slots.iter().zip(&fds) {
            let found = !fd.revents().is_empty();
            match *slot {
                Slot::Signals => ready.signals = found,
                Slot::Listener => ready.listener = found,
                Slot::Status => ready.status = found,
                Slot::Stdin => ready.stdin = found,
                Slot::Output(index) => ready.output[index] = found,
                Slot::Peer(index) => ready.peers[index] = found,
            }
        }
        Ok(ready)
    }

    fn next_due(&self, now: Duration) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Starting(_) | Phase::Running => Some(self.lease_at),
            Phase::Letting { term_at } => Some(term_at),
            Phase::Terminating { kill_at } | Phase::Clearing { kill_at } => Some(kill_at),
            // These are checked repeatedly.
            Phase::Killing { .. } | Phase::ClearKilling { .. } | Phase::Gone => None,
        };
        let ending =
            !matches!(self.phase, Phase::Starting(_) | Phase::Running | Phase::Letting { .. });
        let held = self.output.held_until.iter().flatten().copied().filter(|&until| until > now);
        [phase, self.retry_at, self.peers.due(), self.nudge_due()]
            .into_iter()
            .chain([self.scan_at.filter(|_| ending), self.deadline_at.filter(|_| !ending)])
            .chain([self.sample_at])
            .flatten()
            .chain(held)
            .min()
    }
}
