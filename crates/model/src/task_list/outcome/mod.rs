//! Outcomes and checkpoints of tasks.

pub mod failure_diff;

use crate::task_list::category::{Category, one_line};
use crate::task_list::document::{Checkpoint, Status, Task, TaskList, iso, second};
use jiff::Timestamp;

/// Completes a task that passed its validation. The successful attempt counts too, as in the
/// protocol.
pub fn complete(task: &mut Task, now: Timestamp) {
    task.status = Status::Completed;
    task.attempts = task.attempts.saturating_add(1);
    task.completed_at = Some(iso(now));
    free(task);
}

/// Fails a task and counts the attempt. The number of attempts decides whether it is retried.
pub fn fail(task: &mut Task, category: Category, message: &str, now: Timestamp) {
    task.status = Status::Failed;
    task.attempts = task.attempts.saturating_add(1);
    task.error_log.push(category.entry(message));
    task.failed_at = Some(second(now));
    free(task);
}

/// Like [`fail`], with no attempt left. Used if the base commit does not exist, so that no rollback
/// is possible.
pub fn fail_for_good(task: &mut Task, category: Category, message: &str, now: Timestamp) {
    fail(task, category, message, now);
    task.attempts = task.attempts.max(task.max_attempts);
}

/// Ends the claim with the work.
fn free(task: &mut Task) {
    task.claimed_by = None;
    task.lease_expires_at = None;
}

/// An invalid checkpoint step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a step: expected M/N, with M from 1 to N")]
pub struct BadStep(pub String);

/// Parses a step such as `2/4`.
///
/// # Errors
/// The text has another form.
pub fn parse_step(text: &str) -> Result<(u64, u64), BadStep> {
    let parsed = text
        .split_once('/')
        .and_then(|(step, total)| Some((step.parse().ok()?, total.parse().ok()?)));
    parsed
        .filter(|(step, total)| (1..=*total).contains(step))
        .ok_or_else(|| BadStep(text.into()))
}

/// Records a completed step. A repetition of the last checkpoint adds nothing.
pub fn checkpoint(
    task: &mut Task,
    step: u64,
    total: u64,
    text: &str,
    tree: Option<String>,
    now: Timestamp,
) {
    let description = one_line(text);
    let is_same = |last: &Checkpoint| {
        (last.step, last.total, &last.description) == (step, total, &description)
    };
    if task.checkpoints.last().is_some_and(is_same) {
        return;
    }
    task.checkpoints.push(Checkpoint { step, total, description, timestamp: iso(now), tree });
}

/// Resets the attempts of a failed task and of the tasks that failed only because of it.
pub fn retry(list: &mut TaskList, id: &str) -> Vec<String> {
    let mut again = vec![id.to_string()];
    let mut at = 0;
    while let Some(cause) = again.get(at).cloned() {
        at += 1;
        let blocked = format!("[DEPENDENCY] Blocked by failed {cause}");
        let freed = list.tasks.iter().filter(|task| {
            task.status == Status::Failed
                && task.error_log.contains(&blocked)
                && !again.contains(&task.id)
        });
        let freed: Vec<_> = freed.map(|task| task.id.clone()).collect();
        again.extend(freed);
    }
    for (which, id) in again.iter().enumerate() {
        let Some(task) = list.get_mut(id) else { continue };
        task.error_log.retain(|entry| !entry.starts_with("[DEPENDENCY]"));
        task.status = Status::Pending;
        task.completed_at = None;
        if which == 0 {
            task.attempts = 0;
        }
        free(task);
    }
    again
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2025-07-01T10:15:30Z".parse().expect("an instant")
    }

    /// The word may occur in the output of a validation.
    #[test]
    fn only_an_entry_of_that_category_is_a_dependency_error() {
        let mut task = Task::new("a", "A");
        task.status = Status::Failed;
        task.attempts = 1;
        task.error_log =
            vec!["[TEST_FAIL] validation failed: exit 1 [DEPENDENCY] libfoo not found".into()];
        assert!(!task.is_failed_for_good());
        task.error_log.push("[DEPENDENCY] Blocked by failed b".into());
        assert!(task.is_failed_for_good());
    }

    #[test]
    fn success_sets_completed_at_and_failure_counts_and_is_logged() {
        let mut task = Task::new("a", "A");
        task.claimed_by = Some("w".into());
        task.lease_expires_at = Some(now());
        let mut done = task.clone();
        complete(&mut done, now());
        assert_eq!(
            (done.status, done.completed_at.as_deref()),
            (Status::Completed, Some("2025-07-01T10:15:30Z"))
        );
        assert_eq!((done.attempts, &done.claimed_by, done.lease_expires_at), (1, &None, None));
        fail(&mut task, Category::TaskExec, "Redis connection\nrefused", now());
        assert_eq!((task.status, task.attempts), (Status::Failed, 1));
        assert_eq!(task.error_log, ["[TASK_EXEC] Redis connection refused"]);
        assert_eq!((&task.claimed_by, task.lease_expires_at), (&None, None));
        assert!(!task.is_failed_for_good());
    }

    #[test]
    fn missing_base_commit_allows_no_attempt() {
        let mut task = Task::new("a", "A");
        fail_for_good(&mut task, Category::TaskExec, "started_at_commit is gone", now());
        assert_eq!(task.attempts, task.max_attempts);
        assert!(task.is_failed_for_good());
    }

    #[test]
    fn a_checkpoint_is_noted_once_and_steps_are_checked() {
        let mut task = Task::new("a", "A");
        for _ in 0..2 {
            checkpoint(&mut task, 2, 4, "auth routes created, tests pending", None, now());
        }
        assert_eq!(task.checkpoints.len(), 1);
        assert_eq!(parse_step("2/4"), Ok((2, 4)));
        for bad in ["", "2", "0/4", "5/4", "a/b", "1/0", "-1/4"] {
            assert!(parse_step(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn retry_unblocks_only_its_dependants() {
        let mut list = TaskList::new(now());
        list.tasks = ["a", "b", "c", "d"].map(|id| Task::new(id, id)).into();
        for (at, on) in [(1, "a"), (2, "b")] {
            list.tasks[at].depends_on = vec![on.into()];
        }
        for at in [0, 3] {
            list.tasks[at].max_attempts = 1;
            fail(&mut list.tasks[at], Category::TestFail, "no", now());
        }
        crate::task_list::select::validate_dependencies(&mut list, now());
        assert_eq!(list.tasks.iter().filter(|task| task.is_failed_for_good()).count(), 4);
        assert_eq!(retry(&mut list, "a"), ["a", "b", "c"]);
        let states: Vec<_> = list.tasks.iter().map(|task| task.status).collect();
        assert_eq!(states, [Status::Pending, Status::Pending, Status::Pending, Status::Failed]);
        assert_eq!(list.tasks[0].error_log, ["[TEST_FAIL] no"], "what happened is not forgotten");
    }
}
