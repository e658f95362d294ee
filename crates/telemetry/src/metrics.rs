//! Metrics over all dispatches, folded from the events. The sums cover the whole log, so a restart
//! of the daemon does not reset them.

use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use muleteer_model::{api_events, permission_events, result_events, session_events};
use muleteer_model::{conversation_events, spec_run_events, task_list_events};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sum {
    /// By `state`.
    Dispatches,
    /// Scheduled restarts of agents.
    Restarts,
    /// Restarted actors of the daemon.
    ActorRestarts,
    Stalls,
    /// By `monitor` and `action`.
    Findings,
    Turns,
    /// By `tool`.
    ToolCalls,
    /// By `model` and `type`.
    Tokens,
    /// By `model`.
    Cost,
}

impl Sum {
    pub const ALL: [Self; 9] = [
        Self::Dispatches,
        Self::Restarts,
        Self::ActorRestarts,
        Self::Stalls,
        Self::Findings,
        Self::Turns,
        Self::ToolCalls,
        Self::Tokens,
        Self::Cost,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Dispatches => "muleteer.dispatches",
            Self::Restarts => "muleteer.agent.restarts",
            Self::ActorRestarts => "muleteer.actor.restarts",
            Self::Stalls => "muleteer.stalls",
            Self::Findings => "muleteer.findings",
            Self::Turns => "muleteer.turns",
            Self::ToolCalls => "muleteer.tool.calls",
            Self::Tokens => "muleteer.tokens",
            Self::Cost => "muleteer.cost",
        }
    }

    pub fn has_labels(self) -> bool {
        matches!(
            self,
            Self::Dispatches | Self::Findings | Self::ToolCalls | Self::Tokens | Self::Cost
        )
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::Dispatches => "{dispatch}",
            Self::Restarts | Self::ActorRestarts => "{restart}",
            Self::Stalls => "{stall}",
            Self::Findings => "{finding}",
            Self::Turns => "{turn}",
            Self::ToolCalls => "{call}",
            Self::Tokens => "{token}",
            Self::Cost => "USD",
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::Dispatches => "dispatches that have ended",
            Self::Restarts => "restarts of agents after a failure",
            Self::ActorRestarts => "restarts of actors of the supervisor",
            Self::Stalls => "agents stopped for silence",
            Self::Findings => "findings of monitors in running agents",
            Self::Turns => "turns started",
            Self::ToolCalls => "tools called",
            Self::Tokens => "tokens used",
            Self::Cost => "money spent, as the agent CLIs report it",
        }
    }
}

pub type Labels = Vec<(&'static str, String)>;

/// The most label sets. Agents choose the names of tools and models; further names share one label.
const LABELS: usize = 200;

#[derive(Debug, Default)]
pub struct Meter {
    /// The time of the first record.
    pub since: Option<Timestamp>,
    sums: BTreeMap<(Sum, Labels), f64>,
    /// For each unfinished dispatch, whether it waits for its first agent.
    waiting: BTreeMap<DispatchId, bool>,
}

impl Meter {
    pub fn apply(&mut self, record: &Record) {
        self.since.get_or_insert(record.ts);
        if let Some(id) = &record.entry.dispatch_id {
            self.apply_to_queue(id, &record.entry.event);
        }
        self.count(&record.entry.event);
    }

    /// Follows whether a dispatch waits for its first agent.
    fn apply_to_queue(&mut self, id: &DispatchId, event: &Event) {
        match event {
            Event::DispatchCreated(_) => {
                self.waiting.insert(id.clone(), true);
            }
            // A further turn of a finished dispatch.
            Event::PromptQueued { .. } => {
                self.waiting.entry(id.clone()).or_insert(true);
            }
            Event::AttemptStarted { .. } => {
                self.waiting.insert(id.clone(), false);
            }
            Event::DispatchFinished { .. } => {
                self.waiting.remove(id);
            }
            _ => {}
        }
    }

    /// Adds an event to the sums.
    fn count(&mut self, event: &Event) {
        match event {
            Event::DispatchFinished { state, .. } => {
                self.add(Sum::Dispatches, vec![("state", state.as_str().into())], 1.0);
            }
            Event::RestartScheduled { .. } => self.add(Sum::Restarts, vec![], 1.0),
            Event::ActorRestarted { .. } => self.add(Sum::ActorRestarts, vec![], 1.0),
            Event::StallDetected { .. } => self.add(Sum::Stalls, vec![], 1.0),
            Event::MonitorSpoke { monitor, action, .. } => {
                let labels = vec![("monitor", monitor.to_string()), ("action", action.to_string())];
                self.add(Sum::Findings, labels, 1.0);
            }
            Event::TurnStarted { .. } => self.add(Sum::Turns, vec![], 1.0),
            Event::ToolCalled { tool, .. } => {
                self.add(Sum::ToolCalls, vec![("tool", tool.clone())], 1.0)
            }
            Event::UsageRecorded {
                model,
                input,
                output,
                cache_read,
                cache_write,
                cost_usd,
                ..
            } => {
                let kinds = [
                    ("input", input),
                    ("output", output),
                    ("cache_read", cache_read),
                    ("cache_write", cache_write),
                ];
                for (kind, count) in kinds {
                    let labels = vec![("model", model.clone()), ("type", kind.to_string())];
                    // The tokens of a lifetime are fewer than 2^53.
                    #[allow(clippy::cast_precision_loss)]
                    self.add(Sum::Tokens, labels, *count as f64);
                }
                self.add(Sum::Cost, vec![("model", model.clone())], *cost_usd);
            }
            Event::DispatchCreated { .. }
            | Event::PromptQueued { .. }
            | Event::AttemptStarted { .. }
            | Event::DaemonStarted { .. }
            | Event::DaemonStopping { .. }
            | Event::LogRecovered { .. }
            | Event::ActorEscalated { .. }
            | Event::Fault { .. }
            | Event::SettingChanged(_)
            | Event::DispatchesArchived { .. }
            | Event::DispatchesRestored(_)
            | Event::EventsRemoved(_)
            | Event::WorktreeCreated { .. }
            | Event::AgentSpawned { .. }
            | Event::AgentAdopted { .. }
            | Event::StartFailed { .. }
            | Event::AgentExited { .. }
            | Event::SweepFinished { .. }
            | Event::AnswerAwaited {}
            | Event::AttemptFinished { .. }
            | Event::DispatchClosing { .. }
            | Event::WorkFetched { .. }
            | Event::FilesRemoved { .. }
            | Event::CloneRemoved { .. }
            | Event::JournalArchived { .. }
            | Event::PromptSent { .. }
            | Event::PromptWritten { .. }
            | Event::PromptFolded { .. }
            | Event::PromptProbed { .. }
            | Event::TurnFinished { .. }
            | Event::AgentSaid { .. }
            | Event::AgentNotice { .. }
            | Event::McpCalled(_)
            | Event::JournalEntry { .. }
            | Event::Compacted { .. }
            | Event::OutputRead { .. }
            | Event::BlockedByUs { .. }
            | Event::ToolSubject { .. }
            | Event::ToolFailed { .. }
            | Event::ToolFinished { .. }
            | Event::InterruptRequested { .. }
            | Event::KillRequested { .. }
            | Event::HealingBegun(_)
            | Event::HealingChosen(_)
            | Event::HealingDone(_)
            | Event::LimitReached { .. } => {}
            session_events!()
            | permission_events!()
            | result_events!()
            | api_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    fn add(&mut self, sum: Sum, mut labels: Labels, value: f64) {
        if !self.sums.contains_key(&(sum, labels.clone())) && self.sums.len() >= LABELS {
            for (key, label) in &mut labels {
                if matches!(*key, "tool" | "model") {
                    *label = "other".into();
                }
            }
        }
        *self.sums.entry((sum, labels)).or_default() += value;
    }

    pub fn of(&self, sum: Sum) -> impl Iterator<Item = (&Labels, f64)> {
        self.sums
            .iter()
            .filter(move |((of, _), _)| *of == sum)
            .map(|((_, labels), value)| (labels, *value))
    }

    /// Dispatches that wait for their first agent.
    pub fn queue(&self) -> usize {
        self.waiting.values().filter(|waiting| **waiting).count()
    }

    /// Returns the number of running dispatches.
    pub fn active(&self) -> usize {
        self.waiting.len() - self.queue()
    }
}
