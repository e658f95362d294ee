//! Counts of a list, and the conditions to stop.

use crate::task_list::document::{Status, Task, TaskList};
use crate::task_list::select;
use serde::Serialize;
use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    pub tasks_total: usize,
    pub completed: usize,
    pub failed: usize,
    pub pending: usize,
    /// Pending tasks that depend on one that failed for good. Computed, never stored.
    pub blocked: usize,
    pub attempts_total: u64,
    pub checkpoints: usize,
    #[serde(skip)]
    pub in_progress: usize,
}

impl fmt::Display for Stats {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "tasks_total={} completed={} failed={} pending={} blocked={} attempts_total={} \
             checkpoints={}",
            self.tasks_total,
            self.completed,
            self.failed,
            self.pending,
            self.blocked,
            self.attempts_total,
            self.checkpoints
        )
    }
}

pub fn stats(list: &TaskList) -> Stats {
    let index = select::index(list);
    let dead =
        |id: &String| index.get(id.as_str()).is_some_and(|at| list.tasks[*at].is_failed_for_good());
    let mut stats = Stats { tasks_total: list.tasks.len(), ..Stats::default() };
    for task in &list.tasks {
        match task.status {
            Status::Pending => stats.pending += 1,
            Status::InProgress => stats.in_progress += 1,
            Status::Completed => stats.completed += 1,
            Status::Failed => stats.failed += 1,
        }
        stats.blocked +=
            usize::from(task.status == Status::Pending && task.depends_on.iter().any(dead));
        stats.attempts_total += u64::from(task.attempts);
        stats.checkpoints += task.checkpoints.len();
    }
    stats
}

/// The reason why a session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    AllCompleted,
    /// All remaining tasks failed for good, or depend on one that did.
    NothingLeft,
    /// `max_tasks_per_session`, or `--max-tasks`.
    MaxTasks,
    MaxSessions,
    Interrupted,
}

impl Stop {
    pub fn words(self) -> &'static str {
        match self {
            Self::AllCompleted => "all tasks are completed",
            Self::NothingLeft => "the remaining tasks have failed for good",
            Self::MaxTasks => "max_tasks_per_session reached",
            Self::MaxSessions => "max_sessions reached",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Returns whether a task may still be completed: pending, in progress, or failed with attempts
/// left.
pub fn is_open(task: &Task) -> bool {
    match task.status {
        Status::Pending | Status::InProgress => true,
        Status::Failed => !task.is_failed_for_good(),
        Status::Completed => false,
    }
}

/// Returns whether no task is open, so that the marker `.harness-active` is removed.
pub fn is_over(list: &TaskList) -> bool {
    !list.tasks.iter().any(is_open)
}

/// Returns why the session must stop now, if it must. `done` is the number of tasks it has worked
/// on.
///
/// The dependencies must have been validated, because a blocked task counts as open until then.
pub fn stop(list: &TaskList, done: u64, limit: Option<u64>) -> Option<Stop> {
    if list.tasks.iter().all(|task| task.status == Status::Completed) {
        return Some(Stop::AllCompleted);
    }
    if is_over(list) {
        return Some(Stop::NothingLeft);
    }
    let limit = limit.or(list.max_tasks_per_session);
    limit.is_some_and(|limit| done >= limit).then_some(Stop::MaxTasks)
}

/// Returns whether another session may begin. `session_count` does not include it yet.
pub fn may_begin(list: &TaskList) -> bool {
    list.max_sessions.is_none_or(|max| list.session_count < max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::{Category, outcome};

    fn list() -> TaskList {
        let now = "2025-07-01T10:00:00Z".parse().expect("an instant");
        let mut list = TaskList::new(now);
        list.tasks = ["a", "b", "c", "d"].map(|id| Task::new(id, id)).into();
        outcome::complete(&mut list.tasks[0], now);
        list.tasks[1].max_attempts = 1;
        outcome::fail(&mut list.tasks[1], Category::TestFail, "no", now);
        list.tasks[2].depends_on = vec!["b".into()];
        outcome::checkpoint(&mut list.tasks[3], 1, 2, "half", None, now);
        list
    }

    #[test]
    fn stats_read_as_the_reference_writes_them_and_blocked_is_computed() {
        let text =
            "tasks_total=4 completed=1 failed=1 pending=2 blocked=1 attempts_total=2 checkpoints=1";
        assert_eq!(stats(&list()).to_string(), text);
    }

    #[test]
    fn a_session_stops_when_all_is_done_nothing_is_left_or_a_limit_is_reached() {
        let mut list = list();
        assert_eq!(stop(&list, 19, None), None);
        assert_eq!(stop(&list, 20, None), Some(Stop::MaxTasks));
        assert_eq!(
            stop(&list, 1, Some(1)),
            Some(Stop::MaxTasks),
            "what was asked for goes before the list's"
        );
        list.tasks.retain(|task| task.id == "a" || task.id == "b");
        assert_eq!(stop(&list, 20, None), Some(Stop::NothingLeft), "an end is said before a limit");
        list.tasks.retain(|task| task.id == "a");
        assert_eq!(stop(&list, 0, None), Some(Stop::AllCompleted));
    }

    #[test]
    fn sessions_are_limited_over_all() {
        let mut list = list();
        list.session_count = 49;
        assert!(may_begin(&list));
        list.session_count = 50;
        assert!(!may_begin(&list));
        list.max_sessions = None;
        assert!(may_begin(&list));
    }
}
