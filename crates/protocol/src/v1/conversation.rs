//! Threads: the requests that write in them, and their documents as `thread --json` shows them.

use crate::v1::{QuestionDoc, Spawn};
use serde::{Deserialize, Serialize};

/// The most bytes of all files of one message.
pub const FILES_LIMIT: usize = 4 << 20;

/// A thread to open. The client chooses `id`: if it repeats the request after a lost reply, the
/// same id is answered and not carried out again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ThreadNew {
    pub id: String,
    #[serde(default)]
    pub title: Option<String>,
    /// The template of each dispatch of the thread; each has its own `id` and `prompt`.
    pub dispatch: Spawn,
    /// Variables for the push of the runs that a sign-off starts. No agent gets them, and they are
    /// never stored on disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub push_env: Vec<(String, String)>,
}

/// A message to a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ThreadSend {
    /// A unique prefix of the thread's id.
    pub thread: String,
    /// The same key in the same thread is the same message, for ever.
    pub key: String,
    pub text: String,
    /// The name of the author, for people.
    #[serde(default)]
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<AttachedFile>,
}

/// A file to attach to a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct AttachedFile {
    /// The name without folders.
    pub name: String,
    pub content: Vec<u8>,
}

impl ThreadSend {
    /// Returns the length of all files in bytes.
    pub fn file_bytes(&self) -> usize {
        self.files.iter().map(|file| file.content.len()).sum()
    }
}

/// One thread (contract.md, "Threads and messages").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ThreadDoc {
    pub id: String,
    pub title: Option<String>,
    pub adapter: String,
    pub external: Option<String>,
    pub role: String,
    pub project: String,
    /// `open` or `archived`.
    pub state: String,
    /// RFC 3339.
    pub created: String,
    pub last_activity: String,
    pub message_count: u64,
    pub open_questions: u64,
    /// The dispatch that gets the messages.
    pub dispatch_id: Option<String>,
}

/// One thread in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct ThreadInFull {
    #[serde(flatten)]
    pub thread: ThreadDoc,
    /// Oldest first.
    pub messages: Vec<MessageDoc>,
    pub tasks: Vec<ThreadTaskDoc>,
    /// The questions of its agents, oldest first.
    pub questions: Vec<QuestionDoc>,
}

/// One message of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct MessageDoc {
    pub id: String,
    /// `in` or `out`.
    pub direction: String,
    pub author: AuthorDoc,
    pub text: String,
    /// RFC 3339.
    pub at: String,
    pub state: String,
    /// Why it is in this state; null if there is nothing to report.
    pub reason: Option<String>,
    /// The sender's key; null for outbound messages.
    pub key: Option<String>,
    pub files: Vec<FileDoc>,
    /// The messages that an outbound message answers.
    #[serde(default)]
    pub answers: Vec<String>,
    /// The dispatch that gets an inbound message.
    #[serde(default)]
    pub dispatch_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct AuthorDoc {
    /// `person`, `agent` or `muleteer`.
    pub kind: String,
    pub id: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct FileDoc {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ThreadTaskDoc {
    pub id: String,
    pub title: String,
    /// `open`, `active` or `closed`.
    pub state: String,
    /// The ids of its dispatches, oldest first.
    pub dispatches: Vec<String>,
}
