//! The line of `metrics/` for each end: what it cost, how long it took, and how it ended. The lines
//! outlive the events from which they are made.

use crate::agent::event::ModelUsage;
use crate::dispatch::Dispatch;
use crate::event::id::DispatchId;
use crate::event::{Event, Record};
use crate::task_list::session::Finished;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the lines. A reader skips fields and kinds that it does not know.
pub const VERSION: u32 = 1;

/// One line of a file of metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    pub v: u32,
    /// The sequence number of the event that ended it. No two lines have the same.
    pub seq: u64,
    /// The time of that event.
    pub ts: Timestamp,
    #[serde(flatten)]
    pub of: Of,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Of {
    Dispatch(Box<DispatchEnd>),
    /// An attempt at a task of a task list.
    Task {
        list: String,
        task: String,
        outcome: String,
    },
    /// A run of a task list.
    TaskList {
        list: String,
        end: Finished,
    },
}

/// The sums of a dispatch from its creation on. One that was reopened has a line for each end, and
/// the newest counts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DispatchEnd {
    pub dispatch_id: DispatchId,
    pub outcome: String,
    pub created_at: Timestamp,
    pub role: String,
    pub project: String,
    /// The repository to which the project's directory belongs, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    pub backend: String,
    /// The client, agent or run that asked for it.
    pub by: String,
    pub parent: Option<DispatchId>,
    pub attempts: u32,
    pub turns: u32,
    /// The time since its creation, in milliseconds.
    pub wall_ms: u64,
    /// The awake time of its processes, in milliseconds.
    pub awake_ms: u64,
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub models: Vec<ModelUsage>,
}

/// Returns the line for a record that ends something. `dispatch` has the state of the record's
/// dispatch after it, or a later one; without that there is no line for the end of a dispatch.
pub fn of(record: &Record, dispatch: Option<&Dispatch>) -> Option<Metric> {
    let event = &record.entry.event;
    let of = if let Event::DispatchFinished { state, .. } = event {
        let outcome = serde_json::to_value(state).ok()?.as_str()?.to_string();
        Of::Dispatch(Box::new(end(dispatch?, outcome, record.ts)))
    } else if let Event::TaskEnded { list, task, status, .. } = event {
        Of::Task { list: list.clone(), task: task.clone(), outcome: status.clone() }
    } else if let Event::TaskListFinished { list, finished, .. } = event {
        Of::TaskList { list: list.clone(), end: finished.clone() }
    } else {
        return None;
    };
    Some(Metric { v: VERSION, seq: record.seq, ts: record.ts, of })
}

fn end(dispatch: &Dispatch, outcome: String, at: Timestamp) -> DispatchEnd {
    let (created, spend) = (&dispatch.created, &dispatch.spend);
    let wall = at.duration_since(dispatch.created_at).as_millis();
    DispatchEnd {
        dispatch_id: dispatch.id.clone(),
        outcome,
        created_at: dispatch.created_at,
        role: created.role.clone(),
        project: created.project.clone(),
        repository: (created.project_name() != created.project)
            .then(|| created.project_name().to_string()),
        backend: created.backend.clone(),
        by: created.by.clone(),
        parent: created.parent.clone(),
        attempts: dispatch.attempts,
        turns: dispatch.turns,
        wall_ms: u64::try_from(wall).unwrap_or(0),
        awake_ms: dispatch.usage.awake_ms,
        cost_usd: spend.cost_usd,
        input: spend.input,
        output: spend.output,
        cache_read: spend.cache_read,
        cache_write: spend.cache_write,
        models: spend.per_model.values().cloned().collect(),
    }
}
