//! Rows about starts: from a request to the daemon until the agent's `main`, and from an agent's
//! death until its successor's `main`.

use crate::commands::bench::measure::{Samples, Subject, in_turns, until};
use crate::commands::bench::peers;
use crate::commands::bench::place::{PATIENCE, Place};
use crate::commands::bench::row::Options;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use xtask::Failure;

/// As often as one start waits for the disk. The disk of a virtual machine can become slower from
/// run to run while its processor does not, so the bare spawn alone does not show it.
const DISK_WAITS: usize = 6;

pub fn one(options: &Options) -> Result<Samples, Failure> {
    start(options, 1, options.rounds * 5)
}

/// Measures one start in a git repository, where most projects are.
pub fn in_repository(options: &Options) -> Result<Samples, Failure> {
    let place = options.place()?;
    let mut git = Command::new("git");
    place.environment(&mut git);
    xtask::workspace::run(git.args(["init", "--quiet"]))?;
    start_at(options, place, 1, options.rounds * 5)
}

/// Measures one start in the sandbox, and one outside of it.
pub fn sandboxed(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    let gate = place.gate()?;
    let shown = gate.display();
    place.configure(&format!("pool: {{max_agents: 1}}\nsandbox: {{show: [\"{shown}\"]}}\n"))?;
    place.daemon()?;
    let place = &place;
    // The sandbox lets the agent write only there.
    let file = place.project().join("stamps");
    let (socket, key) = (place.socket()?, place.state().join("operator.key"));
    let (stamp, spawner) = (options.probes.join("stamp"), options.probes.join("spawner"));
    let finished = std::cell::Cell::new(0);
    let start = |how: &str| {
        let mut command = Command::new(&spawner);
        command.arg(how).arg(&socket).arg(&key).arg(place.project()).arg("1");
        command.arg(&stamp).arg(&file).arg(&gate);
        let taken = last_main(place, command, &file, 1)?;
        finished.set(finished.get() + 1);
        until("the end of the round's agent", PATIENCE * 5, || {
            place.open_gate().ok()?;
            std::thread::sleep(Duration::from_millis(50));
            (place.count("success") >= finished.get()).then_some(taken)
        })
    };
    let floor = || start("unconfined");
    let ours = || start("confined");
    in_turns(options.rounds * 5, Box::new(floor), Box::new(ours), vec![])
}

pub fn hundred(options: &Options) -> Result<Samples, Failure> {
    start(options, 100, options.rounds)
}

pub fn many(options: &Options) -> Result<Samples, Failure> {
    start(options, options.many, options.rounds.div_ceil(3))
}

fn start(options: &Options, count: usize, rounds: usize) -> Result<Samples, Failure> {
    start_at(options, options.place()?, count, rounds)
}

fn start_at(
    options: &Options,
    mut place: Place,
    count: usize,
    rounds: usize,
) -> Result<Samples, Failure> {
    place.configure(&format!("pool: {{max_agents: {count}}}\n"))?;
    let daemon = place.daemon()?;
    let (place, stamp, spawner) =
        (&place, options.probes.join("stamp"), options.probes.join("spawner"));
    let count_word = count.to_string();
    let (file, gate) = (place.path("stamps"), place.gate()?);
    let (socket, key) = (place.socket()?, place.state().join("operator.key"));

    let floor = || {
        let mut command = Command::new(&spawner);
        command.arg("bare").arg(&count_word).arg(&stamp).arg(&file).arg(&gate);
        last_main(place, command, &file, count)
    };
    let mut finished = 0;
    let mut used = 0.0;
    let ours = || {
        let before = cpu_ms(daemon);
        let mut command = Command::new(&spawner);
        command
            .arg("daemon")
            .arg(&socket)
            .arg(&key)
            .arg(place.project())
            .arg(&count_word)
            .arg(&stamp)
            .arg(&file)
            .arg(&gate);
        let taken = last_main(place, command, &file, count)?;
        used += cpu_ms(daemon) - before;
        // The agents of one round must have ended before the next round begins.
        finished += count;
        until("the end of the round's agents", PATIENCE * 5, || {
            place.open_gate().ok()?;
            std::thread::sleep(Duration::from_millis(50));
            (place.count("success") >= finished).then_some(taken)
        })
    };
    let starter = options.probes.join("starter");
    let mut tried = 0;
    let shims_alone = || {
        tried += 1;
        let mut command = Command::new(&starter);
        command.arg(place.shim()).arg(place.path(&format!("shims-{tried}")));
        command.arg(&count_word).arg(&stamp).arg(&file).arg(&gate);
        last_main(place, command, &file, count)
    };
    let mut beside: Vec<(String, Subject<'_>)> =
        vec![("our shims without a daemon".into(), Box::new(shims_alone))];
    let durable = || {
        let mut command = Command::new(&spawner);
        command.arg("durable").arg(DISK_WAITS.to_string()).arg(place.path("synced"));
        command.arg(&stamp).arg(&file).arg(&gate);
        last_main(place, command, &file, 1)
    };
    if count == 1 {
        let name = format!("a bare spawn after {DISK_WAITS} durable writes");
        beside.push((name, Box::new(durable)));
    }
    beside.extend(peers::starting(place, &stamp, &file, count));
    let mut samples = in_turns(rounds, Box::new(floor), Box::new(ours), beside)?;
    if count > 1 {
        samples.note = Some(format!("{count} at once"));
        // The round that does not count used some too.
        samples.daemon_ms = Some(used / f64::from(u32::try_from(finished)?));
    }
    Ok(samples)
}

/// Returns the processor time that a process has used, with its dead threads. The system counts in
/// hundredths of a second, so it is only good for the sum of many rounds.
#[allow(clippy::cast_precision_loss)]
fn cpu_ms(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = after_name.split_ascii_whitespace().skip(11).take(2);
    ticks.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>() as f64 * 10.0
}

/// Measures the time from an agent's death to its successor's `main`. The restart policy's delay
/// (it is in the log) does not count, only the part that Muleteer adds.
pub fn successor(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let (place, stamp, spawner) =
        (&place, options.probes.join("stamp"), options.probes.join("spawner"));
    let (file, gate) = (place.path("stamps"), place.gate()?);
    let floor = || {
        let mut command = Command::new(&spawner);
        command.arg("respawn").arg(&stamp).arg(&file).arg(&gate);
        last_main(place, command, &file, 2)
    };
    // The agent is of a kind that is restarted. It never answers, so nothing else happens to it.
    // The command is a list, because the floor has no shell around its program either.
    let words =
        [stamp.display().to_string(), file.display().to_string(), gate.display().to_string()];
    let line = serde_json::to_string(&words)?;
    let ours = || {
        let _ = std::fs::remove_file(&file);
        let spawned = place.json(&[
            "spawn",
            "developer",
            ".",
            "x",
            "--backend",
            "acp",
            "--command",
            &line,
            "--json",
        ])?;
        let id = spawned["dispatch_id"].as_str().ok_or("no id")?.to_string();
        since(&file, 0, 1)?;
        let pid = until("the agent's pid", PATIENCE, || {
            let status = place.json(&["status", &id, "--json"]).ok()?;
            status["dispatches"][0]["pid"]
                .as_i64()
                .and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        })?;
        let begun = peers::now();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
        let taken = since(&file, begun, 2)?;
        let pause = place.scheduled_pause(&id)?;
        place.ok(&["kill", &id])?;
        Ok(taken - pause)
    };
    let mut samples = in_turns(options.rounds, Box::new(floor), Box::new(ours), vec![])?;
    samples.note = Some("without the pause that the restart policy asks for".into());
    Ok(samples)
}

/// Runs a spawner and returns the time from its beginning to the last `main`. Only then the agents
/// at the gate may end, for which the spawner may wait: the cost of their end must not count as the
/// cost of another start.
pub fn last_main(
    place: &Place,
    mut command: Command,
    file: &Path,
    count: usize,
) -> Result<f64, Failure> {
    let _ = std::fs::remove_file(file);
    place.environment(&mut command);
    let mut spawner = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let last =
        last_stamp(file, count, || Ok(spawner.try_wait()?.is_some_and(|status| !status.success())));
    // It opens the gate repeatedly: an agent that has written its stamp may not wait there yet.
    while spawner.try_wait()?.is_none() {
        place.open_gate()?;
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = spawner.wait_with_output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_string().into());
    }
    let begun: i128 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(between(begun, last?))
}

/// Returns the milliseconds from `begun` to the last of `count` stamps.
pub fn since(file: &Path, begun: i128, count: usize) -> Result<f64, Failure> {
    Ok(between(begun, last_stamp(file, count, || Ok(false))?))
}

/// Returns the last of `count` stamps, or an error once `failed` is true. It polls seldom: the
/// stamps have the times, and polling uses one of few processors.
fn last_stamp(
    file: &Path,
    count: usize,
    mut failed: impl FnMut() -> Result<bool, Failure>,
) -> Result<i128, Failure> {
    until("every agent's main", PATIENCE * 5, || {
        match failed() {
            Ok(false) => {}
            Ok(true) => return Some(Err("the spawner failed".into())),
            Err(failure) => return Some(Err(failure)),
        }
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let stamps: Vec<i128> = text.lines().filter_map(|line| line.parse().ok()).collect();
        if stamps.len() < count {
            std::thread::sleep(Duration::from_millis(2));
            return None;
        }
        stamps.into_iter().max().map(Ok)
    })?
}

#[allow(clippy::cast_precision_loss)] // Microseconds are enough.
fn between(begun: i128, last: i128) -> f64 {
    (last - begun) as f64 / 1e6
}
