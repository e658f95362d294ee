//! The content of the events of adapters.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An adapter's process is about to run its program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterStarted {
    /// The name of the adapter.
    pub adapter: String,
    /// The process id.
    pub pid: u32,
    /// The number of restarts since the daemon started the adapter for the first time.
    pub restarts: u32,
}

/// An adapter's process ended without being told to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterLost {
    /// The name of the adapter.
    pub adapter: String,
    /// The way in which it ended.
    pub reason: String,
    /// The pause before its restart in milliseconds.
    pub delay_ms: u64,
}

/// An adapter ended too often. It stays down until a person restarts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterSetAside {
    /// The name of the adapter.
    pub adapter: String,
    /// The way in which it ended last.
    pub reason: String,
}

/// A person enabled or disabled an adapter. This overrides the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterSwitched {
    /// The name of the adapter.
    pub adapter: String,
    /// Whether it is enabled from now on.
    pub enabled: bool,
    /// The user that decided.
    pub by: String,
}

/// The state of an outbound item of a thread changed. `sent` is written before the adapter gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PostState {
    /// The id of the thread.
    pub thread: String,
    /// The idempotency key of the item.
    pub key: String,
    /// The new state.
    pub state: PostStateName,
    /// The place of the item in the outside system, once it is posted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_ref: Option<String>,
    /// The adapter's reason for a refusal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The state of an outbound item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PostStateName {
    /// The adapter may have it.
    Sent,
    /// The adapter acknowledged it.
    Posted,
    /// The outside system never accepts it.
    Refused,
    /// A state of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Newer,
}

impl PostStateName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Posted => "posted",
            Self::Refused => "refused",
            Self::Newer => "newer",
        }
    }
}

/// A request of an adapter other than a message was handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterSignal {
    /// The name of the adapter.
    pub adapter: String,
    /// The id of the request in the outside system. The same id again changes nothing.
    pub source: String,
    /// The kind of the request: `edit`, `delete`, `answer` or `interrupt`.
    pub kind: String,
    /// The id of the thread.
    pub thread: String,
    /// The user that made it.
    pub by: String,
    /// The message or question that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
}

/// A person without permissions was told how to get them. Nobody is told twice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StrangerTold {
    /// The name of the adapter.
    pub adapter: String,
    /// The person's id in the adapter.
    pub user: String,
    /// The id of the request that the reply answers. The same request again gets the reply again,
    /// because a kill may have lost it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}
