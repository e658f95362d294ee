//! Measures the cost of a spec run's own machinery, without agents and git
//! (`cargo xtask bench run_ schedule_`). Prints `floor_us ours_us` for each round; the floor is 0
//! if there is none.
//!
//! ```text
//! pipeline schedule    wide|deep BEADS ROUNDS  creates a schedule and makes its first choice
//! pipeline step        wide|deep BEADS ROUNDS  closes one bead and makes the next choice
//! pipeline beads       DIR wide|deep BEADS     only creates a bead store
//! pipeline fold        DIR BEADS ROUNDS        reads and folds a run's log; floor: reads the file
//! pipeline checkpoint  DIR BEADS ROUNDS        writes both snapshots; floor: replaces their bytes
//!                                              as durably
//! pipeline transitions DIR BEADS               a whole run, every transition durable; prints a
//!                                              line per bead, in which its two transitions (done,
//!                                              the next given out) share the time
//! ```

use jiff::Timestamp;
use muleteer_model::beads::schedule::{Schedule, Task};
use muleteer_model::beads::{BLOCKS, Bead, Dependency, Op, Status};
use muleteer_model::event::{Entry, Event, Outcome, Record};
use muleteer_model::spec_run::event::{RunSettings, RunStarted};
use muleteer_model::spec_run::{Input, JobEnd, Run, advance, checkpoint, decide};
use muleteer_store::atomic::replace_snapshots;
use muleteer_store::beads::embedded::BeadStore;
use muleteer_store::events::EventLog;
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Done = Result<(), Box<dyn Error>>;

fn main() -> Done {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize| args.get(at).map(String::as_str).unwrap_or_default();
    let number =
        |at: usize| text(at).parse::<usize>().map_err(|_| format!("argument {at} is no number"));
    match text(0) {
        "schedule" => schedule(text(1), number(2)?, number(3)?),
        "step" => step(text(1), number(2)?, number(3)?),
        "beads" => beads(Path::new(text(1)), text(2), number(3)?),
        "fold" => fold(&PathBuf::from(text(1)), number(2)?, number(3)?),
        "checkpoint" => checkpoints(&PathBuf::from(text(1)), number(2)?, number(3)?),
        "transitions" => transitions(&PathBuf::from(text(1)), number(2)?),
        other => Err(format!("no measurement `{other}`").into()),
    }
}

fn say(floor: Duration, ours: Duration) {
    println!("{} {}", floor.as_secs_f64() * 1e6, ours.as_secs_f64() * 1e6);
}

/// Returns the needed beads. `deep`: the one before. `wide`: up to three earlier ones.
fn needs(shape: &str, at: usize) -> Vec<usize> {
    match (shape, at) {
        (_, 0) => vec![],
        ("deep", _) => vec![at - 1],
        _ => {
            let mut on: Vec<usize> = [at / 2, at / 3, at - 1].into_iter().take(at % 4).collect();
            on.dedup();
            on
        }
    }
}

fn name(at: usize) -> String {
    format!("bd-{at:06}")
}

fn tasks(shape: &str, count: usize) -> Vec<Task> {
    let task = |at: usize| Task {
        id: name(at),
        priority: u8::try_from(at % 5).unwrap_or_default(),
        // The beads look as if they were created one after the other but listed in another order.
        created_at: format!(
            "2026-02-{:02}T{:02}:{:02}:{:02}Z",
            1 + at % 28,
            at % 24,
            at % 60,
            at / 60 % 60
        ),
        depends_on: needs(shape, at).into_iter().map(name).collect(),
        closed: false,
        withheld: false,
    };
    (0..count).map(task).collect()
}

fn schedule(shape: &str, count: usize, rounds: usize) -> Done {
    let tasks = tasks(shape, count);
    for _ in 0..rounds {
        let begun = Instant::now();
        let schedule = Schedule::new(&tasks, |_| false);
        let first = schedule.next().map(str::to_string);
        say(Duration::ZERO, begun.elapsed());
        first.ok_or("nothing is ready")?;
    }
    Ok(())
}

fn step(shape: &str, count: usize, rounds: usize) -> Done {
    let mut schedule = Schedule::new(&tasks(shape, count), |_| false);
    for _ in 0..rounds {
        let id = schedule.next().ok_or("nothing is ready")?.to_string();
        let begun = Instant::now();
        schedule.withhold(&id);
        schedule.close(&id);
        let next = schedule.next().is_some();
        say(Duration::ZERO, begun.elapsed());
        if !next {
            return Err("the graph was too small".into());
        }
    }
    Ok(())
}

fn bead(shape: &str, at: usize) -> Bead {
    let dependency = |on: usize| Dependency {
        issue_id: name(at),
        depends_on_id: name(on),
        kind: BLOCKS.into(),
        extra: serde_json::Map::new(),
    };
    Bead {
        id: name(at),
        title: format!("Do the part of the work that has number {at}"),
        description: "One paragraph of what is to be done, as long as such paragraphs usually are."
            .into(),
        status: Status::Open,
        priority: u8::try_from(at % 5).unwrap_or_default(),
        issue_type: "task".into(),
        labels: vec!["bench".into()],
        dependencies: needs(shape, at).into_iter().map(dependency).collect(),
        created_at: "2026-02-12T10:00:00Z".into(),
        updated_at: "2026-02-12T10:00:00Z".into(),
        closed_at: None,
        close_reason: None,
        no_change: false,
        key: None,
        staged: None,
        extra: serde_json::Map::new(),
    }
}

fn beads(dir: &Path, shape: &str, count: usize) -> Done {
    let mut store = BeadStore::new(dir);
    let beads = (0..count).map(|at| bead(shape, at)).collect();
    store.apply(&Op::Import { beads }, Timestamp::now(), "")?;
    Ok(())
}

fn settings() -> RunSettings {
    RunSettings {
        backend: "subprocess".into(),
        model: None,
        max_concurrency: 4,
        max_retries: 1,
        timeout_s: 900,
        canary: 0,
        maintain_every: 0,
        maintain_after_all: false,
        maintain_parallel: true,
        judge: false,
        spec_drift: false,
        acceptance: false,
        acceptance_path: None,
        acceptance_links: false,
        max_iterations: 3,
        judge_only: false,
        human_review: false,
        review_merge: false,
        preview_acceptance: false,
        review_spec: false,
        review_approved: false,
        dry_run: false,
        pull_request: false,
        push: false,
        cleanup: true,
        confined: false,
        unconfined: String::new(),
        exposed: String::new(),
        private_home: false,
        weakened: String::new(),
        budget_usd: None,
        max_runtime_s: None,
    }
}

/// A run with a log on disk that works like the actor: each event is durable, then folded, and the
/// snapshots follow once per ended agent.
struct Play {
    dir: PathBuf,
    log: EventLog,
    run: Run,
    bytes: usize,
    /// How many batches of events were made durable.
    transitions: u32,
}

impl Play {
    fn new(dir: &Path, count: usize) -> Result<Self, Box<dyn Error>> {
        let (mut log, _) = EventLog::open(&dir.join("events.jsonl"), 0, |_| {})?;
        let started = RunStarted {
            run_id: "run-2026-02-12-a1b2c3".into(),
            spec: "plan.md".into(),
            title: "A benchmark".into(),
            repo: "/repo".into(),
            target: "auto".into(),
            bead_label: Some("bench".into()),
            settings: settings(),
            trace: None,
            thread: None,
        };
        let first = append(&mut log, vec![Event::RunStarted(Box::new(started))])?;
        let run = Run::begin(&first[0]).ok_or("no run")?;
        let mut play = Self { dir: dir.into(), log, run, bytes: 0, transitions: 0 };
        play.feed(Input::Frozen {
            sha256: "5".repeat(64),
            base_branch: "main".into(),
            base_commit: "c".repeat(40),
            target_branch: "muleteer/run-2026-02-12-a1b2c3".into(),
        })?;
        let beads = (0..count).map(|at| bead("wide", at)).collect();
        play.feed(Input::Gathered { beads, closed_outside: vec![] })?;
        play.feed(Input::BeadsAccepted)?;
        Ok(play)
    }

    fn feed(&mut self, input: Input) -> Done {
        self.commit(decide(&self.run, input, Timestamp::now()))?;
        loop {
            let events = advance(&self.run, Timestamp::now());
            if events.is_empty() {
                return self.snapshots();
            }
            self.commit(events)?;
        }
    }

    fn commit(&mut self, events: Vec<Event>) -> Done {
        if events.is_empty() {
            return Ok(());
        }
        for record in append(&mut self.log, events)? {
            self.run.apply(&record);
        }
        self.transitions += 1;
        Ok(())
    }

    fn snapshots(&mut self) -> Done {
        let mut files = vec![];
        for (name, text) in checkpoint::snapshots(&self.run, |_| None) {
            files.push((self.dir.join(name), text?));
        }
        self.bytes = files.iter().map(|(_, text)| text.len()).sum();
        let files: Vec<_> =
            files.iter().map(|(path, text)| (path.as_path(), text.as_bytes())).collect();
        replace_snapshots(&files, 0o644).into_iter().collect::<Result<(), _>>()?;
        Ok(())
    }

    fn end_first(&mut self) -> Result<bool, Box<dyn Error>> {
        let Some(job) = self.run.jobs.values().next() else { return Ok(false) };
        let dispatch = job.start.dispatch.clone();
        let mut end = JobEnd::new(Outcome::Success, "");
        (end.closed, end.commits, end.on_target) = (true, 1, true);
        self.feed(Input::JobEnded { dispatch, end: Box::new(end) })?;
        Ok(true)
    }
}

fn append(log: &mut EventLog, events: Vec<Event>) -> Result<Vec<Record>, Box<dyn Error>> {
    let last = events.len() - 1;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let entry = |(at, event)| Entry {
        id: format!("bench{:012x}", NEXT.fetch_add(1, Ordering::Relaxed)),
        dispatch_id: None,
        at: None,
        more: at < last,
        event,
    };
    let entries: Vec<Entry> = events.into_iter().enumerate().map(entry).collect();
    Ok(log.append(&entries, Timestamp::now())?)
}

fn fold(dir: &Path, count: usize, rounds: usize) -> Done {
    let mut play = Play::new(dir, count)?;
    for _ in 0..count / 2 {
        play.end_first()?;
    }
    drop(play);
    let path = dir.join("events.jsonl");
    for _ in 0..rounds {
        let begun = Instant::now();
        let bytes = std::fs::read(&path)?;
        let floor = begun.elapsed();
        let begun = Instant::now();
        let mut run: Option<Run> = None;
        let (_log, _) = EventLog::open(&path, 0, |record| match &mut run {
            Some(run) => run.apply(&record),
            None => run = Run::begin(&record),
        })?;
        say(floor, begun.elapsed());
        let done = run.map(|run| run.completed()).unwrap_or_default() as usize;
        if done < count / 2 || bytes.is_empty() {
            return Err("the log does not say what was done".into());
        }
    }
    Ok(())
}

fn checkpoints(dir: &Path, count: usize, rounds: usize) -> Done {
    let mut play = Play::new(dir, count)?;
    for _ in 0..rounds {
        play.end_first()?;
        let begun = Instant::now();
        play.snapshots()?;
        let ours = begun.elapsed();
        let half = vec![b'x'; play.bytes / 2];
        let begun = Instant::now();
        for name in ["one", "two"] {
            let (path, partial) = (dir.join(name), dir.join(format!("{name}.partial")));
            let mut file = File::create(&partial)?;
            file.write_all(&half)?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)?;
        }
        say(begun.elapsed(), ours);
    }
    Ok(())
}

fn transitions(dir: &Path, count: usize) -> Done {
    let mut play = Play::new(dir, count)?;
    loop {
        let (begun, before) = (Instant::now(), play.transitions);
        if !play.end_first()? {
            return Ok(());
        }
        // One bead is done and the next one given out. The two transitions share the time.
        say(Duration::ZERO, begun.elapsed() / (play.transitions - before).max(1));
    }
}
