//! Finds the list that a verb means, determines the right to change it, and converts errors for
//! users.

use crate::cli::context::{self, Context};
use crate::cli::failure::{Failure, chain};
use crate::cli::settings;
use crate::client::env_pass;
use jiff::Timestamp;
use muleteer_model::event::id::Unfound;
use muleteer_model::task_list::session::claim::LEASE;
use muleteer_model::task_list::{Stand, Task, TaskList};
use muleteer_process::identity::NONCE_VAR;
use muleteer_protocol::ErrorCode;
use muleteer_store::task_list::{
    LOCK_PATIENCE, RUN_VARIABLE, Right, Root, SessionLock, TaskListError, Tx,
};
use muleteer_supervisor::task_list::steps::{Hold, Place, StepError, validation_env};
use muleteer_vcs::user_repo::{Git, GitError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest lease that `HARNESS_LEASE_SECONDS` can set, in seconds: 30 days.
const LONGEST_LEASE: u64 = 30 * 24 * 60 * 60;
/// The longest time that `HARNESS_LOCK_TIMEOUT_SECONDS` can set, in seconds.
const LONGEST_WAIT: f64 = 3600.0;

pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the daemon's run for which this process works, as its agent or as a validation command.
/// A validation has no variable that names the run, but it has the marker that all processes of
/// Muleteer have.
pub fn of_run() -> Option<String> {
    variable(RUN_VARIABLE)
        .or_else(|| muleteer_supervisor::task_list::run::marked(&variable(NONCE_VAR)?))
}

/// Rejects changes of the tasks and of their validations by an agent. An agent must not change what
/// it is judged by. This holds for an agent of a run, and for any dispatched agent while a run
/// works on the list.
///
/// # Errors
/// `E_FORBIDDEN`.
pub fn not_by_an_agent(root: &Root) -> Result<(), Failure> {
    let run = of_run()
        .or_else(|| variable("MULETEER_DISPATCH_ID").and_then(|_| SessionLock::run_on(root)));
    let Some(run) = run else { return Ok(()) };
    let message = format!("an agent may not change the tasks of run {run} or their validation");
    Err(Failure::new(ErrorCode::Forbidden, message).hint(
        "name the change in your result, so that a person can make it after the run (or add a task \
            with `muleteer tasks add`)",
    ))
}

/// Rejects an agent of a run, which must not judge itself.
pub fn not_of_a_run() -> Result<(), Failure> {
    match of_run() {
        None => Ok(()),
        Some(run) => Err(Failure::new(
            ErrorCode::Forbidden,
            format!("run {run} validates the task after your turn"),
        )
        .hint("end your turn; record progress with `muleteer tasks checkpoint`")),
    }
}

/// Returns how long a claim lasts: `HARNESS_LEASE_SECONDS`, else [`LEASE`].
pub fn lease() -> Duration {
    let seconds = variable("HARNESS_LEASE_SECONDS").and_then(|text| text.trim().parse().ok());
    seconds
        .filter(|seconds| (1..=LONGEST_LEASE).contains(seconds))
        .map_or(LEASE, Duration::from_secs)
}

/// Returns how long a change waits for the protocol's lock: `HARNESS_LOCK_TIMEOUT_SECONDS`, else
/// [`LOCK_PATIENCE`].
pub fn lock_patience() -> Duration {
    let seconds =
        variable("HARNESS_LOCK_TIMEOUT_SECONDS").and_then(|text| text.trim().parse::<f64>().ok());
    seconds
        .filter(|seconds| (0.0..=LONGEST_WAIT).contains(seconds))
        .map_or(LOCK_PATIENCE, Duration::from_secs_f64)
}

/// Returns the worker's name: the given one, else `HARNESS_WORKER_ID`, else `local`.
pub fn worker(said: Option<&str>) -> String {
    said.map(String::from)
        .or_else(|| variable("HARNESS_WORKER_ID"))
        .unwrap_or_else(|| "local".into())
}

pub fn here() -> Result<PathBuf, Failure> {
    context::here(ErrorCode::TasksMissing)
}

/// Finds the list.
///
/// # Errors
/// `E_TASKS_MISSING`.
pub fn root(said: Option<&Path>) -> Result<Root, Failure> {
    let pinned =
        said.map(Path::to_path_buf).or_else(|| variable("HARNESS_STATE_ROOT").map(PathBuf::from));
    Root::find(&here()?, pinned.as_deref()).map_err(|error| listed(&error))
}

/// Excludes Muleteer's private files beside a list from `git status` and from `git clean -fd`. The
/// exclusion holds in every working directory of the repository. If it fails, the list is used
/// anyway.
pub fn keep_out_of_git(root: &Root) {
    if let Ok(git) = Git::open(root.path()) {
        drop(muleteer_vcs::worktree::exclude(git.common_dir()));
    }
}

/// Begins a change of the list. A warning that the list was damaged is printed even with `--quiet`:
/// the copy that was set aside may contain something of the user's.
pub fn begin(root: &Root) -> Result<Tx, Failure> {
    if !root.private().exists() {
        // The list was created by another tool, or by hand.
        keep_out_of_git(root);
    }
    let run = of_run();
    let right = run.as_deref().map_or(Right::Own, Right::Run);
    let tx = root
        .begin_within(right, Timestamp::now(), lock_patience())
        .map_err(|error| listed(&error))?;
    if let Some(text) = &tx.restored {
        drop(writeln!(std::io::stderr(), "warning: {text} (in {})", root.path().display()));
    }
    Ok(tx)
}

/// Determines where this process works: in the repository of the current directory, which may be a
/// separate worktree.
pub fn place(root: &Root, worker: String, context: &Context) -> Result<Place, Failure> {
    let project = Git::open(root.path()).map_err(|error| git(&error))?;
    let here = here()?;
    // If the current directory is unrelated to the list (`--root`), the work is where the list is.
    let own = Git::open(&here).ok();
    let (work, dir) = match own {
        Some(work) if work.top() != project.top() => {
            let below =
                root.path().strip_prefix(project.top()).unwrap_or(Path::new("")).to_path_buf();
            let is_copy =
                work.exists(&project.head().map_err(|error| git(&error))?) || work.shares(&project);
            let work = if is_copy {
                Git::open_copy(&here, &project).map_err(|error| git(&error))?
            } else {
                project.clone()
            };
            let dir = if is_copy { work.top().join(below) } else { root.path().to_path_buf() };
            (work, dir)
        }
        _ => (project.clone(), root.path().to_path_buf()),
    };
    let config = settings::config(context, Some(root.path()))?;
    settings::warn(context, config.ignored(), "env.pass");
    let vars = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    Ok(Place {
        confine: None,
        root: root.clone(),
        hold: of_run().map_or(Hold::Own, Hold::Run),
        branch: None,
        stand: Stand::Anywhere,
        is_everybody_s: false,
        project,
        git: work,
        dir,
        env: validation_env(&env_pass::filter(vars, &config.env.pass)),
        worker,
        session: None,
        nonce: format!("tasks-{}", std::process::id()),
    })
}

/// Further candidates are only counted.
const CANDIDATES: usize = 20;

/// Returns the task with this id, or with an id that begins with it.
///
/// # Errors
/// `E_TASK_UNKNOWN`, `E_AMBIGUOUS`.
pub fn task<'a>(list: &'a TaskList, said: &str) -> Result<&'a Task, Failure> {
    list.find(said).map_err(|unfound| match unfound {
        Unfound::Unknown => unknown(said),
        Unfound::Ambiguous(ids) => {
            let (shown, count) =
                (ids.iter().take(CANDIDATES).map(String::as_str).collect::<Vec<_>>(), ids.len());
            let more = if count > shown.len() { ", …" } else { "" };
            Failure::new(
                ErrorCode::Ambiguous,
                format!("`{said}` matches {count} tasks: {}{more}", shown.join(", ")),
            )
            .hint("give a longer part of the id")
        }
    })
}

/// Returns the complete id of a task.
///
/// # Errors
/// As [`task`].
pub fn named(list: &TaskList, said: &str) -> Result<String, Failure> {
    task(list, said).map(|task| task.id.clone())
}

/// Joins the text about a step or a failure. It must not be empty, because a later worker has no
/// other information.
pub fn words(text: &[String]) -> Result<String, Failure> {
    let text = text.join(" ");
    if text.trim().is_empty() {
        Err(Failure::new(ErrorCode::Usage, "the TEXT is empty"))
    } else {
        Ok(text)
    }
}

pub fn unknown(id: &str) -> Failure {
    Failure::new(ErrorCode::TaskUnknown, format!("no task `{id}`"))
        .hint("run `muleteer tasks status` to list them")
}

pub fn listed(error: &TaskListError) -> Failure {
    let failure = Failure::new(error.code(), chain(error)).hint(error.hint());
    match error {
        TaskListError::Invalid { file, faults } => {
            let of = |fault: &muleteer_model::task_list::document::Fault| {
                Failure::new(ErrorCode::TasksInvalid, fault.to_string())
                    .file(file)
                    .at(fault.line, fault.column)
                    .hint(fault.hint.clone())
            };
            let mut all = faults.iter().map(of);
            all.next().unwrap_or(failure).and(all.collect::<Vec<_>>())
        }
        TaskListError::Corrupt { file, line, column, .. } => {
            let some = |number: &u64| Some(*number).filter(|number| *number > 0);
            failure.file(file).at(some(line), some(column))
        }
        _ => failure,
    }
}

pub fn git(error: &GitError) -> Failure {
    let code = match error {
        GitError::NoRepository(_) | GitError::NoCommit(_) => ErrorCode::NotARepository,
        GitError::Distrusted { .. }
        | GitError::Filter { .. }
        | GitError::InProgress { .. }
        | GitError::InTheWay { .. }
        | GitError::Failed { .. }
        | GitError::Unheard { .. } => ErrorCode::TasksGit,
    };
    let failure = Failure::of(code, error);
    match error.hint() {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

pub fn stepped(error: StepError) -> Failure {
    match error {
        StepError::List(error) => listed(&error),
        StepError::Git(error) => git(&error),
        StepError::Refused(error) => refused(&error),
        StepError::Dispatch(_, text) | StepError::Other(text) => Failure::new(ErrorCode::Io, text),
    }
}

pub fn refused(error: &muleteer_model::task_list::session::claim::Refused) -> Failure {
    use muleteer_model::task_list::session::claim::Refused;
    let failure = |code, hint: &str| Failure::new(code, error.to_string()).hint(hint);
    match error {
        Refused::Unknown(id) => unknown(id),
        Refused::Held { .. } => {
            failure(ErrorCode::TaskClaimed, "claim another task, or wait until the claim expires")
        }
        Refused::NotYours { .. } => failure(
            ErrorCode::TaskClaimed,
            "claim it first; name yourself with --worker or HARNESS_WORKER_ID",
        ),
        Refused::Interrupted(id) => {
            let hint = format!("recover it with `muleteer tasks recover {id}`");
            failure(ErrorCode::TaskClaimed, &hint)
        }
        Refused::Completed(_) | Refused::FailedForGood(_) => {
            failure(ErrorCode::TaskClaimed, "reset its attempts with `muleteer tasks retry ID`")
        }
        Refused::Waits { .. } => {
            failure(ErrorCode::TaskClaimed, "run `muleteer tasks graph` to see the dependencies")
        }
    }
}
