//! The reports to a thread about its agents' work: journal entries, warnings, stalls, crashes,
//! compactions and ends, as messages of Muleteer.
//!
//! A record of a dispatch becomes a [`Report`] when it is folded, so a report is as durable as its
//! record. Reports within [`SPAN`] are one message. That message names the newest record that it
//! tells, and folding it removes the reports up to that record. So a daemon that is killed anywhere
//! tells each report once: the next daemon folds the same reports, and decides by their recorded
//! times.

use crate::config::types::ThreadVerbosity;
use crate::conversation::event::{Author, MessageRecorded};
use crate::conversation::thread::Thread;
use crate::dispatch::Dispatch;
use crate::event::id::DispatchId;
use crate::event::mcp::{McpCalled, Tool};
use crate::event::{Event, Outcome, Record};
use crate::monitor::Action;
use crate::text::one_line::one_line;
use crate::{
    conversation_events, daemon_events, dispatch_events, spec_run_events, task_list_events,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Reports that follow the first one within this time are in the same message.
pub const SPAN: SignedDuration = SignedDuration::from_secs(5);
/// The most reports of one message.
pub const MOST: usize = 40;
/// The most reports that wait. Older ones are left out, and the message says how many.
pub const MOST_PENDING: usize = 120;
/// The most items that a thread owes its adapter before reports wait. An agent that reports faster
/// than the adapter posts would fill the outbox otherwise.
pub const MOST_OWED: usize = 64;

/// One thing that happened in a dispatch of the thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The sequence number of its record.
    pub seq: u64,
    /// The time of its record.
    pub at: Timestamp,
    pub dispatch: DispatchId,
    pub role: String,
    /// One line of text.
    pub text: String,
    /// The dispatch has ended.
    pub is_end: bool,
}

/// The reports that no message tells yet, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reports {
    pending: Vec<Arc<Report>>,
    /// So many older ones were left out.
    dropped: u64,
}

impl Reports {
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    fn push(&mut self, report: Report) {
        if self.pending.len() >= MOST_PENDING {
            let oldest = self.pending.iter().position(|one| !one.is_end).unwrap_or_default();
            self.pending.remove(oldest);
            self.dropped += 1;
        }
        self.pending.push(Arc::new(report));
    }

    /// Removes the reports that a message tells.
    pub(in crate::conversation) fn remove_through(&mut self, through: u64) {
        self.pending.retain(|report| report.seq > through);
        self.dropped = 0;
    }

    /// Returns the reports of the next message: those within [`SPAN`] of the first one, up to the
    /// end of a dispatch.
    fn group(&self) -> &[Arc<Report>] {
        let Some(first) = self.pending.first() else { return &[] };
        let until = first.at.saturating_add(SPAN).unwrap_or(Timestamp::MAX);
        let is_within = |report: &&Arc<Report>| report.at <= until;
        let mut count = self.pending.iter().take(MOST).take_while(is_within).count();
        if let Some(end) = self.pending.iter().take(count).position(|report| report.is_end) {
            count = end + 1;
        }
        &self.pending[..count.max(1)]
    }
}

impl Thread {
    /// Adds the report that follows from a record of a dispatch of the thread, which has the record
    /// folded in. Returns whether there is one.
    pub(in crate::conversation) fn report(&mut self, dispatch: &Dispatch, record: &Record) -> bool {
        // A dispatch of a version without reports tells nothing.
        let Some(of_dispatch) = dispatch.created.thread_verbosity else { return false };
        let verbosity = self.verbosity.unwrap_or(of_dispatch);
        let Some((least, text)) = described(&record.entry.event) else { return false };
        if verbosity < least {
            return false;
        }
        self.reports.push(report(dispatch, record, one_line(&text), false));
        true
    }

    /// Adds the report of the end of a dispatch of another role.
    pub(in crate::conversation) fn report_end(&mut self, dispatch: &Dispatch, record: &Record) {
        let reason = dispatch.reason.as_deref().filter(|reason| !reason.is_empty());
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let state = match record.entry.event {
            Event::DispatchFinished { state, .. } => state.as_str(),
            _ => dispatch.state(),
        };
        let text = format!(
            "The agent has ended ({state}){}. `{}`, {}: {}.",
            one_line(reason.trim_end_matches('.')),
            dispatch.created.role,
            dispatch.id,
            figures(dispatch)
        );
        self.reports.push(report(dispatch, record, text, true));
    }
}

fn report(dispatch: &Dispatch, record: &Record, text: String, is_end: bool) -> Report {
    let role = dispatch.created.role.clone();
    Report { seq: record.seq, at: record.ts, dispatch: dispatch.id.clone(), role, text, is_end }
}

/// Returns the turns, time, cost and model of a dispatch that has ended: `3 turns, 4m10s, $0.12,
/// opus`.
pub fn figures(dispatch: &Dispatch) -> String {
    let turns = dispatch.turns;
    let lasted = dispatch.since.duration_since(dispatch.created_at);
    let seconds = Duration::from_secs(u64::try_from(lasted.as_secs()).unwrap_or_default());
    let model = dispatch.session.model.as_deref().or(dispatch.model.wanted.as_deref());
    let model = model.or(dispatch.created.model.as_deref()).unwrap_or("the CLI's own model");
    format!(
        "{turns} {}, {}, ${:.2}, {}",
        if turns == 1 { "turn" } else { "turns" },
        crate::config::Span(seconds),
        dispatch.spend.cost_usd.max(0.0),
        one_line(model)
    )
}

/// Whether some verbosity tells an event.
pub(in crate::conversation) fn may_tell(event: &Event) -> bool {
    described(event).is_some()
}

/// Describes an event that a thread is told of, with the least verbosity that tells it.
#[expect(unreachable_patterns, reason = "the groups name the events above too")]
fn described(event: &Event) -> Option<(ThreadVerbosity, String)> {
    use ThreadVerbosity::{All, Normal, Quiet};
    Some(match event {
        Event::DispatchCreated(created) => (Quiet, created.role_fault.clone()?),
        Event::StallDetected { silent_s, evidence } => {
            (Quiet, format!("stalled: no sign of life for {silent_s} s ({evidence})"))
        }
        Event::AttemptFinished { attempt, outcome: Outcome::Failure, reason, counted: true } => {
            (Normal, format!("attempt {attempt} failed: {reason}"))
        }
        Event::JournalEntry { text } => (Normal, of_journal(text).to_string()),
        Event::McpCalled(called) if of_agent(called) => (Normal, told(called)),
        Event::MonitorSpoke { monitor, action: Action::Warn | Action::Stop, reason } => {
            (Normal, format!("warning of the monitor {monitor}: {reason}"))
        }
        Event::HealingChosen(chosen) => {
            let (choice, by) = (chosen.choice.as_str(), &chosen.by);
            (Quiet, format!("self-healing: {choice} (by {by}): {}", chosen.reason))
        }
        Event::MonitorSpoke { monitor, reason, .. } => {
            (All, format!("note of the monitor {monitor}: {reason}"))
        }
        Event::Compacted { before, after } => {
            (Normal, format!("compacted its context from {before} to {after} tokens"))
        }
        Event::LimitReached { limit, detail } => (Normal, limit.describe(detail)),
        Event::AgentNotice { text } => (All, text.clone()),
        Event::ApiWaiting { trouble, status, .. } => {
            (All, format!("waits for the model API: {}", trouble.describe(*status)))
        }
        Event::ModelChanged { model, .. } => (All, format!("uses the model {model}")),
        Event::ToolFailed { text, .. } => (All, format!("a tool failed: {text}")),
        dispatch_events!()
        | daemon_events!()
        | spec_run_events!()
        | task_list_events!()
        | conversation_events!()
        | Event::Unknown => return None,
    })
    .filter(|(_, text)| !text.trim().is_empty())
}

/// Whether a call is a note or a report of progress, which no message tells yet.
fn of_agent(called: &McpCalled) -> bool {
    let writes = [Tool::Note, Tool::ReportProgress].map(Tool::name);
    called.child.is_none() && called.wait.is_none() && writes.contains(&called.tool.as_str())
}

fn told(called: &McpCalled) -> String {
    match called.percent {
        Some(percent) => format!("progress {percent} %: {}", called.text),
        None => called.text.clone(),
    }
}

/// Returns the text of a journal entry without its time and its mark.
fn of_journal(line: &str) -> &str {
    const MARK: &str = "[agent]";
    match line.find(MARK) {
        // The mark stands behind the time.
        Some(at) if at <= "- 12:34 — ".len() => line[at + MARK.len()..].trim(),
        _ => line.trim_start_matches("- ").trim(),
    }
}

/// Returns the message that is due now, and the end of the task whose end it tells.
///
/// A message is due [`SPAN`] after its first report. It is due at once if it is full, if a dispatch
/// has ended, or if the thread gets another message first.
pub fn next(
    thread: &Thread,
    now: Timestamp,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Option<Vec<Event>> {
    let mut group = thread.reports.group();
    let first = group.first()?;
    if thread.outbox.size() >= MOST_OWED {
        return None;
    }
    let comes_before = !thread.turns.is_empty() || !thread.ends.is_empty();
    if comes_before {
        // The last messages of the dispatch come before its end.
        if let Some((_, before)) = group.split_last().filter(|(last, _)| last.is_end) {
            group = before;
        }
    } else if !is_due(first.at, group, now) {
        return None;
    }
    let last = group.last()?;
    let told = Event::MessageRecorded(Box::new(MessageRecorded {
        thread: thread.id().into(),
        message: new_id().to_string(),
        author: Author::muleteer(),
        text: text(group, thread.reports.dropped),
        answers: vec![],
        dispatch: group
            .iter()
            .all(|one| one.dispatch == last.dispatch)
            .then(|| last.dispatch.clone()),
        turn: None,
        files: vec![],
        reports_through: Some(last.seq),
    }));
    let ended = thread.task_of(&last.dispatch).filter(|task| last.is_end && task.role.is_some());
    let closed = ended.map(|task| thread.task_closed(&task.id, ""));
    Some(std::iter::once(told).chain(closed).collect())
}

fn is_due(first: Timestamp, group: &[Arc<Report>], now: Timestamp) -> bool {
    let passed = now.duration_since(first);
    // A clock that was set back must not hold a report.
    passed >= SPAN
        || passed.is_negative()
        || group.len() >= MOST
        || group.last().is_some_and(|report| report.is_end)
}

/// Returns the time until the next message is due; `None` if no report waits for its time.
pub fn due_in(thread: &Thread, now: Timestamp) -> Option<Duration> {
    let first = thread.reports.group().first()?;
    if thread.outbox.size() >= MOST_OWED {
        // The adapter's next acknowledgement changes the thread.
        return None;
    }
    let left = first.at.saturating_add(SPAN).unwrap_or(now).duration_since(now).min(SPAN);
    Some(Duration::try_from(left).unwrap_or_default())
}

/// Renders one message.
fn text(group: &[Arc<Report>], dropped: u64) -> String {
    let line = |report: &Arc<Report>| match report.is_end {
        true => report.text.clone(),
        false => format!("`{}`: {}", report.role, report.text),
    };
    let mut text = match group {
        [one] => line(one),
        several => {
            let lines: Vec<_> = several.iter().map(|one| format!("- {}", line(one))).collect();
            lines.join("\n")
        }
    };
    if dropped > 0 {
        text.push_str(&format!(
            "\n{dropped} older reports are left out; `muleteer journal DISPATCH` shows them."
        ));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
