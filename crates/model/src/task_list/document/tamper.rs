//! Detects and reverts changes to a list by other programs while a session holds its lock. An agent
//! could write `completed` into the file, or an easier validation. Until the session ends, only its
//! holder may change the state of tasks and how they are judged, so these fields are restored and
//! reported. Changed titles, descriptions and priorities stay, and are reported too.

use crate::task_list::TASKS;
use crate::task_list::document::equivalence;
use crate::task_list::document::{Status, Task, TaskList};
use crate::task_list::log::Doings;
use std::collections::HashMap;

/// A report about one task, or about the list itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overwritten {
    pub task: Option<String>,
    pub text: String,
}

/// Returns the changed fields that only the harness may set.
pub(in crate::task_list) fn standing(found: &Task, kept: &Task) -> Vec<&'static str> {
    named([
        ("status", found.status == kept.status),
        ("claimed_by", equivalence::texts(found.claimed_by.as_deref(), kept.claimed_by.as_deref())),
        (
            "started_at_commit",
            equivalence::texts(
                found.started_at_commit.as_deref(),
                kept.started_at_commit.as_deref(),
            ),
        ),
        ("attempts", found.attempts == kept.attempts),
        ("error_log", found.error_log == kept.error_log),
        (
            "completed_at",
            equivalence::texts(found.completed_at.as_deref(), kept.completed_at.as_deref()),
        ),
        ("failed_at", equivalence::instants(found.failed_at, kept.failed_at)),
    ])
}

pub(in crate::task_list) fn restore_standing(task: &mut Task, kept: &Task) {
    task.status = kept.status;
    task.claimed_by.clone_from(&kept.claimed_by);
    task.started_at_commit.clone_from(&kept.started_at_commit);
    task.attempts = kept.attempts;
    task.error_log.clone_from(&kept.error_log);
    task.completed_at.clone_from(&kept.completed_at);
    task.failed_at = kept.failed_at;
}

/// Returns the changed fields of the validation.
pub(in crate::task_list) fn validation(found: &Task, kept: &Task) -> Vec<&'static str> {
    named([
        ("validation.command", found.command == kept.command),
        ("validation.timeout_seconds", found.timeout() == kept.timeout()),
    ])
}

/// Returns the changed fields that decide how and when a task is judged.
fn terms(found: &Task, kept: &Task) -> Vec<&'static str> {
    let mut all = validation(found, kept);
    all.extend(named([
        ("max_attempts", found.max_attempts == kept.max_attempts),
        ("on_failure.cleanup", found.cleanup == kept.cleanup),
        ("depends_on", equivalence::sets(&found.depends_on, &kept.depends_on)),
    ]));
    all
}

fn restore_terms(task: &mut Task, kept: &Task) {
    task.command.clone_from(&kept.command);
    task.timeout_seconds = kept.timeout_seconds;
    task.max_attempts = kept.max_attempts;
    task.cleanup.clone_from(&kept.cleanup);
    task.depends_on.clone_from(&kept.depends_on);
}

fn words(found: &Task, kept: &Task) -> Vec<&'static str> {
    named([
        ("title", found.title == kept.title),
        (
            "description",
            equivalence::texts(found.description.as_deref(), kept.description.as_deref()),
        ),
        ("priority", found.priority == kept.priority),
    ])
}

fn named<const N: usize>(fields: [(&'static str, bool); N]) -> Vec<&'static str> {
    fields.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// Restores the fields that differ from the list that the session wrote last. Returns the reports.
pub fn put_back(list: &mut TaskList, written: &TaskList) -> Vec<Overwritten> {
    let mut said = vec![];
    if list.restore_session(written) {
        let text = format!(
            "session_config or session_count in {TASKS} was changed while a run used the list: the \
             run restored them"
        );
        said.push(Overwritten { task: None, text });
    }
    let known: HashMap<_, _> = written.tasks.iter().map(|task| (task.id.as_str(), task)).collect();
    for task in &mut list.tasks {
        let texts = match known.get(task.id.as_str()) {
            Some(kept) => put_back_task(task, kept),
            None => begin_anew(task).into_iter().collect(),
        };
        said.extend(
            texts.into_iter().map(|text| Overwritten { task: Some(task.id.clone()), text }),
        );
    }
    let found: std::collections::HashSet<_> =
        list.tasks.iter().map(|task| task.id.clone()).collect();
    for (at, gone) in written.tasks.iter().enumerate().filter(|(_, task)| !found.contains(&task.id))
    {
        list.tasks.insert(at.min(list.tasks.len()), gone.clone());
        let text =
            format!("it was removed from {TASKS} while a run used the list: the run restored it");
        said.push(Overwritten { task: Some(gone.id.clone()), text });
    }
    said
}

/// Returns the tasks that are completed in `list` and were not in `known`.
pub fn newly_completed(list: &TaskList, known: &TaskList) -> Vec<String> {
    let open: HashMap<_, _> =
        known.tasks.iter().map(|task| (task.id.as_str(), task.status)).collect();
    let is_new = |task: &&Task| {
        open.get(task.id.as_str()).is_some_and(|status| *status != Status::Completed)
    };
    let completed = list.tasks.iter().filter(|task| task.status == Status::Completed);
    completed.filter(is_new).map(|task| task.id.clone()).collect()
}

/// Reverts completions that nobody made, in a list that others may change too. A worker that
/// completes a task has claimed it before, and both are in the log. A completion that is not in the
/// log, of a task that no other worker had claimed, is reverted to its state in `known`. `log` has
/// the entries since then, and `is_ours` returns whether a worker belongs to the run.
pub fn put_back_beside(
    list: &mut TaskList,
    known: &TaskList,
    log: &Doings,
    is_ours: impl Fn(&str) -> bool,
) -> Vec<Overwritten> {
    let mut said = vec![];
    for id in newly_completed(list, known).into_iter().filter(|id| !log.completed.contains(id)) {
        let (Some(task), Some(kept)) = (list.get_mut(&id), known.get(&id)) else { continue };
        let by = kept.claimed_by.as_deref().filter(|_| kept.status == Status::InProgress);
        let somebody = kept.status == Status::InProgress && !by.is_some_and(&is_ours);
        let text = if somebody || log.begun.contains(&id) {
            let by = by.filter(|_| somebody).unwrap_or("the worker that claimed it");
            format!(
                "it is completed in {TASKS} without a line in the log: it stays completed, because \
                 only {by} can know"
            )
        } else {
            let fields = standing(task, kept).join(", ");
            restore_standing(task, kept);
            task.lease_expires_at = task.lease_expires_at.max(kept.lease_expires_at);
            format!(
                "its {fields} in {TASKS} changed without a claim and without a line in the log: \
                 the harness restored them; its validation decides"
            )
        };
        said.push(Overwritten { task: Some(id), text });
    }
    said
}

fn put_back_task(task: &mut Task, kept: &Task) -> Vec<String> {
    let changed = |fields: &[&str], then: &str| {
        let fields = fields.join(", ");
        format!("its {fields} in {TASKS} changed while a run used the list: {then}")
    };
    let mut said = vec![];
    let fields = standing(task, kept);
    if !fields.is_empty() {
        let is_lost = task.status == Status::Pending
            && task.claimed_by.is_none()
            && kept.status == Status::InProgress;
        restore_standing(task, kept);
        said.push(match is_lost {
            // The list was restored from a backup that is older than the claim.
            true => "the list no longer said that it was in progress".to_string(),
            false => changed(
                &fields,
                "only the harness sets these, so it restored them; its validation decides",
            ),
        });
    }
    let fields = terms(task, kept);
    if !fields.is_empty() {
        restore_terms(task, kept);
        said.push(changed(
            &fields,
            "the run restored them; change them with `muleteer tasks edit` when no run uses the \
             list",
        ));
    }
    let fields = words(task, kept);
    if !fields.is_empty() {
        said.push(changed(&fields, "the change stays"));
    }
    said
}

/// Resets a task that was added with a state of its own.
fn begin_anew(task: &mut Task) -> Option<String> {
    let fresh = Task::new(task.id.clone(), "");
    let fields = standing(task, &fresh);
    if fields.is_empty() {
        return None;
    }
    restore_standing(task, &fresh);
    let fields = fields.join(", ");
    Some(format!(
        "it was added to {TASKS} with {fields} set while a run used the list: it is pending, and \
         its validation decides"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::outcome;
    use crate::task_list::session::claim;
    use jiff::Timestamp;
    use serde_json::json;

    fn now() -> Timestamp {
        "2025-07-01T10:00:00Z".parse().expect("an instant")
    }

    fn list() -> TaskList {
        let mut list = TaskList::new(now());
        list.tasks = ["a", "b", "c"].map(|id| Task::new(id, id)).into();
        list.tasks[1].command = Some("make test".into());
        list.tasks[2].depends_on = vec!["b".into()];
        claim::claim(&mut list, "a", "me", "abc", now(), claim::LEASE).expect("claimed");
        TaskList::parse(&list.to_text()).expect("a list")
    }

    #[test]
    fn changed_definition_validation_and_status_are_restored() {
        let written = list();
        let mut found = written.clone();
        assert_eq!(put_back(&mut found, &written), []);
        // A task's status, a validation, a dependency, and the session's settings.
        outcome::complete(&mut found.tasks[1], now());
        found.tasks[0].command = Some("true".into());
        found.tasks[0].max_attempts = 99;
        found.tasks[2].depends_on.clear();
        found.configure("max_tasks_per_session", json!(1000));
        let mut found = TaskList::parse(&found.to_text()).expect("a list");
        let said = put_back(&mut found, &written);
        let told: Vec<_> =
            said.iter().map(|one| (one.task.as_deref(), one.text.as_str())).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        for (task, fields) in [
            (None, "session_config"),
            (Some("a"), "its validation.command, max_attempts in harness-tasks.json"),
            (Some("b"), "its status, attempts, completed_at in harness-tasks.json"),
            (Some("c"), "its depends_on in"),
        ] {
            assert!(
                told.iter().any(|(of, text)| *of == task && text.contains(fields)),
                "{task:?}: {told:?}"
            );
        }
        assert_eq!(found.to_text(), written.to_text());
        assert_eq!(
            (found.max_tasks_per_session, found.mode),
            (written.max_tasks_per_session, written.mode)
        );
    }

    #[test]
    fn only_the_claiming_worker_completes_a_task_of_a_concurrent_list() {
        let mut known = list();
        known.tasks[2].depends_on.clear();
        known.tasks.extend(["d", "e"].map(|id| Task::new(id, id)));
        claim::claim(&mut known, "c", "theirs", "abc", now(), claim::LEASE).expect("claimed");
        let mut found = known.clone();
        found.tasks.iter_mut().for_each(|task| outcome::complete(task, now()));
        found.tasks.push(Task::new("f", "F"));
        outcome::complete(&mut found.tasks[5], now());
        let log = "[2025-07-01T10:00:00Z] [SESSION-1] Starting [d] d (base=abc)\n\
                   [2025-07-01T10:00:00Z] [SESSION-1] Starting [e] e (base=abc)\n\
                   [2025-07-01T10:00:00Z] [SESSION-1] Completed [e] (commit abc1234)\n";
        let said =
            put_back_beside(&mut found, &known, &Doings::of(log.lines()), |worker| worker == "me");
        let stands: Vec<_> = found.tasks.iter().map(|task| task.status).collect();
        let (pending, at_work, done) = (Status::Pending, Status::InProgress, Status::Completed);
        assert_eq!(stands, [at_work, pending, done, done, done, done]);
        assert_eq!(found.tasks[0].lease_expires_at, known.tasks[0].lease_expires_at);
        let told: Vec<_> = said
            .iter()
            .map(|one| (one.task.as_deref().unwrap_or_default(), one.text.as_str()))
            .collect();
        assert_eq!(told.iter().map(|(task, _)| *task).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert!(
            told[1]
                .1
                .starts_with("its status, attempts, completed_at in harness-tasks.json changed")
        );
        assert!(
            told[2].1.ends_with("because only theirs can know")
                && told[3].1.contains("only the worker that claimed it")
        );
    }

    /// Returns the list as an equivalent file of another tool: keys in another order, numbers with
    /// a decimal point, instants with fractions and offsets, defaults omitted or explicit, and
    /// unknown fields.
    fn rewritten(list: &TaskList) -> TaskList {
        fn turn(value: &serde_json::Value) -> serde_json::Value {
            use serde_json::Value;
            match value {
                Value::Object(map) => Value::Object(
                    map.iter().rev().map(|(key, value)| (key.clone(), turn(value))).collect(),
                ),
                Value::Array(all) => all.iter().map(turn).collect(),
                Value::Number(number) => json!(number.as_f64()),
                Value::String(text) if text.ends_with(":00Z") => {
                    json!(text.replace(":00Z", ":00.250+00:00"))
                }
                other => other.clone(),
            }
        }
        let mut value = turn(&list.to_value());
        value["session_config"]["save_ignored"] = json!([]);
        value["session_config"]["theme"] = json!("dark");
        for task in value["tasks"].as_array_mut().expect("tasks") {
            task["validation"]["timeout_seconds"] = json!(null);
            task["estimate"] = json!("2h");
            if let Some(depends_on) = task["depends_on"].as_array_mut() {
                depends_on.reverse();
            }
            let task = task.as_object_mut().expect("a task");
            task.retain(|_, value| {
                !(value.is_null() || *value == json!([]) || *value == json!(0.0))
            });
        }
        let text = value.to_string().replace("Do", "\\u0044o");
        TaskList::parse(&text).expect("a list")
    }

    #[test]
    fn reformatted_list_is_not_tampering() {
        let mut written = list();
        written.tasks.extend([
            Task::new("d", "Do d"),
            Task::new("e", "Do e"),
            Task::new("f", "Do f"),
        ]);
        written.tasks[2].depends_on = vec!["b".into(), "d".into()];
        written.tasks[5].depends_on = vec!["f".into()];
        outcome::complete(&mut written.tasks[3], now());
        outcome::fail(&mut written.tasks[4], crate::task_list::Category::TestFail, "é", now());
        let late = "2025-07-01T10:00:00.75Z".parse().expect("an instant");
        assert_eq!(crate::task_list::select::validate_dependencies(&mut written, late).len(), 1);
        let mut found = rewritten(&written);
        assert_eq!(put_back(&mut found, &written), []);
        assert_eq!(found.to_value()["session_config"]["theme"], "dark");
        assert_eq!(found.get("a").and_then(|task| task.unknown("estimate")), Some(&json!("2h")));
        let begun = written.get("a").expect("a").clone();
        assert!(claim::is_kept(&found, &begun, "me"));
        assert_eq!(claim::put_back(&mut found, &begun, "me", now()), Ok(vec![]));
        // The list survives a round trip through its text.
        let mut again = TaskList::parse(&written.to_text()).expect("a list");
        assert_eq!(put_back(&mut again, &written), []);
        assert_eq!(
            again.get("f").map(|task| task.failed_at),
            written.get("f").map(|task| task.failed_at)
        );
        // Real changes are still detected.
        let mut found = rewritten(&written);
        found.tasks[4].attempts = 0;
        found.configure("max_sessions", json!(7.0));
        let said = put_back(&mut found, &written);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(found.max_sessions, written.max_sessions);
        assert_eq!(
            found.to_value()["session_config"]["theme"],
            "dark",
            "a field of somebody else's stays"
        );
    }

    #[test]
    fn agent_may_change_checkpoints_leases_and_texts() {
        let written = list();
        let mut found = written.clone();
        outcome::checkpoint(&mut found.tasks[0], 1, 2, "half", None, now());
        claim::renew(&mut found, "a", "me", now(), 3 * claim::LEASE).expect("renewed");
        found.tasks.push(Task::new("d", "found on the way"));
        let before = found.clone();
        assert_eq!(put_back(&mut found, &written), []);
        assert_eq!(found, before);
        found.tasks[0].title = "In other words".into();
        let said = put_back(&mut found, &written);
        assert!(said.len() == 1 && said[0].text.ends_with("the change stays"), "{said:?}");
        assert_eq!(found.tasks[0].title, "In other words");
    }

    #[test]
    fn removed_task_is_restored_and_added_task_is_pending() {
        let written = list();
        let mut found = written.clone();
        found.tasks.remove(1);
        let mut done = Task::new("d", "D");
        outcome::complete(&mut done, now());
        found.tasks.push(done);
        let said = put_back(&mut found, &written);
        let of: Vec<_> = said.iter().map(|one| one.task.as_deref()).collect();
        assert_eq!(of, [Some("d"), Some("b")], "{said:?}");
        let ids: Vec<_> = found.tasks.iter().map(|task| (task.id.as_str(), task.status)).collect();
        let (pending, at_work) = (Status::Pending, Status::InProgress);
        assert_eq!(ids, [("a", at_work), ("b", pending), ("c", pending), ("d", pending)]);
    }
}
