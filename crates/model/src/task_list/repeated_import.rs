//! Finds the items of a checklist that an earlier import has added. A checklist gives its items no
//! ids, so they are recognized by their titles and by the items that contain them.

use crate::task_list::document::{Task, TaskList};
use std::collections::{HashMap, HashSet};

/// Returns the items that are new to the list, numbered from `first`, and the number of the others.
/// An item within another one is known only if that one is, and depends on it. A new item depends
/// on known ones as their tasks.
pub fn new_items(list: &TaskList, items: Vec<Task>, first: u64) -> (Vec<Task>, usize) {
    let mut by_title: HashMap<&str, Vec<&Task>> = HashMap::new();
    for task in &list.tasks {
        by_title.entry(&task.title).or_default().push(task);
    }
    // An item stands after the item that contains it, and that one depends on it.
    let container: HashMap<String, String> = items
        .iter()
        .flat_map(|item| item.depends_on.iter().map(|on| (on.clone(), item.id.clone())))
        .collect();
    let mut known: HashMap<String, &Task> = HashMap::new();
    let mut taken: HashSet<&str> = HashSet::new();
    let mut renamed: HashMap<String, String> = HashMap::new();
    let mut number = first;
    for item in &items {
        let above = container.get(&item.id);
        let candidates = by_title.get(item.title.as_str()).into_iter().flatten();
        let found = match above.map(|above| known.get(above)) {
            // It is new, as the item that contains it.
            Some(None) => None,
            above => candidates.copied().find(|task| {
                let is_below =
                    above.flatten().is_none_or(|above| above.depends_on.contains(&task.id));
                is_below && !taken.contains(task.id.as_str())
            }),
        };
        let id = match found {
            Some(task) => {
                taken.insert(&task.id);
                known.insert(item.id.clone(), task);
                task.id.clone()
            }
            None => {
                number += 1;
                format!("task-{:03}", number - 1)
            }
        };
        renamed.insert(item.id.clone(), id);
    }
    let count = known.len();
    let known: HashSet<String> = known.into_keys().collect();
    let new = items.into_iter().filter(|item| !known.contains(&item.id)).map(|item| {
        let name = |id: &String| renamed.get(id).unwrap_or(id).clone();
        item.renamed(name(&item.id), item.depends_on.iter().map(name).collect())
    });
    (new.collect(), count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::import::{checklist, first_number, merge};
    use jiff::Timestamp;

    /// Imports a checklist and returns the ids of the added tasks and the number of known ones.
    fn import(list: &mut TaskList, text: &str) -> (Vec<String>, usize) {
        let first = first_number(list);
        let items = checklist(text, first, Timestamp::UNIX_EPOCH);
        let (new, known) = new_items(list, items, first);
        (merge(list, new).expect("no circle").added, known)
    }

    const PLAN: &str = "- [ ] Ship\n  - [x] Write\n  - [ ] Test\n    validate: `true`\n\
                        - [ ] Ship again\n  - [ ] Test\n- [ ] Rest\n- [ ] Rest\n";

    #[test]
    fn repeated_import_adds_nothing() {
        let mut list = TaskList::new(Timestamp::UNIX_EPOCH);
        assert_eq!(import(&mut list, PLAN).0.len(), 7, "equal titles are separate items");
        let before = list.clone();
        assert_eq!(import(&mut list, PLAN), (vec![], 7));
        // The state and the other fields of a task do not matter.
        list.tasks[0].priority = 0;
        let ticked = PLAN.replace("[ ]", "[x]").replace("`true`", "`false`");
        assert_eq!(import(&mut list, &ticked), (vec![], 7));
        list.tasks[0].priority = before.tasks[0].priority;
        assert_eq!(list, before);
    }

    #[test]
    fn added_items_of_a_known_checklist_are_numbered_on() {
        let mut list = TaskList::new(Timestamp::UNIX_EPOCH);
        import(&mut list, PLAN);
        let more = format!("- [ ] Plan\n  - [ ] Test\n{PLAN}- [ ] Rest\n");
        let (added, known) = import(&mut list, &more);
        assert_eq!(
            (added, known),
            (vec!["task-008".into(), "task-009".into(), "task-010".into()], 7)
        );
        assert_eq!(list.get("task-008").expect("Plan").depends_on, ["task-009"]);
        assert_eq!(import(&mut list, &more), (vec![], 10));
    }
}
