//! `hook`: the verbs that an agent CLI's session calls at its events. A hook reads the CLI's JSON
//! on stdin and answers in the CLI's format.
//!
//! Without `.harness-active`, and inside an agent that Muleteer started, a hook does nothing and
//! does not even read the list. An error must not stop the session: the hook exits with 4, which
//! blocks nothing. There is one exception. If the list cannot be read, the hooks of an end (`stop`,
//! `subagent-stop`, `teammate-idle`, `self-reflect-stop`) reject it a bounded number of times.
//! Otherwise the work would end without anybody noticing.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::{begin, listed, place};
use jiff::Timestamp;
use muleteer_backends::claude_code::ENV_FILE;
use muleteer_backends::process_names;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Status;
use muleteer_model::task_list::TASKS;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::hook::{self, Answer, Memory, Scene};
use muleteer_model::task_list::stats;
use muleteer_model::text::foreign_json;
use muleteer_process::identity::ProcessId;
use muleteer_process::identity::caller;
use muleteer_protocol::ErrorCode;
use muleteer_store::task_list::{Behind, Locked, Root, SessionLock, TaskListError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum length of a CLI's event.
const INPUT_LIMIT: usize = 16 * 1024 * 1024;
/// The number of sessions that are remembered.
const SESSIONS: usize = 50;
/// The number of log lines in a session's context: the whole log would cost more than it is worth.
const LOG_LINES: usize = 200;
/// The maximum length of these lines together: a CLI cuts a hook's output beyond some ten thousand
/// characters.
const LOG_BYTES: usize = 4 * 1024;
/// A lease is renewed when less than this remains.
const RENEW_BELOW: Duration = Duration::from_secs(10 * 60);

/// Handle an event of an agent CLI (`muleteer hooks` installs these)
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  echo '{\"session_id\":\"x\",\"cwd\":\".\"}' | muleteer hook \
        session-start\n\nReads the event's JSON from stdin. Does nothing without a .harness-active \
        file.")]
pub struct Args {
    #[command(subcommand)]
    name: Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Subcommand)]
enum Name {
    /// Print the state of the task list for a new session
    #[command(after_help = "Example:\n  muleteer hook session-start < event.json")]
    SessionStart,
    /// Keep a session from stopping while tasks are open
    #[command(after_help = "Example:\n  muleteer hook stop < event.json")]
    Stop,
    /// Keep a subagent from stopping while it holds a claim
    #[command(after_help = "Example:\n  muleteer hook subagent-stop < event.json")]
    SubagentStop,
    /// Give an idle teammate the next task
    #[command(after_help = "Example:\n  muleteer hook teammate-idle < event.json")]
    TeammateIdle,
    /// Claim the next task for a worker
    #[command(after_help = "Example:\n  muleteer hook claim < event.json")]
    Claim,
    /// Renew a worker's claims
    #[command(after_help = "Example:\n  muleteer hook renew < event.json")]
    Renew,
    /// Ask for a review of the goal when all tasks are done
    #[command(after_help = "Example:\n  muleteer hook self-reflect-stop < event.json")]
    SelfReflectStop,
}

/// A CLI's event: those fields of Claude Code's that matter.
#[derive(Debug)]
struct Event {
    root: Root,
    session: String,
    again: bool,
    agent: Vec<String>,
    teammate: Option<String>,
    name: String,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    // In an agent of our own the daemon decides.
    if std::env::var_os("MULETEER_DISPATCH_ID").is_some_and(|id| !id.is_empty()) {
        return Ok(Exit::Done);
    }
    match event()
        .and_then(|event| event.map_or(Ok(Exit::Done), |event| answer(args.name, &event, context)))
    {
        Ok(exit) => Ok(exit),
        Err(failure) => {
            // The CLI would take exit code 2 as a rejection.
            drop(writeln!(
                std::io::stderr(),
                "muleteer hook: {}",
                anstream::adapter::strip_str(&failure.text())
            ));
            Ok(Exit::Failed)
        }
    }
}

/// Reads the event. `None` if no list is active, and none was active in this session.
fn event() -> Result<Option<Event>, Failure> {
    let document =
        foreign_json::read_from(&mut std::io::stdin().lock(), INPUT_LIMIT).map_err(|error| {
            Failure::new(ErrorCode::BadInput, format!("cannot read the event: {error}"))
        })?;
    // A damaged event must not let a session stop; the fields that could be read decide.
    let damaged = document.damage.is_some() && !document.is_empty;
    if let Some(fault) = document.fault().filter(|_| !document.is_empty) {
        drop(writeln!(std::io::stderr(), "muleteer hook: the event is invalid: {fault}"));
    }
    let value = document.value;
    let field = |key: &str| {
        value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(String::from)
    };
    let pinned =
        std::env::var_os("HARNESS_STATE_ROOT").filter(|path| !path.is_empty()).map(PathBuf::from);
    let Some(dir) = pinned.or_else(|| list_above(&starts(field("cwd").map(PathBuf::from)))) else {
        return Ok(None);
    };
    let event = Event {
        root: Root::at(&dir),
        session: field("session_id").unwrap_or_else(|| "unknown".into()),
        // A damaged event counts as a repetition, so that the rejections are counted and end.
        again: value.get("stop_hook_active").and_then(Value::as_bool).unwrap_or(damaged),
        agent: ["agent_id", "agent_type", "agent_name"].into_iter().filter_map(field).collect(),
        teammate: field("teammate_name"),
        name: field("hook_event_name").unwrap_or_default(),
    };
    let known = event.memories().contains_key(&event.session);
    Ok((event.root.active().exists() || known).then_some(event))
}

/// Returns the directories from which a list is searched, in order. A path that is not UTF-8
/// arrives changed in the event's JSON; then this process's own directory comes first.
fn starts(cwd: Option<PathBuf>) -> Vec<PathBuf> {
    let here = std::env::current_dir().ok();
    let is_there = cwd.as_ref().is_some_and(|cwd| cwd.is_dir());
    let order = if is_there { [cwd, here] } else { [here, cwd] };
    order.into_iter().flatten().collect()
}

fn list_above(starts: &[PathBuf]) -> Option<PathBuf> {
    let mut dirs = starts.iter().flat_map(|start| start.ancestors());
    dirs.find(|dir| dir.join(TASKS).is_file()).map(Path::to_path_buf)
}

impl Event {
    /// Returns the worker name of this session.
    fn worker(&self) -> String {
        let said = std::env::var("HARNESS_WORKER_ID").ok().filter(|id| !id.is_empty());
        said.unwrap_or_else(|| {
            let id: String = self
                .session
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
                .take(8)
                .collect();
            format!("claude-{id}")
        })
    }

    fn file(&self) -> PathBuf {
        self.root.private().join("hooks.json")
    }

    fn memories(&self) -> BTreeMap<String, Memory> {
        let read =
            std::fs::read(self.file()).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        read.unwrap_or_default()
    }

    fn remember(&self, memory: Memory) -> Result<(), Failure> {
        let mut all = self.memories();
        all.insert(self.session.clone(), memory);
        while all.len() > SESSIONS {
            let oldest =
                all.iter().min_by_key(|(_, memory)| memory.session).map(|(id, _)| id.clone());
            oldest.map(|id| all.remove(&id));
        }
        let fail = |error: String| Failure::new(ErrorCode::Io, error).file(self.file());
        std::fs::create_dir_all(self.root.private()).map_err(|error| fail(error.to_string()))?;
        let bytes = serde_json::to_vec_pretty(&all).map_err(|error| fail(error.to_string()))?;
        muleteer_store::atomic::write_atomic(&self.file(), &bytes, 0o644)
            .map_err(|error| fail(error.to_string()))
    }

    fn say(&self, text: &str, default: &str, context: &Context) -> Result<Exit, Failure> {
        let name = if self.name.is_empty() { default } else { &self.name };
        let output =
            json!({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}});
        context.out.json_line(&output)?;
        Ok(Exit::Done)
    }
}

fn answer(name: Name, event: &Event, context: &Context) -> Result<Exit, Failure> {
    let active = event.root.active().exists();
    match name {
        // This hook runs after the last task has removed the marker, for the sessions that took
        // part.
        Name::SelfReflectStop => {}
        _ if !active => return Ok(Exit::Done),
        Name::SessionStart => return session_start(event, context),
        Name::Claim => return take(event, context),
        Name::Renew => return renew(event),
        _ => {}
    }
    let mut list = match event.root.read() {
        Ok(reading) => reading.list,
        Err(error) => return unreadable(name, event, &error, context),
    };
    let now = Timestamp::now();
    // Other sessions are not held to a list that the daemon or another session works through.
    if SessionLock::holder(&event.root).is_some_and(|locked| is_a_session_s(&locked, &list)) {
        return Ok(Exit::Done);
    }
    event.root.end_leases(&mut list, now);
    let known = event.memories().get(&event.session).cloned();
    let mut memory =
        known.unwrap_or_else(|| Memory { session: list.session_count, ..Memory::default() });
    let failures = event.root.failure_times(&list);
    let worker = event.worker();
    let answer = match name {
        Name::Stop => hook::stop(&list, &mut memory, event.again, &worker, &failures, now),
        Name::SubagentStop => {
            let mut workers = event.agent.clone();
            // The name of a subagent's claim begins with the name of its session.
            workers.extend(event.agent.iter().map(|agent| format!("{worker}/{agent}")));
            workers.push(format!("{worker}/"));
            let workers: Vec<_> =
                workers.into_iter().map(|name| name.trim_end_matches('/').to_string()).collect();
            // The session's own claim does not belong to the subagent.
            let mut others = list.clone();
            for task in &mut others.tasks {
                if task.claimed_by.as_deref() == Some(&worker) {
                    task.status = Status::Pending;
                }
            }
            hook::subagent_stop(&others, &mut memory, event.again, &workers)
        }
        Name::TeammateIdle => {
            let name = event.teammate.clone().unwrap_or_else(|| "teammate".into());
            hook::teammate_idle(&list, &mut memory, &name, &failures, now)
        }
        _ => hook::self_reflect(&list, &mut memory),
    };
    event.remember(memory)?;
    say_answer(name, answer, context)
}

fn say_answer(name: Name, answer: Answer, context: &Context) -> Result<Exit, Failure> {
    match answer {
        Answer::Silent => Ok(Exit::Done),
        // This event has no answer in JSON; the CLI passes stderr to the teammate.
        Answer::Refuse(text) if name == Name::TeammateIdle => {
            drop(writeln!(std::io::stderr(), "{text}"));
            Ok(Exit::BadInput)
        }
        Answer::Refuse(reason) => {
            context.out.json_line(&json!({"decision": "block", "reason": reason}))?;
            Ok(Exit::Done)
        }
    }
}

/// Handles a list that cannot be read, and therefore does not show whether work is left.
fn unreadable(
    name: Name,
    event: &Event,
    error: &TaskListError,
    context: &Context,
) -> Result<Exit, Failure> {
    let is_a_run =
        |locked: &Locked| locked.holder.as_ref().is_some_and(|holder| holder.run.is_some());
    if SessionLock::holder(&event.root).is_some_and(|locked| is_a_run(&locked)) {
        return Ok(Exit::Done);
    }
    let memories = event.memories();
    let newest = || memories.values().map(|memory| memory.session).max().unwrap_or_default();
    let known = memories.get(&event.session).cloned();
    let mut memory = known.unwrap_or_else(|| Memory { session: newest(), ..Memory::default() });
    let why = anstream::adapter::strip_str(&listed(error).text()).to_string();
    let answer = match name {
        Name::SelfReflectStop => hook::self_reflect_unreadable(&mut memory, &why),
        // A teammate's event does not say whether it was rejected before.
        Name::TeammateIdle => hook::stop_unreadable(&mut memory, true, &why),
        _ => hook::stop_unreadable(&mut memory, event.again, &why),
    };
    match event.remember(memory) {
        // A rejection that cannot be counted is given only once.
        Err(failure) if event.again || name == Name::TeammateIdle => Err(failure),
        _ => say_answer(name, answer, context),
    }
}

/// Returns whether a lock is held for a whole session: by a run of the daemon, or on an exclusive
/// list by another tool. Verbs of this program hold it only for an instant.
fn is_a_session_s(locked: &Locked, list: &TaskList) -> bool {
    match &locked.holder {
        Some(holder) => holder.run.is_some(),
        None => list.mode == Mode::Exclusive,
    }
}

/// Starts a session: counts it and describes the state of the list.
fn session_start(event: &Event, context: &Context) -> Result<Exit, Failure> {
    let worker = event.worker();
    let holder = SessionLock::holder(&event.root);
    let mut list = event.root.read().map_err(|error| listed(&error))?.list;
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
    let interrupted = |list: &TaskList| -> Vec<String> {
        let found = claim::interrupted(list, &worker, now, &[]).into_iter();
        found.map(|at| list.tasks[at].id.clone()).collect()
    };
    if run.is_none() {
        let mut tx = begin(&event.root)?;
        tx.forget_ended_holder(&worker);
        if let Some(process) =
            caller::agent(&process_names()).or_else(|| session_of_no_agent(&tx.list, &worker))
        {
            tx.remember_holder(&worker, Behind::Session(process));
        }
        event.root.end_leases(&mut tx.list, now);
        if !stats::is_over(&tx.list) {
            tx.list.session_count += 1;
        }
        let now = tx.now();
        for marked in select::validate_dependencies(&mut tx.list, now) {
            tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
        }
        list = tx.commit().map_err(|error| listed(&error))?;
        let mut memory = Memory {
            session: list.session_count,
            attempts_before: stats::stats(&list).attempts_total,
            ..Memory::default()
        };
        memory.remember_interrupted(&list, &interrupted(&list));
        event.remember(memory)?;
        // Commands in the agent's shell then know the worker name.
        if let Some(file) = std::env::var_os(ENV_FILE).filter(|path| !path.is_empty()) {
            let line = format!("export HARNESS_WORKER_ID='{worker}'\n");
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
            drop(opened.and_then(|mut file| file.write_all(line.as_bytes())));
        }
    }
    let interrupted = interrupted(&list);
    let git = muleteer_vcs::user_repo::Git::open(event.root.path()).ok();
    let ask = |what: &dyn Fn(&muleteer_vcs::user_repo::Git) -> String| {
        git.as_ref().map(what).unwrap_or_default()
    };
    let failures = event.root.failure_times(&list);
    let text = hook::session_start(&Scene {
        list: &list,
        session: list.session(),
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

/// Returns the process of a session that no known agent CLI started. It may be a script that ends
/// with its hook. A session with a task in progress therefore keeps that task until its lease
/// expires.
fn session_of_no_agent(list: &TaskList, worker: &str) -> Option<ProcessId> {
    let has_task = list.tasks.iter().any(|task| {
        task.status == Status::InProgress && task.claimed_by.as_deref() == Some(worker)
    });
    caller::session(&process_names()).filter(|_| !has_task)
}

fn take(event: &Event, context: &Context) -> Result<Exit, Failure> {
    let worker = event
        .teammate
        .clone()
        .or_else(|| event.agent.first().cloned())
        .unwrap_or_else(|| event.worker());
    let at = place(&event.root, worker.clone(), context)?;
    let base = at.git.head().map_err(|error| crate::verbs::work::tasks::place::git(&error))?;
    let mut tx = begin(&event.root)?;
    let now = tx.now();
    tx.forget_ended_holder(&worker);
    event.root.end_leases(&mut tx.list, now);
    if claim::in_hand(&tx.list, None, now).is_some() {
        return Ok(Exit::Done);
    }
    let Some(found) = select::next(&tx.list, &event.root.failure_times(&tx.list)) else {
        return Ok(Exit::Done);
    };
    let id = tx.list.tasks[found].id.clone();
    // No task begins in the middle of an operation of git: see `muleteer tasks claim`.
    if at.git.check_no_operation().is_err() {
        return Ok(Exit::Done);
    }
    if claim::claim(&mut tx.list, &id, &worker, &base, now, claim::LEASE).is_err() {
        return Ok(Exit::Done);
    }
    let task = tx.list.tasks[found].clone();
    tx.log(Entry::starting(&task, &base));
    // Only an agent's process is remembered: any other caller may have run nothing but this hook.
    if let Some(process) = caller::agent(&process_names()) {
        tx.remember_holder(&worker, Behind::Process(process));
    }
    tx.commit().map_err(|error| listed(&error))?;
    drop(at.git.remember_start(&id, &base));
    let text = format!(
        "You have {id} ({}) of the task list, as worker {worker}. It is validated by `{}`. End it \
         with `muleteer tasks \
         complete {id} --worker {worker}`, or `muleteer tasks fail {id} --worker {worker} \
         \"why\"`.",
        task.title.trim(),
        task.command.as_deref().unwrap_or("nothing yet")
    );
    event.say(&text, "SubagentStart", context)
}

/// Renews leases. It must be cheap if nothing is due, because it runs after every tool call.
fn renew(event: &Event) -> Result<Exit, Failure> {
    let worker = event.worker();
    let now = Timestamp::now();
    let is_due = |task: &muleteer_model::task_list::Task| {
        let by = task.claimed_by.as_deref().unwrap_or_default();
        let ours = by == worker
            || by.starts_with(&format!("{worker}/"))
            || event.agent.iter().any(|agent| agent == by);
        let left =
            task.lease_expires_at.map_or(i64::MAX, |until| until.duration_since(now).as_secs());
        task.status == Status::InProgress && ours && left < RENEW_BELOW.as_secs().cast_signed()
    };
    let list = event.root.read().map_err(|error| listed(&error))?.list;
    if !list.tasks.iter().any(is_due) {
        return Ok(Exit::Done);
    }
    let mut tx = begin(&event.root)?;
    let due: Vec<_> = tx
        .list
        .tasks
        .iter()
        .filter(|task| is_due(task))
        .map(|task| (task.id.clone(), task.claimed_by.clone()))
        .collect();
    tx.forget_ended_holder(&worker);
    for (id, by) in due {
        drop(claim::renew(&mut tx.list, &id, &by.unwrap_or_default(), now, claim::LEASE));
    }
    tx.commit().map_err(|error| listed(&error))?;
    Ok(Exit::Done)
}
