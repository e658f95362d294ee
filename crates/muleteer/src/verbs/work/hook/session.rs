//! The begin and the end of an agent's own session, with its lines in the list's log.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::hook::event::Event;
use crate::verbs::work::hook::is_a_session_s;
use crate::verbs::work::hook::memories::Memories;
use crate::verbs::work::tasks::place::{begin, listed};
use jiff::Timestamp;
use muleteer_backends::claude_code::ENV_FILE;
use muleteer_backends::process_names;
use muleteer_model::task_list::document::iso;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::hook::{self, Answer, Memory, Scene};
use muleteer_model::task_list::stats;
use muleteer_model::task_list::{Category, Mode, Status, TaskList};
use muleteer_process::identity::ProcessId;
use muleteer_process::identity::caller;
use muleteer_store::task_list::{Behind, SessionLock, Tx};
use std::io::Write;

/// The number of log lines in a session's context: the whole log would cost more than it is worth.
const LOG_LINES: usize = 200;
/// The maximum length of these lines together: a CLI cuts a hook's output beyond some ten thousand
/// characters.
const LOG_BYTES: usize = 4 * 1024;

/// Starts a session: counts it, unless it can do nothing, and describes the state of the list.
pub(super) fn start(event: &Event, context: &Context) -> Result<Exit, Failure> {
    let worker = event.worker();
    let holder = SessionLock::holder(&event.root);
    let mut list = match event.root.read() {
        Ok(reading) => reading.list,
        Err(error) => {
            let why = anstream::adapter::strip_str(&listed(&error).text()).to_string();
            return event.say(&hook::session_start_unreadable(&why), "SessionStart", context);
        }
    };
    if let Some(locked) =
        holder.as_ref().filter(|locked| locked.holder.is_none() && is_a_session_s(locked, &list))
    {
        let pid = locked.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
        let text = format!(
            "# Task list\n\nAnother session{pid} is working through the task list of this project. \
             Do not change the list or the files that it changes; `muleteer tasks status` shows \
             its progress.\n"
        );
        return event.say(&text, "SessionStart", context);
    }
    let run = holder.and_then(|locked| locked.holder?.run);
    let now = Timestamp::now();
    let mut session = list.session();
    if run.is_none() {
        match begin_session(event, &worker) {
            Ok(begun) => (list, session) = begun,
            // The session gets its context all the same. Its first stop finds it uncounted.
            Err(failure) => drop(writeln!(
                std::io::stderr(),
                "muleteer hook: the session is not counted: {}",
                anstream::adapter::strip_str(&failure.text())
            )),
        }
    }
    let interrupted = interrupted(&list, &worker, now);
    let git = muleteer_vcs::user_repo::Git::open(event.root.path()).ok();
    let ask = |what: &dyn Fn(&muleteer_vcs::user_repo::Git) -> String| {
        git.as_ref().map(what).unwrap_or_default()
    };
    let failures = event.root.failure_times(&list);
    let text = hook::session_start(&Scene {
        list: &list,
        session,
        worker: &worker,
        log: &event.root.log_tail_within(LOG_LINES, LOG_BYTES).join("\n"),
        commits: &ask(&|git| git.recent(20)),
        uncommitted: &ask(&|git| git.uncommitted()),
        stashes: &ask(&|git| git.stashes()),
        interrupted: &interrupted,
        run: run.as_deref(),
        failures: &failures,
        now,
    });
    event.say(&text, "SessionStart", context)
}

fn interrupted(list: &TaskList, worker: &str, now: Timestamp) -> Vec<String> {
    let found = claim::interrupted(list, worker, now, &[]).into_iter();
    found.map(|at| list.tasks[at].id.clone()).collect()
}

/// Counts the session and remembers it. Returns the list and the number of the session.
fn begin_session(event: &Event, worker: &str) -> Result<(TaskList, u64), Failure> {
    let mut memories = Memories::lock(event)?;
    let mut tx = begin(&event.root)?;
    let now = tx.now();
    tx.forget_ended_holder(worker);
    let process = caller::agent(&process_names()).or_else(|| session_of_no_agent(&tx.list, worker));
    if let Some(process) = process {
        tx.remember_holder(worker, Behind::Session(process));
    }
    event.root.end_leases(&mut tx.list, now);
    for marked in select::validate_dependencies(&mut tx.list, now) {
        tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
    }
    let known = memories.own().cloned();
    let continues = matches!(event.source.as_str(), "resume" | "compact")
        && known.as_ref().is_some_and(|memory| !memory.is_uncounted);
    let is_new = !continues && !has_nothing_to_do(event, &tx.list, worker, now);
    if is_new {
        // The sessions that ended without a stop: their process is gone, or has begun this one.
        let mut before = known.clone().unwrap_or_default();
        let mut ended: Vec<_> =
            memories.others().filter(|other| event.root.has_ended(&other.worker)).collect();
        ended.push(&mut before);
        for memory in ended.into_iter().filter(|memory| memory.is_open) {
            memory.is_open = false;
            event
                .root
                .note(memory.session, now, last_lines(&tx.list, true))
                .map_err(|error| listed(&error))?;
            tx.list.last_session = Some(iso(now));
        }
        tx.list.session_count += 1;
        if tx.list.mode == Mode::Exclusive {
            let pid = process.map_or_else(std::os::unix::process::parent_id, |process| process.pid);
            tx.log(Entry::lock_acquired(pid));
        }
    }
    let list = tx.commit().map_err(|error| listed(&error))?;
    let mut memory = match known {
        _ if is_new => Memory { is_open: true, ..Memory::counted(&list) },
        Some(known) => known,
        None => Memory::uncounted(&list, 0),
    };
    // A session that was not counted because of `max_sessions` would have been the next one.
    let is_beyond = memory.is_uncounted && !stats::may_begin(&list);
    let session = if is_beyond { list.session_count + 1 } else { list.session() };
    memory.worker = worker.into();
    memory.remember_interrupted(&list, &interrupted(&list, worker, now));
    memories.put(memory)?;
    // Commands in the agent's shell then know the worker name.
    if let Some(file) = std::env::var_os(ENV_FILE).filter(|path| !path.is_empty()) {
        let line = format!("export HARNESS_WORKER_ID='{worker}'\n");
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
        drop(opened.and_then(|mut file| file.write_all(line.as_bytes())));
    }
    Ok((list, session))
}

/// Returns whether a new session has nothing to do with the list, so that it is not counted: its
/// first stop would be allowed.
fn has_nothing_to_do(event: &Event, list: &TaskList, worker: &str, now: Timestamp) -> bool {
    let mut memory = Memory { session: list.session_count + 1, ..Memory::counted(list) };
    let failures = event.root.failure_times(list);
    hook::stop(list, &mut memory, false, Some(worker), &failures, now) == Answer::Silent
}

/// Returns the memory of a session whose start no hook has seen. Attempts that the log has for the
/// newest session are this session's, unless another one is known to have that number.
pub(super) fn joined(event: &Event, memories: Option<&Memories>, list: &TaskList) -> Memory {
    let is_others = memories.is_some_and(|memories| memories.has_other_of(list.session_count));
    // Before the first session is counted, the log has attempts as those of session 1.
    let logged = if is_others { 0 } else { event.root.attempts_logged(list.session()) };
    Memory { worker: event.worker(), ..Memory::uncounted(list, logged) }
}

/// Writes the end of a session into the list and its log, once for the same counts. Returns the
/// memory of it. The marker goes if nothing is left, whichever tool finished the list.
pub(super) fn end(event: &Event, memory: &Memory) -> Result<Memory, Failure> {
    let mut tx = begin(&event.root)?;
    let now = tx.now();
    for marked in select::validate_dependencies(&mut tx.list, now) {
        tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
    }
    let counts = stats::stats(&tx.list).to_string();
    if memory.is_open || memory.reported != counts {
        tx.list.last_session = Some(iso(now));
        log_end(&mut tx, memory.is_open);
        tx.under_session(memory.session.max(1));
    }
    tx.settle_marker().map_err(|error| listed(&error))?;
    tx.commit().map_err(|error| listed(&error))?;
    Ok(Memory { is_open: false, reported: counts, ..memory.clone() })
}

fn log_end(tx: &mut Tx, is_open: bool) {
    for line in last_lines(&tx.list, is_open) {
        tx.log(line);
    }
}

/// Returns the last lines of a session.
fn last_lines(list: &TaskList, is_open: bool) -> Vec<Entry> {
    let mut lines = vec![Entry::stats(&stats::stats(list))];
    if is_open && list.mode == Mode::Exclusive {
        lines.push(Entry::lock_released());
    }
    lines
}

/// Writes the end of a session whose last task removed the marker.
pub(super) fn end_without_marker(event: &Event) -> Result<(), Failure> {
    let mut memories = Memories::lock(event)?;
    match memories.own().cloned() {
        Some(memory) if memory.is_open && event.root.read().is_ok() => {
            let ended = end(event, &memory)?;
            memories.put(ended)
        }
        _ => Ok(()),
    }
}

/// Returns the process of a session that no known agent CLI started. It may be a script that ends
/// with its hook. A session with a task in progress therefore keeps that task until its lease
/// expires.
fn session_of_no_agent(list: &TaskList, worker: &str) -> Option<ProcessId> {
    let has_task = list.tasks.iter().any(|task| {
        task.status == Status::InProgress && task.claimed_by.as_deref() == Some(worker)
    });
    caller::session(&process_names()).filter(|_| !has_task)
}
