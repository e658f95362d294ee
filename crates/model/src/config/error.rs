//! Errors in files that people write, with their positions. Configuration and roles share the type,
//! so that their errors look alike.

use muleteer_protocol::ErrorCode;
use serde::Serialize;
use std::fmt;

/// The code of every error in a configuration or role file (contract.md, "Exit codes": 2).
pub const CODE: ErrorCode = ErrorCode::ConfigInvalid;

/// One fault in a file, a variable or a flag, with its position if it has one.
///
/// `Display` prints the message, the position, the line with a mark below the column, and the hint.
/// The serialized form is the body of the contract's `{"error": …}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    pub code: ErrorCode,
    pub message: String,
    /// A path, or the name of the variable or flag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// From 1, in characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The faulty line, cut to a readable length.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The most characters of a line that are shown, so that a minified file does not flood the
/// terminal.
const SNIPPET_CHARS: usize = 120;

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            code: CODE,
            message: message.into(),
            file: None,
            line: None,
            column: None,
            snippet: None,
            hint: None,
        }
    }

    pub(crate) fn with_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint;
        self
    }

    /// Sets the position, and takes the snippet from `text`, the whole file.
    pub(crate) fn at(mut self, file: Option<&str>, text: &str, place: Option<Place>) -> Self {
        self.file = file.map(str::to_string);
        if let Some(Place { line, column }) = place {
            self.line = Some(line);
            self.column = Some(column);
            let source = text.lines().nth(line as usize - 1).unwrap_or_default();
            let source = source.replace(char::is_control, " ");
            self.snippet = Some(source.chars().take(SNIPPET_CHARS).collect());
        }
        self
    }

    /// Returns the message and its position in one line, for a log.
    pub fn brief(&self) -> String {
        let place = match (&self.file, self.line) {
            (Some(file), Some(line)) => format!("{file}:{line}: "),
            (Some(file), None) => format!("{file}: "),
            (None, _) => String::new(),
        };
        format!("{place}{}", self.message)
    }

    /// Takes the snippet from another text with the same line numbers.
    pub(crate) fn in_text(self, text: &str) -> Self {
        let place = self.line.zip(self.column).map(|(line, column)| Place { line, column });
        let file = self.file.clone();
        self.at(file.as_deref(), text, place)
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (&self.file, self.line, self.column) {
            (Some(file), Some(line), Some(column)) => write!(f, "\n  --> {file}:{line}:{column}")?,
            (Some(file), ..) => write!(f, "\n  --> {file}")?,
            (None, Some(line), Some(column)) => write!(f, "\n  --> line {line}, column {column}")?,
            (None, ..) => {}
        }
        if let (Some(snippet), Some(line), Some(column)) = (&self.snippet, self.line, self.column) {
            let number = line.to_string();
            let margin = " ".repeat(number.len());
            write!(f, "\n {margin} |\n {number} | {}", snippet.trim_end())?;
            let before = column as usize - 1;
            if before < SNIPPET_CHARS {
                write!(f, "\n {margin} | {}^", " ".repeat(before))?;
            }
        }
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// An unknown name, with the nearest known one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no {kind} `{name}`")]
pub struct NotFound {
    /// `role`, `category`, `project`, …
    pub kind: &'static str,
    pub name: String,
    /// "did you mean …", or the list of known names.
    pub hint: String,
}

impl NotFound {
    pub fn new<'a>(
        kind: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let hint = match nearest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => format!("no {kind} is configured"),
            None => format!("known: {}", list(&known)),
        };
        Self { kind, name: name.into(), hint }
    }
}

/// Returns the known name nearest to a mistyped one, if it is near enough.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = fold(name);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&folded, &fold(candidate)), candidate))
        // With a third of the letters wrong it is still a typo; with more it is another word.
        .filter(|(distance, candidate)| *distance <= 1.max(candidate.chars().count() / 3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn fold(name: &str) -> String {
    // The time is quadratic in the length of the name, so the length is limited.
    name.chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .take(64)
        .flat_map(char::to_lowercase)
        .collect()
}

/// Joins at most twelve names with commas.
pub(crate) fn list(names: &[&str]) -> String {
    let mut text =
        names.iter().take(12).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > 12 {
        text.push_str(", …");
    }
    text
}

/// A position in a file. Line and column start at 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub line: u32,
    pub column: u32,
}
