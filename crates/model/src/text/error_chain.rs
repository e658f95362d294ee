//! The text of an error with its causes.

use std::error::Error;

/// Joins an error and its causes in one line. Leaves out a cause that the line already has, because
/// many errors name their cause in their own text.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layers(texts: &[&'static str]) -> Layer {
        let (text, below) = texts.split_first().expect("a text");
        let source = (!below.is_empty()).then(|| Box::new(layers(below)));
        Layer { text, source }
    }

    #[test]
    fn chain_names_each_cause_once() {
        for (texts, expected) in [
            (&["cannot open a"][..], "cannot open a"),
            (&["cannot open a", "the disk", "is full"][..], "cannot open a: the disk: is full"),
            (&["cannot open a: is full", "is full"][..], "cannot open a: is full"),
            (&["a: b", "b", "c"][..], "a: b: c"),
            (&["a", ""][..], "a"),
        ] {
            assert_eq!(chain(&layers(texts)), expected, "{texts:?}");
        }
    }
}
