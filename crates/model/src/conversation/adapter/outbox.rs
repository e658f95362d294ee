//! The outbound items of adapters, folded from the events, and the decisions about them.
//!
//! ```text
//!            written before the adapter gets it     the adapter acknowledged it
//!  recorded ──────────────▶ sent ─────────────────────────▶ posted
//!     │                      └────────────────────────────▶ refused (never accepted outside)
//! ```
//!
//! A thread has at most one item on its way, so a late failure cannot change the order. An item
//! that is `sent` when the connection ends is given again with `again`: the adapter then looks
//! whether it has posted it.

use crate::conversation::adapter::asks::{Asked, Resolved};
use crate::conversation::adapter::event::{PostState, PostStateName};
use crate::conversation::adapter::live::stream_key;
use crate::conversation::event::{MessageAccepted, MessageFile, MessageRecorded, State};
use crate::conversation::thread::Thread;
use crate::event::Event;
use jiff::Timestamp;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The longest reference of an outside system, in bytes.
pub const REFERENCE_LIMIT: usize = 512;
/// The most people without permissions that are told so, for each adapter.
pub const MOST_STRANGERS: usize = 1000;

/// The most requests other than messages that stay in memory, for each adapter.
const MOST_SIGNALS: usize = 256;

/// The places of the items that one record may create.
const PLACES: u64 = 1 << 16;

/// The items that a thread's adapter has not acknowledged, in the order of the records that created
/// them.
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
    /// The key of the stream whose last text it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
}

/// The content of an outbound item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// A message of the thread, by its id.
    Message(String),
    /// An inbound message that was written elsewhere, by its id.
    Elsewhere(String),
    /// A file of the message with this id.
    File(String, Box<MessageFile>),
    /// A question that was asked.
    Ask(Box<Asked>),
    /// A question that is open no more.
    Resolve(Box<Resolved>),
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
    /// The threads that have such items, by the place of the oldest one.
    pub owing: RedBlackTreeMapSync<u64, String>,
    /// The newest requests other than messages that were handled. The database has all of them.
    pub signals: Signals,
    /// The people without permissions that were told so, each with the request that was answered.
    pub told: RedBlackTreeMapSync<String, String>,
}

/// The ids of the newest requests other than messages, by the record of each.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Signals {
    kept: RedBlackTreeMapSync<u64, String>,
    /// The record of the newest request that only the database has.
    through: u64,
}

impl Signals {
    /// Adds a request. The oldest one leaves the memory if there are too many.
    pub(crate) fn add(&mut self, source: &str, seq: u64) {
        self.kept.insert_mut(seq, source.into());
        if self.kept.size() > MOST_SIGNALS
            && let Some(oldest) = self.kept.keys().next().copied()
        {
            self.kept.remove_mut(&oldest);
            self.through = oldest;
        }
    }

    /// Whether a request is among the newest ones.
    pub fn contains(&self, source: &str) -> bool {
        self.kept.values().any(|one| one == source)
    }

    /// Returns the record through which the database must be asked; `None` if all are kept.
    pub fn left(&self) -> Option<u64> {
        (self.through > 0).then_some(self.through)
    }
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

    /// Adds an item for the adapter, which a record created. `key` gets the number of the item
    /// among those of the record.
    pub(crate) fn owe(
        &mut self,
        seq: u64,
        key: impl FnOnce(u64) -> String,
        content: Content,
        at: Timestamp,
    ) {
        if !self.has_adapter() {
            return;
        }
        let first = seq * PLACES;
        let is_taken = |number: &u64| self.outbox.contains_key(&(first + number));
        let number = (0..PLACES).take_while(is_taken).count() as u64;
        let post = Post { key: key(number), content, at, sent: false, stream: None };
        self.outbox.insert_mut(first + number, post);
    }

    /// Adds a recorded message with its files.
    pub(crate) fn owe_recorded(&mut self, recorded: &MessageRecorded, seq: u64, at: Timestamp) {
        let key = message_key(self.id(), &recorded.message);
        let content = Content::Message(recorded.message.clone());
        self.owe(seq, |_| key, content, at);
        if let (Some(dispatch), Some(turn)) = (&recorded.dispatch, recorded.turn)
            && let Some((place, post)) = self.outbox.last()
        {
            let stream = Some(stream_key(self.id(), dispatch.as_str(), turn));
            let (place, post) = (*place, Post { stream, ..post.clone() });
            self.outbox.insert_mut(place, post);
        }
        self.owe_files(&recorded.message, &recorded.files, seq, at);
    }

    /// Adds a message that was written elsewhere, with its files.
    pub(crate) fn owe_elsewhere(&mut self, accepted: &MessageAccepted, seq: u64, at: Timestamp) {
        let key = message_key(self.id(), &accepted.message);
        self.owe(seq, |_| key, Content::Elsewhere(accepted.message.clone()), at);
        self.owe_files(&accepted.message, &accepted.files, seq, at);
    }

    fn owe_files(&mut self, message: &str, files: &[MessageFile], seq: u64, at: Timestamp) {
        let first = message_key(self.id(), message);
        for (number, file) in files.iter().enumerate() {
            let content = Content::File(message.into(), Box::new(file.clone()));
            self.owe(seq, |_| format!("{first}/file/{number}"), content, at);
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
                match (&post.content, &changed.external_ref) {
                    (Content::Message(id), Some(place)) => self.set_reference(id, place),
                    (Content::Ask(asked), Some(place)) => self.shown_at(&asked.id, place),
                    (Content::Resolve(resolved), _) => self.forget_ask(&resolved.id),
                    (Content::Elsewhere(_) | Content::File(..), _)
                    | (Content::Message(_) | Content::Ask(_), None) => {}
                }
                true
            }
            PostStateName::Newer => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conversation::event::{
        Author, AuthorKind, MessageAccepted, MessageRecorded, ThreadOpened,
    };
    use crate::conversation::fold::Conversations;
    use crate::conversation::step;
    use crate::event::id::DispatchId;
    use crate::event::{Entry, Record, VERSION};

    /// All threads, with the number of their newest record.
    #[derive(Default)]
    struct Folded(Conversations, u64);

    impl Folded {
        fn apply(&mut self, event: Event) {
            self.1 += 1;
            let id = self.1.to_string();
            let entry = Entry { id, dispatch_id: None, at: None, more: false, event };
            self.0.apply(&Record { v: VERSION, seq: self.1, ts: Timestamp::UNIX_EPOCH, entry });
        }

        fn open(&mut self, thread: &str, adapter: &str, external: Option<&str>) {
            self.apply(Event::ThreadOpened(Box::new(ThreadOpened {
                thread: thread.into(),
                role: "analyst".into(),
                project: "/repo".into(),
                title: None,
                adapter: adapter.into(),
                external: external.map(String::from),
                by: "U1".into(),
                bang: None,
            })));
        }

        fn says(&mut self, thread: &str, message: &str) {
            let author = Author { kind: AuthorKind::Agent, id: "a".into(), name: "a".into() };
            self.apply(Event::MessageRecorded(Box::new(MessageRecorded {
                thread: thread.into(),
                message: message.into(),
                author,
                text: message.into(),
                answers: vec![],
                dispatch: None,
                turn: None,
                files: vec![],
                reports_through: None,
            })));
        }

        /// Returns the key of the next item and the thread that has it.
        fn next(&self, held: &[&str]) -> Option<(String, String)> {
            let held = held.iter().map(ToString::to_string).collect();
            let adapter = self.0.adapter("slack")?;
            let thread = |id: &str| self.0.get(id).map(|thread| &**thread);
            let (thread, post) = next(adapter, &held, thread)?;
            Some((thread.id().into(), post.key.clone()))
        }

        fn send(&mut self, thread: &str) -> usize {
            let found = self.0.get(thread).unwrap();
            let events = sent(found, found.outbox.first().unwrap().1);
            let count = events.len();
            events.into_iter().for_each(|event| self.apply(event));
            count
        }

        fn acknowledge(&mut self, thread: &str, key: &str, outcome: &Outcome) -> usize {
            let events = acknowledged(self.0.get(thread).unwrap(), key, outcome);
            let count = events.len();
            events.into_iter().for_each(|event| self.apply(event));
            count
        }

        fn counts(&self) -> [u64; 3] {
            let adapter = self.0.adapter("slack").unwrap();
            [adapter.pending, adapter.posted, adapter.refused]
        }
    }

    fn posted(place: &str) -> Outcome {
        Outcome::Posted { external_ref: Some(place.into()) }
    }

    #[test]
    fn items_of_a_thread_come_in_order_and_until_they_are_acknowledged() {
        let mut all = Folded::default();
        all.open("t1", "slack", Some("C1"));
        all.open("t2", "slack", Some("C2"));
        all.open("t3", "cli", None);
        for (thread, message) in [("t1", "a"), ("t3", "x"), ("t2", "b"), ("t1", "c")] {
            all.says(thread, message);
        }
        assert_eq!(all.counts(), [3, 0, 0], "the command line owes nothing");
        let key =
            |thread: &str, message: &str| Some((thread.to_string(), format!("{thread}/{message}")));
        assert_eq!(all.next(&[]), key("t1", "a"));
        assert_eq!(all.next(&["t1"]), key("t2", "b"));
        assert_eq!(all.next(&["t1", "t2"]), None);
        assert_eq!(all.acknowledge("t1", "t1/a", &posted("1")), 0, "it was never sent");
        assert_eq!((all.send("t1"), all.send("t1")), (2, 0), "a repetition writes nothing");
        assert_eq!(all.acknowledge("t1", "t1/c", &posted("1")), 0, "another item is on its way");
        assert_eq!(all.acknowledge("t1", "t1/a", &posted("1")), 2);
        assert_eq!(all.acknowledge("t1", "t1/a", &posted("1")), 0, "it is acknowledged once");
        let message = |id: &str| all.0.get("t1").unwrap().message(id).unwrap().clone();
        assert_eq!(message("a").state, State::Posted);
        assert_eq!(message("a").external_ref.as_deref(), Some("1"));
        assert_eq!(message("c").state, State::Recorded);
        assert_eq!(all.next(&[]), key("t2", "b"));
        all.send("t2");
        all.acknowledge("t2", "t2/b", &Outcome::Refused { reason: "no such channel".into() });
        assert_eq!(all.next(&[]), key("t1", "c"));
        assert_eq!(all.counts(), [1, 1, 1]);
        let refused = all.0.get("t2").unwrap().message("b").unwrap().clone();
        assert_eq!((refused.state, refused.reason.as_str()), (State::Refused, "no such channel"));
    }

    #[test]
    fn signals_in_memory_are_bounded_and_the_newest() {
        let mut signals = Signals::default();
        for seq in 1..=MOST_SIGNALS as u64 {
            signals.add(&format!("s{seq}"), seq);
        }
        assert_eq!((signals.contains("s1"), signals.left()), (true, None));
        signals.add("more", 1000);
        assert_eq!((signals.contains("s1"), signals.contains("s2")), (false, true));
        assert_eq!((signals.contains("more"), signals.left()), (true, Some(1)));
    }

    #[test]
    fn thread_is_found_by_its_own_adapter_only() {
        let mut all = Folded::default();
        all.open("t1", "slack", Some("C1"));
        let found = |adapter: &str| all.0.by_external(adapter, "C1").map(|thread| thread.id());
        assert_eq!([found("slack"), found("web")], [Some("t1"), None]);
    }

    #[test]
    fn refusal_of_a_message_is_posted_by_its_adapter() {
        for (adapter, external, count) in [("slack", Some("C1"), 2), ("cli", None, 1)] {
            let mut folded = Folded::default();
            folded.open("t1", adapter, external);
            folded.apply(Event::MessageAccepted(Box::new(MessageAccepted {
                thread: "t1".into(),
                message: "m1".into(),
                author: Author { kind: AuthorKind::Person, id: "U1".into(), name: "anna".into() },
                text: "hi".into(),
                key: "in/e1".into(),
                files: vec![],
                shown: false,
                command: None,
            })));
            let mut new_id = || DispatchId::try_from("msgabcde".to_string()).unwrap();
            let thread = folded.0.get("t1").unwrap();
            let events = step::refused(thread, "m1", "E_BACKEND_UNAVAILABLE", &mut new_id);
            assert_eq!(events.len(), count, "{events:?}");
            events.into_iter().for_each(|event| folded.apply(event));
            let thread = folded.0.get("t1").unwrap();
            assert_eq!(thread.message("m1").unwrap().state, State::Refused);
            assert_eq!(thread.outbox.size(), count - 1, "the reason is owed");
            let Some(reason) = thread.message("msgabcde") else { continue };
            assert!(reason.text.ends_with("E_BACKEND_UNAVAILABLE"), "{}", reason.text);
            assert_eq!(reason.answers, ["m1"]);
        }
    }
}
