//! Decides where a message of a person goes: a command, an answer, or a message for an agent.
//!
//! The decision follows from the message, its thread, its meeting and the open questions. It is
//! made before the message has a dispatch, and is durable with it: a message that has a dispatch,
//! or one that was handed on to the agent, is not routed again.

use crate::config::people::LOCAL;
use crate::conversation::command::{self, Command, Marks, Misuse};
use crate::conversation::event::{AuthorKind, State};
use crate::conversation::thread::{Message, Thread};
use crate::conversation::{meeting, schedule};
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use crate::question::fold::Questions;
use crate::question::{Answer, as_answer};
use std::sync::Arc;

/// In front of the keys of the messages that follow from answers.
pub const OWN_KEY: &str = "question/";

/// The way of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    Command(Result<Command, Misuse>),
    /// A message for another role of the thread.
    Addressed {
        role: String,
        text: String,
    },
    /// It answers an open question of the thread, or has answered it.
    Answer(Answering),
    /// It waits for the next speaker of the meeting that is held in the thread.
    Meeting,
    /// A message for the thread's agent.
    Agent,
}

/// The answer that a message gives to a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answering {
    /// The id of the question.
    pub question: String,
    pub answer: Answer,
}

/// Decides the way of a message.
pub fn route(thread: &Thread, message: &Message, questions: &Questions) -> Route {
    if is_decided(message) {
        return Route::Agent;
    }
    if let Some(command) = &message.command {
        return Route::Command(command.command());
    }
    if let Some(command) = command::parse(&message.text, Marks::of(&thread.opened)) {
        return Route::Command(command);
    }
    let holds = meeting::holds(thread, message);
    match addressed(thread, message).filter(|_| !holds) {
        Some((role, text)) => Route::Addressed { role: role.into(), text: text.into() },
        None => match answering(thread, message, questions) {
            Some(answering) => Route::Answer(answering),
            None if holds => Route::Meeting,
            None => Route::Agent,
        },
    }
}

/// Returns the oldest open message that is not for the thread's agent, with its way.
pub fn due<'a>(thread: &'a Thread, questions: &Questions) -> Option<(&'a Arc<Message>, Route)> {
    let routes = thread.open().map(|message| (message, route(thread, message, questions)));
    let mut special = routes.filter(|(_, route)| !matches!(route, Route::Agent | Route::Meeting));
    special.next()
}

/// Whether a message waits for something else than the thread's agent.
pub(super) fn is_special(thread: &Thread, message: &Message, questions: &Questions) -> bool {
    !matches!(route(thread, message, questions), Route::Agent)
}

/// Returns the answer of a message to an open question: the one that its first word names, else the
/// only one. A message that was written before the question is no answer to it.
fn answering(thread: &Thread, message: &Message, questions: &Questions) -> Option<Answering> {
    // Only a person answers: not Muleteer, which writes to an agent that it respawns.
    if !matches!(message.author.kind, AuthorKind::Person | AuthorKind::Operator)
        || message.key.as_ref().is_some_and(|key| is_own_key(key))
        || !message.files.is_empty()
    {
        return None;
    }
    // The daemon may have been killed between the answer and the end of the message.
    if let Some(known) = questions.answered_with(thread.id(), &message.id) {
        let answer = known.answer.clone().unwrap_or_default();
        return Some(Answering { question: known.id.clone(), answer });
    }
    let open = questions.open_of(thread.id());
    let (first, rest) = message.text.trim().split_once(char::is_whitespace).unwrap_or_default();
    let named = open.iter().find(|question| question.id == first.trim_end_matches(':'));
    let (question, text) = match (named, &open[..]) {
        (Some(question), _) => (question, rest),
        (None, [question]) if question.asked_at <= message.at => (question, &*message.text),
        (None, _) => return None,
    };
    let answer = as_answer(question, text)?;
    Some(Answering { question: question.id.clone(), answer })
}

/// Whether Muleteer wrote the message with this key, which therefore answers no question.
fn is_own_key(key: &str) -> bool {
    [OWN_KEY, schedule::PREFIX, meeting::PREFIX].iter().any(|prefix| key.starts_with(prefix))
}

/// Whether the way of a message is durable: it has a dispatch, or goes to the thread's agent.
fn is_decided(message: &Message) -> bool {
    message.delivery.is_some() || message.state != State::Accepted || !message.reason.is_empty()
}

/// Returns the role and the text of a message for another role than the thread's.
pub fn addressed<'a>(thread: &Thread, message: &'a Message) -> Option<(&'a str, &'a str)> {
    command::addressed(&message.text).filter(|(role, _)| *role != thread.opened.role)
}

/// Returns the role and the text of a message that another role than the thread's gets or has.
pub fn sent_elsewhere<'a>(thread: &Thread, message: &'a Message) -> Option<(&'a str, &'a str)> {
    let to = &message.delivery.as_ref()?.dispatch;
    // The dispatches of the thread's own agent are those of its tasks.
    (!thread.is_own(to)).then(|| addressed(thread, message)).flatten()
}

/// Returns the adapter that knows the author of a message.
pub fn adapter_of<'a>(thread: &'a Thread, message: &Message) -> &'a str {
    match message.author.kind {
        AuthorKind::Operator => LOCAL,
        _ => &thread.opened.adapter,
    }
}

/// Returns the dispatches of a thread, the newest first.
pub fn dispatches<'a>(
    thread: &'a Thread,
    fleet: &'a Fleet,
) -> impl Iterator<Item = &'a Arc<Dispatch>> {
    fleet.iter().rev().filter(|dispatch| dispatch.created.thread() == Some(thread.id()))
}

/// Whether an interrupt with this key has stopped a turn of any dispatch of the thread. The thread
/// may have another agent when the request is repeated.
pub fn has_interrupted(thread: &Thread, fleet: &Fleet, key: &str) -> bool {
    dispatches(thread, fleet).any(|dispatch| dispatch.interrupts.iter().any(|known| known == key))
}
