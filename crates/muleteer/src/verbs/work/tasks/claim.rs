//! The verbs of an agent that works through the list in its own session: `claim`, `renew`,
//! `checkpoint`. A person may use them to help it.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::{
    begin, git, lease, listed, named, place, refused, root, task, words, worker,
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
use muleteer_protocol::ErrorCode;
use muleteer_store::task_list::{Behind, Root};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

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

fn span(text: &str) -> Result<Duration, ArgError> {
    let span: Span = text.parse()?;
    Some(Duration::from_secs(span.as_secs()))
        .filter(|span| !span.is_zero())
        .ok_or(ArgError::NoTime)
}

fn step(text: &str) -> Result<(u64, u64), ArgError> {
    Ok(outcome::parse_step(text)?)
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
        let lease = args.lease.unwrap_or_else(lease);
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
        None => claims::renew(&mut tx.list, &id, &worker, now, lease()),
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
    claims::renew(&mut tx.list, &id, &worker, now, lease()).map_err(|error| refused(&error))?;
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
