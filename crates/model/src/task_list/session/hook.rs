//! The answers of the hooks in an agent's own session. They are pure functions of the list and of
//! the earlier answers.

mod context;
mod review;

pub use context::{Scene, session_start, session_start_unreadable};
pub use review::{self_reflect, self_reflect_unreadable};

use crate::task_list::document::{Mode, Status, Task, TaskList, iso};
use crate::task_list::select::{self, FailureTimes};
use crate::task_list::session::claim::{self, Refused};
use crate::task_list::stats::{is_over, stats};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most rejected stops in a row without progress.
pub const REFUSALS: u32 = 5;
/// The most reflections that are requested when all tasks are done, unless
/// `REFLECT_MAX_ITERATIONS` says otherwise.
pub const REFLECTIONS: u32 = 5;

/// The state of one agent session between hook calls.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Memory {
    pub session: u64,
    /// The total of attempts when the session began; later ones are the session's.
    pub attempts_before: u64,
    #[serde(default)]
    pub refusals: u32,
    #[serde(default)]
    pub seen: String,
    #[serde(default)]
    pub reflections: u32,
    /// The tasks that the session was told to recover, each with its claim at that time.
    #[serde(default)]
    pub interrupted: BTreeMap<String, String>,
    /// No session start was counted for this session: `session` is the number of the one before.
    #[serde(default)]
    pub is_uncounted: bool,
    /// The attempts of the session before `attempts_before` was taken, according to the log.
    #[serde(default)]
    pub attempts_logged: u64,
    /// The worker name of the session.
    #[serde(default)]
    pub worker: String,
    /// The session's end is not logged yet.
    #[serde(default)]
    pub is_open: bool,
    /// The counts that were logged at the session's last end.
    #[serde(default)]
    pub reported: String,
}

impl Memory {
    /// Returns the memory of a session that no session start has counted. `logged` is the number of
    /// its attempts so far.
    pub fn uncounted(list: &TaskList, logged: u64) -> Self {
        Self {
            session: list.session_count,
            attempts_before: stats(list).attempts_total,
            is_uncounted: true,
            attempts_logged: logged,
            ..Self::default()
        }
    }

    /// Returns the memory of a session that was just counted.
    pub fn counted(list: &TaskList) -> Self {
        Self { is_uncounted: false, ..Self::uncounted(list, 0) }
    }

    /// Remembers the interrupted tasks until a worker claims them.
    pub fn remember_interrupted(&mut self, list: &TaskList, ids: &[String]) {
        let found = ids.iter().filter_map(|id| list.get(id));
        self.interrupted = found.map(|task| (task.id.clone(), claimed(task))).collect();
    }

    /// Returns whether the task's claim is unchanged since the session was told to recover it.
    fn is_interrupted(&self, task: &Task) -> bool {
        self.interrupted.get(&task.id).is_some_and(|then| *then == claimed(task))
    }
}

fn claimed(task: &Task) -> String {
    let until = task.lease_expires_at.map(iso).unwrap_or_default();
    format!("{} {until}", task.claimed_by.as_deref().unwrap_or_default())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The stop is allowed.
    Silent,
    /// The stop is rejected, with the next step.
    Refuse(String),
    /// The stop is allowed although work may be left, because it was rejected [`REFUSALS`] times.
    GiveUp,
}

/// Answers `Stop`: whether the agent may stop. `again` means that it continues only because an
/// earlier stop was rejected.
///
/// Without a `worker` name nobody knows which task is the session's, so any task in progress is.
///
/// The answer agrees with the context of the session's start. If a live worker has the working
/// directory of an exclusive list, this session has nothing to do. Interrupted tasks are recovered
/// first.
pub fn stop(
    list: &TaskList,
    memory: &mut Memory,
    again: bool,
    worker: Option<&str>,
    failures: &FailureTimes,
    now: Timestamp,
) -> Answer {
    let Some(step) = next_step(list, memory, worker, failures, now) else { return Answer::Silent };
    refuse(list, memory, again, step)
}

/// Answers `Stop` if the list cannot be read. The stop is rejected as often as one without
/// progress, because work may be left.
pub fn stop_unreadable(memory: &mut Memory, again: bool, why: &str) -> Answer {
    refuse_at("unreadable".into(), memory, again, unreadable(why))
}

fn unreadable(why: &str) -> String {
    format!(
        "The task list cannot be read, so its open tasks are unknown. Fix it, or report the fault \
         to the user, before you stop.\n{why}"
    )
}

/// The facts about a subagent that are known at its stop.
#[derive(Debug, Clone, Copy)]
pub struct Subagent<'a> {
    /// The names under which it may have claimed a task.
    pub names: &'a [String],
    /// The event or the environment names it.
    pub is_named: bool,
    /// The CLI says that it continues only because an earlier stop was rejected.
    pub is_repeated: bool,
}

/// Answers `SubagentStop`: a subagent may not stop while it has a claim without an outcome.
///
/// If nobody knows whose a task in progress is, the stop is rejected once: because the event names
/// no subagent, or because no worker is named in the claim of an exclusive list.
pub fn subagent_stop(
    list: &TaskList,
    memory: &mut Memory,
    again: bool,
    subagent: Subagent<'_>,
) -> Answer {
    let Subagent { names, is_named, is_repeated } = subagent;
    if let Some(task) = list.tasks.iter().find(|task| is_claimed_by(task, names)) {
        let by = task.claimed_by.as_deref().unwrap_or_default();
        let step = format!(
            "You have claimed {} and not reported its end. {}",
            task.id,
            finish(task, Some(by))
        );
        return refuse(list, memory, again, step);
    }
    let is_unclear = |task: &&Task| {
        let is_nobody_s = list.mode == Mode::Exclusive && task.claimed_by.is_none();
        task.status == Status::InProgress && (!is_named || is_nobody_s)
    };
    let Some(task) = list.tasks.iter().find(is_unclear).filter(|_| !is_repeated) else {
        return Answer::Silent;
    };
    let why = if is_named {
        "no worker is named in its claim"
    } else {
        "the event has no worker identity (agent_id, or HARNESS_WORKER_ID)"
    };
    let step = format!(
        "{} ({}) is in progress, and nobody knows whether it is yours: {why}. If it is, do this \
         before you stop: {} If it is not, stop.",
        task.id,
        task.title.trim(),
        finish(task, task.claimed_by.as_deref())
    );
    refuse(list, memory, again, step)
}

/// Whether a worker with one of these names, or a name below one of them, has the task.
fn is_claimed_by(task: &Task, names: &[String]) -> bool {
    let by = task.claimed_by.as_deref().unwrap_or_default();
    let is_it = |name: &String| {
        by == name || by.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    task.status == Status::InProgress && !by.is_empty() && names.iter().any(is_it)
}

/// Answers `TeammateIdle`: a teammate that has a task finishes it, and any other gets the next
/// unclaimed task. `names` are the names under which it may have claimed a task.
pub fn teammate_idle(
    list: &TaskList,
    memory: &mut Memory,
    name: &str,
    names: &[String],
    failures: &FailureTimes,
    now: Timestamp,
) -> Answer {
    if let Some(task) = list.tasks.iter().find(|task| is_claimed_by(task, names)) {
        let step = format!(
            "You have claimed {} ({}) and not reported its end. {}",
            task.id,
            task.title.trim(),
            finish(task, task.claimed_by.as_deref())
        );
        return refuse(list, memory, true, step);
    }
    if limit_reached(list, memory) {
        return Answer::Silent;
    }
    match claim::in_hand(list, None, now) {
        None => {}
        Some(Refused::Interrupted(id)) => {
            // Without a lease nobody knows whether the worker that has it is gone.
            let is_gone =
                |task: &&Task| task.claimed_by.is_none() || task.lease_expires_at.is_some();
            let Some(task) = list.get(&id).filter(is_gone) else { return Answer::Silent };
            let step = format!("{} Say `--worker {name}`.", recover(task));
            return refuse(list, memory, true, step);
        }
        // A claim of another task would be rejected.
        Some(_) => return Answer::Silent,
    }
    let Some(at) = select::next(list, failures) else {
        return match abandoned(list, now) {
            Some(task) => {
                let step = format!("{} Say `--worker {name}`.", recover(task));
                refuse(list, memory, true, step)
            }
            None => Answer::Silent,
        };
    };
    let task = &list.tasks[at];
    let step = format!(
        "Tasks are open. Claim one with `muleteer tasks claim {} --worker {name}` (or another task \
         if this is refused): {}",
        task.id,
        task.title.trim()
    );
    refuse(list, memory, true, step)
}

fn refuse(list: &TaskList, memory: &mut Memory, again: bool, step: String) -> Answer {
    let counts = stats(list);
    refuse_at(format!("{counts} in_progress={}", counts.in_progress), memory, again, step)
}

/// Rejects a stop. Rejections are counted while the progress `seen` stays the same.
fn refuse_at(seen: String, memory: &mut Memory, again: bool, step: String) -> Answer {
    if !again || memory.seen != seen {
        memory.refusals = 0;
        memory.seen = seen;
    }
    if memory.refusals >= REFUSALS {
        return Answer::GiveUp;
    }
    memory.refusals += 1;
    Answer::Refuse(step)
}

/// Returns whether the session has ended by the protocol: nothing is left to do, or a limit is
/// reached.
pub fn is_at_end(list: &TaskList, memory: &Memory) -> bool {
    is_over(list) || limit_reached(list, memory)
}

/// Returns whether a limit of the list ends the session. In a concurrent list nobody knows which
/// attempts are the session's.
fn limit_reached(list: &TaskList, memory: &Memory) -> bool {
    let since = stats(list).attempts_total.saturating_sub(memory.attempts_before);
    let done = since + memory.attempts_logged;
    let is_alone = list.mode == Mode::Exclusive;
    list.max_tasks_per_session.is_some_and(|max| is_alone && done >= max)
        || list.max_sessions.is_some_and(|max| {
            memory.session > max || (memory.is_uncounted && memory.session == max)
        })
}

fn next_step(
    list: &TaskList,
    memory: &Memory,
    worker: Option<&str>,
    failures: &FailureTimes,
    now: Timestamp,
) -> Option<String> {
    if is_over(list) || limit_reached(list, memory) {
        return None;
    }
    let own = |task: &&Task| {
        task.status == Status::InProgress
            && task.claimed_by.as_deref().is_none_or(|by| worker.is_none_or(|own| by == own))
    };
    if let Some(task) = list.tasks.iter().find(own) {
        if memory.is_interrupted(task) {
            return Some(recover(task));
        }
        return Some(format!(
            "{} ({}) is still in progress. {}",
            task.id,
            task.title.trim(),
            finish(task, None)
        ));
    }
    match claim::in_hand(list, None, now) {
        None => {}
        Some(Refused::Interrupted(id)) => return list.get(&id).map(recover),
        // Another worker uses this directory, so a claim would be rejected.
        Some(_) => return None,
    }
    let Some(at) = select::next(list, failures) else {
        return abandoned(list, now).map(recover);
    };
    let task = &list.tasks[at];
    let counts = stats(list);
    Some(format!(
        "The task list is not done: {} of {} completed. Next: {id} ({}). Take it with `muleteer \
         tasks claim {id}`, do it, and end it with `muleteer tasks complete {id}`.",
        counts.completed,
        counts.tasks_total,
        task.title.trim(),
        id = task.id
    ))
}

/// Returns a task of a concurrent list that any worker may recover: its lease has expired, or
/// nobody has claimed it. In an exclusive list [`claim::in_hand`] finds it.
fn abandoned(list: &TaskList, now: Timestamp) -> Option<&Task> {
    list.tasks.iter().find(|task| {
        let is_left = task.claimed_by.is_none() || task.lease_expires_at.is_some();
        task.status == Status::InProgress && is_left && !task.is_held(now)
    })
}

fn recover(task: &Task) -> String {
    format!(
        "{0} ({1}) was interrupted. First run `muleteer tasks recover {0}`: it inspects commits, \
         uncommitted changes and checkpoints, and completes, resumes or rolls back the task.",
        task.id,
        task.title.trim()
    )
}

fn finish(task: &Task, worker: Option<&str>) -> String {
    let worker = worker.map_or_else(String::new, |worker| format!(" --worker {worker}"));
    format!(
        "End it with `muleteer tasks complete {0}{worker}`, which runs its validation, or give it \
         up with `muleteer tasks fail {0}{worker} \"why\"`.",
        task.id
    )
}

#[cfg(test)]
mod reference;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task_list::outcome;
    use jiff::Timestamp;

    fn now() -> Timestamp {
        "2025-07-01T10:00:00Z".parse().expect("an instant")
    }

    fn list() -> TaskList {
        let mut list = TaskList::new(now());
        list.tasks = ["a", "b"].map(|id| Task::new(id, format!("Do {id}"))).into();
        list
    }

    fn asked(list: &TaskList, memory: &mut Memory, again: bool) -> bool {
        matches!(
            stop(list, memory, again, Some("w"), &FailureTimes::new(), now()),
            Answer::Refuse(_)
        )
    }

    #[test]
    fn stopping_is_refused_with_the_next_step_while_eligible_tasks_remain() {
        let (mut list, mut memory) = (list(), Memory::default());
        let Answer::Refuse(reason) =
            stop(&list, &mut memory, false, Some("w"), &FailureTimes::new(), now())
        else {
            panic!("refuses")
        };
        assert!(
            reason.contains("0 of 2 completed") && reason.contains("muleteer tasks claim a"),
            "{reason}"
        );
        list.tasks[0].status = Status::InProgress;
        let Answer::Refuse(reason) =
            stop(&list, &mut memory, true, Some("w"), &FailureTimes::new(), now())
        else {
            panic!("refuses")
        };
        assert!(reason.contains("muleteer tasks complete a"), "{reason}");
        outcome::complete(&mut list.tasks[0], now());
        assert!(asked(&list, &mut memory, true));
        outcome::complete(&mut list.tasks[1], now());
        assert!(!asked(&list, &mut memory, true), "allowed when done");
    }

    #[test]
    fn refusals_without_progress_are_bounded_and_progress_allows_more() {
        let (mut list, mut memory) = (list(), Memory::default());
        assert_eq!(
            (0..20).filter(|at| asked(&list, &mut memory, *at > 0)).count(),
            REFUSALS as usize
        );
        outcome::checkpoint(&mut list.tasks[0], 1, 2, "half", None, now());
        assert!(asked(&list, &mut memory, true), "a checkpoint is progress");
        assert_eq!(
            (0..20).filter(|_| asked(&list, &mut memory, true)).count(),
            REFUSALS as usize - 1
        );
        assert!(asked(&list, &mut memory, false), "a stop of its own begins anew");
    }

    #[test]
    fn stopping_at_an_unreadable_list_is_refused_a_bounded_number_of_times() {
        let (list, mut memory) = (list(), Memory::default());
        let mut looks = Memory::default();
        let given =
            (0..20).filter(|_| self_reflect_unreadable(&mut looks, 5, "line 3") != Answer::Silent);
        assert_eq!((given.count(), looks.refusals), (REFLECTIONS as usize, 0));
        let mut answer = |again| stop_unreadable(&mut memory, again, "line 3");
        let refused = (0..20).filter(|at| answer(*at > 0) != Answer::GiveUp).count();
        assert_eq!(refused, REFUSALS as usize);
        assert!(asked(&list, &mut memory, true), "a list that can be read again is progress");
    }

    #[test]
    fn a_limit_that_is_reached_lets_go() {
        let mut list = list();
        list.max_tasks_per_session = Some(1);
        let mut memory = Memory { attempts_before: 0, session: 1, ..Memory::default() };
        assert!(asked(&list, &mut memory, false));
        outcome::complete(&mut list.tasks[0], now());
        assert!(!asked(&list, &mut memory, false), "max_tasks_per_session");
        list.max_tasks_per_session = None;
        memory.session = 51;
        assert!(!asked(&list, &mut memory, false), "max_sessions");
    }

    #[test]
    fn only_a_subagent_with_a_claim_must_continue() {
        let (mut list, mut memory) = (list(), Memory::default());
        let workers = ["claude-1".to_string(), "agent-7".to_string()];
        fn named(names: &[String]) -> Subagent<'_> {
            Subagent { names, is_named: true, is_repeated: false }
        }
        assert_eq!(subagent_stop(&list, &mut memory, false, named(&workers)), Answer::Silent);
        list.tasks[0].status = Status::InProgress;
        list.tasks[0].claimed_by = Some("claude-1/tests".into());
        let Answer::Refuse(reason) = subagent_stop(&list, &mut memory, false, named(&workers))
        else {
            panic!("refuses")
        };
        assert!(reason.contains("--worker claude-1/tests"), "{reason}");
        list.tasks[0].claimed_by = Some("claude-10".into());
        assert_eq!(subagent_stop(&list, &mut memory, false, named(&workers)), Answer::Silent);
    }

    #[test]
    fn an_idle_teammate_gets_the_next_eligible_task() {
        let (mut list, mut memory) = (list(), Memory::default());
        list.mode = Mode::Concurrent;
        list.tasks[0].status = Status::InProgress;
        list.tasks[0].claimed_by = Some("bob".into());
        let Answer::Refuse(text) =
            teammate_idle(&list, &mut memory, "ann", &[], &FailureTimes::new(), now())
        else {
            panic!("hands")
        };
        assert!(text.contains("muleteer tasks claim b --worker ann"), "{text}");
        list.tasks[1].status = Status::Completed;
        assert_eq!(
            teammate_idle(&list, &mut memory, "ann", &[], &FailureTimes::new(), now()),
            Answer::Silent
        );
    }

    #[test]
    fn review_is_requested_up_to_five_times_when_all_is_done() {
        let (mut list, mut memory) = (list(), Memory::default());
        assert_eq!(self_reflect(&list, &mut memory, 5), Answer::Silent, "not before");
        list.tasks.iter_mut().for_each(|task| outcome::complete(task, now()));
        assert_eq!(
            (0..9).filter(|_| self_reflect(&list, &mut memory, 5) != Answer::Silent).count(),
            5
        );
        let mut empty = Memory::default();
        assert_eq!(
            self_reflect(&TaskList::new(now()), &mut empty, 5),
            Answer::Silent,
            "nothing was asked for"
        );
    }

    #[test]
    fn a_session_starts_like_this() {
        let mut list = list();
        list.tasks[0].status = Status::InProgress;
        outcome::checkpoint(&mut list.tasks[0], 1, 2, "half of it", None, now());
        list.tasks[1].command = Some("make test".into());
        let failures = FailureTimes::new();
        let scene = Scene {
            list: &list,
            session: 3,
            worker: "claude-1",
            log: "[2025-07-01T10:00:00Z] [SESSION-2] Starting [a] Do a (base=abc)",
            commits: "abc start",
            uncommitted: " x.txt | 1 +",
            stashes: "",
            interrupted: &["a".into()],
            run: None,
            failures: &failures,
            now: now(),
        };
        insta::assert_snapshot!(session_start(&scene));
    }
    #[test]
    fn second_session_leaves_the_task_of_the_first_alone() {
        let mut list = list();
        claim::claim(&mut list, "a", "w1", "abc", now(), claim::LEASE).expect("claimed");
        let failures = FailureTimes::new();
        let begins = |worker, now| {
            session_start(&Scene {
                list: &list,
                session: 3,
                worker,
                log: "",
                commits: "",
                uncommitted: "",
                stashes: "",
                interrupted: &["a".into()],
                run: None,
                failures: &failures,
                now,
            })
        };
        let beside = begins("w2", now());
        assert!(
            beside.contains("`a` is claimed by w1 until") && !beside.contains("was interrupted"),
            "{beside}"
        );
        let later = now().checked_add(jiff::SignedDuration::from_mins(16)).expect("a time");
        // The two answers agree: there is nothing to do, or the first step is the same.
        let stops = |worker, now| {
            let mut memory = Memory { session: 3, ..Memory::default() };
            memory.remember_interrupted(&list, &["a".into()]);
            stop(&list, &mut memory, false, Some(worker), &failures, now)
        };
        assert!(!beside.contains("Next:") && !beside.contains("tasks claim"), "{beside}");
        assert_eq!(stops("w2", now()), Answer::Silent);
        for (worker, now) in [("w1", now()), ("w2", later)] {
            let Answer::Refuse(step) = stops(worker, now) else { panic!("it is not done") };
            assert!(
                begins(worker, now).contains(&step) && step.contains("tasks recover a"),
                "{step}"
            );
        }
        let mut idle = Memory::default();
        assert_eq!(teammate_idle(&list, &mut idle, "ann", &[], &failures, now()), Answer::Silent);
        assert!(matches!(teammate_idle(&list, &mut idle, "ann", &[], &failures, later),
                Answer::Refuse(step) if step.contains("recover a")));
        for text in [begins("w1", now()), begins("w2", later)] {
            assert!(text.contains("was interrupted") && !text.contains("is claimed by"), "{text}");
        }
    }
}
