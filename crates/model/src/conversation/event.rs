//! The content of the events of threads.

use crate::config::types::verbosity::ThreadVerbosity;
use crate::event::id::DispatchId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A new thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadOpened {
    /// The id of the thread.
    pub thread: String,
    /// The role that answers in the thread.
    pub role: String,
    /// The absolute path of the project.
    pub project: String,
    /// The title, if the person gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The adapter whose people write in the thread; `cli` for the command line.
    pub adapter: String,
    /// The adapter's own id of the thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// The user that opened it.
    pub by: String,
    /// Whether `!` or a mention begins a command too; absent means the adapter's usual way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bang: Option<bool>,
}

/// A message of a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageAccepted {
    /// The id of the thread.
    pub thread: String,
    /// The id of the message.
    pub message: String,
    /// The author.
    pub author: Author,
    /// The whole text.
    pub text: String,
    /// The key that the sender gave: the same key in the same thread is the same message.
    pub key: String,
    /// The attached files, which are in the thread's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MessageFile>,
    /// The thread's adapter shows it, because it was written elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shown: bool,
    /// The command of an agent's output that it is. Its author is the person whose rights
    /// hold for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<AgentCommand>,
}

/// A command in the output of a coordinator or an analyst.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentCommand {
    /// `spawn`, `kill`, `status`, `message`, `ask` or `sign_off`.
    pub action: String,
    /// The role to dispatch, or the role whose newest dispatch is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The name of a project that the user has configured; absent for the thread's project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// The prompt of the dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The model of the dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The title of the dispatch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The dispatch that is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// The text of the message or question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The spec whose sign-off is asked for, from the thread's project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The reason why Muleteer cannot read the command. It is refused then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A message of an agent or of Muleteer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MessageRecorded {
    /// The id of the thread.
    pub thread: String,
    /// The id of the message.
    pub message: String,
    /// The author.
    pub author: Author,
    /// The whole text.
    pub text: String,
    /// The messages that it answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
    /// The dispatch whose agent wrote it, or that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<DispatchId>,
    /// The turn of that dispatch whose last message this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The attached files, which are in the thread's folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MessageFile>,
    /// It reports what happened in the thread's dispatches, up to the record with this sequence
    /// number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reports_through: Option<u64>,
}

/// A thread that was given to another role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoleChanged {
    /// The id of the thread.
    pub thread: String,
    /// The role that answers from now on.
    pub role: String,
    /// The user that changed it.
    pub by: String,
}

/// A change of what a thread is told of its agents' work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VerbosityChanged {
    /// The id of the thread.
    pub thread: String,
    /// The level from now on; absent if each agent's role or category decides again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verbosity: Option<ThreadVerbosity>,
    /// The user that changed it.
    pub by: String,
}

/// The author of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Author {
    /// The kind of the author.
    pub kind: AuthorKind,
    /// The id: of a person in the adapter, or of a dispatch.
    pub id: String,
    /// The name, for people.
    pub name: String,
}

impl Author {
    /// Returns Muleteer as the author of a message.
    pub fn muleteer() -> Self {
        Self { kind: AuthorKind::Muleteer, id: "muleteer".into(), name: "Muleteer".into() }
    }
}

/// The kind of the author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AuthorKind {
    /// A human.
    Person,
    /// The local operator in a thread of an adapter: not a user of that adapter.
    Operator,
    /// An agent.
    Agent,
    /// Muleteer itself.
    Muleteer,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Other,
}

impl AuthorKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Person | Self::Operator => "person",
            Self::Agent => "agent",
            Self::Muleteer => "muleteer",
            Self::Other => "other",
        }
    }
}

/// A file that is attached to a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MessageAttachment")]
pub struct MessageFile {
    /// The name that the sender gave, without folders.
    pub name: String,
    /// The length in bytes.
    pub bytes: u64,
    /// The SHA-256 of the content, in hex. The file has this name in the thread's folder.
    pub sha256: String,
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "MessageStateName")]
pub enum State {
    /// It is durable.
    Accepted,
    /// A dispatch is chosen that gets it.
    Queued,
    /// The shim acknowledged that it wrote it to the agent's stdin.
    Delivered,
    /// The agent's CLI took it.
    Read,
    /// The turn that contains it ended.
    Answered,
    /// No agent gets it.
    Refused,
    /// Nobody can tell whether the agent took it.
    Unknown,
    /// A message of an agent or of Muleteer is durable.
    Recorded,
    /// It is on its way to its adapter.
    Sent,
    /// Its adapter has posted it.
    Posted,
    /// A state of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Read => "read",
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
            Self::Recorded => "recorded",
            Self::Sent => "sent",
            Self::Posted => "posted",
            Self::Newer => "newer",
        }
    }

    /// Whether an inbound message in this state changes no more.
    pub fn is_final(self) -> bool {
        match self {
            Self::Accepted | Self::Queued | Self::Delivered | Self::Read => false,
            Self::Answered
            | Self::Refused
            | Self::Unknown
            | Self::Recorded
            | Self::Sent
            | Self::Posted
            | Self::Newer => true,
        }
    }

    /// The place of an open state on a message's way.
    pub(super) fn rank(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Queued => 1,
            Self::Delivered => 2,
            Self::Read => 3,
            Self::Answered
            | Self::Refused
            | Self::Unknown
            | Self::Recorded
            | Self::Sent
            | Self::Posted
            | Self::Newer => 4,
        }
    }
}

/// The state of a task of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "ThreadTaskStateName")]
pub enum TaskState {
    /// No dispatch works on it now; the next message begins one.
    Open,
    /// Its newest dispatch gets the messages of the thread.
    Active,
    /// Its dispatch has ended, or the thread was archived.
    Closed,
    /// A state of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl TaskState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Active => "active",
            Self::Closed => "closed",
            Self::Newer => "newer",
        }
    }
}
