//! Runs of task lists in the daemon, folded from the events. The list's file has the state of its
//! tasks. The run's state has the intentions of a killed daemon, so that the next daemon resumes
//! them.
//!
//! ```text
//!            session          begun ──────▶ judged ──────▶ ended
//!  started ──────────▶ on ──┤ (intent)      (verdict)      (outcome written) ├──▶ finished
//!                           └──────────── each worker, for each task ─────────┘
//! ```

pub mod claim;
pub mod head_check;
pub mod hook;
pub mod recover;
pub mod worker;

use crate::event::id::DispatchId;
use crate::event::trace_context::Context;
use crate::event::trace_ids;
use crate::event::{Event, Record};
use crate::task_list::Category;
use crate::{conversation_events, daemon_events, dispatch_events, spec_run_events};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fixed settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TaskListSettings")]
pub struct Started {
    /// The id of the run.
    pub list: String,
    /// The absolute path of the directory that holds `harness-tasks.json`.
    pub root: String,
    /// The most tasks that run at the same time.
    pub concurrency: u32,
    /// The most tasks of this session; null has no limit.
    pub max_tasks: Option<u64>,
    /// The branch that was checked out; null with a detached HEAD.
    pub branch: Option<String>,
    /// The role of the agents.
    pub role: String,
    /// The backend of the agents; null lets the configuration choose.
    pub backend: Option<String>,
    /// The user or agent that started the run.
    pub by: String,
    /// The W3C trace context of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// The judgement of an attempt, recorded before its consequences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TaskVerdict")]
pub struct Verdict {
    /// The validation passed.
    pub passed: bool,
    /// The category of a failure: `TASK_EXEC`, `TEST_FAIL`, `TIMEOUT`, ….
    pub category: Option<String>,
    /// The result of the validation, for people.
    pub message: String,
}

impl Verdict {
    pub fn category(&self) -> Category {
        self.category.as_deref().and_then(Category::parse).unwrap_or(Category::TaskExec)
    }
}

/// The end of a run of a task list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "TaskListEnd")]
pub struct Finished {
    /// The outcome: `completed`, `failed`, `limit`, `interrupted`, `invalid`, `environment`,
    /// `locked` or `error`.
    pub status: String,
    /// The reason, for people.
    pub reason: String,
    /// The error code of docs/contract.md, if the run could not continue.
    pub code: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub started: Started,
    pub created_seq: u64,
    /// The session number, once the session is counted.
    pub session: Option<u64>,
    /// The current work of each worker.
    pub workers: BTreeMap<u32, Work>,
    /// Tasks that were worked on, for `max_tasks_per_session`.
    pub done: u64,
    /// Whether the run is stopping; `Some(true)` means at once.
    pub stopping: Option<bool>,
    /// The actor of the request to stop at once.
    pub stopped_by: String,
    pub finished: Option<Finished>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub task: String,
    /// The id of the dispatch, chosen before the dispatch is created.
    pub dispatch: DispatchId,
    pub base: String,
    pub resumed: bool,
    pub verdict: Option<Verdict>,
    /// The attempt passed, but its result was not saved before a reboot. Unsynced files may be
    /// lost, so it is judged again.
    pub doubted: bool,
}

impl Run {
    /// Returns the trace context for the dispatch of a task.
    pub fn place_of(&self, dispatch: &DispatchId) -> Option<String> {
        let context = Context::parse(self.started.trace.as_deref()?)?;
        Some(context.below(trace_ids::task(&self.started.list, dispatch)).to_string())
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::TaskListSession { session, .. } => self.session = Some(*session),
            Event::TaskBegun { worker, task, dispatch, base, resumed, .. } => {
                let (task, dispatch, base) = (task.clone(), dispatch.clone(), base.clone());
                self.workers.insert(
                    *worker,
                    Work { task, dispatch, base, resumed: *resumed, verdict: None, doubted: false },
                );
            }
            Event::TaskJudged { worker, verdict, .. } => {
                if let Some(work) = self.workers.get_mut(worker) {
                    work.verdict = Some(verdict.clone());
                    work.doubted = false;
                }
            }
            Event::TaskEnded { worker, counted, .. } => {
                self.workers.remove(worker);
                self.done += u64::from(*counted);
            }
            Event::TaskListStopping { now, by, .. } => {
                if *now && self.stopping != Some(true) {
                    self.stopped_by.clone_from(by);
                }
                self.stopping = Some(*now || self.stopping == Some(true))
            }
            Event::TaskListFinished { finished, .. } => self.finished = Some(finished.clone()),
            // `Runs` has begun the run with it.
            Event::TaskListStarted { .. } => {}
            conversation_events!()
            | daemon_events!()
            | dispatch_events!()
            | spec_run_events!()
            | Event::Unknown => {}
        }
    }
}

/// The most finished runs that are remembered.
const KEPT: usize = 20;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Runs {
    all: BTreeMap<String, Arc<Run>>,
}

impl Runs {
    pub fn get(&self, list: &str) -> Option<&Arc<Run>> {
        self.all.get(list)
    }

    pub fn active(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.all.values().filter(|run| run.finished.is_none())
    }

    /// Returns the active run on the list in this directory.
    pub fn on(&self, root: &str) -> Option<&Arc<Run>> {
        self.active().find(|run| run.started.root == root)
    }

    /// Records that the machine was booted.
    pub fn boot(&mut self) {
        for run in self.all.values_mut().filter(|run| run.finished.is_none()) {
            for work in Arc::make_mut(run).workers.values_mut() {
                work.doubted = work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
            }
        }
    }

    pub fn apply(&mut self, record: &Record) {
        let event = &record.entry.event;
        let list = match event {
            Event::TaskListStarted(started) => return self.start(started, record.seq),
            Event::TaskListSession { list, .. }
            | Event::TaskBegun { list, .. }
            | Event::TaskJudged { list, .. }
            | Event::TaskEnded { list, .. }
            | Event::TaskListStopping { list, .. }
            | Event::TaskListFinished { list, .. } => list,
            conversation_events!()
            | daemon_events!()
            | dispatch_events!()
            | spec_run_events!()
            | Event::Unknown => return,
        };
        if let Some(run) = self.all.get_mut(list) {
            Arc::make_mut(run).apply(event);
        }
    }

    fn start(&mut self, started: &Started, seq: u64) {
        if self.all.contains_key(&started.list) {
            return;
        }
        let run = Run {
            started: started.clone(),
            created_seq: seq,
            session: None,
            workers: BTreeMap::new(),
            done: 0,
            stopping: None,
            stopped_by: String::new(),
            finished: None,
        };
        self.all.insert(started.list.clone(), Arc::new(run));
        let mut over: Vec<_> = self
            .all
            .values()
            .filter(|run| run.finished.is_some())
            .map(|run| (run.created_seq, run.started.list.clone()))
            .collect();
        over.sort();
        for (_, list) in over.iter().take(over.len().saturating_sub(KEPT)) {
            self.all.remove(list);
        }
    }
}
