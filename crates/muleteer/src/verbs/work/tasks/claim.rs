//! The verbs for an agent that works through the list in its own session. A person may use them to
//! help it.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render::safe;
use crate::verbs::work::tasks::place::{
    begin, git, listed, named, of_run, place, refused, root, stepped, task, worker,
};
use jiff::Timestamp;
use muleteer_model::config::Span;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Status;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::document::iso;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::outcome;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::claim as claims;
use muleteer_process::identity::caller;
use muleteer_process::signals::Signals;
use muleteer_protocol::ErrorCode;
use muleteer_store::task_list::{Behind, Root};
use muleteer_supervisor::task_list::steps::{Recorded, Recovered, Verdict, describe};
use muleteer_vcs::user_repo::Git;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// Check the list, or run a task's validation without recording the result
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks validate             the list: exits 2 if it \
        is invalid\n  muleteer tasks validate task-002    run its command: exits 4 if it fails")]
pub struct Validate {
    /// The task
    id: Option<String>,
}

/// Claim a task, or the next one, for a worker; prints its id
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks claim --worker me\n  muleteer tasks claim \
        task-002 --json\n\nExits 3 if no task can be claimed. A claim lasts 15 minutes unless it \
        is renewed.")]
pub struct Claim {
    /// The task [default: the next one]
    id: Option<String>,
    /// The worker [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
    /// How long the claim lasts [default: 15m]
    #[arg(long, value_name = "TIME", value_parser = span)]
    lease: Option<Duration>,
}

/// Renew a claim
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muleteer tasks renew task-002")]
pub struct Renew {
    /// The task
    id: String,
    /// The worker [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
    /// How long the claim lasts from now [default: 15m, or the remaining time]
    #[arg(long, value_name = "TIME", value_parser = span)]
    lease: Option<Duration>,
}

/// Record that a step of a task is done, and renew its claim
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  muleteer tasks checkpoint task-002 2/4 \"routes written, tests \
        pending\""
)]
pub struct Checkpoint {
    /// The task
    id: String,
    /// The step, and the number of steps
    #[arg(value_name = "M/N", value_parser = step)]
    step: (u64, u64),
    /// A description of the step
    #[arg(required = true, num_args = 1.., value_name = "TEXT")]
    text: Vec<String>,
    /// The worker [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
}

/// Validate a task; if it passes, commit and complete it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  muleteer tasks complete task-002\n\nExits 4 if the validation fails. \
        The task then stays in progress: fix it, or give up with `fail`."
)]
pub struct Complete {
    /// The task
    id: String,
    /// The worker [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
}

/// Give up an attempt: save all changes since its start, then roll them back
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  muleteer tasks fail task-002 \"Redis connection refused\"\n  \
        muleteer tasks fail task-002 --category TEST_FAIL \"2 of 14 fail\"\n\n`muleteer tasks undo \
        task-002` restores the work."
)]
pub struct Fail {
    /// The task
    id: String,
    /// The reason
    #[arg(required = true, num_args = 1.., value_name = "TEXT")]
    text: Vec<String>,
    /// ENV_SETUP, CONFIG, TASK_EXEC, TEST_FAIL, TIMEOUT, DEPENDENCY or SESSION_TIMEOUT
    #[arg(long, value_name = "NAME", value_parser = category, default_value = "TASK_EXEC")]
    category: Category,
    /// The worker [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
}

/// Recover an interrupted task: complete it, resume it, or roll it back
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks recover task-002\n  muleteer tasks recover \
        task-002 --force    the worker is gone, its claim has not expired\n\nInspects uncommitted \
        changes, commits that name the task, and checkpoints; then completes, resumes or rolls \
        back the task. A task that another worker has claimed is left alone until the claim \
        expires.")]
pub struct Recover {
    /// The task [default: every interrupted one]
    id: Option<String>,
    /// The worker that resumes the task [default: HARNESS_WORKER_ID, or `local`]
    #[arg(
        long,
        value_name = "NAME",
        value_parser = clap::builder::NonEmptyStringValueParser::new()
    )]
    worker: Option<String>,
    /// Recover it even if another worker's claim has not expired; that worker must be
    /// gone
    #[arg(long, requires = "id")]
    force: bool,
}

/// Restore the changes that a rollback removed
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks undo                 the newest rollback\n  \
        muleteer tasks undo task-002\n  muleteer tasks undo \
        refs/muleteer/rollback/task-002/1\n\nSaves the current state first, and prints the name of \
        the saved copy.")]
pub struct Undo {
    /// A task, or the name of a ref from the log
    what: Option<String>,
    /// Only list the saved changes
    #[arg(long)]
    list: bool,
}

fn span(text: &str) -> Result<Duration, ArgError> {
    let span: Span = text.parse()?;
    Some(Duration::from_secs(span.as_secs()))
        .filter(|span| !span.is_zero())
        .ok_or(ArgError::NoTime)
}

fn step(text: &str) -> Result<(u64, u64), ArgError> {
    Ok(outcome::parse_step(text)?)
}

/// Joins the text about a step or a failure. It must not be empty, because a later worker has no
/// other information.
fn words(text: &[String]) -> Result<String, Failure> {
    let text = text.join(" ");
    if text.trim().is_empty() {
        Err(Failure::new(ErrorCode::Usage, "the TEXT is empty"))
    } else {
        Ok(text)
    }
}

fn category(text: &str) -> Result<Category, ArgError> {
    let names = || Category::ALL.map(Category::as_str).join(", ");
    Category::parse(text).ok_or_else(|| ArgError::Category(names()))
}

/// Returns a function that reports whether the user has interrupted since now (Ctrl-C, TERM, a
/// closed terminal). A validation in its own process group does not receive these signals, and
/// would continue without us.
fn interrupt() -> Result<impl Fn() -> bool, Failure> {
    let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = RefCell::new(Signals::catch(&signals).map_err(Failure::from)?);
    Ok(move || !signals.borrow_mut().take().is_empty())
}

fn stopped(id: &str) -> Failure {
    Failure::new(
        ErrorCode::Cancelled,
        format!("{id}: its validation was stopped; no result is recorded"),
    )
}

pub fn validate(args: &Validate, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let read = root.read().map_err(|error| listed(&error))?;
    let list = read.list;
    let at = place(&root, worker(None), context)?;
    let Some(id) = &args.id else {
        let mut checked = list.clone();
        let damaged =
            "harness-tasks.json is damaged; checking its backup, which the next change restores";
        let damaged = read.from_backup.then(|| (String::new(), damaged.to_string()));
        let unmet = select::validate_dependencies(&mut checked, Timestamp::now()).into_iter();
        let unmet = unmet.map(|one| (one.task, format!("[DEPENDENCY] {}", one.message)));
        let mut problems: Vec<_> = damaged.into_iter().chain(unmet).collect();
        for task in list.tasks.iter().filter(|task| muleteer_model::task_list::stats::is_open(task))
        {
            match &task.command {
                None => {
                    problems.push((task.id.clone(), "[CONFIG] Missing validation.command".into()))
                }
                Some(command) => {
                    if let Some(program) = at.missing_program(command).map_err(stepped)? {
                        problems.push((
                            task.id.clone(),
                            format!("[ENV_SETUP] `{program}` is not installed"),
                        ));
                    }
                }
            }
        }
        if context.out.json {
            let of = |task: &str| if task.is_empty() { Value::Null } else { task.into() };
            let all: Vec<_> = problems
                .iter()
                .map(|(task, text)| json!({"task": of(task), "message": text}))
                .collect();
            context.out.document(&json!({"ok": problems.is_empty(), "problems": all}))?;
        } else {
            for (task, text) in &problems {
                let of = if task.is_empty() { String::new() } else { format!("{task}: ") };
                context.out.line(format!("{of}{text}"))?;
            }
        }
        return Ok(if problems.is_empty() { Exit::Done } else { Exit::BadInput });
    };
    let task = task(&list, id)?;
    let id = &task.id;
    let verdict = at.validate(task, &interrupt()?).map_err(stepped)?;
    if matches!(verdict, Verdict::Stopped) {
        return Err(stopped(id));
    }
    let (output, passed) = match &verdict {
        Verdict::Passed { output } => (output.as_str(), true),
        Verdict::Failed { output, .. } | Verdict::TimedOut { output, .. } => {
            (output.as_str(), false)
        }
        _ => ("", false),
    };
    let (category, message) = describe(&verdict, None);
    if context.out.json {
        let category = (!passed).then(|| category.as_str());
        context.out.document(&json!({
            "task": id, "passed": passed, "category": category, "message": message,
            "output": output,
        }))?;
    } else {
        context.out.text(output)?;
        context.out.note(format!("{id}: {message}"));
    }
    Ok(match verdict {
        Verdict::Passed { .. } => Exit::Done,
        Verdict::NoCommand => Exit::BadInput,
        Verdict::NoProgram(_) => Exit::Precondition,
        _ => Exit::Failed,
    })
}

pub fn claim(args: &Claim, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let worker = worker(args.worker.as_deref());
    let at = place(&root, worker.clone(), context)?;
    let base = at.git.head().map_err(|error| git(&error))?;
    let mut tx = begin(&root)?;
    let now = tx.now();
    tx.forget_ended_holder(&worker);
    root.end_leases(&mut tx.list, now);
    for id in claims::expire(&mut tx.list, &worker, now, &[]) {
        tx.log(Entry::error(Some(&id), Category::SessionTimeout, "the worker's claim has expired"));
    }
    for marked in select::validate_dependencies(&mut tx.list, now) {
        tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
    }
    let chosen = match &args.id {
        Some(said) => {
            named(&tx.list, said).and_then(|id| match claims::in_hand(&tx.list, Some(&id), now) {
                None => Ok(id),
                Some(other) => Err(refused(&other)),
            })
        }
        None => next(&tx.list, &worker, &root, now),
    };
    let claimed = chosen.and_then(|id| {
        let was_ours = tx.list.get(&id).is_some_and(|task| task.status == Status::InProgress);
        let lease = args.lease.unwrap_or(claims::LEASE);
        claims::claim(&mut tx.list, &id, &worker, &base, now, lease)
            .map_err(|error| refused(&error))?;
        Ok((id, was_ours))
    });
    let (id, was_ours) = match claimed {
        Ok(claimed) => claimed,
        Err(failure) => {
            // Changes to other tasks are committed even if the claim fails.
            tx.settle_marker().map_err(|error| listed(&error))?;
            tx.commit().map_err(|error| listed(&error))?;
            return Err(failure);
        }
    };
    let task = task(&tx.list, &id)?.clone();
    if !was_ours {
        at.git.remember_start(&id, &base).map_err(|error| git(&error))?;
        if let Some(process) = caller::agent(&muleteer_backends::process_names()) {
            tx.remember_holder(&worker, Behind::Process(process));
        }
        tx.log(Entry::starting(&task, &base));
    }
    tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        context.out.document(
            &json!({"task": task.to_value(), "worker": worker, "base": task.started_at_commit}),
        )?;
    } else {
        context.out.line(&id)?;
        context.out.note(format!(
            "{}: validated by `{}`",
            task.title,
            task.command.as_deref().unwrap_or("nothing yet")
        ));
    }
    Ok(Exit::Done)
}

/// Chooses the next task. The worker's own unfinished task comes first.
fn next(list: &TaskList, worker: &str, root: &Root, now: Timestamp) -> Result<String, Failure> {
    let own = list.tasks.iter().find(|task| {
        task.status == Status::InProgress && task.claimed_by.as_deref() == Some(worker)
    });
    if let Some(own) = own {
        return Ok(own.id.clone());
    }
    if let Some(other) = claims::in_hand(list, None, now) {
        return Err(refused(&other));
    }
    let next = select::next(list, &root.failure_times(list)).map(|at| list.tasks[at].id.clone());
    next.ok_or_else(|| {
        Failure::new(ErrorCode::TaskNone, "no task can be claimed now").hint(
            "run `muleteer tasks status`: all tasks are done, failed for good, or wait for claimed \
                tasks",
        )
    })
}

pub fn renew(args: &Renew, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let worker = worker(args.worker.as_deref());
    let mut tx = begin(&root(said)?)?;
    let now = tx.now();
    tx.forget_ended_holder(&worker);
    let id = named(&tx.list, &args.id)?;
    let renewed = match args.lease {
        Some(lease) => claims::set_lease(&mut tx.list, &id, &worker, now, lease),
        None => claims::renew(&mut tx.list, &id, &worker, now, claims::LEASE),
    };
    renewed.map_err(|error| refused(&error))?;
    let until = tx.list.get(&id).and_then(|task| task.lease_expires_at).map(iso);
    tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        context.out.document(&json!({"task": id, "lease_expires_at": until}))?;
    } else {
        context.out.note(format!("{id}: until {}", until.unwrap_or_default()));
    }
    Ok(Exit::Done)
}

pub fn checkpoint(
    args: &Checkpoint,
    said: Option<&Path>,
    context: &Context,
) -> Result<Exit, Failure> {
    let root = root(said)?;
    let worker = worker(args.worker.as_deref());
    let (number, total) = args.step;
    let text = words(&args.text)?;
    // The state of the files is recorded, so that a later worker can tell whether they have
    // changed.
    let tree = place(&root, worker.clone(), context)?.git.snapshot().ok();
    let mut tx = begin(&root)?;
    let now = tx.now();
    let id = named(&tx.list, &args.id)?;
    let task = claims::owned(&mut tx.list, &id, &worker).map_err(|error| refused(&error))?;
    let before = task.checkpoints.len();
    outcome::checkpoint(task, number, total, &text, tree, now);
    let is_new = task.checkpoints.len() > before;
    claims::renew(&mut tx.list, &id, &worker, now, claims::LEASE)
        .map_err(|error| refused(&error))?;
    if is_new {
        tx.log(Entry::checkpoint(&id, number, total, &text));
    }
    let list = tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        let count = list.get(&id).map_or(0, |task| task.checkpoints.len());
        context
            .out
            .document(&json!({"task": id, "step": number, "total": total, "checkpoints": count}))?;
    }
    Ok(Exit::Done)
}

/// Rejects an agent of a run, which must not judge itself.
fn not_of_a_run() -> Result<(), Failure> {
    match of_run() {
        None => Ok(()),
        Some(run) => Err(Failure::new(
            ErrorCode::Forbidden,
            format!("run {run} validates the task after your turn"),
        )
        .hint("end your turn; record progress with `muleteer tasks checkpoint`")),
    }
}

pub fn complete(args: &Complete, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    not_of_a_run()?;
    let root = root(said)?;
    let at = place(&root, worker(args.worker.as_deref()), context)?;
    let mut list = root.read().map_err(|error| listed(&error))?.list;
    let id = named(&list, &args.id)?;
    let task = claims::owned(&mut list, &id, &at.worker).map_err(|error| refused(&error))?.clone();
    at.disown(&id, task.started_at_commit.as_deref().unwrap_or_default());
    let verdict = at.validate(&task, &interrupt()?).map_err(stepped)?;
    if matches!(verdict, Verdict::Stopped) {
        return Err(stopped(&id));
    }
    if let Verdict::Passed { .. } = verdict {
        let base = task.started_at_commit.clone().unwrap_or_default();
        let recorded = at.succeed(&task.id, &task.title, &base).map_err(stepped)?;
        return told(context, &id, &recorded);
    }
    at.remember(&task, &verdict);
    let before = at.kept_output(&task.id, "before");
    let (category, message) = describe(&verdict, before.as_deref());
    if matches!(verdict, Verdict::NoCommand | Verdict::NoProgram(_)) {
        at.note(vec![Entry::error(Some(&id), category, &message)]);
    }
    let code = match verdict {
        Verdict::NoCommand => ErrorCode::TasksInvalid,
        Verdict::NoProgram(_) => ErrorCode::TasksEnv,
        _ => ErrorCode::TaskFailed,
    };
    let output = match verdict {
        Verdict::Failed { output, .. } | Verdict::TimedOut { output, .. } => output,
        _ => String::new(),
    };
    if !context.out.json {
        context.out.note(&output);
    }
    let file = root.output(&id, "last");
    let failure = Failure::new(code, format!("{id}: {message}")).hint(format!(
        "fix it and try again, or give up with `muleteer tasks fail {id} --category {category} \
         \"why\"`"
    ));
    Err(if output.is_empty() { failure } else { failure.file(file) })
}

/// Prints warnings even with `--quiet`, because they concern the user's files.
fn warn(id: &str, recorded: &Recorded) {
    for text in &recorded.warnings {
        drop(writeln!(std::io::stderr(), "warning: {}", safe(&format!("{id}: {text}"))));
    }
}

fn told(context: &Context, id: &str, recorded: &Recorded) -> Result<Exit, Failure> {
    warn(id, recorded);
    let status = recorded.list.get(id).map_or("", |task| task.status.as_str());
    let next = select::next(&recorded.list, &select::FailureTimes::new());
    let next = next.map(|at| recorded.list.tasks[at].id.clone());
    if context.out.json {
        context.out.document(&json!({
            "task": id, "status": status, "commit": recorded.commit, "message": recorded.message,
            "next": next,
        }))?;
    } else {
        context.out.line(format!("{id} {status}"))?;
        context.out.note(
            next.map_or_else(
                || "no other task can be claimed".into(),
                |next| format!("next: {next}"),
            ),
        );
    }
    Ok(Exit::Done)
}

pub fn fail(args: &Fail, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    not_of_a_run()?;
    let why = words(&args.text)?;
    let root = root(said)?;
    let at = place(&root, worker(args.worker.as_deref()), context)?;
    let mut list = root.read().map_err(|error| listed(&error))?.list;
    let id = named(&list, &args.id)?;
    let task = claims::owned(&mut list, &id, &at.worker).map_err(|error| refused(&error))?.clone();
    let recorded = at.fail(&task, args.category, &why, &interrupt()?).map_err(stepped)?;
    told(context, &id, &recorded)
}

/// Adds a hint about `--force`: only a person can know whether the holder is gone.
fn in_other_hands(error: &claims::Refused) -> Failure {
    let failure = refused(error);
    match error {
        claims::Refused::Held { by, .. } => failure.hint(format!(
            "wait until the claim expires; if {by} is known to be gone, recover the task with \
             `--force`"
        )),
        _ => failure,
    }
}

pub fn recover(args: &Recover, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    not_of_a_run()?;
    let root = root(said)?;
    let at = place(&root, worker(args.worker.as_deref()), context)?;
    let mut list = root.read().map_err(|error| listed(&error))?.list;
    let now = Timestamp::now();
    root.end_leases(&mut list, now);
    let recoverable = |id: &str| claims::recoverable(&list, id, &at.worker, now);
    let chosen: Vec<_> = match &args.id {
        Some(said) => {
            let id = &named(&list, said)?;
            let task =
                claims::in_progress(&list, id, &at.worker).map_err(|error| refused(&error))?;
            if !args.force {
                recoverable(id).map_err(|error| in_other_hands(&error))?;
            }
            vec![task.clone()]
        }
        None => claims::interrupted(&list, &at.worker, now, &[])
            .into_iter()
            .map(|at| list.tasks[at].clone())
            .filter(|task| recoverable(&task.id).is_ok())
            .collect(),
    };
    let mut said = vec![];
    let off = interrupt()?;
    for task in chosen {
        let became = match at.recover(&task, &off).map_err(stepped)? {
            Recovered::Resume => "resume",
            Recovered::Failed(_) => "failed",
            Recovered::Passed => {
                let base = task.started_at_commit.clone().unwrap_or_default();
                warn(&task.id, &at.succeed(&task.id, &task.title, &base).map_err(stepped)?);
                "completed"
            }
        };
        said.push(json!({"task": task.id, "action": became}));
        if !context.out.json {
            context.out.line(format!("{} {became}", task.id))?;
        }
    }
    if context.out.json {
        context.out.document(&json!({"recovered": said}))?;
    } else if said.is_empty() {
        context.out.note("no interrupted task");
    }
    Ok(Exit::Done)
}

pub fn undo(args: &Undo, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    not_of_a_run()?;
    let root = root(said)?;
    let work = Git::open(root.path()).map_err(|error| git(&error))?;
    let saved = work.saved(args.what.as_deref()).map_err(|error| git(&error))?;
    if args.list {
        if context.out.json {
            let all: Vec<_> = saved
                .iter()
                .map(|one| json!({"ref": one.name, "commit": one.commit, "base": one.base}))
                .collect();
            context.out.document(&json!({"saved": all}))?;
        } else {
            for one in &saved {
                context.out.line(&one.name)?;
            }
        }
        return Ok(Exit::Done);
    }
    let Some(chosen) = work.newest(&saved) else {
        return Err(Failure::new(
            ErrorCode::NotFound,
            "no rollback has saved changes under this name",
        )
        .hint("find the ref in a ROLLBACK line of harness-progress.txt"));
    };
    // The lock is held meanwhile: the files of a session that works here must not be moved.
    let mut tx = begin(&root)?;
    let ignored = tx.list.save_ignored.clone();
    let kept = work.undo(&chosen, &ignored).map_err(|error| git(&error))?;
    let task = chosen.task();
    tx.log(Entry::warn(
        task.as_deref(),
        &format!("undone: restored {} in the working directory", chosen.name),
    ));
    tx.commit().map_err(|error| listed(&error))?;
    if context.out.json {
        context
            .out
            .document(&json!({"restored": chosen.name, "saved": kept, "head": chosen.head}))?;
    } else {
        context.out.line(&chosen.name)?;
        if let Some(kept) = kept {
            context.out.note(format!("saved the state before that as {kept}"));
        }
    }
    Ok(Exit::Done)
}
