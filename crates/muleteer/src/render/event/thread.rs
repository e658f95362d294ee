//! The events of threads in one line each.

use crate::render::clip;
use crate::render::event::TEXT;
use muleteer_model::config::ThreadVerbosity;
use muleteer_model::conversation::event::State;
use muleteer_model::event::Event;
use muleteer_model::schedule::event::{ScheduleDone, ScheduleDue, ScheduleSet};
use muleteer_model::{
    daemon_events, dispatch_events, meeting_events, spec_run_events, task_list_events,
};

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
        Event::ThreadTaskOpened { thread, task, title, .. } => {
            format!("thread {thread}: task {task}: {title}")
        }
        Event::ThreadTaskState { thread, task, state, dispatch, reason } => {
            let by = dispatch.as_ref().map(|id| format!(" with dispatch {id}")).unwrap_or_default();
            format!("thread {thread}: task {task} is {}{by}{}", state.as_str(), because(reason))
        }
        Event::ThreadRole(changed) => {
            format!("thread {}: {} answers, by {}", changed.thread, changed.role, changed.by)
        }
        Event::ThreadVerbosity(changed) => {
            let level = changed.verbosity.map_or("as the roles say", ThreadVerbosity::as_str);
            format!("thread {}: verbosity {level}, by {}", changed.thread, changed.by)
        }
        Event::ThreadArchived { thread, by } => format!("thread {thread}: archived by {by}"),
        Event::AdapterStarted(started) => {
            format!("adapter {}: process {} started", started.adapter, started.pid)
        }
        Event::AdapterLost(lost) => format!(
            "adapter {}: lost: {}; restarts in {} ms",
            lost.adapter,
            clip(&lost.reason, TEXT),
            lost.delay_ms
        ),
        Event::AdapterSetAside(aside) => {
            let reason = clip(&aside.reason, TEXT);
            format!("adapter {}: set aside, it failed too often: {reason}", aside.adapter)
        }
        Event::AdapterSwitched(switched) => {
            let state = if switched.enabled { "enabled" } else { "disabled" };
            format!("adapter {}: {state} by {}", switched.adapter, switched.by)
        }
        Event::PostState(post) => {
            let state = post.state.as_str();
            format!("thread {}: item {} is {state}{}", post.thread, post.key, because(&post.reason))
        }
        Event::AdapterSignal(signal) => {
            format!("thread {}: {} by {}", signal.thread, signal.kind, signal.by)
        }
        Event::StrangerTold(told) => {
            format!("adapter {}: told {} how to get permissions", told.adapter, told.user)
        }
        Event::ScheduleSet(set) => schedule_set(set),
        Event::ScheduleDue(due) => schedule_due(due),
        Event::ScheduleDone(done) => schedule_done(done),
        meeting_events!() => return meeting(event),
        Event::QuestionAsked(asked) => format!(
            "question {}: {} asks: {}",
            asked.question,
            asked.asked_by,
            clip(asked.text.trim(), TEXT)
        ),
        Event::QuestionAnswered(answered) => format!(
            "question {}: answered by {}: {}",
            answered.question,
            answered.by,
            clip(&answered.answer.describe(), TEXT)
        ),
        Event::QuestionState { question, state, reason } => {
            format!("question {question}: is {}{}", state.as_str(), because(reason))
        }
        daemon_events!()
        | dispatch_events!()
        | spec_run_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

fn meeting(event: &Event) -> Option<String> {
    Some(match event {
        Event::MeetingStarted(it) => format!(
            "meeting {}: started in thread {} with {}: {}",
            it.meeting,
            it.thread,
            it.roles.join(", "),
            clip(&it.topic, TEXT)
        ),
        Event::MeetingTurn(it) => {
            format!("meeting {}: turn {} for {} ({})", it.meeting, it.turn, it.role, it.why)
        }
        Event::MeetingTurnDone(it) => match &it.lost {
            Some(reason) => {
                format!("meeting {}: turn {} is lost{}", it.meeting, it.turn, because(reason))
            }
            None => format!("meeting {}: turn {} is over", it.meeting, it.turn),
        },
        Event::MeetingEnding(it) => {
            let by = it.by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
            format!("meeting {}: ends: {}{by}", it.meeting, it.reason.describe())
        }
        Event::MeetingEnded(it) => {
            let place = it.minutes.as_ref().map(|place| format!("; minutes: {place}"));
            let place = place.unwrap_or_default();
            format!("meeting {}: ended: {}{place}", it.meeting, it.reason.describe())
        }
        _ => return None,
    })
}

fn schedule_set(set: &ScheduleSet) -> String {
    match &set.cron {
        Some(cron) => format!("schedule {}: follows `{cron}`", set.schedule),
        None if set.removed => format!("schedule {}: was removed", set.schedule),
        None => format!("schedule {}: is disabled", set.schedule),
    }
}

fn schedule_due(due: &ScheduleDue) -> String {
    match (&due.skipped, &due.by) {
        (Some(reason), _) => format!("schedule {}: skipped {}: {reason}", due.schedule, due.due),
        (None, Some(by)) => format!("schedule {}: started by {by}", due.schedule),
        (None, None) => format!("schedule {}: due at {}", due.schedule, due.due),
    }
}

fn schedule_done(done: &ScheduleDone) -> String {
    match (&done.thread, &done.message) {
        (Some(thread), Some(message)) => {
            format!("schedule {}: wrote {message} to thread {thread}", done.schedule)
        }
        _ => format!("schedule {}: failed{}", done.schedule, because(&done.reason)),
    }
}

fn because(reason: &str) -> String {
    match reason {
        "" => String::new(),
        reason => format!(": {}", clip(reason, TEXT)),
    }
}
