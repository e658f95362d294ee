//! Reads `events.jsonl` by the contract and without the product's code, so that a mistake in the
//! product's reader cannot hide one in its writer.

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns the whole lines of the log: of its segments, in the order of their names, and of the
/// file. A torn last line does not count as a line. After a kill two files may hold the same lines,
/// which count once.
pub fn lines(path: &Path) -> Vec<String> {
    let mut all: Vec<String> = vec![];
    for text in texts(path) {
        let text = String::from_utf8_lossy(&text);
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let newest = all.last().and_then(|line| seq_of(line)).unwrap_or(0);
        let is_known = |line: &&str| seq_of(line).is_some_and(|seq| seq <= newest);
        all.extend(whole.lines().skip_while(is_known).map(str::to_string));
    }
    all
}

/// Returns the texts of all files of the log. A daemon may close or compress one meanwhile: then
/// they are read again.
fn texts(path: &Path) -> Vec<Vec<u8>> {
    loop {
        let files = segments(path);
        let mut texts: Vec<Vec<u8>> = files.iter().filter_map(|file| text_of(file)).collect();
        texts.push(std::fs::read(path).unwrap_or_default());
        if texts.len() == files.len() + 1 && files == segments(path) {
            return texts;
        }
    }
}

fn seq_of(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line).ok()?["seq"].as_u64()
}

/// The name of the file that has what is left of a removed beginning.
const REMNANT: &str = "begin.jsonl.zst";

/// Returns the segments `events/*.jsonl` and `events/*.jsonl.zst`. The rest of a removed
/// beginning comes first.
fn segments(log: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(log.with_extension(""));
    let paths = folder.into_iter().flatten().flatten().map(|entry| entry.path());
    let is_ours =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] != b'.');
    let mut files: Vec<_> = paths.filter(is_ours).collect();
    files.sort_by_key(|path| (!path.ends_with(REMNANT), path.clone()));
    files
}

/// Returns the seq through which events were removed; 0 if none were.
fn removed_through(log: &Path) -> u64 {
    let Ok(bytes) = std::fs::read(log.with_extension("").join(REMNANT)) else { return 0 };
    let text = zstd::decode_all(&bytes[..]).expect("it is whole");
    let head = text.split(|byte| *byte == b'\n').next().expect("a header");
    let head: Value = serde_json::from_slice(head).expect("a header");
    head["through"].as_u64().expect("a seq")
}

/// Returns the text of a segment; `None` if it is gone.
fn text_of(segment: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(segment).ok()?;
    if segment.extension().is_none_or(|suffix| suffix != "zst") {
        return Some(bytes);
    }
    let text = zstd::decode_all(&bytes[..]).expect("it is whole");
    let header = text.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    Some(if segment.ends_with(REMNANT) { text[header..].to_vec() } else { text })
}

/// Returns the records of the file.
pub fn read(path: &Path) -> Vec<Value> {
    lines(path).iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Checks every line's checksum and version, that `seq` counts 1, 2, 3 without a gap but for
/// removed events, and that no event id occurs twice.
///
/// # Panics
/// When a check fails; the message names the line.
#[track_caller]
pub fn check(path: &Path) {
    let (mut ids, removed, mut last) = (BTreeSet::new(), removed_through(path), 0);
    for (at, line) in lines(path).iter().enumerate() {
        let record = checked(line)
            .unwrap_or_else(|fault| panic!("line {} of events.jsonl: {fault}\n{line}", at + 1));
        assert_eq!(record["v"], 1, "line {}: the version", at + 1);
        let seq = record["seq"].as_u64().unwrap_or_default();
        let wanted = if seq <= removed { seq.max(last + 1) } else { last.max(removed) + 1 };
        assert_eq!(seq, wanted, "line {}: a gap or a repeat in `seq`", at + 1);
        last = seq;
        assert!(
            record["ts"].is_string() && record["event"].is_string(),
            "line {}: no ts or event",
            at + 1
        );
        if let Some(id) = record["id"].as_str() {
            assert!(ids.insert(id.to_string()), "line {}: event id {id} stands twice", at + 1);
        }
    }
}

fn checked(line: &str) -> Result<Value, String> {
    let rest = line.strip_prefix("{\"crc\":\"").ok_or("does not begin with \"crc\"")?;
    let (sum, rest) = rest.split_once("\",").ok_or("no end of \"crc\"")?;
    let wanted = u32::from_str_radix(sum, 16).map_err(|_| "\"crc\" is no hex number")?;
    let found = crc32c::crc32c(rest.as_bytes());
    if wanted != found {
        return Err(format!("checksum {found:08x}, but the line says {sum}"));
    }
    serde_json::from_str(line).map_err(|error| error.to_string())
}

/// Checks that all lines recorded `before` a crash are unchanged at the beginning of the file.
///
/// # Panics
/// When a line was lost or changed; the message names the first one.
#[track_caller]
pub fn check_nothing_lost(before: &[String], path: &Path) {
    let now = lines(path);
    for (at, line) in before.iter().enumerate() {
        let here = now.get(at).map_or("nothing", String::as_str);
        // A torn write can end in a newline of its own; only valid lines had been recorded.
        if checked(line).is_ok() {
            assert_eq!(line, here, "line {} of events.jsonl was lost or changed", at + 1);
        }
    }
}
