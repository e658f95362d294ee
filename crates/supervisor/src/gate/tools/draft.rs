//! `draft_agent`: a child dispatch.
//!
//! The id of the child follows from the parent and the arguments of the call. So a call that a
//! relay, an agent or a daemon repeats after a crash finds the child that it made. Once the agent's
//! CLI has the answer, an equal call is another draft.

use super::{Call, Done, Refusal, refused};
use crate::daemon::context::{Daemon, random_key};
use crate::daemon::settings;
use crate::dispatch::control::create;
use crate::dispatch::error::{internal, unappended};
use crate::dispatch::request::{Asker, load};
use crate::dispatch::saved::Saved;
use crate::ledger::{archive, entry, try_append};
use crate::ports::agent::JournalMsg;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::{DispatchId, ID_BYTES};
use muleteer_model::event::mcp::{MOST_DRAFTS, MOST_LIVING_CHILDREN, McpCalled, Tool};
use muleteer_model::event::{Entry, Event};
use muleteer_process::fault::point;
use muleteer_protocol::v1::{Spawn, ToolTaken, WireError};
use muleteer_store::hash::sha256;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Drafts a child, or finds the one that this call made before.
pub(super) async fn agent(call: &Call<'_>) -> Result<Done, Refusal> {
    let daemon = &call.client.daemon;
    let parent = &call.dispatch;
    if parent.created.confined {
        return refused(
            "this agent works in a sandbox, and its child would not: do the task without another \
             agent",
        );
    }
    let role = call.arguments.needed("role")?.to_string();
    // Two equal calls at the same time are one draft.
    let _alone = daemon.creating(&format!("draft of {}", parent.id)).await;
    let (id, known) = child(daemon, parent, &call.arguments.canonical()).await?;
    if known.is_none() {
        check_number(daemon, parent)?;
        let spawn = spawn(call, &id, role).await?;
        let asker = Asker::Agent(parent.id.clone());
        create(daemon, &spawn, &asker, call.trace.clone()).await?;
        point("tool.drafted");
    }
    let fleet = daemon.snapshot();
    let state = fleet.get(&id).map_or("queued", |child| child.state());
    let value = json!({"dispatch_id": id.as_str(), "state": state});
    Ok(Done { value, subject: Some(id.to_string()) })
}

/// Returns the id of the child that the call means, with the child if it exists.
async fn child(
    daemon: &Arc<Daemon>,
    parent: &Dispatch,
    arguments: &str,
) -> Result<(DispatchId, Option<Arc<Dispatch>>), Refusal> {
    for number in 0..=MOST_DRAFTS {
        let id = id_of(&format!("{}\n{number}\n{arguments}", parent.id));
        match archive::known_in_time(daemon, &id).await? {
            Some(known) if known.created.parent.as_ref() != Some(&parent.id) => {}
            Some(_) if parent.mcp.drafted.contains(&id) => {}
            known => return Ok((id, known)),
        }
    }
    refused(format!("this agent has drafted {MOST_DRAFTS} agents with the same task"))
}

/// Returns the id that follows from `text`: a repeated call finds what it made before.
pub(super) fn id_of(text: &str) -> DispatchId {
    let hash = sha256(text.as_bytes());
    let mut bytes = [0; ID_BYTES];
    for (byte, digits) in bytes.iter_mut().zip(hash.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    DispatchId::from_random(bytes)
}

fn check_number(daemon: &Daemon, parent: &Dispatch) -> Result<(), Refusal> {
    let fleet = daemon.snapshot();
    let of = |child: &&Arc<Dispatch>| child.created.parent.as_ref() == Some(&parent.id);
    // A child counts although the relay was killed before it confirmed the id.
    let drafted = &fleet.get(&parent.id).map_or(parent, |parent| &**parent).mcp.drafted;
    let unconfirmed = fleet.iter().filter(of).filter(|child| !drafted.contains(&child.id));
    if drafted.len() + unconfirmed.count() >= MOST_DRAFTS {
        return refused(format!("this agent has drafted {MOST_DRAFTS} agents, which is the limit"));
    }
    let living = fleet.unfinished().filter(of).count();
    if living >= MOST_LIVING_CHILDREN {
        return refused(format!(
            "{living} agents of this agent have not ended, which is the limit: wait for them with \
             await_agent, or end one with kill_agent"
        ));
    }
    Ok(())
}

/// Makes the request for the child. It gets the environment of its parent.
async fn spawn(call: &Call<'_>, id: &DispatchId, role: String) -> Result<Spawn, Refusal> {
    let parent = &call.dispatch;
    let dir = call.client.daemon.paths.agent(parent.id.as_str());
    let saved = tokio::task::spawn_blocking(move || Saved::read(&dir)).await;
    let saved = saved.map_err(|error| internal(&error.to_string()))?;
    let saved = saved.map_err(|error| internal(&error.to_string()))?;
    let arguments = &call.arguments;
    let text = |name| arguments.text(name).map(|text| text.map(String::from));
    let budget_usd = arguments.number("budget_usd")?;
    if budget_usd.is_some_and(|usd| usd == 0.0 || !usd.is_finite()) {
        return refused("`budget_usd` must be more than 0");
    }
    Ok(Spawn {
        id: id.to_string(),
        role,
        project: project(call, &saved)?.display().to_string(),
        prompt: arguments.needed("prompt")?.to_string(),
        title: text("title")?,
        model: text("model")?,
        feature: text("feature")?,
        budget_usd,
        worktree: arguments.flag("worktree")?,
        env: saved.env,
        extra_env: saved.extra_env,
        ..Spawn::default()
    })
}

/// Returns the directory of the child: the parent's own one, a path from there, or a configured
/// project.
fn project(call: &Call<'_>, saved: &Saved) -> Result<PathBuf, Refusal> {
    let own = Path::new(call.dispatch.created.directory());
    let Some(word) = call.arguments.text("project")?.filter(|word| !word.is_empty()) else {
        return Ok(own.to_path_buf());
    };
    let top = settings::repository(own);
    let config = load(&call.client.daemon, None, Some(&top), vec![])?;
    let home = saved.env.iter().rev().find(|(name, _)| name == "HOME");
    let home = home.map(|(_, home)| PathBuf::from(home));
    let path = config.project_path(word, home.as_deref()).unwrap_or_else(|| own.join(word));
    match path.canonicalize().ok().filter(|path| path.is_dir()) {
        Some(path) => Ok(path),
        None => {
            let known: Vec<_> = config.projects.keys().map(String::as_str).collect();
            let known = match known[..] {
                [] => "no project is configured".to_string(),
                _ => format!("the configured projects are {}", known.join(", ")),
            };
            refused(format!("the project `{word}` is not a directory; {known}"))
        }
    }
}

/// Records that the agent has the id of its child.
pub(super) async fn taken(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    taken: &ToolTaken,
) -> Result<(), WireError> {
    let Ok(child) = DispatchId::try_from(taken.subject.clone()) else { return Ok(()) };
    let fleet = daemon.snapshot();
    let is_own =
        fleet.get(&child).is_some_and(|known| known.created.parent.as_ref() == Some(&dispatch.id));
    if !is_own || dispatch.mcp.drafted.contains(&child) {
        return Ok(());
    }
    let (ms, drafted) = (taken.ms, Some(child.clone()));
    let called = McpCalled { child: drafted, ms, ..McpCalled::text(Tool::DraftAgent, "") };
    record(daemon, dispatch, &format!("drafted/{child}"), called).await
}

/// Makes the record of a call durable, and shows it in the journal. `key` is empty for a record
/// that is never repeated.
pub(super) async fn record(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    key: &str,
    called: McpCalled,
) -> Result<(), WireError> {
    let id = match key {
        "" => random_key(),
        key => format!("{}/mcp/{key}", dispatch.id),
    };
    let event = Event::McpCalled(Box::new(called));
    let entry = Entry { id, ..entry(&dispatch.id, None, event) };
    let records = try_append(daemon, vec![entry]).await.map_err(|error| unappended(&error))?;
    daemon.agent(&dispatch.id).journal.cast(JournalMsg::Records(records));
    Ok(())
}
