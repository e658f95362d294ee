//! The events of threads in one line each.

use crate::render::clip;
use crate::render::event::TEXT;
use muleteer_model::conversation::event::State;
use muleteer_model::event::Event;
use muleteer_model::{daemon_events, dispatch_events, spec_run_events, task_list_events};

/// Describes an event of a thread.
pub(super) fn describe(event: &Event) -> Option<String> {
    Some(match event {
        Event::ThreadOpened(opened) => {
            format!("thread {}: opened for {} on {}", opened.thread, opened.role, opened.project)
        }
        Event::MessageAccepted(accepted) => format!(
            "thread {}: {} writes {}: {}",
            accepted.thread,
            accepted.author.name,
            accepted.message,
            clip(accepted.text.trim(), TEXT)
        ),
        Event::MessageState { thread, message, state, reason, dispatch } => {
            let to = dispatch.as_ref().map(|id| format!(" for dispatch {id}")).unwrap_or_default();
            let why = because(reason);
            let state = match state {
                State::Queued | State::Accepted => state.as_str().to_string(),
                state => format!("is {}", state.as_str()),
            };
            format!("thread {thread}: message {message} {state}{to}{why}")
        }
        Event::MessageRecorded(recorded) => format!(
            "thread {}: {} answers: {}",
            recorded.thread,
            recorded.author.name,
            clip(recorded.text.trim(), TEXT)
        ),
        Event::ThreadTaskOpened { thread, task, title } => {
            format!("thread {thread}: task {task}: {title}")
        }
        Event::ThreadTaskState { thread, task, state, dispatch, reason } => {
            let by = dispatch.as_ref().map(|id| format!(" with dispatch {id}")).unwrap_or_default();
            format!("thread {thread}: task {task} is {}{by}{}", state.as_str(), because(reason))
        }
        Event::ThreadArchived { thread, by } => format!("thread {thread}: archived by {by}"),
        daemon_events!()
        | dispatch_events!()
        | spec_run_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {}", clip(reason, TEXT)),
    }
}
