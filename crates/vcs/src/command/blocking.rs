//! Runs git and blocks until it ends, with limits of time and output.

use crate::command::{self, Purpose, STUCK, complaint};
use crate::error::GitError;
use muleteer_process::clock::awake;
use muleteer_process::group;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The limit of git's output. No list of changed files is longer.
const OUTPUT_LIMIT: usize = 64 * 1024 * 1024;
/// The limit of its stderr.
const WORD_LIMIT: usize = 64 * 1024;
/// How long a git may take, and how long it may use no CPU time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    patience: Duration,
    stuck: Option<Duration>,
}

/// The limits of a git that works on this machine alone.
pub(crate) const LOCAL: Limits =
    Limits { patience: Duration::from_secs(15 * 60), stuck: Some(STUCK) };
/// The limits of a git that may fetch objects: it waits for another machine without using the CPU.
pub(crate) const FETCHING: Limits = Limits { patience: Duration::from_secs(30 * 60), stuck: None };
/// The interval at which the CPU use of a git is checked.
const LOOK: Duration = Duration::from_secs(2);

pub(crate) fn failed(what: &str, said: &str) -> GitError {
    GitError::Failed { what: format!("git {what}"), said: said.into() }
}

/// Returns a hardened git command for a working directory. Paths are printed as they are.
pub(crate) fn git(dir: &Path, purpose: Purpose) -> Command {
    let mut command = command::hardened(dir, purpose);
    // A snapshot may have thousands of files, so git syncs them once, at the end.
    command.args(["-c", "core.quotePath=false", "-c", "core.fsyncMethod=batch"]);
    command
}

pub(crate) fn run(command: Command, stdin: &[u8], what: &str) -> Result<String, GitError> {
    run_bytes(command, stdin, what).map(words)
}

/// Converts output to text and trims its ends. Separators between names stay. A path that is not
/// UTF-8 names no file afterwards.
pub(crate) fn words(said: Vec<u8>) -> String {
    String::from_utf8_lossy(&said).trim_matches('\n').trim_end_matches('\0').to_string()
}

/// Runs a command to its end and returns its output.
pub(crate) fn run_bytes(command: Command, stdin: &[u8], what: &str) -> Result<Vec<u8>, GitError> {
    run_within(command, stdin, what, LOCAL)
}

/// Does the same as [`run_bytes`], with these limits.
pub(crate) fn run_within(
    mut command: Command,
    stdin: &[u8],
    what: &str,
    limits: Limits,
) -> Result<Vec<u8>, GitError> {
    let unheard = |said: String| GitError::Unheard { what: format!("git {what}"), said };
    let fail = |error: std::io::Error| unheard(error.to_string());
    if !stdin.is_empty() {
        command.stdin(Stdio::piped());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(fail)?;
    let watch = Watch::begin(child.id(), limits);
    let writer = child.stdin.take().map(|mut pipe| {
        let bytes = stdin.to_vec();
        // git may answer before it has read everything.
        std::thread::spawn(move || drop(pipe.write_all(&bytes)))
    });
    // stderr is read in parallel, because a full pipe would block git for ever.
    let stderr = child.stderr.take();
    let complaints = std::thread::spawn(move || at_most(stderr, WORD_LIMIT));
    // One more byte shows that the limit was exceeded. Then the pipe is closed, and git ends.
    let stdout = at_most(child.stdout.take(), OUTPUT_LIMIT + 1);
    await_end(child.id()).map_err(fail)?;
    // The watch ends before git is reaped, because its process id may be reused afterwards.
    let killed = watch.end();
    let status = child.wait().map_err(fail)?;
    if let Some(why) = killed.filter(|_| !status.success()) {
        return Err(unheard(why));
    }
    if let Some(writer) = writer {
        drop(writer.join());
    }
    let stdout = stdout.map_err(fail)?;
    if stdout.len() > OUTPUT_LIMIT {
        return Err(unheard("its answer is too long".into()));
    }
    if !status.success() {
        let stderr = complaints.join().ok().and_then(Result::ok).unwrap_or_default();
        return Err(failed(what, &complaint(&stderr)));
    }
    Ok(stdout)
}

/// Waits until a child has ended, and does not reap it.
fn await_end(pid: u32) -> std::io::Result<()> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return Ok(()) };
    loop {
        match waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return Ok(ended.map(drop)?),
        }
    }
}

/// Kills a git that hangs (an agent can make it read a pipe), or that takes too long.
struct Watch {
    over: SyncSender<()>,
    watching: JoinHandle<Option<String>>,
}

impl Watch {
    fn begin(leader: u32, limits: Limits) -> Self {
        let (over, heard) = mpsc::sync_channel(1);
        let watching = std::thread::spawn(move || {
            let began = awake();
            let (mut used, mut since) = (None, began);
            while heard.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let now = Some(group::cpu_of_group(leader));
                if now != used {
                    (used, since) = (now, awake());
                }
                let (idle, total) = (awake().saturating_sub(since), awake().saturating_sub(began));
                let stuck = limits.stuck.filter(|stuck| idle >= *stuck);
                let why = if let Some(stuck) = stuck {
                    format!("it has done nothing for {} s and was killed", stuck.as_secs())
                } else if total >= limits.patience {
                    format!("it has not ended in {} s and was killed", limits.patience.as_secs())
                } else {
                    continue;
                };
                // An error means that it has ended already.
                drop(group::signal_group(leader, rustix::process::Signal::KILL.as_raw()));
                return Some(why);
            }
            None
        });
        Self { over, watching }
    }

    /// Stops watching and returns why git was killed, if it was.
    fn end(self) -> Option<String> {
        drop(self.over);
        self.watching.join().ok().flatten()
    }
}

pub(crate) fn at_most(stream: Option<impl Read>, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(stream) = stream {
        stream.take(limit as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
