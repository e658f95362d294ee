//! Snapshots of the fold: a start from one gives the same as a start from the first event, and
//! whatever is wrong with a snapshot costs time only.

use jiff::Timestamp;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event};
use muleteer_store::StoreError;
use muleteer_store::events::snapshot::{self, Unusable};
use muleteer_store::events::tail::Cursor;
use muleteer_store::events::{EventLog, catalog, fold_fleet, read};
use std::fs;
use std::path::{Path, PathBuf};

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    (dir, path)
}

/// Appends a record of every kind of event, each in a batch of its own; returns the log.
fn every_event(path: &Path) -> EventLog {
    let (mut log, _) = EventLog::open(path, 0, |_| {}).expect("opens");
    for record in catalog::samples() {
        let id = format!("{}-{}", record.entry.id, log.last_seq());
        let entry = Entry { id, more: false, ..record.entry };
        log.append(&[entry], Timestamp::UNIX_EPOCH).expect("appends");
    }
    log
}

fn folded(path: &Path, until: u64) -> Fleet {
    let mut fleet = Fleet::default();
    let apply = |record: muleteer_model::event::Record| {
        if record.seq <= until {
            fleet.apply(&record);
        }
    };
    read(path, apply).expect("reads");
    fleet
}

fn fault(n: u64) -> Entry {
    let event = Event::Fault { what: format!("n{n}"), message: "x".repeat(40) };
    Entry { id: format!("f{n}"), dispatch_id: None, at: None, more: false, event }
}

fn shown(fleet: &Fleet) -> String {
    format!("{fleet:#?}")
}

#[test]
fn start_from_a_snapshot_at_any_record_equals_a_start_from_the_first() {
    let (_dir, path) = place();
    let last = every_event(&path).last_seq();
    let whole = shown(&folded(&path, last));
    for seq in 1..=last {
        let (at, _) = snapshot::write(&path, &folded(&path, seq)).expect("writes");
        assert_eq!(at.seq, seq);
        let found = snapshot::read(&path).expect("a snapshot that fits");
        assert_eq!((found.at, shown(&found.fleet)), (at, shown(&folded(&path, seq))), "{seq}");
        let (fleet, recovery) = fold_fleet(&path).expect("folds");
        assert_eq!((shown(&fleet), recovery.last_seq), (whole.clone(), last), "{seq}");

        let (mut fleet, mut rest) = (found.fleet, vec![]);
        let opened = EventLog::open_after(&path, 0, at, |record| {
            rest.push(record.seq);
            fleet.apply(&record);
        });
        let (log, recovery) = opened.expect("opens");
        assert_eq!(rest, (seq + 1..=last).collect::<Vec<_>>(), "{seq}");
        assert_eq!((log.last_seq(), recovery.records, recovery.cut_bytes), (last, last, 0));
        assert_eq!(shown(&fleet), whole, "{seq}");
    }
}

/// The bytes of a snapshot, with the reason for which it is refused.
#[test]
fn snapshot_that_is_damaged_costs_time_only() {
    let (_dir, path) = place();
    let last = every_event(&path).last_seq();
    let whole = shown(&folded(&path, last));
    snapshot::write(&path, &folded(&path, last)).expect("writes");
    let file = snapshot::path_of(&path);
    let good = fs::read(&file).expect("a snapshot");
    let newline = good.iter().position(|byte| *byte == b'\n').expect("a header");
    let flips = (0..newline + 40).chain((newline..good.len()).step_by(397));
    let cuts = (0..good.len()).step_by(413).map(|length| good[..length].to_vec());
    let flipped = flips.map(|at| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    });
    let longer = [good.clone(), b"x".to_vec()].concat();
    let mut refused = 0;
    for bytes in flipped.chain(cuts).chain([longer, b"{}\n".to_vec(), vec![0; 10_000]]) {
        fs::write(&file, &bytes).expect("writes");
        match snapshot::read(&path) {
            Ok(found) => assert_eq!(shown(&found.fleet), whole, "it is damaged and was taken"),
            Err(why) => {
                refused += 1;
                assert!(!why.to_string().is_empty());
            }
        }
        assert_eq!(shown(&fold_fleet(&path).expect("folds").0), whole);
    }
    assert!(refused > 50, "only {refused} were refused");
    fs::write(&file, &good).expect("writes");
    assert!(snapshot::read(&path).is_ok());
}

#[test]
fn snapshot_of_another_log_is_not_used() {
    let (_dir, path) = place();
    let mut log = every_event(&path);
    let last = log.last_seq();
    let (at, _) = snapshot::write(&path, &folded(&path, last)).expect("writes");
    // A person cut the log, and other events got the same numbers.
    let lines = fs::read_to_string(&path).expect("reads");
    let kept: String = lines.split_inclusive('\n').take(3).collect();
    fs::write(&path, &kept).expect("cuts");
    fs::remove_file(path.with_extension("mark")).expect("the mark");
    let unfit = |path: &Path| matches!(snapshot::read(path), Err(Unusable::Damaged(_)));
    assert!(unfit(&path), "the log is shorter than the snapshot");
    (log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    while fs::metadata(&path).expect("a log").len() <= at.offset {
        let next = log.last_seq() + 1;
        log.append(&[fault(next)], Timestamp::UNIX_EPOCH).expect("appends");
    }
    assert!(unfit(&path), "another record is in its place");
    let (fleet, recovery) = fold_fleet(&path).expect("folds");
    assert_eq!(fleet.seq, recovery.last_seq);
    assert_eq!(shown(&fleet), shown(&folded(&path, recovery.last_seq)));
}

#[test]
fn snapshot_of_another_version_is_no_fault() {
    let (_dir, path) = place();
    assert!(matches!(snapshot::read(&path), Err(Unusable::Absent)));
    let last = every_event(&path).last_seq();
    snapshot::write(&path, &folded(&path, last)).expect("writes");
    let file = snapshot::path_of(&path);
    let text = fs::read_to_string(&file).expect("text");
    for (now, other) in [("\"v\":1", "\"v\":2"), ("\"fold\":", "\"fold\":9")] {
        fs::write(&file, text.replacen(now, other, 1)).expect("writes");
        let why = snapshot::read(&path).expect_err("another version");
        assert!(matches!(why, Unusable::Version) && !why.is_fault(), "{why}");
        assert_eq!(snapshot::extent(&path), None);
    }
}

/// A damaged line after the snapshot is found as without one, with its line number.
#[test]
fn damage_after_a_snapshot_has_its_place() {
    let (_dir, path) = place();
    let mut log = every_event(&path);
    let (at, _) = snapshot::write(&path, &folded(&path, log.last_seq())).expect("writes");
    for n in 0..3 {
        log.append(&[fault(n)], Timestamp::UNIX_EPOCH).expect("appends");
    }
    let mut bytes = fs::read(&path).expect("reads");
    let begin = usize::try_from(at.offset).expect("a small file");
    bytes[begin + 30] ^= 1;
    fs::write(&path, &bytes).expect("writes");
    let with = fold_fleet(&path).expect_err("damage");
    let without = read(&path, |_| {}).expect_err("damage");
    assert!(matches!(with, StoreError::Corrupt { .. }), "{with}");
    assert_eq!((with.to_string(), with.line()), (without.to_string(), without.line()));
    let opened = EventLog::open_after(&path, 0, at, |_| {}).expect_err("damage");
    assert_eq!(opened.to_string(), without.to_string());
}

#[test]
fn newest_records_and_ids_before_a_snapshot_are_found() {
    let (_dir, path) = place();
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    let mut at = Cursor::default();
    for n in 1..=4_000 {
        log.append(&[fault(n)], Timestamp::UNIX_EPOCH).expect("appends");
        if n == 3_000 {
            at = snapshot::write(&path, &folded(&path, n)).expect("writes").0;
        }
    }
    let of = |seq, bytes| {
        let records = snapshot::records_before(&path, at, seq, bytes).expect("reads");
        records.into_iter().map(|record| record.seq).collect::<Vec<_>>()
    };
    assert_eq!(of(0, u64::MAX), (1..=3_000).collect::<Vec<_>>());
    assert_eq!(of(2_990, u64::MAX), (2_990..=3_000).collect::<Vec<_>>());
    let few = of(0, 1_000);
    assert!((3..10).contains(&few.len()) && few.last() == Some(&3_000), "{few:?}");
    assert!(of(3_000, 1).is_empty(), "no whole line is in one byte");
    let ids = snapshot::ids_before(&path, at).expect("reads");
    assert_eq!((ids.seq_of("f1"), ids.seq_of("f3000")), (Some(1), Some(3_000)));
    assert_eq!(ids.seq_of("f3001"), None);
    let mut bytes = fs::read(&path).expect("reads");
    let middle = usize::try_from(at.offset).expect("a small file") - 200;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).expect("writes");
    let records = snapshot::records_before(&path, at, 0, u64::MAX).expect("reads");
    assert_eq!(records, [], "a journal must not get a part of its records");
}

#[test]
fn snapshots_cost_no_more_writing_than_events() {
    const MIB: u64 = 1024 * 1024;
    assert!(!snapshot::is_due(4 * MIB - 1, 0) && snapshot::is_due(4 * MIB, 0));
    assert!(!snapshot::is_due(9 * MIB, 10 * MIB) && snapshot::is_due(10 * MIB, 10 * MIB));
}
