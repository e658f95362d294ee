//! Byte order marks in texts that people write.

/// Returns a text without the byte order mark that some editors add; it is not part of the content.
pub fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::unmarked;

    #[test]
    fn a_mark_is_left_out_where_a_text_begins_and_nowhere_else() {
        for (text, wanted) in
            [("\u{feff}a\n", "a\n"), ("a\u{feff}", "a\u{feff}"), ("\u{feff}", ""), ("", "")]
        {
            assert_eq!(unmarked(text), wanted);
        }
    }
}
