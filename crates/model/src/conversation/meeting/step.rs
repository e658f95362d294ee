//! The next events of a meeting. They follow from the thread alone, so a daemon that is killed
//! anywhere decides the same again.

use crate::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageFile, MessageRecorded, State,
};
use crate::conversation::meeting::event::{
    EndReason, MeetingEnded, MeetingEnding, MeetingTurn, MeetingTurnDone, TurnKind,
};
use crate::conversation::meeting::fold::{Chair, Meeting, Phase, Turn, clip};
use crate::conversation::meeting::speaker::{self, Next};
use crate::conversation::meeting::{MOST_LOST, MOST_WRITERS, NAME, PREFIX, minutes};
use crate::conversation::route::{Route, route};
use crate::conversation::step::state;
use crate::conversation::thread::{Message, Thread};
use crate::dispatch::fleet::Fleet;
use crate::event::Event;
use crate::event::id::DispatchId;
use std::time::Duration;

/// Returns the next events of the meeting of a thread; empty if nothing follows. They belong into
/// one batch.
pub fn next(thread: &Thread, fleet: &Fleet, new_id: &mut dyn FnMut() -> DispatchId) -> Vec<Event> {
    let Some(meeting) = thread.meeting() else { return vec![] };
    if let Some(turn) = &meeting.turn {
        return match outcome(turn) {
            Some(lost) => done(thread, meeting, turn, lost, new_id),
            None => vec![],
        };
    }
    match &meeting.phase {
        Phase::Talking => talk(thread, meeting, fleet, new_id),
        Phase::Ending { minutes: None, .. } => match writer(meeting) {
            Some(role) => {
                let why = "it writes the minutes".to_string();
                give(thread, meeting, fleet, (role, TurnKind::Minutes, why), new_id)
            }
            None => vec![],
        },
        Phase::Ending { .. } | Phase::Ended { .. } => vec![],
    }
}

/// Returns how a turn ended, with the reason if it is lost; `None` while it goes on.
fn outcome(turn: &Turn) -> Option<Option<String>> {
    let (state, reason) = turn.over.as_ref()?;
    let because = |what: &str| match reason.is_empty() {
        true => Some(what.to_string()),
        false => Some(reason.clone()),
    };
    Some(match (state, &turn.answer) {
        (State::Answered, Some((_, true))) if reason.is_empty() => None,
        (State::Answered, Some((text, false))) if reason.is_empty() => Some(clip(text, 200)),
        (State::Answered, _) => because("the agent said nothing"),
        (State::Unknown, _) => because("it is unknown whether the agent received it"),
        _ => because("no agent received it"),
    })
}

/// Ends a turn. A lost one is told in the thread.
fn done(
    thread: &Thread,
    meeting: &Meeting,
    turn: &Turn,
    lost: Option<String>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let given = &turn.given;
    let mut events = vec![];
    if let Some(reason) = &lost {
        let failed = meeting.lost.get(&given.role).copied().unwrap_or_default() + 1;
        let leaves = if failed >= MOST_LOST { " It takes no more turns." } else { "" };
        let text = format!(
            "`{}` lost turn {} of the meeting: {}.{leaves}",
            given.role,
            given.turn,
            reason.trim_end_matches('.')
        );
        events.push(told(thread, text, vec![], new_id));
    } else {
        // A person whose message was heard is answered by what was said.
        let open = thread.open().filter(|message| given.hears.contains(&message.id));
        events.extend(open.map(|message| state(thread, &message.id, State::Answered, "")));
    }
    events.push(Event::MeetingTurnDone(Box::new(MeetingTurnDone {
        thread: thread.id().into(),
        meeting: meeting.id().into(),
        turn: given.turn,
        lost,
    })));
    events
}

/// Returns the events after the time of [`waits`] has passed; none if the wait is over.
pub fn timed_out(
    thread: &Thread,
    wait: &str,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let Some(meeting) = thread.meeting() else { return vec![] };
    if present_wait(thread, meeting).as_deref() != Some(wait) {
        return vec![];
    }
    let Some(turn) = &meeting.turn else {
        return ending(thread, meeting, EndReason::NobodyMentioned, None);
    };
    let limit = meeting.started.turn_limit_s;
    let lost = format!("no answer within {}", crate::config::Span::from_secs(limit));
    // A message that no agent has would give the turn later.
    let unheard = thread.open().find(|message| message.id == turn.given.message);
    let unheard = unheard.filter(|message| message.delivery.is_none());
    let refused = unheard.map(|message| state(thread, &message.id, State::Refused, &lost));
    let done = done(thread, meeting, turn, Some(lost.clone()), new_id);
    refused.into_iter().chain(done).collect()
}

/// Returns what a meeting waits for, and how long it may. The same text is the same wait.
pub fn waits(thread: &Thread, fleet: &Fleet) -> Option<(String, Duration)> {
    let meeting = thread.meeting()?;
    let wait = present_wait(thread, meeting)?;
    let message = meeting.turn.as_ref().map(|turn| &turn.given.message);
    let message = message.and_then(|id| thread.open().find(|message| message.id == *id));
    let dispatch = message.and_then(|message| fleet.get(&message.delivery.as_ref()?.dispatch));
    // The queue for the pool, a person's answer and the API's limits are no fault of the role. The
    // time begins again after them.
    let rests = matches!(dispatch.map(|it| it.state()), Some("queued" | "waiting"));
    let limit = Duration::from_secs(meeting.started.turn_limit_s);
    (!rests).then_some((wait, limit))
}

fn present_wait(thread: &Thread, meeting: &Meeting) -> Option<String> {
    match &meeting.turn {
        Some(turn) => {
            let is_open = thread.open().any(|message| message.id == turn.given.message);
            is_open.then(|| format!("{}/{}", meeting.id(), turn.given.turn))
        }
        None if meeting.phase == Phase::Talking => {
            Some(format!("{}/after/{}", meeting.id(), meeting.turns.len()))
        }
        None => None,
    }
}

/// Returns the dispatch that has the turn which is under way, and the key of its interrupt.
pub fn interrupt(thread: &Thread) -> Option<(DispatchId, String)> {
    let meeting = thread.meeting()?;
    let turn = meeting.turn.as_ref()?;
    let message = thread.open().find(|message| message.id == turn.given.message)?;
    let dispatch = message.delivery.as_ref()?.dispatch.clone();
    Some((dispatch, format!("meeting-{}-{}", meeting.id(), turn.given.turn)))
}

/// Gives the next turn, or ends the meeting.
fn talk(
    thread: &Thread,
    meeting: &Meeting,
    fleet: &Fleet,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let started = &meeting.started;
    if meeting.count() >= started.max_turns as usize {
        return ending(thread, meeting, EndReason::MaxTurns, None);
    }
    if started.budget_usd.is_some_and(|usd| meeting.spent_usd >= usd) {
        return ending(thread, meeting, EndReason::Budget, None);
    }
    match speaker::next(meeting, &held(thread, fleet)) {
        Next::Turn { role, kind, why } => give(thread, meeting, fleet, (&role, kind, why), new_id),
        Next::Wait => vec![],
        Next::End(reason) => ending(thread, meeting, reason, None),
    }
}

/// The open messages that wait for the next speaker, oldest first.
fn held<'a>(thread: &'a Thread, fleet: &Fleet) -> Vec<&'a Message> {
    let all = thread.open().map(|message| &**message);
    all.filter(|message| route(thread, message, &fleet.questions) == Route::Meeting).collect()
}

/// Gives a turn to a role. Its message has the id of the dispatch, if the role has none.
fn give(
    thread: &Thread,
    meeting: &Meeting,
    fleet: &Fleet,
    (role, kind, why): (&str, TurnKind, String),
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let message = loop {
        let id = new_id().to_string();
        if thread.message(&id).is_none() {
            break id;
        }
    };
    let number = u32::try_from(meeting.turns.len()).unwrap_or(u32::MAX).saturating_add(1);
    let what = match kind {
        TurnKind::Minutes => "Write the minutes of the meeting".to_string(),
        TurnKind::Choose => format!("Turn {number}, for the chair of the meeting"),
        TurnKind::Speak | TurnKind::Newer => format!("Turn {number} of the meeting"),
    };
    let accepted = MessageAccepted {
        thread: thread.id().into(),
        message: message.clone(),
        // The operator started it, so it has the operator's rights in the thread.
        author: Author { kind: AuthorKind::Operator, id: "operator".into(), name: NAME.into() },
        text: format!("@{role} {what}: {}", clip(&meeting.started.topic, 200)),
        // The id is new, so nobody can have used the key before.
        key: format!("{PREFIX}{}/{message}", meeting.id()),
        files: vec![],
        shown: false,
        command: None,
    };
    let turn = MeetingTurn {
        thread: thread.id().into(),
        meeting: meeting.id().into(),
        turn: number,
        kind,
        role: role.into(),
        message,
        hears: held(thread, fleet).into_iter().map(|message| message.id.clone()).collect(),
        why,
    };
    vec![Event::MeetingTurn(Box::new(turn)), Event::MessageAccepted(Box::new(accepted))]
}

/// Returns the role that is asked for the minutes: the chair, else the last speaker, else the first
/// role. One that failed at it is not asked again.
fn writer(meeting: &Meeting) -> Option<&str> {
    let tried = meeting.turns.iter().filter(|turn| turn.kind == TurnKind::Minutes);
    let tried: Vec<_> = tried.map(|turn| turn.role.as_str()).collect();
    let has_spoken = meeting.turns.iter().any(|turn| turn.lost.is_none());
    // Without a word there is nothing to write.
    if tried.len() >= MOST_WRITERS || !has_spoken {
        return None;
    }
    let chair = match meeting.chair() {
        Chair::Role(role) => Some(role),
        Chair::RoundRobin | Chair::Mention => None,
    };
    let spoke = meeting.turns.iter().rev().filter(|turn| turn.lost.is_none());
    let last = spoke.map(|turn| turn.role.as_str());
    let all = chair.into_iter().chain(last).chain(meeting.started.roles.iter().map(String::as_str));
    let mut all = all.filter(|role| !meeting.has_left(role) && !tried.contains(role));
    all.next()
}

/// Returns the events after which a meeting gives no more turns; none if it is ending already.
pub fn ending(
    thread: &Thread,
    meeting: &Meeting,
    reason: EndReason,
    by: Option<&str>,
) -> Vec<Event> {
    if meeting.phase != Phase::Talking {
        return vec![];
    }
    vec![Event::MeetingEnding(Box::new(MeetingEnding {
        thread: thread.id().into(),
        meeting: meeting.id().into(),
        reason,
        by: by.map(String::from),
    }))]
}

/// Returns the document of the minutes, if it is due: it is written before the meeting ends.
pub fn minutes_due(thread: &Thread) -> Option<String> {
    let meeting = thread.meeting().filter(|meeting| meeting.turn.is_none())?;
    let Phase::Ending { minutes, .. } = &meeting.phase else { return None };
    let is_due = minutes.is_some() || writer(meeting).is_none();
    is_due.then(|| minutes::document(thread, meeting))
}

/// Returns the events that end a meeting whose minutes are durable: its end and the message with
/// the minutes. `place` is the path for people.
pub fn ended(
    thread: &Thread,
    file: MessageFile,
    place: &str,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let Some(meeting) = thread.meeting() else { return vec![] };
    let Phase::Ending { reason, .. } = &meeting.phase else { return vec![] };
    let text = minutes::message(meeting, *reason, place);
    let end = MeetingEnded {
        thread: thread.id().into(),
        meeting: meeting.id().into(),
        reason: *reason,
        spent_usd: meeting.spent_usd,
        minutes: Some(place.into()),
        file: Some(file.clone()),
    };
    vec![told(thread, text, vec![file], new_id), Event::MeetingEnded(Box::new(end))]
}

/// Returns the end of the meeting of a thread that is archived. It has no minutes.
pub fn archived(thread: &Thread) -> Option<Event> {
    let meeting = thread.meeting()?;
    Some(Event::MeetingEnded(Box::new(MeetingEnded {
        thread: thread.id().into(),
        meeting: meeting.id().into(),
        reason: EndReason::Archived,
        spent_usd: meeting.spent_usd,
        minutes: None,
        file: None,
    })))
}

fn told(
    thread: &Thread,
    text: String,
    files: Vec<MessageFile>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Event {
    Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author: Author::muleteer(),
        text,
        answers: vec![],
        dispatch: None,
        turn: None,
        files,
        reports_through: None,
    }))
}

/// Says, for people, why a message waits for the meeting.
pub(in crate::conversation) fn reason(meeting: &Meeting, message: &Message) -> String {
    match meeting.turn.as_ref().filter(|turn| turn.given.hears.contains(&message.id)) {
        Some(turn) => format!("`{}` hears it in turn {}", turn.given.role, turn.given.turn),
        None => "waits for the next speaker of the meeting".into(),
    }
}
