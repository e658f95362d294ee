//! A fault of a scenario: its place, the message and a hint.

use std::fmt;

/// One fault. Code `E_CONFIG_INVALID`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioFault {
    pub file: String,
    /// From 1; 0 if the fault has no position.
    pub line: u64,
    pub column: u64,
    pub message: String,
    pub hint: Option<String>,
    /// The faulty line of the file.
    pub snippet: Option<String>,
}

impl std::error::Error for ScenarioFault {}

/// Prints `FILE:LINE:COLUMN: message`, the line with a mark under it, and the hint.
impl fmt::Display for ScenarioFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(snippet) = &self.snippet {
            let number = self.line.to_string();
            let indent = " ".repeat(number.len());
            let before =
                " ".repeat(usize::try_from(self.column.saturating_sub(1)).unwrap_or_default());
            write!(f, "\n {indent} |\n {number} | {snippet}\n {indent} | {before}^")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}
