//! Finds the objects of a line that holds something else beside them.
//!
//! A program that redraws its progress ends it with `\r`; a shell resets colours with an escape
//! sequence; two processes write to one pipe without a newline between. Each of these puts text in
//! front of an object, or two objects on one line. Read as one document, such a line loses a
//! `failed`, or the end of a turn that is then waited for without end.

use muleteer_model::text::foreign_json::{Document, Reader};
use serde_json::Value;

/// Parts of one line that are read one by one. An agent may print `{}` without end.
const PARTS: usize = 256;

/// A byte order mark.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// What stands in front of an object on its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing, another object, or what ends with `\r` or an escape sequence: as good as a line's
    /// beginning.
    Nothing,
    /// Other text: a log line may quote an object.
    Text,
}

/// One object of a line, or the text between two of them.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub bytes: &'a [u8],
    /// `None` for text.
    pub document: Option<Document>,
    /// It is an object behind other text, which may quote it.
    pub is_quoted: bool,
}

/// The parts of a line that is no JSON document. `None` where it is one part only: nothing in it is
/// an object that `means` knows, or it is one damaged object.
pub(crate) fn split<'a>(
    line: &'a [u8],
    means: &dyn Fn(&Value, Before) -> bool,
) -> Option<Vec<Part<'a>>> {
    let mut parts = vec![];
    // Where the text that belongs to no part yet begins, and where the last object ends.
    let (mut text, mut last) = (0, 0);
    while parts.len() < PARTS
        && let Some(begin) = next_object(line, last)
    {
        let before = if is_apart(&line[last..begin]) { Before::Nothing } else { Before::Text };
        let mut reader = Reader::whole();
        let mut end = begin + reader.push_first(&line[begin..]);
        let document = reader.finish();
        let is_damaged = document.damage.is_some();
        // Its fault may be anywhere in what follows. So may that of an object whose end is no end.
        let is_unclear =
            if is_damaged { begin == 0 || before == Before::Text } else { goes_on(&line[end..]) };
        if is_unclear {
            break;
        }
        if is_damaged {
            end = line.len();
        }
        last = end;
        if means(&document.value, before) {
            push_text(&mut parts, &line[text..begin]);
            let is_quoted = before == Before::Text;
            parts.push(Part { bytes: &line[begin..end], document: Some(document), is_quoted });
            text = end;
        }
    }
    if parts.is_empty() {
        return None;
    }
    push_text(&mut parts, &line[text..]);
    Some(parts)
}

/// Where the next object begins that has a member. A brace of prose or of code is seldom followed
/// by a quote.
pub(crate) fn next_object(line: &[u8], from: usize) -> Option<usize> {
    let after = &line[from..];
    let is_object = |at: &usize| after[at + 1..].trim_ascii_start().first() == Some(&b'"');
    memchr::memchr_iter(b'{', after).find(is_object).map(|at| from + at)
}

fn push_text<'a>(parts: &mut Vec<Part<'a>>, text: &'a [u8]) {
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if !is_noise(text) {
        parts.push(Part { bytes: text, document: None, is_quoted: false });
    }
}

/// Whether an object that is complete is followed by what would be inside of it, had it not ended
/// too early.
fn goes_on(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start().first(), Some(b',' | b':' | b'"' | b'}' | b']'))
}

/// Whether what follows this text stands at a line's beginning, as somebody at a screen sees it.
fn is_apart(before: &[u8]) -> bool {
    let text = before.trim_ascii_end();
    if text.is_empty() || before[text.len()..].contains(&b'\r') || text.ends_with(MARK) {
        return true;
    }
    let is_control = text.last().is_some_and(|byte| *byte < b' ');
    let escape = memchr::memrchr(0x1b, text);
    is_control || escape.is_some_and(|at| escape_sequence(&text[at..]) == Some(text.len() - at))
}

/// White space, control characters and escape sequences, which say nothing.
fn is_noise(text: &[u8]) -> bool {
    let mut rest = text.strip_prefix(MARK).unwrap_or(text);
    while let Some(first) = rest.first() {
        let length = match first {
            0x1b => escape_sequence(rest).unwrap_or(1),
            0..=b' ' => 1,
            _ => return false,
        };
        rest = &rest[length..];
    }
    true
}

/// The length of the terminal's escape sequence that `text` begins with (ECMA-48).
fn escape_sequence(text: &[u8]) -> Option<usize> {
    let kind = *text.get(1)?;
    let ends = |from: usize, is_end: &dyn Fn(&u8) -> bool| {
        let length = text[from..].iter().position(is_end)?;
        Some(from + length + 1)
    };
    match kind {
        b'[' => ends(2, &|byte| matches!(byte, 0x40..=0x7e)),
        // A title, say: to a bell, or to the `ESC \` that is the next sequence.
        b']' | b'P' | b'X' | b'^' | b'_' => ends(2, &|byte| matches!(byte, 0x07 | 0x1b))
            .map(|end| if text[end - 1] == 0x1b { end - 1 } else { end }),
        // A character set: one more byte.
        b' '..=b'/' => ends(2, &|byte| matches!(byte, 0x30..=0x7e)),
        _ => Some(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts as text: an object in `<>`, a damaged one with `!`.
    fn parts(line: &str) -> Option<String> {
        let is_known = |value: &Value, before| {
            value.get("k").is_some() && (before == Before::Nothing || value["k"] == 9)
        };
        let shown = |part: Part<'_>| {
            let text = String::from_utf8_lossy(part.bytes).into_owned();
            match part.document {
                None => text,
                Some(document) if document.damage.is_some() => format!("<{text}!>"),
                Some(_) => format!("<{text}>"),
            }
        };
        split(line.as_bytes(), &is_known)
            .map(|parts| parts.into_iter().map(shown).collect::<Vec<_>>().join("|"))
    }

    #[test]
    fn line_of_several_parts_is_split() {
        for (line, expected) in [
            ("50%\r99%\r{\"k\":1}", "50%\r99%|<{\"k\":1}>"),
            ("\u{1b}[0m{\"k\":1}\u{1b}[K\r", "<{\"k\":1}>"),
            ("\u{1b}]0;title\u{7}\u{1b}(B {\"k\":1}", "<{\"k\":1}>"),
            ("\u{1b}]0;title\u{1b}\\{\"k\":1}", "<{\"k\":1}>"),
            ("red\u{1b}[31;1m{\"k\":1}", "red\u{1b}[31;1m|<{\"k\":1}>"),
            ("{\"k\":1}{\"k\":2} {\"k\":3,", "<{\"k\":1}>|<{\"k\":2}>|<{\"k\":3,!>"),
            ("{\"a\":1}{\"k\":2}", "{\"a\":1}|<{\"k\":2}>"),
            ("{\"k\":1} and more", "<{\"k\":1}>| and more"),
            ("npm warn {\"k\":9}", "npm warn |<{\"k\":9}>"),
            ("set {a} {\"a\":1} \r {\"k\":1}", "set {a} {\"a\":1} \r |<{\"k\":1}>"),
            ("\u{8}\u{8}{\"k\":1}\0\0", "<{\"k\":1}>"),
        ] {
            assert_eq!(parts(line).as_deref(), Some(expected), "{line:?}");
        }
    }

    #[test]
    fn line_of_one_part_is_left_whole() {
        for line in [
            "",
            "plain { \"",
            "{\"a\":1}{\"b\":2}",
            "[{\"k\":1},{\"k\":2}]",
            "{\"k\":1},\"status\":\"failed\"}",
            "{\"k\":1,\"b\":tru}",
            "{\"k\":1,\"b\":\"says {\"k\":2}\"}",
            "log: {\"k\":1}",
            "log: {\"k\":9",
            "log: {\"text\":\"says {\"k\":9}\"}",
            "\u{1b}[",
        ] {
            assert_eq!(parts(line), None, "{line:?}");
        }
    }

    #[test]
    fn number_of_parts_is_limited() {
        let line = "{\"k\":1}".repeat(100_000);
        let parts = split(line.as_bytes(), &|_, _| true).expect("parts");
        assert_eq!(parts.len(), PARTS + 1);
        assert_eq!(parts.iter().map(|part| part.bytes.len()).sum::<usize>(), line.len());
    }
}
