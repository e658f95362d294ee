//! The meetings of a thread, folded from its events.

use crate::conversation::event::{AuthorKind, MessageRecorded, State};
use crate::conversation::meeting::fold::{Meeting, Turn};
use crate::conversation::thread::Thread;
use crate::event::{Event, Record};
use std::sync::Arc;

/// Returns the thread of an event of a meeting.
pub fn thread_of(event: &Event) -> Option<&str> {
    match event {
        Event::MeetingStarted(it) => Some(&it.thread),
        Event::MeetingTurn(it) => Some(&it.thread),
        Event::MeetingTurnDone(it) => Some(&it.thread),
        Event::MeetingEnding(it) => Some(&it.thread),
        Event::MeetingEnded(it) => Some(&it.thread),
        _ => None,
    }
}

impl Thread {
    /// Returns the meeting that is held in the thread now.
    pub fn meeting(&self) -> Option<&Arc<Meeting>> {
        self.meetings.last().filter(|meeting| meeting.is_open())
    }

    fn meeting_mut(&mut self) -> Option<&mut Meeting> {
        self.meetings.last_mut().filter(|meeting| meeting.is_open()).map(Arc::make_mut)
    }

    /// Folds an event of a meeting in.
    pub(in crate::conversation) fn apply_meeting(&mut self, event: &Event, record: &Record) {
        self.last_activity = record.ts;
        if let Event::MeetingStarted(started) = event {
            if self.meeting().is_none() {
                // The minutes of an earlier meeting have its turns.
                for earlier in &mut self.meetings {
                    Arc::make_mut(earlier).turns = vec![];
                }
                self.meetings.push(Arc::new(Meeting::new(started, record)));
            }
            return;
        }
        let Some(meeting) = self.meeting_mut() else { return };
        match event {
            Event::MeetingTurn(it) if it.meeting == meeting.id() => meeting.give(it, record.seq),
            Event::MeetingTurnDone(it) if it.meeting == meeting.id() => meeting.done(it),
            Event::MeetingEnding(it) if it.meeting == meeting.id() => {
                meeting.ending(it.reason, it.by.as_ref());
            }
            Event::MeetingEnded(it) if it.meeting == meeting.id() => meeting.end(it, record.ts),
            _ => {}
        }
    }

    fn turn_mut(&mut self, message: &str) -> Option<&mut Turn> {
        let is_open = |thread: &Self| {
            let turn = thread.meeting().and_then(|meeting| meeting.turn.as_ref());
            turn.is_some_and(|turn| turn.given.message == message)
        };
        // A meeting that does not change stays shared with older snapshots.
        if !is_open(self) {
            return None;
        }
        self.meeting_mut()?.turn.as_mut()
    }

    /// Notes the last message of a turn of a meeting.
    pub(in crate::conversation) fn answer_turn(&mut self, recorded: &MessageRecorded) {
        for message in &recorded.answers {
            if let Some(turn) = self.turn_mut(message) {
                let is_agent = recorded.author.kind == AuthorKind::Agent;
                turn.answer = Some((recorded.text.as_str().into(), is_agent));
            }
        }
    }

    /// Notes the final state of the message of a turn of a meeting.
    pub(in crate::conversation) fn end_turn(&mut self, message: &str, state: State, why: &str) {
        if let Some(turn) = self.turn_mut(message) {
            turn.over = Some((state, why.into()));
        }
    }

    /// Adds the cost of an agent of the thread to the meeting that is held in it.
    pub(in crate::conversation) fn spend(&mut self, cost_usd: f64) {
        if let Some(meeting) = self.meeting_mut() {
            meeting.spent_usd += cost_usd;
        }
    }

    /// Returns the open messages that a turn hears besides its own, if it is among `answers`.
    pub(in crate::conversation) fn heard_with(&self, answers: &[String]) -> Vec<String> {
        let turn = self.meeting().and_then(|meeting| meeting.turn.as_ref());
        let turn = turn.filter(|turn| answers.contains(&turn.given.message));
        let hears = turn.map(|turn| &turn.given.hears[..]).unwrap_or_default();
        let is_open = |id: &&String| self.open().any(|message| message.id == **id);
        hears.iter().filter(|id| !answers.contains(*id)).filter(is_open).cloned().collect()
    }
}
