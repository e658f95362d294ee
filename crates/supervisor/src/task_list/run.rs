//! Drives one run of a list: the session's start, its workers, its end. Its state is in events or
//! in the list itself, so a new daemon can resume it.

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::owned_task::survive;
use crate::dispatch::confine::{self, Confined};
use crate::dispatch::request::sandbox;
use crate::ledger::append;
use crate::ports::ledger::LedgerError;
use crate::task_list::confine::{Confine, own_folder};
use crate::task_list::registry::Shared;
use crate::task_list::steps::{Confining, Hold, Place, StepError, validation_env};
use crate::task_list::worker::{self, End};
use muleteer_model::event::{Entry as Happened, Event};
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Stand;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::{Finished, Run};
use muleteer_model::task_list::stats::{self, Stop};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::TasksRun;
use muleteer_store::removal::remove_tree;
use muleteer_store::task_list::Root;
use muleteer_vcs::user_repo::Git;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// The limit of workers in one run.
pub(super) const MOST_WORKERS: u32 = 64;
/// The time for the removal of one worker's private HOME.
const PATIENCE: Duration = Duration::from_secs(10);

/// A run, for its driver and workers.
#[derive(Debug, Clone)]
pub struct Driven {
    pub daemon: Arc<Daemon>,
    pub list: String,
    pub asked: Arc<TasksRun>,
    pub shared: Arc<Shared>,
    pub root: Root,
    pub mode: Mode,
    pub project: Git,
    /// The sandbox of the commands, if the agents have one.
    confined: Option<Confined>,
}

/// Returns the nonce for the commands of a run's worker. It belongs to no dispatch, so the commands
/// may only read from the daemon, because a validation runs code that the judged agent wrote.
fn mark(list: &str, worker: u32) -> String {
    format!("tasklist-{list}-{worker}")
}

/// Returns the run whose command has this nonce.
pub fn marked(nonce: &str) -> Option<String> {
    let (list, worker) = nonce.strip_prefix("tasklist-")?.rsplit_once('-')?;
    worker.bytes().all(|byte| byte.is_ascii_digit()).then(|| list.into())
}

/// Returns the file with the plan of the sandbox of a worker's commands.
fn sandbox_file(daemon: &Daemon, list: &str, worker: u32) -> PathBuf {
    daemon.paths.task_lists().join(format!("{list}.{worker}.sandbox"))
}

pub fn request_file(daemon: &Daemon, list: &str) -> PathBuf {
    daemon.paths.task_lists().join(format!("{list}.json"))
}

/// Drives a run to its end. Returns early only when the daemon stops.
pub async fn drive(daemon: &Arc<Daemon>, list: &str) {
    let finished = match prepare(daemon, list).await {
        Ok(driven) => match Box::pin(driven.work_through()).await {
            Some(finished) => finished,
            None => return,
        },
        Err(finished) => finished,
    };
    finish(daemon, list, finished).await;
}

/// Ends a run whose driver has failed.
pub async fn give_up(daemon: &Arc<Daemon>, list: &str, message: &str) {
    let reason = format!("its driver failed repeatedly: {message}");
    finish(
        daemon,
        list,
        Finished { status: "error".into(), reason, code: Some(ErrorCode::Internal.into()) },
    )
    .await;
}

async fn finish(daemon: &Arc<Daemon>, list: &str, finished: Finished) {
    let Some(run) = daemon.snapshot().task_lists.get(list).cloned() else { return };
    if !worker::end_agents(daemon, &run).await {
        return;
    }
    let root = Root::at(Path::new(&run.started.root));
    let shared = daemon.task_list_runs.get(list);
    let hold = shared.hold();
    let session = run.session;
    let in_hand: Vec<_> = run.workers.values().map(|work| work.task.clone()).collect();
    let closing = move || -> String {
        let Ok(git) = Git::open(root.path()) else { return String::new() };
        // A run that ended before its session was counted has logged under this number too.
        let number = session.or_else(|| Some(root.read().ok()?.list.session_count + 1));
        let place =
            place(&root, &git, &git, hold, vec![], "muleteer".into(), number, String::new());
        let Ok(mut tx) = place.begin() else { return String::new() };
        let now = tx.now();
        // A task that a worker left in progress is recovered by the next session, so its lease ends
        // now.
        for task in
            tx.list.tasks.iter_mut().filter(|task| in_hand.contains(&task.id) && task.is_held(now))
        {
            task.lease_expires_at = Some(now);
        }
        let counted = stats::stats(&tx.list);
        if session.is_some() {
            tx.list.last_session = Some(muleteer_model::task_list::document::iso(now));
        }
        tx.log(Entry::stats(&counted));
        if matches!(place.hold, Hold::Session(_)) {
            tx.log(Entry::lock_released());
        }
        drop(tx.settle_marker());
        drop(tx.commit());
        counted.to_string()
    };
    Root::at(Path::new(&run.started.root)).take_word_back(list);
    let stats = tokio::task::spawn_blocking(closing).await.unwrap_or_default();
    shared.release();
    let plans: Vec<_> =
        (0..=MOST_WORKERS).map(|worker| sandbox_file(daemon, list, worker)).collect();
    let removing = tokio::task::spawn_blocking(move || plans.iter().for_each(|plan| remove(plan)));
    drop(removing.await);
    let event = Event::TaskListFinished { list: list.into(), finished, stats };
    drop(record(daemon, event, &format!("{list}/tasks/finished")).await);
    drop(std::fs::remove_file(request_file(daemon, list)));
    daemon.task_list_runs.forget(list);
}

/// Removes the plan of a worker's commands, and their private HOME.
fn remove(plan: &Path) {
    drop(std::fs::remove_file(plan));
    let folder = own_folder(plan);
    match remove_tree(&folder, PATIENCE) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "cannot remove all files of a run's commands");
        }
        _ => {}
    }
}

pub async fn record(daemon: &Daemon, event: Event, id: &str) -> Result<(), LedgerError> {
    let entry = Happened { id: id.into(), dispatch_id: None, at: None, more: false, event };
    append(daemon, vec![entry]).await.map(drop)
}

pub(super) fn broken(error: &StepError) -> Finished {
    let (status, code) = match error {
        StepError::List(error) => {
            let status = if error.code() == ErrorCode::TasksLocked { "locked" } else { "invalid" };
            (status, error.code().to_string())
        }
        StepError::Git(_) => ("error", ErrorCode::TasksGit.into()),
        _ => ("error", ErrorCode::Io.into()),
    };
    Finished { status: status.into(), reason: error.to_string(), code: Some(code) }
}

/// Repairs the damage of a power cut, as far as git needs it to work. Returns the repairs.
fn mend(project: &Git, branch: Option<&str>) -> Result<Vec<String>, StepError> {
    let mut done = vec![];
    if project.mend_index()? {
        done.push(format!(
            "the index of {} was empty; rebuilt it from HEAD",
            project.top().display()
        ));
    }
    match project.mend_forward()? {
        0 => {}
        files => done.push(format!(
            "restored {files} files of {}, which were being written at a crash",
            project.top().display()
        )),
    }
    let Some(branch) = branch else { return Ok(done) };
    for worker in 1..=MOST_WORKERS {
        let dir = clone_dir(project, worker);
        if let Some((aside, error)) = project.mend_clone(&dir, branch)? {
            let (dir, aside) = (dir.display(), aside.display());
            done.push(format!("git no longer works in {dir} ({error}); moved it to {aside}"));
        }
    }
    Ok(done)
}

/// Whether each worker has a clone of its own. Then there must be a branch to land on.
pub fn in_clones(concurrency: u32, mode: Mode) -> bool {
    concurrency > 1 || mode == Mode::Concurrent
}

/// Returns the prefix of the names of workers in clones. Their number follows.
fn workers(daemon: &Daemon) -> String {
    let state = daemon.paths.runtime_dir.file_name().unwrap_or_default().to_string_lossy();
    format!("muleteer-{state}-")
}

fn clone_dir(project: &Git, worker: u32) -> PathBuf {
    project.top().join(".muleteer/worktrees/tasks").join(format!("{worker}"))
}

async fn prepare(daemon: &Arc<Daemon>, list: &str) -> Result<Driven, Finished> {
    let error = |reason: String| Finished {
        status: "error".into(),
        reason,
        code: Some(ErrorCode::Internal.into()),
    };
    let bytes = std::fs::read(request_file(daemon, list))
        .map_err(|e| error(format!("its request is missing: {e}")))?;
    let asked: TasksRun =
        serde_json::from_slice(&bytes).map_err(|e| error(format!("its request: {e}")))?;
    let root = Root::at(Path::new(&asked.root));
    let shared = daemon.task_list_runs.get(list);
    let (at, name, keep, workers) =
        (root.clone(), list.to_string(), shared.clone(), workers(daemon));
    let branch = daemon.snapshot().task_lists.get(list).and_then(|run| run.started.branch.clone());
    let opened = tokio::task::spawn_blocking(move || -> Result<_, StepError> {
        // A list that somebody has made unreadable is restored with the first change.
        let mode = at.read().map(|read| read.list.mode);
        let mode = mode.or_else(|error| at.mode_of(&name).ok_or(error))?;
        if mode == Mode::Exclusive && matches!(keep.hold(), Hold::Own) {
            // The daemon that held it is dead: its lock is stale, or this process holds it already.
            keep.keep_lock(at.lock_session(&name)?.0);
        }
        if mode == Mode::Concurrent {
            at.leave_word(&name)?;
            if matches!(keep.hold(), Hold::Own) {
                keep.remember(at.remember(&name, &workers)?);
            }
        }
        let project = Git::open(at.path())?;
        let mended = mend(&project, branch.as_deref())?;
        Ok((mode, project, mended))
    });
    let opened = opened.await.map_err(|e| error(e.to_string()))?;
    let (mode, project, mended) = opened.map_err(|error| broken(&error))?;
    if in_clones(asked.concurrency, mode)
        && let Err(why) = muleteer_vcs::worktree::lends(project.top())
    {
        let (status, reason) =
            ("error".into(), format!("{why}: {}", muleteer_vcs::worktree::RENAME));
        return Err(Finished { status, reason, code: Some(ErrorCode::NotARepository.into()) });
    }
    let confined = match asked.dispatch.sandbox {
        true => {
            // A daemon that continues a run has not tried it yet. If it fails, so do the commands.
            let _ = confine::possible(daemon).await;
            let found = sandbox::of_commands(daemon, &asked.dispatch);
            Some(found.map_err(|fault| error(fault.message))?)
        }
        false => None,
    };
    for message in mended {
        daemon.note(Event::Fault { what: format!("task list {list}"), message });
    }
    Ok(Driven {
        daemon: daemon.clone(),
        list: list.into(),
        asked: Arc::new(asked),
        shared,
        root,
        mode,
        project,
        confined,
    })
}

#[allow(clippy::too_many_arguments)]
fn place(
    root: &Root,
    project: &Git,
    git: &Git,
    hold: Hold,
    env: Vec<(String, String)>,
    worker: String,
    session: Option<u64>,
    nonce: String,
) -> Place {
    let below = root.path().strip_prefix(project.top()).unwrap_or(Path::new(""));
    Place {
        root: root.clone(),
        hold,
        project: project.clone(),
        git: git.clone(),
        dir: git.top().join(below),
        branch: project.branch(),
        stand: Stand::Anywhere,
        is_everybody_s: false,
        env,
        worker,
        session,
        nonce,
        confine: None,
    }
}

impl Driven {
    pub fn run(&self) -> Option<Arc<Run>> {
        self.daemon.snapshot().task_lists.get(&self.list).cloned()
    }

    /// Whether the run is stopping; `Some(true)` means at once.
    pub fn stopping(&self) -> Option<bool> {
        self.run().and_then(|run| run.stopping)
    }

    /// Whether workers have clones of their own: two workers never share a working directory.
    pub fn has_clones(&self) -> bool {
        in_clones(self.asked.concurrency, self.mode)
    }

    /// Returns a worker's name. It is stable across runs and daemons of this state directory, and
    /// unique to it.
    pub fn worker_name(&self, worker: u32) -> String {
        let workers = workers(&self.daemon);
        if self.has_clones() {
            format!("{workers}{worker}")
        } else {
            workers.strip_suffix('-').unwrap_or(&workers).into()
        }
    }

    pub fn clone_dir(&self, worker: u32) -> PathBuf {
        clone_dir(&self.project, worker)
    }

    pub fn env(&self) -> Vec<(String, String)> {
        let all: Vec<_> =
            self.asked.dispatch.env.iter().chain(&self.asked.dispatch.extra_env).cloned().collect();
        validation_env(&all)
    }

    /// Returns the place of a worker's work.
    pub fn place(&self, worker: u32, git: &Git) -> Place {
        let mut place = place(
            &self.root,
            &self.project,
            git,
            self.shared.hold(),
            self.env(),
            self.worker_name(worker),
            self.run().and_then(|run| run.session),
            mark(&self.list, worker),
        );
        place.branch = self.run().and_then(|run| run.started.branch.clone());
        place.stand = Stand::of(place.branch.clone());
        place.confine = self.confined.clone().map(|confined| -> Arc<dyn Confining> {
            let plan = sandbox_file(&self.daemon, &self.list, worker);
            Arc::new(Confine { daemon: self.daemon.clone(), confined, plan })
        });
        place
    }

    /// Runs a blocking step of a worker, one at a time even across restarts.
    pub async fn step<T: Send + 'static>(
        &self,
        worker: u32,
        step: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StepError> {
        let turn = self.shared.step(worker);
        let stepping = tokio::task::spawn_blocking(move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            step()
        });
        stepping.await.map_err(|error| StepError::Other(error.to_string()))
    }

    /// Sends a fault message to the clients that follow the run.
    pub fn tell(&self, message: &str) {
        self.daemon.note(Event::Fault {
            what: format!("task list {}", self.list),
            message: message.into(),
        });
    }

    /// Returns a function for blocking steps that says whether to give up.
    pub fn called_off(&self) -> impl Fn() -> bool + Send + 'static {
        let (daemon, list) = (self.daemon.clone(), self.list.clone());
        move || {
            daemon.lifecycle.stop.is_cancelled()
                || daemon
                    .snapshot()
                    .task_lists
                    .get(&list)
                    .is_none_or(|run| run.stopping == Some(true))
        }
    }

    /// Works through the list. `None` if the daemon stops: the next one resumes the run.
    async fn work_through(&self) -> Option<Finished> {
        let driven = self.clone();
        let begun = match self.run()?.session {
            Some(_) => Ok(()),
            None => match self.step(0, move || driven.begin_session()).await {
                Ok(Ok(session)) => {
                    let event = Event::TaskListSession { list: self.list.clone(), session };
                    record(&self.daemon, event, &format!("{}/tasks/session", self.list))
                        .await
                        .map_err(|error| Finished {
                            status: "error".into(),
                            reason: error.to_string(),
                            code: Some(ErrorCode::Internal.into()),
                        })
                }
                Ok(Err(finished)) => Err(finished),
                Err(error) => Err(broken(&error)),
            },
        };
        if self.daemon.lifecycle.stop.is_cancelled() {
            return None;
        }
        if let Err(finished) = begun {
            return Some(finished);
        }
        let mut workers = JoinSet::new();
        for worker in 1..=self.asked.concurrency {
            let driven = self.clone();
            workers.spawn(async move {
                let ended = survive(worker::work(driven, worker)).await;
                ended.and_then(|ended| ended)
            });
        }
        let mut ends = vec![];
        while let Some(ended) = workers.join_next().await {
            match ended {
                Ok(Ok(end)) => {
                    if matches!(end, End::Finished(_)) {
                        // A reason that ends one worker ends all: the others stop after their
                        // current task.
                        let event = Event::TaskListStopping {
                            list: self.list.clone(),
                            now: false,
                            by: "harness".into(),
                        };
                        drop(record(&self.daemon, event, &random_key()).await);
                        self.shared.changed.notify_waiters();
                    }
                    ends.push(end);
                }
                Ok(Err(panic)) => panic!("a worker {panic}"),
                Err(error) => panic!("a worker died: {error}"),
            }
        }
        if self.daemon.lifecycle.stop.is_cancelled()
            || ends.iter().any(|end| matches!(end, End::DaemonStops))
        {
            return None;
        }
        ends.into_iter()
            .find_map(|end| match end {
                End::Finished(finished) => Some(finished),
                _ => None,
            })
            .or_else(|| Some(self.verdict()))
    }

    /// Returns the result of a run that ended without a special reason.
    fn verdict(&self) -> Finished {
        let list = match self.place(0, &self.project).read() {
            Ok(list) => list,
            Err(error) => return broken(&error.into()),
        };
        let done = self.run().map_or(0, |run| run.done);
        let stop = stats::stop(&list, done, self.asked.max_tasks).unwrap_or(Stop::Interrupted);
        ended(stop)
    }

    pub(super) fn clone_worker(&self, worker: u32) -> String {
        format!("{}{worker}", workers(&self.daemon))
    }
}

/// Returns the result of a run that a stopping condition ended.
pub fn ended(stop: Stop) -> Finished {
    let (status, code) = match stop {
        Stop::AllCompleted => ("completed", None),
        Stop::NothingLeft => ("failed", None),
        Stop::MaxTasks | Stop::MaxSessions => ("limit", None),
        Stop::Interrupted => ("interrupted", None),
    };
    Finished { status: status.into(), reason: stop.words().into(), code }
}
