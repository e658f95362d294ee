//! Characters that change what a terminal, or a reader of a prompt, makes of the text around them.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether the character reorders the text that is shown after it. It could show a text
/// that differs from the bytes.
pub fn reorders(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Returns whether the character breaks or overrides a line of text: a control character (C0, DEL
/// or C1), a line or paragraph separator, or one that opens another direction of writing. Plain
/// marks of direction are text of right-to-left languages.
pub fn breaks_line(c: char) -> bool {
    let is_mark = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}');
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') || (reorders(c) && !is_mark)
}

/// Joins a text into one line without characters that break or override it.
pub fn plain_line(text: &str) -> String {
    text.split(|c: char| c.is_whitespace() || breaks_line(c))
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Escapes characters in a JSON text that drive a terminal: DEL, C1, separators of lines and
/// characters that reorder text. JSON itself requires the escapes of the others, and outside of its
/// strings there are none, so the text means the same.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let drives = |c: char| {
        matches!(c, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}') || reorders(c)
    };
    if !json.contains(drives) {
        return Cow::Borrowed(json);
    }
    let mut text = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match drives(c) {
            true => drop(write!(text, "\\u{:04x}", u32::from(c))),
            false => text.push(c),
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_json_has_the_same_value_and_drives_no_terminal() {
        for text in [
            "plain ä 漢 🦀",
            "c1 \u{9b}31m del \u{7f} sgr \u{1b}[31m nul \0",
            "bidi \u{202e}abc\u{2066}\u{2069}\u{200f}\u{61c}",
            "lines \u{2028}\u{2029}\u{85}\r\n\t bom \u{feff}",
        ] {
            let json = serde_json::to_string(&serde_json::json!({ text: [text] })).expect("JSON");
            let escaped = escape_json(&json);
            assert!(!escaped.contains(|c: char| c.is_control() || reorders(c)), "{escaped}");
            let back: serde_json::Value = serde_json::from_str(&escaped).expect("JSON");
            assert_eq!(back, serde_json::json!({ text: [text] }));
        }
        assert!(matches!(escape_json("{\n \"a\": \"ä\"\n}"), Cow::Borrowed(_)));
    }

    #[test]
    fn plain_line_has_no_character_that_breaks_a_line() {
        assert_eq!(
            plain_line(" a\n\tb\u{1b}[31m\u{9b}c\u{202e}d\u{2028}e\u{7f} "),
            "a b [31m c d e"
        );
        assert_eq!(plain_line("\u{200f}שלום\u{200f}"), "\u{200f}שלום\u{200f}");
        assert_eq!(plain_line("\n\0\u{85}"), "");
    }
}
