//! Recovery of a task that was found in progress, by the protocol's table of five rows.

use crate::task_list::document::{Status, Task, TaskList};

/// The evidence about interrupted work in git and in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// Beyond commits, the working directory differs from its state when the task began.
    pub uncommitted: bool,
    /// Commits since the base name the task.
    pub commits: bool,
    pub checkpoints: bool,
    /// The files are as they were at the last checkpoint. Only checked if there is no other
    /// evidence.
    pub checkpoint_holds: bool,
    /// `started_at_commit` is set and exists.
    pub base_exists: bool,
}

/// The recovery of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// `[SESSION_TIMEOUT] No progress detected`.
    NoProgress,
    /// The files match the last checkpoint: continue after it.
    Resume,
    /// The files do not match: the work was lost.
    WorkLost,
    /// Run the validation. If it passes, the task is completed; if not, roll back to the base and
    /// fail.
    Validate {
        /// Commit the uncommitted changes before the validation; otherwise after it has passed.
        commit_first: bool,
    },
    /// There is no base to roll back to: failed, with no attempt left.
    NoBase,
}

/// The decision matrix.
pub fn decide(found: Evidence) -> Plan {
    match (found.uncommitted, found.commits, found.checkpoints) {
        _ if !found.base_exists => Plan::NoBase,
        (false, false, false) => Plan::NoProgress,
        (false, false, true) if found.checkpoint_holds => Plan::Resume,
        (false, false, true) => Plan::WorkLost,
        (false, true, _) => Plan::Validate { commit_first: false },
        (true, false, _) => Plan::Validate { commit_first: false },
        (true, true, _) => Plan::Validate { commit_first: true },
    }
}

impl Plan {
    /// Returns the action and its reason for the `RECOVERY` line.
    pub fn words(self, found: Evidence) -> (&'static str, String) {
        let action = match self {
            Self::NoProgress => "mark failed",
            Self::Resume => "resume from the last checkpoint",
            Self::WorkLost => "mark failed, the work was lost",
            Self::Validate { commit_first: true } => "commit, then validate",
            Self::Validate { commit_first: false } => "validate",
            Self::NoBase => "mark failed at max_attempts",
        };
        let yes = |is: bool| if is { "yes" } else { "no" };
        let reason = match self {
            Self::NoBase => "started_at_commit does not exist".into(),
            _ => format!(
                "interrupted; uncommitted={} task_commits={} checkpoints={}",
                yes(found.uncommitted),
                yes(found.commits),
                yes(found.checkpoints)
            ),
        };
        (action, reason)
    }
}

/// Returns whether a commit's message contains the task's id as a separate word.
pub fn names(message: &str, task: &Task) -> bool {
    let part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    message.match_indices(&task.id).any(|(at, id)| {
        !message[..at].chars().next_back().is_some_and(part)
            && !message[at + id.len()..].chars().next().is_some_and(part)
    })
}

/// Returns the commit at which a rollback ends before its base, if there is one: the newest of the
/// `commits` (newest first, with messages) with which another task was completed. Workers may share
/// a directory, and completed work must stay.
pub fn kept<'a>(
    commits: &'a [(String, String)],
    list: &TaskList,
    task: &str,
    completions: &[(String, String)],
) -> Option<&'a str> {
    let others =
        || list.tasks.iter().filter(|other| other.id != task && other.status == Status::Completed);
    let logged = |commit: &str| {
        let is_this = |(by, with): &(String, String)| {
            commit.starts_with(with.as_str()) && others().any(|other| other.id == *by)
        };
        completions.iter().any(is_this)
    };
    // The log is written after the list, so its line may be missing.
    let named = |message: &str| {
        others().any(|other| {
            message.strip_prefix(other.id.as_str()).is_some_and(|rest| rest.starts_with(": "))
        })
    };
    let is_other_s = |(commit, message): &&(String, String)| logged(commit) || named(message);
    commits.iter().find(is_other_s).map(|(commit, _)| commit.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_stops_at_a_completed_task() {
        let mut list = TaskList::new("2025-07-01T10:00:00Z".parse().expect("an instant"));
        list.tasks = ["a", "b", "c", "d"].map(|id| Task::new(id, "")).into();
        list.tasks[1].status = Status::Completed;
        list.tasks[2].status = Status::Completed;
        let commits = |all: &[(&str, &str)]| {
            all.iter().map(|(one, two)| (one.to_string(), two.to_string())).collect::<Vec<_>>()
        };
        let log = commits(&[("a", "55555"), ("b", "44444"), ("d", "66666")]);
        let end = |all: &[(&str, &str)]| kept(&commits(all), &list, "a", &log).map(String::from);
        assert_eq!(
            end(&[
                ("666661", "a: mine"),
                ("555551", "d: another that is not done"),
                ("333331", "like b: it")
            ]),
            None
        );
        assert_eq!(
            end(&[("555551", "mine"), ("444441", "by its agent"), ("333331", "c: older")]),
            Some("444441".into())
        );
        assert_eq!(
            end(&[("555551", "mine"), ("333331", "c: not logged yet")]),
            Some("333331".into())
        );
    }

    fn evidence(uncommitted: bool, commits: bool, checkpoints: bool) -> Evidence {
        Evidence { uncommitted, commits, checkpoints, checkpoint_holds: false, base_exists: true }
    }

    #[test]
    fn the_decision_matrix_has_five_rows() {
        let validate = |commit_first| Plan::Validate { commit_first };
        let (no, yes) = (false, true);
        for (uncommitted, commits, checkpoints, plan) in [
            (no, no, no, Plan::NoProgress),
            (no, no, yes, Plan::WorkLost),
            (no, yes, no, validate(false)),
            (no, yes, yes, validate(false)),
            (yes, no, no, validate(false)),
            (yes, no, yes, validate(false)),
            (yes, yes, no, validate(true)),
            (yes, yes, yes, validate(true)),
        ] {
            assert_eq!(decide(evidence(uncommitted, commits, checkpoints)), plan);
        }
        let holds = Evidence { checkpoint_holds: true, ..evidence(no, no, yes) };
        assert_eq!(decide(holds), Plan::Resume, "files reflect checkpoint progress");
    }

    #[test]
    fn rollback_needs_an_existing_base_commit() {
        for bits in 0..8 {
            let found = Evidence {
                base_exists: false,
                ..evidence(bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)
            };
            assert_eq!(decide(found), Plan::NoBase);
        }
    }

    #[test]
    fn a_commit_belongs_to_the_task_its_message_names() {
        let task = Task::new("task-001", "x");
        for (message, is) in [
            ("task-001: auth", true),
            ("[task-001] auth", true),
            ("Auth (task-001)", true),
            ("task-0011: other", false),
            ("subtask-001", false),
            ("auth", false),
        ] {
            assert_eq!(names(message, &task), is, "{message}");
        }
    }
}
