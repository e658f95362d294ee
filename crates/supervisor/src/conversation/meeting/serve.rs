//! Handles the gate's requests about meetings.

use crate::conversation::deliver::{entries, template};
use crate::conversation::meeting::view;
use crate::conversation::view::find as find_thread;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, unappended};
use crate::dispatch::request;
use crate::ledger::try_append;
use crate::ports::conversation::ConversationsMsg;
use crate::ports::ledger::LedgerError;
use muleteer_model::conversation::command::addressed;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::meeting::event::{ChairName, EndReason, MeetingStarted};
use muleteer_model::meeting::{
    MOST_MEETINGS, MOST_ROLES, MOST_TURNS, TOPIC_LIMIT, USUAL_LIMIT_S, USUAL_TURNS, step,
};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{MeetingDoc, MeetingStart, Reply, Spawn, WireError};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest time that a turn may have: a day.
const LONGEST_LIMIT_S: u64 = 24 * 3600;

/// Lists the meetings, or one with its turns.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn list(daemon: &Daemon, meeting: Option<&str>) -> Result<Reply, WireError> {
    let fleet = daemon.snapshot();
    match meeting {
        Some(named) => view::find(&fleet, named).map(|(_, found)| one(view::in_full(&found))),
        None => Ok(Reply::Meetings { meetings: view::meetings(&fleet) }),
    }
}

fn one(meeting: MeetingDoc) -> Reply {
    Reply::Meetings { meetings: vec![meeting] }
}

/// Starts a meeting in a thread. Returns once it is durable; a repeated request is answered, and
/// starts no second one.
///
/// # Errors
/// A role cannot be used, a limit is out of range, or the thread holds a meeting (`E_BUSY`).
pub async fn start(
    daemon: &Arc<Daemon>,
    asked: &MeetingStart,
    by: &str,
) -> Result<Reply, WireError> {
    let id = find_thread(daemon, &asked.thread)?.id().to_string();
    let _alone = daemon.creating(&format!("thread {id}")).await;
    let thread = find_thread(daemon, &id)?;
    if let Some(known) = thread.meetings.iter().find(|it| it.id() == asked.meeting) {
        return Ok(one(view::in_full(known)));
    }
    let started = checked(asked, &id, by)?;
    if let Some(open) = thread.meeting() {
        let message = format!("thread {id} holds the meeting {} already", open.id());
        let hint = format!("end it with `muleteer meeting end {}`", open.id());
        return Err(fault(ErrorCode::Busy, &message, &hint));
    }
    if thread.meetings.len() >= MOST_MEETINGS {
        let message = format!("thread {id} has held {MOST_MEETINGS} meetings, which is the most");
        let hint = "start the next one without --thread, in a thread of its own";
        return Err(fault(ErrorCode::BadInput, &message, hint));
    }
    let template = template(daemon, &thread)?;
    for role in started.roles.iter().chain(&started.chair_role) {
        request::check(daemon, &Spawn { role: role.clone(), model: None, ..template.clone() })?;
    }
    let meeting = started.meeting.clone();
    let mut entries = entries(vec![Event::MeetingStarted(Box::new(started))]);
    for entry in &mut entries {
        entry.id = format!("meeting/{meeting}");
    }
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    point("meeting.started");
    daemon.ports.conversations.cast(ConversationsMsg::Look);
    list(daemon, Some(&meeting))
}

/// Checks what follows from the request alone.
fn checked(asked: &MeetingStart, thread: &str, by: &str) -> Result<MeetingStarted, WireError> {
    let bad = |message: &str, hint: &str| Err(fault(ErrorCode::BadInput, message, hint));
    DispatchId::try_from(asked.meeting.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    let topic = asked.topic.trim();
    if topic.is_empty() || topic.len() > TOPIC_LIMIT {
        let message = format!("a topic has 1 to {TOPIC_LIMIT} bytes");
        return bad(&message, "name a file of the project in the topic, and the roles read it");
    }
    let distinct: BTreeSet<_> = asked.roles.iter().collect();
    if asked.roles.is_empty() || asked.roles.len() > MOST_ROLES {
        let message = format!("a meeting has 1 to {MOST_ROLES} roles");
        return bad(&message, "name each role with --role");
    }
    if distinct.len() < asked.roles.len() {
        return bad("a role is named twice", "name each role once");
    }
    let (chair, chair_role) = match asked.chair.as_str() {
        "" | "round-robin" => (ChairName::RoundRobin, None),
        "mention" => (ChairName::Mention, None),
        role => (ChairName::Role, Some(role.to_string())),
    };
    // A turn is addressed to its role with `@ROLE`.
    let is_name = |role: &&String| addressed(&format!("@{role} x")) == Some((role.as_str(), "x"));
    if let Some(role) = asked.roles.iter().chain(&chair_role).find(|role| !is_name(role)) {
        return bad(&format!("`{role}` is no name of a role"), "");
    }
    let max_turns = asked.max_turns.unwrap_or(USUAL_TURNS);
    if !(1..=MOST_TURNS).contains(&max_turns) {
        return bad(&format!("a meeting has 1 to {MOST_TURNS} turns"), "");
    }
    let turn_limit_s = asked.turn_limit_s.unwrap_or(USUAL_LIMIT_S);
    if !(1..=LONGEST_LIMIT_S).contains(&turn_limit_s) {
        return bad("the time of a turn is 1 s to 24 h", "");
    }
    if asked.budget_usd.is_some_and(|usd| !usd.is_finite() || usd <= 0.0) {
        return bad("the budget is not a positive amount of US dollars", "");
    }
    Ok(MeetingStarted {
        thread: thread.into(),
        meeting: asked.meeting.clone(),
        topic: topic.into(),
        roles: asked.roles.clone(),
        chair,
        chair_role,
        max_turns,
        budget_usd: asked.budget_usd,
        turn_limit_s,
        by: by.into(),
    })
}

/// Ends a meeting. Returns once that is durable; the turn that is under way and the minutes come
/// later. One that is over stays as it is.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub async fn end(daemon: &Arc<Daemon>, meeting: &str, by: &str) -> Result<Reply, WireError> {
    let (thread, found) = view::find(&daemon.snapshot(), meeting)?;
    let (thread, id) = (thread.id().to_string(), found.id().to_string());
    let _alone = daemon.creating(&format!("thread {thread}")).await;
    let (thread, found) = view::find(&daemon.snapshot(), &id)?;
    let events = step::ending(&thread, &found, EndReason::Requested, Some(by));
    if !events.is_empty() {
        try_append(daemon, entries(events)).await.map_err(|error| unappended(&error))?;
        daemon.ports.conversations.cast(ConversationsMsg::Look);
    }
    list(daemon, Some(&id))
}

/// Waits until a meeting is over. Cancel-safe.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`; the daemon ends.
pub async fn wait(daemon: &Arc<Daemon>, meeting: &str) -> Result<Reply, WireError> {
    let id = view::find(&daemon.snapshot(), meeting)?.1.id().to_string();
    let mut changes = daemon.fleet.subscribe();
    loop {
        let fleet = changes.borrow_and_update().clone();
        let (_, found) = view::find(&fleet, &id)?;
        if !found.is_open() {
            return Ok(one(view::in_full(&found)));
        }
        if changes.changed().await.is_err() {
            return Err(unappended(&LedgerError::Ending));
        }
    }
}
