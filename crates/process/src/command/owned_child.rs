//! A long-running child with a bounded log, which ends with its owner.
//!
//! ```text
//!  hold ──▶ the caller records the pid, durably ──▶ release ──▶ the program runs
//!                                                                 │ exits, or the owner is dropped
//!                                       TERM, grace, KILL ◀───────┘
//!                                       sweep by nonce: nothing of it is left
//! ```
//!
//! The kernel kills the child when the thread that runs [`run`] ends, so also when this process
//! dies. A later process finds what the child started by the nonce in its environment.

use crate::clock;
use crate::group::{self, Before};
use crate::host::pipe;
use crate::spawn::{self, ExecStatus, Exit, Program, Stdio};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time between TERM and KILL.
const GRACE: Duration = Duration::from_secs(2);
/// The time limit for ending remaining processes.
const SWEEP: Duration = Duration::from_secs(5);
/// The interval of checks where the system has no descriptor of a process.
const TICK: Duration = Duration::from_millis(100);

/// The right to the child: dropping it ends the child.
#[derive(Debug)]
pub struct Owner(#[allow(dead_code, reason = "its drop is the signal")] OwnedFd);

/// The end at which [`run`] notices that the owner was dropped.
#[derive(Debug)]
pub struct Leash(OwnedFd);

/// Returns an owner and its leash.
///
/// # Errors
/// No descriptors are left.
pub fn owner() -> io::Result<(Owner, Leash)> {
    let (read, write) = pipe::pair()?;
    Ok((Owner(write), Leash(read)))
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By itself, or by a signal of somebody else.
    Alone(Exit),
    /// Its owner was dropped, or did not record it.
    Stopped,
}

/// Runs the program until it ends or its owner is dropped. Blocks the thread.
///
/// `recorded` gets the pid while nothing of the program has run, and returns whether it may run.
/// Both output streams go to the log. `nonce` is the value of `MULETEER_NONCE` in the program's
/// environment.
///
/// # Errors
/// The program cannot be started.
pub fn run(
    program: &Program,
    nonce: &str,
    leash: &Leash,
    log: &mut Log,
    recorded: impl FnOnce(u32) -> bool,
) -> io::Result<Ended> {
    let (read, write) = pipe::pair()?;
    pipe::set_nonblocking(&read)?;
    let null = File::options().read(true).open("/dev/null")?;
    let stdio = Stdio { stdin: null.into(), stdout: write.try_clone()?, stderr: write };
    let held = program.hold(stdio, None)?;
    let pid = held.id().pid;
    if !recorded(pid) {
        drop(held);
        let _ = finish(pid, nonce);
        return Ok(Ended::Stopped);
    }
    let released = held.release()?;
    let pidfd = pidfd(pid);
    let mut open = true;
    let stopped = loop {
        let mut fds = vec![leash.0.as_fd()];
        fds.extend(open.then(|| read.as_fd()));
        fds.extend(pidfd.as_ref().map(AsFd::as_fd));
        wait(&fds, pidfd.is_none().then_some(TICK));
        open = open && log.take(&read)?;
        if spawn::peek_exit(Some(pid)).is_some() {
            break false;
        }
        if is_ended(leash) {
            break true;
        }
    };
    if stopped {
        let _ = group::signal_group(pid, libc::SIGTERM);
        let deadline = clock::awake() + GRACE;
        while spawn::peek_exit(Some(pid)).is_none() && clock::awake() < deadline {
            let mut fds = vec![];
            fds.extend(open.then(|| read.as_fd()));
            fds.extend(pidfd.as_ref().map(AsFd::as_fd));
            wait(&fds, Some(TICK));
            open = open && log.take(&read)?;
        }
    }
    let exit = finish(pid, nonce);
    log.take(&read)?;
    match (released.status(), stopped, exit) {
        (ExecStatus::Failed { errno, .. }, false, _) => Err(io::Error::from_raw_os_error(errno)),
        (_, false, Some(exit)) => Ok(Ended::Alone(exit)),
        _ => Ok(Ended::Stopped),
    }
}

/// Kills the group and everything with the nonce, and reaps the child.
fn finish(pid: u32, nonce: &str) -> Option<Exit> {
    // The child is not reaped yet, so the number still means its group.
    let _ = group::signal_group(pid, libc::SIGKILL);
    let exit = loop {
        if let Some(exit) = spawn::reap(pid) {
            break Some(exit);
        }
        if spawn::peek_exit(Some(pid)).is_none() && group::signal_group(pid, 0).is_err() {
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    group::sweep(&[nonce], None, Before::Nobody, SWEEP);
    exit
}

fn wait(fds: &[BorrowedFd<'_>], limit: Option<Duration>) {
    let mut fds: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let limit = limit.and_then(|limit| rustix::time::Timespec::try_from(limit).ok());
    let _ = poll(&mut fds, limit.as_ref());
}

/// Whether the owner is gone: nobody ever writes to a leash.
fn is_ended(leash: &Leash) -> bool {
    let mut fds = [PollFd::new(&leash.0, PollFlags::IN)];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut fds, Some(&now)), Ok(count) if count > 0)
}

/// Returns a descriptor that becomes readable when the child ends, if the host has such a thing.
fn pidfd(pid: u32) -> Option<OwnedFd> {
    #[cfg(target_os = "linux")]
    {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed())?;
        rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = pid;
        None
    }
}

/// A log file of bounded size: a full one becomes `<name>.1`, in place of the one before.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
    limit: u64,
}

impl Log {
    /// Opens the log for appending. It and the one before have at most `limit` bytes each.
    ///
    /// # Errors
    /// The disk's.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let file = append(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.into(), file, bytes, limit })
    }

    /// Moves what is readable to the log. Returns whether more can come. One call is bounded, so
    /// that a flood does not keep the caller from its other work.
    fn take(&mut self, from: &OwnedFd) -> io::Result<bool> {
        let mut buffer = [0; 16 * 1024];
        for _ in 0..64 {
            match rustix::io::read(from.as_fd(), &mut buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => self.write(&buffer[..count]),
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Appends to the log. A full disk loses lines of the log and stops nothing.
    fn write(&mut self, bytes: &[u8]) {
        if self.bytes + bytes.len() as u64 > self.limit {
            let mut before = self.path.clone().into_os_string();
            before.push(".1");
            if std::fs::rename(&self.path, before).is_ok()
                && let Ok(file) = append(&self.path)
            {
                (self.file, self.bytes) = (file, 0);
            }
        }
        if self.bytes + bytes.len() as u64 <= self.limit && self.file.write_all(bytes).is_ok() {
            self.bytes += bytes.len() as u64;
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::NONCE_VAR;
    use rustix::fs::Mode;

    fn shell(script: &str, nonce: &str) -> Program {
        let env = [("PATH", "/usr/bin:/bin"), (NONCE_VAR, nonce)];
        let sh = Path::new("/bin/sh");
        Program::new(sh, ["sh", "-c", script], env, Path::new("/"), Mode::from_raw_mode(0o022))
            .unwrap()
    }

    #[test]
    fn child_ends_with_all_its_processes_when_its_owner_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(&dir.path().join("log"), 1000).unwrap();
        let (owner, leash) = owner().unwrap();
        let script = "trap '' TERM; (setsid sleep 1000 &); echo up; while :; do sleep 1; done";
        let ended = std::thread::scope(|scope| {
            let running = scope
                .spawn(|| run(&shell(script, "owned-1"), "owned-1", &leash, &mut log, |_| true));
            while std::fs::read_to_string(dir.path().join("log")).unwrap() != "up\n" {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(owner);
            running.join().unwrap()
        });
        assert_eq!(ended.unwrap(), Ended::Stopped);
        assert_eq!(group::by_nonce("owned-1"), [] as [u32; 0]);
    }

    #[test]
    fn exit_and_bounded_log_are_returned() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Log::open(&path, 40_000).unwrap();
        let (_owner, leash) = owner().unwrap();
        let program = shell("yes | head -c 200000; exit 3", "owned-2");
        let ended = run(&program, "owned-2", &leash, &mut log, |_| true).unwrap();
        assert!(matches!(ended, Ended::Alone(Exit { code: Some(3), .. })), "{ended:?}");
        let size = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert!(size(&path) <= 40_000 && size(&dir.path().join("log.1")) <= 40_000);
    }

    #[test]
    fn unrecorded_child_runs_nothing_and_a_missing_program_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(&dir.path().join("log"), 1000).unwrap();
        let (_owner, leash) = owner().unwrap();
        let program = shell("echo ran", "owned-3");
        let ended = run(&program, "owned-3", &leash, &mut log, |_| false).unwrap();
        assert_eq!(ended, Ended::Stopped);
        assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "");
        let mode = Mode::from_raw_mode(0o022);
        let missing = Path::new("/nowhere/program");
        let program = Program::new(missing, ["program"], [], Path::new("/"), mode).unwrap();
        let error = run(&program, "owned-4", &leash, &mut log, |_| true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
}
