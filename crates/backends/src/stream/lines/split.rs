//! Finds the JSON objects of a line that contains other text as well.
//!
//! A program that redraws its progress ends it with `\r`; a shell resets colours with an escape
//! sequence; two processes write to one pipe without a newline between. Each of these puts text in
//! front of an object, or two objects on one line. If such a line were parsed as one document, a
//! `failed` would be lost, or the end of a turn, for which the daemon would then wait for ever.

use muleteer_model::text::foreign_json::{Document, Reader};
use serde_json::Value;

/// The most parts of one line that are read separately. An agent may print `{}` without end.
const PARTS: usize = 256;

/// A byte order mark.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// The text in front of an object on its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// Nothing, another object, or text that ends with `\r` or an escape sequence. The object
    /// counts as if it began the line.
    Nothing,
    /// Other text, for example a log line, which may quote an object.
    Text,
}

/// One object of a line, or the text between two of them.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub bytes: &'a [u8],
    /// `None` for text.
    pub document: Option<Document>,
    /// The object follows other text, which may quote it.
    pub is_quoted: bool,
}

/// Splits a line that is not a JSON document into its parts. Returns `None` if it has one part
/// only: `means` knows no object in it, or it is one damaged object.
pub(crate) fn split<'a>(
    line: &'a [u8],
    means: &dyn Fn(&Value, Before) -> bool,
) -> Option<Vec<Part<'a>>> {
    let mut parts = vec![];
    // `text`: where text begins that belongs to no part yet. `last`: where the last object ends.
    let (mut text, mut last) = (0, 0);
    while parts.len() < PARTS
        && let Some(begin) = next_object(line, last)
    {
        let before = if is_apart(&line[last..begin]) { Before::Nothing } else { Before::Text };
        let mut reader = Reader::whole();
        let mut end = begin + reader.push_first(&line[begin..]);
        let document = reader.finish();
        let is_damaged = document.damage.is_some();
        // The fault may be anywhere in the text that follows, also if the object closed too early.
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

/// Returns where the next object with a member begins. The quote after the brace excludes most
/// braces of prose and code.
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

/// Whether the text after a complete object would belong inside it, so that the object closed too
/// early.
fn goes_on(rest: &[u8]) -> bool {
    matches!(rest.trim_ascii_start().first(), Some(b',' | b':' | b'"' | b'}' | b']'))
}

/// Whether a terminal would show the text after `before` at the beginning of a line.
fn is_apart(before: &[u8]) -> bool {
    let text = before.trim_ascii_end();
    if text.is_empty() || before[text.len()..].contains(&b'\r') || text.ends_with(MARK) {
        return true;
    }
    let is_control = text.last().is_some_and(|byte| *byte < b' ');
    let escape = memchr::memrchr(0x1b, text);
    is_control || escape.is_some_and(|at| escape_sequence(&text[at..]) == Some(text.len() - at))
}

/// Whether the text is only white space, control characters and escape sequences.
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

/// Returns the length of the terminal escape sequence with which `text` begins (ECMA-48).
fn escape_sequence(text: &[u8]) -> Option<usize> {
    let kind = *text.get(1)?;
    let ends = |from: usize, is_end: &dyn Fn(&u8) -> bool| {
        let length = text[from..].iter().position(is_end)?;
        Some(from + length + 1)
    };
    match kind {
        b'[' => ends(2, &|byte| matches!(byte, 0x40..=0x7e)),
        // For example a window title. It ends with a bell, or before the next sequence `ESC \`.
        b']' | b'P' | b'X' | b'^' | b'_' => ends(2, &|byte| matches!(byte, 0x07 | 0x1b))
            .map(|end| if text[end - 1] == 0x1b { end - 1 } else { end }),
        // A character set selection: one more byte.
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
