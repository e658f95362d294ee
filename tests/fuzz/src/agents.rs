//! Oracles for the output of agents: the parser never fails, never depends on the cuts between
//! bytes, accounts for every byte, and its events can be written and read again.

use muleteer_backends::Backend;
use muleteer_backends::Line;
use muleteer_backends::by_name;
use muleteer_model::agent::event::{TEXT_LIMIT, Timed};
use muleteer_model::text::foreign_json::{self, Reader};
use serde_json::Value;
use std::io::BufReader;

pub fn claude_code(data: &[u8]) {
    parser("claude-code", data);
}

pub fn acp(data: &[u8]) {
    parser("acp", data);
}

pub fn codex(data: &[u8]) {
    parser("codex", data);
}

pub fn subprocess(data: &[u8]) {
    parser("subprocess", data);
}

pub fn rehearsal(data: &[u8]) {
    parser("rehearsal", data);
}

/// Checks that well-formed JSON reads as `serde_json` reads it, that cuts change nothing, and that
/// every value can be written and read again.
pub fn foreign_json(data: &[u8]) {
    let whole = foreign_json::read(data);
    let size = usize::from(data.first().copied().unwrap_or(1)).clamp(1, 61);
    let mut reader = Reader::whole();
    data.chunks(size).for_each(|piece| reader.push(piece));
    assert_eq!(reader.finish(), whole, "cut into pieces of {size}");
    match serde_json::from_slice::<Value>(data) {
        Ok(value) => assert_eq!((&whole.value, whole.fault()), (&value, None)),
        Err(_) => assert!(whole.fault().is_some(), "a fault that is not told"),
    }
    let again: Value = serde_json::from_str(&whole.value.to_string()).expect("a value can be read");
    assert_eq!(again, whole.value, "it reads back as another one");
}

pub fn claude_transcript(data: &[u8]) {
    transcript("claude-code", data);
}

pub fn codex_transcript(data: &[u8]) {
    transcript("codex", data);
}

/// Checks that a transcript reads the same whatever pieces it comes in, and that an unfinished line
/// counts for nothing.
fn transcript(name: &str, data: &[u8]) {
    const KEY: &str = "00000000-0000-4000-8000-000000000001";
    let transcripts = by_name(name).expect("it is one of ours").transcripts().expect("it has them");
    let read = |bytes: &[u8], room: usize| {
        transcripts
            .read(&mut BufReader::with_capacity(room, bytes), KEY)
            .expect("memory can be read")
    };
    let whole = read(data, 1 << 16);
    assert_eq!(
        whole,
        read(data, usize::from(data.first().copied().unwrap_or(1)).clamp(1, 61)),
        "{name}"
    );
    if data.is_empty() || data.ends_with(b"\n") {
        let begun = [data, br#"{"type":"user","pro"#].concat();
        assert_eq!(whole, read(&begun, 1 << 16), "{name}: the beginning of a line was believed");
    }
}

fn parser(name: &str, data: &[u8]) {
    let backend = by_name(name).expect("it is one of ours");
    let whole = lines(backend, [data]);
    // The first byte chooses the cut, so that the fuzzer can choose it.
    let size = usize::from(data.first().copied().unwrap_or(1)).clamp(1, 61);
    assert_eq!(whole, lines(backend, data.chunks(size)), "{name}: cut into pieces of {size}");
    let mut before = 0;
    for line in &whole {
        assert!(
            line.consumed > before || line.consumed == data.len() as u64,
            "{name}: a line of no bytes"
        );
        assert!(line.consumed <= data.len() as u64, "{name}: more bytes than there were");
        before = line.consumed;
    }
    for event in whole.iter().flat_map(|line| &line.events) {
        let text = serde_json::to_string(event).expect("an event can be written");
        let again: Timed = serde_json::from_str(&text).expect("an event can be read");
        let once_more = serde_json::to_string(&again).expect("an event can be written");
        assert_eq!(text, once_more, "{name}: it reads back as another one");
        // A tool's input is kept whole; all other foreign texts are cut.
        if !text.contains("\"input\":") && !text.contains("\"structured\":") {
            assert!(text.len() <= 64 * TEXT_LIMIT, "{name}: an event of {} bytes", text.len());
        }
    }
}

fn lines<'a>(backend: &dyn Backend, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Line> {
    let mut parser = backend.parser();
    let mut lines: Vec<Line> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    lines.extend(parser.finish());
    lines
}
