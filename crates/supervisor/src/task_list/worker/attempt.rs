//! Takes a task that has begun to its verdict.

use crate::task_list::run::Driven;
use crate::task_list::steps::{Hold, Place, Recovered, StepError, Verdict, describe};
use crate::task_list::worker::conclude::{conclude, interrupted};
use crate::task_list::worker::outcome::{End, Outcome};
use crate::task_list::worker::run_task::{PASSED, dispatched, was_stopped_with_daemon};
use muleteer_model::dispatch::{Dispatch, Stop as Stopped};
use muleteer_model::event::Limit;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::{Verdict as Judged, Work};
use muleteer_model::task_list::{Category, Mode, Status, Task, TaskList};
use muleteer_process::fault;
use muleteer_store::task_list::{Behind, Tx};

/// Takes a task that has begun from its current state to its verdict, or to its end if it has one.
pub(super) async fn go_on(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
) -> Result<Outcome, StepError> {
    if driven.daemon.lifecycle.stop.is_cancelled() {
        return Ok(Outcome::Ended(Ok(End::DaemonStops)));
    }
    let list = read(driven, worker, place).await?;
    let Some(task) = list.get(&work.task).cloned() else {
        return Ok(Outcome::released("it is no longer in the list"));
    };
    let task = if is_forged(driven, work, &task) {
        let mut begun = task;
        begun.status = Status::InProgress;
        begun.claimed_by = Some(place.worker.clone());
        begun.started_at_commit = Some(work.base.clone());
        begun.completed_at = None;
        let again = claimed_again(driven, worker, place, begun).await?;
        again.ok_or_else(|| StepError::Other(format!("{} is no longer in the list", work.task)))?
    } else {
        task
    };
    let ours =
        task.status == Status::InProgress && task.claimed_by.as_deref() == Some(&place.worker);
    match &work.verdict {
        // The outcome was written, and the daemon died before it recorded that.
        Some(verdict) if !ours => Ok(Outcome::closed(task.status.as_str(), &verdict.message, true)),
        Some(verdict) if !work.doubted => {
            conclude(driven, worker, place, work, verdict.clone()).await
        }
        Some(_) | None => attempt(driven, worker, place, work, (task, ours)).await,
    }
}

/// Has a dispatch do the task, unless it has, and judges it.
async fn attempt(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    (task, ours): (Task, bool),
) -> Result<Outcome, StepError> {
    let Some(task) = claimed(driven, worker, place, work, task, ours).await? else {
        return Ok(Outcome::released("another worker has it"));
    };
    let dispatch = match dispatched(driven, worker, place, work, &task).await? {
        Ok(dispatch) => dispatch,
        Err(outcome) => return Ok(outcome),
    };
    if driven.stopping() == Some(true) {
        return interrupted(driven, worker, place, work).await;
    }
    let Some(task) = claimed_again(driven, worker, place, task).await? else {
        return Ok(Outcome::released("it is no longer in the list, or another worker has it"));
    };
    let judged = if let Some(message) = broken_clone(driven, worker, place, work).await? {
        let category = Some(Category::TaskExec.as_str().into());
        Ok(Judged { passed: false, category, message })
    } else if was_stopped_with_daemon(&dispatch) {
        recovered(driven, worker, place, task).await?
    } else {
        let (at, off) = (place.clone(), driven.called_off());
        let judged = driven.step(worker, move || judge(&at, &task, &dispatch, &off)).await??;
        match judged {
            Some(judged) => Ok(judged),
            None if driven.daemon.lifecycle.stop.is_cancelled() => {
                Err(Outcome::Ended(Ok(End::DaemonStops)))
            }
            None => Err(interrupted(driven, worker, place, work).await?),
        }
    };
    Ok(match judged {
        Ok(verdict) => {
            fault::point("tasks.validated");
            Outcome::Judged(verdict)
        }
        Err(outcome) => outcome,
    })
}

/// Replaces a clone that the agent has broken, and returns what was wrong.
async fn broken_clone(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
) -> Result<Option<String>, StepError> {
    let (at, project, base) = (place.clone(), driven.project.clone(), work.base.clone());
    let broken = driven.step(worker, move || match &at.branch {
        Some(branch) if at.is_in_clone() => project.renew_clone(at.git.top(), branch, &base),
        _ => Ok(None),
    });
    Ok(broken.await??)
}

/// Recovers the work of an agent that was stopped with the daemon: it did not fail.
async fn recovered(
    driven: &Driven,
    worker: u32,
    place: &Place,
    task: Task,
) -> Result<Result<Judged, Outcome>, StepError> {
    let (place, off) = (place.clone(), driven.called_off());
    let recovered =
        driven.step(worker, move || place.recover(&task, &off).map(|done| (place, task, done)));
    let (place, task, recovered) = recovered.await??;
    Ok(match recovered {
        Recovered::Failed(_) => Err(Outcome::closed("failed", "stopped with the daemon", true)),
        Recovered::Resume => {
            place.hand_over(&task.id, Some(place.worker.clone()))?;
            Err(Outcome::released("to be resumed"))
        }
        Recovered::Passed => Ok(Judged { passed: true, category: None, message: String::new() }),
    })
}

/// Whether the list says "completed" about a task whose completion no daemon has recorded: its
/// agent can write that. In a concurrent list another worker may have completed it legitimately.
fn is_forged(driven: &Driven, work: &Work, task: &Task) -> bool {
    let passed = work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
    let has_begun = driven.daemon.snapshot().get(&work.dispatch).is_some();
    task.status == Status::Completed && !passed && has_begun && driven.mode == Mode::Exclusive
}

/// Returns the task with this worker's claim; `None` if another worker was quicker.
async fn claimed(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    task: Task,
    ours: bool,
) -> Result<Option<Task>, StepError> {
    if ours {
        return Ok(Some(task));
    }
    let (place, work, has_clones) = (place.clone(), work.clone(), driven.has_clones());
    let list = driven.list.clone();
    let claimed = driven
        .step(worker, move || -> Result<Option<Task>, StepError> {
            if has_clones {
                place.git.remember_refs(&work.task)?;
            } else {
                place.git.remember_start(&work.task, &work.base)?;
            }
            place.git.settle()?;
            let mut tx = place.begin()?;
            let now = tx.now();
            match claim::claim(
                &mut tx.list,
                &work.task,
                &place.worker,
                &work.base,
                now,
                claim::LEASE,
            ) {
                Ok(()) => {}
                Err(refused) => {
                    tracing::info!(task = %work.task, %refused, "failed to claim a task");
                    return Ok(None);
                }
            }
            let Some(task) = tx.list.get(&work.task).cloned() else { return Ok(None) };
            tx.remember_holder(&place.worker, Behind::Run(&list));
            tx.log(Entry::starting(&task, &work.base));
            tx.commit()?;
            fault::point("tasks.claimed");
            Ok(Some(task))
        })
        .await??;
    Ok(claimed)
}

/// Returns the task after its agent has run, with the agent's changes to the list undone. `None` if
/// another worker holds it legitimately, or it is gone.
async fn claimed_again(
    driven: &Driven,
    worker: u32,
    place: &Place,
    begun: Task,
) -> Result<Option<Task>, StepError> {
    let (place, telling) = (place.clone(), driven.clone());
    // For a list that a session holds, reading it already undoes such changes.
    read(driven, worker, &place).await?;
    let again = driven.step(worker, move || -> Result<Option<Task>, StepError> {
        if let Ok(read) = place.root.read()
            && !read.from_backup
            && claim::is_kept(&read.list, &begun, &place.worker)
        {
            return Ok(read.list.get(&begun.id).cloned());
        }
        let mut tx = open(&telling, &place)?;
        let now = tx.now();
        let said = match claim::put_back(&mut tx.list, &begun, &place.worker, now) {
            Ok(said) => said,
            Err(refused) => {
                tracing::info!(task = %begun.id, %refused, "the claim was lost");
                return Ok(None);
            }
        };
        for text in said {
            telling.tell(&format!("{}: {text}", begun.id));
            tx.log(Entry::warn(Some(&begun.id), &text));
        }
        let list = tx.commit()?;
        let mut task = list.get(&begun.id).cloned();
        if let Some(task) = &mut task {
            // The task is judged by the validation that it began with.
            task.command.clone_from(&begun.command);
            task.timeout_seconds = begun.timeout_seconds;
        }
        Ok(task)
    });
    again.await?
}

/// Starts a change of the list. If the list was damaged or overwritten, the clients that follow the
/// run get a message.
pub(super) fn open(driven: &Driven, place: &Place) -> Result<Tx, StepError> {
    let tx = place.begin()?;
    if let Some(message) = &tx.restored {
        driven.tell(message);
    }
    for one in &tx.overwritten {
        match &one.task {
            Some(task) => driven.tell(&format!("{task}: {}", one.text)),
            None => driven.tell(&one.text),
        }
    }
    Ok(tx)
}

/// Reads the list, without changes by processes that may not change it.
pub(super) async fn read(
    driven: &Driven,
    worker: u32,
    place: &Place,
) -> Result<TaskList, StepError> {
    let (place, telling) = (place.clone(), driven.clone());
    let list = driven.step(worker, move || -> Result<TaskList, StepError> {
        let is_known = |list: &TaskList| match &place.hold {
            Hold::Session(_) => false,
            Hold::Beside(written) => written.knows(list),
            Hold::Own | Hold::Run(_) => true,
        };
        match place.root.read() {
            Ok(read) if !read.from_backup && is_known(&read.list) => return Ok(read.list),
            _ => {}
        }
        let tx = open(&telling, &place)?;
        if tx.overwritten.is_empty() { Ok(tx.list.clone()) } else { Ok(tx.commit()?) }
    });
    list.await?
}

/// Judges a task: first whether the agent worked at all, then by the validation. `None` means that
/// the run was stopped.
fn judge(
    place: &Place,
    task: &Task,
    dispatch: &Dispatch,
    off: &dyn Fn() -> bool,
) -> Result<Option<Judged>, StepError> {
    let failed = |category: Category, message: String| {
        Ok(Some(Judged { passed: false, category: Some(category.as_str().into()), message }))
    };
    if let Some((category, message)) = agent_failed(dispatch) {
        return failed(category, message);
    }
    place.disown(&task.id, task.started_at_commit.as_deref().unwrap_or_default());
    place.git.settle()?;
    let verdict = place.validate(task, off)?;
    match &verdict {
        Verdict::Stopped => Ok(None),
        Verdict::Passed { .. } => {
            Ok(Some(Judged { passed: true, category: None, message: String::new() }))
        }
        other => {
            place.remember(task, other);
            let before = place.kept_output(&task.id, "before");
            let (category, message) =
                describe(other, before.as_deref().filter(|text| !text.starts_with(PASSED)));
            failed(category, message)
        }
    }
}

/// Returns the failure of the agent. If it ended well, or only did not report, the validation alone
/// decides.
fn agent_failed(dispatch: &Dispatch) -> Option<(Category, String)> {
    let state = dispatch.state();
    if matches!(state, "success" | "partial") {
        return None;
    }
    let category = match &dispatch.stop {
        Some(Stopped::Limit { limit: Limit::Timeout, .. } | Stopped::Stall { .. }) => {
            Category::Timeout
        }
        _ => Category::TaskExec,
    };
    let said = dispatch
        .result
        .value
        .as_ref()
        .map(|result| result.summary.clone())
        .filter(|text| !text.is_empty());
    let why = said.or_else(|| dispatch.reason.clone()).unwrap_or_default();
    Some((category, format!("agent {} {state}: {why}", dispatch.id)))
}
