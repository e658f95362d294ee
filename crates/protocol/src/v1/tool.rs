//! Calls of MCP tools: the relay passes them on, and the daemon carries them out.

use crate::v1::AttachedFile;
use serde::{Deserialize, Serialize};

/// A call of an MCP tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ToolCall {
    /// Chosen by the relay. A repeated call with a known key has no second effect.
    pub key: String,
    /// The name of the tool.
    pub tool: String,
    /// A JSON object.
    pub arguments: String,
    /// The relay was started for tools that only read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The longest time that the caller waits, in milliseconds; absent to wait without a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// The environment for an agent that a client outside of Muleteer drafts: NAME and value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
    /// The client's working directory, for a relative path of a project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The files of a message. The relay reads them with the rights of the agent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<AttachedFile>,
}

impl ToolCall {
    /// Returns the length of all files in bytes.
    pub fn file_bytes(&self) -> usize {
        self.files.iter().map(|file| file.content.len()).sum()
    }
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ToolResult {
    /// A JSON object; the reason if the call was refused.
    pub result: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub refused: bool,
    /// The question that is answered, or the dispatch that was drafted. The relay confirms it
    /// ([`ToolTaken`]) once the agent's CLI has the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// The agent's CLI has the result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ToolTaken {
    pub tool: String,
    /// See [`ToolResult::subject`].
    pub subject: String,
    /// The duration of the call, in milliseconds.
    #[serde(default)]
    pub ms: u64,
}
