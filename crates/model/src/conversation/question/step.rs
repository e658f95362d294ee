//! The decisions about questions: pure functions of the question and the fleet.

use crate::agent::ask::OURSELVES;
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use crate::event::Event;
use crate::question::event::{
    Answer, AnsweredBy, Choice, Kind, QuestionAnswered, QuestionAsked, State,
};
use crate::question::{MOST_OPEN, MOST_OPTIONS, Question, TEXT_LIMIT, sign_off};
use jiff::Timestamp;

/// The option of a stall that begins the work again.
pub const RESPAWN: &str = "respawn";
/// The option of a stall that gives the work up.
pub const ABANDON: &str = "abandon";
/// The option of a stall that leaves the dispatch as it is.
pub const LEAVE: &str = "leave";

/// The reason why a question cannot be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unaskable {
    #[error("the question is empty")]
    Empty,
    #[error(
        "the question, or its options and default together, are longer than {TEXT_LIMIT} bytes, \
         or it has more than {MOST_OPTIONS} options"
    )]
    TooLong,
    #[error("{MOST_OPEN} questions of the dispatch are open")]
    TooMany,
    #[error("the default is none of the options")]
    BadDefault,
    #[error("a question without options must take a text")]
    Unanswerable,
}

/// The outcome of a request to ask.
#[derive(Debug, Clone, PartialEq)]
pub enum Asking<'a> {
    /// The same question is open already.
    Known(&'a Question),
    New(Box<Event>),
}

/// Decides about a new question. A dispatch, or a subject without one, has at most one open
/// question with the same text: asking again returns the open one.
///
/// # Errors
/// The question cannot be asked.
pub fn ask<'a>(fleet: &'a Fleet, asked: &QuestionAsked) -> Result<Asking<'a>, Unaskable> {
    if asked.text.trim().is_empty() {
        return Err(Unaskable::Empty);
    }
    let of_choice = |one: &Choice| one.id.len() + one.label.len() + one.description.len();
    let choices = asked.options.iter().map(of_choice).sum::<usize>()
        + asked.default.as_ref().map_or(0, String::len);
    let is_long = asked.text.len() > TEXT_LIMIT || choices > TEXT_LIMIT;
    if is_long || asked.options.len() > MOST_OPTIONS {
        return Err(Unaskable::TooLong);
    }
    if asked.options.is_empty() && !asked.free_text {
        return Err(Unaskable::Unanswerable);
    }
    let is_option = |default: &String| asked.options.iter().any(|option| option.id == *default);
    if asked.default.as_ref().is_some_and(|default| !asked.free_text && !is_option(default)) {
        return Err(Unaskable::BadDefault);
    }
    if let Some(known) = fleet.questions.get(&asked.question) {
        return Ok(Asking::Known(known));
    }
    let of_dispatch =
        |open: &&Question| asked.dispatch.is_some() && open.dispatch == asked.dispatch;
    let same = |open: &&Question| {
        (of_dispatch(open) && open.text == asked.text)
            || (!asked.subject.is_empty() && open.subject == asked.subject)
    };
    let open = || fleet.questions.open().map(|open| &**open);
    if let Some(known) = open().find(same) {
        return Ok(Asking::Known(known));
    }
    if open().filter(of_dispatch).count() >= MOST_OPEN {
        return Err(Unaskable::TooMany);
    }
    Ok(Asking::New(Box::new(Event::QuestionAsked(Box::new(asked.clone())))))
}

/// Returns the event of an answer; `None` if the question is not open. The first answer counts.
pub fn answered(question: &Question, answer: Answer, by: AnsweredBy, key: &str) -> Option<Event> {
    question.is_open().then(|| {
        let question = question.id.clone();
        Event::QuestionAnswered(Box::new(QuestionAnswered {
            question,
            answer,
            by,
            key: key.into(),
        }))
    })
}

/// Returns the event that follows for a question by itself: its default at the deadline, or the end
/// of one whose agent is gone. A request of an agent's CLI is decided with its dispatch.
pub fn next(question: &Question, fleet: &Fleet, now: Timestamp) -> Option<Event> {
    if question.request.is_some() || !question.is_open() {
        return None;
    }
    let to = |state, reason: &str| {
        let (question, reason) = (question.id.clone(), reason.into());
        Some(Event::QuestionState { question, state, reason })
    };
    if question.deadline.is_some_and(|deadline| deadline <= now) {
        return match question.default {
            Some(_) => to(State::Expired, "its deadline passed: the default was taken"),
            None => to(State::Withdrawn, "its deadline passed, and it has no default"),
        };
    }
    if let Some(newer) = sign_off::superseded_by(question, &fleet.questions) {
        return to(State::Withdrawn, &sign_off::superseded(&newer.id));
    }
    let dispatch = question.dispatch.as_ref().and_then(|id| fleet.get(id))?;
    match question.kind {
        Kind::Question if is_over(dispatch) => to(State::Withdrawn, "its agent has ended"),
        Kind::Stall if !is_stalled(dispatch) => {
            to(State::Withdrawn, "the dispatch is not stalled any more")
        }
        _ => None,
    }
}

/// Returns the next deadline among open questions.
pub fn next_deadline(fleet: &Fleet) -> Option<Timestamp> {
    let open = fleet.questions.open().filter(|question| question.request.is_none());
    open.filter_map(|question| question.deadline).min()
}

/// Whether an agent has ended and no message continues it.
fn is_over(dispatch: &Dispatch) -> bool {
    dispatch.is_finished() && (dispatch.was_killed_for_good() || !dispatch.can_go_on())
}

fn is_stalled(dispatch: &Dispatch) -> bool {
    dispatch.state() == "stalled"
}

/// Returns the question about a stalled dispatch of a thread; `None` if there is nothing to ask, or
/// if it was asked already. A dispatch that stalls once more is asked about once more.
pub fn stall(fleet: &Fleet, dispatch: &Dispatch, id: String) -> Option<QuestionAsked> {
    let thread = dispatch.created.thread()?;
    let is_present = fleet
        .conversations
        .get(thread)
        .is_some_and(|thread| thread.dispatch.as_ref() == Some(&dispatch.id));
    let subject = stall_subject(dispatch);
    if !is_present || !is_stalled(dispatch) || fleet.questions.of_subject(&subject).is_some() {
        return None;
    }
    let escalated = dispatch.healing.escalated(dispatch.retries.reopened);
    let healing = escalated.map(|why| format!(" Self-healing: {why}.")).unwrap_or_default();
    Some(QuestionAsked {
        question: id,
        kind: Kind::Stall,
        text: format!(
            "{} stalled: {}.{healing} Respawn it, abandon it, or leave it?",
            dispatch.created.role,
            dispatch.reason.as_deref().unwrap_or("it gave no sign of life")
        ),
        options: vec![
            Choice::new(RESPAWN, "a new agent continues the conversation"),
            Choice::new(ABANDON, "the dispatch is closed for good"),
            Choice::new(LEAVE, "the next message continues its session"),
        ],
        multi: false,
        free_text: false,
        detail: serde_json::json!({ "reason": dispatch.reason }),
        default: None,
        deadline: None,
        thread: Some(thread.into()),
        shown_in: vec![],
        dispatch: Some(dispatch.id.clone()),
        asked_by: OURSELVES.into(),
        subject,
    })
}

/// Returns the subject of the question about a stall: the dispatch, and how often it was reopened.
fn stall_subject(dispatch: &Dispatch) -> String {
    format!("stall/{}/{}", dispatch.id, dispatch.retries.reopened)
}
