//! The name of a bead in a sentence.

use crate::agent::event::cut;

/// The most bytes of a title within a sentence.
const TITLE: usize = 60;

/// Returns a bead for a sentence: `"Parse dates" (xk9e8v2e)`, or the id without a title.
pub fn named(id: &str, title: Option<&str>) -> String {
    let line = title.and_then(|title| title.trim().lines().next()).unwrap_or_default();
    if line.is_empty() { id.into() } else { format!("\"{}\" ({id})", cut(line, TITLE)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bead_without_a_title_is_named_by_its_id() {
        assert_eq!(named("a", None), "a");
        assert_eq!(named("a", Some(" ")), "a");
        assert_eq!(named("a", Some("One\nline")), "\"One\" (a)");
    }
}
