//! Finds threads, and renders them for `thread`, in the same way for a live daemon and from disk.

use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::question::view as question_view;
use jiff::Timestamp;
use muleteer_model::conversation::fold::LookupError;
use muleteer_model::conversation::step;
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{
    AuthorDoc, FileDoc, MessageDoc, ThreadDoc, ThreadInFull, ThreadTaskDoc, WireError,
};
use std::cmp::Reverse;
use std::sync::Arc;

/// Returns the one thread whose id begins with `prefix`.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`.
pub fn find(daemon: &Daemon, prefix: &str) -> Result<Arc<Thread>, WireError> {
    let fleet = daemon.snapshot();
    fleet.conversations.find(prefix).cloned().map_err(|error| unfound(&error))
}

/// Converts the error of a prefix that names no thread.
pub fn unfound(error: &LookupError) -> WireError {
    match error {
        LookupError::Unknown(_) => fault(
            ErrorCode::NotFound,
            &error.to_string(),
            "run `muleteer thread list` to list the threads",
        ),
        LookupError::Ambiguous { .. } => {
            fault(ErrorCode::Ambiguous, &error.to_string(), "give a longer part of the id")
        }
    }
}

/// Returns all threads, the most recently active first.
pub fn threads(fleet: &Fleet) -> Vec<ThreadDoc> {
    let mut all: Vec<_> = fleet.conversations.iter().collect();
    all.sort_by_key(|thread| (Reverse(thread.last_activity), thread.id().to_string()));
    all.into_iter().map(|thread| document(thread, fleet)).collect()
}

pub fn document(thread: &Thread, fleet: &Fleet) -> ThreadDoc {
    let opened = &thread.opened;
    ThreadDoc {
        id: opened.thread.clone(),
        title: thread.title(),
        adapter: opened.adapter.clone(),
        external: opened.external.clone(),
        role: opened.role.clone(),
        project: opened.project.clone(),
        state: if thread.archived { "archived" } else { "open" }.into(),
        created: time(thread.created),
        last_activity: time(thread.last_activity),
        message_count: thread.messages.len() as u64,
        open_questions: fleet.questions.open_in(thread.id()) as u64,
        dispatch_id: thread.dispatch.as_ref().map(ToString::to_string),
    }
}

/// Returns a thread with the messages that are in memory, its tasks and questions.
pub fn in_full(thread: &Thread, fleet: &Fleet) -> ThreadInFull {
    let messages = thread.messages.iter().map(|one| message(thread, one, fleet)).collect();
    ThreadInFull { messages, ..without_messages(thread, fleet) }
}

/// Returns a thread with its tasks and questions.
pub fn without_messages(thread: &Thread, fleet: &Fleet) -> ThreadInFull {
    let tasks = thread.tasks.iter().map(|task| ThreadTaskDoc {
        id: task.id.clone(),
        title: task.title.clone(),
        state: task.state.as_str().into(),
        dispatches: task.dispatches.iter().map(ToString::to_string).collect(),
    });
    let questions = fleet.questions.of_thread(thread.id()).into_iter();
    ThreadInFull {
        thread: document(thread, fleet),
        messages: vec![],
        tasks: tasks.collect(),
        questions: questions.map(|question| question_view::document(question)).collect(),
    }
}

pub fn message(thread: &Thread, message: &Message, fleet: &Fleet) -> MessageDoc {
    let files = message.files.iter().map(|file| FileDoc {
        name: file.name.clone(),
        bytes: file.bytes,
        sha256: file.sha256.clone(),
    });
    MessageDoc {
        id: message.id.clone(),
        direction: if message.is_inbound() { "in" } else { "out" }.into(),
        author: AuthorDoc {
            kind: message.author.kind.as_str().into(),
            id: message.author.id.clone(),
            name: message.author.name.clone(),
        },
        text: message.text.to_string(),
        at: time(message.at),
        state: message.state.as_str().into(),
        reason: Some(step::reason(thread, message, fleet)).filter(|reason| !reason.is_empty()),
        key: message.key.clone(),
        files: files.collect(),
        answers: message.answers.clone(),
        dispatch_id: message.delivery.as_ref().map(|delivery| delivery.dispatch.to_string()),
    }
}

fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
