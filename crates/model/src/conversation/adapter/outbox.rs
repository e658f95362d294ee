//! The outbound items of adapters, folded from the events, and the decisions about them.
//!
//! ```text
//!            written before the adapter gets it     the adapter acknowledged it
//!  recorded ──────────────▶ sent ─────────────────────────▶ posted
//!     │                      └────────────────────────────▶ refused (never accepted outside)
//! ```
//!
//! A thread has at most one item on its way, so a late failure cannot change the order. An item that
//! is `sent` when the connection ends is given again with `again`: the adapter then looks whether it
//! has posted it.

use crate::conversation::adapter::event::{PostState, PostStateName};
use crate::conversation::event::State;
use crate::conversation::thread::Thread;
use crate::event::Event;
use jiff::Timestamp;
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The longest reference of an outside system, in bytes.
pub const REFERENCE_LIMIT: usize = 512;
/// The most people without permissions that are told so, for each adapter.
pub const MOST_STRANGERS: usize = 1000;

/// The items that a thread's adapter has not acknowledged, by the record that created each.
pub type Outbox = RedBlackTreeMapSync<u64, Post>;

/// One outbound item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Post {
    /// The idempotency key.
    pub key: String,
    pub content: Content,
    pub at: Timestamp,
    /// The adapter may have it.
    pub sent: bool,
}

/// The content of an outbound item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A message of the thread, by its id.
    Message(String),
    /// A question that was asked, by its id.
    Ask(String),
    /// A question that is open no more, by its id.
    Resolve(String),
}

/// The answer of an adapter about an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Posted {
        external_ref: Option<String>,
    },
    /// The outside system never accepts it.
    Refused {
        reason: String,
    },
}

/// The folded state of one adapter.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AdapterState {
    /// The decision of a person, which overrides the configuration.
    pub switched: Option<bool>,
    /// The messages that were accepted from it.
    pub accepted: u64,
    pub posted: u64,
    pub refused: u64,
    /// The items that it has not acknowledged.
    pub pending: u64,
    /// The threads that have such items, by the record that created the oldest one.
    pub owing: RedBlackTreeMapSync<u64, String>,
    /// The requests other than messages that were handled, by the id of their source.
    pub signals: RedBlackTreeSetSync<String>,
    /// The people without permissions that were told so.
    pub told: RedBlackTreeSetSync<String>,
}

/// The sizes of a thread that its adapter follows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owed {
    messages: usize,
    items: u64,
    oldest: Option<u64>,
}

impl Owed {
    pub(crate) fn of(thread: &Thread) -> Self {
        Self {
            messages: thread.messages.len(),
            items: thread.outbox.size() as u64,
            oldest: thread.outbox.first().map(|(seq, _)| *seq),
        }
    }
}

/// Returns the key of a message as an outbound item.
pub fn message_key(thread: &str, message: &str) -> String {
    format!("{thread}/{message}")
}

/// Returns the next item of an adapter: the oldest one whose thread is not among `held`.
pub fn next<'a>(
    adapter: &'a AdapterState,
    held: &BTreeSet<String>,
    thread: impl Fn(&str) -> Option<&'a Thread>,
) -> Option<(&'a Thread, &'a Post)> {
    let mut owing = adapter.owing.values().filter(|id| !held.contains(*id));
    let thread = owing.find_map(|id| thread(id))?;
    thread.outbox.first().map(|(_, post)| (thread, post))
}

/// Returns the events before an adapter gets an item: none if it may have had it before.
pub fn sent(thread: &Thread, post: &Post) -> Vec<Event> {
    match post.sent {
        true => vec![],
        false => changed(thread, post, PostStateName::Sent, None, ""),
    }
}

/// Returns the events after an adapter's answer about the item with this key; empty if the thread
/// has no such item on its way.
pub fn acknowledged(thread: &Thread, key: &str, outcome: &Outcome) -> Vec<Event> {
    let first = thread.outbox.first().map(|(_, post)| post);
    let Some(post) = first.filter(|post| post.key == key && post.sent) else { return vec![] };
    match outcome {
        Outcome::Posted { external_ref } => {
            changed(thread, post, PostStateName::Posted, external_ref.clone(), "")
        }
        Outcome::Refused { reason } => changed(thread, post, PostStateName::Refused, None, reason),
    }
}

fn changed(
    thread: &Thread,
    post: &Post,
    to: PostStateName,
    external_ref: Option<String>,
    reason: &str,
) -> Vec<Event> {
    let state = PostState {
        thread: thread.id().into(),
        key: post.key.clone(),
        state: to,
        external_ref,
        reason: reason.into(),
    };
    let mut events = vec![Event::PostState(Box::new(state))];
    if let Content::Message(message) = &post.content {
        let state = match to {
            PostStateName::Sent => State::Sent,
            PostStateName::Posted => State::Posted,
            PostStateName::Refused | PostStateName::Newer => State::Refused,
        };
        events.push(Event::MessageState {
            thread: thread.id().into(),
            message: message.clone(),
            state,
            reason: reason.into(),
            dispatch: None,
        });
    }
    events
}

impl AdapterState {
    /// Follows an event that changed a thread of this adapter.
    pub(crate) fn follow(&mut self, event: &Event, thread: &str, before: Owed, after: Owed) {
        match event {
            Event::MessageAccepted(_) if after.messages > before.messages => self.accepted += 1,
            Event::PostState(changed) if after.items < before.items => match changed.state {
                PostStateName::Posted => self.posted += 1,
                PostStateName::Sent | PostStateName::Refused | PostStateName::Newer => {
                    self.refused += 1;
                }
            },
            _ => {}
        }
        self.pending = (self.pending + after.items).saturating_sub(before.items);
        if before.oldest == after.oldest {
            return;
        }
        if let Some(before) = before.oldest {
            self.owing.remove_mut(&before);
        }
        if let Some(after) = after.oldest {
            self.owing.insert_mut(after, thread.into());
        }
    }
}

impl Thread {
    /// Whether its messages are owed to an adapter.
    pub fn has_adapter(&self) -> bool {
        self.opened.external.is_some()
    }

    /// Adds an item for the adapter.
    pub(crate) fn owe(&mut self, seq: u64, key: String, content: Content, at: Timestamp) {
        if self.has_adapter() {
            self.outbox.insert_mut(seq, Post { key, content, at, sent: false });
        }
    }

    /// Folds a change of an item in. Returns whether the item is owed no more.
    pub(crate) fn posted(&mut self, changed: &PostState) -> bool {
        let Some((seq, post)) = self.outbox.first().filter(|(_, post)| post.key == changed.key)
        else {
            return false;
        };
        let (seq, mut post) = (*seq, post.clone());
        match changed.state {
            PostStateName::Sent => {
                post.sent = true;
                self.outbox.insert_mut(seq, post);
                false
            }
            PostStateName::Posted | PostStateName::Refused => {
                self.outbox.remove_mut(&seq);
                if let (Content::Message(id), Some(place)) = (&post.content, &changed.external_ref)
                {
                    self.set_reference(id, place);
                }
                true
            }
            PostStateName::Newer => false,
        }
    }
}
