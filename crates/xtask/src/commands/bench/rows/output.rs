//! Rows about capturing an agent's output.

use crate::commands::bench::measure::{Samples, in_turns, timed};
use crate::commands::bench::row::Options;
use std::process::{Command, Stdio};
use xtask::Failure;

pub fn large_writes(options: &Options) -> Result<Samples, Failure> {
    capture(options, 200 << 20, 65_536)
}

pub fn small_writes(options: &Options) -> Result<Samples, Failure> {
    capture(options, 20 << 20, 100)
}

/// Measures from the verb that starts the agent until the verb reports the agent's end. So the
/// figure includes the start, and the last byte is acknowledged.
fn capture(options: &Options, bytes: u64, chunk: u32) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let place = &place;
    let flood = format!("{} {bytes} {chunk}", options.probes.join("flood").display());
    let floor = {
        let line = format!("{flood} | cat > {}", place.path("floor").display());
        move || {
            let mut command = Command::new("sh");
            command.arg("-c").arg(&line).stdin(Stdio::null());
            let (status, taken) = timed(|| Ok(command.status()?))?;
            if status.success() { Ok(taken) } else { Err(format!("{line}: {status}").into()) }
        }
    };
    let project = place.project().display().to_string();
    let ours = move || {
        let command = format!("exec {flood}");
        let words = [
            "spawn",
            "developer",
            &project,
            "x",
            "--backend",
            "subprocess",
            "--command",
            &command,
            "--wait",
        ];
        Ok(timed(|| place.ok(&words))?.1)
    };
    in_turns(options.rounds.div_ceil(3), Box::new(floor), Box::new(ours), vec![])
}
