//! The agent's standard input: a bounded queue in front of a pipe, which never blocks the shim.

use super::Shim;
use crate::control::{Control, hex};
use muleteer_process::fault;
use muleteer_protocol::shim::v1::{Idem, MAX_STDIN, Outcome};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// The most writes that may wait.
const MAX_WRITES: usize = 64;

#[derive(Debug)]
pub(super) struct Stdin {
    pub pipe: Option<OwnedFd>,
    queue: VecDeque<Write>,
    queued: usize,
    /// A write that closes stdin is queued, so no other write may follow.
    closing: bool,
}

#[derive(Debug)]
struct Write {
    idem: Idem,
    bytes: Vec<u8>,
    done: usize,
    close: bool,
}

impl Stdin {
    pub fn new(pipe: Option<OwnedFd>) -> Self {
        Self { pipe, queue: VecDeque::new(), queued: 0, closing: false }
    }

    pub fn has_work(&self) -> bool {
        self.pipe.is_some() && !self.queue.is_empty()
    }

    pub fn is_open(&self) -> bool {
        self.pipe.is_some() && !self.closing
    }

    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Returns why this many bytes cannot be queued now.
    pub fn refusal(&self, len: usize) -> Option<Outcome> {
        if !self.is_open() {
            Some(Outcome::StdinClosed)
        } else if self.queue.len() >= MAX_WRITES
            || (self.queued > 0 && self.queued + len > MAX_STDIN)
        {
            Some(Outcome::QueueFull)
        } else {
            None
        }
    }

    pub fn push(&mut self, idem: Idem, bytes: Vec<u8>, close: bool) {
        self.queued += bytes.len();
        self.closing |= close;
        self.queue.push_back(Write { idem, bytes, done: 0, close });
    }
}

impl Shim {
    /// Writes as much as the pipe accepts.
    pub(super) fn write_stdin(&mut self) {
        while let (Some(pipe), Some(write)) = (&self.stdin.pipe, self.stdin.queue.front_mut()) {
            if write.done < write.bytes.len() {
                match rustix::io::write(pipe, &write.bytes[write.done..]) {
                    Ok(n) => {
                        write.done += n;
                        self.stdin.queued -= n;
                        continue;
                    }
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(rustix::io::Errno::AGAIN) => return,
                    // The agent closed its end.
                    Err(_) => return self.close_stdin(),
                }
            }
            let (idem, close) = (write.idem, write.close);
            self.stdin.queue.pop_front();
            if close {
                self.stdin.pipe = None;
            }
            fault::point("shim.stdin_written");
            self.say(Control::StdinWritten { idem: hex(&idem), ok: true });
            self.answer(&idem, Outcome::Ok);
            if close {
                self.close_stdin();
            }
        }
    }

    /// Closes the pipe. Queued writes fail.
    pub(super) fn close_stdin(&mut self) {
        self.stdin.pipe = None;
        self.stdin.queued = 0;
        while let Some(write) = self.stdin.queue.pop_front() {
            self.say(Control::StdinWritten { idem: hex(&write.idem), ok: false });
            self.answer(&write.idem, Outcome::StdinClosed);
        }
    }
}
