//! A log in segments reads as one in a single file, whatever a kill left of a rotation or of a
//! compression; a missing or damaged segment is a named error.

#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_store::StoreError;
use muleteer_store::events::snapshot;
use muleteer_store::events::tail::{Reader, Start, newest_seq};
use muleteer_store::events::{EventLog, compress_next, length, read};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// A file is closed after about ten records.
const LIMIT: u64 = 2_000;
const RECORDS: u64 = 60;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("events.jsonl")
    }

    fn open(&self) -> EventLog {
        EventLog::open(&self.path(), 0, |_| {}).unwrap().0.with_segments(LIMIT)
    }

    /// Writes the records, with a batch of three here and there.
    fn filled() -> Self {
        let place = Self::new();
        let mut log = place.open();
        fill(&mut log, 1, RECORDS);
        place
    }

    fn segments(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.dir.path().join("events")) else { return vec![] };
        let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        found.sort();
        found
    }

    fn compress_all(&self) {
        while compress_next(&self.path(), LIMIT).unwrap() {}
    }

    /// Returns all files with their contents.
    fn state(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let top = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let files = top.filter(|path| path.is_file()).chain(self.segments());
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

fn at(seq: u64) -> Timestamp {
    Timestamp::from_second(1_000_000 + i64::try_from(seq).unwrap()).unwrap()
}

fn entry(seq: u64, more: bool) -> Entry {
    let event = Event::Fault { what: "test".into(), message: "x".repeat((seq % 7) as usize * 20) };
    Entry { id: format!("e{seq}"), dispatch_id: None, at: None, more, event }
}

fn fill(log: &mut EventLog, first: u64, last: u64) {
    let mut seq = first;
    while seq <= last {
        let count = if seq.is_multiple_of(5) { 3.min(last - seq + 1) } else { 1 };
        let batch: Vec<_> = (seq..seq + count).map(|n| entry(n, n + 1 < seq + count)).collect();
        log.append(&batch, at(seq)).unwrap();
        seq += count;
    }
}

fn all(path: &Path) -> Result<Vec<Record>, StoreError> {
    let mut records = vec![];
    read(path, |record| records.push(record)).map(|_| records)
}

fn seqs(reader: &mut Reader) -> Vec<u64> {
    let mut found = vec![];
    while let Some(line) = reader.next_line().unwrap() {
        found.push(line.record.seq);
    }
    found
}

/// Checks each way of reading against the records that were written.
#[track_caller]
fn check(path: &Path, last: u64) {
    let records = all(path).unwrap();
    let ids: Vec<_> = records.iter().map(|record| record.entry.id.clone()).collect();
    assert_eq!(ids, (1..=last).map(|seq| format!("e{seq}")).collect::<Vec<_>>());
    assert_eq!(newest_seq(path).unwrap(), last);
    let from = |start| seqs(&mut Reader::open(path, start).unwrap());
    assert_eq!(from(Start::Beginning), (1..=last).collect::<Vec<_>>());
    assert_eq!(from(Start::End), Vec::<u64>::new());
    for seq in 1..=last + 1 {
        assert_eq!(from(Start::Seq(seq)), (seq..=last).collect::<Vec<_>>(), "from {seq}");
        let time = from(Start::Time(at(seq)));
        let wanted: Vec<_> =
            records.iter().skip_while(|record| record.ts < at(seq)).map(|r| r.seq).collect();
        assert_eq!(time, wanted, "from the time of {seq}");
    }
    let mut reader = Reader::follow(path, Start::Beginning).unwrap();
    while reader.next_line().unwrap().is_some() {
        let cursor = reader.cursor();
        assert_eq!(from(Start::Cursor(cursor)), (cursor.seq + 1..=last).collect::<Vec<_>>());
    }
    assert_eq!(reader.cursor().offset, length(path));
}

#[test]
fn log_in_segments_reads_as_one_file() {
    let place = Place::filled();
    assert!(place.segments().len() > 3, "{:?}", place.segments());
    check(&place.path(), RECORDS);
    assert!(compress_next(&place.path(), LIMIT).unwrap());
    check(&place.path(), RECORDS);
    place.compress_all();
    assert!(place.segments().iter().all(|path| path.extension().unwrap() == "zst"));
    check(&place.path(), RECORDS);
    let mut log = place.open();
    assert_eq!(log.last_seq(), RECORDS);
    fill(&mut log, RECORDS + 1, RECORDS + 30);
    check(&place.path(), RECORDS + 30);
}

/// The snapshot's record may be in a closed file, in a compressed one, or in a piece.
#[test]
fn start_from_a_snapshot_in_any_segment_equals_a_start_from_the_first() {
    let place = Place::filled();
    let path = place.path();
    let mut fleet = Fleet::default();
    for (number, record) in all(&path).unwrap().iter().enumerate() {
        fleet.apply(record);
        if record.entry.more {
            continue;
        }
        snapshot::write(&path, &fleet).unwrap();
        if number == 20 {
            assert!(compress_next(&path, LIMIT).unwrap());
        }
        if number == 40 {
            place.compress_all();
        }
        let found = snapshot::read(&path).unwrap();
        assert_eq!((found.fleet.seq, found.at.seq), (record.seq, record.seq));
        let mut rest = vec![];
        EventLog::open_after(&path, 0, found.at, |record| rest.push(record.seq)).unwrap();
        assert_eq!(rest, (record.seq + 1..=RECORDS).collect::<Vec<_>>());
        let ids = snapshot::ids_before(&path, found.at).unwrap();
        for seq in 1..=RECORDS {
            let wanted = (seq <= record.seq).then_some(seq);
            assert_eq!(ids.seq_of(&format!("e{seq}")), wanted, "{seq} before {}", record.seq);
        }
        for bytes in [0, 1, 500, 3_000, u64::MAX] {
            let before = snapshot::records_before(&path, found.at, 1, bytes).unwrap();
            let seqs: Vec<_> = before.iter().map(|record| record.seq).collect();
            let first = seqs.first().copied().unwrap_or(record.seq + 1);
            assert_eq!(seqs, (first..=record.seq).collect::<Vec<_>>());
            assert!(bytes < u64::MAX || first == 1);
        }
    }
}

/// A log without a limit, as a run has it, stays in one file.
#[test]
fn log_without_a_limit_stays_in_one_file() {
    let place = Place::new();
    let (mut log, _) = EventLog::open(&place.path(), 0, |_| {}).unwrap();
    fill(&mut log, 1, RECORDS);
    assert_eq!(place.segments(), Vec::<PathBuf>::new());
    assert!(!compress_next(&place.path(), LIMIT).unwrap());
}

#[test]
fn follower_gets_each_record_once_across_rotations_and_compressions() {
    let place = Place::new();
    let mut log = place.open();
    let mut readers: Vec<Reader> = vec![];
    let mut got: Vec<Vec<u64>> = vec![];
    for seq in 1..=RECORDS {
        log.append(&[entry(seq, false)], at(seq)).unwrap();
        readers.push(Reader::follow(&place.path(), Start::Seq(1)).unwrap());
        got.push(vec![]);
        if seq % 9 == 0 {
            compress_next(&place.path(), LIMIT).unwrap();
        }
        // Each reader reads with its own rhythm.
        for (number, reader) in readers.iter_mut().enumerate() {
            if (seq as usize).is_multiple_of(1 + number % 17) {
                let most = 1 + number % 5;
                for _ in 0..most {
                    got[number].extend(reader.next_line().unwrap().map(|line| line.record.seq));
                }
            }
        }
    }
    place.compress_all();
    for (mut reader, mut got) in readers.into_iter().zip(got) {
        got.extend(seqs(&mut reader));
        assert_eq!(got, (1..=RECORDS).collect::<Vec<_>>());
    }
}

#[test]
fn large_log_of_an_older_version_is_split_after_its_first_rotation() {
    let place = Place::new();
    let (mut log, _) = EventLog::open(&place.path(), 0, |_| {}).unwrap();
    fill(&mut log, 1, RECORDS);
    drop(log);
    let mut log = place.open();
    fill(&mut log, RECORDS + 1, RECORDS + 1);
    assert_eq!(place.segments().len(), 1, "the whole file became one segment");
    check(&place.path(), RECORDS + 1);
    let large = place.segments().remove(0);
    let bytes = fs::read(&large).unwrap();
    assert!(compress_next(&place.path(), LIMIT).unwrap());
    assert!(place.segments().len() > 3);
    check(&place.path(), RECORDS + 1);
    // The daemon was killed before the large one went, and its successor makes other pieces.
    fs::write(&large, bytes).unwrap();
    check(&place.path(), RECORDS + 1);
    fs::remove_file(&place.segments()[2]).unwrap();
    check(&place.path(), RECORDS + 1);
    assert!(compress_next(&place.path(), LIMIT * 2).unwrap());
    assert!(!large.exists());
    check(&place.path(), RECORDS + 1);
}

/// The file has both names, and the new one is not there yet; then the new one is empty or missing.
#[test]
fn rotation_that_was_cut_off_is_finished_or_undone() {
    for (has_moved, is_there) in [(false, true), (true, true), (true, false)] {
        let place = Place::filled();
        let path = place.path();
        let full = fs::read(&path).unwrap();
        let before = length(&path) - full.len() as u64;
        let first = RECORDS + 1 - String::from_utf8_lossy(&full).lines().count() as u64;
        let name = format!("{first:012}-{RECORDS:012}.{before:015}-{:015}.jsonl", length(&path));
        let segment = place.dir.path().join("events").join(name);
        fs::hard_link(&path, &segment).unwrap();
        if has_moved {
            fs::remove_file(&path).unwrap();
            if is_there {
                fs::write(&path, "").unwrap();
            }
        }
        check(&path, RECORDS);
        let mut log = place.open();
        assert_eq!(segment.exists(), has_moved, "a file that was not closed has one name");
        fill(&mut log, RECORDS + 1, RECORDS + 20);
        check(&path, RECORDS + 20);
        place.compress_all();
        check(&path, RECORDS + 20);
    }
}

/// The renaming of the new file was lost, although the closed one was compressed in pieces.
#[test]
fn pieces_of_a_file_that_has_its_name_again_are_removed() {
    for is_removing in [false, true] {
        let place = Place::filled();
        let path = place.path();
        let full = fs::read(&path).unwrap();
        let before = length(&path) - full.len() as u64;
        let first = RECORDS + 1 - String::from_utf8_lossy(&full).lines().count() as u64;
        let name = format!("{first:012}-{RECORDS:012}.{before:015}-{:015}.jsonl", length(&path));
        place.compress_all();
        let count = place.segments().len();
        fs::hard_link(&path, place.dir.path().join("events").join(name)).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(compress_next(&path, 1).unwrap());
        assert!(place.segments().len() > count + 1, "several pieces: {:?}", place.segments());
        fs::write(&path, &full).unwrap();
        if is_removing {
            fs::remove_file(&place.segments()[count]).unwrap();
        }
        check(&path, RECORDS);
        let mut log = place.open();
        assert_eq!(place.segments().len(), count);
        fill(&mut log, RECORDS + 1, RECORDS + 20);
        place.compress_all();
        check(&path, RECORDS + 20);
    }
}

/// Nothing is removed that events.jsonl does not have, for example after a person restored it.
#[test]
fn segments_beyond_the_end_of_a_restored_file_are_refused_and_stay() {
    let place = Place::new();
    let mut log = place.open();
    fill(&mut log, 1, 5);
    let old = fs::read(place.path()).unwrap();
    fill(&mut log, 6, RECORDS);
    drop(log);
    fs::write(place.path(), old).unwrap();
    let _ = fs::remove_file(place.dir.path().join("events.mark"));
    let state = place.state();
    let error = EventLog::open(&place.path(), 0, |_| {}).unwrap_err();
    assert_eq!(error.code().as_str(), "E_EVENTS_CORRUPT", "{error}");
    assert_eq!(place.state(), state);
}

/// A task of the ledger that was dropped may still compress in its thread beside its successor.
#[test]
fn simultaneous_compressions_lose_nothing() {
    let place = Place::filled();
    let path = place.path();
    std::thread::scope(|scope| {
        for piece in [LIMIT, LIMIT / 2, 1, LIMIT * 2] {
            let path = &path;
            scope.spawn(move || while compress_next(path, piece).unwrap() {});
        }
    });
    assert!(place.segments().iter().all(|path| path.extension().unwrap() == "zst"));
    check(&path, RECORDS);
}

#[test]
fn compression_that_was_cut_off_is_done_again() {
    let place = Place::filled();
    let path = place.path();
    let plain = place.segments().remove(0);
    let bytes = fs::read(&plain).unwrap();
    assert!(compress_next(&path, LIMIT).unwrap());
    let compressed = place.segments().remove(0);
    fs::write(&plain, &bytes).unwrap();
    fs::write(compressed.with_file_name(".x.jsonl.zst.tmp-1-1"), "torn").unwrap();
    check(&path, RECORDS);
    // The uncompressed one counts.
    let good = fs::read(&compressed).unwrap();
    fs::write(&compressed, "damaged").unwrap();
    check(&path, RECORDS);
    fs::write(&compressed, &good).unwrap();
    // The compressed one counts where the other one is not whole.
    fs::write(&plain, &bytes[..bytes.len() / 2]).unwrap();
    check(&path, RECORDS);
    assert!(compress_next(&path, LIMIT).unwrap());
    assert!(!plain.exists() && compressed.exists());
    place.compress_all();
    assert!(place.segments().iter().all(|path| path.extension().unwrap() == "zst"));
    check(&path, RECORDS);
}

#[test]
fn missing_or_damaged_segment_is_a_named_error_and_nothing_is_changed() {
    for compressed in [false, true] {
        let place = Place::filled();
        if compressed {
            place.compress_all();
        }
        let good = place.state();
        let count = place.segments().len();
        for number in 0..count {
            for damage in ["remove", "flip", "cut", "longer", "empty"] {
                let victim = place.segments().remove(number);
                let mut bytes = good[&victim].clone();
                let middle = bytes.len() / 2;
                match damage {
                    "remove" => fs::remove_file(&victim).unwrap(),
                    "flip" => bytes[middle] ^= 4,
                    "cut" => bytes.truncate(middle),
                    "longer" => bytes.extend_from_within(..),
                    _ => bytes.clear(),
                }
                if damage != "remove" {
                    fs::write(&victim, &bytes).unwrap();
                }
                let state = place.state();
                let told = |error: StoreError| {
                    let code = error.code().as_str();
                    let wanted =
                        if damage == "remove" { "E_EVENTS_GAP" } else { "E_EVENTS_CORRUPT" };
                    assert_eq!(code, wanted, "{damage} of {number}: {error}");
                    let file = if damage == "remove" { victim.parent().unwrap() } else { &victim };
                    assert_eq!(error.file(), file, "{error}");
                    assert!(!error.hint().contains("truncate"), "{}", error.hint());
                };
                told(all(&place.path()).unwrap_err());
                told(EventLog::open(&place.path(), 0, |_| {}).unwrap_err());
                let reader = Reader::open(&place.path(), Start::Beginning);
                let read = reader.and_then(|mut reader| {
                    while reader.next_line()?.is_some() {}
                    Ok(())
                });
                told(read.unwrap_err());
                assert_eq!(place.state(), state, "nothing was changed");
                fs::write(&victim, &good[&victim]).unwrap();
            }
        }
        assert_eq!(place.state(), good);
        check(&place.path(), RECORDS);
    }
}

/// A person restores an older `events.jsonl` beside newer segments, or loses all segments.
#[test]
fn log_that_does_not_follow_its_segments_is_a_named_error() {
    let place = Place::new();
    let mut log = place.open();
    fill(&mut log, 1, 12);
    let older = fs::read(place.path()).unwrap();
    fill(&mut log, 13, RECORDS);
    let newer = fs::read(place.path()).unwrap();
    fs::write(place.path(), &older).unwrap();
    let error = all(&place.path()).unwrap_err();
    assert!(error.code().as_str().starts_with("E_EVENTS_"), "{error}");
    assert!(EventLog::open(&place.path(), 0, |_| {}).is_err());

    fs::write(place.path(), newer).unwrap();
    fs::rename(place.dir.path().join("events"), place.dir.path().join("aside")).unwrap();
    let error = EventLog::open(&place.path(), 0, |_| {}).unwrap_err();
    assert_eq!(error.code().as_str(), "E_EVENTS_GAP", "{error}");
    assert!(error.to_string().contains("the events from seq 1 to"), "{error}");
}

/// An older version reads `events.jsonl` alone: it finds a gap at its first line, and does not
/// begin anew.
#[test]
fn file_after_a_rotation_is_an_error_for_an_older_version() {
    let place = Place::filled();
    let text = fs::read_to_string(place.path()).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(first["seq"].as_u64().unwrap() > 1);
    let mark = fs::read_to_string(place.path().with_extension("mark")).unwrap();
    assert!(mark.starts_with(&format!("{RECORDS:020} ")), "an empty file would be too short");
}

/// Files that a released version wrote. They never change; without them, UPDATE_SAMPLES=1 writes
/// them.
#[test]
fn segments_of_version_1_still_load() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("samples/segments-v1");
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.join("events")).unwrap();
        for folder in ["", "events"] {
            let entries =
                fs::read_dir(from.join(folder)).unwrap().map(|entry| entry.unwrap().path());
            for path in entries.filter(|path| path.is_file()) {
                fs::copy(&path, to.join(folder).join(path.file_name().unwrap())).unwrap();
            }
        }
    };
    if std::env::var_os("UPDATE_SAMPLES").is_some() && !sample.exists() {
        let place = Place::filled();
        assert!(compress_next(&place.path(), LIMIT).unwrap());
        assert!(compress_next(&place.path(), LIMIT).unwrap());
        copy(place.dir.path(), &sample);
    }
    let place = Place::new();
    copy(&sample, place.dir.path());
    let forms = |end: &str| {
        place.segments().iter().filter(|path| path.to_str().unwrap().ends_with(end)).count()
    };
    assert!(forms(".jsonl.zst") > 0 && forms(".jsonl") > 0);
    check(&place.path(), RECORDS);
    let mut log = place.open();
    fill(&mut log, RECORDS + 1, RECORDS + 10);
    place.compress_all();
    check(&place.path(), RECORDS + 10);
}

/// Returns the error of `work`, which must not block.
fn refused<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> StoreError {
    let (say, said) = mpsc::sync_channel(64);
    std::thread::spawn(move || say.send(work().err()));
    let error = said.recv_timeout(Duration::from_secs(60)).expect("it blocks");
    error.expect("an error")
}

/// The log of a run is in a user's repository, where an agent may replace each file.
#[test]
fn pipe_and_endless_file_are_refused_at_once() {
    let replace = |file: &Path, pipe: bool| {
        fs::remove_file(file).unwrap();
        match pipe {
            true => rustix::fs::mkfifoat(rustix::fs::CWD, file, rustix::fs::Mode::RWXU).unwrap(),
            false => std::os::unix::fs::symlink("/dev/zero", file).unwrap(),
        }
    };
    for pipe in [true, false] {
        let place = Place::filled();
        let path = place.path();
        let segment = place.segments()[0].clone();
        let all = |path: PathBuf| {
            [
                refused({
                    let path = path.clone();
                    move || read(&path, |_| ())
                }),
                refused({
                    let path = path.clone();
                    move || EventLog::open(&path, 0, |_| ())
                }),
                refused(move || compress_next(&path, LIMIT)),
            ]
        };
        replace(&segment, pipe);
        for error in all(path.clone()) {
            let StoreError::Io { file, source, .. } = error else { panic!("{error}") };
            assert_eq!(
                (file, source.to_string()),
                (segment.clone(), "it is not a regular file".into())
            );
        }
        // A search reads the beginnings of segments only.
        let early = Start::Time(at(2));
        refused({
            let path = path.clone();
            move || Reader::follow(&path, early)?.next_line()
        });
        replace(&path, pipe);
        for error in all(path.clone()) {
            let StoreError::Io { file, .. } = error else { panic!("{error}") };
            assert_eq!(file, path);
        }
    }
    // The mark is not needed.
    let place = Place::filled();
    let mark = place.path().with_extension("mark");
    replace(&mark, true);
    let (say, said) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        fill(&mut place.open(), RECORDS + 1, RECORDS + 1);
        say.send(place)
    });
    drop(said.recv_timeout(Duration::from_secs(60)).expect("it blocks"));
}
