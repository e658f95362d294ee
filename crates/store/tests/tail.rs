//! Follows a log while it is written.

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event};
use muleteer_store::events::EventLog;
use muleteer_store::events::tail::{Reader, Start, newest_seq};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

fn entry(id: &str, more: bool) -> Entry {
    let event = Event::Fault { what: id.into(), message: String::new() };
    Entry { id: id.into(), dispatch_id: None, at: None, more, event }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    (dir, path)
}

fn three(path: &Path) -> EventLog {
    let (mut log, _) = EventLog::open(path, 0, |_| {}).expect("opens");
    for (n, id) in (1..).zip(["a", "b", "c"]) {
        log.append(&[entry(id, false)], at(n * 10)).expect("appends");
    }
    log
}

fn ids(reader: &mut Reader) -> String {
    let mut ids = String::new();
    while let Some(line) = reader.next_line().expect("reads") {
        assert!(line.raw.starts_with("{\"crc\":\""));
        ids += &line.record.entry.id;
    }
    ids
}

#[test]
fn tail_starts_at_the_given_place_and_follows() {
    let (_dir, path) = place();
    let mut early = Reader::follow(&path, Start::Beginning).expect("no file is needed");
    assert_eq!(ids(&mut early), "");
    let mut log = three(&path);
    assert_eq!(ids(&mut early), "abc");
    for (start, wanted) in [
        (Start::Beginning, "abc"),
        (Start::Seq(2), "bc"),
        (Start::Seq(9), ""),
        (Start::Time(at(11)), "bc"),
        (Start::End, ""),
        (Start::Cursor(early.cursor()), ""),
    ] {
        assert_eq!(ids(&mut Reader::open(&path, start).expect("opens")), wanted, "{start:?}");
        assert_eq!(ids(&mut Reader::follow(&path, start).expect("opens")), wanted, "{start:?}");
    }
    let mut end = Reader::follow(&path, Start::End).expect("opens");
    log.append(&[entry("d", false)], at(40)).expect("appends");
    assert_eq!((ids(&mut end), ids(&mut early)), ("d".into(), "d".into()));
    assert_eq!(early.cursor(), end.cursor());
}

#[test]
fn incomplete_lines_and_batches_are_not_returned() {
    let (_dir, path) = place();
    drop(three(&path));
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("d", true), entry("e", false)], at(40)).expect("appends");
    let all = fs::read(&path).expect("reads");
    let three: usize = all.split_inclusive(|b| *b == b'\n').take(3).map(<[u8]>::len).sum();

    fs::write(&path, &all[..three]).expect("writes");
    fs::remove_file(path.with_extension("mark")).expect("removes");
    let mut reader = Reader::open(&path, Start::Beginning).expect("opens");
    assert_eq!(ids(&mut reader), "abc");
    let mut file = fs::OpenOptions::new().append(true).open(&path).expect("opens");
    for byte in &all[three..all.len() - 1] {
        file.write_all(&[*byte]).expect("writes");
        assert_eq!(ids(&mut reader), "");
    }
    file.write_all(b"\n").expect("writes");
    assert_eq!(ids(&mut reader), "de");
}

#[test]
fn tail_waits_for_durable_events_and_survives_a_cut() {
    let (_dir, path) = place();
    drop(three(&path));
    let mark = path.with_extension("mark");
    let durable = fs::read(&mark).expect("reads");
    let before = fs::read(&path).expect("reads");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("lost", false)], at(40)).expect("appends");

    // As if the event was written but not yet synced.
    fs::write(&mark, &durable).expect("writes");
    let (mut follower, mut looker) = (
        Reader::follow(&path, Start::Beginning).expect("opens"),
        Reader::open(&path, Start::Beginning).expect("opens"),
    );
    assert_eq!((ids(&mut follower), ids(&mut looker)), ("abc".into(), "abclost".into()));

    // The tail is cut and rewritten; the reader that had seen it continues by seq.
    fs::write(&path, &before).expect("writes");
    assert_eq!(ids(&mut looker), "");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("D", false), entry("E", false)], at(50)).expect("appends");
    assert_eq!(ids(&mut follower), "DE");
    assert_eq!(ids(&mut looker), "E");
}

/// A reader that starts from a cursor has read no mark yet.
#[test]
fn following_from_a_cursor_waits_for_durable_too() {
    let (_dir, path) = place();
    let mut log = three(&path);
    let durable = fs::read(path.with_extension("mark")).expect("reads");
    let mut reader = Reader::open(&path, Start::Beginning).expect("opens");
    assert_eq!(ids(&mut reader), "abc");
    log.append(&[entry("d", false)], at(40)).expect("appends");
    let synced = fs::read(path.with_extension("mark")).expect("reads");
    fs::write(path.with_extension("mark"), &durable).expect("writes");
    let mut follower = Reader::follow(&path, Start::Cursor(reader.cursor())).expect("opens");
    assert_eq!(ids(&mut follower), "");
    fs::write(path.with_extension("mark"), &synced).expect("writes");
    assert_eq!(ids(&mut follower), "d");
}

/// The new tail is shorter but has more records: none of them is lost, and no older one is
/// repeated.
#[test]
fn reader_continues_by_seq_after_a_cut() {
    let (_dir, path) = place();
    drop(three(&path));
    let mark = path.with_extension("mark");
    let (before, durable) = (fs::read(&path).expect("reads"), fs::read(&mark).expect("reads"));
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry(&"lost".repeat(200), false)], at(40)).expect("appends");
    drop(log);
    let (mut reader, mut end) = (
        Reader::open(&path, Start::Seq(3)).expect("opens"),
        Reader::open(&path, Start::End).expect("opens"),
    );
    assert!(ids(&mut reader).starts_with("clost"));
    assert_eq!(ids(&mut end), "");

    fs::write(&path, &before).expect("writes");
    fs::write(&mark, &durable).expect("writes");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("D", false), entry("E", false)], at(50)).expect("appends");
    assert_eq!((ids(&mut reader).as_str(), ids(&mut end).as_str()), ("E", ""));
    log.append(&[entry("f", false)], at(60)).expect("appends");
    assert_eq!((ids(&mut reader).as_str(), ids(&mut end).as_str()), ("f", "f"));
}

/// A missing log may still appear. A log that cannot be opened is an error and not an empty log.
#[test]
fn missing_file_is_awaited_and_unreadable_file_is_an_error() {
    let (dir, _) = place();
    let (sub, moved) = (dir.path().join("sub"), dir.path().join("moved"));
    let path = sub.join("events.jsonl");
    let fails =
        |reader: &mut Reader| reader.next_line().expect_err("it cannot be opened").code().as_str();
    fs::create_dir(&sub).expect("makes it");
    drop(three(&path));
    let read_first = || {
        let mut reader = Reader::open(&path, Start::Beginning).expect("opens");
        assert_eq!(reader.next_line().expect("reads").expect("a line").record.entry.id, "a");
        reader
    };
    let (mut reader, mut other) = (read_first(), read_first());

    // A reader reads an open file to its end.
    fs::rename(&sub, &moved).expect("moves it");
    assert_eq!(ids(&mut reader), "bc");
    assert_eq!(ids(&mut Reader::open(&path, Start::Beginning).expect("opens")), "");
    assert_eq!(ids(&mut Reader::open(&path, Start::End).expect("opens")), "");

    fs::write(&sub, "a file where the directory was").expect("writes");
    for _ in ["b", "c"] {
        assert!(other.next_line().expect("reads").is_some());
    }
    assert_eq!((fails(&mut other), fails(&mut reader)), ("E_STORE_IO", "E_STORE_IO"));
    assert_eq!(
        fails(&mut Reader::open(&path, Start::Beginning).expect("opens later")),
        "E_STORE_IO"
    );
    assert_eq!(
        Reader::open(&path, Start::End).expect_err("it has to find the end").code().as_str(),
        "E_STORE_IO"
    );
}

#[test]
fn damage_is_named_and_a_torn_end_is_not() {
    let (_dir, path) = place();
    drop(three(&path));
    let mut bytes = fs::read(&path).expect("reads");
    let second = bytes.iter().position(|b| *b == b'\n').expect("a line") + 1;
    bytes[second + 30] ^= 1;
    fs::write(&path, &bytes).expect("writes");
    let mut reader = Reader::open(&path, Start::Beginning).expect("opens");
    assert_eq!(reader.next_line().expect("reads").expect("the first").record.entry.id, "a");
    for _ in 0..2 {
        let error = reader.next_line().expect_err("damaged");
        assert_eq!((error.code().as_str(), error.line()), ("E_EVENTS_CORRUPT", Some(2)));
    }
    bytes[second + 30] ^= 1;
    bytes.extend_from_slice(b"{\"crc\":\"garbage\nmore of it\n");
    fs::write(&path, &bytes).expect("writes");
    assert_eq!(ids(&mut reader), "bc");
    assert!(reader.next_line().expect("not an error").is_none());
}

/// An unfinished last line, however long, is still to come.
#[test]
fn the_end_is_after_the_last_whole_line() {
    let (_dir, path) = place();
    drop(three(&path));
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    let long = "long".repeat(50_000);
    log.append(&[entry(&long, false)], at(40)).expect("appends");
    let all = fs::read(&path).expect("reads");
    let first = all.iter().position(|b| *b == b'\n').expect("a line") + 1;
    for (there, wanted) in [
        (0, format!("abc{long}")),
        (first / 2, format!("abc{long}")),
        (all.len() - 1, long.clone()),
    ] {
        fs::write(&path, &all[..there]).expect("writes");
        let mut end = Reader::open(&path, Start::End).expect("opens");
        assert_eq!(ids(&mut end), "");
        fs::write(&path, &all).expect("writes");
        assert_eq!(ids(&mut end), wanted, "{there} bytes were there");
    }
}

#[test]
fn a_record_that_is_missing_is_named() {
    let (_dir, path) = place();
    drop(three(&path));
    let bytes = fs::read(&path).expect("reads");
    let lines: Vec<_> = bytes.split_inclusive(|b| *b == b'\n').collect();
    fs::write(&path, [lines[0], lines[2]].concat()).expect("writes");
    let mut reader = Reader::open(&path, Start::Beginning).expect("opens");
    assert!(reader.next_line().expect("reads").is_some());
    let error = reader.next_line().expect_err("there is a gap");
    assert_eq!((error.code().as_str(), error.line()), ("E_EVENTS_GAP", Some(2)));
    assert!(error.to_string().ends_with("expected seq 2, found 3"), "{error}");
}

#[test]
fn tail_beside_a_writer_yields_every_record_once_in_order() {
    const LAST: u64 = 400;
    let (_dir, path) = place();
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    let writer = std::thread::spawn(move || {
        while log.last_seq() < LAST {
            let id = format!("e{}", log.last_seq());
            log.append(&[entry(&id, true), entry(&id.repeat(50), false)], at(0)).expect("appends");
        }
    });
    let mut readers =
        [Reader::follow(&path, Start::Beginning), Reader::open(&path, Start::Beginning)]
            .map(|r| r.expect("opens"));
    let mut seen = [0, 0];
    // Ends after the writer's last record; a lost record would fail the check of the order before.
    while seen != [LAST, LAST] {
        for (reader, seen) in readers.iter_mut().zip(&mut seen) {
            while let Some(line) = reader.next_line().expect("reads") {
                *seen += 1;
                assert_eq!(line.record.seq, *seen);
            }
        }
        std::thread::yield_now();
    }
    writer.join().expect("ends well");
}

/// Returns the newest seq by reading the whole log.
fn scanned(path: &Path) -> u64 {
    let mut reader = Reader::open(path, Start::Beginning).expect("opens");
    std::iter::from_fn(|| reader.next_line().expect("reads"))
        .last()
        .map_or(0, |line| line.record.seq)
}

#[test]
fn newest_events_match_a_full_scan() {
    let (_dir, path) = place();
    assert_eq!(newest_seq(&path).expect("no file is needed"), 0);
    let mut log = three(&path);
    log.append(&[entry("d", true), entry("e", true), entry("f", false)], at(40))
        .expect("appends");
    log.append(&[entry("g", false)], at(50)).expect("appends");
    let all = fs::read(&path).expect("reads");
    // The log is torn at any byte, with garbage after the rest.
    for cut in 0..=all.len() {
        for behind in [&b""[..], b"garbage", b"{\"crc\":\"garbage\n", b"\n\n"] {
            fs::write(&path, [&all[..cut], behind].concat()).expect("writes");
            assert_eq!(
                newest_seq(&path).expect("reads"),
                scanned(&path),
                "cut at {cut}, then {behind:?}"
            );
        }
    }
    // Lines around the size of a chunk, at all offsets, and a tail that is too long for a line.
    for length in [65_000, 65_400, 65_536, 131_072, 1_000_000] {
        let (_dir, path) = place();
        let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
        for extra in [0, 1, 100] {
            let last =
                log.append(&[entry(&"x".repeat(length + extra), false)], at(1)).expect("appends");
            assert_eq!(newest_seq(&path).expect("reads"), last[0].seq);
            assert_eq!(scanned(&path), last[0].seq);
        }
        let mut file = fs::OpenOptions::new().append(true).open(&path).expect("opens");
        for tail in [vec![b'x'; 5_000_000], vec![b'\n']] {
            file.write_all(&tail).expect("writes");
            assert_eq!(newest_seq(&path).expect("reads"), 3, "{length}");
        }
    }
}

/// More zeros than a test has time to read.
#[test]
fn newest_events_are_found_without_a_full_read() {
    let (_dir, path) = place();
    drop(three(&path));
    let lines = fs::read(&path).expect("reads");
    let mut file = fs::File::create(&path).expect("opens");
    file.seek(SeekFrom::Start(1 << 40)).expect("seeks");
    file.write_all(&[b"\n", &lines[..]].concat()).expect("writes");
    assert_eq!(newest_seq(&path).expect("reads"), 3);
}

#[test]
fn tail_seeks_a_seq_in_a_long_log() {
    const LAST: u64 = 4000;
    let (_dir, path) = place();
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    let entries: Vec<_> = (1..=LAST)
        .map(|n| {
            entry(&format!("{n}{}", "x".repeat((n * n % 997) as usize)), n % 3 == 1 && n < LAST)
        })
        .collect();
    log.append(&entries, at(1)).expect("appends");
    let numbers = |mut reader: Reader| -> Vec<u64> {
        std::iter::from_fn(|| reader.next_line().expect("reads").map(|line| line.record.seq))
            .collect()
    };
    let ends_of = |from| numbers(Reader::follow(&path, Start::Seq(from)).expect("opens"));
    for from in (0..LAST + 5).step_by(61).chain(LAST - 5..LAST + 5) {
        assert_eq!(ends_of(from), (from.max(1)..=LAST).collect::<Vec<_>>(), "from {from}");
    }
    // A reader that starts at the end does not read the beginning; one that reads the beginning
    // gets an error.
    let mut bytes = fs::read(&path).expect("reads");
    bytes[30] ^= 1;
    fs::write(&path, &bytes).expect("writes");
    assert_eq!(ends_of(LAST), [LAST]);
    assert_eq!(numbers(Reader::open(&path, Start::Seq(LAST)).expect("opens")), [LAST]);
    for mut reader in [Reader::open(&path, Start::Beginning), Reader::follow(&path, Start::Seq(2))]
        .map(Result::unwrap)
    {
        assert_eq!(reader.next_line().expect_err("damaged").code(), "E_EVENTS_CORRUPT");
    }
    // Without a mark every record may be returned.
    fs::remove_file(path.with_extension("mark")).expect("removes");
    assert_eq!(ends_of(LAST), [LAST]);
}
