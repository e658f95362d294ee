//! Cuts logs at every byte and flips every bit: the result is the durable records or a named error.
//! No record is lost, doubled or silently changed.

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_store::StoreError;
use muleteer_store::events::{EventLog, Recovery, fold_fleet, read};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const RECORDS: u64 = 6;

fn entries() -> Vec<Entry> {
    let entry = |n| Entry {
        id: format!("e{n}"),
        dispatch_id: None,
        at: None,
        // 3 and 4 are one batch.
        more: n == 3,
        event: Event::Fault { what: format!("what {n}"), message: "\"quoted\" äöü\n".into() },
    };
    (1..=RECORDS).map(entry).collect()
}

struct Log {
    _dir: tempfile::TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
    records: Vec<Record>,
}

fn log() -> Log {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("creates");
    let now = Timestamp::from_nanosecond(1_700_000_000_123_456_789).expect("a time");
    let records = log.append(&entries(), now).expect("appends");
    let bytes = fs::read(&path).expect("reads");
    Log { _dir: dir, path, bytes, records }
}

fn reopen(path: &Path, applied: u64) -> Result<(Vec<Record>, EventLog, Recovery), StoreError> {
    let mut records = vec![];
    let (log, recovery) = EventLog::open(path, applied, |record| records.push(record))?;
    Ok((records, log, recovery))
}

fn without_mark(log: &Log) {
    drop(fs::remove_file(log.path.with_extension("mark")));
}

#[test]
fn appended_events_round_trip() {
    let log = log();
    let (records, again, recovery) = reopen(&log.path, RECORDS).expect("opens");
    assert_eq!(records, log.records);
    assert_eq!(
        (recovery.last_seq, recovery.cut_bytes, recovery.len),
        (RECORDS, 0, log.bytes.len() as u64)
    );
    assert_eq!(again.last_seq(), RECORDS);
    assert_eq!(records[0].ts.to_string(), "2023-11-14T22:13:20.123Z", "cut to milliseconds");
}

#[test]
fn cut_at_every_byte_without_a_mark_the_whole_batches_before_it_are_left() {
    let log = log();
    for cut in 0..=log.bytes.len() {
        fs::write(&log.path, &log.bytes[..cut]).expect("writes");
        without_mark(&log);
        let lines = log.bytes[..cut].iter().filter(|b| **b == b'\n').count();
        let whole = if lines == 3 { 2 } else { lines };

        let mut seen = 0;
        let looked = read(&log.path, |_| seen += 1).expect("reads");
        assert_eq!(
            (seen, fs::read(&log.path).expect("reads").len()),
            (whole, cut),
            "looking changes nothing"
        );

        let (records, mut open, recovery) = reopen(&log.path, 0).expect("opens");
        assert_eq!(records, log.records[..whole], "cut at {cut}");
        assert_eq!((recovery.cut_bytes, &recovery.cut_why), (looked.cut_bytes, &looked.cut_why));
        assert_eq!(recovery.len + recovery.cut_bytes, cut as u64);
        // The line that is torn, or missing from a batch.
        let whole_lines = log.bytes[..cut].ends_with(b"\n");
        let place = (recovery.cut_bytes > 0).then(|| format!("line {}: ", lines + 1));
        assert_eq!(recovery.cut_why.is_some(), place.is_some(), "cut at {cut}");
        let why = recovery.cut_why.unwrap_or_default();
        assert!(why.starts_with(&place.unwrap_or_default()), "cut at {cut}: {why}");
        assert_eq!(
            why.contains("the batch of 1 lines before it"),
            lines == 3 && whole_lines,
            "cut at {cut}: {why}"
        );

        // Later records do not continue the torn line. (Not at each cut, because it takes three
        // fsyncs.)
        if cut % 5 > 0 {
            continue;
        }
        open.append(&entries(), Timestamp::UNIX_EPOCH).expect("appends");
        let (records, ..) = reopen(&log.path, 0).expect("opens");
        assert_eq!(records.len(), whole + RECORDS as usize);
    }
}

#[test]
fn cut_at_any_byte_with_durable_records_missing_is_a_named_error_and_changes_nothing() {
    let log = log();
    let mark = log.path.with_extension("mark");
    let marked = fs::read(&mark).expect("reads");
    for cut in 0..log.bytes.len() {
        for applied in [0, RECORDS] {
            fs::write(&log.path, &log.bytes[..cut]).expect("writes");
            without_mark(&log);
            if applied == 0 {
                fs::write(&mark, &marked).expect("writes");
            }
            let error = reopen(&log.path, applied).expect_err("records are missing");
            let codes = ["E_EVENTS_CORRUPT", "E_EVENTS_SHORT", "E_DB_AHEAD"];
            assert!(codes.contains(&error.code().as_str()), "{error}");
            assert_eq!(fs::read(&log.path).expect("reads"), &log.bytes[..cut]);
        }
    }
    fs::remove_file(&log.path).expect("removes");
    assert_eq!(reopen(&log.path, RECORDS).expect_err("it no longer exists").code(), "E_DB_AHEAD");
    fs::write(&mark, &marked).expect("writes");
    assert_eq!(reopen(&log.path, 0).expect_err("it no longer exists").code(), "E_EVENTS_SHORT");
    assert_eq!(fold_fleet(&log.path).expect_err("it no longer exists").code(), "E_EVENTS_SHORT");
    assert!(!log.path.exists());
}

#[test]
fn a_flipped_bit_is_a_named_error_or_a_cut_tail_and_never_wrong_data() {
    let (marked, unmarked) = (log(), log());
    without_mark(&unmarked);
    // In place, because replacing a whole file thousands of times is slow on some file systems.
    let open = |log: &Log| fs::OpenOptions::new().write(true).open(&log.path).expect("opens");
    let files = [open(&marked), open(&unmarked)];
    let put = |at: usize, byte: u8| {
        files.iter().for_each(|file| file.write_all_at(&[byte], at as u64).expect("writes"));
    };
    for (at, byte) in marked.bytes.iter().enumerate() {
        for bit in 0..8 {
            put(at, byte ^ (1 << bit));
            let error = read(&marked.path, |_| {}).expect_err("it was durable");
            assert!(
                ["E_EVENTS_CORRUPT", "E_EVENTS_SHORT"].contains(&error.code().as_str()),
                "{error}"
            );

            let mut records = vec![];
            match read(&unmarked.path, |record| records.push(record)) {
                Err(error) => {
                    assert_eq!(error.code(), "E_EVENTS_CORRUPT", "byte {at} bit {bit}: {error}")
                }
                Ok(found) => {
                    assert!(found.cut_bytes > 0);
                    assert_eq!(records, unmarked.records[..records.len()]);
                    assert!(
                        records.len() >= RECORDS as usize - 2,
                        "byte {at} bit {bit}: {found:?}"
                    );
                }
            }
        }
        put(at, *byte);
    }
}

#[test]
fn damaged_durable_line_has_its_place_and_a_hint() {
    let log = log();
    let mut start = 0;
    for (number, line) in (1..).zip(log.bytes.split_inclusive(|b| *b == b'\n')) {
        let mut bytes = log.bytes.clone();
        bytes[start + 40] ^= 1;
        // Good lines may follow, or it is the last durable one.
        for end in [bytes.len(), start + line.len()] {
            fs::write(&log.path, &bytes[..end]).expect("writes");
            let error = reopen(&log.path, 0).expect_err("damaged");
            assert_eq!(
                (error.code().as_str(), error.file(), error.line()),
                ("E_EVENTS_CORRUPT", log.path.as_path(), Some(number)),
            );
            assert!(
                error.hint().contains(&format!("truncate -s {start}`")),
                "{start}: {}",
                error.hint()
            );
            assert_eq!(fs::read(&log.path).expect("reads"), bytes[..end]);
        }
        start += line.len();
    }
}

#[test]
fn complete_damaged_last_line_is_cut_and_saved() {
    let log = log();
    without_mark(&log);
    // However long the garbage is, within reason.
    let garbage = [b"garbage\n".repeat(300_000), vec![0; 4]].concat();
    fs::write(&log.path, [&log.bytes, &garbage[..]].concat()).expect("writes");
    let (records, _, recovery) = reopen(&log.path, 0).expect("opens");
    assert_eq!((records.len() as u64, recovery.cut_bytes), (RECORDS, garbage.len() as u64));
    assert_eq!(recovery.records, RECORDS);
    let why = recovery.cut_why.expect("a reason");
    assert!(why.starts_with(&format!("line {}: ", RECORDS + 1)), "{why}");
    assert!(
        fs::read(recovery.cut_kept.expect("kept")).expect("reads") == garbage,
        "it is kept as it was"
    );
    assert_eq!(fs::read(&log.path).expect("reads"), log.bytes);
}

#[test]
fn an_endless_line_fills_no_memory_and_is_cut() {
    let log = log();
    let mut bytes = log.bytes.clone();
    bytes.resize(bytes.len() + 9 * 1024 * 1024, b'x');
    fs::write(&log.path, &bytes).expect("writes");
    let (records, _, recovery) = reopen(&log.path, 0).expect("opens");
    assert_eq!((records.len() as u64, recovery.cut_bytes), (RECORDS, 9 * 1024 * 1024));
}

#[test]
fn missing_and_doubled_lines_are_named() {
    let log = log();
    let lines: Vec<&[u8]> = log.bytes.split_inclusive(|b| *b == b'\n').collect();
    for (order, wanted, line) in
        // The last one is within a batch.
        [(vec![0, 2, 3, 4, 5], 2, 2), (vec![0, 1, 1, 2], 3, 3), (vec![0, 1, 2, 4], 4, 4)]
    {
        without_mark(&log);
        fs::write(&log.path, order.iter().flat_map(|n| lines[*n].to_vec()).collect::<Vec<_>>())
            .expect("writes");
        let error = reopen(&log.path, 0).expect_err("a gap");
        let at: usize = order[..line as usize - 1].iter().map(|n| lines[*n].len()).sum();
        let StoreError::Gap { wanted: w, line: l, offset, .. } = error else { panic!("{error}") };
        assert_eq!((w, l, offset), (wanted, line, at as u64), "{order:?}");
    }
    // Records before the file are in segments.
    without_mark(&log);
    fs::write(&log.path, lines[1]).expect("writes");
    let error = reopen(&log.path, 0).expect_err("a gap");
    assert!(matches!(error, StoreError::SegmentMissing { wanted: 1, found: 2, .. }), "{error}");
}

#[test]
fn lines_of_the_future_are_refused_and_never_cut() {
    let line =
        |rest: &str| format!("{{\"crc\":\"{:08x}\",{rest}\n", crc32c::crc32c(rest.as_bytes()));
    let log = log();
    let head = "\"seq\":7,\"ts\":\"2030-01-01T00:00:00.000Z\",\"id\":\"f\",\"event\":\"from_the_future\",\"x\":1";
    for (rest, code) in [
        (format!("\"v\":2,{head}}}"), "E_EVENTS_VERSION"),
        (format!("\"v\":1,{head}}}"), "E_EVENTS_UNKNOWN"),
        ("\"v\":1,\"seq\":7}".into(), "E_EVENTS_CORRUPT"),
    ] {
        let bytes = [log.bytes.clone(), line(&rest).into_bytes()].concat();
        fs::write(&log.path, &bytes).expect("writes");
        let error = reopen(&log.path, 0).expect_err("not understood");
        assert_eq!((error.code().as_str(), error.line()), (code, Some(7)), "{error}");
        assert_eq!(fs::read(&log.path).expect("reads"), bytes);
    }
    let info = line(&format!("\"v\":1,{head},\"info\":true}}"));
    fs::write(&log.path, [log.bytes.clone(), info.into_bytes()].concat()).expect("writes");
    let (fleet, recovery) = fold_fleet(&log.path).expect("folds");
    assert_eq!((fleet.seq, recovery.last_seq), (7, 7));
}

#[test]
fn a_damaged_mark_harms_nothing() {
    let log = log();
    let mark = log.path.with_extension("mark");
    let marked = fs::read(&mark).expect("reads");
    for at in 0..marked.len() {
        let mut bad = marked.clone();
        bad[at] ^= 4;
        fs::write(&mark, &bad).expect("writes");
        reopen(&log.path, 0).expect("opens");
        assert_eq!(fs::read(&mark).expect("reads"), marked, "and is mended");
    }
}
