//! The notifications that were sent, and those that are due, on disk.

use crate::notify::channel::Message;
use jiff::{SignedDuration, Timestamp};
use muleteer_model::notify::{Notice, Told};
use muleteer_store::StoreError;
use muleteer_store::atomic::write_atomic;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

/// The tries of one notification on one channel.
const MOST_TRIES: u32 = 5;
const FIRST_PAUSE_S: i64 = 4;
/// The most notifications that are not delivered everywhere. The oldest of more is given up.
pub const MOST_OPEN: usize = 32;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Memory {
    /// Earlier matters are no news.
    pub since: Timestamp,
    #[serde(default)]
    pub told: Told,
    #[serde(default)]
    number: u64,
    /// The notifications that are not delivered on every channel, by their number.
    #[serde(default)]
    open: BTreeMap<u64, Open>,
    /// The newest error of each channel, until it works again.
    #[serde(default)]
    pub failing: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Open {
    message: Message,
    channels: BTreeMap<String, Tries>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Tries {
    count: u32,
    /// `None` while a try is made. After a restart its outcome is unknown.
    next: Option<Timestamp>,
}

/// A notification that was given up before it was delivered on every channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    pub title: String,
    /// The channels that did not get it.
    pub channels: Vec<String>,
}

/// The outcome of a try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Sent,
    /// Nobody was told, so it is tried again.
    Failed(String),
    /// The person may have been told, so it is not tried again.
    Uncertain(String),
    /// Nobody was told, and another try would fail for the same reason.
    Refused(String),
}

impl Memory {
    pub fn begin(since: Timestamp) -> Self {
        let (told, open, failing) = (Told::default(), BTreeMap::new(), BTreeMap::new());
        Self { since, told, number: 0, open, failing }
    }

    /// Reads the file; without one, begins now.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path, now: Timestamp) -> io::Result<Self> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::begin(now)),
            Err(error) => return Err(error),
        };
        let mut memory: Self = serde_json::from_slice(&bytes)?;
        // Nobody can tell whether the try of a daemon that died reached the person.
        for open in memory.open.values_mut() {
            open.channels.retain(|_, tries| tries.next.is_some());
        }
        memory.open.retain(|_, open| !open.channels.is_empty());
        Ok(memory)
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), StoreError> {
        write_atomic(path, &serde_json::to_vec(self).unwrap_or_default(), 0o600)
    }

    /// Adds a notification that is to be sent on these channels. Returns the oldest ones, which are
    /// given up for it: more than [`MOST_OPEN`] are not kept.
    pub fn add(
        &mut self,
        message: Message,
        notice: &Notice,
        channels: &[&str],
        now: Timestamp,
    ) -> Vec<Dropped> {
        self.told.note(notice.matters.iter().map(|matter| matter.key.clone()), now);
        self.number += 1;
        let tries = |name: &&str| (name.to_string(), Tries { count: 0, next: Some(now) });
        let channels = channels.iter().map(tries).collect();
        self.open.insert(self.number, Open { message, channels });
        let mut dropped = vec![];
        while self.open.len() > MOST_OPEN {
            let Some((_, oldest)) = self.open.pop_first() else { break };
            let channels = oldest.channels.into_keys().collect();
            dropped.push(Dropped { title: oldest.message.title, channels });
        }
        dropped
    }

    /// Returns a notification and the channel on which it is due, of the channels that are not
    /// `busy` with another one. The one with the fewest tries comes first, and then the oldest: new
    /// ones do not wait for those that a channel fails to send again and again.
    pub fn due(&self, now: Timestamp, busy: &BTreeSet<String>) -> Option<(u64, String)> {
        let all = self.open.iter().flat_map(|(id, open)| {
            open.channels.iter().map(move |(channel, tries)| (*id, channel, tries))
        });
        let is_due = |tries: &Tries| tries.next.is_some_and(|next| next <= now);
        let due = all.filter(|(_, channel, tries)| is_due(tries) && !busy.contains(*channel));
        let (id, channel, _) = due.min_by_key(|(id, _, tries)| (tries.count, *id))?;
        Some((id, channel.clone()))
    }

    /// Returns when the next try is due on a channel that is not `busy`.
    pub fn next(&self, busy: &BTreeSet<String>) -> Option<Timestamp> {
        let tries = self.open.values().flat_map(|open| &open.channels);
        tries.filter(|(channel, _)| !busy.contains(*channel)).filter_map(|(_, it)| it.next).min()
    }

    pub fn message(&self, id: &u64) -> Option<Message> {
        self.open.get(id).map(|open| open.message.clone())
    }

    /// Notes that a try is made.
    pub fn tried(&mut self, id: &u64, channel: &str) {
        if let Some(tries) = self.open.get_mut(id).and_then(|open| open.channels.get_mut(channel)) {
            tries.count += 1;
            tries.next = None;
        }
    }

    /// Takes back a try that was not made, because it could not be recorded. It is made later.
    pub fn not_tried(&mut self, id: &u64, channel: &str, now: Timestamp) {
        if let Some(tries) = self.open.get_mut(id).and_then(|open| open.channels.get_mut(channel)) {
            tries.count = tries.count.saturating_sub(1);
            tries.next = now.checked_add(SignedDuration::from_secs(FIRST_PAUSE_S)).ok();
        }
    }

    /// Notes the outcome of a try. A failed one is made again a bounded number of times.
    pub fn ended(&mut self, id: &u64, channel: &str, outcome: Outcome, now: Timestamp) {
        // Also the outcome of a notification that was given up meanwhile says how the channel is.
        match &outcome {
            Outcome::Sent => drop(self.failing.remove(channel)),
            Outcome::Uncertain(error) | Outcome::Refused(error) | Outcome::Failed(error) => {
                self.failing.insert(channel.into(), error.clone());
            }
        }
        let Some(open) = self.open.get_mut(id) else { return };
        match outcome {
            Outcome::Sent | Outcome::Uncertain(_) | Outcome::Refused(_) => {
                open.channels.remove(channel);
            }
            Outcome::Failed(_) => {
                let tries = open.channels.get(channel).map_or(MOST_TRIES, |tries| tries.count);
                let pause = SignedDuration::from_secs(FIRST_PAUSE_S << tries.min(10));
                match now.checked_add(pause) {
                    Ok(next) if tries < MOST_TRIES => {
                        if let Some(tries) = open.channels.get_mut(channel) {
                            tries.next = Some(next);
                        }
                    }
                    _ => drop(open.channels.remove(channel)),
                }
            }
        }
        if open.channels.is_empty() {
            self.open.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn memory() -> Memory {
        let mut memory = Memory::begin(at(0));
        assert_eq!(add(&mut memory, "one"), []);
        memory
    }

    fn add(memory: &mut Memory, title: &str) -> Vec<Dropped> {
        let message = Message { title: title.into(), text: "text".into(), matters: vec![] };
        memory.add(message, &Notice { matters: vec![] }, &["command", "ntfy"], at(1))
    }

    fn idle() -> BTreeSet<String> {
        BTreeSet::new()
    }

    #[test]
    fn channel_that_is_busy_delays_no_other_one() {
        let mut memory = memory();
        let (id, channel) = memory.due(at(1), &idle()).unwrap();
        assert_eq!(channel, "command");
        memory.tried(&id, &channel);
        let busy = BTreeSet::from(["command".to_string()]);
        add(&mut memory, "two");
        for number in 1..=2 {
            assert_eq!(memory.due(at(1), &busy), Some((number, "ntfy".into())));
            memory.tried(&number, "ntfy");
            memory.ended(&number, "ntfy", Outcome::Sent, at(1));
        }
        assert_eq!((memory.due(at(1), &busy), memory.next(&busy)), (None, None));
        assert_eq!(memory.due(at(1), &idle()), Some((2, "command".into())));
    }

    #[test]
    fn new_notification_comes_before_those_that_failed() {
        let mut memory = memory();
        memory.tried(&1, "command");
        memory.ended(&1, "command", Outcome::Failed("slow".into()), at(1));
        add(&mut memory, "two");
        let busy = BTreeSet::from(["ntfy".to_string()]);
        assert_eq!(memory.due(at(1_000), &busy), Some((2, "command".into())));
        memory.tried(&2, "command");
        memory.ended(&2, "command", Outcome::Sent, at(1_000));
        assert_eq!(memory.due(at(1_000), &busy), Some((1, "command".into())));
    }

    #[test]
    fn notification_that_is_given_up_is_named() {
        let mut memory = memory();
        memory.tried(&1, "ntfy");
        memory.ended(&1, "ntfy", Outcome::Sent, at(1));
        memory.tried(&1, "command");
        for number in 2..=MOST_OPEN {
            assert_eq!(add(&mut memory, &format!("number {number}")), []);
        }
        let channels = vec!["command".to_string()];
        assert_eq!(add(&mut memory, "new"), [Dropped { title: "one".into(), channels }]);
        // The try of the one that was given up ends afterwards.
        memory.ended(&1, "command", Outcome::Failed("slow".into()), at(9));
        assert_eq!(memory.failing["command"], "slow");
        assert_eq!(add(&mut memory, "newer")[0].title, "number 2");
        assert_eq!(memory.open.len(), MOST_OPEN);
    }

    #[test]
    fn try_of_a_daemon_that_died_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify.json");
        let mut first = memory();
        let (id, channel) = first.due(at(1), &idle()).unwrap();
        assert_eq!(channel, "command");
        first.tried(&id, &channel);
        first.write(&path).unwrap();
        let mut second = Memory::read(&path, at(9)).unwrap();
        assert_eq!(second.due(at(9), &idle()), Some((id, "ntfy".into())));
        second.tried(&id, "ntfy");
        second.ended(&id, "ntfy", Outcome::Sent, at(9));
        second.write(&path).unwrap();
        let third = Memory::read(&path, at(10)).unwrap();
        assert_eq!((third.due(at(10_000), &idle()), third.next(&idle())), (None, None));
    }

    #[test]
    fn failed_try_is_repeated_a_bounded_number_of_times() {
        let mut memory = memory();
        let mut now = at(1);
        let mut tries = 0;
        memory.tried(&1, "command");
        memory.ended(&1, "command", Outcome::Sent, now);
        while let Some(next) = memory.next(&idle()) {
            now = next;
            let (id, channel) = memory.due(now, &idle()).unwrap();
            memory.tried(&id, &channel);
            memory.ended(&id, &channel, Outcome::Failed("refused".into()), now);
            tries += 1;
        }
        assert_eq!(tries, MOST_TRIES);
        assert_eq!(memory.failing["ntfy"], "refused");
    }

    #[test]
    fn try_of_unknown_outcome_is_not_repeated() {
        let mut memory = memory();
        for channel in ["command", "ntfy"] {
            memory.tried(&1, channel);
            memory.ended(&1, channel, Outcome::Uncertain("it did not end".into()), at(2));
        }
        assert_eq!((memory.due(at(10_000), &idle()), memory.next(&idle())), (None, None));
        assert_eq!(memory.failing["ntfy"], "it did not end", "`status` shows it");
    }

    #[test]
    fn try_that_could_not_be_recorded_is_made_later() {
        let mut memory = memory();
        for second in 0..20 {
            memory.tried(&1, "command");
            memory.not_tried(&1, "command", at(second));
        }
        memory.tried(&1, "ntfy");
        memory.ended(&1, "ntfy", Outcome::Sent, at(20));
        assert_eq!(memory.due(at(20), &idle()), None, "not at once");
        let next = memory.next(&idle()).unwrap();
        assert_eq!(memory.due(next, &idle()), Some((1, "command".into())));
    }

    #[test]
    fn damaged_file_is_an_error_and_no_empty_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify.json");
        assert!(Memory::read(&path, at(0)).is_ok());
        std::fs::write(&path, b"{").unwrap();
        assert!(Memory::read(&path, at(0)).is_err());
    }
}
