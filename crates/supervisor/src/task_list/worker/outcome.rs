//! The result of a worker's step.

use crate::task_list::steps::StepError;
use muleteer_model::event::id::DispatchId;
use muleteer_model::task_list::session::{Finished, Verdict};
use tokio::sync::OwnedMutexGuard;

/// The reason why a worker has ended.
#[derive(Debug)]
pub enum End {
    /// It has nothing to do, or the run is stopping.
    Nothing,
    DaemonStops,
    /// The whole run is over.
    Finished(Finished),
}

/// The end of a worker, or its failure.
pub(super) type Ended = Result<End, StepError>;

#[derive(Debug)]
pub(super) enum Outcome {
    Taken(Box<TaskToBegin>),
    /// There may be a task now.
    LookAgain,
    Judged(Verdict),
    /// The task is over. With `end` the worker is too, once that is recorded.
    Closed {
        status: String,
        message: String,
        counted: bool,
        end: Option<Ended>,
    },
    Ended(Ended),
}

/// A task that is to begin.
#[derive(Debug)]
pub(super) struct TaskToBegin {
    pub task: String,
    pub dispatch: DispatchId,
    pub base: String,
    pub resumed: bool,
    /// Held until the task has begun, because another worker that reads the list before would take
    /// the same task.
    pub taking: OwnedMutexGuard<()>,
}

impl Outcome {
    pub fn closed(status: &str, message: &str, counted: bool) -> Self {
        Self::Closed { status: status.into(), message: message.into(), counted, end: None }
    }

    /// The worker no longer has the task, and nothing is counted.
    pub fn released(message: &str) -> Self {
        Self::closed("released", message, false)
    }

    pub fn released_at_the_end(message: &str, end: Ended) -> Self {
        let (status, message) = ("released".into(), message.into());
        Self::Closed { status, message, counted: false, end: Some(end) }
    }
}
