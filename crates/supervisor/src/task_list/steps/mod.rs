//! The steps of working through a list. Each may be repeated, because it finds out what is done
//! already. The daemon's runs use them, and so do the verbs of an agent in its own session. All of
//! them block.

mod commands;
mod recovery;

pub use commands::{Unhealthy, Verdict, describe, validation_env};
pub use recovery::Recovered;

use jiff::Timestamp;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Task;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::outcome;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::head_check::{Stand, astray};
use muleteer_process::fault;
use muleteer_store::task_list::{Right, Root, SessionLock, TaskListError, Tx, Written};
use muleteer_vcs::user_repo::{Git, GitError, Lost};
use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The right by which the list is changed.
#[derive(Debug, Clone)]
pub enum Hold {
    /// The lock is taken for each change.
    Own,
    Session(Arc<SessionLock>),
    /// As `Own`, for a run, which knows the content that it wrote last.
    Beside(Written),
    /// For a run that may hold the lock.
    Run(String),
}

impl Hold {
    fn right(&self) -> Right<'_> {
        match self {
            Self::Own => Right::Own,
            Self::Session(lock) => Right::Session(lock),
            Self::Beside(written) => Right::Beside(written),
            Self::Run(run) => Right::Run(run),
        }
    }
}

/// Makes commands that run in a sandbox.
pub trait Confining: Debug + Send + Sync {
    /// Returns a command that can write its directory.
    ///
    /// # Errors
    /// The plan of the sandbox cannot be written.
    fn command(&self, argv: &[String], dir: &Path, env: &[(String, String)])
    -> io::Result<Command>;
}

/// The repositories, branch and environment of the work on a list.
#[derive(Debug, Clone)]
pub struct Place {
    pub root: Root,
    pub hold: Hold,
    /// The project's repository.
    pub project: Git,
    /// The repository of the work: the project, or a worker's clone.
    pub git: Git,
    /// The directory for commands: the harness's root, or the corresponding one in the clone.
    pub dir: PathBuf,
    /// The start branch; `None` with a detached HEAD.
    pub branch: Option<String>,
    /// The required HEAD of the project when a task ends.
    pub stand: Stand,
    /// The work is judged on the shared branch. Only commits that name a task are that task's, and
    /// nothing is rolled back.
    pub is_everybody_s: bool,
    /// The environment of validations, already without variables that only agents need.
    pub env: Vec<(String, String)>,
    pub worker: String,
    /// The session number in log lines.
    pub session: Option<u64>,
    /// Marks processes of this worker, so that a successor finds those that a killed daemon left.
    pub nonce: String,
    /// The sandbox of the commands, if the agents have one.
    pub confine: Option<Arc<dyn Confining>>,
}

#[derive(Debug, thiserror::Error)]
pub enum StepError {
    #[error(transparent)]
    List(#[from] TaskListError),
    #[error(transparent)]
    Git(#[from] GitError),
    #[error(transparent)]
    Refused(#[from] claim::Refused),
    /// No agent can be dispatched: an `E_…` code, and the reason.
    #[error("{1}")]
    Dispatch(String, String),
    #[error("{0}")]
    Other(String),
}

/// The outcome of a task, and the list afterwards.
#[derive(Debug)]
pub struct Recorded {
    pub list: TaskList,
    pub completed: bool,
    pub commit: Option<String>,
    pub message: String,
    /// Warnings for the clients that follow the run.
    pub warnings: Vec<String>,
}

impl Place {
    /// Starts a change of the list.
    pub fn begin(&self) -> Result<Tx, TaskListError> {
        let mut tx = self.root.begin(self.hold.right(), Timestamp::now())?;
        if let Some(session) = self.session {
            tx.under_session(session);
        }
        Ok(tx)
    }

    /// Returns the error if another process has taken the lock of this session, which then works
    /// on the same files.
    pub fn lost_lock(&self) -> Option<TaskListError> {
        let Hold::Session(lock) = &self.hold else { return None };
        let error = self.root.confirm_session(lock).err()?;
        matches!(error, TaskListError::Locked(_)).then_some(error)
    }

    /// Reads the list. If a run works on an unreadable list, it is restored first.
    pub fn read(&self) -> Result<TaskList, TaskListError> {
        let is_run_s = matches!(self.hold, Hold::Session(_) | Hold::Beside(_));
        match self.root.read() {
            Ok(read) if !read.from_backup || !is_run_s => Ok(read.list),
            Err(error) if !is_run_s => Err(error),
            _ => Ok(self.begin()?.list.clone()),
        }
    }

    /// Writes lines to the log that belong to no change.
    pub fn note(&self, entries: Vec<Entry>) {
        let session =
            self.session.unwrap_or_else(|| self.root.read().map_or(1, |read| read.list.session()));
        if let Err(error) = self.root.note(session, Timestamp::now(), entries) {
            tracing::warn!(%error, "failed to write the log of the task list");
        }
    }

    /// Whether the work is in a worker's clone, and not in the project itself.
    pub fn is_in_clone(&self) -> bool {
        self.git.top() != self.project.top()
    }

    /// Returns what is wrong with the HEAD that an agent left. In a clone any HEAD is fine, because
    /// its work is brought home.
    pub fn astray(&self, base: &str) -> Result<Option<String>, StepError> {
        if self.is_in_clone() {
            return Ok(None);
        }
        let branch = self.git.stands_on()?;
        Ok(astray(&self.stand, branch.as_deref(), base, self.git.contains("HEAD", base)?))
    }

    /// Removes the harness's files from a task's commits, before these are judged, kept or rolled
    /// back. If that fails, the work continues, because no step depends on it.
    pub fn disown(&self, id: &str, base: &str) {
        if self.is_everybody_s {
            return;
        }
        match self.git.disown(id, base) {
            Ok(None) => {}
            Ok(Some(text)) => self.note(vec![Entry::warn(Some(id), &text)]),
            Err(error) => {
                tracing::warn!(
                    task = id,
                    %error,
                    "failed to remove the harness's files from commits"
                )
            }
        }
    }

    /// Commits the remaining changes, and records the success.
    pub fn succeed(&self, id: &str, title: &str, base: &str) -> Result<Recorded, StepError> {
        self.disown(id, base);
        let start = self.git.start(id, base)?;
        let message = format!("{id}: {}", muleteer_model::task_list::category::one_line(title));
        self.git.commit(&start, &message)?;
        self.git.end_operations()?;
        fault::point("tasks.committed");
        // This comes before the start state is forgotten, because it may have the only copy of a
        // person's files.
        let lost = self.git.keep_lost(id, base, &start)?;
        self.record_success(id, lost.iter().map(taken).collect())
    }

    /// Returns the task, to record its outcome. The session that holds the lock of an exclusive
    /// list alone decides about the task's state, so changes by an agent to the file are undone.
    fn in_hand<'a>(&self, tx: &'a mut Tx, id: &str) -> Result<&'a mut Task, StepError> {
        let is_alone = matches!(self.hold, Hold::Session(_)) && tx.list.mode == Mode::Exclusive;
        if is_alone && let Some(begun) = tx.list.get(id).cloned() {
            let now = tx.now();
            for text in claim::put_back(&mut tx.list, &begun, &self.worker, now)? {
                tx.log(Entry::warn(Some(id), &text));
            }
        }
        Ok(claim::owned(&mut tx.list, id, &self.worker)?)
    }

    /// Records the success of work that is committed, and on the project's branch.
    pub fn record_success(&self, id: &str, warnings: Vec<String>) -> Result<Recorded, StepError> {
        let commit = self.git.head()?;
        let mut tx = self.begin()?;
        let now = tx.now();
        let task = self.in_hand(&mut tx, id)?;
        outcome::complete(task, now);
        for text in &warnings {
            tx.log(Entry::warn(Some(id), text));
        }
        tx.log(Entry::completed(id, &commit));
        tx.settle_marker()?;
        let list = tx.commit()?;
        self.git.forget_start(id);
        fault::point("tasks.outcome_written");
        Ok(Recorded {
            list,
            completed: true,
            commit: Some(commit),
            message: String::new(),
            warnings,
        })
    }

    /// Rolls the attempt back, cleans up, and records the failure. A clean-up can be interrupted.
    pub fn fail(
        &self,
        task: &Task,
        category: Category,
        message: &str,
        off: &dyn Fn() -> bool,
    ) -> Result<Recorded, StepError> {
        self.take_back(task)?;
        self.clean_up(task, off);
        self.record_failure(task, category, message)
    }

    fn has_base(&self, task: &Task) -> bool {
        self.git.exists(task.started_at_commit.as_deref().unwrap_or_default())
    }

    /// Rolls the attempt back, if there is a commit to roll back to.
    pub fn take_back(&self, task: &Task) -> Result<(), StepError> {
        match &task.started_at_commit {
            Some(base) if self.has_base(task) => {
                self.disown(&task.id, base);
                self.roll_back(task, base)
            }
            _ => Ok(()),
        }
    }

    /// Records the failure of an attempt that is rolled back.
    pub fn record_failure(
        &self,
        task: &Task,
        category: Category,
        message: &str,
    ) -> Result<Recorded, StepError> {
        let exists = self.has_base(task);
        let mut tx = self.begin()?;
        let now = tx.now();
        let found = self.in_hand(&mut tx, &task.id)?;
        let message = if exists {
            outcome::fail(found, category, message, now);
            message.to_string()
        } else {
            let base = task.started_at_commit.as_deref().unwrap_or_default();
            let message = format!(
                "{message} (started_at_commit {base:?} does not exist: nothing to roll back to)"
            );
            outcome::fail_for_good(found, category, &message, now);
            message
        };
        tx.log(Entry::error(Some(&task.id), category, &message));
        let list = self.settle(tx)?;
        if exists {
            self.git.forget_start(&task.id);
        }
        fault::point("tasks.outcome_written");
        let message = format!("[{category}] {message}");
        Ok(Recorded { list, completed: false, commit: None, message, warnings: vec![] })
    }

    /// Marks tasks that can never be done any more, and writes the change.
    fn settle(&self, mut tx: Tx) -> Result<TaskList, StepError> {
        let now = tx.now();
        for marked in muleteer_model::task_list::select::validate_dependencies(&mut tx.list, now) {
            tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
        }
        tx.settle_marker()?;
        Ok(tx.commit()?)
    }
}

/// Returns the warning about a person's files that a task has removed.
fn taken(lost: &Lost) -> String {
    let Lost { saved, paths, committed } = lost;
    let name = &saved.name;
    let whole = match committed.as_str() {
        "" => String::new(),
        paths => format!(
            " (the task's commit has all of {paths}: the changes of both cannot be separated)"
        ),
    };
    format!(
        "uncommitted changes in {paths} from before the task are gone or overwritten{whole}; they \
         are saved as {name}: restore them with `muleteer tasks undo {name}`"
    )
}
