//! Renders meetings for `meeting`, in the same way for a live daemon and from disk.

use crate::dispatch::error::fault;
use jiff::Timestamp;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::{self, Unfound};
use muleteer_model::meeting::{Chair, Meeting, Phase};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{MeetingDoc, MeetingTurnDoc, WireError};
use std::cmp::Reverse;
use std::sync::Arc;

/// Returns all meetings, the newest first.
pub fn meetings(fleet: &Fleet) -> Vec<MeetingDoc> {
    let threads = fleet.conversations.iter();
    let mut all: Vec<_> = threads.flat_map(|thread| &thread.meetings).collect();
    all.sort_by_key(|meeting| (Reverse(meeting.at), meeting.id().to_string()));
    all.into_iter().map(|meeting| document(meeting)).collect()
}

/// Finds the one meeting whose id begins with `prefix`, or else the newest one of the thread whose
/// id begins with it.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn find(fleet: &Fleet, prefix: &str) -> Result<(Arc<Thread>, Arc<Meeting>), WireError> {
    let threads = || fleet.conversations.iter();
    let all = threads().flat_map(|thread| thread.meetings.iter().map(move |it| (thread, it)));
    let named = all.map(|(thread, meeting)| (meeting.id(), (thread, meeting)));
    match id::by_beginning(named, prefix) {
        Ok((thread, meeting)) => return Ok((thread.clone(), meeting.clone())),
        Err(Unfound::Unknown) => {}
        Err(Unfound::Ambiguous(ids)) => return Err(ambiguous(prefix, &ids)),
    }
    let held = threads().filter(|thread| !thread.meetings.is_empty());
    match id::by_beginning(held.map(|thread| (thread.id(), thread)), prefix) {
        Ok(thread) => match thread.meetings.last() {
            Some(meeting) => Ok((thread.clone(), meeting.clone())),
            None => Err(unknown(prefix)),
        },
        Err(Unfound::Unknown) => Err(unknown(prefix)),
        Err(Unfound::Ambiguous(ids)) => Err(ambiguous(prefix, &ids)),
    }
}

fn unknown(prefix: &str) -> WireError {
    let hint = "run `muleteer meeting list` to list the meetings";
    fault(ErrorCode::NotFound, &format!("no meeting `{prefix}`"), hint)
}

fn ambiguous(prefix: &str, ids: &[String]) -> WireError {
    let message = format!("`{prefix}` matches several meetings or threads: {}", ids.join(", "));
    fault(ErrorCode::Ambiguous, &message, "give a longer part of the id")
}

/// Renders a meeting with its turns.
pub fn in_full(meeting: &Meeting) -> MeetingDoc {
    let turns = meeting.turns.iter().map(|turn| MeetingTurnDoc {
        number: turn.number,
        kind: turn.kind.as_str().into(),
        role: turn.role.clone(),
        outcome: if turn.lost.is_some() { "lost" } else { "spoke" }.into(),
        reason: turn.lost.clone(),
        message_id: turn.message.clone(),
        text: turn.said.clone(),
    });
    MeetingDoc { turns: Some(turns.collect()), ..document(meeting) }
}

fn document(meeting: &Meeting) -> MeetingDoc {
    let started = &meeting.started;
    let (state, reason, ended_by, end) = match &meeting.phase {
        Phase::Talking => ("talking", None, None, None),
        Phase::Ending { reason, by, .. } => ("ending", Some(*reason), by.clone(), None),
        Phase::Ended { end, by, at } => ("ended", Some(end.reason), by.clone(), Some((end, *at))),
    };
    let left = started.roles.iter().filter(|role| meeting.has_left(role));
    let is_forgotten = end.is_some() && meeting.turns.is_empty() && !meeting.heard.is_empty();
    MeetingDoc {
        id: meeting.id().into(),
        thread_id: started.thread.clone(),
        topic: started.topic.clone(),
        state: state.into(),
        reason: reason.map(|reason| reason.as_str().into()),
        started_by: started.by.clone(),
        ended_by,
        started: time(meeting.at),
        ended: end.map(|(_, at)| time(at)),
        roles: started.roles.clone(),
        left: left.cloned().collect(),
        chair: match meeting.chair() {
            Chair::RoundRobin => "round-robin".into(),
            Chair::Mention => "mention".into(),
            Chair::Role(role) => role.into(),
        },
        turn_count: (!is_forgotten).then(|| meeting.count() as u64),
        max_turns: started.max_turns,
        spent_usd: end.map_or(meeting.spent_usd, |(end, _)| end.spent_usd),
        budget_usd: started.budget_usd,
        turn_limit_s: started.turn_limit_s,
        speaker: meeting.turn.as_ref().map(|turn| turn.given.role.clone()),
        minutes: end.and_then(|(end, _)| end.minutes.clone()),
        turns: None,
    }
}

fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
