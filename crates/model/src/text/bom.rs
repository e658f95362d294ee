//! Byte order marks in texts that people write.

/// Returns a text without the byte order mark that some editors add; it is not part of the content.
pub fn unmarked(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::unmarked;

    #[test]
    fn byte_order_mark_is_skipped_only_at_the_start() {
        for (text, wanted) in
            [("\u{feff}a\n", "a\n"), ("a\u{feff}", "a\u{feff}"), ("\u{feff}", ""), ("", "")]
        {
            assert_eq!(unmarked(text), wanted);
        }
    }
}
