//! Rows about the event log.

use crate::commands::bench::measure::{Samples, probed};
use crate::commands::bench::row::Options;
use std::process::Command;
use xtask::Failure;

pub fn append(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    let dir = place.path("append");
    std::fs::create_dir(&dir)?;
    probed(
        Command::new(options.probes.join("append"))
            .arg(&dir)
            .arg((options.rounds * 20).to_string()),
    )
}
