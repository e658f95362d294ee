//! Takes the next task of a list, or waits for one.

use crate::daemon::context::random_key;
use crate::task_list::run::{Driven, ended};
use crate::task_list::steps::{Place, StepError, Unhealthy, Verdict, describe};
use crate::task_list::worker::attempt::open;
use crate::task_list::worker::outcome::{End, Outcome, TaskToBegin};
use muleteer_model::event::id::DispatchId;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::Finished;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::stats::{self, Stop};
use muleteer_model::task_list::{Category, Status, Task, select};
use muleteer_protocol::ErrorCode;
use muleteer_vcs::user_repo::Git;
use std::time::Duration;

/// The interval for reading the list again, because other workers of it send no notification.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

enum Taken {
    Task(Box<Task>, String, bool),
    /// Other workers hold the tasks that all the rest depends on.
    Wait,
    End(End),
}

/// Takes a task, unless the run stops. Returns [`Outcome::LookAgain`] when one may have become
/// eligible.
pub(super) async fn take(
    driven: &Driven,
    worker: u32,
    place: &Place,
) -> Result<Outcome, StepError> {
    if driven.daemon.lifecycle.stop.is_cancelled() {
        return Ok(Outcome::Ended(Ok(End::DaemonStops)));
    }
    if driven.run().is_none_or(|run| run.stopping.is_some()) {
        return Ok(Outcome::Ended(Ok(End::Nothing)));
    }
    // It is enabled before the list is read, or an end in between would be missed.
    let changed = driven.shared.changed.notified();
    tokio::pin!(changed);
    changed.as_mut().enable();
    let taking = driven.shared.taking.clone().lock_owned().await;
    match pick(driven, worker, place).await? {
        Taken::Task(task, base, resumed) => {
            let bytes = random_key();
            let dispatch = DispatchId::try_from(bytes[..8].to_string())
                .map_err(|error| StepError::Other(error.to_string()))?;
            let task = task.id;
            Ok(Outcome::Taken(Box::new(TaskToBegin { task, dispatch, base, resumed, taking })))
        }
        Taken::End(end) => Ok(Outcome::Ended(Ok(end))),
        Taken::Wait => {
            drop(taking);
            tokio::select! {
                () = &mut changed => {}
                () = driven.daemon.lifecycle.stop.cancelled() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
            Ok(Outcome::LookAgain)
        }
    }
}

/// Picks the next task, one worker at a time. The claim comes after the intent is durable.
async fn pick(driven: &Driven, worker: u32, place: &Place) -> Result<Taken, StepError> {
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
