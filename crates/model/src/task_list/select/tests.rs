use crate::task_list::document::Mode;
use crate::task_list::outcome;
use crate::task_list::select::*;
use proptest::prelude::{Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

fn now() -> Timestamp {
    "2025-07-01T10:00:00Z".parse().expect("an instant")
}

fn list(tasks: &[(&str, &[&str])]) -> TaskList {
    let mut list = TaskList::new(now());
    for (id, needs) in tasks {
        let mut task = Task::new(*id, *id);
        task.depends_on = needs.iter().map(ToString::to_string).collect();
        list.tasks.push(task);
    }
    list
}

fn picked(list: &TaskList) -> Vec<&str> {
    eligible(list, &FailureTimes::new())
        .into_iter()
        .map(|at| list.tasks[at].id.as_str())
        .collect()
}

#[test]
fn a_cycle_fails_every_task_in_it_and_names_the_way_round() {
    let mut list =
        list(&[("a", &["b"]), ("b", &["a"]), ("self", &["self"]), ("free", &[]), ("late", &["a"])]);
    let marked = validate_dependencies(&mut list, now());
    let entries: Vec<_> = list.tasks.iter().map(|task| task.error_log.join("")).collect();
    assert_eq!(
        entries,
        [
            "[DEPENDENCY] Circular dependency detected: a -> b -> a",
            "[DEPENDENCY] Circular dependency detected: b -> a -> b",
            "[DEPENDENCY] Circular dependency detected: self -> self",
            "",
            "[DEPENDENCY] Blocked by failed a",
        ]
    );
    assert_eq!(marked.len(), 4);
    assert_eq!(picked(&list), ["free"]);
    assert_eq!(validate_dependencies(&mut list, now()), [], "marking again marks nothing");
}

#[test]
fn completed_and_running_tasks_are_not_blocked() {
    let mut list = list(&[("a", &["b"]), ("b", &["a"]), ("c", &["a"])]);
    outcome::complete(&mut list.tasks[1], now());
    list.tasks[2].status = Status::InProgress;
    validate_dependencies(&mut list, now());
    let states: Vec<_> = list.tasks.iter().map(|task| task.status).collect();
    assert_eq!(states, [Status::Failed, Status::Completed, Status::InProgress]);
}

#[test]
fn blocked_propagates_until_no_more_tasks_can_be() {
    let mut list =
        list(&[("d", &["c"]), ("c", &["b"]), ("b", &["a"]), ("a", &[]), ("e", &["f"]), ("f", &[])]);
    list.tasks[3].max_attempts = 1;
    outcome::fail(&mut list.tasks[3], Category::TestFail, "no", now());
    outcome::fail(&mut list.tasks[5], Category::TestFail, "once", now());
    validate_dependencies(&mut list, now());
    let last =
        |id: &str| list.get(id).and_then(|task| task.error_log.last().cloned()).unwrap_or_default();
    assert_eq!(last("b"), "[DEPENDENCY] Blocked by failed a");
    assert_eq!(last("d"), "[DEPENDENCY] Blocked by failed c");
    assert_eq!(
        list.get("e").map(|task| task.status),
        Some(Status::Pending),
        "f will be tried again"
    );
    assert_eq!(picked(&list), ["f"]);
}

#[test]
fn pass_one_is_by_priority_then_by_id_and_only_with_all_dependencies_completed() {
    let mut list = list(&[
        ("task-10", &[]),
        ("task-9", &[]),
        ("task-2", &[]),
        ("task-1", &["task-2"]),
        ("z", &["done"]),
        ("done", &[]),
    ]);
    list.tasks[0].priority = 0;
    list.tasks[2].priority = 2;
    outcome::complete(&mut list.tasks[5], now());
    assert_eq!(picked(&list), ["task-10", "task-9", "z", "task-2"]);
}

#[test]
fn retries_follow_pending_tasks_by_priority_and_age_of_failure() {
    let mut list = list(&[
        ("new", &[]),
        ("old", &[]),
        ("urgent", &[]),
        ("pending", &[]),
        ("spent", &[]),
        ("logged", &[]),
    ]);
    let at = |hour: i8| {
        now().checked_add(jiff::SignedDuration::from_hours(hour.into())).expect("an instant")
    };
    for (task, hour) in [(0, 3), (1, 1), (2, 4), (4, 0)] {
        outcome::fail(&mut list.tasks[task], Category::TestFail, "no", at(hour));
    }
    list.tasks[2].priority = 0;
    list.tasks[3].priority = 2;
    list.tasks[4].attempts = 3;
    outcome::fail(
        &mut list.tasks[5],
        Category::TestFail,
        "by another tool, which keeps no time",
        at(0),
    );
    list.tasks[5].failed_at = None;
    let failures = FailureTimes::from([("logged".to_string(), at(2))]);
    let order: Vec<_> =
        eligible(&list, &failures).into_iter().map(|at| list.tasks[at].id.as_str()).collect();
    assert_eq!(order, ["pending", "urgent", "old", "logged", "new"]);
    assert_eq!(next(&list, &failures), Some(3));
}

#[test]
fn a_dependency_error_is_never_retried() {
    let mut list = list(&[("a", &[])]);
    outcome::fail(&mut list.tasks[0], Category::Dependency, "Blocked by failed x", now());
    assert_eq!(picked(&list), [] as [&str; 0]);
}

#[test]
fn a_ring_of_ten_thousand_is_marked_without_recursion_and_briefly() {
    let ids: Vec<_> = (0..10_000).map(|n| format!("t{n}")).collect();
    let mut list = TaskList::new(now());
    for (at, id) in ids.iter().enumerate() {
        let mut task = Task::new(id.as_str(), "x");
        task.depends_on = vec![ids[(at + 1) % ids.len()].clone()];
        list.tasks.push(task);
    }
    assert_eq!(validate_dependencies(&mut list, now()).len(), 10_000);
    let entry = &list.tasks[7].error_log[0];
    assert_eq!(
        entry,
        "[DEPENDENCY] Circular dependency detected: t7 -> t8 -> … (10000 tasks depend on each \
         other) -> t7"
    );
}

#[test]
fn ids_are_ordered_as_people_count() {
    let mut ids = ["task-1000", "task-101", "task-2", "b", "a-1-2", "a-1", "task-010"];
    ids.sort_by(|a, b| by_id(a, b));
    assert_eq!(ids, ["a-1", "a-1-2", "b", "task-2", "task-010", "task-101", "task-1000"]);
}

/// A slow implementation of the protocol's rule.
fn slowly(list: &mut TaskList) {
    let reaches = |list: &TaskList, from: usize| {
        let mut seen = HashSet::new();
        let mut todo = list.tasks[from].depends_on.clone();
        while let Some(id) = todo.pop() {
            if seen.insert(id.clone()) {
                todo.extend(list.get(&id).into_iter().flat_map(|task| task.depends_on.clone()));
            }
        }
        seen.contains(&list.tasks[from].id)
    };
    let circular: Vec<_> = (0..list.tasks.len()).filter(|at| reaches(list, *at)).collect();
    for at in circular {
        if list.tasks[at].can_be_marked() {
            mark(&mut list.tasks[at], "circular".into(), now());
        }
    }
    loop {
        let blocked = |task: &&mut Task, dead: &HashSet<String>| {
            task.can_be_marked() && task.depends_on.iter().any(|id| dead.contains(id))
        };
        let dead: HashSet<_> = list
            .tasks
            .iter()
            .filter(|task| task.is_failed_for_good())
            .map(|task| task.id.clone())
            .collect();
        let Some(task) = list.tasks.iter_mut().find(|task| blocked(task, &dead)) else { return };
        mark(task, "blocked".into(), now());
    }
}

fn lists() -> impl proptest::strategy::Strategy<Value = TaskList> {
    let task = (0..4u8, 0..4u32, 0..3u32, prop::collection::vec(0..8usize, 0..3));
    (prop::collection::vec(task, 1..8), any::<bool>()).prop_map(|(tasks, concurrent)| {
        let mut list = TaskList::new(now());
        list.mode = if concurrent { Mode::Concurrent } else { Mode::Exclusive };
        let count = tasks.len();
        for (at, (status, attempts, priority, needs)) in tasks.into_iter().enumerate() {
            let mut task = Task::new(format!("t{at}"), "x");
            task.status = Status::ALL[usize::from(status)];
            (task.attempts, task.priority) = (attempts, priority);
            task.depends_on = needs
                .into_iter()
                .filter(|need| *need < count)
                .map(|need| format!("t{need}"))
                .collect();
            list.tasks.push(task);
        }
        list
    })
}

proptest! {
    #[test]
    fn fast_blocking_matches_the_simple_algorithm(list in lists()) {
        let (mut fast, mut slow) = (list.clone(), list);
        validate_dependencies(&mut fast, now());
        slowly(&mut slow);
        for (fast, slow) in fast.tasks.iter().zip(&slow.tasks) {
            prop_assert_eq!((fast.status, fast.has_dependency_error()),
                (slow.status, slow.has_dependency_error()));
        }
    }

    #[test]
    fn next_task_is_the_first_claimable(list in lists()) {
        let mut list = list;
        validate_dependencies(&mut list, now());
        let failures = FailureTimes::new();
        let first = next(&list, &failures);
        prop_assert_eq!(first, eligible(&list, &failures).first().copied());
        if let Some(at) = first {
            let id = list.tasks[at].id.clone();
            prop_assert!(crate::task_list::session::claim::claim(&mut list, &id, "w", "x", now(),
                crate::task_list::session::claim::LEASE).is_ok());
        }
    }
}
