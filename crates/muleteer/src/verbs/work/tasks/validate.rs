//! The verb `validate`: checks the list, or one task by its command, and records nothing.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::{listed, place, root, stepped, task, worker};
use jiff::Timestamp;
use muleteer_model::task_list::select;
use muleteer_process::signals::Signals;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::task_list::steps::{Verdict, describe};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::Path;

/// Check the list, or run a task's validation without recording the result
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks validate             the list: exits 2 if it \
        is invalid\n  muleteer tasks validate task-002    run its command: exits 4 if it fails")]
pub struct Validate {
    /// The task
    id: Option<String>,
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

/// Returns a function that reports whether the user has interrupted since now (Ctrl-C, TERM, a
/// closed terminal). A validation in its own process group does not receive these signals, and
/// would continue without us.
pub(super) fn interrupt() -> Result<impl Fn() -> bool, Failure> {
    let signals = [Signal::INT, Signal::TERM, Signal::HUP].map(Signal::as_raw);
    let signals = RefCell::new(Signals::catch(&signals).map_err(Failure::from)?);
    Ok(move || !signals.borrow_mut().take().is_empty())
}

pub(super) fn stopped(id: &str) -> Failure {
    Failure::new(
        ErrorCode::Cancelled,
        format!("{id}: its validation was stopped; no result is recorded"),
    )
}
