//! The verbs that repair: `recover` an interrupted task, `undo` a rollback.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::outcome::warn;
use crate::verbs::work::tasks::place::{
    begin, git, listed, named, not_of_a_run, place, refused, root, stepped, worker,
};
use crate::verbs::work::tasks::validate::interrupt;
use jiff::Timestamp;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::claim as claims;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::task_list::steps::Recovered;
use muleteer_vcs::user_repo::Git;
use serde_json::json;
use std::path::Path;

/// Recover an interrupted task: complete it, resume it, or roll it back
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks recover task-002\n  muleteer tasks recover \
        task-002 --force    the worker of the claim is gone\n\nInspects uncommitted \
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
    if !chosen.is_empty() {
        // A recovery may roll back, and the operation may be a person's.
        at.git.check_no_operation().map_err(|error| git(&error))?;
    }
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
