//! Imports other kinds of lists: beads' `issues.jsonl`, and Markdown checklists.

use crate::beads::foreign::other_record;
use crate::task_list::document::{Status, Task, TaskList, valid_id};
use crate::task_list::outcome;
use crate::task_list::select;
use crate::text::bom::unmarked;
use crate::text::foreign_json;
use crate::text::markdown_fence::Fence;
use jiff::Timestamp;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A line that cannot be imported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct BadLine {
    pub line: u64,
    pub message: String,
}

/// Parses the tasks of either kind of text. The tasks of a checklist are numbered from `first`.
///
/// # Errors
/// As [`beads`].
pub fn tasks(text: &str, first: u64, now: Timestamp) -> Result<Vec<Task>, BadLine> {
    let text = unmarked(text);
    if is_jsonl(text) { beads(text, now) } else { Ok(checklist(text, first, now)) }
}

/// Returns whether a text is `issues.jsonl` rather than Markdown: its first line is an object.
pub fn is_jsonl(text: &str) -> bool {
    unmarked(text).trim_start().starts_with('{')
}

/// Parses beads. Children of epics and dependencies of kind `blocks` become dependencies. Closed
/// beads become completed tasks.
///
/// # Errors
/// The first line that is not a bead, or that repeats an id.
pub fn beads(text: &str, now: Timestamp) -> Result<Vec<Task>, BadLine> {
    let mut tasks = vec![];
    let mut seen = HashMap::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    // Records that are not issues, such as memories, are no tasks.
    for (at, line) in lines.filter(|(_, line)| other_record(line).is_none()) {
        let bad = |message: &str| BadLine { line: at as u64 + 1, message: message.into() };
        let bead: Value =
            foreign_json::typed(line.as_bytes()).map_err(|error| bad(&error.to_string()))?;
        let text = |key: &str| bead.get(key).and_then(Value::as_str).map(String::from);
        let id = text("id").filter(|id| valid_id(id)).ok_or_else(|| bad("it has no valid `id`"))?;
        if let Some(before) = seen.insert(id.clone(), at + 1) {
            return Err(bad(&format!(
                "`{id}` is also the id of line {before}: keep one of the two"
            )));
        }
        // Beads keeps deleted beads as markers for other clones.
        if text("status").as_deref() == Some("tombstone") {
            continue;
        }
        let mut task = Task::new(id, text("title").ok_or_else(|| bad("it has no `title`"))?);
        task.description = text("description").filter(|text| !text.is_empty());
        task.priority = match bead.get("priority").filter(|level| !level.is_null()) {
            None => 2,
            Some(level) => match level.as_u64().and_then(|level| u32::try_from(level).ok()) {
                Some(level @ 0..=4) => level,
                _ => return Err(bad("its `priority` is not from 0 to 4")),
            },
        };
        let needs = bead.get("dependencies").and_then(Value::as_array).into_iter().flatten();
        task.depends_on = needs
            .filter(|need| {
                need.get("type").and_then(Value::as_str).is_none_or(|kind| kind == "blocks")
            })
            .filter_map(|need| need.get("depends_on_id").and_then(Value::as_str).map(String::from))
            .collect();
        if matches!(text("status").as_deref(), Some("closed" | "done")) {
            outcome::complete(&mut task, now);
            task.completed_at = text("closed_at").or(task.completed_at);
        }
        tasks.push(task);
    }
    Ok(tasks)
}

/// Parses items such as `- [ ] Title` or `1. [ ] Title`; ticked ones are completed. Items indented
/// below another must be done before it. Other indented lines describe it. A code span `` `…` ``
/// after "validate:" is its validation. Fenced blocks contain no items.
pub fn checklist(text: &str, first: u64, now: Timestamp) -> Vec<Task> {
    let mut tasks: Vec<Task> = vec![];
    let mut open: Vec<(usize, usize)> = vec![];
    // With the indentation of the item that contains it.
    let mut fenced: Option<(Fence, Option<usize>)> = None;
    for line in text.lines() {
        let body = line.trim_start();
        let indent = line.len() - body.len();
        // A block within an item ends with the item.
        if !body.is_empty()
            && fenced.is_some_and(|(_, within)| within.is_some_and(|above| indent <= above))
        {
            fenced = None;
        }
        let about = open.last().filter(|(above, _)| indent > *above && !body.is_empty());
        if let Some((fence, _)) = fenced {
            if let Some((_, at)) = about {
                add_words(&mut tasks[*at], body);
            }
            if fence.is_closed_by(body) {
                fenced = None;
            }
            continue;
        }
        if let Some(fence) = Fence::opened_by(body) {
            if let Some((_, at)) = about {
                add_words(&mut tasks[*at], body);
            }
            fenced = Some((fence, about.map(|(above, _)| *above)));
            continue;
        }
        let Some((done, title)) = item(body) else {
            if let Some((_, at)) = about {
                describe(&mut tasks[*at], body);
            }
            continue;
        };
        open.retain(|(above, _)| *above < indent);
        let mut task = Task::new(format!("task-{:03}", first + tasks.len() as u64), title);
        if done {
            outcome::complete(&mut task, now);
        }
        if let Some((_, parent)) = open.last() {
            let id = task.id.clone();
            tasks[*parent].depends_on.push(id);
        }
        open.push((indent, tasks.len()));
        tasks.push(task);
    }
    tasks
}

fn item(line: &str) -> Option<(bool, &str)> {
    let unnumbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let ends: &[char] = if unnumbered.len() < line.len() { &['.', ')'] } else { &['-', '*', '+'] };
    let rest = unnumbered.strip_prefix(ends)?.trim_start().strip_prefix('[')?;
    let (mark, title) = rest.split_once(']')?;
    let done = match mark {
        " " | "" => false,
        "x" | "X" => true,
        _ => return None,
    };
    Some((done, title.trim())).filter(|(_, title)| !title.is_empty())
}

fn describe(task: &mut Task, line: &str) {
    if let Some(command) = line
        .to_ascii_lowercase()
        .find("validate:")
        .map(|at| line[at + "validate:".len()..].trim())
    {
        task.command =
            Some(command.trim_matches('`').trim().to_string()).filter(|text| !text.is_empty());
        return;
    }
    add_words(task, line);
}

fn add_words(task: &mut Task, line: &str) {
    let description = task.description.get_or_insert_default();
    if !description.is_empty() {
        description.push('\n');
    }
    description.push_str(line);
}

/// The result of adding tasks to a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Merged {
    /// The ids of the added tasks.
    pub added: Vec<String>,
    /// The number of tasks whose ids existed already.
    pub skipped: usize,
    /// Dependencies on ids that are neither in the list nor in the file.
    pub dropped: Vec<Dropped>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    pub task: String,
    pub depends_on: String,
}

/// A dependency cycle. None of its tasks could ever begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{task}` would depend on itself: {way}")]
pub struct Circle {
    pub task: String,
    pub way: String,
}

/// Adds the tasks with new ids to a list.
///
/// # Errors
/// The first task on a dependency cycle; the list is then unchanged.
pub fn merge(list: &mut TaskList, tasks: Vec<Task>) -> Result<Merged, Circle> {
    let known: HashSet<_> = list.tasks.iter().map(|task| task.id.clone()).collect();
    let (old, mut new): (Vec<_>, Vec<_>) =
        tasks.into_iter().partition(|task| known.contains(&task.id));
    let ids: Vec<_> = new.iter().map(|task| task.id.clone()).collect();
    let mut dropped = vec![];
    let arriving: HashSet<_> = ids.iter().cloned().collect();
    for task in &mut new {
        // Unknown ids count as done.
        let is_there = |id: &String| known.contains(id) || arriving.contains(id);
        let gone = task.depends_on.iter().filter(|id| !is_there(id));
        dropped.extend(gone.map(|id| Dropped { task: task.id.clone(), depends_on: id.clone() }));
        task.depends_on.retain(is_there);
    }
    let before = list.tasks.len();
    list.tasks.extend(new);
    // No older task depends on a new one.
    if let Some((at, way)) = select::first_circle(list, before) {
        let task = list.tasks[at].id.clone();
        list.tasks.truncate(before);
        return Err(Circle { task, way });
    }
    Ok(Merged { added: ids, skipped: old.len(), dropped })
}

/// Returns the line of `issues.jsonl` that has an id.
pub fn line_of(text: &str, id: &str) -> Option<u64> {
    let is_it = |line: &str| {
        foreign_json::whole(line.as_bytes())
            .is_ok_and(|bead| bead.get("id").and_then(Value::as_str) == Some(id))
    };
    unmarked(text).lines().zip(1..).find(|(line, _)| is_it(line)).map(|(_, at)| at)
}

/// Returns the number of a checklist's first task.
pub fn first_number(list: &TaskList) -> u64 {
    list.next_id().rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Returns the number of open tasks, for people.
pub fn open(tasks: &[Task]) -> usize {
    tasks.iter().filter(|task| task.status != Status::Completed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_fenced_block_nothing_is_an_item() {
        let text = "- [ ] One\n  ```sh\n  - [ ] no\n  validate: `no`\n  ```\n  validate: `true`\
                    \n```\n- [ ] no\n~~~\n```\n\
                    - [ ] Two\n  ~~~~ md\n  - [x] no\n  ~~~\n- [ ] Three\n```inline``` words\
                    \n- [ ] Four\n~~~\n- [ ] no\n";
        let tasks = checklist(text, 1, Timestamp::UNIX_EPOCH);
        let titles: Vec<_> = tasks.iter().map(|task| task.title.as_str()).collect();
        assert_eq!(titles, ["One", "Two", "Three", "Four"]);
        assert_eq!(tasks[0].command.as_deref(), Some("true"));
        assert_eq!(tasks[0].description.as_deref(), Some("```sh\n- [ ] no\nvalidate: `no`\n```"));
    }

    #[test]
    fn a_circle_is_refused_and_leaves_the_list_as_it_was() {
        let needs = |id: &str, on: &str| {
            format!(
                "{{\"id\":\"{id}\",\"title\":\"x\",\
                 \"dependencies\":[{{\"depends_on_id\":\"{on}\"}}]}}\n"
            )
        };
        let mut list = TaskList::new(now());
        list.tasks.push(Task::new("there", "There"));
        for (text, task, line, way) in [
            (needs("a", "there") + &needs("b", "c") + &needs("c", "b"), "b", 2, "b -> c -> b"),
            (needs("x", "a") + "\n" + &needs("y", "y"), "y", 3, "y -> y"),
        ] {
            let circle =
                merge(&mut list, beads(&text, now()).expect("beads")).expect_err("a circle");
            assert_eq!(
                (circle.task.as_str(), circle.way.as_str(), line_of(&text, task)),
                (task, way, Some(line))
            );
            assert_eq!(list.tasks.len(), 1);
        }
    }

    #[test]
    fn a_byte_order_mark_costs_no_item() {
        for text in [
            "- [ ] One\n- [ ] Two\n",
            "{\"id\":\"a\",\"title\":\"One\"}\n{\"id\":\"b\",\"title\":\"Two\"}\n",
        ] {
            let read = |text: &str| {
                tasks(text, 1, now())
                    .map(|all| all.into_iter().map(|task| task.title).collect::<Vec<_>>())
            };
            assert_eq!(read(&format!("\u{feff}{text}")), Ok(vec!["One".to_string(), "Two".into()]));
            assert_eq!(read(&format!("\u{feff}{text}")), read(text));
        }
    }

    fn now() -> Timestamp {
        "2025-07-01T10:00:00Z".parse().expect("an instant")
    }

    #[test]
    fn beads_become_tasks_with_their_dependencies() {
        let text = concat!(
            r#"{"id":"bd-1","title":"One","status":"closed","priority":0,"#,
            r#""closed_at":"2025-06-01T00:00:00Z"}"#,
            "\n",
            r#"{"id":"bd-2","title":"Two","description":"More","status":"open","priority":3,"#,
            r#""dependencies":[{"issue_id":"bd-2","depends_on_id":"bd-1","type":"blocks"},"#,
            r#"{"depends_on_id":"bd-9","type":"blocks"},"#,
            r#"{"depends_on_id":"bd-1","type":"related"}]}"#,
            "\n",
        );
        assert!(is_jsonl(text));
        let tasks = beads(text, now()).expect("beads");
        assert_eq!(
            (tasks[0].status, tasks[0].completed_at.as_deref()),
            (Status::Completed, Some("2025-06-01T00:00:00Z"))
        );
        assert_eq!(tasks[1].priority, 3);
        let mut list = TaskList::new(now());
        let merged = merge(&mut list, tasks).expect("no circle");
        assert_eq!(list.tasks[1].depends_on, ["bd-1"], "bd-9 is in no file that we know");
        assert_eq!(merged.dropped, [Dropped { task: "bd-2".into(), depends_on: "bd-9".into() }]);
        let text = concat!(
            r#"{"id":"bd-3","title":"Three","dependencies":[{"depends_on_id":"bd-2","#,
            r#""type":"blocks"}]}"#,
        );
        assert_eq!(
            merge(&mut list, beads(text, now()).expect("beads")).map(|merged| merged.dropped),
            Ok(vec![])
        );
        assert_eq!(list.tasks[2].depends_on, ["bd-2"], "it came with another file");
        let error =
            beads("{\"id\":\"a\",\"title\":\"A\"}\n{\"id\":3}\n", now()).expect_err("no bead");
        assert_eq!(error.line, 2);
        let deleted = "{\"id\":\"a\",\"title\":\"A\",\"status\":\"tombstone\"}\
                       \n{\"id\":\"b\",\"title\":\"B\"}\n";
        let ids: Vec<_> =
            beads(deleted, now()).expect("beads").into_iter().map(|task| task.id).collect();
        assert_eq!(ids, ["b"], "what was deleted there is no task here");
        let others = "{\"_type\":\"memory\",\"key\":\"k\",\"value\":\"v\"}\
                      \n{\"_type\":\"issue\",\"id\":\"a\",\"title\":\"A\",\"status\":\"done\"}\n";
        let read = beads(others, now()).expect("beads");
        assert_eq!(
            read.iter().map(|task| (task.id.as_str(), task.status)).collect::<Vec<_>>(),
            [("a", Status::Completed)],
            "a memory is no task, and what is done there is done"
        );
        for priority in ["5", "-1", "\"high\""] {
            let odd = format!("{{\"id\":\"a\",\"title\":\"A\",\"priority\":{priority}}}\n");
            assert_eq!(beads(&odd, now()).expect_err("an odd priority").line, 1, "{priority}");
        }
    }

    /// A list with a duplicate id once became unreadable. A merge of two branches creates such
    /// files.
    #[test]
    fn duplicate_id_is_rejected_with_its_line() {
        let text = "{\"id\":\"a\",\"title\":\"A\"}\n\n{\"id\":\"b\",\"title\":\"B\"}\
                    \n{\"id\":\"a\",\"title\":\"A\"}\n";
        let error = beads(text, now()).expect_err("twice");
        assert_eq!((error.line, error.message.contains("line 1")), (4, true), "{error}");
    }

    #[test]
    fn checklist_items_depend_on_items_below_them() {
        let text = "# Plan\n\n- [ ] Ship it\n  - [x] Write it\n  - [ ] Test it\
                    \n    on two machines\n    validate: `make test`\n* [ ] Celebrate\n- no box\
                    \n2026. a year\n12) [x] Sleep\n1.[ ] Wake\n3 [ ] none\n";
        let tasks = checklist(text, 7, now());
        let said: Vec<_> =
            tasks.iter().map(|task| (task.id.as_str(), task.title.as_str(), task.status)).collect();
        assert_eq!(
            said,
            [
                ("task-007", "Ship it", Status::Pending),
                ("task-008", "Write it", Status::Completed),
                ("task-009", "Test it", Status::Pending),
                ("task-010", "Celebrate", Status::Pending),
                ("task-011", "Sleep", Status::Completed),
                ("task-012", "Wake", Status::Pending),
            ]
        );
        assert_eq!(tasks[0].depends_on, ["task-008", "task-009"]);
        assert_eq!(
            (tasks[2].command.as_deref(), tasks[2].description.as_deref()),
            (Some("make test"), Some("on two machines"))
        );
        let mut list = TaskList::new(now());
        assert_eq!(merge(&mut list, tasks.clone()).map(|merged| merged.skipped), Ok(0));
        assert_eq!(merge(&mut list, tasks), Ok(Merged { skipped: 6, ..Merged::default() }));
    }
}
