//! Rows about many living agents, and about a daemon that adopts them.

use crate::commands::bench::measure::{Samples, ms, timed, until};
use crate::commands::bench::place::{PATIENCE, Place};
use crate::commands::bench::row::Options;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtask::Failure;

pub fn reattach(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.configure(&format!("pool: {{max_agents: {}}}\n", options.many))?;
    place.daemon()?;
    place.live_agents(&options.probes, options.many)?;
    let mut taken = Vec::new();
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let before = std::fs::metadata(place.log())?.len();
        let begun = Instant::now();
        place.launch_daemon()?;
        place.events_since(before, "agent_adopted", options.many)?;
        taken.push(ms(begun.elapsed()));
    }
    let mut samples = Samples::absolute(taken);
    samples.note = Some(format!("{} agents, process start and recovery included", options.many));
    Ok(samples)
}

/// The records that each agent writes while there is no daemon.
const RECORDS: usize = 1000;
/// The size of a record: half a KiB. In the recorded streams the median line of Codex has 102 bytes
/// and that of Claude Code 625. Earlier this row had lines of eight bytes, a tenth of the size
/// behind the figure that its gate comes from (`cat` took 60 to 80 ms there).
const RECORD: usize = 512;

/// Measures how a fresh daemon reads all output that was printed while there was none. The floor is
/// `cat` of the same spools.
pub fn drain(options: &Options) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    for _ in 0..options.rounds.div_ceil(4) {
        let mut place = options.place()?;
        place.configure(&format!("pool: {{max_agents: {}}}\n", options.many))?;
        place.daemon()?;
        let gate = place.gate()?;
        // Each line is a record. The last one is an event, which shows that the daemon has read all
        // of them.
        let script = format!(
            "cat {} >/dev/null; p=$(printf %0{RECORD}d 0); p=${{p#???????????}}; i=1000; while [ \
             $i -lt {} ]; do \
             echo \"line $i $p\"; i=$((i+1)); done; \
             echo '{{\"type\":\"text\",\"text\":\"the end\"}}'; exec sleep 100000",
            gate.display(),
            999 + RECORDS
        );
        place.agents_that(&options.probes, options.many, &["sh", "-c", &script])?;
        place.kill_daemon()?;
        // The agents at the gate pass when its writer closes it.
        place.open_gate()?;
        settled(&place, options.many)?;
        let floor = format!("cat {}/agents/*/*.seg >/dev/null", place.state().display());
        let before = std::fs::metadata(place.log())?.len();
        let begun = Instant::now();
        place.launch_daemon()?;
        place.events_since(before, "agent_said", options.many)?;
        samples.ours.push(ms(begun.elapsed()));
        samples.floor.push(timed(|| succeed(Command::new("sh").arg("-c").arg(&floor)))?.1);
    }
    samples.note = Some(format!("{} agents, process start and recovery included", options.many));
    Ok(samples)
}

/// Waits until every spool has the last line.
fn settled(place: &Place, count: usize) -> Result<(), Failure> {
    let agents = place.state().join("agents");
    let word = "the end";
    until("the agents to have printed", PATIENCE * 2, || {
        std::thread::sleep(Duration::from_millis(500));
        let mut grep = Command::new("sh");
        grep.arg("-c").arg(format!("grep -laF '{word}' {}/*/*.seg | wc -l", agents.display()));
        let output = grep.output().ok()?;
        let found: usize = String::from_utf8_lossy(&output.stdout).trim().parse().ok()?;
        (found >= count).then_some(())
    })
}

fn succeed(command: &mut Command) -> Result<(), Failure> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}
