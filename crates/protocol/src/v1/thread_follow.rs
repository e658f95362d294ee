//! The live view of one thread: its messages as they move, and its agent's text and tool calls.

use crate::v1::{AskStatus, MessageDoc};
use serde::{Deserialize, Serialize};

/// The most ids in [`ThreadFollow::open`] that the daemon reads.
pub const OPEN_LIMIT: usize = 512;

/// Asks for the parts of a thread from a place on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ThreadFollow {
    /// A unique prefix of the thread's id.
    pub thread: String,
    /// The number of earlier messages that come first; only without `from`.
    #[serde(default)]
    pub history: u32,
    /// The place of the last part that the client has. Absent: the present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<ThreadPlace>,
    /// The inbound messages whose last known state is not final. They come again if the client
    /// resumes, because they may have moved meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
}

/// A place in a thread and in the output of its agent. Clients return it unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ThreadPlace {
    /// So many messages of the thread came before.
    #[serde(default)]
    pub messages: u64,
    /// The dispatch whose output is read; empty before the first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dispatch: String,
    /// A record of its output at which the agent's stream can be read anew.
    #[serde(default)]
    pub epoch: u32,
    #[serde(default)]
    pub offset: u64,
    /// So many bytes of that record belong to an earlier line.
    #[serde(default)]
    pub skip: u32,
    /// So many parts since that record came before.
    #[serde(default)]
    pub parts: u32,
}

/// One part of the live view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThreadPart {
    /// The place after this part.
    pub at: ThreadPlace,
    pub part: Part,
}

/// The content of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Part {
    /// A message was recorded, or moved to another state.
    Message(Box<MessageDoc>),
    /// All earlier parts are history.
    Present,
    /// The next piece of the agent's text.
    Text { text: String },
    /// The agent's text block is complete.
    TextEnd,
    /// The agent began a tool call.
    Call { id: String, name: String, target: String },
    /// A tool call ended.
    CallEnd { id: String, ok: bool, text: String },
    /// The agent's turn ended.
    TurnEnd { ok: bool },
    /// A remark about the agent's output.
    Notice { text: String },
    /// The dispatch of the thread is now in this state, and waits for answers to `asks`.
    Agent {
        dispatch_id: String,
        role: String,
        state: String,
        turn: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        asks: Vec<AskStatus>,
    },
    #[serde(other)]
    Unknown,
}
