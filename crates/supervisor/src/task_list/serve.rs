//! Handles the gate's requests about runs of task lists.

use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::error::{fault, internal, unwritten};
use crate::dispatch::request;
use crate::dispatch::request::place_warnings::{self, Lfs};
use crate::ledger::try_append;
use crate::ports::task_list::TaskListsMsg;
use crate::task_list::run;
use jiff::Timestamp;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Entry, Event};
use muleteer_model::task_list::session::{Run, Started};
use muleteer_model::task_list::{Mode, stats};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, TasksEnded, TasksRun, WireError};
use muleteer_store::task_list::{Right, Root, TaskListError};
use muleteer_vcs::user_repo::{Git, GitError};
use std::path::Path;
use std::sync::Arc;

/// The limit of workers. More are a mistake, because each has a clone and an agent.
const CONCURRENCY: u32 = 64;

pub fn listed(error: &TaskListError) -> WireError {
    let hint = error.hint();
    let mut wire = fault(error.code(), &crate::dispatch::error::chain(error), &hint);
    match error {
        TaskListError::Invalid { file, faults } => {
            wire.file = Some(file.display().to_string());
            wire.line = faults.first().and_then(|fault| fault.line);
            wire.column = faults.first().and_then(|fault| fault.column);
        }
        TaskListError::Corrupt { file, line, column, .. } => {
            wire.file = Some(file.display().to_string());
            (wire.line, wire.column) =
                (Some(*line).filter(|n| *n > 0), Some(*column).filter(|n| *n > 0));
        }
        _ => {}
    }
    wire
}

pub fn unrepositoried(error: &GitError) -> WireError {
    let code = match error {
        GitError::NoRepository(_) | GitError::NoCommit(_) => ErrorCode::NotARepository,
        GitError::Distrusted { .. } | GitError::Filter { .. } | GitError::InProgress { .. } => {
            ErrorCode::TasksGit
        }
        GitError::InTheWay { .. } | GitError::Failed { .. } | GitError::Unheard { .. } => {
            ErrorCode::Io
        }
    };
    fault(code, &error.to_string(), &error.hint().unwrap_or_default())
}

/// Checks that the agents of a run can be dispatched, if there is `work`. Otherwise no task could
/// start, in one session after the other.
async fn can_dispatch(daemon: &Daemon, asked: &TasksRun, work: bool) -> Result<(), WireError> {
    if asked.dispatch.sandbox {
        request::sandbox::possible(daemon).await?;
    }
    if work { request::check(daemon, &asked.dispatch) } else { Ok(()) }
}

/// Starts a run. A repeated request is answered, but not carried out again.
pub async fn run(
    daemon: &Arc<Daemon>,
    asked: &TasksRun,
    by: &str,
    trace: Option<String>,
) -> Result<Reply, WireError> {
    let root = Root::at(Path::new(&asked.root));
    // One request at a time for each directory, because two would each find no run there.
    let _alone = daemon.creating(&format!("task-list {}", root.path().display())).await;
    if let Some(known) = daemon.snapshot().task_lists.get(&asked.id) {
        daemon.ports.task_lists.cast(TaskListsMsg::Drive(asked.id.clone()));
        let from_seq = known.created_seq;
        return Ok(Reply::TasksStarted { id: asked.id.clone(), from_seq, warnings: vec![] });
    }
    muleteer_model::event::id::DispatchId::try_from(asked.id.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    if !(1..=CONCURRENCY).contains(&asked.concurrency) {
        return Err(fault(
            ErrorCode::BadInput,
            &format!("concurrency must be from 1 to {CONCURRENCY}"),
            "",
        ));
    }
    let name = root.path().display().to_string();
    if let Some(other) = daemon.snapshot().task_lists.on(&name) {
        let message = format!("run {} is already working on this list", other.started.list);
        return Err(fault(
            ErrorCode::TasksLocked,
            &message,
            "stop it with `muleteer tasks stop`, or watch it with `muleteer tasks status`",
        ));
    }
    let (at, id) = (root.clone(), asked.id.clone());
    let checked = tokio::task::spawn_blocking(move || check(&at, &id)).await;
    let Checked { branch, mode, lock, work } =
        checked.map_err(|error| internal(&error.to_string()))??;
    if branch.is_none() && run::in_clones(asked.concurrency, mode) {
        let message = "workers in clones need a branch to merge into, but HEAD is detached";
        return Err(fault(
            ErrorCode::TasksGit,
            message,
            "run `git switch BRANCH`, or `git switch -c NAME`, then start the run again",
        ));
    }
    can_dispatch(daemon, asked, work).await?;
    let private = daemon.paths.task_lists();
    muleteer_store::atomic::create_dir_durable(&private, 0o700)
        .map_err(|error| unwritten(&error))?;
    let bytes = serde_json::to_vec(asked).map_err(|error| internal(&error.to_string()))?;
    muleteer_store::atomic::write_atomic(&run::request_file(daemon, &asked.id), &bytes, 0o600)
        .map_err(|error| unwritten(&error))?;
    let started = Started {
        list: asked.id.clone(),
        root: name,
        concurrency: asked.concurrency,
        max_tasks: asked.max_tasks,
        branch,
        role: asked.dispatch.role.clone(),
        backend: asked.dispatch.backend.clone(),
        by: by.into(),
        trace: Some(daemon.place_in_trace(trace, trace_ids::task_list(&asked.id))),
    };
    let event = Event::TaskListStarted(Box::new(started));
    let entry = Entry {
        id: format!("{}/tasks", asked.id),
        dispatch_id: None,
        at: None,
        more: false,
        event,
    };
    // The lock is stored before anybody can know of the run, because its driver would otherwise
    // find it locked by this very process.
    if let Some(lock) = lock {
        daemon.task_list_runs.get(&asked.id).keep_lock(lock);
    }
    if mode == Mode::Concurrent {
        root.leave_word(&asked.id).map_err(|error| listed(&error))?;
    }
    let records = match try_append(daemon, vec![entry]).await {
        Ok(records) => records,
        Err(error) => {
            root.take_word_back(&asked.id);
            daemon.task_list_runs.forget(&asked.id);
            return Err(internal(&error.to_string()));
        }
    };
    let warnings = match run::in_clones(asked.concurrency, mode) {
        true => place_warnings::of_clones(root.path(), None, Lfs::Absent).await,
        false => place_warnings::of_checkout(daemon, root.path(), None).into_iter().collect(),
    };
    daemon.ports.task_lists.cast(TaskListsMsg::Drive(asked.id.clone()));
    let from_seq = records.first().map_or(0, |record| record.seq);
    Ok(Reply::TasksStarted { id: asked.id.clone(), from_seq, warnings })
}

struct Checked {
    branch: Option<String>,
    mode: Mode,
    lock: Option<muleteer_store::task_list::SessionLock>,
    /// Some tasks are not done yet.
    work: bool,
}

/// Checks whether a run can start. An exclusive list is locked from here on, so that a second
/// session fails fast.
fn check(root: &Root, id: &str) -> Result<Checked, WireError> {
    // A damaged list is restored here, under the lock.
    let list = root.begin(Right::Own, Timestamp::now()).map_err(|error| listed(&error))?.list;
    let git = Git::open(root.path()).map_err(|error| unrepositoried(&error))?;
    git.check_no_operation().map_err(|error| unrepositoried(&error))?;
    muleteer_vcs::worktree::exclude(git.common_dir())
        .map_err(|error| internal(&error.to_string()))?;
    let lock = match list.mode {
        Mode::Exclusive => Some(root.lock_session(id).map_err(|error| listed(&error))?.0),
        Mode::Concurrent => None,
    };
    let work = stats::stop(&list, 0, None).is_none();
    Ok(Checked { branch: git.branch(), mode: list.mode, lock, work })
}

fn find(daemon: &Daemon, id: &str) -> Result<Arc<Run>, WireError> {
    let fleet = daemon.snapshot();
    let runs = &fleet.task_lists;
    runs.get(id).or_else(|| runs.on(id)).cloned().ok_or_else(|| {
        fault(
            ErrorCode::NotFound,
            &format!("no run of a task list has the id {id}"),
            "run `muleteer tasks status` to see the list",
        )
    })
}

fn ended(run: &Run) -> TasksEnded {
    let finished = run.finished.clone();
    TasksEnded {
        id: run.started.list.clone(),
        root: run.started.root.clone(),
        status: finished.as_ref().map_or("running".into(), |end| end.status.clone()),
        reason: finished.as_ref().map(|end| end.reason.clone()).unwrap_or_default(),
        code: finished.and_then(|end| end.code),
        session: run.session,
    }
}

pub async fn wait(daemon: &Arc<Daemon>, id: &str) -> Result<Reply, WireError> {
    let list = find(daemon, id)?.started.list.clone();
    let mut changes = daemon.fleet.subscribe();
    let over = |fleet: &Arc<muleteer_model::dispatch::fleet::Fleet>| {
        fleet.task_lists.get(&list).is_none_or(|run| run.finished.is_some())
    };
    let _ = changes.wait_for(over).await;
    Ok(Reply::TasksEnded(ended(&*find(daemon, &list)?)))
}

/// Records that the run is to stop. With `now` its workers also kill their dispatches: they know of
/// a dispatch that is being created, and the next daemon's workers read the same record.
pub async fn stop(daemon: &Arc<Daemon>, id: &str, now: bool, by: &str) -> Result<Reply, WireError> {
    let run = find(daemon, id)?;
    if run.finished.is_none() {
        let list = run.started.list.clone();
        let event = Event::TaskListStopping { list, now, by: by.into() };
        let entry = Entry { id: random_key(), dispatch_id: None, at: None, more: false, event };
        try_append(daemon, vec![entry]).await.map_err(|error| internal(&error.to_string()))?;
        point("tasks.stopping_durable");
    }
    Ok(Reply::TasksEnded(ended(&*find(daemon, &run.started.list)?)))
}
