//! The messages of a thread that stay in memory: the open ones and the newest final ones. The
//! database has all of them, filled from the events (`muleteer-store`, `db/messages.rs`).

use crate::conversation::event::State;
use crate::conversation::thread::Message;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The most final messages of a thread that stay in memory.
pub const KEPT: usize = 50;
/// The most bytes of their texts.
pub const KEPT_BYTES: u64 = 128 * 1024;
/// The most threads with final messages in memory. The least recently active one loses its own.
pub const HOLDERS: usize = 200;

/// Messages by the sequence number of the record that made them. A snapshot shares with the one
/// before it all that has not changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    kept: RedBlackTreeMapSync<u64, Arc<Message>>,
    /// The places of the kept messages by their numbers in the thread, from 0.
    numbers: RedBlackTreeMapSync<u64, u64>,
    /// The number of all messages of the thread.
    count: u64,
    /// The final ones among the kept messages, and the bytes of their texts.
    finals: usize,
    bytes: u64,
    /// The newest message that left the memory.
    through: u64,
    /// The record at which it left. A database that has this record has the final states of all
    /// messages that left.
    left_at: u64,
}

impl Window {
    /// The kept messages, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        self.kept.values()
    }

    /// The kept messages with their places, oldest first.
    pub fn places(&self) -> impl DoubleEndedIterator<Item = (u64, &Arc<Message>)> {
        self.kept.iter().map(|(place, message)| (*place, message))
    }

    /// The kept messages from this number on, oldest first, with their numbers in the thread. A
    /// number that is left out is in the database only.
    pub fn since(&self, number: u64) -> impl Iterator<Item = (u64, &Arc<Message>)> {
        let numbers = self.numbers.range(number..);
        numbers.filter_map(|(number, place)| Some((*number, self.kept.get(place)?)))
    }

    /// Returns the kept message with this number, and its place.
    pub fn numbered(&self, number: u64) -> Option<(&Arc<Message>, u64)> {
        let place = *self.numbers.get(&number)?;
        Some((self.kept.get(&place)?, place))
    }

    pub fn get(&self, place: u64) -> Option<&Arc<Message>> {
        self.kept.get(&place)
    }

    /// The number of all messages of the thread, kept or not.
    pub fn len(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX)
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the place of the newest message that only the database has, and the record that the
    /// database must have for that. `None` if all messages are kept.
    pub fn left(&self) -> Option<(u64, u64)> {
        (self.through > 0).then_some((self.through, self.left_at))
    }

    /// Adds a message.
    pub(in crate::conversation) fn push(&mut self, place: u64, message: Message) {
        self.numbers.insert_mut(self.count, place);
        self.count += 1;
        self.grow(&message);
        self.kept.insert_mut(place, Arc::new(message));
    }

    /// Changes a kept message.
    pub(in crate::conversation) fn set(&mut self, place: u64, message: Message) {
        if let Some(before) = self.kept.get(&place).cloned() {
            self.shrink(&before);
            self.grow(&message);
            self.kept.insert_mut(place, Arc::new(message));
        }
    }

    /// Removes and returns the oldest final message if more are kept than `most`, or more bytes
    /// than `bytes`. `now` is the newest folded record.
    /// Messages that an adapter is owed stay, if `owes` says that there may be some.
    pub(in crate::conversation) fn pop(
        &mut self,
        most: usize,
        bytes: u64,
        owes: bool,
        now: u64,
    ) -> Option<Arc<Message>> {
        if self.finals == 0 || (self.finals <= most && self.bytes <= bytes) {
            return None;
        }
        let is_owed = |state| owes && matches!(state, State::Recorded | State::Sent);
        let leaves = |message: &Message| message.state.is_final() && !is_owed(message.state);
        let oldest = self.numbers.iter().find_map(|(number, place)| {
            let message = self.kept.get(place).filter(|message| leaves(message))?;
            Some((*number, *place, message.clone()))
        });
        let (number, place, message) = oldest?;
        self.numbers.remove_mut(&number);
        self.kept.remove_mut(&place);
        self.shrink(&message);
        (self.through, self.left_at) = (self.through.max(place), now);
        Some(message)
    }

    fn grow(&mut self, message: &Message) {
        if message.state.is_final() {
            self.finals += 1;
            self.bytes += message.text.len() as u64;
        }
    }

    fn shrink(&mut self, message: &Message) {
        if message.state.is_final() {
            self.finals -= 1;
            self.bytes -= message.text.len() as u64;
        }
    }
}
