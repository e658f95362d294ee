//! The verbs that end a worker's attempt at a task: `complete` and `fail`.

use crate::cli::arg_error::ArgError;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render::safe;
use crate::verbs::work::tasks::place::{
    listed, named, not_of_a_run, place, refused, root, stepped, words, worker,
};
use crate::verbs::work::tasks::validate::{interrupt, stopped};
use muleteer_model::task_list::Category;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::claim as claims;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::task_list::steps::{Recorded, Verdict, describe};
use serde_json::json;
use std::io::Write;
use std::path::Path;

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

fn category(text: &str) -> Result<Category, ArgError> {
    let names = || Category::ALL.map(Category::as_str).join(", ");
    Category::parse(text).ok_or_else(|| ArgError::Category(names()))
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

/// Prints warnings even with `--quiet`, because they concern the user's files.
pub(super) fn warn(id: &str, recorded: &Recorded) {
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
