//! Claims: which worker has a task, and until when. All functions run under the lock of the list.
//! Only a claim assigns a task; the selection before it is advice.

use crate::task_list::category::Category;
use crate::task_list::document::tamper;
use crate::task_list::document::{Mode, Status, Task, TaskList};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// The duration of a claim without renewal (contract.md, "Task lists").
pub const LEASE: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("no task `{0}`")]
    Unknown(String),
    /// Another worker has the task; choose another one.
    #[error("`{task}` is claimed by {by} until {until}")]
    Held { task: String, by: String, until: String },
    #[error("`{0}` is completed")]
    Completed(String),
    #[error("`{0}` has failed for good")]
    FailedForGood(String),
    #[error("`{task}` depends on `{on}`, which is not completed")]
    Waits { task: String, on: String },
    /// Interrupted work must be recovered before another worker begins.
    #[error("`{0}` was interrupted: recover it first")]
    Interrupted(String),
    #[error("`{task}` is not {worker}'s: {why}")]
    NotYours { task: String, worker: String, why: String },
}

impl Task {
    /// Returns whether the task is in progress with an unexpired lease.
    pub fn is_held(&self, now: Timestamp) -> bool {
        self.status == Status::InProgress && self.lease_expires_at.is_some_and(|until| until > now)
    }
}

/// Returns why task `id` (or any pending task, for `None`) cannot be claimed. In an exclusive list,
/// two tasks in one working directory would be committed or rolled back together.
pub fn in_hand(list: &TaskList, id: Option<&str>, now: Timestamp) -> Option<Refused> {
    let is_other = |task: &&Task| task.status == Status::InProgress && Some(task.id.as_str()) != id;
    let others = || list.tasks.iter().filter(is_other).filter(|_| list.mode == Mode::Exclusive);
    // Recovery of an interrupted task would disturb a live worker, so the live worker is named
    // first.
    let living = others().find(|task| task.is_held(now));
    living.map(held).or_else(|| Some(Refused::Interrupted(others().next()?.id.clone())))
}

/// Checks whether `worker` may recover a task. Work with an unexpired lease of another worker was
/// not interrupted, and a rollback would destroy it. In an exclusive list this applies to any task,
/// because all tasks share one working directory.
///
/// # Errors
/// The worker that has it, or the reason why there is nothing to recover.
pub fn recoverable(list: &TaskList, id: &str, worker: &str, now: Timestamp) -> Result<(), Refused> {
    let task = in_progress(list, id, worker)?;
    let is_theirs = |task: &&Task| task.is_held(now) && task.claimed_by.as_deref() != Some(worker);
    let beside = list.tasks.iter().filter(|_| list.mode == Mode::Exclusive);
    std::iter::once(task)
        .chain(beside)
        .find(is_theirs)
        .map_or(Ok(()), |theirs| Err(held(theirs)))
}

/// Returns the task if an attempt is in progress, by whichever worker.
///
/// # Errors
/// No attempt is in progress.
pub fn in_progress<'a>(list: &'a TaskList, id: &str, worker: &str) -> Result<&'a Task, Refused> {
    let task = list.get(id).ok_or_else(|| Refused::Unknown(id.into()))?;
    let why = || format!("it is {}", task.status.as_str());
    let refused = || Refused::NotYours { task: id.into(), worker: worker.into(), why: why() };
    if task.status == Status::InProgress { Ok(task) } else { Err(refused()) }
}

/// Claims a task for a worker: the task becomes `in_progress`, based on commit `base`.
///
/// A repeated claim by the same worker renews the lease, so it is harmless.
///
/// # Errors
/// The reason why the claim was rejected; the list is then unchanged.
pub fn claim(
    list: &mut TaskList,
    id: &str,
    worker: &str,
    base: &str,
    now: Timestamp,
    lease: Duration,
) -> Result<(), Refused> {
    let task = list.get(id).ok_or_else(|| Refused::Unknown(id.into()))?;
    match task.status {
        Status::Completed => return Err(Refused::Completed(id.into())),
        Status::Failed if task.is_failed_for_good() => {
            return Err(Refused::FailedForGood(id.into()));
        }
        Status::InProgress
            if task.claimed_by.as_deref() == Some(worker) && task.started_at_commit.is_some() =>
        {
            return renew(list, id, worker, now, lease);
        }
        Status::InProgress if task.is_held(now) => return Err(held(task)),
        Status::InProgress => return Err(Refused::Interrupted(id.into())),
        Status::Pending | Status::Failed => {}
    }
    let open =
        |needed: &&String| list.get(needed).is_none_or(|task| task.status != Status::Completed);
    if let Some(on) = task.depends_on.iter().find(open) {
        return Err(Refused::Waits { task: id.into(), on: on.clone() });
    }
    let task = list.get_mut(id).ok_or_else(|| Refused::Unknown(id.into()))?;
    task.status = Status::InProgress;
    task.started_at_commit = Some(base.into());
    // They belong to an attempt that was rolled back, so that work no longer exists.
    task.checkpoints.clear();
    task.claimed_by = Some(worker.into());
    task.lease_expires_at = Some(after(now, lease));
    Ok(())
}

fn held(task: &Task) -> Refused {
    Refused::Held {
        task: task.id.clone(),
        by: task.claimed_by.clone().unwrap_or_else(|| "somebody".into()),
        until: task.lease_expires_at.map(crate::task_list::document::iso).unwrap_or_default(),
    }
}

/// Extends a worker's lease. It never shortens one, so a longer requested lease stays.
///
/// # Errors
/// The task is not, or no longer, this worker's.
pub fn renew(
    list: &mut TaskList,
    id: &str,
    worker: &str,
    now: Timestamp,
    lease: Duration,
) -> Result<(), Refused> {
    let task = owned(list, id, worker)?;
    task.lease_expires_at = task.lease_expires_at.max(Some(after(now, lease)));
    Ok(())
}

/// Sets a worker's lease to a length that was requested explicitly. It may shorten the lease.
///
/// # Errors
/// As [`renew`].
pub fn set_lease(
    list: &mut TaskList,
    id: &str,
    worker: &str,
    now: Timestamp,
    lease: Duration,
) -> Result<(), Refused> {
    owned(list, id, worker)?.lease_expires_at = Some(after(now, lease));
    Ok(())
}

/// Returns the task if this worker has it. A task in progress without a named claimant belongs to
/// any worker.
///
/// # Errors
/// The claimant, or that no attempt is in progress.
pub fn owned<'a>(list: &'a mut TaskList, id: &str, worker: &str) -> Result<&'a mut Task, Refused> {
    let task = list.get_mut(id).ok_or_else(|| Refused::Unknown(id.into()))?;
    let why = match (task.status, task.claimed_by.as_deref()) {
        (Status::InProgress, None) => return Ok(task),
        (Status::InProgress, Some(by)) if by == worker => return Ok(task),
        (Status::InProgress, Some(by)) => format!("{by} has claimed it"),
        (status, _) => format!("it is {}", status.as_str()),
    };
    Err(Refused::NotYours { task: id.into(), worker: worker.into(), why })
}

/// Returns whether the protected fields of a task in progress are as they were when work began.
pub fn is_kept(list: &TaskList, begun: &Task, worker: &str) -> bool {
    let begun = in_hand_of(begun, worker);
    let is_same = |found: &Task| {
        tamper::standing(found, &begun).is_empty() && tamper::validation(found, &begun).is_empty()
    };
    list.get(&begun.id).is_some_and(is_same)
}

/// Returns the task as it must be in the list while the worker has it.
fn in_hand_of(begun: &Task, worker: &str) -> Task {
    let mut task = begun.clone();
    task.status = Status::InProgress;
    task.claimed_by = Some(worker.into());
    task
}

/// Restores the fields of a task that others overwrote while `worker` had it. An agent could write
/// `completed` into the file, but only the validation decides that. Returns the reports.
///
/// # Errors
/// Another worker has the task now, or it was removed. In an exclusive list no other worker can
/// have it, because the session holds the lock.
pub fn put_back(
    list: &mut TaskList,
    begun: &Task,
    worker: &str,
    now: Timestamp,
) -> Result<Vec<String>, Refused> {
    let is_alone = list.mode == Mode::Exclusive;
    let found = list.get(&begun.id).ok_or_else(|| Refused::Unknown(begun.id.clone()))?;
    if !is_alone {
        if found.status == Status::InProgress
            && found.claimed_by.as_deref().is_some_and(|by| by != worker)
        {
            return Err(held(found));
        }
        let since = found.error_log.get(begun.error_log.len()..).unwrap_or_default();
        if since.iter().any(|entry| entry.ends_with(&expired(worker))) {
            // Any worker could have claimed it since then.
            let base = begun.started_at_commit.clone().unwrap_or_default();
            claim(list, &begun.id, worker, &base, now, LEASE)?;
            return Ok(vec![
                "its claim expired while it was in progress, and no other worker has claimed it"
                    .into(),
            ]);
        }
    }
    let task = list.get_mut(&begun.id).ok_or_else(|| Refused::Unknown(begun.id.clone()))?;
    let begun = in_hand_of(begun, worker);
    let fields = tamper::standing(task, &begun);
    let mut said = vec![];
    if task.status == Status::Pending && task.claimed_by.is_none() {
        // The list was restored from a backup that is older than the claim.
        said.push("the list no longer said that it was in progress".to_string());
    } else if !fields.is_empty() {
        let fields = fields.join(", ");
        said.push(format!(
            "its {fields} in {} changed while it was in progress: only the harness sets these, so \
             it restored them; its validation decides",
            crate::task_list::TASKS
        ));
    }
    let fields = tamper::validation(task, &begun);
    if !fields.is_empty() {
        said.push(format!("its {} changed while it was in progress", fields.join(", ")));
    }
    tamper::restore_standing(task, &begun);
    task.lease_expires_at = task.lease_expires_at.max(Some(after(now, LEASE)));
    Ok(said)
}

/// Reverts a claim without an outcome.
pub fn release(task: &mut Task) {
    task.status = if task.error_log.is_empty() && task.attempts == 0 {
        Status::Pending
    } else {
        Status::Failed
    };
    task.claimed_by = None;
    task.lease_expires_at = None;
}

/// Ends the leases of claimants that have ended (`gone`), in an exclusive list: their tasks were
/// interrupted. In a concurrent list the lease alone decides, as the protocol says.
pub fn end_leases(list: &mut TaskList, gone: &[String], now: Timestamp) {
    if list.mode != Mode::Exclusive {
        return;
    }
    let is_gone = |task: &Task| task.claimed_by.as_ref().is_some_and(|by| gone.contains(by));
    for task in list.tasks.iter_mut().filter(|task| task.is_held(now)) {
        if is_gone(task) {
            task.lease_expires_at = Some(crate::task_list::document::second(now));
        }
    }
}

/// Returns the interrupted tasks that this worker must recover before it claims a new one.
///
/// In an exclusive list these are all tasks in progress, since there is only one worker. In a
/// concurrent list they are the worker's own, and those with an expired lease. Tasks of a live run
/// (`alive`) are not interrupted.
pub fn interrupted(list: &TaskList, worker: &str, now: Timestamp, alive: &[String]) -> Vec<usize> {
    let is_ours = |task: &Task| match list.mode {
        Mode::Exclusive => true,
        Mode::Concurrent => task.claimed_by.as_deref() == Some(worker) || !task.is_held(now),
    };
    let is = |task: &Task| {
        task.status == Status::InProgress && is_ours(task) && !alive.contains(&task.id)
    };
    list.tasks.iter().enumerate().filter(|(_, task)| is(task)).map(|(at, _)| at).collect()
}

/// Checks that a task is unchanged since it was `seen`, and that no worker but `worker`, which
/// recovers it, has it.
///
/// # Errors
/// The worker that has it, or that it is no longer in progress.
pub fn is_stale(found: &Task, seen: &Task, worker: &str, now: Timestamp) -> Result<(), Refused> {
    if found.status != Status::InProgress || found.started_at_commit != seen.started_at_commit {
        let why = format!("it is {}", found.status.as_str());
        return Err(Refused::NotYours { task: found.id.clone(), worker: worker.into(), why });
    }
    let is_theirs = found.is_held(now) && found.claimed_by.as_deref() != Some(worker);
    if is_theirs { Err(held(found)) } else { Ok(()) }
}

/// Fails tasks of other workers with expired leases, in a concurrent list; they may be retried. The
/// other workers' directories are not touched. Returns the ids.
pub fn expire(list: &mut TaskList, worker: &str, now: Timestamp, alive: &[String]) -> Vec<String> {
    if list.mode == Mode::Exclusive {
        return vec![];
    }
    let stale = interrupted(list, worker, now, alive);
    let stale =
        stale.into_iter().filter(|at| list.tasks[*at].claimed_by.as_deref() != Some(worker));
    let stale: Vec<_> = stale.collect();
    let mut ids = vec![];
    for at in stale {
        let task = &mut list.tasks[at];
        let by = task.claimed_by.clone().unwrap_or_else(|| "somebody".into());
        crate::task_list::outcome::fail(task, Category::SessionTimeout, &expired(&by), now);
        ids.push(task.id.clone());
    }
    ids
}

/// Fails a task whose lease has expired, in a list of any mode; it may be retried. The caller knows
/// that the attempt left nothing. Returns whether it did so.
pub fn reap(list: &mut TaskList, id: &str, now: Timestamp) -> bool {
    let is_stale = |task: &&mut Task| {
        task.status == Status::InProgress && task.lease_expires_at.is_some_and(|until| until <= now)
    };
    let Some(task) = list.get_mut(id).filter(is_stale) else { return false };
    let by = task.claimed_by.clone().unwrap_or_else(|| "somebody".into());
    crate::task_list::outcome::fail(task, Category::SessionTimeout, &expired(&by), now);
    true
}

/// Returns the error of a claim that was not renewed.
pub fn expired(by: &str) -> String {
    format!("the claim of {by} has expired")
}

fn after(now: Timestamp, lease: Duration) -> Timestamp {
    let lease = SignedDuration::try_from(lease).unwrap_or(SignedDuration::ZERO);
    crate::task_list::document::second(now.checked_add(lease).unwrap_or(now))
}

#[cfg(test)]
mod tests;
