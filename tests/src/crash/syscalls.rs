//! Faults at system calls, by `strace -e inject`. Named points test known moments of the daemon;
//! these faults find moments that nobody named. A seed chooses the process (daemon or shim), the
//! call, its number (within one thread) and the fault: death before the call, an error instead of
//! it, or a stop.
//!
//! The scene and the invariants are those of the campaign. Only the allowed results differ: after
//! death or a stop of the daemon alone the dispatch succeeds. After an error it may be refused or
//! fail, but then its state says so, and nothing happened twice.

use super::{Dice, Scene, processes};
use crate::{PATIENCE, events, wait_until};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A call, how often the busiest thread makes it in an undisturbed scene, and its possible errors
/// when a file system is full or failing, or the machine has no processes or descriptors left.
type Call = (&'static str, u64, &'static [&'static str]);

const DAEMON: &[Call] = &[
    ("openat", 70, &["EMFILE", "ENFILE", "EIO"]),
    ("pwrite64", 30, &["EIO", "ENOSPC"]),
    ("write", 21, &[]),
    ("read", 80, &[]),
    ("pread64", 15, &["EIO"]),
    ("fdatasync", 7, &["EIO"]),
    ("fsync", 13, &["EIO", "ENOSPC"]),
    ("rename", 3, &["EIO", "ENOSPC"]),
    ("unlink", 8, &["EIO"]),
    ("mkdir", 10, &["ENOSPC", "EIO"]),
    ("ftruncate", 2, &["EIO"]),
    ("flock", 2, &["ENOLCK"]),
    ("lseek", 3, &[]),
    ("statx", 60, &["EIO"]),
    ("clone3", 4, &["EAGAIN"]),
    ("socket", 2, &["EMFILE"]),
    ("bind", 2, &["ENOSPC"]),
    ("accept4", 6, &["EMFILE", "ECONNABORTED"]),
    ("sendto", 11, &["ECONNRESET"]),
    ("recvfrom", 12, &["ECONNRESET"]),
    ("epoll_wait", 44, &[]),
    ("futex", 38, &[]),
    ("close", 85, &[]),
];

const SHIM: &[Call] = &[
    ("pwritev", 8, &["EIO", "ENOSPC"]),
    ("write", 6, &[]),
    ("read", 14, &["EIO"]),
    ("ppoll", 12, &[]),
    ("fcntl", 7, &[]),
    ("waitid", 3, &[]),
    ("openat", 2, &["EMFILE"]),
    ("statx", 2, &["EIO"]),
    ("unlink", 1, &["EIO"]),
    ("ftruncate", 1, &["EIO"]),
    ("close", 9, &[]),
    ("exit_group", 1, &[]),
];

/// The injection that a seed chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Injection {
    pub at_shim: bool,
    pub call: &'static str,
    pub nth: u64,
    pub fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Kill,
    Stop,
    Error(&'static str),
}

/// The result of one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// The fault happened, and every invariant held.
    Held,
    /// The process made the call less often: nothing was tried.
    NotPassed,
}

impl Injection {
    pub fn of_seed(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let at_shim = dice.below(4) == 0;
        let calls = if at_shim { SHIM } else { DAEMON };
        // A call's weight is its number of passings, but at least ten for rare calls (a rename, an
        // fsync).
        let weight = |(_, passings, _): &Call| (*passings).max(10);
        let mut left = dice.below(calls.iter().map(weight).sum());
        let chosen = calls.iter().find(|call| {
            let here = left < weight(call);
            left = left.saturating_sub(weight(call));
            here
        });
        let (call, passings, errors) = *chosen.unwrap_or(&calls[0]);
        let nth = 1 + dice.below(passings);
        let fault = match dice.below(2 + errors.len() as u64 * 2) {
            0 => Fault::Kill,
            1 if errors.is_empty() || dice.below(2) == 0 => Fault::Kill,
            1 => Fault::Stop,
            n => Fault::Error(errors[(n as usize - 2) % errors.len()]),
        };
        Self { at_shim, call, nth, fault }
    }

    fn argument(self) -> String {
        let fault = match self.fault {
            Fault::Kill => "signal=KILL".to_string(),
            Fault::Stop => "signal=STOP".to_string(),
            Fault::Error(errno) => format!("error={errno}"),
        };
        format!("inject={}:{fault}:when={}", self.call, self.nth)
    }

    fn strace(self, log: &Path) -> Vec<String> {
        let words =
            ["-qq", "-o", &log.display().to_string(), "-e", &format!("trace={}", self.call), "-e"];
        words.into_iter().map(String::from).chain([self.argument()]).collect()
    }
}

/// Checks whether faults can be injected here: `strace` exists and may trace.
///
/// # Errors
/// The reason why they cannot.
pub fn available() -> Result<(), String> {
    let tried = command("strace")
        .args(["-qq", "-o", "/dev/null", "-e", "inject=getppid:error=EIO", "true"])
        .output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(error) => Err(format!("strace: {error}")),
    }
}

/// Tries the injection of one seed.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(seed: u64) -> Tried {
    let tried = inject(Injection::of_seed(seed));
    eprintln!("syscall seed {seed}: {tried:?}");
    tried
}

/// Tries one injection.
///
/// # Panics
/// When an invariant does not hold.
pub fn inject(injection: Injection) -> Tried {
    eprintln!("{injection:?}");
    let scene = Scene::new();
    let log = scene.world.path().join("strace.log");
    let mut daemon = if injection.at_shim {
        scene.world.daemon()
    } else {
        // `-D`: the daemon stays our own child. `-b execve`: strace detaches from programs that it
        // starts.
        let words = ["strace", "-D", "-f", "-b", "execve"].map(String::from);
        scene.world.daemon_under(&[&words[..], &injection.strace(&log)].concat())
    };
    let over = AtomicBool::new(false);
    let (output, before) = std::thread::scope(|scope| {
        scope.spawn(|| wake(&scene, &log, &over));
        if !injection.at_shim {
            daemon.answers_or_ends(&scene.world);
        }
        let mut client = scene.dispatch();
        let _tracer = injection.at_shim.then(|| attach(&scene, injection, &log, &mut client));
        let mut before = vec![];
        while client.is_running() && !happened(&log) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if injection.fault == Fault::Kill {
            before = events::lines(&scene.log());
        }
        let output = client.finish();
        over.store(true, Ordering::Relaxed);
        (output, before)
    });
    let tried = if happened(&log) { Tried::Held } else { Tried::NotPassed };
    let refused = output.code != Some(0)
        && scene.world.status()["dispatches"].as_array().is_some_and(Vec::is_empty);
    if refused && matches!(injection.fault, Fault::Error(_)) {
        assert_eq!(
            scene.repo.effects("effects"),
            Vec::<String>::new(),
            "what was refused has not run"
        );
    } else {
        let state = scene.check(&output, &before);
        if !injection.at_shim && !matches!(injection.fault, Fault::Error(_)) {
            assert_eq!(state, "success", "only the daemon suffered\n{}", output.stderr);
        }
    }
    daemon.kill_9();
    scene.end(daemon);
    tried
}

/// Continues a stopped process after a while, as a suspended machine does.
fn wake(scene: &Scene, log: &Path, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        if happened(log) {
            // This is long enough for the other side to notice the stop.
            std::thread::sleep(Duration::from_millis(200));
            for process in scene.world.processes() {
                if process.is_daemon()
                    || processes::shims(std::slice::from_ref(&process)).len() == 1
                {
                    scene.world.signal(process.pid, rustix::process::Signal::CONT);
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether strace has injected anything yet.
fn happened(log: &Path) -> bool {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    ["(INJECTED)", "SIGKILL", "SIGSTOP"].iter().any(|mark| text.contains(mark))
}

/// Traces the shim as soon as there is one. Returns `None` if the dispatch ended before.
fn attach(
    scene: &Scene,
    injection: Injection,
    log: &Path,
    client: &mut crate::run::Running,
) -> Option<Tracer> {
    let shim = wait_until("a shim, or the end", PATIENCE, || {
        let shim = processes::shims(&scene.world.processes()).first().map(|one| one.pid);
        (shim.is_some() || !client.is_running()).then_some(shim)
    })?;
    let mut strace = command("strace");
    strace.args(injection.strace(log)).args(["-p", &shim.to_string()]);
    let child = strace
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("strace starts");
    Some(Tracer(child))
}

/// A tracer that ends with the trial; the traced process continues without it.
struct Tracer(Child);

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// The program is a tool of the tests, not an agent.
#[allow(clippy::disallowed_methods)]
fn command(program: &str) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A table that no seed reaches tests nothing: some seed must choose every call and every
    /// fault.
    #[test]
    fn every_call_is_chosen_with_every_fault() {
        let chosen: BTreeSet<_> = (0..20_000)
            .map(Injection::of_seed)
            .map(|one| (one.at_shim, one.call, format!("{:?}", one.fault)))
            .collect();
        for (at_shim, calls) in [(false, DAEMON), (true, SHIM)] {
            for (call, _, errors) in calls {
                assert!(chosen.contains(&(at_shim, *call, "Kill".into())), "{call}");
                for error in *errors {
                    assert!(
                        chosen.contains(&(at_shim, *call, format!("Error({error:?})"))),
                        "{call} {error}"
                    );
                }
            }
        }
    }
}
