//! The state of one meeting.

use crate::conversation::event::State;
use crate::conversation::meeting::event::{
    ChairName, EndReason, MeetingEnded, MeetingStarted, MeetingTurn, MeetingTurnDone, TurnKind,
};
use crate::conversation::meeting::limits::{MOST_LOST, RECORD_LIMIT};
use crate::event::Record;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of one meeting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meeting {
    pub started: MeetingStarted,
    pub at: Timestamp,
    /// The record of its start.
    pub place: u64,
    pub phase: Phase,
    /// The turn that is under way.
    pub turn: Option<Turn>,
    /// The turns that are over, oldest first. A later meeting of the thread takes the place of
    /// those of an earlier one, whose minutes list them.
    pub turns: Vec<Taken>,
    /// The cost of the thread's agents so far, in US dollars.
    pub spent_usd: f64,
    /// The turns that each role lost in a row.
    pub lost: BTreeMap<String, u32>,
    /// The record of the newest turn of each role: it knows what was said before.
    pub heard: BTreeMap<String, u64>,
    /// The last text of the newest turn that was not lost.
    pub said: Option<Arc<str>>,
}

/// The phase of a meeting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Phase {
    Talking,
    /// It gives a turn for the minutes, unless it has them.
    Ending {
        reason: EndReason,
        by: Option<String>,
        /// The text of the minutes, as an agent wrote it.
        minutes: Option<Arc<str>>,
    },
    Ended {
        end: MeetingEnded,
        by: Option<String>,
        at: Timestamp,
    },
}

/// A turn that is under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    pub given: MeetingTurn,
    /// The record of the turn.
    pub place: u64,
    /// The record of the role's turn before, or of the start.
    pub since: u64,
    /// The message that answers it: its text, and whether an agent wrote it.
    pub answer: Option<(Arc<str>, bool)>,
    /// The final state of its message, with the reason.
    pub over: Option<(State, String)>,
}

/// A turn that is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    pub number: u32,
    pub kind: TurnKind,
    pub role: String,
    pub message: String,
    /// The reason why it was lost.
    pub lost: Option<String>,
    /// The beginning of what was said.
    pub said: String,
}

/// The rule by which turns are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chair<'a> {
    RoundRobin,
    Mention,
    Role(&'a str),
}

impl Meeting {
    pub(super) fn new(started: &MeetingStarted, record: &Record) -> Self {
        Self {
            started: started.clone(),
            at: record.ts,
            place: record.seq,
            phase: Phase::Talking,
            turn: None,
            turns: vec![],
            spent_usd: 0.0,
            lost: BTreeMap::new(),
            heard: BTreeMap::new(),
            said: None,
        }
    }

    pub fn id(&self) -> &str {
        &self.started.meeting
    }

    pub fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }

    /// Returns the rule. That of a newer version is followed as round robin.
    pub fn chair(&self) -> Chair<'_> {
        match (self.started.chair, &self.started.chair_role) {
            (ChairName::Role, Some(role)) => Chair::Role(role),
            (ChairName::Mention, _) => Chair::Mention,
            (ChairName::RoundRobin | ChairName::Role | ChairName::Newer, _) => Chair::RoundRobin,
        }
    }

    /// Whether a role takes no more turns, because it lost too many in a row.
    pub fn has_left(&self, role: &str) -> bool {
        self.lost.get(role).is_some_and(|lost| *lost >= MOST_LOST)
    }

    /// The roles that still take turns, in their order.
    pub fn present(&self) -> impl Iterator<Item = &str> {
        let roles = self.started.roles.iter().map(String::as_str);
        roles.filter(|role| !self.has_left(role))
    }

    /// Whether a role takes part: as a speaker or as the chair.
    pub fn has(&self, role: &str) -> bool {
        self.started.roles.iter().any(|known| known == role) || self.chair() == Chair::Role(role)
    }

    /// Whether the minutes are in the folder of the thread alone.
    pub fn has_only_copy(&self) -> bool {
        let Phase::Ended { end, .. } = &self.phase else { return false };
        let (Some(place), Some(file)) = (&end.minutes, &end.file) else { return false };
        place.ends_with(&format!("{}/{}", file.sha256, file.name))
    }

    /// The number of turns that count against the limit.
    pub fn count(&self) -> usize {
        self.turns.iter().filter(|turn| turn.kind != TurnKind::Minutes).count()
    }

    /// Whether a message gives or gave a turn of the meeting.
    pub fn gave(&self, message: &str) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.given.message == message)
            || self.turns.iter().any(|turn| turn.message == message)
    }

    pub(super) fn give(&mut self, given: &MeetingTurn, place: u64) {
        let since = self.heard.insert(given.role.clone(), place).unwrap_or(self.place);
        self.turn = Some(Turn { given: given.clone(), place, since, answer: None, over: None });
    }

    pub(super) fn done(&mut self, done: &MeetingTurnDone) {
        let Some(turn) = self.turn.take_if(|turn| turn.given.turn == done.turn) else { return };
        let (role, kind) = (turn.given.role, turn.given.kind);
        let said = turn.answer.map(|(text, _)| text);
        let failed = match done.lost {
            Some(_) => self.lost.get(&role).copied().unwrap_or_default().saturating_add(1),
            None => 0,
        };
        self.lost.insert(role.clone(), failed);
        let clipped = said.as_deref().map(|text| clip(text, RECORD_LIMIT)).unwrap_or_default();
        if let (None, Some(said)) = (&done.lost, said) {
            match (&mut self.phase, kind) {
                (Phase::Ending { minutes, .. }, TurnKind::Minutes) => *minutes = Some(said),
                _ => self.said = Some(said),
            }
        }
        self.turns.push(Taken {
            number: turn.given.turn,
            kind,
            role,
            message: turn.given.message,
            lost: done.lost.clone(),
            said: if done.lost.is_none() { clipped } else { String::new() },
        });
    }

    pub(super) fn ending(&mut self, reason: EndReason, by: Option<&String>) {
        if self.phase == Phase::Talking {
            self.phase = Phase::Ending { reason, by: by.cloned(), minutes: None };
        }
    }

    pub(super) fn end(&mut self, end: &MeetingEnded, at: Timestamp) {
        let by = match &self.phase {
            Phase::Ending { by, .. } | Phase::Ended { by, .. } => by.clone(),
            Phase::Talking => None,
        };
        self.phase = Phase::Ended { end: end.clone(), by, at };
        self.turn = None;
        self.said = None;
    }
}

/// Returns the beginning of a text, on one line.
pub(super) fn clip(text: &str, limit: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.len() <= limit {
        true => text,
        false => format!("{} […]", &text[..text.floor_char_boundary(limit)]),
    }
}
