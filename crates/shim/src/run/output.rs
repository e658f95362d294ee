//! Copies the agent's output from its pipes to the spool, through one buffer.

use super::{LAST_WORDS, Shim, wait::Ready};
use crate::control::{BlockReason, Control};
use crate::record::{MAX_PAYLOAD, Stream};
use crate::spool::Room;
use muleteer_process::clock::awake;
use muleteer_process::fault;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// After a read of fewer bytes than this, shortly after another, it pays to wait for more.
const SMALL: usize = 16 << 10;
/// The longest wait.
const HOLD: Duration = Duration::from_micros(500);
/// How many bytes the wait should gather: less than a pipe holds, so that the agent need not wait
/// for us.
const GATHERED: usize = 24 << 10;
const CLOSE: Duration = Duration::from_millis(1);

/// The two streams, in this order everywhere.
pub(super) const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

#[derive(Debug)]
pub(super) struct Output {
    pub pipes: [Option<OwnedFd>; 2],
    /// Until then a stream is not read, so that its pipe gathers small writes.
    pub held_until: [Option<Duration>; 2],
    read_at: [Duration; 2],
    /// How many bytes came since a read last found little, and when that was.
    pace: [(usize, Duration); 2],
    buffer: Buffer,
    /// The stream whose first bytes in the buffer could not be written yet, and how many they are.
    pending: Option<(usize, usize)>,
}

/// The buffer for one read. It is allocated at its first use: the memory of the start has been
/// returned by then, so the pages are fresh and stay untouched until they are used. A quiet agent's
/// shim stays small.
#[derive(Debug, Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    fn whole(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.0 = vec![0; MAX_PAYLOAD];
        }
        &mut self.0
    }

    /// Returns the first `n` bytes of the last read.
    fn read(&self, n: usize) -> &[u8] {
        &self.0[..n]
    }
}

impl Output {
    pub fn new(stdout: Option<OwnedFd>, stderr: Option<OwnedFd>) -> Self {
        Self {
            pipes: [stdout, stderr],
            held_until: [None; 2],
            read_at: [Duration::ZERO; 2],
            pace: [(0, Duration::ZERO); 2],
            buffer: Buffer::default(),
            pending: None,
        }
    }

    /// Decides when a stream that was just read is read next.
    fn pace(&mut self, index: usize, n: usize, now: Duration) {
        let close = now.saturating_sub(self.read_at[index]) < CLOSE;
        self.read_at[index] = now;
        let (came, since) = &mut self.pace[index];
        *came += n;
        if n >= SMALL {
            self.held_until[index] = None;
            return;
        }
        let hold = hold_for(*came, now.saturating_sub(*since));
        (*came, *since) = (0, now);
        self.held_until[index] = close.then_some(now + hold);
    }
}

/// Returns how long it takes to gather enough bytes at the same rate.
fn hold_for(came: usize, took: Duration) -> Duration {
    let enough = took.as_nanos().saturating_mul(GATHERED as u128) / came.max(1) as u128;
    u64::try_from(enough).map_or(HOLD, Duration::from_nanos).min(HOLD)
}

/// Makes the system wake this thread on time. By default it may be 50 µs late, and a pipe that
/// should be half full is full by then. The agent was forked before and keeps the default.
pub(super) fn wake_in_time() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

impl Shim {
    /// Reads once from each stream that has data, if the spool has room.
    pub(super) fn read_output(&mut self, ready: &Ready) {
        for index in 0..STREAMS.len() {
            if ready.output[index] && self.blocked.is_none() {
                self.read_stream(index);
            }
        }
    }

    fn read_stream(&mut self, index: usize) {
        if let Room::No(reason) = self.writer.room() {
            return self.block(reason);
        }
        let Some(pipe) = &self.output.pipes[index] else { return };
        match rustix::io::read(pipe, self.output.buffer.whole()) {
            Ok(0) => self.output.pipes[index] = None,
            Ok(n) => {
                if self.writer.append(STREAMS[index], self.output.buffer.read(n)).is_err() {
                    // There was room a moment ago. The bytes must not be lost: they stay in the
                    // buffer, which is not used for reading while we are blocked.
                    self.output.pending = Some((index, n));
                    return self.block(BlockReason::Disk);
                }
                fault::point("shim.record_written");
                self.output.pace(index, n, awake());
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => self.output.pipes[index] = None,
        }
    }

    fn block(&mut self, reason: BlockReason) {
        self.blocked = Some(reason);
        self.say(Control::Blocked { on: true, reason });
        // No event says that a disk has room again, so retry. An acknowledgement ends the cap.
        if reason == BlockReason::Disk {
            self.retry_at.get_or_insert(awake() + super::DISK_RETRY);
        }
    }

    /// Resumes reading if there is room again.
    pub(super) fn look_for_room(&mut self) {
        let Some(reason) = self.blocked else { return };
        match self.writer.room() {
            Room::Yes => {
                if let Some((index, n)) = self.output.pending
                    && self.writer.append(STREAMS[index], self.output.buffer.read(n)).is_err()
                {
                    self.retry_at.get_or_insert(awake() + super::DISK_RETRY);
                    return;
                }
                self.output.pending = None;
                self.blocked = None;
                self.say(Control::Blocked { on: false, reason });
            }
            Room::No(reason) => {
                self.blocked = Some(reason);
                if reason == BlockReason::Disk {
                    self.retry_at.get_or_insert(awake() + super::DISK_RETRY);
                }
            }
        }
    }

    /// Spools the current contents of the pipes, even without room: the agent that wrote them is
    /// dead, and its end must not be recorded before them. Processes that the agent left may write
    /// more for ever, so it does not wait for that.
    pub(super) fn drain(&mut self) {
        if let Some((index, n)) = self.output.pending.take() {
            self.keep_or_lose(index, n);
        }
        for index in 0..STREAMS.len() {
            let Some(pipe) = &self.output.pipes[index] else { continue };
            let mut left = rustix::io::ioctl_fionread(pipe).unwrap_or(0) as usize;
            while left > 0 {
                let Some(pipe) = &self.output.pipes[index] else { break };
                let most = left.min(MAX_PAYLOAD);
                match rustix::io::read(pipe, &mut self.output.buffer.whole()[..most]) {
                    Ok(0) => self.output.pipes[index] = None,
                    Ok(n) => {
                        left -= n;
                        self.keep_or_lose(index, n);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn keep_or_lose(&mut self, index: usize, n: usize) {
        // This call also allocates room or rotates the segment, if possible.
        let room = self.writer.room() == Room::Yes || self.writer.reserve() > LAST_WORDS + n as u64;
        if !room || self.writer.append(STREAMS[index], self.output.buffer.read(n)).is_err() {
            let stream = if index == 0 { "stdout" } else { "stderr" };
            self.say(Control::Lost { stream: stream.into(), bytes: n as u64 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_before_it_is_full() {
        let micros = Duration::from_micros;
        // 64 KiB in 300 us, and a little after them.
        assert_eq!(hold_for(66_000, micros(303)), micros(303) * GATHERED as u32 / 66_000);
        assert_eq!(hold_for(200, micros(900)), HOLD, "drops are waited for no longer than that");
        assert_eq!(hold_for(0, Duration::MAX), HOLD);

        let mut output = Output::new(None, None);
        output.pace(0, 100, micros(10_000));
        assert_eq!(output.held_until[0], None, "the first drop is passed on at once");
        output.pace(0, 100, micros(10_010));
        assert_eq!(output.held_until[0], Some(micros(10_010) + HOLD));
        output.pace(0, 65_536, micros(10_510));
        assert_eq!(output.held_until[0], None, "there may be more");
        output.pace(0, 1_000, micros(10_520));
        let held = output.held_until[0].map(|until| until - micros(10_520));
        assert!(held.is_some_and(|held| held > micros(180) && held < micros(195)), "{held:?}");
        output.pace(0, 1_000, micros(20_000));
        assert_eq!(output.held_until[0], None, "it was quiet meanwhile");
    }
}
