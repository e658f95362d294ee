//! Finds flags in a command and its arguments, whichever form the command has.

use crate::launch::Command;
use std::fmt;

/// Splits a command and its arguments into the words that a CLI would see, without quotes. A shell
/// script is split as well.
pub fn flag_words(command: Option<&Command>, args: &[String]) -> Vec<String> {
    let mut words = match command {
        Some(Command::Argv(words)) => words.clone(),
        Some(Command::Shell(text)) => vec![text.clone()],
        None => vec![],
    };
    words.extend(args.iter().cloned());
    let plain = words.iter().map(|word| word.replace(['"', '\'', '\\'], ""));
    let split = plain.flat_map(|word| {
        let parts =
            word.split(|c: char| c.is_whitespace() || ";|&()".contains(c)).map(str::to_string);
        parts.collect::<Vec<_>>()
    });
    split.filter(|word| !word.is_empty()).collect()
}

/// A flag with its value, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag<'a> {
    pub word: &'a str,
    pub name: &'a str,
    /// The text after `=`, or the next word if that is not a flag.
    pub value: Option<&'a str>,
}

impl<'a> Flag<'a> {
    /// Returns every word as if it were a flag.
    pub fn all(words: &'a [String]) -> impl Iterator<Item = Self> {
        words.iter().enumerate().map(|(n, word)| {
            let next =
                || words.get(n + 1).map(String::as_str).filter(|next| !next.starts_with('-'));
            match word.split_once('=') {
                Some((name, value)) => Self { word, name, value: Some(value) },
                None => Self { word, name: word, value: next() },
            }
        })
    }
}

/// Prints the flag in the form in which it was given.
impl fmt::Display for Flag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) if self.word.len() == self.name.len() && self.word.starts_with('-') => {
                write!(f, "{} {value}", self.word)
            }
            _ => f.write_str(self.word),
        }
    }
}
