//! `hook`: the verbs that an agent CLI's session calls at its events. A hook reads the CLI's JSON
//! on stdin and answers in the CLI's format.
//!
//! Without `.harness-active`, and inside an agent that Muleteer started, a hook does nothing and
//! does not even read the list. An error must not stop the session: the hook exits with 4, which
//! blocks nothing. There is one exception. If the list cannot be read, the hooks of an end (`stop`,
//! `subagent-stop`, `teammate-idle`, `self-reflect-stop`) reject it a bounded number of times.
//! Otherwise the work would end without anybody noticing.

mod event;
mod lease;
mod memories;
mod session;

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::verbs::work::tasks::place::{listed, variable};
use event::{Event, reflections};
use jiff::Timestamp;
use memories::Memories;
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Status;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::select;
use muleteer_model::task_list::session::hook::{self, Answer, Memory, REFUSALS, Subagent};
use muleteer_model::task_list::stats;
use muleteer_store::task_list::{Locked, SessionLock, TaskListError};
use serde_json::json;
use std::io::Write;

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

impl Name {
    fn as_str(self) -> &'static str {
        match self {
            Self::SessionStart => "session-start",
            Self::Stop => "stop",
            Self::SubagentStop => "subagent-stop",
            Self::TeammateIdle => "teammate-idle",
            Self::Claim => "claim",
            Self::Renew => "renew",
            Self::SelfReflectStop => "self-reflect-stop",
        }
    }
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    // In an agent of our own the daemon decides.
    if std::env::var_os("MULETEER_DISPATCH_ID").is_some_and(|id| !id.is_empty()) {
        return Ok(Exit::Done);
    }
    match event::read()
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

impl Event {
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
    // This hook runs after the last task has removed the marker, for the sessions that took part
    // and for a list that the reference's hook has ended.
    let reviews = name == Name::SelfReflectStop
        && (event.session.is_some() || active)
        && (active || memories::is_known(event) || event.reflect().exists());
    if !active && !reviews {
        if name == Name::Stop && memories::is_known(event) {
            session::end_without_marker(event)?;
        }
        return Ok(Exit::Done);
    }
    event.log(name.as_str());
    match name {
        Name::SessionStart => return session::start(event, context),
        Name::Claim => return lease::take(event, context),
        Name::Renew => return lease::renew(event),
        Name::SelfReflectStop if event.session.is_none() || reflections() == 0 => {
            return Ok(Exit::Done);
        }
        Name::Stop | Name::SubagentStop | Name::TeammateIdle | Name::SelfReflectStop => {}
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
    drop(select::validate_dependencies(&mut list, now));
    let memories = Memories::lock(event);
    let known = memories.as_ref().ok().and_then(Memories::own).cloned();
    let mut memory = known.unwrap_or_else(|| session::joined(event, memories.as_ref().ok(), &list));
    let answer = decide(name, event, &list, &mut memory, now);
    let is_over = stats::is_over(&list);
    let ends = name == Name::Stop
        && answer == Answer::Silent
        && !list.tasks.is_empty()
        && hook::is_at_end(&list, &memory)
        && (is_over || memory.is_open || memory.reported != stats::stats(&list).to_string());
    let remembered = memories.and_then(|mut memories| {
        // The session must be known before the marker goes: the review is only for known ones.
        memories.put(memory.clone())?;
        if ends { memories.put(session::end(event, &memory)?) } else { Ok(()) }
    });
    match remembered {
        // A rejection that cannot be counted is given only once.
        Err(failure)
            if !matches!(answer, Answer::Refuse(_))
                || event.again
                || name == Name::TeammateIdle =>
        {
            Err(failure)
        }
        Ok(()) | Err(_) => {
            if name == Name::SelfReflectStop && answer == Answer::Silent && is_over {
                drop(std::fs::remove_file(event.reflect()));
            }
            say_answer(name, answer, context)
        }
    }
}

/// Returns the answer of a hook of an end.
fn decide(
    name: Name,
    event: &Event,
    list: &TaskList,
    memory: &mut Memory,
    now: Timestamp,
) -> Answer {
    let failures = event.root.failure_times(list);
    let worker = event.worker();
    match name {
        Name::Stop => {
            let known = event.known_worker();
            hook::stop(list, memory, event.again, known.as_deref(), &failures, now)
        }
        Name::SubagentStop => subagent_stop(event, list, memory, &worker),
        Name::TeammateIdle => {
            let name = event.teammate.clone().unwrap_or_else(|| "teammate".into());
            let names: Vec<_> =
                event.teammate.iter().cloned().chain(event.known_worker()).collect();
            hook::teammate_idle(list, memory, &name, &names, &failures, now)
        }
        Name::SelfReflectStop => hook::self_reflect(list, memory, reflections()),
        Name::SessionStart | Name::Claim | Name::Renew => Answer::Silent,
    }
}

fn subagent_stop(event: &Event, list: &TaskList, memory: &mut Memory, worker: &str) -> Answer {
    let own: Vec<_> = event.agent.iter().chain(&event.teammate).cloned().collect();
    let pinned = variable("HARNESS_WORKER_ID");
    let is_named = !own.is_empty() || pinned.is_some();
    let is_repeated = event.is_repeated;
    if own.is_empty() {
        // Nothing tells the subagent and its session apart.
        let names: Vec<_> = pinned.into_iter().chain([worker.to_string()]).collect();
        let subagent = Subagent { names: &names, is_named, is_repeated };
        return hook::subagent_stop(list, memory, event.again, subagent);
    }
    // The name of a subagent's claim begins with the name of its session.
    let below = own.iter().map(|agent| format!("{worker}/{agent}"));
    let names: Vec<_> = own.iter().cloned().chain(below).chain([worker.to_string()]).collect();
    // The session's own claim does not belong to the subagent.
    let mut others = list.clone();
    for task in &mut others.tasks {
        if task.claimed_by.as_deref() == Some(worker) {
            task.status = Status::Pending;
        }
    }
    let subagent = Subagent { names: &names, is_named, is_repeated };
    hook::subagent_stop(&others, memory, event.again, subagent)
}

fn say_answer(name: Name, answer: Answer, context: &Context) -> Result<Exit, Failure> {
    match answer {
        Answer::Silent => Ok(Exit::Done),
        Answer::GiveUp => {
            drop(writeln!(
                std::io::stderr(),
                "muleteer hook: WARN the end is allowed although work may be left: it was refused \
                 {REFUSALS} times without progress (see `muleteer tasks status`)"
            ));
            Ok(Exit::Done)
        }
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
    let memories = Memories::lock(event);
    let known = memories.as_ref().ok().and_then(Memories::own).cloned();
    let newest = || memories.as_ref().map(Memories::newest).unwrap_or_default();
    let mut memory = known.unwrap_or_else(|| Memory { session: newest(), ..Memory::default() });
    let why = anstream::adapter::strip_str(&listed(error).text()).to_string();
    let answer = match name {
        Name::SelfReflectStop => hook::self_reflect_unreadable(&mut memory, reflections(), &why),
        // A teammate's event does not say whether it was rejected before.
        Name::TeammateIdle => hook::stop_unreadable(&mut memory, true, &why),
        _ => hook::stop_unreadable(&mut memory, event.again, &why),
    };
    match memories.and_then(|mut memories| memories.put(memory)) {
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
