//! The hooks of a worker that claims tasks: it gets one, and keeps it while it works.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::hook::event::Event;
use crate::verbs::work::tasks::place::{begin, git, lease, listed, place};
use jiff::Timestamp;
use muleteer_backends::process_names;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::claim::{self, Refused};
use muleteer_model::task_list::{Category, Mode, Status, Task};
use muleteer_process::identity::caller;
use muleteer_store::task_list::{Behind, Tx};
use muleteer_supervisor::task_list::steps::Place;
use std::time::Duration;

/// A lease is renewed when less than this remains.
const RENEW_BELOW: Duration = Duration::from_secs(10 * 60);

pub(super) fn take(event: &Event, context: &Context) -> Result<Exit, Failure> {
    let worker = event
        .teammate
        .clone()
        .or_else(|| event.agent.first().cloned())
        .unwrap_or_else(|| event.worker());
    let at = place(&event.root, worker.clone(), context)?;
    let base = at.git.head().map_err(|error| git(&error))?;
    let mut tx = begin(&event.root)?;
    let now = tx.now();
    tx.forget_ended_holder(&worker);
    event.root.end_leases(&mut tx.list, now);
    reap(&at, &mut tx, &worker);
    for marked in select::validate_dependencies(&mut tx.list, now) {
        tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
    }
    let in_hand = claim::in_hand(&tx.list, None, now);
    let next = select::next(&tx.list, &event.root.failure_times(&tx.list));
    let Some(found) = next.filter(|_| in_hand.is_none()) else {
        tx.commit().map_err(|error| listed(&error))?;
        let Some(Refused::Interrupted(id)) = in_hand else { return Ok(Exit::Done) };
        let text = format!(
            "No task can be claimed: {id} of the task list was interrupted. First run `muleteer \
             tasks recover {id} --worker {worker}`."
        );
        return event.say(&text, "SubagentStart", context);
    };
    let id = tx.list.tasks[found].id.clone();
    // No task begins in the middle of an operation of git: see `muleteer tasks claim`.
    if at.git.check_no_operation().is_err() {
        tx.commit().map_err(|error| listed(&error))?;
        return Ok(Exit::Done);
    }
    if claim::claim(&mut tx.list, &id, &worker, &base, now, lease()).is_err() {
        tx.commit().map_err(|error| listed(&error))?;
        return Ok(Exit::Done);
    }
    let task = tx.list.tasks[found].clone();
    tx.log(Entry::starting(&task, &base));
    // Only an agent's process is remembered: any other caller may have run nothing but this hook.
    if let Some(process) = caller::agent(&process_names()) {
        tx.remember_holder(&worker, Behind::Process(process));
    }
    tx.commit().map_err(|error| listed(&error))?;
    drop(at.git.remember_start(&id, &base));
    let text = format!(
        "You have {id} ({}) of the task list, as worker {worker}. It is validated by `{}`. End it \
         with `muleteer tasks \
         complete {id} --worker {worker}`, or `muleteer tasks fail {id} --worker {worker} \
         \"why\"`.",
        task.title.trim(),
        task.command.as_deref().unwrap_or("nothing yet")
    );
    event.say(&text, "SubagentStart", context)
}

/// Renews leases. It must be cheap if nothing is due, because it runs after every tool call.
pub(super) fn renew(event: &Event) -> Result<Exit, Failure> {
    let worker = event.worker();
    let now = Timestamp::now();
    let lease = lease();
    // A short lease is renewed before two thirds of it are over.
    let below = RENEW_BELOW.min(lease * 2 / 3);
    let is_due = |task: &muleteer_model::task_list::Task| {
        let by = task.claimed_by.as_deref().unwrap_or_default();
        let ours = by == worker
            || by.starts_with(&format!("{worker}/"))
            || event.agent.iter().chain(&event.teammate).any(|name| name == by);
        let left =
            task.lease_expires_at.map_or(i64::MAX, |until| until.duration_since(now).as_secs());
        task.status == Status::InProgress && ours && left < below.as_secs().cast_signed()
    };
    let list = event.root.read().map_err(|error| listed(&error))?.list;
    if !list.tasks.iter().any(is_due) {
        return Ok(Exit::Done);
    }
    let mut tx = begin(&event.root)?;
    let due: Vec<_> = tx
        .list
        .tasks
        .iter()
        .filter(|task| is_due(task))
        .map(|task| (task.id.clone(), task.claimed_by.clone()))
        .collect();
    tx.forget_ended_holder(&worker);
    for (id, by) in due {
        drop(claim::renew(&mut tx.list, &id, &by.unwrap_or_default(), now, lease));
    }
    tx.commit().map_err(|error| listed(&error))?;
    Ok(Exit::Done)
}

/// Fails tasks whose leases have expired, so that they can be claimed again. In an exclusive list
/// their work would be in this directory: a task that left any is to be recovered instead.
fn reap(at: &Place, tx: &mut Tx, worker: &str) {
    let now = tx.now();
    let mut reaped = claim::expire(&mut tx.list, worker, now, &[]);
    if tx.list.mode == Mode::Exclusive {
        let is_unchanged = |task: &&Task| {
            let base = task.started_at_commit.as_deref();
            let is_at_base =
                || base.is_none_or(|base| at.git.head().is_ok_and(|head| head.starts_with(base)));
            task.status == Status::InProgress
                && task.checkpoints.is_empty()
                && is_at_base()
                && at.git.uncommitted().is_empty()
        };
        let found: Vec<_> =
            tx.list.tasks.iter().filter(is_unchanged).map(|task| task.id.clone()).collect();
        reaped.extend(found.into_iter().filter(|id| claim::reap(&mut tx.list, id, now)));
    }
    for id in reaped {
        tx.log(Entry::error(Some(&id), Category::SessionTimeout, "the worker's claim has expired"));
    }
}
