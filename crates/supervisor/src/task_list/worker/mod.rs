//! One worker of a run. It takes a task, has a dispatch do it, judges it by its validation, records
//! the outcome, and takes the next.
//!
//! ```text
//!   take ──▶ TaskBegun ──▶ claim ──▶ dispatch ──▶ validate ──▶ TaskJudged ─┐
//!            (durable)     (file)    (by its id)               (durable)   │
//!   ┌──────────────────────────────────────────────────────────────────────┘
//!   └─▶ commit, land │ roll back ──▶ outcome (file) ──▶ TaskEnded
//! ```
//!
//! The driver carries these steps out. A daemon that is killed anywhere resumes in `go_on`, which
//! finds out how far it came: each step is a probe.

mod attempt;
mod conclude;
mod machine;
mod outcome;
mod run_task;
mod take;

pub use conclude::land_blocking;
pub use outcome::End;
pub(in crate::task_list) use run_task::end_agents;

use crate::driver::{Driver, Panicked, queue};
use crate::task_list::run::Driven;
use crate::task_list::steps::StepError;
use crate::task_list::worker::machine::{Failure, WorkerMachine};
use muleteer_model::task_list::session::Finished;
use muleteer_protocol::ErrorCode;

/// Works until nothing is left to do, the run is over, or the daemon stops.
///
/// If the future is dropped, a step may be half done, as after a kill. The next incarnation of the
/// worker resumes it. A blocking part of a step goes on, and the next incarnation waits for it.
///
/// # Errors
/// A step has panicked.
pub async fn work(driven: Driven, worker: u32) -> Result<End, Panicked> {
    let error = match Box::pin(work_on(&driven, worker)).await {
        Ok(end) => return Ok(end),
        Err(Failure::Task(panic)) => return Err(panic),
        Err(Failure::Step(error)) => error,
    };
    Ok(match error {
        _ if driven.daemon.lifecycle.stop.is_cancelled() => End::DaemonStops,
        _ if driven.stopping() == Some(true) => End::Nothing,
        StepError::List(error) => {
            let reason = error.to_string();
            let is_locked = error.code() == ErrorCode::TasksLocked;
            End::Finished(Finished {
                status: if is_locked { "locked" } else { "invalid" }.into(),
                reason,
                code: Some(error.code().into()),
            })
        }
        StepError::Dispatch(code, reason) => {
            End::Finished(Finished { status: "error".into(), reason, code: Some(code) })
        }
        error => {
            let code = if matches!(error, StepError::Git(_)) {
                ErrorCode::TasksGit
            } else {
                ErrorCode::Io
            };
            End::Finished(Finished {
                status: "error".into(),
                reason: error.to_string(),
                code: Some(code.into()),
            })
        }
    })
}

async fn work_on(driven: &Driven, worker: u32) -> Result<End, Failure> {
    let git = if driven.has_clones() {
        let (project, dir) = (driven.project.clone(), driven.clone_dir(worker));
        let branch = start_branch(driven)?;
        driven
            .step(worker, move || project.prepare_clone(&dir, &branch))
            .await?
            .map_err(StepError::from)?
    } else {
        driven.project.clone()
    };
    let place = driven.place(worker, &git);
    let swept = place.clone();
    driven.step(worker, move || swept.sweep()).await?;
    // The old clone was damaged and replaced. It may have contained work that had passed its
    // validation.
    let lost = driven.has_clones() && git.is_made_anew();
    let (mailbox, inbox) = queue::<WorkerMachine>();
    let machine = WorkerMachine::new(driven.clone(), worker, place, lost);
    Driver::new(machine, mailbox).run(inbox).await?.end()
}

fn start_branch(driven: &Driven) -> Result<String, StepError> {
    let branch = driven.run().and_then(|run| run.started.branch.clone());
    branch.ok_or_else(|| {
        StepError::Other(
            "concurrent workers need a branch to merge into, but HEAD is detached".into(),
        )
    })
}
