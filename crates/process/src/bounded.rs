//! Runs a command to its end with a limit of time and output. Validations and the like are code of
//! other people, so all processes that they leave behind are ended too.

use crate::clock;
use crate::group;
use crate::group::Before;
use crate::host::pipe;
use crate::identity::NONCE_VAR;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// The time between TERM and KILL.
const GRACE: Duration = Duration::from_secs(2);
/// The time limit for ending remaining processes.
const SWEEP: Duration = Duration::from_secs(5);
/// How often `stop` is called.
const TICK: Duration = Duration::from_millis(100);

/// The limits of a command.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    /// The limit, in awake time.
    pub limit: Duration,
    /// How many bytes of output are kept, counted from its end.
    pub tail: usize,
    /// Marks all processes of the command. A later run with the same nonce can find processes that
    /// a killed caller left.
    pub nonce: &'a str,
}

/// How the command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// The command exceeded its time and was killed.
    pub timed_out: bool,
    /// `stop` returned true, and the command was killed.
    pub stopped: bool,
    /// The end of the output, both streams interleaved as they came.
    pub output: String,
}

impl Ran {
    pub fn passed(&self) -> bool {
        self.code == Some(0) && !self.timed_out && !self.stopped
    }
}

/// Runs `command` with an empty stdin, in its own process group. Blocks the thread.
///
/// # Errors
/// If it cannot be started.
pub fn run(mut command: Command, bounds: Bounds<'_>, stop: &dyn Fn() -> bool) -> io::Result<Ran> {
    let (read, write) = pipe::pair()?;
    pipe::set_nonblocking(&read)?;
    command
        .stdout(write.try_clone()?)
        .stderr(write)
        .process_group(0)
        .env(NONCE_VAR, bounds.nonce);
    let mut child = command.spawn()?;
    // The command's copies of the pipe would prevent us from seeing end of file.
    drop(command);
    let deadline = clock::awake() + bounds.limit;
    let mut tail = Tail { bytes: vec![], keep: bounds.tail, open: true };
    let pidfd = pidfd(&child);
    let (mut timed_out, mut stopped) = (false, false);
    let status = loop {
        wait(&read, tail.open, pidfd.as_ref());
        tail.read(&read)?;
        if let Some(status) = child.try_wait()? {
            break status;
        }
        timed_out = clock::awake() >= deadline;
        stopped = !timed_out && stop();
        if timed_out || stopped {
            break end(&mut child, &read, &mut tail)?;
        }
    };
    group::sweep(&[bounds.nonce], None, Before::Nobody, SWEEP);
    tail.read(&read)?;
    Ok(Ran {
        code: status.code(),
        signal: status.signal(),
        timed_out,
        stopped,
        output: tail.text(),
    })
}

/// Sends TERM to the group, and KILL after the grace period.
fn end(child: &mut Child, read: &OwnedFd, tail: &mut Tail) -> io::Result<ExitStatus> {
    drop(group::signal_group(child.id(), libc::SIGTERM));
    let deadline = clock::awake() + GRACE;
    let pidfd = pidfd(child);
    while clock::awake() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        wait(read, tail.open, pidfd.as_ref());
        tail.read(read)?;
    }
    drop(group::signal_group(child.id(), libc::SIGKILL));
    child.wait()
}

/// Waits until the command prints or ends, or a tick is over.
fn wait(read: &OwnedFd, open: bool, pidfd: Option<&OwnedFd>) {
    let mut fds = vec![];
    if open {
        fds.push(PollFd::new(read, PollFlags::IN));
    }
    if let Some(pidfd) = pidfd {
        fds.push(PollFd::new(pidfd, PollFlags::IN));
    }
    let tick = rustix::time::Timespec::try_from(TICK).ok();
    let _ = poll(&mut fds, tick.as_ref());
}

/// Returns a descriptor that becomes readable when the child ends, if the host has such a thing.
fn pidfd(child: &Child) -> Option<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed())?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = child;
        None
    }
}

struct Tail {
    bytes: Vec<u8>,
    keep: usize,
    open: bool,
}

impl Tail {
    /// Reads the available output and drops the oldest. One call is bounded, so that a flood does
    /// not keep the caller from checking the time.
    fn read(&mut self, from: &OwnedFd) -> io::Result<()> {
        let mut buffer = [0; 16 * 1024];
        for _ in 0..64 {
            if !self.open {
                return Ok(());
            }
            match rustix::io::read(from.as_fd(), &mut buffer) {
                Ok(0) => self.open = false,
                Ok(count) => {
                    self.bytes.extend_from_slice(&buffer[..count]);
                    if self.bytes.len() > 2 * self.keep {
                        self.bytes.drain(..self.bytes.len() - self.keep);
                    }
                }
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn text(self) -> String {
        let from = self.bytes.len().saturating_sub(self.keep);
        String::from_utf8_lossy(&self.bytes[from..]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, seconds: u64, nonce: &str) -> Ran {
        let mut command = crate::command::helper("sh");
        command.args(["-c", script]);
        let bounds = Bounds { limit: Duration::from_secs(seconds), tail: 1000, nonce };
        run(command, bounds, &|| false).expect("it runs")
    }

    #[test]
    fn exit_code_and_ends_of_both_streams_are_returned() {
        let ran = shell("echo out; echo err >&2; exit 3", 60, "bounded-1");
        assert_eq!((ran.code, ran.passed(), ran.output.as_str()), (Some(3), false, "out\nerr\n"));
        let long = shell("yes | head -c 100000; echo end", 60, "bounded-2");
        assert!(
            long.passed() && long.output.len() == 1000 && long.output.ends_with("end\n"),
            "{long:?}"
        );
    }

    #[test]
    fn timeout_kills_the_command_and_its_descendants() {
        let ran = shell("trap '' TERM; (setsid sleep 1000 &) ; sleep 1000", 1, "bounded-3");
        assert!(ran.timed_out && !ran.passed(), "{ran:?}");
        assert_eq!(group::by_nonce("bounded-3"), [] as [u32; 0]);
    }

    #[test]
    fn background_child_with_open_output_does_not_block() {
        let ran = shell("setsid sleep 1000 & echo started", 600, "bounded-4");
        assert!(ran.passed() && ran.output == "started\n", "{ran:?}");
        assert_eq!(group::by_nonce("bounded-4"), [] as [u32; 0]);
    }

    #[test]
    fn it_can_be_called_off() {
        let mut command = crate::command::helper("sleep");
        command.arg("1000");
        let bounds = Bounds { limit: Duration::from_secs(600), tail: 10, nonce: "bounded-5" };
        let ran = run(command, bounds, &|| true).expect("it runs");
        assert!(ran.stopped && !ran.timed_out);
    }
}
