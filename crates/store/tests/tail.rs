//! Following a log while it is written.

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event};
use muleteer_store::events::EventLog;
use muleteer_store::tail::{Reader, Start};
use std::fs;
use std::io::Write;
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
fn it_begins_where_asked_and_goes_on() {
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
fn unfinished_lines_and_batches_are_not_there_yet() {
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
fn following_waits_for_durable_and_survives_what_is_cut_back() {
    let (_dir, path) = place();
    drop(three(&path));
    let mark = path.with_extension("mark");
    let durable = fs::read(&mark).expect("reads");
    let before = fs::read(&path).expect("reads");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("lost", false)], at(40)).expect("appends");

    // As if it had been written and not yet synced.
    fs::write(&mark, &durable).expect("writes");
    let (mut follower, mut looker) = (
        Reader::follow(&path, Start::Beginning).expect("opens"),
        Reader::open(&path, Start::Beginning).expect("opens"),
    );
    assert_eq!((ids(&mut follower), ids(&mut looker)), ("abc".into(), "abclost".into()));

    // Cut back and written otherwise; the one that had seen it goes on by seq.
    fs::write(&path, &before).expect("writes");
    assert_eq!(ids(&mut looker), "");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
    log.append(&[entry("D", false), entry("E", false)], at(50)).expect("appends");
    assert_eq!(ids(&mut follower), "DE");
    assert_eq!(ids(&mut looker), "E");
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
        assert_eq!((error.code(), error.line()), ("E_EVENTS_CORRUPT", Some(2)));
    }
    bytes[second + 30] ^= 1;
    bytes.extend_from_slice(b"{\"crc\":\"garbage\n");
    fs::write(&path, &bytes).expect("writes");
    assert_eq!(ids(&mut reader), "bc");
    assert!(reader.next_line().expect("not an error").is_none());
}

#[test]
fn beside_a_busy_writer_every_record_comes_once_and_in_order() {
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
        [Reader::follow(&path, Start::Beginning), Reader::open(&path, Start::Beginning)].map(|r| r.expect("opens"));
    let mut seen = [0, 0];
    // Ends when the writer's last record has come; a lost one would fail the order before.
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
