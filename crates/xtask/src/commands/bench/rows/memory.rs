//! Rows about private memory of processes.

use crate::commands::bench::measure::Samples;
use crate::commands::bench::place::Place;
use crate::commands::bench::row::Options;
use std::path::Path;
use std::time::Duration;
use xtask::Failure;

pub fn shim(options: &Options) -> Result<Samples, Failure> {
    let place = with_agents(options, options.many)?.0;
    let mut samples =
        Samples::absolute(shims(&place).into_iter().filter_map(private_dirty_kb).collect());
    if samples.ours.len() < options.many {
        return Err(format!("{} shims of {} were found", samples.ours.len(), options.many).into());
    }
    samples.note = Some(format!("the median of {} shims", samples.ours.len()));
    Ok(samples)
}

pub fn idle_daemon(options: &Options) -> Result<Samples, Failure> {
    daemon(options, 0)
}

pub fn busy_daemon(options: &Options) -> Result<Samples, Failure> {
    daemon(options, options.many)
}

fn daemon(options: &Options, agents: usize) -> Result<Samples, Failure> {
    let (_place, pid) = with_agents(options, agents)?;
    let kb = private_dirty_kb(pid).ok_or("the daemon's memory cannot be read")?;
    let mut samples = Samples::absolute(vec![kb / 1024.0]);
    samples.note = (agents > 0).then(|| format!("{agents} agents"));
    Ok(samples)
}

fn with_agents(options: &Options, agents: usize) -> Result<(Place, u32), Failure> {
    let mut place = options.place()?;
    place.configure(&format!("pool: {{max_agents: {}}}\n", agents.max(1)))?;
    let pid = place.daemon()?;
    if agents > 0 {
        place.live_agents(&options.probes, agents)?;
    }
    // A process returns the memory of its start within moments; the figure is the rest.
    std::thread::sleep(Duration::from_secs(2));
    Ok((place, pid))
}

/// Returns the shims of this place, whose working directory is their agent's directory.
fn shims(place: &Place) -> Vec<u32> {
    let agents = place.state().join("agents");
    let is_shim = |pid: &u32| {
        let proc = Path::new("/proc").join(pid.to_string());
        let ours = std::fs::read_link(proc.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&agents));
        ours && std::fs::read(proc.join("cmdline"))
            .is_ok_and(|line| line.starts_with(b"muleteer-shim\0"))
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(is_shim)
        .collect()
}

#[allow(clippy::cast_precision_loss)] // Kilobytes of one process.
pub fn private_dirty_kb(pid: u32) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"))?;
    line.trim().trim_end_matches(" kB").parse::<u64>().ok().map(|kb| kb as f64)
}
