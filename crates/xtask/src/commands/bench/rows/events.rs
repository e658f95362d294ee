//! Rows about the event log.

use crate::commands::bench::measure::{Samples, probed};
use crate::commands::bench::row::Options;
use std::process::Command;
use xtask::Failure;

pub fn append(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    let dir = place.path("append");
    std::fs::create_dir(&dir)?;
    let mut probe = Command::new(options.probes.join("append"));
    let samples = probed(probe.arg(&dir).arg((options.rounds * 100).to_string()))?;
    Ok(Samples { percentile: Some(99), ..samples })
}
