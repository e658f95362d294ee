//! The answers of the hook that asks for a review when all tasks are done.

use crate::task_list::document::{Status, TaskList};
use crate::task_list::session::hook::{Answer, Memory, unreadable};
use crate::task_list::stats::is_over;

/// Requests another reflection on the goal when all tasks are done, at most `most` times.
pub fn self_reflect(list: &TaskList, memory: &mut Memory, most: u32) -> Answer {
    if list.tasks.is_empty() || !is_over(list) || memory.reflections >= most {
        return Answer::Silent;
    }
    memory.reflections += 1;
    let failed = list.tasks.iter().filter(|task| task.status == Status::Failed).count();
    let mut text = format!(
        "Every task of the list has an outcome ({failed} of {} failed for good). Before you stop, \
         look back ({}/{}): does what is there meet what was originally asked for, and not only \
         the tasks' own checks? Is anything missing, untested, undocumented or left over? If so, \
         `muleteer tasks add` it and do it; if not, say so and stop.",
        list.tasks.len(),
        memory.reflections,
        most
    );
    if failed > 0 {
        text.push_str(" Report the failures and their reasons.");
    }
    Answer::Refuse(text)
}

/// Answers the reflection hook if the list cannot be read. It counts reflections, because the
/// session's `stop` counts its own rejections.
pub fn self_reflect_unreadable(memory: &mut Memory, most: u32, why: &str) -> Answer {
    if memory.reflections >= most {
        return Answer::Silent;
    }
    memory.reflections += 1;
    Answer::Refuse(unreadable(why))
}
