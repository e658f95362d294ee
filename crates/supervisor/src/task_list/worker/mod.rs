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
//! A daemon that is killed anywhere resumes in `go_on`, which finds out how far it came: each step
//! is a probe.

mod conclude;
mod run_task;

pub use conclude::land_blocking;

use conclude::{close, conclude, interrupted};
use muleteer_protocol::ErrorCode;
pub(in crate::task_list) use run_task::end_agents;
use run_task::{PASSED, dispatched, was_stopped_with_daemon};

use crate::daemon::context::random_key;
use crate::task_list::run::{Driven, ended, record};
use crate::task_list::steps::{Hold, Place, Recovered, StepError, Unhealthy, Verdict, describe};
use muleteer_model::dispatch::{Dispatch, Stop as Stopped};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Limit};
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::{Finished, Verdict as Judged, Work};
use muleteer_model::task_list::stats::{self, Stop};
use muleteer_model::task_list::{Category, Mode, Status, Task, TaskList, select};
use muleteer_process::fault;
use muleteer_store::task_list::{Behind, Tx};
use muleteer_vcs::user_repo::Git;
use std::time::Duration;

/// The interval for reading the list again, because other workers of it send no notification.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The reason why a worker has ended.
#[derive(Debug)]
pub enum End {
    /// It has nothing to do, or the run is stopping.
    Nothing,
    DaemonStops,
    /// The whole run is over.
    Finished(Finished),
}

enum Taken {
    Task(Box<Task>, String, bool),
    /// Other workers hold the tasks that all the rest depends on.
    Wait,
    End(End),
}

pub async fn work(driven: Driven, worker: u32) -> End {
    match Box::pin(work_on(&driven, worker)).await {
        Ok(end) => end,
        Err(_) if driven.daemon.lifecycle.stop.is_cancelled() => End::DaemonStops,
        Err(_) if driven.stopping() == Some(true) => End::Nothing,
        Err(StepError::List(error)) => {
            let reason = error.to_string();
            let is_locked = error.code() == ErrorCode::TasksLocked;
            End::Finished(Finished {
                status: if is_locked { "locked" } else { "invalid" }.into(),
                reason,
                code: Some(error.code().into()),
            })
        }
        Err(StepError::Dispatch(code, reason)) => {
            End::Finished(Finished { status: "error".into(), reason, code: Some(code) })
        }
        Err(error) => {
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
    }
}

async fn work_on(driven: &Driven, worker: u32) -> Result<End, StepError> {
    let git = if driven.has_clones() {
        let (project, dir) = (driven.project.clone(), driven.clone_dir(worker));
        let branch = start_branch(driven)?;
        driven.step(worker, move || project.prepare_clone(&dir, &branch)).await??
    } else {
        driven.project.clone()
    };
    let place = driven.place(worker, &git);
    let swept = place.clone();
    driven.step(worker, move || swept.sweep()).await?;
    // Work that had passed was in the clone that is gone.
    let mut lost = driven.has_clones() && git.is_made_anew();
    loop {
        if driven.daemon.lifecycle.stop.is_cancelled() {
            return Ok(End::DaemonStops);
        }
        let Some(run) = driven.run() else { return Ok(End::Nothing) };
        if let Some(work) = run.workers.get(&worker) {
            let lost = std::mem::take(&mut lost)
                && work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
            let work = Work { doubted: work.doubted || lost, ..work.clone() };
            if let Some(end) = go_on(driven, worker, &place, &work).await? {
                return Ok(end);
            }
            driven.shared.changed.notify_waiters();
            continue;
        }
        if run.stopping.is_some() {
            return Ok(End::Nothing);
        }
        // It is enabled before the list is read, or an end in between would be missed.
        let changed = driven.shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        // The lock is held until the task has begun, because another worker that reads the list
        // before would take the same task.
        let taking = driven.shared.taking.lock().await;
        match take(driven, worker, &place).await? {
            Taken::Task(task, base, resumed) => {
                begin(driven, worker, &task.id, &base, resumed).await?
            }
            Taken::End(end) => return Ok(end),
            Taken::Wait => {
                drop(taking);
                tokio::select! {
                    () = &mut changed => {}
                    () = driven.daemon.lifecycle.stop.cancelled() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
        }
    }
}

fn start_branch(driven: &Driven) -> Result<String, StepError> {
    let branch = driven.run().and_then(|run| run.started.branch.clone());
    branch.ok_or_else(|| {
        StepError::Other(
            "concurrent workers need a branch to merge into, but HEAD is detached".into(),
        )
    })
}

async fn begin(
    driven: &Driven,
    worker: u32,
    task: &str,
    base: &str,
    resumed: bool,
) -> Result<(), StepError> {
    let bytes = random_key();
    let dispatch = DispatchId::try_from(bytes[..8].to_string())
        .map_err(|error| StepError::Other(error.to_string()))?;
    let event = Event::TaskBegun {
        list: driven.list.clone(),
        worker,
        task: task.into(),
        dispatch,
        base: base.into(),
        resumed,
    };
    let recorded = record(&driven.daemon, event, &random_key()).await;
    recorded.map_err(|error| StepError::Other(error.to_string()))?;
    fault::point("tasks.intent_durable");
    Ok(())
}

/// Starts a change of the list. If the list was damaged or overwritten, the clients that follow the
/// run get a message.
fn open(driven: &Driven, place: &Place) -> Result<Tx, StepError> {
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
async fn read(driven: &Driven, worker: u32, place: &Place) -> Result<TaskList, StepError> {
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

/// Picks the next task, one worker at a time. The claim comes after the intent is durable.
async fn take(driven: &Driven, worker: u32, place: &Place) -> Result<Taken, StepError> {
    let Some(run) = driven.run() else { return Ok(Taken::End(End::Nothing)) };
    let in_hand: Vec<_> = run.workers.values().map(|work| work.task.clone()).collect();
    let done = run.done + in_hand.len() as u64;
    let (place, limit) = (place.clone(), driven.asked.max_tasks);
    let (off, has_clones, project) =
        (driven.called_off(), driven.has_clones(), driven.project.clone());
    let branch = place.branch.clone();
    let (name, telling) = (driven.worker_name(worker), driven.clone());
    driven
        .step(worker, move || -> Result<Taken, StepError> {
            let mut tx = open(&telling, &place)?;
            let now = tx.now();
            let expired = claim::expire(&mut tx.list, &name, now, &in_hand);
            for id in &expired {
                tx.log(Entry::error(
                    Some(id),
                    Category::SessionTimeout,
                    "the worker's claim has expired",
                ));
            }
            let marked = select::validate_dependencies(&mut tx.list, now);
            for marked in &marked {
                tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
            }
            let is_same = marked.is_empty() && expired.is_empty() && tx.overwritten.is_empty();
            let list = if is_same { tx.list.clone() } else { tx.commit()? };
            let own = list.tasks.iter().find(|task| {
                task.status == Status::InProgress
                    && task.claimed_by.as_deref() == Some(&name)
                    && !in_hand.contains(&task.id)
            });
            if let Some(task) = own {
                let base = task.started_at_commit.clone().unwrap_or_default();
                return Ok(Taken::Task(Box::new(task.clone()), base, true));
            }
            match stats::stop(&list, done, limit) {
                // Others still work; the run ends when they have ended.
                Some(Stop::MaxTasks) if !in_hand.is_empty() => return Ok(Taken::End(End::Nothing)),
                Some(stop) => return Ok(Taken::End(End::Finished(ended(stop)))),
                None => {}
            }
            let failures = place.root.failure_times(&list);
            let mut eligible = select::eligible(&list, &failures).into_iter();
            let Some(at) = eligible.find(|at| !in_hand.contains(&list.tasks[*at].id)) else {
                return Ok(Taken::Wait);
            };
            let task = list.tasks[at].clone();
            if let Some(end) = check(&place, &task, &off)? {
                return Ok(Taken::End(end));
            }
            let base = match &branch {
                Some(branch) if has_clones => reset(&place, &project, branch)?,
                _ => place.git.head()?,
            };
            if !has_clones && let Some(end) = moved_on(&place)? {
                return Ok(Taken::End(end));
            }
            Ok(Taken::Task(Box::new(task), base, false))
        })
        .await?
}

/// Discards everything in a clone, which somebody may have broken since its last task.
fn reset(place: &Place, project: &Git, branch: &str) -> Result<String, StepError> {
    let error = match place.git.reset_clone(project, branch) {
        Ok(tip) => return Ok(tip),
        Err(error) => error,
    };
    let Some(message) = project.renew_clone(place.git.top(), branch, &project.tip(branch)?)? else {
        return Err(error.into());
    };
    place.note(vec![Entry::warn(None, &message)]);
    Ok(place.git.reset_clone(project, branch)?)
}

/// Ends the run if a person has checked out something else since it began. Further work would
/// belong to neither place.
fn moved_on(place: &Place) -> Result<Option<End>, StepError> {
    let found = place.git.stands_on()?;
    if place.stand.is_at(found.as_deref()) {
        return Ok(None);
    }
    let name = |branch: Option<&str>| {
        branch.map_or_else(|| "detached".into(), |branch| format!("on `{branch}`"))
    };
    let (found, began) = (name(found.as_deref()), name(place.branch.as_deref()));
    let reason = format!(
        "HEAD is {found} now, but was {began} when the run started: go back, or start a new run \
         here"
    );
    Ok(Some(End::Finished(Finished {
        status: "error".into(),
        reason,
        code: Some(ErrorCode::TasksGit.into()),
    })))
}

/// Checks that the task can be validated at all, before an agent is spent on it.
fn check(place: &Place, task: &Task, off: &dyn Fn() -> bool) -> Result<Option<End>, StepError> {
    let Some(command) = &task.command else {
        let message = "Missing validation.command";
        place.note(vec![Entry::error(Some(&task.id), Category::Config, message)]);
        let reason = format!(
            "{}: {message}; add one with `muleteer tasks edit {0} --validate CMD`",
            task.id
        );
        let finished = Finished {
            status: "invalid".into(),
            reason,
            code: Some(ErrorCode::TasksInvalid.into()),
        };
        return Ok(Some(End::Finished(finished)));
    };
    let Some(program) = place.missing_program(command)? else { return Ok(None) };
    // The program may come from the init script, so that runs once more. Then the run stops.
    let healthy = place.health_check(off);
    if healthy.is_ok() && place.missing_program(command)?.is_none() {
        return Ok(None);
    }
    if healthy == Err(Unhealthy::CalledOff) {
        return Ok(Some(End::Nothing));
    }
    let (category, mut message) = describe(&Verdict::NoProgram(program), None);
    if let Err(Unhealthy::Broken(error)) = healthy {
        message = format!("{message}; {error}");
    }
    place.note(vec![Entry::error(Some(&task.id), category, &message)]);
    let reason = format!("{}: {message}", task.id);
    Ok(Some(End::Finished(Finished {
        status: "environment".into(),
        reason,
        code: Some(ErrorCode::TasksEnv.into()),
    })))
}

/// Takes a task that has begun from its current state to its end. `Some` means that the worker
/// ends.
async fn go_on(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
) -> Result<Option<End>, StepError> {
    let list = read(driven, worker, place).await?;
    let Some(task) = list.get(&work.task).cloned() else {
        return close(driven, worker, work, "released", "it is no longer in the list", false).await;
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
    let verdict = match (&work.verdict, ours) {
        // The outcome was written, and the daemon died before it recorded that.
        (Some(verdict), false) => {
            return close(driven, worker, work, task.status.as_str(), &verdict.message, true).await;
        }
        (Some(verdict), true) if !work.doubted => verdict.clone(),
        _ => {
            let task = match claimed(driven, worker, place, work, task, ours).await? {
                Some(task) => task,
                None => {
                    return close(driven, worker, work, "released", "another worker has it", false)
                        .await;
                }
            };
            let Some(dispatch) = dispatched(driven, worker, place, work, &task).await? else {
                return Ok(Some(End::DaemonStops));
            };
            if driven.stopping() == Some(true) {
                return interrupted(driven, worker, place, work).await;
            }
            let Some(task) = claimed_again(driven, worker, place, task).await? else {
                let why = "it is no longer in the list, or another worker has it";
                return close(driven, worker, work, "released", why, false).await;
            };
            let (at, project, base) = (place.clone(), driven.project.clone(), work.base.clone());
            let broken = driven.step(worker, move || match &at.branch {
                Some(branch) if at.is_in_clone() => {
                    project.renew_clone(at.git.top(), branch, &base)
                }
                _ => Ok(None),
            });
            if let Some(message) = broken.await?? {
                Judged {
                    passed: false,
                    category: Some(Category::TaskExec.as_str().into()),
                    message,
                }
            } else if was_stopped_with_daemon(&dispatch) {
                // The agent did not fail, so its work is recovered.
                let (place, off) = (place.clone(), driven.called_off());
                let recovered = driven.step(worker, move || {
                    place.recover(&task, &off).map(|done| (place, task, done))
                });
                let (place, task, recovered) = recovered.await??;
                match recovered {
                    Recovered::Failed(_) => {
                        return close(
                            driven,
                            worker,
                            work,
                            "failed",
                            "stopped with the daemon",
                            true,
                        )
                        .await;
                    }
                    Recovered::Resume => {
                        place.hand_over(&task.id, Some(place.worker.clone()))?;
                        return close(driven, worker, work, "released", "to be resumed", false)
                            .await;
                    }
                    Recovered::Passed => {
                        Judged { passed: true, category: None, message: String::new() }
                    }
                }
            } else {
                let (at, task) = (place.clone(), task.clone());
                let off = driven.called_off();
                let judged =
                    driven.step(worker, move || judge(&at, &task, &dispatch, &off)).await??;
                let Some(judged) = judged else {
                    if driven.daemon.lifecycle.stop.is_cancelled() {
                        return Ok(Some(End::DaemonStops));
                    }
                    return interrupted(driven, worker, place, work).await;
                };
                judged
            }
        }
    };
    if work.verdict.is_none() || work.doubted {
        fault::point("tasks.validated");
        note_verdict(driven, worker, work, &verdict).await?;
    }
    conclude(driven, worker, place, work, verdict).await
}

/// Whether the list says "completed" about a task whose completion no daemon has recorded: its
/// agent can write that. In a concurrent list another worker may have completed it legitimately.
fn is_forged(driven: &Driven, work: &Work, task: &Task) -> bool {
    let passed = work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
    let has_begun = driven.daemon.snapshot().get(&work.dispatch).is_some();
    task.status == Status::Completed && !passed && has_begun && driven.mode == Mode::Exclusive
}

async fn note_verdict(
    driven: &Driven,
    worker: u32,
    work: &Work,
    verdict: &Judged,
) -> Result<(), StepError> {
    let event = Event::TaskJudged {
        list: driven.list.clone(),
        worker,
        task: work.task.clone(),
        verdict: verdict.clone(),
    };
    let recorded = record(&driven.daemon, event, &random_key()).await;
    recorded.map_err(|error| StepError::Other(error.to_string()))
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
