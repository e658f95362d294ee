//! Oracles for our own files after any damage: reading ends, opening changes no valid part, and a
//! second opening changes nothing more.

use muleteer_shim::control::Control;
use muleteer_shim::launch::Launch;
use muleteer_shim::record::{Cursor, segment_path};
use muleteer_shim::spool::{Reader, State};
use muleteer_store::events::{self, EventLog};
use std::fs;

pub fn event_log(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("events.jsonl");
    fs::write(&path, data).expect("writes");
    let mut read = vec![];
    let viewed = events::read(&path, |record| read.push(record.seq));
    assert_eq!(fs::read(&path).expect("reads"), data, "reading changes nothing");
    let mut opened = vec![];
    match EventLog::open(&path, 0, |record| opened.push(record.seq)) {
        Ok((log, recovery)) => {
            drop(log);
            assert!(viewed.is_ok(), "what opens can be viewed");
            assert_eq!(read, opened);
            assert!(opened.windows(2).all(|pair| pair[0] + 1 == pair[1]), "a gap: {opened:?}");
            let kept = fs::read(&path).expect("reads");
            assert!(data.starts_with(&kept), "only the end is cut");
            assert_eq!(
                (kept.len() as u64, data.len() as u64),
                (recovery.len, recovery.len + recovery.cut_bytes)
            );
            let mut again = vec![];
            let (_, second) =
                EventLog::open(&path, 0, |record| again.push(record.seq)).expect("opens again");
            assert_eq!((again, second.cut_bytes), (opened, 0));
        }
        Err(_) => {
            assert_eq!(fs::read(&path).expect("reads"), data, "a refused file stays as it is")
        }
    }
}

pub fn spool(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let start = Cursor::start_of(1);
    fs::write(segment_path(dir.path(), start), data).expect("writes");
    let mut reader = Reader::open(dir.path());
    let mut from = Cursor::default();
    // Each batch advances or is the last: a reader that does not advance would spin.
    for _ in 0..data.len() + 2 {
        match reader.read(from, 256) {
            Ok(batch) => {
                assert!(batch.next >= from, "back from {from:?} to {:?}", batch.next);
                for record in &batch.records {
                    assert!(record.bytes.len() <= data.len() && record.start < record.end);
                }
                if batch.state != State::More {
                    return;
                }
                assert!(batch.next > from, "more, and yet no step");
                from = batch.next;
            }
            Err(error) => match error.resume() {
                Some(next) => {
                    assert!(next > from, "an error that leads nowhere");
                    from = next;
                }
                None => return,
            },
        }
    }
    panic!("the reader never comes to an end");
}

pub fn control(data: &[u8]) {
    let control = Control::decode(data);
    let again = Control::decode(&control.encode());
    assert_eq!(format!("{control:?}"), format!("{again:?}"));
}

pub fn launch(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(Launch::path(dir.path(), 1), data).expect("writes");
    drop(Launch::read(dir.path(), 1));
    fs::write(dir.path().join("meta.json"), data).expect("writes");
    drop(muleteer_shim::meta::read(dir.path()));
    for kind in ["", "key ", "meta "] {
        fs::write(dir.path().join("lock"), [kind.as_bytes(), data].concat()).expect("writes");
        drop(muleteer_shim::start::read_key(dir.path()));
        drop(muleteer_shim::start::last_words(dir.path(), 1));
        drop(muleteer_shim::meta::read(dir.path()));
    }
    meta_after_damage(data);
}

/// A damaged line after a whole identity never hides it: at most it is a newer one, or of a newer
/// version, or JSON of another kind.
fn meta_after_damage(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let whole = concat!(
        "\nmeta {\"v\":1,\"epoch\":7,\"generation\":1,\"shim\":{\"pid\":2,\"start_time\":3},",
        "\"boot_id\":\"b\",\"pid_namespace\":4,\"nonce\":\"n\",\"started_ms\":5}\n"
    )
    .as_bytes();
    let is_json = |line: &str| serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok();
    let after = String::from_utf8_lossy(data);
    if after.lines().any(|line| line.strip_prefix("meta ").is_some_and(is_json)) {
        return;
    }
    let write = |rest: &[u8]| fs::write(dir.path().join("lock"), [whole, rest].concat());
    write(b"").expect("writes");
    let before = muleteer_shim::meta::read(dir.path()).expect("it is whole");
    write(after.as_bytes()).expect("writes");
    assert_eq!(muleteer_shim::meta::read(dir.path()).expect("it is whole still"), before);
}
