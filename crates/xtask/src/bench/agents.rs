//! Many living agents, and a daemon that comes back to them.

use super::Options;
use super::measure::{Samples, ms, until};
use super::place::PATIENCE;
use std::time::Instant;
use xtask::Failure;

pub fn reattach(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.configure(&format!("pool: {{max_agents: {}}}\n", options.many))?;
    place.daemon()?;
    place.live_agents(&options.probes, options.many)?;
    let log = place.state().join("events.jsonl");
    let adopted = || {
        std::fs::read_to_string(&log)
            .unwrap_or_default()
            .matches("\"event\":\"agent_adopted\"")
            .count()
    };
    let mut taken = Vec::new();
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let before = adopted();
        let begun = Instant::now();
        place.daemon()?;
        until("the adoption of every agent", PATIENCE, || (adopted() >= before + options.many).then_some(()))?;
        taken.push(ms(begun.elapsed()));
    }
    let mut samples = Samples::absolute(taken);
    samples.note = Some(format!("{} agents, process start and recovery included", options.many));
    Ok(samples)
}
