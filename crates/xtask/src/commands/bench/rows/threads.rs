//! Rows about conversations: single messages, and a state directory with many threads, whose log is
//! made by a probe.

use crate::commands::bench::measure::{Samples, in_turns, ms, probed, timed, until};
use crate::commands::bench::place::{PATIENCE, Place};
use crate::commands::bench::row::Options;
use crate::commands::bench::rows::memory::private_dirty_kb;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use xtask::Failure;

/// The exchanges of each thread: a message and its answer.
const EXCHANGES: usize = 50;
/// A thread takes at most 256 messages that have no answer.
const MOST_OPEN: usize = 200;

/// An agent that answers no message.
const BUSY: &str = "v: 1\nturns:\n  - repeat: true\n    steps:\n      - run: sleep 1000\n";
const ECHO: &str = "v: 1\nturns:\n  - repeat: true\n    steps:\n      - say: \"${prompt}\"\n";

const ASKING: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - ask: {question: \"Which colour?\"}
      - result: {status: success, summary: chosen}
";

/// Writes a scenario, and returns the path of its file.
fn written(place: &Place, scenario: &str) -> Result<String, Failure> {
    let file = place.path("scenario.yaml");
    std::fs::write(&file, scenario)?;
    Ok(file.display().to_string())
}

/// Opens a thread whose agent plays a scenario.
fn open(place: &Place, scenario: &str) -> Result<String, Failure> {
    let file = written(place, scenario)?;
    place.ok(&["thread", "new", "--backend", "rehearsal", "--scenario", &file])
}

/// Measures a message to a busy agent until it is accepted.
pub fn accepted(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let thread = open(&place, BUSY)?;
    let dir = place.path("bare");
    std::fs::create_dir(&dir)?;
    let mut probe = Command::new(options.probes.join("talker"));
    probe.arg(place.socket()?).arg(place.state().join("operator.key")).arg(&thread).arg(&dir);
    let samples = probed(probe.arg((options.rounds * 20).min(MOST_OPEN).to_string()))?;
    Ok(Samples { percentile: Some(99), ..samples })
}

/// Measures `thread send` to an idle agent until its shim has written the message to its stdin, of
/// which the start of the agent's process is a part.
pub fn to_stdin(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let thread = open(&place, ECHO)?;
    place.ok(&["thread", "send", &thread, "first", "--wait"])?;
    let dispatch = place.json(&["thread", "show", &thread, "--json"])?;
    let dispatch = dispatch["dispatch_id"].as_str().ok_or("no dispatch")?.to_string();
    let floor = || Ok(timed(|| place.ok(&["--version"]))?.1);
    let ours = || {
        until("an idle agent", PATIENCE, || {
            let status = place.json(&["status", &dispatch, "--json"]).ok()?;
            (status["dispatches"][0]["state"] == "idle").then_some(())
        })?;
        let from = place.log().metadata()?.len();
        let begun = Instant::now();
        place.ok(&["thread", "send", &thread, "another"])?;
        place.events_since(from, "prompt_written", 1)?;
        Ok(ms(begun.elapsed()))
    };
    in_turns(options.rounds, Box::new(floor), Box::new(ours), vec![])
}

/// Measures `answer` to a living agent until its shim has written the answer to its stdin.
pub fn answered(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let thread = open(&place, ASKING)?;
    let floor = || Ok(timed(|| place.ok(&["--version"]))?.1);
    let ours = || {
        place.ok(&["thread", "send", &thread, "choose"])?;
        let question = until("an open question", PATIENCE, || {
            let open = place.json(&["questions", "--json"]).ok()?;
            open["questions"][0]["id"].as_str().map(String::from)
        })?;
        let from = place.log().metadata()?.len();
        let begun = Instant::now();
        place.ok(&["answer", &question, "--text", "green"])?;
        // A request of the agent's own CLI has no `question_state`: its dispatch has the end.
        place.events_since(from, "answer_delivered", 1)?;
        Ok(ms(begun.elapsed()))
    };
    in_turns(options.rounds, Box::new(floor), Box::new(ours), vec![])
}

/// Measures `chat` with an empty pipe, which opens a thread and ends.
pub fn chat(options: &Options) -> Result<Samples, Failure> {
    let mut place = options.place()?;
    place.daemon()?;
    let floor = || Ok(timed(|| place.ok(&["--version"]))?.1);
    // No agent begins, but the thread needs a backend that this machine has.
    let scenario = written(&place, ECHO)?;
    let args = ["chat", "reviewer", ".", "--backend", "rehearsal", "--scenario", &scenario];
    let ours = || Ok(timed(|| place.ok(&args))?.1);
    in_turns(options.rounds, Box::new(floor), Box::new(ours), vec![])
}

/// The ids of the newest and of the oldest thread.
struct Ids {
    newest: String,
    oldest: String,
}

/// The place that all rows share: its making takes minutes.
static SHARED: Mutex<Option<(Place, Ids)>> = Mutex::new(None);

/// Ends the daemon of the shared place.
pub fn end() {
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// The shared place, while a row uses it.
struct Shared(MutexGuard<'static, Option<(Place, Ids)>>);

impl Shared {
    fn get(&mut self) -> Result<&mut (Place, Ids), Failure> {
        self.0.as_mut().ok_or_else(|| "no place".into())
    }
}

/// Returns a place with `options.threads` threads and a daemon that has started from a snapshot,
/// whose database has everything.
fn settled(options: &Options) -> Result<Shared, Failure> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        let mut place = options.place()?;
        std::fs::create_dir_all(place.state())?;
        let mut threads = Command::new(options.probes.join("threads"));
        threads.arg(place.log()).arg(options.threads.to_string()).arg(EXCHANGES.to_string());
        let output = threads.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let (newest, oldest) = said.split_once(' ').ok_or("no ids")?;
        let ids = Ids { newest: newest.into(), oldest: oldest.into() };
        let snapshot = place.state().join("events.snapshot");
        place.launch_daemon()?;
        until("the first start", PATIENCE * 10, || place.json(&["status", "--json"]).ok())?;
        until("the snapshot of the events", PATIENCE * 10, || snapshot.exists().then_some(()))?;
        // It waits for the database.
        until("an old thread", PATIENCE * 10, || place.ok(&["thread", "show", oldest]).ok())?;
        *shared = Some((place, ids));
    }
    Ok(Shared(shared))
}

fn note(options: &Options, mut samples: Samples) -> Samples {
    let messages = options.threads * EXCHANGES * 2;
    samples.note = Some(format!("{} threads with {messages} messages", options.threads));
    samples
}

/// Measures a daemon's start until it lists the threads.
pub fn start(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, _) = shared.get()?;
    let mut taken = vec![];
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let begun = Instant::now();
        let pid = place.launch_daemon()?;
        until("the daemon's answer", PATIENCE, || {
            let answer = place.json(&["status", "--json"]).ok()?;
            (answer["daemon"]["pid"].as_u64() == Some(u64::from(pid))).then_some(())
        })?;
        taken.push(ms(begun.elapsed()));
    }
    Ok(note(options, Samples::absolute(taken)))
}

/// Measures the daemon's memory after its start and an answer.
pub fn memory(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, ids) = shared.get()?;
    let mut taken = vec![];
    for _ in 0..options.rounds.div_ceil(3) {
        place.kill_daemon()?;
        let pid = place.launch_daemon()?;
        until("the daemon's answer", PATIENCE, || {
            place.json(&["thread", "show", &ids.oldest, "--json"]).ok()
        })?;
        taken.push(private_dirty_kb(pid).ok_or("its memory cannot be read")? / 1024.0);
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

pub fn list(options: &Options) -> Result<Samples, Failure> {
    verb(options, |_| ["thread", "list"].map(String::from).into())
}

pub fn show_new(options: &Options) -> Result<Samples, Failure> {
    verb(options, |ids| vec!["thread".into(), "show".into(), ids.newest.clone()])
}

pub fn show_old(options: &Options) -> Result<Samples, Failure> {
    verb(options, |ids| vec!["thread".into(), "show".into(), ids.oldest.clone()])
}

/// Measures the snapshot of the events.
#[allow(clippy::cast_precision_loss)] // Bytes of one file.
pub fn snapshot(options: &Options) -> Result<Samples, Failure> {
    let mut shared = settled(options)?;
    let (place, _) = shared.get()?;
    let bytes = place.state().join("events.snapshot").metadata()?.len();
    Ok(note(options, Samples::absolute(vec![bytes as f64 / 1e6])))
}
