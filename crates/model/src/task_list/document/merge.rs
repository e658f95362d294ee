//! A three-way merge of two concurrent changes of a list: the harness's under the lock, and another
//! program's or a person's in the file. The result has all changes. If both changed the same field,
//! the harness's value wins, and the conflict is reported.

use crate::task_list::document::equivalence;
use crate::task_list::document::{TaskList, Unreadable};
use serde_json::{Map, Value};

/// The most conflicts that are listed; the whole text is saved anyway.
const NAMED: usize = 5;

#[derive(Debug)]
pub struct Merged {
    pub list: TaskList,
    /// The first conflicts, for example `tasks[task-001].title`.
    pub clashes: Vec<String>,
}

/// Merges the changes of `ours` and `theirs` since `base`.
///
/// # Errors
/// The result is not a valid list.
pub fn merge(base: &TaskList, ours: &TaskList, theirs: &TaskList) -> Result<Merged, Unreadable> {
    let mut merging = Merging { clashes: vec![] };
    let (base, ours, theirs) = (base.to_value(), ours.to_value(), theirs.to_value());
    let merged =
        merging.value(&mut vec![], Some(&base), Some(&ours), Some(&theirs)).unwrap_or(ours);
    let list = TaskList::parse(&merged.to_string())?;
    Ok(Merged { list, clashes: merging.clashes })
}

struct Merging {
    clashes: Vec<String>,
}

impl Merging {
    fn clash(&mut self, path: &[String]) {
        if self.clashes.len() < NAMED {
            self.clashes.push(path.concat().trim_start_matches('.').to_string());
        }
    }

    /// Merges one value; `None` means absent.
    fn value(
        &mut self,
        path: &mut Vec<String>,
        base: Option<&Value>,
        ours: Option<&Value>,
        theirs: Option<&Value>,
    ) -> Option<Value> {
        // A different spelling of the same value is not a change.
        let is_same = |one, other| {
            let key = path.last().and_then(|step| step.strip_prefix('.')).unwrap_or_default();
            one == other || equivalence::values(key, one, other)
        };
        if is_same(ours, base) {
            return theirs.cloned();
        }
        if is_same(theirs, base) || is_same(theirs, ours) {
            return ours.cloned();
        }
        let empty = (Value::Object(Map::new()), Value::Array(vec![]));
        match (ours, theirs) {
            (Some(Value::Object(ours)), Some(Value::Object(theirs))) => {
                let base = base.unwrap_or(&empty.0).as_object().unwrap_or(ours);
                Some(Value::Object(self.object(path, base, ours, theirs)))
            }
            (Some(Value::Array(ours)), Some(Value::Array(theirs))) => {
                let base = base.unwrap_or(&empty.1).as_array().map_or(&[][..], Vec::as_slice);
                if path.len() == 1 && path[0] == ".tasks" {
                    return Some(Value::Array(self.tasks(path, base, ours, theirs)));
                }
                // Both have only appended.
                if let (Some(new), Some(_)) = (theirs.strip_prefix(base), ours.strip_prefix(base)) {
                    return Some(Value::Array(ours.iter().chain(new).cloned().collect()));
                }
                self.clash(path);
                Some(Value::Array(ours.clone()))
            }
            _ => {
                self.clash(path);
                ours.or(theirs).cloned()
            }
        }
    }

    fn object(
        &mut self,
        path: &mut Vec<String>,
        base: &Map<String, Value>,
        ours: &Map<String, Value>,
        theirs: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut merged = Map::new();
        for key in theirs.keys().chain(ours.keys().filter(|key| !theirs.contains_key(*key))) {
            path.push(format!(".{key}"));
            if let Some(value) = self.value(path, base.get(key), ours.get(key), theirs.get(key)) {
                merged.insert(key.clone(), value);
            }
            path.pop();
        }
        merged
    }

    /// Merges tasks by their ids, in the order of `theirs`.
    fn tasks(
        &mut self,
        path: &mut Vec<String>,
        base: &[Value],
        ours: &[Value],
        theirs: &[Value],
    ) -> Vec<Value> {
        fn by_id(tasks: &[Value]) -> std::collections::HashMap<&str, &Value> {
            tasks.iter().filter_map(|task| Some((task.get("id")?.as_str()?, task))).collect()
        }
        let (was, our, their) = (by_id(base), by_id(ours), by_id(theirs));
        let id =
            |task: &Value| task.get("id").and_then(Value::as_str).unwrap_or_default().to_string();
        let added = ours.iter().filter(|task| !their.contains_key(id(task).as_str()));
        let mut merged = vec![];
        for task in theirs.iter().chain(added) {
            let id = id(task);
            let of = |tasks: &std::collections::HashMap<&str, &Value>| {
                tasks.get(id.as_str()).map(|task| (*task).clone())
            };
            path.push(format!("[{id}]"));
            merged.extend(self.value(
                path,
                of(&was).as_ref(),
                of(&our).as_ref(),
                of(&their).as_ref(),
            ));
            path.pop();
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::Status;
    use crate::task_list::Task;
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
        TaskList::parse(&list.to_text()).expect("a list")
    }

    #[test]
    fn merge_contains_changes_of_both_sides() {
        let base = list();
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        claim::claim(&mut ours, "a", "me", "abc", now(), claim::LEASE).expect("claimed");
        outcome::complete(&mut ours.tasks[1], now());
        ours.session_count = 4;
        ours.tasks.push(Task::new("e", "Ours"));
        theirs.tasks[0].title = "In other words".into();
        theirs.tasks.remove(2);
        theirs.tasks.insert(0, Task::new("d", "Theirs"));
        theirs.configure("max_sessions", json!(7));
        theirs.tasks[1].keep("estimate", json!("2h"));
        let merged = merge(&base, &ours, &theirs).expect("a list");
        assert_eq!(merged.clashes, [""; 0]);
        let list = merged.list;
        let ids: Vec<_> = list.tasks.iter().map(|task| (task.id.as_str(), task.status)).collect();
        let (pending, at_work, done) = (Status::Pending, Status::InProgress, Status::Completed);
        assert_eq!(ids, [("d", pending), ("a", at_work), ("b", done), ("e", pending)]);
        let a = list.get("a").expect("a");
        assert_eq!((a.title.as_str(), a.claimed_by.as_deref()), ("In other words", Some("me")));
        assert_eq!(a.unknown("estimate"), Some(&json!("2h")));
        assert_eq!((list.session_count, list.max_sessions), (4, Some(7)));
    }

    #[test]
    fn conflicting_field_keeps_the_harness_value_and_is_reported() {
        let base = list();
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        outcome::complete(&mut ours.tasks[0], now());
        outcome::fail(&mut theirs.tasks[0], crate::task_list::Category::TestFail, "x", now());
        // A task that one side changed is not removed by the other.
        outcome::checkpoint(&mut ours.tasks[1], 1, 2, "half", None, now());
        theirs.tasks.remove(1);
        let merged = merge(&base, &ours, &theirs).expect("a list");
        assert_eq!(merged.clashes, ["tasks[a].status", "tasks[b]"]);
        assert_eq!(merged.list.get("a").expect("a").status, Status::Completed);
        assert_eq!(merged.list.get("b").expect("b").checkpoints.len(), 1);
    }

    #[test]
    fn lists_appended_by_both_sides_are_joined() {
        let base = list();
        let (mut ours, mut theirs) = (base.clone(), base.clone());
        ours.tasks[0].depends_on = vec!["b".into()];
        theirs.tasks[0].depends_on = vec!["c".into()];
        let merged = merge(&base, &ours, &theirs).expect("a list");
        assert_eq!(
            (merged.list.tasks[0].depends_on.join(" "), merged.clashes.len()),
            ("b c".into(), 0)
        );
    }

    #[test]
    fn reformatting_is_not_a_conflict() {
        let mut base = list();
        base.tasks[0].claimed_by = Some("w".into());
        outcome::fail(&mut base.tasks[1], crate::task_list::Category::TestFail, "x", now());
        let base = TaskList::parse(&base.to_text()).expect("a list");
        let mut ours = base.clone();
        outcome::complete(&mut ours.tasks[0], now());
        outcome::complete(&mut ours.tasks[1], now());
        ours.session_count = 3;
        let text = base
            .to_text()
            .replace("\"attempts\": 1", "\"attempts\": 1.0")
            .replace("10:00:00Z", "10:00:00.5Z");
        let mut theirs = TaskList::parse(&text.replace("\"attempts\": 0,", "")).expect("a list");
        theirs.tasks[0].keep("estimate", json!("2h"));
        let merged = merge(&base, &ours, &theirs).expect("a list");
        assert_eq!(merged.clashes, [""; 0]);
        assert!(merged.list.tasks[..2].iter().all(|task| task.status == Status::Completed));
        assert_eq!(merged.list.tasks[0].unknown("estimate"), Some(&json!("2h")));
    }

    #[test]
    fn same_change_on_both_sides_is_merged_once() {
        let base = list();
        let mut ours = base.clone();
        outcome::complete(&mut ours.tasks[0], now());
        let merged = merge(&base, &ours, &ours.clone()).expect("a list");
        assert_eq!((merged.list.to_text(), merged.clashes.len()), (ours.to_text(), 0));
    }
}
