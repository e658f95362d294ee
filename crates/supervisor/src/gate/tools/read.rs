//! The tools that only read.

use super::arguments::Arguments;
use super::{Call, Client, Done, Refusal, patience, patiently, refused};
use crate::conversation::view as threads;
use crate::daemon::context::Daemon;
use crate::dispatch::control::{find, finished_or_idle, one_finished};
use crate::dispatch::view;
use crate::ledger::archive;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::mcp::Tool;
use muleteer_protocol::v1::ToolCall;
use serde_json::{Value, json};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The most bytes of a journal in one answer.
const JOURNAL_LIMIT: u64 = 32 * 1024;
/// The most lines of a journal, unless the call says otherwise.
const JOURNAL_LINES: usize = 50;
/// The most messages of a thread, unless the call says otherwise.
const MESSAGES: usize = 20;
/// The most dispatches in one answer: the newest.
const MOST_AGENTS: usize = 100;

/// Waits until agents have ended, and returns their results.
pub(super) async fn ended(
    client: &Client,
    call: &ToolCall,
    arguments: &Arguments,
) -> Result<Done, Refusal> {
    let daemon = client.daemon.clone();
    let named = arguments.texts("dispatch_ids")?;
    if named.is_empty() || named.len() > MOST_AGENTS {
        return refused(format!("`dispatch_ids` must name 1 to {MOST_AGENTS} agents"));
    }
    let ids: Result<Vec<DispatchId>, _> =
        named.iter().map(|id| find(&daemon, id).map(|found| found.id.clone())).collect();
    let (ids, any) = (ids?, arguments.flag("any")?);
    let own = arguments.number("timeout_s")?;
    let own = own.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let limit = own.into_iter().chain(patience(call)).min();
    let over = async {
        match any {
            true => one_finished(&daemon, &ids).await,
            false => finished_or_idle(&daemon, &ids).await,
        }
    };
    let done = patiently(client, limit, over).await?.is_some();
    let fleet = daemon.snapshot();
    let mut agents = vec![];
    for id in &ids {
        if let Some(dispatch) = archive::known(&daemon, id)? {
            agents.push(agent(&fleet, &dispatch));
        }
    }
    let mut value = json!({"done": done, "agents": agents});
    if !done {
        value["hint"] = json!("they are still at work: call await_agent again");
    }
    Ok(value.into())
}

fn agent(fleet: &Fleet, dispatch: &Dispatch) -> Value {
    let status = view::status(fleet, dispatch);
    let mut value = json!({
        "dispatch_id": status.id,
        "role": status.role,
        "title": status.title,
        "state": status.state,
        "reason": status.reason,
        "cost_usd": status.cost_usd,
        "result": status.result,
    });
    if let Some((text, percent)) = &dispatch.mcp.progress {
        value["progress"] = json!({"text": text, "percent": percent});
    }
    if let Some(branch) = dispatch.created.branch.as_ref() {
        value["branch"] = json!(branch);
    }
    value
}

/// Lists the agents that this agent drafted, or all that have not ended.
pub(super) fn agents(daemon: &Daemon, parent: Option<&Arc<Dispatch>>) -> Done {
    let fleet = daemon.snapshot();
    let is_shown = |dispatch: &&Arc<Dispatch>| match parent {
        Some(parent) => dispatch.created.parent.as_ref() == Some(&parent.id),
        None => !dispatch.is_finished(),
    };
    let shown = fleet.iter().rev().filter(is_shown).take(MOST_AGENTS);
    // Results are long; await_agent and get_status return them.
    let without_result = |dispatch: &Arc<Dispatch>| {
        let mut agent = agent(&fleet, dispatch);
        if let Some(fields) = agent.as_object_mut() {
            fields.remove("result");
        }
        agent
    };
    let agents: Vec<_> = shown.map(without_result).collect();
    json!({ "agents": agents }).into()
}

/// Returns the state of this agent, or of one that it drafted.
pub(super) fn status(call: &Call<'_>) -> Result<Done, Refusal> {
    let daemon = &call.client.daemon;
    let dispatch = match call.arguments.text("dispatch_id")?.filter(|id| !id.is_empty()) {
        None => call.dispatch.clone(),
        Some(id) => find(daemon, id)?,
    };
    Ok(status_of(daemon, &dispatch))
}

fn status_of(daemon: &Daemon, dispatch: &Dispatch) -> Done {
    let fleet = daemon.snapshot();
    let status = view::status(&fleet, dispatch);
    let mut value = serde_json::to_value(status).unwrap_or_default();
    if let Some((text, percent)) = &dispatch.mcp.progress {
        value["progress"] = json!({"text": text, "percent": percent});
    }
    value.into()
}

/// Returns what this agent may still spend.
pub(super) fn budget(call: &Call<'_>) -> Done {
    let fleet = call.client.daemon.snapshot();
    let dispatch = fleet.get(&call.dispatch.id).unwrap_or(&call.dispatch);
    let limits = &dispatch.created.limits;
    let family = fleet.family_usd(&dispatch.id);
    let left = muleteer_model::dispatch::child_limits::budget(&fleet, &dispatch.id, None);
    json!({
        "budget_usd": limits.budget_usd,
        "spent_usd": dispatch.spend.cost_usd,
        "spent_with_children_usd": family,
        "left_usd": left,
        "max_turns": limits.max_turns,
        "model_turns": dispatch.usage.model_turns,
        "timeout_s": limits.timeout_s,
        "awake_s": dispatch.usage.awake_ms / 1000,
    })
    .into()
}

fn thread_of(fleet: &Fleet, dispatch: &Dispatch) -> Option<Arc<Thread>> {
    fleet.conversations.find(dispatch.created.thread()?).ok().cloned()
}

/// Lists the tasks of this agent's thread.
pub(super) fn tasks(
    daemon: &Daemon,
    arguments: &Arguments,
    dispatch: &Dispatch,
) -> Result<Done, Refusal> {
    let fleet = daemon.snapshot();
    let own = dispatch.created.thread();
    match arguments.text("thread")?.filter(|id| !id.is_empty()) {
        Some(id) if own != Some(id) => refused("an agent only sees the tasks of its own thread"),
        _ => match thread_of(&fleet, dispatch) {
            Some(thread) => {
                Ok(json!({"tasks": threads::without_messages(&thread, &fleet).tasks}).into())
            }
            None => refused("this agent belongs to no thread"),
        },
    }
}

/// Returns what is known of this agent's task.
pub(super) fn context(call: &Call<'_>) -> Done {
    let daemon = &call.client.daemon;
    let fleet = daemon.snapshot();
    let dispatch = fleet.get(&call.dispatch.id).unwrap_or(&call.dispatch);
    let created = &dispatch.created;
    let thread = thread_of(&fleet, dispatch);
    let task = thread.as_ref().and_then(|thread| {
        let of = |task: &&muleteer_model::conversation::thread::Task| {
            task.dispatches.contains(&dispatch.id)
        };
        thread.tasks.iter().find(of).cloned()
    });
    let earlier: Vec<_> = task
        .iter()
        .flat_map(|task| &task.dispatches)
        .filter(|id| **id != dispatch.id)
        .filter_map(|id| fleet.get(id).map(|earlier| agent(&fleet, earlier)))
        .collect();
    json!({
        "dispatch_id": dispatch.id.as_str(),
        "role": created.role,
        "project": created.project_name(),
        "feature": created.feature,
        "title": created.title,
        "spec": created.spec,
        "task": view::task(dispatch, &daemon.paths),
        "thread_id": created.thread(),
        "task_id": task.as_ref().map(|task| task.id.clone()),
        "earlier": earlier,
        "drafted_by": created.parent.as_ref().map(ToString::to_string),
    })
    .into()
}

/// Returns the end of a journal.
pub(super) async fn journal(daemon: &Daemon, arguments: &Arguments) -> Result<Done, Refusal> {
    let dispatch = find(daemon, arguments.needed("dispatch_id")?)?;
    // The journals of a run's agents may tell of criteria that others must not know.
    if dispatch.created.by.starts_with("run/") {
        return refused("the journals of a spec run's agents are not shown to other agents");
    }
    let lines = arguments.number("tail")?.map_or(JOURNAL_LINES, |tail| tail as usize);
    let path = PathBuf::from(&dispatch.created.journal);
    let read = tokio::task::spawn_blocking(move || end_of(&path)).await;
    let text = match read {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return refused(format!("the journal cannot be read: {error}")),
        Err(_) => return refused("the journal cannot be read"),
    };
    let all: Vec<_> = text.lines().collect();
    let shown = all[all.len().saturating_sub(lines)..].join("\n");
    Ok(json!({"dispatch_id": dispatch.id.as_str(), "text": shown}).into())
}

fn end_of(path: &std::path::Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(std::io::Error::other("it is no file"));
    }
    file.seek(SeekFrom::Start(meta.len().saturating_sub(JOURNAL_LIMIT)))?;
    let mut bytes = vec![];
    file.take(JOURNAL_LIMIT).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    // The limit may have cut a line.
    let is_cut = meta.len() > JOURNAL_LIMIT;
    Ok(match text.split_once('\n').filter(|_| is_cut) {
        Some((_, rest)) => rest.to_string(),
        None => text,
    })
}

/// Returns the newest messages of this agent's thread.
pub(super) fn thread(call: &Call<'_>) -> Result<Done, Refusal> {
    let fleet = call.client.daemon.snapshot();
    let Some(thread) = thread_of(&fleet, &call.dispatch) else {
        return refused("this agent belongs to no thread");
    };
    let limit = call.arguments.number("limit")?.map_or(MESSAGES, |limit| limit as usize);
    let skip = thread.messages.len().saturating_sub(limit);
    let mut bytes = 0;
    let mut messages = vec![];
    // Newest first, until the answer is long enough for an agent.
    for message in thread.messages.iter().skip(skip).collect::<Vec<_>>().into_iter().rev() {
        bytes += message.text.len();
        if bytes > JOURNAL_LIMIT as usize && !messages.is_empty() {
            break;
        }
        messages.push(json!({
            "id": message.id,
            "author": message.author.name,
            "kind": message.author.kind.as_str(),
            "at": format!("{:.3}", message.at),
            "state": message.state.as_str(),
            "text": muleteer_model::agent::event::cut(&message.text, JOURNAL_LIMIT as usize),
        }));
    }
    messages.reverse();
    Ok(json!({"thread_id": thread.id(), "messages": messages}).into())
}

/// Carries out a tool for a client that is no agent.
pub(super) async fn outside(
    client: &Client,
    tool: Tool,
    call: &ToolCall,
    arguments: &Arguments,
) -> Result<Done, Refusal> {
    let daemon = client.daemon.clone();
    match tool {
        Tool::AwaitAgent => ended(client, call, arguments).await,
        Tool::ListAgents => Ok(agents(&daemon, None)),
        Tool::GetStatus => {
            let dispatch = find(&daemon, arguments.needed("dispatch_id")?)?;
            Ok(status_of(&daemon, &dispatch))
        }
        Tool::ReadJournal => journal(&daemon, arguments).await,
        Tool::ListTasks => {
            let fleet = daemon.snapshot();
            let id = arguments.needed("thread")?;
            match fleet.conversations.find(id) {
                Ok(thread) => {
                    Ok(json!({"tasks": threads::without_messages(thread, &fleet).tasks}).into())
                }
                Err(error) => refused(error.to_string()),
            }
        }
        Tool::GetBudget
        | Tool::GetTaskContext
        | Tool::ReadThread
        | Tool::AskHuman
        | Tool::AwaitAnswer
        | Tool::Note
        | Tool::ReportProgress
        | Tool::DraftAgent
        | Tool::KillAgent
        | Tool::MessageAgent
        | Tool::SendMessage => {
            refused(format!("`{}` belongs to an agent, and this client is none", tool.name()))
        }
    }
}
