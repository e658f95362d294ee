//! The current activity of a run's agents, folded from the daemon's events, for the live view.

use crate::event::id::DispatchId;
use crate::event::{Event, Record};
use crate::{conversation_events, session_events, spec_run_events, task_list_events};
use crate::{daemon_events, intervention_events, permission_events, result_events};
use jiff::Timestamp;
use std::collections::HashMap;

/// The most dispatches and pending calls that are tracked; more are not shown.
const DISPATCHES: usize = 4096;
const CALLS: usize = 64;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct AtWork {
    /// By dispatch id.
    hands: HashMap<String, Hand>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hand {
    pub cost_usd: f64,
    /// Pending tool calls, the newest last.
    calls: Vec<Call>,
    /// The CLI does not call the model API before this time.
    pub waits_until: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    id: String,
    pub tool: String,
    pub target: String,
    pub since: Timestamp,
}

impl Hand {
    /// Returns the newest pending tool call.
    pub fn call(&self) -> Option<&Call> {
        self.calls.last()
    }
}

impl AtWork {
    pub fn of(&self, dispatch: &str) -> Option<&Hand> {
        self.hands.get(dispatch)
    }

    pub fn apply(&mut self, record: &Record) {
        let Some(id) = record.entry.dispatch_id.as_ref().map(DispatchId::as_str) else { return };
        if matches!(record.entry.event, Event::DispatchFinished { .. }) {
            self.hands.remove(id);
            return;
        }
        if !self.hands.contains_key(id) && self.hands.len() >= DISPATCHES {
            return;
        }
        let hand = self.hands.entry(id.to_string()).or_default();
        match &record.entry.event {
            Event::ToolCalled { call_id, tool, target, parent: None }
                if hand.calls.len() < CALLS =>
            {
                hand.waits_until = None;
                let (id, tool, target) = (call_id.clone(), tool.clone(), target.clone());
                hand.calls.push(Call { id, tool, target, since: record.ts });
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                hand.calls.retain(|call| call.id != *call_id);
            }
            Event::UsageRecorded { cost_usd, .. } => hand.cost_usd += cost_usd,
            Event::ApiWaiting { until, .. } => hand.waits_until = Some(*until),
            Event::TurnFinished { .. } | Event::AgentExited { .. } => hand.calls.clear(),
            Event::AttemptStarted { .. } => {
                hand.calls.clear();
                hand.waits_until = None;
            }
            Event::ToolCalled { .. }
            | Event::ToolSubject { .. }
            | Event::AgentSaid { .. }
            | Event::AgentNotice { .. }
            | Event::McpCalled(_)
            | Event::JournalEntry { .. }
            | Event::Compacted { .. }
            | Event::OutputRead { .. }
            | Event::BlockedByUs { .. }
            | Event::ApiRetried { .. }
            | Event::RateLimited { .. }
            | Event::ApiGivenUp { .. }
            | Event::PromptQueued { .. }
            | Event::PromptSent { .. }
            | Event::PromptWritten { .. }
            | Event::PromptFolded { .. }
            | Event::PromptProbed { .. }
            | Event::TurnStarted { .. }
            | Event::DispatchCreated { .. }
            | Event::WorktreeCreated { .. }
            | Event::AgentSpawned { .. }
            | Event::AgentAdopted { .. }
            | Event::StartFailed { .. }
            | Event::SweepFinished { .. }
            | Event::AttemptFinished { .. }
            | Event::AnswerAwaited {}
            | Event::RestartScheduled { .. }
            | Event::DispatchClosing { .. }
            | Event::WorkFetched { .. }
            | Event::DispatchFinished { .. }
            | Event::FilesRemoved { .. }
            | Event::CloneRemoved { .. }
            | Event::JournalArchived { .. } => {}
            session_events!()
            | permission_events!()
            | result_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Entry;

    #[test]
    fn newest_open_call_is_the_activity() {
        let mut at_work = AtWork::default();
        let id = DispatchId::try_from("abcd2345".to_string()).expect("an id");
        let mut tell = |event: Event| {
            let entry = Entry {
                id: String::new(),
                dispatch_id: Some(id.clone()),
                at: None,
                more: false,
                event,
            };
            at_work.apply(&Record { v: 1, seq: 1, ts: Timestamp::UNIX_EPOCH, entry });
            at_work.of("abcd2345").and_then(Hand::call).map(|call| call.tool.clone())
        };
        let call = |call_id: &str, tool: &str, parent: Option<&str>| Event::ToolCalled {
            call_id: call_id.into(),
            tool: tool.into(),
            target: String::new(),
            parent: parent.map(str::to_string),
        };
        assert_eq!(tell(call("1", "Task", None)).as_deref(), Some("Task"));
        assert_eq!(
            tell(call("2", "Grep", Some("1"))).as_deref(),
            Some("Task"),
            "a subagent's is part of it"
        );
        assert_eq!(tell(call("3", "Bash", None)).as_deref(), Some("Bash"));
        assert_eq!(tell(Event::ToolFinished { call_id: "3".into() }).as_deref(), Some("Task"));
        assert_eq!(tell(Event::ToolFinished { call_id: "1".into() }), None);
    }
}
