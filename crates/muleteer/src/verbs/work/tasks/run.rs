//! `tasks run`: starts a run of the list in the daemon, and follows it.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::client::history;
use crate::client::interrupt::{or_left, until_interrupted};
use crate::render::status::where_work_is::word;
use crate::render::{safe, state_color};
use crate::verbs::agents::spawn;
use crate::verbs::work::tasks::place::{begin, root};
use muleteer_model::event::Event;
use muleteer_model::task_list::document::{Status, Task};
use muleteer_model::task_list::stats::stats;
use muleteer_model::{
    conversation_events, daemon_events, dispatch_events, spec_run_events, task_list_events,
};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request, Spawn, TasksEnded, TasksRun};
use muleteer_store::task_list::Root;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a run without tasks of its own checks which other workers hold claims.
const LOOK: Duration = Duration::from_secs(3);

const RUN: &str = "\
Examples:
  muleteer tasks run
  muleteer tasks run --concurrency 4 --max-tasks 20
  muleteer tasks run --once --backend subprocess --command './fix.sh'
  muleteer tasks run --detach && muleteer tasks status

The daemon hosts the run: closing this terminal does not stop it; use `muleteer tasks stop`.
Exits 0 when all tasks are done, 2 for an invalid list, 3 if it is locked, 4 if tasks failed for \
good, 5 at a limit, 130 at Ctrl-C, which does not stop the run.";

/// Work through the list with agents
#[derive(Debug, clap::Args)]
#[command(after_help = RUN)]
pub struct Args {
    /// The number of tasks at a time, each worker in a clone of its own
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=64)
    )]
    concurrency: u32,
    /// Stop after this many tasks [default: max_tasks_per_session of the list]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max_tasks: Option<u64>,
    /// Stop after one task
    #[arg(long, conflicts_with = "max_tasks")]
    once: bool,
    /// Print the id of the run and return without waiting
    #[arg(long)]
    detach: bool,
    /// The role of the agents
    #[arg(long, default_value = "developer")]
    role: String,
    /// The agent's backend: auto, claude-code, codex, acp, acp:NAME, opencode, pi, subprocess,
    /// rehearsal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The command of the `subprocess` backend, for `sh -c`; a JSON list runs without a shell
    #[arg(long, value_name = "CMD", value_parser = spawn::command_line)]
    command: Option<String>,
    /// The scenario of the `rehearsal` backend [default: MULETEER_SCENARIO]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The model [default: the role's, its category's, the configured default]
    #[arg(long, value_parser = spawn::model_name)]
    model: Option<String>,
    /// Stop an agent when its task has cost this much
    #[arg(long, value_name = "USD", value_parser = spawn::budget)]
    budget_usd: Option<f64>,
    /// Stop an agent after this many turns of the model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_turns: Option<u32>,
    /// Stop an agent's attempt after this time: 15m, 300s or bare seconds
    #[arg(long, value_name = "TIME", value_parser = spawn::seconds)]
    timeout: Option<u64>,
    /// Set an environment variable for agents and validations, regardless of `env.pass`
    #[arg(long, value_name = "K=V", value_parser = spawn::variable)]
    env: Vec<(String, String)>,
    /// Let agents and validations write only to their directory or clone, HOME and TMPDIR
    /// [default: off]
    #[arg(long, value_name = "SWITCH", value_parser = ["on", "off"])]
    sandbox: Option<String>,
}

/// Stop a run after the running tasks, or now
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  muleteer tasks stop\n  muleteer tasks stop --now    the next \
        session recovers the interrupted tasks"
)]
pub struct Stop {
    /// Stop the agents now
    #[arg(long)]
    now: bool,
}

pub async fn run(args: &Args, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let run = request(args, &root, context)?;
    if root.read().is_ok_and(|read| read.from_backup) {
        // The damaged list is restored here, where the warning reaches the user. If that fails, the
        // daemon reports the reason.
        drop(begin(&root));
    }
    let reply = context.ask(Request::TasksRun(Box::new(run))).await?;
    let Reply::TasksStarted { id, from_seq, warnings } = reply else {
        return Err(unexpected(&reply));
    };
    spawn::print_warnings(context, &warnings);
    if args.detach {
        if context.out.json {
            let mut document = json!({"run_id": id});
            if !warnings.is_empty() {
                document["warnings"] = json!(warnings);
            }
            context.out.document(&document)?
        } else {
            context.out.line(&id)?
        }
        return Ok(Exit::Done);
    }
    if !context.out.json {
        context.out.note(format!("run {id} of {}", root.path().display()));
    }
    let following = follow(context, &root, &id, from_seq);
    if context.out.json {
        let left = Failure::new(
            ErrorCode::Cancelled,
            format!("stopped waiting for run {id}; it continues"),
        );
        return or_left(
            context,
            left.run(&id).hint("stop it with `muleteer tasks stop`"),
            following,
        )
        .await;
    }
    let goes_on = format!("run {id} continues (stop it with `muleteer tasks stop`)");
    until_interrupted(context, &goes_on, Exit::Interrupted, following).await
}

fn request(args: &Args, root: &Root, context: &Context) -> Result<TasksRun, Failure> {
    let config = settings::config(context, Some(root.path()))?;
    settings::warn(context, config.ignored(), "");
    let backend = spawn::implied_backend(
        args.backend.as_deref(),
        args.command.is_some(),
        args.scenario.is_some(),
    );
    let project = spawn::utf8(root.path().to_path_buf())?;
    let dispatch = Spawn {
        role: args.role.clone(),
        project: project.clone(),
        model: args.model.clone(),
        backend,
        command: args.command.as_deref().map(spawn::command),
        scenario: spawn::scenario(args.scenario.as_deref())?,
        budget_usd: args.budget_usd,
        max_turns: args.max_turns,
        timeout_s: args.timeout,
        env: spawn::passed_env(&config),
        extra_env: args.env.clone(),
        config: context.config.clone().map(spawn::utf8).transpose()?,
        sandbox: args.sandbox.as_deref() == Some("on"),
        ..Spawn::default()
    };
    let max_tasks = if args.once { Some(1) } else { args.max_tasks };
    Ok(TasksRun {
        id: spawn::new_id()?,
        root: project,
        dispatch,
        concurrency: args.concurrency,
        max_tasks,
    })
}

/// Follows the run until it ends, and exits by its outcome.
async fn follow(context: &Context, root: &Root, id: &str, from_seq: u64) -> Result<Exit, Failure> {
    let waiting = context.ask(Request::TasksWait { id: id.into() });
    let in_hand = RefCell::new(HashSet::new());
    let mut each = |seen: history::Seen<'_>| {
        match seen.record.map(|record| &record.entry.event) {
            Some(Event::TaskBegun { list, task, .. }) if list == id => {
                _ = in_hand.borrow_mut().insert(task.clone());
            }
            Some(Event::TaskEnded { list, task, .. }) if list == id => {
                _ = in_hand.borrow_mut().remove(task);
            }
            _ => {}
        }
        if let Some(line) = seen.record.and_then(|record| line(&record.entry.event, id)) {
            context.out.note(line);
        }
        Ok(ControlFlow::Continue(()))
    };
    let showing = async {
        if context.out.json || context.out.quiet {
            std::future::pending::<()>().await;
        }
        let client = context.connect_if_running().await?;
        tokio::select! {
            shown = history::events(context, client, from_seq, true, &mut each) => shown,
            () = name_others(context, root, &in_hand) => Ok(()),
        }
    };
    tokio::pin!(waiting);
    let reply = tokio::select! {
        reply = &mut waiting => reply?,
        // A failure to show the events must not end the waiting.
        _ = showing => waiting.await?,
    };
    let Reply::TasksEnded(ended) = reply else { return Err(unexpected(&reply)) };
    conclude(context, root, &ended)
}

/// Reports the claims of others for which a run without tasks of its own waits. They can last as
/// long as their leases.
async fn name_others(context: &Context, root: &Root, in_hand: &RefCell<HashSet<String>>) {
    let mut told = HashSet::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(read) = root.read() else { continue };
        let others = read.list.tasks.iter().filter(|task| task.status == Status::InProgress);
        for task in others.filter(|_| in_hand.borrow().is_empty()) {
            let who = task.claimed_by.as_deref().unwrap_or("somebody");
            if told.insert((task.id.clone(), who.to_string())) {
                let until = task
                    .lease_expires_at
                    .map(|at| format!(", until {at:.0} at most"))
                    .unwrap_or_default();
                context.out.note(safe(&format!(
                    "{}  is claimed by worker {who}; waiting for it{until}",
                    task.id
                )));
            }
        }
    }
}

fn line(event: &Event, id: &str) -> Option<String> {
    match event {
        Event::TaskListSession { list, session } if list == id => {
            Some(format!("session {session}"))
        }
        Event::TaskBegun { list, task, dispatch, .. } if list == id => {
            Some(format!("{task}  started by {dispatch}"))
        }
        Event::TaskEnded { list, task, status, message, .. } if list == id => {
            let color = state_color(status);
            Some(safe_line(&format!("{task}  {status}  {message}"), color))
        }
        Event::Fault { what, message } if *what == format!("task list {id}") => {
            Some(safe_line(&format!("warning: {message}"), state_color("failed")))
        }
        conversation_events!()
        | task_list_events!()
        | daemon_events!()
        | dispatch_events!()
        | spec_run_events!()
        | Event::Unknown => None,
    }
}

fn safe_line(text: &str, color: &str) -> String {
    format!("{color}{}{}", safe(text.trim_end()), crate::render::RESET)
}

fn conclude(context: &Context, root: &Root, ended: &TasksEnded) -> Result<Exit, Failure> {
    let list = root.read().ok().map(|read| read.list);
    let told = |code: &str| Failure::new(known_code(code), ended.reason.clone());
    let exit = match ended.status.as_str() {
        "completed" => Exit::Done,
        "failed" => Exit::Failed,
        "limit" | "interrupted" => Exit::Limit,
        "invalid" => Exit::BadInput,
        "environment" | "locked" => Exit::Precondition,
        _ => ended.code.as_deref().map_or(Exit::Failed, crate::cli::exit::of_code),
    };
    if context.out.json {
        let counted = list.as_ref().map(stats);
        let tasks: Vec<Value> = list
            .iter()
            .flat_map(|list| &list.tasks)
            .map(|task| {
                json!({"id": task.id, "status": task.status.as_str(), "attempts": task.attempts,
                       "last_error": task.error_log.last()})
            })
            .collect();
        let mut document = json!({
            "run_id": ended.id, "root": ended.root, "status": ended.status, "reason": ended.reason,
            "code": ended.code, "session": ended.session, "stats": counted, "tasks": tasks,
        });
        if let Some(told) = ended.code.as_deref().map(told) {
            document["error"] = told.run(&ended.id).document()["error"].take();
        }
        Failure::unless_closed(context.out.document(&document))?;
        return Ok(exit);
    }
    if let Some(told) = ended.code.as_deref().map(told) {
        context.out.failure(&told);
        return Ok(exit);
    }
    let counted = list.as_ref().map(|list| stats(list).to_string()).unwrap_or_default();
    let done = list.as_ref().is_some_and(|list| list.tasks.iter().any(is_done));
    let place = match done {
        true => format!("\nview the work: git -C {} log", word(&ended.root)),
        false => String::new(),
    };
    context.out.note(format!("{}: {}\n{counted}{place}", ended.status, ended.reason));
    Ok(exit)
}

fn is_done(task: &Task) -> bool {
    task.status == Status::Completed
}

/// Replaces an unknown code: a newer daemon may have codes that this client does not know.
fn known_code(code: &str) -> ErrorCode {
    code.parse().unwrap_or(ErrorCode::Internal)
}

pub async fn stop(args: &Stop, said: Option<&Path>, context: &Context) -> Result<Exit, Failure> {
    let root = root(said)?;
    let id = spawn::utf8(root.path().to_path_buf())?;
    if context.connect_if_running().await?.is_none() {
        let unfinished = crate::client::live_fleet::LiveFleet::open(context)?
            .fleet()
            .task_lists
            .on(&id)
            .is_some();
        if !unfinished {
            return Err(Failure::new(ErrorCode::NotFound, "no run is working on this list"));
        }
    }
    match context.ask(Request::TasksStop { id, now: args.now }).await? {
        Reply::TasksEnded(ended) if context.out.json => {
            context.out.document(&json!({"run_id": ended.id, "now": args.now}))?;
        }
        Reply::TasksEnded(ended) => {
            let what = if args.now { "is being stopped" } else { "stops after the running tasks" };
            context.out.note(format!("run {} {what}", ended.id));
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}
