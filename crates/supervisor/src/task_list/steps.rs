//! The steps of working through a list. Each may be repeated, because it finds out what is done
//! already. The daemon's runs use them, and so do the verbs of an agent in its own session. All of
//! them block.

use jiff::Timestamp;
use muleteer_backends::variables::is_for_agents;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Task;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::outcome;
use muleteer_model::task_list::outcome::failure_diff;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::head_check::{Stand, astray};
use muleteer_model::task_list::session::recover::{self, Evidence, Plan};
use muleteer_process::bounded::{self, Bounds, Ran};
use muleteer_process::fault;
use muleteer_process::group::{self, Before};
use muleteer_store::task_list::{Right, Root, SessionLock, TaskListError, Tx, Written};
use muleteer_vcs::user_repo::{Git, GitError, Lost};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The limit of a validation's output that is saved.
const TAIL: usize = 16 * 1024;
/// The timeout of `harness-init.sh` and clean-ups, for which the list has none.
const SCRIPT_LIMIT: Duration = Duration::from_secs(30 * 60);

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

/// The result of a validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed {
        output: String,
    },
    Failed {
        code: Option<i32>,
        signal: Option<i32>,
        output: String,
    },
    TimedOut {
        seconds: u64,
        output: String,
    },
    /// The task has no command. A person must add one (`CONFIG`).
    NoCommand,
    /// The command's program does not exist (`ENV_SETUP`).
    NoProgram(String),
    /// The validation was stopped.
    Stopped,
}

/// The result of recovering an interrupted task.
#[derive(Debug)]
pub enum Recovered {
    /// The task will be resumed.
    Resume,
    /// The validation passed, so only the record is missing.
    Passed,
    Failed(Box<Recorded>),
}

/// The reason why no task can be worked on.
#[derive(Debug, PartialEq, Eq)]
pub enum Unhealthy {
    Broken(String),
    CalledOff,
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

    fn command(&self, program: &Path, args: &[&str]) -> std::process::Command {
        let mut command = muleteer_process::command::helper(program);
        command
            .args(args)
            .current_dir(&self.dir)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)));
        command
    }

    fn shell(&self, text: &str, limit: Duration, stop: &dyn Fn() -> bool) -> std::io::Result<Ran> {
        let bounds = Bounds { limit, tail: TAIL, nonce: &self.nonce };
        bounded::run(self.command(Path::new("/bin/sh"), &["-c", text]), bounds, stop)
    }

    /// Terminates processes that a killed predecessor's validation may have left.
    pub fn sweep(&self) {
        group::sweep(&[&self.nonce], None, Before::Nobody, Duration::from_secs(10));
    }

    /// Runs a task's validation. The harness runs it itself, because an agent's claim proves
    /// nothing.
    pub fn validate(&self, task: &Task, stop: &dyn Fn() -> bool) -> Result<Verdict, StepError> {
        let Some(command) = &task.command else { return Ok(Verdict::NoCommand) };
        if let Some(program) = self.missing_program(command)? {
            return Ok(Verdict::NoProgram(program));
        }
        let seconds = task.timeout();
        let ran = self.shell(command, Duration::from_secs(seconds), stop).map_err(|error| {
            StepError::Other(format!("failed to start the validation of {}: {error}", task.id))
        })?;
        Ok(match ran {
            Ran { stopped: true, .. } => Verdict::Stopped,
            Ran { timed_out: true, output, .. } => Verdict::TimedOut { seconds, output },
            ran if ran.passed() => Verdict::Passed { output: ran.output },
            Ran { code, signal, output, .. } => Verdict::Failed { code, signal, output },
        })
    }

    /// Returns the program of a command if `command -v` does not find it. A path is never reported,
    /// because the task may be to write that script.
    pub fn missing_program(&self, command: &str) -> Result<Option<String>, StepError> {
        let Some(program) = program(command) else { return Ok(None) };
        let mut ask =
            self.command(Path::new("/bin/sh"), &["-c", "command -v -- \"$1\"", "sh", &program]);
        ask.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let found =
            ask.status().map_err(|error| StepError::Other(format!("cannot run sh: {error}")))?;
        Ok((!found.success()).then_some(program))
    }

    /// Saves the end of an output for the next attempt's prompt, and for people.
    pub fn keep_output(&self, task: &str, which: &str, output: &str) {
        let path = self.root.output(task, which);
        let kept = std::fs::create_dir_all(self.root.private())
            .and_then(|()| std::fs::write(&path, output));
        if let Err(error) = kept {
            tracing::warn!(
                path = %path.display(),
                %error,
                "failed to store the output of a validation"
            );
        }
    }

    pub fn kept_output(&self, task: &str, which: &str) -> Option<String> {
        std::fs::read_to_string(self.root.output(task, which)).ok()
    }

    /// Runs `harness-init.sh` if it exists, and once more if it fails.
    ///
    /// # Errors
    /// The end of its output if it failed twice: the environment is broken. Or that it was stopped,
    /// which says nothing about the environment.
    pub fn health_check(&self, stop: &dyn Fn() -> bool) -> Result<(), Unhealthy> {
        let script = self.root.init_script();
        if !script.is_file() {
            return Ok(());
        }
        let mut last = String::new();
        for _ in 0..2 {
            let executable = rustix::fs::access(&script, rustix::fs::Access::EXEC_OK).is_ok();
            let path = script.to_string_lossy();
            let command = if executable {
                self.command(&script, &[])
            } else {
                self.command(Path::new("/bin/sh"), &[&path])
            };
            let bounds = Bounds { limit: SCRIPT_LIMIT, tail: TAIL, nonce: &self.nonce };
            match bounded::run(command, bounds, stop) {
                Ok(ran) if ran.passed() => {
                    self.note(vec![Entry::init("Environment health check: PASS")]);
                    return Ok(());
                }
                Ok(ran) if ran.stopped => return Err(Unhealthy::CalledOff),
                Ok(ran) => {
                    last = format!(
                        "{} {}",
                        how(ran.code, ran.signal, ran.timed_out),
                        last_line(&ran.output)
                    )
                }
                Err(error) => last = error.to_string(),
            }
            self.note(vec![Entry::init(&format!("Environment health check: FAIL {last}"))]);
        }
        Err(Unhealthy::Broken(format!("harness-init.sh failed twice: {last}")))
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

    fn roll_back(&self, task: &Task, base: &str) -> Result<(), StepError> {
        let ignored = self.read().map(|list| list.save_ignored).unwrap_or_default();
        let in_clone = self.is_in_clone();
        let stand = if in_clone { &Stand::Anywhere } else { &self.stand };
        // Others may work in the project itself. A clone is its worker's alone, and rewritten
        // commits belong to nobody.
        let alone = in_clone || self.astray(base)?.is_some() || !self.git.contains("HEAD", base)?;
        let commits = if alone { vec![] } else { self.git.commits_since(base)? };
        let kept = match commits.is_empty() {
            true => None,
            false => recover::kept(&commits, &self.read()?, &task.id, &self.root.completions()),
        };
        let end = kept.unwrap_or(base);
        let mut adopted = Ok(());
        let mut on_saved = |saved: &muleteer_vcs::user_repo::Saved| {
            let name = if in_clone {
                self.project.adopt(&self.git, saved)
            } else {
                Ok(saved.name.clone())
            };
            match name {
                Ok(name) => self.note(vec![Entry::rollback(&task.id, end, Some(&name))]),
                Err(error) => adopted = Err(error),
            }
        };
        let saved = self.git.roll_back(&task.id, base, kept, stand, &ignored, &mut on_saved)?;
        adopted?;
        if saved.is_none() {
            self.note(vec![Entry::rollback(&task.id, end, None)]);
        }
        Ok(())
    }

    /// Runs the task's clean-up command after a failure. Returns false if it was stopped; then all
    /// its processes were terminated.
    pub fn clean_up(&self, task: &Task, off: &dyn Fn() -> bool) -> bool {
        let Some(cleanup) = &task.cleanup else { return true };
        let ran = self.shell(cleanup, SCRIPT_LIMIT, off);
        let was_stopped = ran.as_ref().is_ok_and(|ran| ran.stopped);
        let said = match ran {
            Ok(ran) if ran.passed() => return true,
            Ok(ran) if ran.stopped => "on_failure.cleanup was cancelled".into(),
            Ok(ran) => {
                let how = how(ran.code, ran.signal, ran.timed_out);
                format!("on_failure.cleanup failed: {how} {}", last_line(&ran.output))
            }
            Err(error) => format!("on_failure.cleanup failed: {error}"),
        };
        self.note(vec![Entry::warn(Some(&task.id), &said)]);
        !was_stopped
    }

    /// Returns the evidence of an interrupted task.
    pub fn evidence(&self, task: &Task) -> Result<Evidence, StepError> {
        let base = task.started_at_commit.as_deref().unwrap_or_default();
        let checkpoints = !task.checkpoints.is_empty();
        if !self.git.exists(base) {
            let nothing = Evidence {
                uncommitted: false,
                commits: false,
                checkpoints,
                checkpoint_holds: false,
                base_exists: false,
            };
            return Ok(nothing);
        }
        let start = self.git.start(&task.id, base)?;
        let uncommitted = self.git.uncommitted_since(&start)?.is_some();
        let commits = self.git.commits_since(base)?;
        let last = task.checkpoints.last().and_then(|last| last.tree.as_deref());
        let checkpoint_holds = match last {
            Some(tree) => self.git.snapshot()? == tree,
            None => false,
        };
        // In a worker's clone nobody else commits.
        let is_its = |message: &str| {
            (self.is_in_clone() && !self.is_everybody_s) || recover::names(message, task)
        };
        let commits = commits.iter().any(|(_, message)| is_its(message));
        Ok(Evidence { uncommitted, commits, checkpoints, checkpoint_holds, base_exists: true })
    }

    /// Carries out the action of the recovery matrix for an interrupted task.
    pub fn recover(&self, task: &Task, stop: &dyn Fn() -> bool) -> Result<Recovered, StepError> {
        self.sweep();
        self.disown(&task.id, task.started_at_commit.as_deref().unwrap_or_default());
        let found = self.evidence(task)?;
        let plan = recover::decide(found);
        let (action, reason) = plan.words(found);
        self.take_over(task)?;
        self.note(vec![Entry::recovery(&task.id, action, &reason)]);
        // The task has nothing to roll back, because the commits since then are somebody else's.
        let left_alone = |message: &str| {
            self.clean_up(task, stop);
            self.record_failure(task, Category::SessionTimeout, message)
                .map(|done| Recovered::Failed(Box::new(done)))
        };
        let lost = |message: &str| {
            if self.is_everybody_s {
                return left_alone(message);
            }
            self.fail(task, Category::SessionTimeout, message, stop)
                .map(|done| Recovered::Failed(Box::new(done)))
        };
        match plan {
            Plan::NoBase | Plan::NoProgress => left_alone("No progress detected"),
            Plan::WorkLost => left_alone("The files do not match the checkpoints: work was lost"),
            Plan::Resume => Ok(Recovered::Resume),
            Plan::Validate { commit_first } => {
                let base = task.started_at_commit.as_deref().unwrap_or_default();
                if commit_first {
                    let start = self.git.start(&task.id, base)?;
                    self.git
                        .commit(&start, &format!("{}: {} (interrupted)", task.id, task.title))?;
                }
                match self.validate(task, stop)? {
                    Verdict::Passed { .. } => Ok(Recovered::Passed),
                    Verdict::Stopped => Err(StepError::Other("it was cancelled".into())),
                    verdict => {
                        self.remember(task, &verdict);
                        let (_, message) = describe(&verdict, None);
                        lost(&format!("interrupted, and the existing work did not pass: {message}"))
                    }
                }
            }
        }
    }

    /// Hands an interrupted task to a worker, which finds it in progress and resumes it. With
    /// `None` it starts from the beginning.
    pub fn hand_over(&self, id: &str, to: Option<String>) -> Result<(), StepError> {
        let mut tx = self.begin()?;
        if let Some(task) = tx.list.get_mut(id) {
            match to {
                Some(to) => task.claimed_by = Some(to),
                None => claim::release(task),
            }
        }
        tx.commit()?;
        Ok(())
    }

    /// Takes over the claim, so that the later steps may change the task.
    fn take_over(&self, task: &Task) -> Result<(), StepError> {
        let mut tx = self.begin()?;
        let now = tx.now();
        if let Some(found) = tx.list.get_mut(&task.id) {
            if self.is_everybody_s {
                // Another worker may have renewed or recovered it since the check.
                claim::is_stale(found, task, &self.worker, now)?;
            }
            found.claimed_by = Some(self.worker.clone());
        }
        claim::renew(&mut tx.list, &task.id, &self.worker, now, claim::LEASE)?;
        tx.commit()?;
        Ok(())
    }

    /// Saves the output of a validation that did not pass.
    pub fn remember(&self, task: &Task, verdict: &Verdict) {
        if let Verdict::Failed { output, .. } | Verdict::TimedOut { output, .. } = verdict {
            self.keep_output(&task.id, "last", output);
        }
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

/// Returns the category and message of a failed verdict; `before` is the output from before the
/// task began.
pub fn describe(verdict: &Verdict, before: Option<&str>) -> (Category, String) {
    match verdict {
        Verdict::NoCommand => (Category::Config, "Missing validation.command".into()),
        Verdict::NoProgram(program) => {
            (Category::EnvSetup, format!("`{program}` of validation.command is not installed"))
        }
        Verdict::TimedOut { seconds, .. } => {
            (Category::Timeout, format!("validation exceeded {seconds}s"))
        }
        Verdict::Failed { code, signal, output } => {
            let mut message =
                format!("validation failed: {} {}", how(*code, *signal, false), last_line(output));
            if let Some(before) = before {
                let apart = failure_diff::tell(before, output);
                if failure_diff::is_same(before, output) {
                    message.push_str(" (just as before the task began)");
                } else if !apart.old.is_empty() {
                    message.push_str(&format!(
                        " ({} of its failures existed before)",
                        apart.old.len()
                    ));
                }
            }
            (Category::TestFail, message)
        }
        Verdict::Passed { .. } => (Category::TestFail, "passed".into()),
        Verdict::Stopped => (Category::SessionTimeout, "it was cancelled".into()),
    }
}

fn how(code: Option<i32>, signal: Option<i32>, timed_out: bool) -> String {
    match (code, signal) {
        _ if timed_out => "timed out".into(),
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".into(),
    }
}

fn last_line(output: &str) -> &str {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

/// Returns the program that a shell command begins with, if that can be determined.
fn program(command: &str) -> Option<String> {
    let word = command.split_whitespace().find(|word| {
        let name = word.split('=').next().unwrap_or_default();
        let assigns = word.contains('=')
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        !assigns
    })?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '[');
    // Only sh understands quotes, groups and expansions. A path may be a script that the task
    // writes.
    word.chars().all(plain).then(|| word.to_string())
}

/// Returns the part of a client's environment for validations, without variables that only agents
/// need.
pub fn validation_env(env: &[(String, String)]) -> Vec<(String, String)> {
    const OURS: &[&str] =
        &["MULETEER_", "HARNESS_", "TRACEPARENT", "TRACESTATE", "GIT_AUTHOR_", "GIT_COMMITTER_"];
    env.iter()
        .filter(|(name, _)| !OURS.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|(name, _)| !is_for_agents(name))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_of_a_command_is_its_first_word_unless_it_needs_a_shell() {
        for (command, found) in [
            ("npm test -- x", Some("npm")),
            ("CI=1 FOO= cargo test", Some("cargo")),
            ("[ -f x ]", Some("[")),
            ("./check.sh", None),
            ("(cd a && make)", None),
            ("\"my tool\" x", None),
            ("$TOOL x", None),
            ("", None),
        ] {
            assert_eq!(program(command).as_deref(), found, "{command}");
        }
    }

    #[test]
    fn validation_does_not_get_variables_of_agents() {
        let env = [
            ("PATH", "/bin"),
            ("ANTHROPIC_API_KEY", "k"),
            ("MULETEER_SOCKET", "s"),
            ("MY_FLAG", "1"),
        ];
        let env = env.map(|(name, value)| (name.to_string(), value.to_string()));
        let names: Vec<_> = validation_env(&env).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PATH", "MY_FLAG"]);
    }
}
