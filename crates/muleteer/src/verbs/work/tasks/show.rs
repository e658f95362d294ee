//! The verbs that only read; none of them takes the lock.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::render::{BOLD, DIM, RESET, fitted, safe, state_color};
use crate::verbs::work::tasks::place::{listed, root, task};
use muleteer_model::task_list::category::one_line;
use muleteer_model::task_list::stats::{Stats, is_over, stats};
use muleteer_model::task_list::{Status as State, Task, TaskList, select};
use muleteer_store::task_list::{Root, SessionLock};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

/// The number of log lines that `status` shows.
const LOG_LINES: usize = 5;

/// Show the state of the list: counts, one line for each task, the end of the log
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks status\n  muleteer tasks status \
        --json\n\nTakes no lock.")]
pub struct Status {}

/// Show one task in full
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  muleteer tasks show task-002")]
pub struct Show {
    /// The task
    id: String,
}

/// Show the dependencies in an order in which the tasks can be done
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer tasks graph\n  muleteer tasks graph --json")]
pub struct Graph {}

fn read(root: &Root, context: &Context) -> Result<TaskList, Failure> {
    let read = root.read().map_err(|error| listed(&error))?;
    if read.from_backup {
        context.out.note(
            "harness-tasks.json is damaged; showing its backup, which the next change restores",
        );
    }
    Ok(read.list)
}

pub fn status(said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let list = read(&root, context)?;
    let (counts, log) = (stats(&list), root.log_tail(LOG_LINES));
    let (holder, run) = (SessionLock::holder(&root), SessionLock::run_on(&root));
    if context.out.json {
        let dead = dead(&list);
        let tasks: Vec<_> = list.tasks.iter().map(|task| summary(&dead, task)).collect();
        context.out.document(&json!({
            "root": root.path(), "active": root.active().exists(), "counts": numbers(&counts),
            "tasks": tasks,
            "log": log, "session_count": list.session_count, "last_session": list.last_session,
            "concurrency_mode": list.mode.as_str(), "over": is_over(&list),
            "locked_by": holder.as_ref().and_then(|locked| locked.pid),
            "run_id": run,
        }))?;
        return Ok(Exit::Done);
    }
    let mut text = format!(
        "{BOLD}{}{RESET}\n{} tasks: {} completed, {} in progress, {} failed, {} pending ({} of \
         them blocked)\n\n",
        safe(&root.path().display().to_string()),
        counts.tasks_total,
        counts.completed,
        counts.in_progress,
        counts.failed,
        counts.pending,
        counts.blocked
    );
    for task in &list.tasks {
        let state = task.status.as_str();
        let color = state_color(if state == "in_progress" { "in-progress" } else { state });
        let line = format!(
            "{color}[{state}]{RESET} {}: {} ({}/{})",
            task.id,
            one_line(&task.title),
            task.attempts,
            task.max_attempts
        );
        text.push_str(&fitted(&format!("{line}\n")));
    }
    if !log.is_empty() {
        let _ = write!(text, "\n{DIM}{}{RESET}\n", safe(&log.join("\n")));
    }
    let last = list.last_session.as_deref().unwrap_or("never");
    let _ = writeln!(text, "\nsessions: {}, the last ended: {}", list.session_count, safe(last));
    if let Some(run) = run {
        let _ = writeln!(text, "run {run} is working on it (stop it with `muleteer tasks stop`)");
    }
    context.out.text(text)?;
    Ok(Exit::Done)
}

fn numbers(stats: &Stats) -> Value {
    json!({
        "total": stats.tasks_total, "completed": stats.completed, "failed": stats.failed,
        "pending": stats.pending, "in_progress": stats.in_progress, "blocked": stats.blocked,
        "attempts_total": stats.attempts_total, "checkpoints": stats.checkpoints,
    })
}

/// Returns the tasks that failed for good. They are collected once, because a search for each task
/// would take quadratic time.
fn dead(list: &TaskList) -> HashSet<&str> {
    list.tasks
        .iter()
        .filter(|task| task.is_failed_for_good())
        .map(|task| task.id.as_str())
        .collect()
}

fn summary(dead: &HashSet<&str>, task: &Task) -> Value {
    let blocked = task.status == State::Pending
        && task.depends_on.iter().any(|id| dead.contains(id.as_str()));
    json!({
        "id": task.id, "title": task.title, "status": task.status.as_str(), "blocked": blocked,
        "priority": format!("P{}", task.priority), "depends_on": task.depends_on,
        "attempts": task.attempts, "max_attempts": task.max_attempts,
        "claimed_by": task.claimed_by, "completed_at": task.completed_at,
        "last_error": task.error_log.last(),
    })
}

pub fn show(args: &Show, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let list = read(&root, context)?;
    let task = task(&list, &args.id)?;
    if context.out.json {
        context.out.document(&task.to_value())?;
        return Ok(Exit::Done);
    }
    let text = serde_json::to_string_pretty(&task.to_value()).unwrap_or_default();
    context.out.line(safe(&text))?;
    for which in ["before", "last"] {
        let path = root.output(&task.id, which);
        if path.exists() {
            context.out.note(format!("{which} output of its validation: {}", path.display()));
        }
    }
    Ok(Exit::Done)
}

pub fn graph(said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let list = read(&root, context)?;
    // The check works on a copy, because reading must not change the list.
    let mut checked = list.clone();
    let marked = select::validate_dependencies(&mut checked, jiff::Timestamp::now());
    let next: Vec<_> = select::eligible(&checked, &root.failure_times(&checked))
        .into_iter()
        .map(|at| checked.tasks[at].id.clone())
        .collect();
    if context.out.json {
        let edges: Vec<_> = list
            .tasks
            .iter()
            .flat_map(|task| {
                task.depends_on.iter().map(|on| json!({"task": task.id, "depends_on": on}))
            })
            .collect();
        let dead = dead(&list);
        let nodes: Vec<_> = list.tasks.iter().map(|task| summary(&dead, task)).collect();
        let faults: Vec<_> =
            marked.iter().map(|one| json!({"task": one.task, "message": one.message})).collect();
        context.out.document(
            &json!({"tasks": nodes, "edges": edges, "eligible": next, "problems": faults}),
        )?;
        return Ok(Exit::Done);
    }
    let mut text = String::new();
    for at in in_order(&list) {
        let task = &list.tasks[at];
        let after = if task.depends_on.is_empty() {
            String::new()
        } else {
            format!(" <- {}", task.depends_on.join(", "))
        };
        let mark = if next.first() == Some(&task.id) { " (next)" } else { "" };
        let _ = writeln!(
            text,
            "[{}] {}: {}{after}{mark}",
            task.status.as_str(),
            task.id,
            one_line(&task.title)
        );
    }
    for one in marked {
        let _ = writeln!(text, "{}: {}", one.task, one.message);
    }
    context.out.text(text)?;
    Ok(Exit::Done)
}

/// Sorts the tasks so that dependencies come first; tasks in a cycle come last.
fn in_order(list: &TaskList) -> Vec<usize> {
    let index = select::index(list);
    let mut waits: Vec<_> = list.tasks.iter().map(|task| task.depends_on.len()).collect();
    let mut dependants = vec![vec![]; list.tasks.len()];
    for (at, task) in list.tasks.iter().enumerate() {
        for needed in task.depends_on.iter().filter_map(|id| index.get(id.as_str())) {
            dependants[*needed].push(at);
        }
    }
    let mut order = vec![];
    let mut ready: std::collections::VecDeque<_> =
        (0..list.tasks.len()).filter(|at| waits[*at] == 0).collect();
    while let Some(at) = ready.pop_front() {
        order.push(at);
        for next in &dependants[at] {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                ready.push_back(*next);
            }
        }
    }
    let rest: Vec<_> = (0..list.tasks.len()).filter(|at| waits[*at] > 0).collect();
    order.extend(rest);
    order
}
