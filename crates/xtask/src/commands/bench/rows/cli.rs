//! Rows about the command line: its start, and `status`.

use crate::commands::bench::measure::{Samples, in_turns, timed};
use crate::commands::bench::place::Place;
use crate::commands::bench::row::Options;
use std::process::{Command, Stdio};
use xtask::Failure;

pub fn cold_start(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    in_turns(options.rounds * 5, Box::new(nothing), Box::new(|| version(&place)), vec![])
}

pub fn status_one(options: &Options) -> Result<Samples, Failure> {
    status(options, 1)
}

pub fn status_many(options: &Options) -> Result<Samples, Failure> {
    status(options, options.many)
}

fn status(options: &Options, agents: usize) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.configure(&format!("pool: {{max_agents: {agents}}}\n"))?;
    place.daemon()?;
    place.live_agents(&options.probes, agents)?;
    let place = &place;
    let ours = move || Ok(timed(|| succeed(place.muleteer(&["status", "--json"])))?.1);
    let mut samples =
        in_turns(options.rounds * 2, Box::new(move || version(place)), Box::new(ours), vec![])?;
    samples.note = (agents != 1).then(|| format!("{agents} agents"));
    Ok(samples)
}

/// Runs `true`, the least that a program can do.
fn nothing() -> Result<f64, Failure> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(timed(|| succeed(command))?.1)
}

fn version(place: &Place) -> Result<f64, Failure> {
    Ok(timed(|| succeed(place.muleteer(&["--version"])))?.1)
}

fn succeed(mut command: Command) -> Result<(), Failure> {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
