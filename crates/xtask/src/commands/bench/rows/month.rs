//! Rows about a state directory after a month: many finished dispatches, none at work. The log is
//! made by a probe out of the log of one real dispatch of sixty tool calls.

use crate::commands::bench::measure::{Samples, in_turns, ms, timed, until};
use crate::commands::bench::place::{PATIENCE, Place};
use crate::commands::bench::row::Options;
use crate::commands::bench::rows::memory::private_dirty_kb;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xtask::{Failure, workspace};

const TOOL_CALLS: usize = 60;
/// The finished dispatches that stay in memory, as configured by default.
const KEPT: usize = 1000;
/// The pause between two looks at the archive, which read the end of the log.
const LOOK: Duration = Duration::from_secs(2);

/// The ids of two dispatches: of the newest, which has files, and of the oldest, which is archived.
struct Ids {
    newest: String,
    oldest: String,
}

/// Returns a place with a log of `options.month` dispatches.
fn after_a_month(options: &Options) -> Result<(Place, Ids), Failure> {
    let mut template = options.place()?;
    let scenario = template.path("scenario.yaml");
    let call = "      - tool_call: {name: Bash, input: {command: make check}, text: all is well}\n";
    let steps = call.repeat(TOOL_CALLS);
    let end = "      - usage: {input: 900, output: 50, cost_usd: 0.01}
      - result: {status: success, summary: done}
";
    let text = format!("v: 1\nturns:\n  - steps:\n{steps}{end}");
    std::fs::write(&scenario, text)?;
    template.daemon()?;
    let path = scenario.display().to_string();
    let spawned = template.json(&[
        "spawn",
        "developer",
        ".",
        "Work for a month",
        "--backend",
        "rehearsal",
        "--scenario",
        &path,
        "--json",
    ])?;
    let of = spawned["dispatch_id"].as_str().ok_or("no dispatch")?.to_string();
    template.ok(&["wait", &of])?;
    template.kill_daemon()?;
    let place = match &options.at {
        Some(dir) => Place::at(dir, &options.bin)?,
        None => options.place()?,
    };
    std::fs::create_dir_all(place.state())?;
    let mut month = Command::new(options.probes.join("month"));
    month.arg(template.log()).arg(place.log()).arg(options.month.to_string());
    let output = month.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let (newest, oldest) = said.trim().split_once(' ').ok_or("no ids")?;
    let ids = Ids { newest: newest.into(), oldest: oldest.into() };
    // `logs` reads the output of the newest.
    let agents = place.state().join("agents");
    std::fs::create_dir_all(&agents)?;
    let mut copy = Command::new("cp");
    copy.arg("-a")
        .arg(template.state().join("agents").join(&of))
        .arg(agents.join(&ids.newest));
    workspace::run(&mut copy)?;
    Ok((place, ids))
}

/// The place that all rows share: its making takes minutes.
static SHARED: Mutex<Option<(Place, Ids)>> = Mutex::new(None);

/// Ends the daemon of the shared place.
pub fn end() {
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Returns such a place with a daemon that has settled: all but the newest dispatches are archived,
/// and a later daemon has started from a snapshot without them.
fn settled(options: &Options) -> Result<Shared, Failure> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        let (mut place, ids) = match earlier(options)? {
            Some(settled) => settled,
            None => settle(options)?,
        };
        place.daemon()?;
        // The start before may have closed a file.
        compressed(&place)?;
        *shared = Some((place, ids));
    }
    Ok(Shared(shared))
}

/// The file at a place that stays: the count and the ids of its dispatches, once it has settled.
const MADE: &str = "month.json";

/// Returns the place that an earlier call made at `--at`, without a daemon.
fn earlier(options: &Options) -> Result<Option<(Place, Ids)>, Failure> {
    let Some(dir) = options.at.as_ref().filter(|dir| dir.exists()) else { return Ok(None) };
    let text = std::fs::read_to_string(dir.join(MADE))
        .map_err(|_| format!("{} has not settled: remove it", dir.display()))?;
    let made: serde_json::Value = serde_json::from_str(&text)?;
    if made["month"].as_u64() != u64::try_from(options.month).ok() {
        return Err(format!("{} has {} dispatches", dir.display(), made["month"]).into());
    }
    let id = |of: &str| made[of].as_str().map(String::from).ok_or("no id");
    let ids = Ids { newest: id("newest")?, oldest: id("oldest")? };
    Ok(Some((Place::at(dir, &options.bin)?, ids)))
}

/// Makes a place whose dispatches are archived, with a snapshot and a compressed log.
fn settle(options: &Options) -> Result<(Place, Ids), Failure> {
    let (mut place, ids) = after_a_month(options)?;
    place.daemon()?;
    // One of eight may wait for the next event.
    let wanted = options.month.saturating_sub(KEPT + KEPT / 8);
    // A look folds the log. So looks get a fifth of the time.
    let mut pause = LOOK;
    until("the archive", PATIENCE * 30, || {
        std::thread::sleep(pause);
        let begun = Instant::now();
        let archived = archived(options, &place).ok();
        pause = LOOK.max(begun.elapsed() * 4);
        (archived? >= wanted).then_some(())
    })?;
    let snapshot = place.state().join("events.snapshot");
    compressed(&place)?;
    place.kill_daemon()?;
    // A snapshot from the time before would be read; without one, the daemon writes a new one.
    let _ = std::fs::remove_file(&snapshot);
    place.daemon()?;
    until("the snapshot of the events", PATIENCE * 5, || snapshot.exists().then_some(()))?;
    place.kill_daemon()?;
    let made = serde_json::json!({
        "month": options.month, "newest": ids.newest, "oldest": ids.oldest,
    });
    std::fs::write(place.path(MADE), made.to_string())?;
    Ok((place, ids))
}

/// The shared place, while a row uses it.
struct Shared(MutexGuard<'static, Option<(Place, Ids)>>);

impl Shared {
    fn get(&mut self) -> Result<&mut (Place, Ids), Failure> {
        self.0.as_mut().ok_or_else(|| "no place".into())
    }
}

/// Waits until all closed files of the log are compressed.
fn compressed(place: &Place) -> Result<(), Failure> {
    let folder = place.state().join("events");
    until("the compression of the log", PATIENCE * 30, || {
        // A short log has none.
        let Ok(names) = std::fs::read_dir(&folder) else { return Some(()) };
        let is_done = |name: &std::fs::DirEntry| {
            std::path::Path::new(&name.file_name()).extension().is_some_and(|end| end == "zst")
        };
        names.flatten().all(|name| is_done(&name)).then_some(())
    })
}

/// Returns the number of archived dispatches.
fn archived(options: &Options, place: &Place) -> Result<usize, Failure> {
    let output =
        Command::new(options.probes.join("month")).arg("--archived").arg(place.log()).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
}

fn note(options: &Options, mut samples: Samples) -> Samples {
    samples.note = Some(format!("{} finished dispatches of {TOOL_CALLS} calls", options.month));
    samples
}

/// Measures a daemon's start until it answers.
pub fn start(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, ids) = shared.get()?;
    let mut taken = vec![];
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let begun = Instant::now();
        let pid = place.launch_daemon()?;
        until("the daemon's answer", PATIENCE, || {
            let answer = place.json(&["status", &ids.newest, "--json"]).ok()?;
            (answer["daemon"]["pid"].as_u64() == Some(u64::from(pid))).then_some(())
        })?;
        taken.push(ms(begun.elapsed()));
    }
    Ok(note(options, Samples::absolute(taken)))
}

/// Measures a verb that asks about such a place, beside `muleteer --version`.
fn verb(options: &Options, args: impl Fn(&Ids) -> Vec<String>) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, ids) = shared.get()?;
    let args = args(ids);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let floor = || Ok(timed(|| place.ok(&["--version"]))?.1);
    let ours = || Ok(timed(|| place.ok(&args))?.1);
    let samples = in_turns(options.rounds.div_ceil(3), Box::new(floor), Box::new(ours), vec![])?;
    Ok(note(options, samples))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

pub fn status(options: &Options) -> Result<Samples, Failure> {
    verb(options, |ids| words(&format!("status {}", ids.oldest)))
}

pub fn logs(options: &Options) -> Result<Samples, Failure> {
    verb(options, |ids| words(&format!("logs {}", ids.newest)))
}

pub fn journal(options: &Options) -> Result<Samples, Failure> {
    verb(options, |_| words("journal"))
}

pub fn cost(options: &Options) -> Result<Samples, Failure> {
    verb(options, |_| words("cost"))
}

pub fn table(options: &Options) -> Result<Samples, Failure> {
    verb(options, |_| words("status"))
}

/// Measures the daemon's memory after its start and an answer from the archive.
pub fn memory(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, ids) = shared.get()?;
    let mut taken = vec![];
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let pid = place.launch_daemon()?;
        until("the daemon's answer", PATIENCE, || {
            place.json(&["status", &ids.oldest, "--json"]).ok()
        })?;
        taken.push(private_dirty_kb(pid).ok_or("its memory cannot be read")? / 1024.0);
    }
    Ok(note(options, Samples::absolute(taken)))
}

pub fn last_hour(options: &Options) -> Result<Samples, Failure> {
    verb(options, |_| words("events --since 1h"))
}

/// Measures the files of the state directory for each dispatch. The copies of the probe are alike:
/// with random ids and times, their compressed log is about two and a half times as long.
#[allow(clippy::cast_precision_loss)] // Bytes of one disk.
pub fn disk(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, _) = shared.get()?;
    let mut bytes = 0;
    let mut folders = vec![place.state()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => bytes += entry.metadata()?.len(),
            }
        }
    }
    let each = bytes as f64 / 1e3 / options.month as f64;
    let mut samples = note(options, Samples::absolute(vec![each]));
    let caveat = "; alike, so real ones take about two and a half times as much of the log";
    samples.note.iter_mut().for_each(|note| note.push_str(caveat));
    Ok(samples)
}
