//! The metrics of a log: one line for each end, whenever the writer was killed.

#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use muleteer_model::dispatch::cost::metric::Metric;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, FinalState};
use muleteer_store::events::{EventLog, catalog};
use muleteer_store::metrics::Metrics;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const COUNT: usize = 12;

struct Place {
    dir: tempfile::TempDir,
    log: EventLog,
    fleet: Fleet,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (log, _) = EventLog::open(&dir.path().join("events.jsonl"), 0, |_| {}).unwrap();
        Self { dir, log: log.with_segments(2_000), fleet: Fleet::default() }
    }

    fn append(&mut self, id: &DispatchId, hour: usize, event: Event) {
        let entry = Entry {
            id: format!("e{}", self.log.last_seq()),
            dispatch_id: Some(id.clone()),
            at: None,
            more: false,
            event,
        };
        let now = Timestamp::from_second(i64::try_from(hour).unwrap() * 3600).unwrap();
        for record in self.log.append(&[entry], now).unwrap() {
            self.fleet.apply(&record);
        }
    }

    /// Creates a dispatch that costs something, two in an hour.
    fn begin(&mut self, number: usize) -> DispatchId {
        let id: DispatchId =
            format!("abcd23{}{}", number / 6 + 2, number % 6 + 2).try_into().unwrap();
        self.append(&id, number * 5, sample("dispatch_created"));
        self.append(&id, number * 5, used(number as f64 + 0.5));
        id
    }

    fn end(&mut self, id: &DispatchId, number: usize) {
        let state = FinalState::Success;
        let ended = Event::DispatchFinished { state, reason: String::new(), result: None };
        self.append(id, number * 5 + 1, ended);
    }

    fn catch_up(&self, metrics: &mut Metrics) -> u64 {
        metrics.catch_up(&self.dir.path().join("events.jsonl"), &self.fleet).unwrap()
    }

    fn folder(&self) -> PathBuf {
        self.dir.path().join("metrics")
    }
}

fn used(cost_usd: f64) -> Event {
    Event::UsageRecorded {
        model: "m".into(),
        input: 10,
        output: 1,
        cache_read: 0,
        cache_write: 0,
        cost_usd,
        cumulative: false,
        total_usd: None,
    }
}

fn sample(name: &str) -> Event {
    let mut samples = catalog::samples().into_iter().map(|record| record.entry.event);
    samples.find(|event| serde_json::to_value(event).unwrap()["event"] == name).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn lines(folder: &Path) -> Vec<Value> {
    let text: String = files(folder).iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn check(place: &Place) {
    let lines = lines(&place.folder());
    let costs: Vec<_> = lines.iter().map(|line| line["cost_usd"].as_f64().unwrap()).collect();
    assert_eq!(costs, (0..COUNT).map(|number| number as f64 + 0.5).collect::<Vec<_>>());
    for line in &lines {
        assert_eq!(
            (&line["v"], &line["kind"], &line["outcome"], &line["wall_ms"], &line["input"]),
            (&1.into(), &"dispatch".into(), &"success".into(), &3_600_000.into(), &10.into()),
            "{line}"
        );
    }
    assert!(files(&place.folder()).len() > 2, "one for each day");
    assert!(files(&place.folder())[0].ends_with("1970-01-01.jsonl"));
}

/// The writer is opened again after each step, or lives on.
#[test]
fn each_end_has_one_line_whenever_the_writer_begins() {
    for every in [1, 2, 3, 7, 1000] {
        let mut place = Place::new();
        let mut metrics = Metrics::open(&place.folder()).unwrap();
        for number in 0..COUNT {
            let id = place.begin(number);
            place.catch_up(&mut metrics);
            if number % every == 0 {
                metrics = Metrics::open(&place.folder()).unwrap();
                place.catch_up(&mut metrics);
            }
            place.end(&id, number);
            if number % 3 != 1 {
                place.catch_up(&mut metrics);
            }
        }
        let mut again = Metrics::open(&place.folder()).unwrap();
        place.catch_up(&mut again);
        assert_eq!(place.catch_up(&mut again), 0);
        check(&place);
    }
}

/// A kill leaves any part of the last write, and older files as they are.
#[test]
fn torn_line_is_made_again() {
    let mut place = Place::new();
    for number in 0..COUNT {
        let id = place.begin(number);
        place.end(&id, number);
    }
    let mut metrics = Metrics::open(&place.folder()).unwrap();
    assert_eq!(place.catch_up(&mut metrics), COUNT as u64);
    check(&place);
    let last = files(&place.folder()).pop().unwrap();
    let whole = fs::read(&last).unwrap();
    for length in 0..whole.len() {
        fs::write(&last, &whole[..length]).unwrap();
        let mut metrics = Metrics::open(&place.folder()).unwrap();
        assert!(place.catch_up(&mut metrics) > 0, "{length}");
        assert_eq!(fs::read(&last).unwrap(), whole, "{length}");
    }
    check(&place);
}

#[test]
fn damaged_last_line_is_a_named_error() {
    let mut place = Place::new();
    let id = place.begin(0);
    place.end(&id, 0);
    place.catch_up(&mut Metrics::open(&place.folder()).unwrap());
    let file = files(&place.folder()).remove(0);
    fs::write(&file, "garbage\n").unwrap();
    let error = Metrics::open(&place.folder()).unwrap_err();
    assert_eq!((error.code().as_str(), error.file()), ("E_STORE_IO", file.as_path()));
    assert_eq!(fs::read_to_string(&file).unwrap(), "garbage\n");
}

/// The fleet has it no longer, and the writer was not there when it was created.
#[test]
fn dispatch_that_left_the_fleet_is_folded_from_the_log() {
    let mut place = Place::new();
    let id = place.begin(0);
    place.end(&id, 0);
    let mut metrics = Metrics::open(&place.folder()).unwrap();
    place.catch_up(&mut metrics);
    // A dispatch that has begun before the newest line, and ended after it.
    let older = place.begin(1);
    let other = place.begin(2);
    place.end(&other, 2);
    place.catch_up(&mut metrics);
    place.end(&older, 3);
    let mut metrics = Metrics::open(&place.folder()).unwrap();
    let events = place.dir.path().join("events.jsonl");
    let mut without = Fleet::default();
    without.seq = place.fleet.seq;
    assert_eq!(metrics.catch_up(&events, &without).unwrap(), 1);
    let all = lines(&place.folder());
    assert_eq!(all.last().unwrap()["cost_usd"], 1.5, "{all:?}");
}

/// The writer reads the log later than the ledger writes it, so the log may be ahead of the fleet,
/// and the fleet ahead of an end.
#[test]
fn each_end_of_a_dispatch_has_the_sums_of_its_time() {
    for is_opened_again in [false, true] {
        let mut place = Place::new();
        let id = place.begin(0);
        let mut first = None;
        place.end(&id, 0);
        for number in 1..=2 {
            first.get_or_insert_with(|| place.fleet.clone());
            let mut prompt = sample("prompt_queued");
            if let Event::PromptQueued { key, .. } = &mut prompt {
                *key = format!("k{number}");
            }
            place.append(&id, number * 5, prompt);
            assert!(!place.fleet.get(&id).unwrap().is_finished(), "it was begun again");
            place.append(&id, number * 5, used(1.0));
            place.end(&id, number);
        }
        let events = place.dir.path().join("events.jsonl");
        let mut metrics = Metrics::open(&place.folder()).unwrap();
        assert_eq!(metrics.catch_up(&events, &first.unwrap()).unwrap(), 1);
        if is_opened_again {
            metrics = Metrics::open(&place.folder()).unwrap();
        }
        assert_eq!(place.catch_up(&mut metrics), 2);
        let all = lines(&place.folder());
        let costs: Vec<_> = all.iter().map(|line| line["cost_usd"].as_f64().unwrap()).collect();
        assert_eq!(costs, [0.5, 1.5, 2.5], "{all:?}");
    }
}

/// A file that a released version wrote. It never changes; without it, UPDATE_SAMPLES=1 writes it.
#[test]
fn metrics_of_version_1_still_load() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/metrics-v1.jsonl");
    if std::env::var_os("UPDATE_SAMPLES").is_some() && !file.exists() {
        let mut place = Place::new();
        let id = place.begin(0);
        place.append(&id, 0, sample("task_ended"));
        place.append(&id, 0, sample("task_list_finished"));
        place.end(&id, 0);
        place.catch_up(&mut Metrics::open(&place.folder()).unwrap());
        fs::copy(files(&place.folder()).remove(0), &file).unwrap();
    }
    let text = fs::read_to_string(&file).unwrap();
    let read: Vec<Metric> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(read.iter().all(|line| line.v == 1));
    let kind = |line: &Metric| serde_json::to_value(line).unwrap()["kind"].clone();
    let kinds: Vec<_> = read.iter().map(kind).collect();
    assert_eq!(kinds, ["task", "task_list", "dispatch"]);
}
