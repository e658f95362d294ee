//! Decides where a message of a person goes: a command, an answer, or a message for an agent.
//!
//! The decision follows from the message, its thread and the open questions. It is made before
//! the message has a dispatch, and is durable with it: a message that has a dispatch, or one that
//! was handed on to the agent, is not routed again.

use crate::config::people::LOCAL;
use crate::conversation::command::{self, Command, Marks, Misuse};
use crate::conversation::event::{AuthorKind, State};
use crate::conversation::thread::{Message, Thread};
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::Fleet;
use std::sync::Arc;

/// The way of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route<A> {
    Command(Result<Command, Misuse>),
    /// A message for another role of the thread.
    Addressed {
        role: String,
        text: String,
    },
    /// It answers an open question.
    Answer(A),
    /// A message for the thread's agent.
    Agent,
}

/// Decides the way of a message. `as_answer` returns the answer that a text gives to an open
/// question of the thread.
pub fn route<A>(
    thread: &Thread,
    message: &Message,
    as_answer: impl FnOnce(&str) -> Option<A>,
) -> Route<A> {
    if is_decided(message) {
        return Route::Agent;
    }
    if let Some(command) = command::parse(&message.text, Marks::of(&thread.opened.adapter)) {
        return Route::Command(command);
    }
    match addressed(thread, message) {
        Some((role, text)) => Route::Addressed { role: role.into(), text: text.into() },
        None => as_answer(&message.text).map_or(Route::Agent, Route::Answer),
    }
}

/// Returns the oldest open message that is not for the thread's agent, with its way.
pub fn due(thread: &Thread) -> Option<(&Arc<Message>, Route<()>)> {
    let unrouted = thread.open().filter(|message| is_special(thread, message));
    unrouted.map(|message| (message, route(thread, message, |_| None))).next()
}

/// Whether a message waits for something else than the thread's agent.
pub(super) fn is_special(thread: &Thread, message: &Message) -> bool {
    !is_decided(message) && !matches!(route(thread, message, |_| None::<()>), Route::Agent)
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
    let is_own = thread.tasks.iter().any(|task| task.dispatches.contains(to));
    (!is_own).then(|| addressed(thread, message)).flatten()
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
