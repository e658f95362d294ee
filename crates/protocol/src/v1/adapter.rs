//! The conversation of an adapter with the daemon (docs/adapters.md), and the requests of
//! `muleteer adapter`.
//!
//! ```text
//! adapter                                   daemon
//!   hello {name, version, key, …}     ──▶
//!                                     ◀──   welcome {version, …}  |  refused {error}
//!   credit {n}                        ──▶
//!                                     ◀──   outbound {seq, key, external, op, …}*
//!   ack {seq, external_ref | error}   ──▶
//!   inbound {kind, source_id, …}      ──▶
//!                                     ◀──   accepted {source_id, …}  |  rejected {source_id, …}
//! ```

use crate::v1::{AuthorDoc, ClientFrame, WireError};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The newest version of the adapters' protocol that this build speaks.
pub const ADAPTER_VERSION: u16 = 1;
/// The most outbound items that an adapter may allow at the same time.
pub const MOST_CREDITS: u32 = 1024;

/// The first frame of a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FirstFrame {
    Adapter(Box<AdapterHello>),
    Client(ClientFrame),
}

/// The first frame of an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterHello {
    pub t: HelloTag,
    pub name: String,
    /// The newest version of the protocol that the adapter speaks.
    pub version: u16,
    /// The abilities of the outside system. Unknown ones are skipped.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// The value of `MULETEER_ADAPTER_KEY`.
    #[serde(default)]
    pub key: String,
    /// A longer text is given as a `document` to an adapter with `files`, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longest_text: Option<u64>,
}

/// The tag of a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelloTag {
    Hello,
}

/// A frame of an adapter after its hello.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromAdapter {
    Inbound(Box<Inbound>),
    Ack(Ack),
    /// Allows `n` more outbound items.
    Credit {
        n: u32,
    },
    #[serde(other)]
    Unknown,
}

/// A frame of the daemon to an adapter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ToAdapter {
    Welcome(AdapterWelcome),
    /// The connection ends.
    Refused {
        error: WireError,
    },
    /// The request is durable. A duplicate changed nothing.
    Accepted {
        source_id: String,
        message_id: Option<String>,
        duplicate: bool,
    },
    /// The request changed nothing.
    Rejected {
        source_id: String,
        error: WireError,
        /// A text that the adapter posts as the reply, once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reply: Option<String>,
    },
    Outbound(Box<Outbound>),
    /// The adapter broke a rule, which changed nothing.
    Error {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
        error: WireError,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdapterWelcome {
    /// The version that both speak.
    pub version: u16,
    pub daemon_version: String,
    /// The most outbound items that [`FromAdapter::Credit`] can allow at the same time.
    pub most_credits: u32,
    /// The operations of this daemon.
    pub ops: Vec<String>,
}

/// Something that happened in the outside system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Inbound {
    /// `message`, `edit`, `delete`, `answer` or `interrupt`.
    pub kind: String,
    /// The outside system's id of this happening. The same id is the same happening, for ever.
    pub source_id: String,
    /// The outside system's id of the conversation.
    pub external: String,
    /// The outside system's id of the place of the conversation, for `adapters.<name>.channels`.
    pub channel: Option<String>,
    /// The outside system's id of the person.
    pub user: String,
    /// The person's name, for people.
    pub name: Option<String>,
    pub text: String,
    pub files: Vec<InboundFile>,
    /// The `source_id` or `external_ref` of the message that this one replies to, edits or deletes.
    pub reply_to: Option<String>,
    /// When it happened (RFC 3339).
    pub at: Option<String>,
    /// The question that is answered.
    pub question_id: Option<String>,
    /// The chosen options of the question.
    pub options: Vec<String>,
}

/// A file of an inbound message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct InboundFile {
    /// The name without folders.
    pub name: String,
    #[serde(deserialize_with = "bytes")]
    pub content: Vec<u8>,
}

/// The answer of an adapter to an outbound item: either `external_ref`, or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Ack {
    pub seq: u64,
    /// The place of the item in the outside system.
    pub external_ref: Option<String>,
    pub error: Option<String>,
    /// The item may be given again after so many seconds.
    pub retry_after_s: Option<f64>,
    /// The outside system never accepts the item.
    pub permanent: bool,
}

/// An item for the outside system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Outbound {
    /// Counts the items of this connection from 1.
    pub seq: u64,
    /// The same item has the same key, also in another connection.
    pub key: String,
    /// The outside system's id of the conversation.
    pub external: String,
    /// `post`, `update`, `document`, `upload`, `ask`, `resolve`, `stream`, `react`, `status` and
    /// others; an adapter acknowledges one that it does not know.
    pub op: String,
    /// An earlier connection may have posted the item: look before you post.
    pub again: bool,
    pub thread_id: String,
    pub message_id: Option<String>,
    pub author: AuthorDoc,
    pub text: String,
    /// The `source_id` of the message that this one answers.
    pub reply_to: Option<String>,
    /// When it was recorded (RFC 3339).
    pub at: String,
    pub question_id: Option<String>,
    pub options: Vec<OutboundOption>,
    /// The place of the item that this one changes or belongs to.
    pub external_ref: Option<String>,
    /// The key of the stream whose last text this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The bytes of a stream before this piece.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The mark of a message, or the state of the thread's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The name of a file or a document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The SHA-256 of a file's content, in hex.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The content of a file. It is MessagePack's binary type.
    #[serde(
        serialize_with = "binary",
        deserialize_with = "maybe_bytes",
        skip_serializing_if = "Option::is_none"
    )]
    pub content: Option<Vec<u8>>,
}

/// An option of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct OutboundOption {
    pub id: String,
    pub label: String,
    pub description: String,
}

/// One adapter (contract.md, "Adapters").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct AdapterDoc {
    pub name: String,
    /// `running`, `starting`, `backoff`, `disabled` or `set_aside`.
    pub state: String,
    pub pid: Option<u32>,
    pub restarts: u64,
    /// Since when it is in this state (RFC 3339).
    pub since: Option<String>,
    pub connected: bool,
    pub inbox: InboxDoc,
    pub outbox: OutboxDoc,
    pub capabilities: Vec<String>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct InboxDoc {
    pub accepted: u64,
    /// Since the start of the daemon.
    pub duplicates: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct OutboxDoc {
    pub pending: u64,
    pub posted: u64,
    pub refused: u64,
    /// The age of the oldest pending item in seconds; null without one.
    pub oldest_age_s: Option<u64>,
}

/// Writes bytes as MessagePack's binary type.
#[expect(clippy::ref_option, reason = "serde passes the field")]
fn binary<S: Serializer>(bytes: &Option<Vec<u8>>, serializer: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => serializer.serialize_bytes(bytes),
        None => serializer.serialize_none(),
    }
}

/// Reads bytes that may be absent.
fn maybe_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    #[derive(Deserialize)]
    struct Present(#[serde(deserialize_with = "bytes")] Vec<u8>);
    Ok(Option::<Present>::deserialize(deserializer)?.map(|Present(bytes)| bytes))
}

/// Reads bytes as MessagePack's binary type or as an array of numbers.
fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Bytes;
    impl<'de> Visitor<'de> for Bytes {
        type Value = Vec<u8>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }
        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
        fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = vec![];
            while let Some(byte) = seq.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }
    deserializer.deserialize_any(Bytes)
}
