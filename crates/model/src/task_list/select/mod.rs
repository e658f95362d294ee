//! Selects the next task: first it validates the dependencies, then it chooses. The time is linear
//! in tasks and dependencies, so that lists of ten thousand tasks stay interactive.

use crate::task_list::category::Category;
use crate::task_list::document::{Status, Task, TaskList, second};
use jiff::Timestamp;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet, VecDeque};

/// A task that the dependency validation has failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    pub task: String,
    pub message: String,
}

/// The longest cycle that is shown completely.
const SPELT_OUT: usize = 20;

impl Task {
    /// Returns whether the task failed and must not be retried.
    pub fn is_failed_for_good(&self) -> bool {
        self.status == Status::Failed
            && (self.attempts >= self.max_attempts || self.has_dependency_error())
    }

    /// Returns whether an entry has the category `DEPENDENCY`. Validation output may contain the
    /// same word.
    pub fn has_dependency_error(&self) -> bool {
        self.error_log.iter().any(|entry| entry.starts_with("[DEPENDENCY]"))
    }

    /// Returns whether the dependency validation may fail the task. It must not fail a task in
    /// progress.
    fn can_be_marked(&self) -> bool {
        matches!(self.status, Status::Pending | Status::Failed) && !self.is_failed_for_good()
    }
}

/// Maps ids to positions in the list.
pub fn index(list: &TaskList) -> HashMap<&str, usize> {
    list.tasks.iter().enumerate().map(|(at, task)| (task.id.as_str(), at)).collect()
}

/// Fails all tasks that can never be done, and returns them. A repetition fails no further task.
pub fn validate_dependencies(list: &mut TaskList, now: Timestamp) -> Vec<Marked> {
    let mut marked = mark_cycles(list, now);
    marked.extend(propagate_blocked(list, now));
    marked
}

fn mark(task: &mut Task, message: String, now: Timestamp) -> Marked {
    task.status = Status::Failed;
    task.failed_at = Some(second(now));
    task.error_log.push(Category::Dependency.entry(&message));
    Marked { task: task.id.clone(), message }
}

/// Returns the first uncompleted task at or after `from` that depends on itself, and its cycle.
pub fn first_circle(list: &TaskList, from: usize) -> Option<(usize, String)> {
    let edges = edges(list);
    let is_circle =
        |component: &Vec<usize>| component.len() > 1 || edges[component[0]].contains(&component[0]);
    let all: Vec<_> = components(&edges).into_iter().filter(is_circle).collect();
    let open = |at: &usize| *at >= from && list.tasks[*at].status != Status::Completed;
    let (at, component) = all
        .iter()
        .filter_map(|component| Some((*component.iter().filter(|at| open(at)).min()?, component)))
        .min_by_key(|(at, _)| *at)?;
    let members: HashSet<_> = component.iter().copied().collect();
    Some((at, describe(list, &edges, &members, at)))
}

/// Fails each uncompleted task that depends on itself.
fn mark_cycles(list: &mut TaskList, now: Timestamp) -> Vec<Marked> {
    let edges = edges(list);
    let mut messages = vec![];
    for component in components(&edges) {
        let own = |at: &usize| edges[*at].contains(at);
        if component.len() == 1 && !own(&component[0]) {
            continue;
        }
        let members: HashSet<_> = component.iter().copied().collect();
        for at in &component {
            if list.tasks[*at].can_be_marked() {
                messages.push((*at, describe(list, &edges, &members, *at)));
            }
        }
    }
    messages.sort_by_key(|(at, _)| *at);
    messages
        .into_iter()
        .map(|(at, path)| {
            mark(&mut list.tasks[at], format!("Circular dependency detected: {path}"), now)
        })
        .collect()
}

/// Returns the shortest cycle of task `id`, if the task depends on itself.
pub fn circle(list: &TaskList, id: &str) -> Option<String> {
    let edges = edges(list);
    let at = list.tasks.iter().position(|task| task.id == id)?;
    let members: HashSet<_> = components(&edges)
        .into_iter()
        .find(|members| members.contains(&at))?
        .into_iter()
        .collect();
    (members.len() > 1 || edges[at].contains(&at)).then(|| describe(list, &edges, &members, at))
}

/// Returns the dependencies of each task. Unknown ids are ignored here; the parser rejects them.
fn edges(list: &TaskList) -> Vec<Vec<usize>> {
    let index = index(list);
    let of = |task: &Task| {
        task.depends_on.iter().filter_map(|id| index.get(id.as_str()).copied()).collect()
    };
    list.tasks.iter().map(of).collect()
}

/// Describes the shortest cycle of a task.
fn describe(
    list: &TaskList,
    edges: &[Vec<usize>],
    members: &HashSet<usize>,
    from: usize,
) -> String {
    let name = |at: usize| list.tasks[at].id.as_str();
    if members.len() > SPELT_OUT {
        let next =
            edges[from].iter().find(|next| members.contains(next)).map_or("", |next| name(*next));
        return format!(
            "{0} -> {next} -> … ({1} tasks depend on each other) -> {0}",
            name(from),
            members.len()
        );
    }
    let mut came_from = HashMap::new();
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        for next in edges[at].iter().copied().filter(|next| members.contains(next)) {
            if next == from {
                let mut path = vec![from];
                let mut back = at;
                while back != from {
                    path.push(back);
                    back = came_from[&back];
                }
                path.push(from);
                return path.iter().rev().map(|at| name(*at)).collect::<Vec<_>>().join(" -> ");
            }
            if let std::collections::hash_map::Entry::Vacant(place) = came_from.entry(next) {
                place.insert(at);
                queue.push_back(next);
            }
        }
    }
    name(from).into()
}

/// Returns the strongly connected components (Tarjan). It uses its own stack, because a chain may
/// have ten thousand tasks.
fn components(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    const UNSEEN: usize = usize::MAX;
    let mut order = vec![UNSEEN; edges.len()];
    let mut low = vec![0; edges.len()];
    let mut on_stack = vec![false; edges.len()];
    let (mut stack, mut found, mut count) = (vec![], vec![], 0);
    for root in 0..edges.len() {
        let mut work = vec![(root, 0)];
        while let Some((at, edge)) = work.pop() {
            if edge == 0 {
                if order[at] != UNSEEN {
                    continue;
                }
                (order[at], low[at]) = (count, count);
                count += 1;
                stack.push(at);
                on_stack[at] = true;
            } else {
                // Returned from the child of this edge.
                let child = edges[at][edge - 1];
                if on_stack[child] {
                    low[at] = low[at].min(low[child]);
                }
            }
            if let Some(&next) = edges[at].get(edge) {
                work.push((at, edge + 1));
                if order[next] == UNSEEN {
                    work.push((next, 0));
                }
                continue;
            }
            if low[at] == order[at] {
                let mut component = vec![];
                while let Some(member) = stack.pop() {
                    on_stack[member] = false;
                    component.push(member);
                    if member == at {
                        break;
                    }
                }
                found.push(component);
            }
        }
    }
    found
}

/// Fails the direct and indirect dependants of tasks that failed for good.
fn propagate_blocked(list: &mut TaskList, now: Timestamp) -> Vec<Marked> {
    let mut dependants = vec![vec![]; list.tasks.len()];
    for (at, needed) in edges(list).iter().enumerate() {
        for needed in needed {
            dependants[*needed].push(at);
        }
    }
    let dead = |task: &Task| task.is_failed_for_good();
    let mut queue: VecDeque<_> =
        (0..list.tasks.len()).filter(|at| dead(&list.tasks[*at])).collect();
    let mut marked = vec![];
    while let Some(at) = queue.pop_front() {
        let cause = list.tasks[at].id.clone();
        for dependant in &dependants[at] {
            if list.tasks[*dependant].can_be_marked() {
                marked.push(mark(
                    &mut list.tasks[*dependant],
                    format!("Blocked by failed {cause}"),
                    now,
                ));
                queue.push_back(*dependant);
            }
        }
    }
    marked
}

/// Failure times from the log, for tasks without `failed_at`.
pub type FailureTimes = HashMap<String, Timestamp>;

/// Returns all tasks that could be worked on now, the best first.
///
/// First the pending tasks, by priority and id. Then the failed tasks with attempts left, by
/// priority and the oldest failure. All dependencies of a task must be completed.
pub fn eligible(list: &TaskList, failures: &FailureTimes) -> Vec<usize> {
    let mut all: Vec<_> = candidates(list).collect();
    all.sort_by(|a, b| order(list, failures, *a, *b));
    all
}

/// Returns the first of [`eligible`] without sorting.
pub fn next(list: &TaskList, failures: &FailureTimes) -> Option<usize> {
    candidates(list).min_by(|a, b| order(list, failures, *a, *b))
}

fn candidates(list: &TaskList) -> impl Iterator<Item = usize> {
    let index = index(list);
    let done = |id: &String| {
        index.get(id.as_str()).is_some_and(|at| list.tasks[*at].status == Status::Completed)
    };
    let may = |task: &Task| match task.status {
        Status::Pending => true,
        Status::Failed => !task.is_failed_for_good(),
        Status::InProgress | Status::Completed => false,
    };
    let all: Vec<_> = list
        .tasks
        .iter()
        .enumerate()
        .filter(|(_, task)| may(task) && task.depends_on.iter().all(done))
        .map(|(at, _)| at)
        .collect();
    all.into_iter()
}

fn order(list: &TaskList, failures: &FailureTimes, a: usize, b: usize) -> Ordering {
    let (one, other) = (&list.tasks[a], &list.tasks[b]);
    let failed = |task: &Task| task.status == Status::Failed;
    let since = |task: &Task| task.failed_at.or_else(|| failures.get(&task.id).copied());
    failed(one)
        .cmp(&failed(other))
        .then(one.priority.cmp(&other.priority))
        .then_with(|| if failed(one) { since(one).cmp(&since(other)) } else { Ordering::Equal })
        .then_with(|| by_id(&one.id, &other.id))
}

/// Compares ids in ascending order, with numbers by value: `task-9`, `task-010`, `task-1000`.
pub fn by_id(a: &str, b: &str) -> Ordering {
    let (mut a_rest, mut b_rest) = (a, b);
    loop {
        let (Some(x), Some(y)) = (a_rest.chars().next(), b_rest.chars().next()) else {
            return a_rest.len().cmp(&b_rest.len()).then_with(|| a.cmp(b));
        };
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let (x, a_after) = number(a_rest);
            let (y, b_after) = number(b_rest);
            match x.len().cmp(&y.len()).then_with(|| x.cmp(y)) {
                Ordering::Equal => (a_rest, b_rest) = (a_after, b_after),
                decided => return decided,
            }
        } else if x == y {
            (a_rest, b_rest) = (&a_rest[x.len_utf8()..], &b_rest[y.len_utf8()..]);
        } else {
            return x.cmp(&y);
        }
    }
}

/// Splits off the leading digits, without their leading zeros.
fn number(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].trim_start_matches('0'), &text[end..])
}

#[cfg(test)]
mod tests;
