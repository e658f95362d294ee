//! The stdin format of a rehearsed agent: JSON lines.

use serde::{Deserialize, Serialize};

/// One line of stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Input {
    Prompt {
        /// Returned in the `prompt` event. The agent acknowledges a known key and does not run the
        /// prompt again.
        #[serde(default)]
        key: Option<String>,
        text: String,
    },
    /// Ends the running turn, keeps the session.
    Interrupt,
    PermissionAnswer {
        id: String,
        #[serde(default = "yes")]
        allow: bool,
        /// The reason of a denial.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        text: String,
    },
    Answer {
        #[serde(default)]
        id: String,
        #[serde(default)]
        text: String,
    },
}

fn yes() -> bool {
    true
}

/// The bytes of one line.
pub fn line(input: &Input) -> Vec<u8> {
    // Serializing texts and booleans cannot fail.
    let mut bytes = serde_json::to_vec(input).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Reads one line. A line that is not an [`Input`] is a prompt in plain text, so that a person can
/// try a scenario with `echo "do it" | muleteer rehearse --scenario FILE`. `None` for an empty
/// line.
pub fn read(line: &str) -> Option<Input> {
    let line = line.trim();
    if line.is_empty() {
        return None;
    }
    Some(
        serde_json::from_str(line)
            .unwrap_or_else(|_| Input::Prompt { key: None, text: line.to_string() }),
    )
}
