//! The prompt of an agent for a task. The function is pure, so that a snapshot shows the exact
//! text.

use crate::task_list::document::Task;
use crate::task_list::outcome::failure_diff;
use std::fmt::Write;

/// The facts that go into the prompt.
#[derive(Debug, Clone, Copy)]
pub struct Brief<'a> {
    pub task: &'a Task,
    /// The agent continues after the last checkpoint of an interrupted attempt.
    pub resumed: bool,
    /// The end of the validation's output before the first attempt, and whether it passed.
    pub before: Option<(&'a str, bool)>,
    /// The end of the validation's output after the last attempt.
    pub last: Option<&'a str>,
    /// The newest lines of the log.
    pub log: &'a str,
    /// The newest commits, one per line.
    pub commits: &'a str,
}

/// The most bytes of output that are quoted.
const QUOTED: usize = 6 * 1024;

pub fn prompt(brief: &Brief<'_>) -> String {
    let task = brief.task;
    let mut text = format!("# Task {}: {}\n", task.id, task.title.trim());
    if let Some(description) = &task.description {
        let _ = write!(text, "\n{}\n", description.trim());
    }
    let command = task.command.as_deref().unwrap_or("(none)");
    let _ = write!(
        text,
        "\nIt is done when this command exits 0 within {} s, run by the harness and not by you, \
         from the directory you are in:\n\n```sh\n{command}\n```\n",
        task.timeout()
    );
    match brief.before {
        Some((_, true)) => text.push_str(
            "\nIt passes already, before anything was done: so it proves little. Do what the task \
             asks all the same, and make sure of it in another way.\n",
        ),
        Some((output, false)) => {
            let _ =
                write!(text, "\nBefore any work on the task it failed with:\n\n{}", quote(output));
        }
        None => {}
    }
    attempts(&mut text, brief);
    if brief.resumed {
        text.push_str(
            "\nThe work was interrupted, and what was done is still there. Steps that were \
             recorded:\n\n",
        );
        for done in &task.checkpoints {
            let _ = writeln!(text, "- {done}");
        }
        text.push_str(
            "\nCheck the existing work first, then continue with the step after the last one.\n",
        );
    }
    let _ = write!(
        text,
        "\n## How\n\n- After each significant step: `muleteer tasks checkpoint {id} M/N \"what was \
         done\"`. If you die, the next worker has only these lines and your commits.\n- Commit as \
         you like, with `{id}` in each message; what you leave uncommitted is committed for you if \
         the validation passes. If it does not, everything since the beginning is rolled back.\n- \
         Work on this task only. Leave the harness-* files and .harness-active alone: the harness \
         keeps them, and decides by the command above whether the task is done.\n",
        id = task.id
    );
    if !brief.commits.trim().is_empty() {
        let _ = write!(text, "\n## The newest commits\n\n{}", quote(brief.commits));
    }
    if !brief.log.trim().is_empty() {
        let _ = write!(text, "\n## The end of the log\n\n{}", quote(brief.log));
    }
    text
}

fn attempts(text: &mut String, brief: &Brief<'_>) {
    let task = brief.task;
    if task.error_log.is_empty() && brief.last.is_none() {
        return;
    }
    let _ = write!(
        text,
        "\n## Attempt {} of {}\n\nWhat went wrong before:\n\n",
        task.attempts + 1,
        task.max_attempts
    );
    for error in task.error_log.iter().rev().take(5).rev() {
        let _ = writeln!(text, "- {error}");
    }
    let Some(last) = brief.last else { return };
    let _ = write!(text, "\nThe end of what the command printed then:\n\n{}", quote(last));
    let Some((before, false)) = brief.before else { return };
    let apart = failure_diff::tell(before, last);
    if !apart.old.is_empty() {
        text.push_str("\nThese also failed before the task started:\n\n");
        for line in &apart.old {
            let _ = writeln!(text, "- {line}");
        }
    }
    if !apart.new.is_empty() {
        text.push_str("\nThese did not, and came with the last attempt:\n\n");
        for line in &apart.new {
            let _ = writeln!(text, "- {line}");
        }
    }
}

/// Quotes the end of a text in a fence that the text cannot close.
fn quote(text: &str) -> String {
    let text = text.trim_end();
    let mut start = text.len().saturating_sub(QUOTED);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let cut = if start > 0 { "…" } else { "" };
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{cut}{}\n{fence}\n", &text[start..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_reads_like_this() {
        let mut task = Task::new("task-003", "Add OAuth providers");
        task.description = Some("Google and GitHub.".into());
        task.command = Some("npm test -- --testPathPattern=oauth".into());
        let brief = Brief {
            task: &task,
            resumed: false,
            before: Some(("2 failing: oauth\n", false)),
            last: None,
            log: "[2025-07-01T10:15:30Z] [SESSION-1] Completed [task-001] (commit abc1234)\n",
            commits: "abc1234 task-001: Implement user authentication\n",
        };
        insta::assert_snapshot!(prompt(&brief));
    }

    #[test]
    fn a_further_attempt_reads_like_this() {
        let mut task = Task::new("task-003", "Add OAuth providers");
        task.command = Some("npm test".into());
        task.attempts = 1;
        task.error_log = vec!["[TEST_FAIL] exit 1".into()];
        let brief = Brief {
            task: &task,
            resumed: false,
            before: Some(("FAIL slow.test.js\n", false)),
            last: Some("FAIL slow.test.js\nFAIL oauth.test.js\n```\n"),
            log: "",
            commits: "",
        };
        insta::assert_snapshot!(prompt(&brief));
    }

    #[test]
    fn resumed_task_prompt_has_its_checkpoints() {
        let mut task = Task::new("a", "A");
        let now = "2025-07-01T10:00:00Z".parse().expect("an instant");
        crate::task_list::outcome::checkpoint(&mut task, 1, 2, "half of it", None, now);
        let brief = Brief {
            task: &task,
            resumed: true,
            before: Some(("", true)),
            last: None,
            log: "",
            commits: "",
        };
        let text = prompt(&brief);
        assert!(text.contains("- 1/2: half of it") && text.contains("It passes already"), "{text}");
    }
}
