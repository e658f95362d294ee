//! Samples of the events of a run of a task list.

use crate::events::catalog::TRACE;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::task_list::session::{Finished, Started, Verdict as Judged};

/// Returns the events of a run of a task list, in their usual order.
pub(super) fn all() -> Vec<Event> {
    vec![
        Event::TaskListStarted(Box::new(Started {
            list: "lstabcde".into(),
            root: "/repo".into(),
            concurrency: 1,
            max_tasks: Some(5),
            branch: Some("main".into()),
            role: "developer".into(),
            backend: Some("example".into()),
            by: "operator".into(),
            trace: Some(TRACE.into()),
        })),
        Event::TaskListSession { list: "lstabcde".into(), session: 2 },
        Event::TaskBegun {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            dispatch: DispatchId::from_random([1, 2, 3, 4, 5]),
            base: "9fceb02d".into(),
            resumed: false,
        },
        Event::TaskJudged {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            verdict: Judged {
                passed: false,
                category: Some("TEST_FAIL".into()),
                message: "exit 1".into(),
            },
        },
        Event::TaskEnded {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            status: "failed".into(),
            message: "[TEST_FAIL] exit 1".into(),
            counted: true,
        },
        Event::TaskListStopping { list: "lstabcde".into(), now: false, by: "operator".into() },
        Event::TaskListFinished {
            list: "lstabcde".into(),
            finished: Finished {
                status: "completed".into(),
                reason: "all tasks are completed".into(),
                code: None,
            },
            stats: "tasks_total=5 completed=5 failed=0 pending=0 blocked=0 attempts_total=6 \
                    checkpoints=3"
                .into(),
        },
    ]
}
