//! The text with which an agent's own session begins.

use crate::task_list::document::{Mode, TaskList};
use crate::task_list::select::{self, FailureTimes};
use crate::task_list::session::claim::{self, Refused};
use crate::task_list::session::hook::recover;
use crate::task_list::stats::{is_over, stats};
use jiff::Timestamp;
use std::fmt::Write;

/// The facts from which the hook writes the text that a new session begins with.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    pub list: &'a TaskList,
    pub session: u64,
    pub worker: &'a str,
    /// The last lines of the log.
    pub log: &'a str,
    /// The newest commits, the uncommitted changes, and the stashes.
    pub commits: &'a str,
    pub uncommitted: &'a str,
    pub stashes: &'a str,
    /// Tasks in progress that have to be recovered.
    pub interrupted: &'a [String],
    /// The run of the daemon that works on the list, if there is one.
    pub run: Option<&'a str>,
    pub failures: &'a FailureTimes,
    pub now: Timestamp,
}

/// Returns the context with which a session begins.
pub fn session_start(scene: &Scene<'_>) -> String {
    let counts = stats(scene.list);
    let mut text = format!(
        "# Task list, session {}\n\nThis project has a task list (harness-tasks.json): {} of {} \
         tasks completed, {} failed, {} pending, {} in progress. You are worker `{}`.\n",
        scene.session,
        counts.completed,
        counts.tasks_total,
        counts.failed,
        counts.pending,
        counts.in_progress,
        scene.worker
    );
    if let Some(run) = scene.run {
        let _ = write!(
            text,
            "\nRun {run} of the Muleteer daemon is working through it. Do not change the list or \
             the files that it changes; `muleteer tasks status` shows its progress.\n"
        );
        return text;
    }
    if let Some(max) = scene.list.max_sessions.filter(|max| scene.session > *max) {
        let _ = writeln!(
            text,
            "\nmax_sessions ({max}) is reached: do not continue unless a person raises it."
        );
        return text;
    }
    for id in scene.interrupted {
        let Some(task) = scene.list.get(id) else { continue };
        if let Err(Refused::Held { task, by, until }) =
            claim::recoverable(scene.list, id, scene.worker, scene.now)
        {
            let _ = write!(
                text,
                "\n`{task}` is claimed by {by} until {until}. Do not change the list or the files \
                 until then: {by} may be working here. Only if a person confirms that {by} is \
                 gone, run `muleteer tasks recover {task} --force`.\n"
            );
            if scene.list.mode == Mode::Exclusive {
                // All other work would use the same directory.
                return text;
            }
            continue;
        }
        let _ = writeln!(text, "\n{}", recover(task));
        for done in &task.checkpoints {
            let _ = writeln!(text, "- checkpoint {done}");
        }
    }
    match select::next(scene.list, scene.failures).map(|at| &scene.list.tasks[at]) {
        Some(task) => {
            let _ = write!(
                text,
                "\nNext: {} ({}), validated by `{}`.",
                task.id,
                task.title.trim(),
                task.command.as_deref().unwrap_or("nothing yet")
            );
            if let Some(error) = task.error_log.last() {
                let _ = write!(text, " It failed before: {error}");
            }
            text.push('\n');
        }
        None if is_over(scene.list) => text.push_str("\nNo open tasks.\n"),
        None => {}
    }
    text.push_str(
        "\nFor each task: `muleteer tasks claim`, work, `muleteer tasks checkpoint ID M/N \"what \
         was done\"` after each significant step, then `muleteer tasks complete ID` (it runs the \
         validation and commits), or `muleteer tasks fail ID \"why\"` (it rolls back). Then the \
         next one, without asking. Never edit the harness-* files by hand.\n",
    );
    for (title, body) in [
        ("The newest commits", scene.commits),
        ("Uncommitted", scene.uncommitted),
        ("Stashes", scene.stashes),
        ("The end of the log", scene.log),
    ] {
        if !body.trim().is_empty() {
            let _ = write!(
                text,
                "\n## {title}\n\n```\n{}\n```\n",
                body.trim_end().replace("```", "'''")
            );
        }
    }
    text
}

/// Returns the context of a session whose list cannot be read.
pub fn session_start_unreadable(why: &str) -> String {
    format!(
        "# Task list\n\nError: this project has a task list that cannot be read, so its tasks are \
         unknown. Fix the file, or report the fault to the user, before you work on the \
         list.\n{why}\n"
    )
}
