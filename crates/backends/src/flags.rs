//! Finds flags in a command and its arguments, whichever form the command has.

use crate::acp::start::{self, Start};
use crate::launch::Command;
use std::fmt;

/// Programs of the backends that check their flags.
const AGENTS: [&str; 3] = ["claude", "claude-code", "codex"];

/// Flags that a prompt or another text follows. Its words are no flags.
const TEXT_FLAGS: [&str; 6] = [
    "--append-system-prompt",
    "--append-system-prompt-file",
    "--system-prompt",
    "--system-prompt-file",
    "--print",
    "-p",
];

/// Returns the arguments of the agent that a command starts, without quotes and without texts.
/// `args` are further arguments of the agent.
///
/// Arguments of wrappers and of other commands of a script are left out. If no program of a known
/// name is found, all arguments count, and each is split into words: it may be a script.
pub fn flag_words(command: Option<&Command>, args: &[String]) -> Vec<String> {
    let starts = start::starts(command, &[]);
    let is_agent =
        |start: &&Start| start.program.as_deref().is_some_and(|program| AGENTS.contains(&program));
    let mut words = vec![];
    if starts.iter().any(|start| is_agent(&start)) {
        for start in starts.iter().filter(is_agent) {
            words.extend(without_texts(&start.args));
        }
    } else {
        for start in &starts {
            for word in start.program.iter().cloned().chain(without_texts(&start.args)) {
                let parts = word.split(|c: char| c.is_whitespace() || ";|&()".contains(c));
                words.extend(parts.map(str::to_string));
            }
        }
    }
    words.extend(without_texts(args));
    let plain = words.iter().map(|word| word.replace(['"', '\'', '\\'], "").trim().to_string());
    plain.filter(|word| !word.is_empty()).collect()
}

/// Returns the words without the values of [`TEXT_FLAGS`].
fn without_texts(words: &[String]) -> Vec<String> {
    let mut left = vec![];
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let name = word.split_once('=').map_or(word.as_str(), |(name, _)| name);
        if !TEXT_FLAGS.contains(&name) {
            left.push(word.clone());
            continue;
        }
        left.push(name.to_string());
        // Some of the flags may lack a value. A flag that follows one counts.
        let is_text = |next: &&String| {
            name == word && (!next.starts_with('-') || next.contains(char::is_whitespace))
        };
        words.next_if(is_text);
    }
    left
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_wrappers_have_no_flags() {
        let shell = |text: &str| flag_words(Some(&Command::Shell(text.into())), &[]).join("|");
        for (command, words) in [
            ("timeout -s KILL 60 codex exec", "exec"),
            ("grep -s x f; env A=b codex --yolo", "--yolo"),
            ("claude -p 'never use --yolo' --debug", "-p|--debug"),
            ("claude -p --yolo", "-p|--yolo"),
            ("claude --append-system-prompt='Never --yolo' x", "--append-system-prompt|x"),
            ("claude --system-prompt '--yolo is forbidden'", "--system-prompt"),
            ("docker run -a stdin -i img codex -a never", "-a|never"),
            ("xargs claude --yolo", "xargs|claude|--yolo"),
            ("script -c 'claude --yolo'", "script|-c|claude|--yolo"),
        ] {
            assert_eq!(shell(command), words, "{command}");
        }
        let args = ["--append-system-prompt", "Never use --yolo", "a --yolo b"];
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_string()).collect();
        assert_eq!(flag_words(None, &args), ["--append-system-prompt", "a --yolo b"]);
    }
}
