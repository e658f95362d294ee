//! Encodes and decodes one line of `events.jsonl`.
//!
//! Format: `{"crc":"xxxxxxxx",` + rest + newline. The CRC-32C covers the rest, so a reader needs no
//! JSON parser to distinguish a whole line from a torn one.

use jiff::Timestamp;
use muleteer_model::event::{Entry, Event, Record, VERSION};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};

/// The longest line, newline included. A reader buffers no more, because a file of garbage without
/// newlines must not fill the memory.
pub const MAX_LINE: usize = 4 * 1024 * 1024;

const HEAD: &[u8] = b"{\"crc\":\"";
const CRC_END: usize = HEAD.len() + 8;
const REST: usize = CRC_END + 2;

/// Why bytes are not a record.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Not the bytes that were written: torn or damaged.
    Garbled(String),
    /// The line is whole but cannot be understood. It must never be cut.
    Unreadable(serde_json::Error),
    Version(u64),
    /// An event that this version does not know and must not skip when folding.
    Unknown(String),
}

/// Why an entry cannot be written: it would not be read back as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error(transparent)]
    Json(serde_json::Error),
    #[error("it is {length} bytes long, and {MAX_LINE} is the limit")]
    TooLong { length: usize },
    #[error("it cannot be read back: {0}")]
    NotReadable(#[source] serde_json::Error),
    #[error("its kind is unknown")]
    UnknownKind,
    #[error("it changes when read back")]
    Changed,
}

/// The fields of a line; `ts` always has milliseconds.
#[derive(Serialize)]
struct Out<'a> {
    v: u16,
    seq: u64,
    ts: String,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// The fields that every version's line has, and whether an unknown event may be skipped.
#[derive(Deserialize)]
struct Outline {
    v: u64,
    #[serde(default)]
    event: String,
    #[serde(default)]
    info: bool,
}

/// Appends the line of `entry` to `out` and returns the record as read back from that line. An
/// entry that cannot be read back (a NaN cost becomes `null`) must not reach the file, where it
/// would make every later start fail.
pub(crate) fn encode(
    entry: &Entry,
    seq: u64,
    ts: Timestamp,
    out: &mut Vec<u8>,
) -> Result<Record, EncodeError> {
    let ts = format!("{ts:.3}");
    let json =
        serde_json::to_vec(&Out { v: VERSION, seq, ts, entry }).map_err(EncodeError::Json)?;
    let rest = json.get(1..).unwrap_or_default();
    let begin = out.len();
    out.extend_from_slice(HEAD);
    out.extend_from_slice(format!("{:08x}\",", crc32c::crc32c(rest)).as_bytes());
    out.extend_from_slice(rest);
    let checked = check(entry, &out[begin..]);
    out.push(b'\n');
    checked
}

fn check(entry: &Entry, line: &[u8]) -> Result<Record, EncodeError> {
    if line.len() >= MAX_LINE {
        return Err(EncodeError::TooLong { length: line.len() });
    }
    let record: Record = serde_json::from_slice(line).map_err(EncodeError::NotReadable)?;
    if record.entry.event == Event::Unknown {
        return Err(EncodeError::UnknownKind);
    }
    let read = &record.entry;
    if (&read.id, &read.dispatch_id, read.at, read.more)
        != (&entry.id, &entry.dispatch_id, entry.at, entry.more)
    {
        return Err(EncodeError::Changed);
    }
    Ok(record)
}

/// Decodes one line, without its newline.
pub(crate) fn decode(line: &[u8]) -> Result<Record, Fault> {
    let rest = checksummed(line).map_err(|why| Fault::Garbled(why.into()))?;
    debug_assert!(!rest.is_empty());
    match serde_json::from_slice::<Record>(line) {
        Ok(record) if record.v <= VERSION => Ok(record),
        Ok(record) => Err(Fault::Version(record.v.into())),
        Err(error) => match serde_json::from_slice::<Outline>(line) {
            Ok(outline) if outline.v > u64::from(VERSION) => Err(Fault::Version(outline.v)),
            _ => Err(Fault::Unreadable(error)),
        },
    }
}

/// Like [`decode`], but rejects an unknown event unless its line has `"info":true`.
pub(crate) fn decode_for_fold(line: &[u8]) -> Result<Record, Fault> {
    let record = decode(line)?;
    if record.entry.event == Event::Unknown {
        let outline: Outline = serde_json::from_slice(line).map_err(Fault::Unreadable)?;
        if !outline.info {
            return Err(Fault::Unknown(outline.event));
        }
    }
    Ok(record)
}

/// Returns the bytes that the checksum covers, if it is right.
fn checksummed(line: &[u8]) -> Result<&[u8], &'static str> {
    if line.len() <= REST || !line.starts_with(HEAD) || &line[CRC_END..REST] != b"\"," {
        return Err("it does not begin with a checksum");
    }
    let hex = &line[HEAD.len()..CRC_END];
    // The digits must be exactly as written: `from_str_radix` alone also accepts capitals and a
    // sign.
    if !hex.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("it does not begin with a checksum");
    }
    let stored = std::str::from_utf8(hex).ok().and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let rest = &line[REST..];
    if stored == Some(crc32c::crc32c(rest)) { Ok(rest) } else { Err("its checksum is wrong") }
}

/// Returns the checksum that a line begins with, if it is right.
pub(crate) fn checksum_of(line: &[u8]) -> Option<&str> {
    checksummed(line).ok()?;
    std::str::from_utf8(line.get(HEAD.len()..CRC_END)?).ok()
}

/// Returns a line of an events file, whose text was escaped, with the checksum of what it holds
/// now. A text that is no such line is returned unchanged.
pub fn sealed_again(text: String) -> String {
    let rest = |text: &str| {
        let hex = text.strip_prefix("{\"crc\":\"")?;
        let rest = hex.split_at_checked(8)?.1.strip_prefix("\",")?;
        let sum = crc32c::crc32c(rest.trim_end_matches('\n').as_bytes());
        Some(format!("{{\"crc\":\"{sum:08x}\",{rest}"))
    };
    rest(&text).unwrap_or(text)
}

/// A position in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cursor {
    pub offset: u64,
    /// The seq of the last returned record; 0 before the first.
    pub seq: u64,
}

pub(crate) struct LineRead {
    /// Includes the newline; 0 at the end of the file.
    pub bytes: u64,
    pub newline: bool,
    /// The buffer has the whole line, without its newline.
    pub whole: bool,
}

/// Reads one line of any length and keeps at most [`MAX_LINE`] bytes of it.
pub(crate) fn read_line(reader: &mut impl BufRead, buffer: &mut Vec<u8>) -> io::Result<LineRead> {
    buffer.clear();
    let mut bytes = 0u64;
    loop {
        let chunk = match reader.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        if chunk.is_empty() {
            return Ok(LineRead { bytes, newline: false, whole: false });
        }
        let end = chunk.iter().position(|b| *b == b'\n');
        let take = end.map_or(chunk.len(), |at| at + 1);
        bytes += take as u64;
        if bytes <= MAX_LINE as u64 {
            buffer.extend_from_slice(&chunk[..end.unwrap_or(take)]);
        }
        reader.consume(take);
        if end.is_some() {
            return Ok(LineRead { bytes, newline: true, whole: bytes <= MAX_LINE as u64 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufReader, Read};

    fn fault(what: &str) -> Entry {
        let event = Event::Fault { what: what.into(), message: String::new() };
        Entry { id: "e1".into(), dispatch_id: None, at: None, more: false, event }
    }

    fn line_of(rest: &str) -> Vec<u8> {
        format!("{{\"crc\":\"{:08x}\",{rest}", crc32c::crc32c(rest.as_bytes())).into_bytes()
    }

    #[test]
    fn event_line_has_its_documented_start_and_round_trips() {
        let ts = Timestamp::from_second(1_700_000_000).expect("a time");
        let mut out = vec![];
        let record = encode(&fault("x"), 7, ts, &mut out).expect("encodes");
        let text = String::from_utf8(out.clone()).expect("utf-8");
        assert_eq!(
            &text[18..],
            "\"v\":1,\"seq\":7,\"ts\":\"2023-11-14T22:13:20.000Z\",\"id\":\"e1\",\"event\":\"fault\",\"what\":\"x\",\"message\":\"\"}\n"
        );
        assert_eq!(decode(&out[..out.len() - 1]).expect("decodes"), record);
    }

    #[test]
    fn event_that_cannot_be_read_back_is_rejected() {
        let usage = Event::UsageRecorded {
            model: "m".into(),
            input: 0,
            output: 0,
            cache_read: 0,
            cache_write: 0,
            cost_usd: f64::NAN,
            cumulative: false,
            total_usd: None,
        };
        for event in [
            usage,
            Event::Unknown,
            Event::Fault { what: "x".repeat(MAX_LINE), message: String::new() },
        ] {
            let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
            assert!(encode(&entry, 1, Timestamp::UNIX_EPOCH, &mut vec![]).is_err());
        }
    }

    #[test]
    fn line_of_a_newer_version_is_rejected() {
        let odd = line_of("\"v\":2,\"seq\":\"no longer a number\"}");
        assert!(matches!(decode(&odd), Err(Fault::Version(2))));
        let alike = line_of(
            "\"v\":70000,\"seq\":1,\"ts\":\"2023-11-14T22:13:20Z\",\"id\":\"e\",\"event\":\"fault\"}",
        );
        assert!(matches!(decode(&alike), Err(Fault::Version(70000))));
        assert!(matches!(decode(&line_of("\"v\":1}")), Err(Fault::Unreadable(_))));
    }

    #[test]
    fn an_unknown_event_is_folded_only_if_informational() {
        let rest = "\"v\":1,\"seq\":1,\"ts\":\"2023-11-14T22:13:20Z\",\"id\":\"e\",\"event\":\"from_the_future\",\"x\":[1]";
        let plain = line_of(&format!("{rest}}}"));
        assert_eq!(decode(&plain).expect("viewers read it").entry.event, Event::Unknown);
        assert!(matches!(
            decode_for_fold(&plain),
            Err(Fault::Unknown(name)) if name == "from_the_future"
        ));
        assert!(decode_for_fold(&line_of(&format!("{rest},\"info\":true}}"))).is_ok());
    }

    /// Returns one prepared answer per read.
    struct Answers(Vec<Result<&'static [u8], io::ErrorKind>>);

    impl Read for Answers {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let bytes = self.0.remove(0)?;
            into[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn interrupted_read_is_retried_and_other_errors_are_returned() {
        use io::ErrorKind::{Interrupted, InvalidData};
        let answers = vec![
            Err(Interrupted),
            Ok(&b"on"[..]),
            Err(Interrupted),
            Ok(&b"e\ntw"[..]),
            Err(InvalidData),
        ];
        let (mut reader, mut line) = (BufReader::new(Answers(answers)), vec![]);
        let read = read_line(&mut reader, &mut line).expect("a line");
        assert_eq!((line.as_slice(), read.bytes, read.whole), (&b"one"[..], 4, true));
        assert_eq!(
            read_line(&mut reader, &mut line).map(|read| read.bytes).map_err(|e| e.kind()),
            Err(InvalidData)
        );
    }

    #[test]
    fn line_is_stored_up_to_the_limit_and_counted_beyond() {
        for (length, whole) in
            [(MAX_LINE - 1, true), (MAX_LINE, true), (MAX_LINE + 1, false), (3 * MAX_LINE, false)]
        {
            let mut text = vec![b'x'; length - 1];
            text.extend_from_slice(b"\nnext");
            let (mut reader, mut line) = (BufReader::new(text.as_slice()), vec![]);
            let read = read_line(&mut reader, &mut line).expect("a line");
            assert_eq!((read.bytes, read.newline, read.whole), (length as u64, true, whole));
            assert!(
                line.len() <= MAX_LINE && (!whole || line.len() == length - 1),
                "{}",
                line.len()
            );
            let rest = read_line(&mut reader, &mut line).expect("the rest");
            assert_eq!((line.as_slice(), rest.newline), (&b"next"[..], false));
        }
    }
}
