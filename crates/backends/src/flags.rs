//! The flags that a command and its arguments hold, whatever their form.

use crate::launch::Command;
use std::fmt;

/// The words of a command and its arguments as a CLI would see them, without quotes. A script for a
/// shell is split, too.
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

/// A flag, and the value that it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag<'a> {
    pub word: &'a str,
    pub name: &'a str,
    /// After `=`, or the next word, if that is no flag.
    pub value: Option<&'a str>,
}

impl<'a> Flag<'a> {
    /// Every word, as if it were a flag.
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

/// As it was given.
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
