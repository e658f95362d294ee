//! Deliberate misbehaviour of an agent, to test supervision.

#![allow(
    clippy::disallowed_methods,
    reason = "an agent's own children are what supervision is tested with"
)]

use muleteer_process::clock;
use muleteer_process::signals::{Signals, end_by};
use rustix::process::{Resource, Rlimit, Signal, setrlimit, setsid};
use std::io;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// Ends this process as requested, without any output.
pub fn crash(code: Option<i32>, signal: Option<&str>) -> ! {
    if let Some(code) = code {
        std::process::exit(code);
    }
    let signal = match signal {
        Some("SEGV") => Signal::SEGV,
        Some("ABRT") => Signal::ABORT,
        Some("TERM") => Signal::TERM,
        Some("INT") => Signal::INT,
        _ => Signal::KILL,
    };
    // No core file is written, so that the project contains only what the scenario writes.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let _ = end_by(signal.as_raw());
    std::process::abort()
}

/// Ignores SIGTERM from now on.
pub fn ignore_term() -> io::Result<()> {
    static CAUGHT: OnceLock<Signals> = OnceLock::new();
    if CAUGHT.get().is_none() {
        let _ = CAUGHT.set(Signals::catch(&[Signal::TERM.as_raw()])?);
    }
    Ok(())
}

/// Starts a grandchild that survives every signal except KILL. It keeps our stdout and stderr open,
/// as such processes do.
pub fn leak(life: Duration) -> io::Result<u32> {
    let child = Command::new(std::env::current_exe()?)
        .args(["rehearse", "--leaked", &life.as_millis().to_string()])
        .stdin(Stdio::null())
        .spawn()?;
    Ok(child.id())
}

/// Runs as that grandchild: in a session of its own, ignoring signals, doing nothing.
pub fn linger(life: Duration) -> ExitCode {
    // This fails only for the leader of a process group, which a child is not.
    let _ = setsid();
    let _deaf =
        Signals::catch(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE].map(Signal::as_raw));
    let end = clock::awake() + life;
    while let Some(left) = end.checked_sub(clock::awake()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
    ExitCode::SUCCESS
}
