//! Removed events: the rest of the log means the same, and says what is missing.

use jiff::Timestamp;
use muleteer_model::conversation::thread::Message;
use muleteer_model::dispatch::cost::{Bill, By, Sums, Use};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::fleet::removal::{Asked, Needed, event};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Archived, Entry, Event, EventsRemoved, FinalState, Restored};
use muleteer_protocol::ErrorCode;
use muleteer_store::db::{Grouped, Projection};
use muleteer_store::events::catalog::samples;
use muleteer_store::events::tail::{Reader, Start};
use muleteer_store::events::{
    EventLog, check, compress_next, fold_fleet, read, removable, remove_through, removed_through,
    snapshot,
};
use muleteer_store::metrics::Metrics;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

struct Place {
    dir: tempfile::TempDir,
    events: PathBuf,
    log: EventLog,
    second: i64,
}

fn id(text: &str) -> DispatchId {
    DispatchId::try_from(text.to_string()).expect("an id")
}

fn sample(fits: impl Fn(&Event) -> bool) -> Event {
    let found = samples().into_iter().map(|record| record.entry.event).find(fits);
    found.expect("a sample")
}

fn finished() -> Event {
    let state = FinalState::Success;
    Event::DispatchFinished { state, reason: String::new(), result: None }
}

fn used(cost_usd: f64) -> Event {
    Event::UsageRecorded {
        model: "opus".into(),
        input: 10,
        output: 2,
        cache_read: 0,
        cache_write: 0,
        cost_usd,
        cumulative: false,
        total_usd: None,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_261_600 + second).expect("a time")
}

impl Place {
    /// Makes a log with an archived dispatch, an unfinished one and a thread. Each file has one
    /// append.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let events = dir.path().join("events.jsonl");
        let (log, _) = EventLog::open(&events, 0, |_| {}).expect("opens");
        let log = log.with_segments(1);
        let mut place = Self { dir, events, log, second: 0 };
        let created = || sample(|event| matches!(event, Event::DispatchCreated(_)));
        place.add(None, sample(|event| matches!(event, Event::DaemonStarted { .. })));
        place.add(Some("aaaa2222"), created());
        place.add(Some("bbbb2222"), created());
        place.add(None, sample(|event| matches!(event, Event::ThreadOpened(_))));
        place.add(Some("aaaa2222"), used(0.5));
        place.add(None, sample(|event| matches!(event, Event::MessageAccepted(_))));
        let ended = place.add(Some("aaaa2222"), finished());
        let one = Archived { id: id("aaaa2222"), last_seq: ended };
        place.add(None, Event::DispatchesArchived { families: vec![vec![one]] });
        place.add(Some("bbbb2222"), used(0.25));
        place.compress();
        place
    }

    fn add(&mut self, of: Option<&str>, event: Event) -> u64 {
        let entry = Entry {
            id: format!("e{}", self.log.last_seq()),
            dispatch_id: of.map(id),
            at: None,
            more: false,
            event,
        };
        self.second += 1;
        self.log.append(&[entry], at(self.second)).expect("appends");
        self.log.last_seq()
    }

    fn compress(&self) {
        while compress_next(&self.events, 1).expect("compresses") {}
    }

    fn fleet(&self) -> Fleet {
        fold_fleet(&self.events).expect("folds").0
    }

    fn text(&self) -> Value {
        serde_json::to_value(self.fleet()).expect("JSON")
    }

    fn database(&self) -> Projection {
        let mut db = Projection::open(&self.dir.path().join("muleteer.db")).expect("opens").0;
        db.catch_up(&self.events, &self.fleet()).expect("catches up");
        db
    }

    fn sums(&self) -> Vec<Grouped> {
        let database = self.database();
        let kinds = [By::Role, By::Model, By::Day, By::Project];
        kinds.map(|by| database.settled(by).expect("reads").expect("sums")).into()
    }

    /// Returns the messages of all threads in the database.
    fn messages(&self) -> Vec<(u64, Message)> {
        let (database, fleet) = (self.database(), self.fleet());
        let threads = fleet.conversations.iter();
        let pages = threads.map(|thread| database.messages(thread.id(), 0, u64::MAX));
        pages.flat_map(|page| page.expect("reads")).collect()
    }

    fn measure(&self) {
        let mut metrics = Metrics::open(&self.dir.path().join("metrics")).expect("opens");
        metrics.catch_up(&self.events, &self.fleet()).expect("writes");
    }

    /// Records the removal of all events through `through`.
    fn decide(&mut self, through: u64) -> EventsRemoved {
        let asked = Asked {
            through,
            before: at(1000),
            needed: BTreeSet::new(),
            archived: 0,
            by: "operator".into(),
        };
        let removed = event(&self.fleet(), asked).expect("few dispatches stay");
        self.add(None, Event::EventsRemoved(Box::new(removed.clone())));
        removed
    }

    fn remove(&self, removed: &EventsRemoved) {
        let needed = Needed::new(removed);
        remove_through(&self.events, removed.through, |record| needed.has(record))
            .expect("removes");
    }

    fn seqs(&self, start: Start) -> Vec<u64> {
        let mut reader = Reader::open(&self.events, start).expect("opens");
        let mut seqs = vec![];
        while let Some(line) = reader.next_line().expect("reads") {
            seqs.push(line.record.seq);
        }
        seqs
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("events")).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        names
    }
}

#[test]
fn removed_events_leave_the_same_fleet_and_database() {
    let mut place = Place::new();
    place.measure();
    let found = removable(&place.events, at(9)).expect("reads").expect("old segments");
    assert_eq!((found.through, found.records), (7, 7), "the next event must be old enough too");
    let before = place.sums();
    assert_eq!(before[0].total.dispatches, 1);
    let messages = place.messages();
    assert_eq!(messages.len(), 1);
    let removed = place.decide(7);
    let fleet = place.text();
    place.remove(&removed);
    assert_eq!(place.text(), fleet);
    assert_eq!(removed_through(&place.events).expect("reads"), 7);
    // The boot, the unfinished dispatch and the thread.
    assert_eq!(place.seqs(Start::Beginning), [1, 3, 4, 6, 8, 9, 10]);
    assert_eq!(place.seqs(Start::Seq(4)), [4, 6, 8, 9, 10]);
    assert_eq!(place.seqs(Start::Seq(7)), [8, 9, 10]);
    assert_eq!(place.seqs(Start::Time(at(6))), [6, 8, 9, 10]);
    assert_eq!(check(&place.events).expect("reads").records, 7);
    // The sums follow from the metrics now.
    assert_eq!(place.sums(), before);
    assert!(place.database().finished(&id("aaaa2222")).expect("reads").is_none());
    fs::remove_file(place.dir.path().join("muleteer.db")).expect("a file");
    assert_eq!(place.sums(), before);
    assert_eq!(place.messages(), messages, "the events of threads stay");
    // A daemon goes on.
    let (log, recovery) = EventLog::open(&place.events, 0, |_| {}).expect("opens");
    assert_eq!((recovery.last_seq, recovery.records), (10, 7));
    place.log = log.with_segments(1);
    assert_eq!(place.add(Some("bbbb2222"), finished()), 11);
    place.compress();
    // A second removal takes out what is not needed any more.
    let one = Archived { id: id("bbbb2222"), last_seq: 11 };
    place.add(None, Event::DispatchesArchived { families: vec![vec![one]] });
    place.compress();
    place.measure();
    let removed = place.decide(11);
    let fleet = place.text();
    place.remove(&removed);
    assert_eq!(place.text(), fleet);
    assert_eq!(place.seqs(Start::Beginning), [1, 4, 6, 12, 13]);
    let both = place.sums();
    assert_eq!(both[0].total.dispatches, 2);
    fs::remove_file(place.dir.path().join("muleteer.db")).expect("a file");
    assert_eq!(place.sums(), both);
}

#[test]
fn snapshot_before_and_after_a_removal_is_used_or_not_and_changes_nothing() {
    let mut place = Place::new();
    snapshot::write(&place.events, &place.fleet()).expect("writes");
    let removed = place.decide(7);
    place.remove(&removed);
    let fleet = place.text();
    assert!(snapshot::read(&place.events).is_ok(), "its record is still there");
    fs::remove_file(snapshot::path_of(&place.events)).expect("a file");
    assert_eq!(place.text(), fleet);
}

#[test]
fn reader_in_the_removed_part_gets_a_named_error() {
    let mut place = Place::new();
    let mut slow = Reader::follow(&place.events, Start::Beginning).expect("opens");
    for _ in 0..2 {
        slow.next_line().expect("reads").expect("a line");
    }
    let (cursor, removed) = (slow.cursor(), place.decide(7));
    place.remove(&removed);
    let told = |mut reader: Reader| loop {
        match reader.next_line() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ends without an error"),
            Err(error) => break (error.code(), error.to_string()),
        }
    };
    let (code, text) = told(slow);
    assert_eq!(code, ErrorCode::EventsGap);
    assert!(text.contains("from seq 3 to 7 were removed"), "{text}");
    let late = Reader::open(&place.events, Start::Cursor(cursor)).expect("opens");
    assert_eq!(told(late), (code, text));
}

#[test]
fn removal_that_was_cut_off_is_finished_by_the_next_opening() {
    let mut place = Place::new();
    let folder = place.dir.path().join("events");
    let old: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| (path.clone(), fs::read(&path).expect("a file")))
        .collect();
    let removed = place.decide(7);
    place.remove(&removed);
    let (fleet, files) = (place.text(), place.files());
    // As if the daemon had been killed before any segment went.
    old.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("a file"));
    assert_ne!(place.files(), files);
    assert_eq!(place.text(), fleet);
    assert_eq!(place.seqs(Start::Beginning), [1, 3, 4, 6, 8, 9, 10]);
    drop(EventLog::open(&place.events, 0, |_| {}).expect("opens"));
    let is_old = |name: &String| name.starts_with("000000000001");
    assert!(!place.files().iter().any(is_old), "{:?}", place.files());
    assert_eq!(place.text(), fleet);
}

/// A log that begins anew beside the remnant of another one must not lose its segments.
#[test]
fn remnant_of_another_log_is_a_named_error() {
    let mut place = Place::new();
    let removed = place.decide(7);
    place.remove(&removed);
    let other = Place::new();
    for name in ["events.jsonl", "events.mark"] {
        let _ = fs::remove_file(place.dir.path().join(name));
    }
    let mut log = EventLog::open(&other.dir.path().join("new.jsonl"), 0, |_| {}).expect("opens").0;
    let event = sample(|event| matches!(event, Event::DaemonStarted { .. }));
    let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
    log.append(&[entry], at(1)).expect("appends");
    fs::copy(other.dir.path().join("new.jsonl"), &place.events).expect("a file");
    let error = EventLog::open(&place.events, 0, |_| {}).map(drop).expect_err("another log");
    assert_eq!(error.code(), ErrorCode::EventsCorrupt, "{error}");
    assert!(error.to_string().contains("begins with seq 1"), "{error}");
}

/// The bill of archived dispatches and of the others is the one that the log gives.
#[test]
fn sums_of_archived_dispatches_are_those_of_the_log() {
    let mut place = Place::new();
    place.add(Some("bbbb2222"), used(0.0));
    let database = place.database();
    for by in [By::Role, By::Model, By::Day, By::Project] {
        let mut wanted = Bill::new(by, None);
        read(&place.events, |record| wanted.add(&record)).expect("reads");
        let mut bill = Bill::new(by, None);
        let grouped = database.settled(by).expect("reads").expect("sums");
        grouped.rows.iter().for_each(|(key, sums)| bill.settle(key, sums));
        bill.settle_total(&grouped.total);
        let mut rows = vec![];
        let open = database.open_use(|id, at, used| {
            rows.push((id.clone(), at, used.model.to_string(), Use { model: "", ..*used }));
        });
        let open = open.expect("reads");
        assert_eq!(open.iter().map(|open| open.id.as_str()).collect::<Vec<_>>(), ["bbbb2222"]);
        open.iter().for_each(|open| bill.know_paid(&open.id, &open.role, &open.project));
        rows.iter().for_each(|(id, at, model, used)| {
            bill.count(id, *at, &Use { model: model.as_str(), ..*used });
        });
        let sums = |bill: &Bill| {
            let rows = bill.rows().into_iter();
            let mut all: Vec<_> =
                rows.map(|(key, row)| (key.to_string(), bill.sums(row))).collect();
            all.push(("total".into(), bill.sums(bill.total())));
            all
        };
        assert_eq!(sums(&bill), sums(&wanted));
    }
    // A restored dispatch is open again, and its new use counts once.
    let ids = vec![id("aaaa2222")];
    let restored = Restored { ids, first_seq: 2, last_seq: 7, boot_id: String::new() };
    place.add(None, Event::DispatchesRestored(restored));
    place.add(Some("aaaa2222"), used(1.0));
    let database = place.database();
    let total = database.settled(By::Role).expect("reads").expect("sums").total;
    assert_eq!(total, Sums::default());
    assert_eq!(database.open_use(|_, _, _| {}).expect("reads").len(), 2);
}

#[test]
fn damaged_or_missing_beginning_is_a_named_error_and_nothing_is_changed() {
    let mut place = Place::new();
    let removed = place.decide(7);
    place.remove(&removed);
    let path = place.dir.path().join("events/begin.jsonl.zst");
    let good = fs::read(&path).expect("a file");
    let opened = || EventLog::open(&place.events, 0, |_| {}).map(drop);
    for (place_of_damage, _) in good.iter().enumerate().step_by(7) {
        let mut bad = good.clone();
        bad[place_of_damage] ^= 0x41;
        fs::write(&path, &bad).expect("a file");
        let error = opened().expect_err("damage");
        assert_eq!(error.code(), ErrorCode::EventsCorrupt, "byte {place_of_damage}: {error}");
        assert_eq!(error.file(), path);
        assert_eq!(fs::read(&path).expect("a file"), bad);
    }
    fs::remove_file(&path).expect("a file");
    assert_eq!(opened().expect_err("a gap").code(), ErrorCode::EventsGap);
    fs::write(&path, &good).expect("a file");
    opened().expect("opens");
}
