//! The log of events.

use super::Options;
use super::measure::Samples;
use std::process::Command;
use xtask::Failure;

pub fn append(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    let dir = place.path("append");
    std::fs::create_dir(&dir)?;
    let output = Command::new(options.probes.join("append"))
        .arg(&dir)
        .arg((options.rounds * 20).to_string())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let mut samples = Samples::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut numbers = line.split(' ').filter_map(|word| word.parse::<f64>().ok());
        if let (Some(floor), Some(ours)) = (numbers.next(), numbers.next()) {
            samples.floor.push(floor / 1000.0);
            samples.ours.push(ours / 1000.0);
        }
    }
    Ok(samples)
}
