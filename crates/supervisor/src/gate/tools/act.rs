//! The tools by which an agent acts: notes, reports, messages, and the end of a child.

use super::draft::{id_of, record};
use super::{Call, Done, Refusal, refused};
use crate::conversation::files::attach_for_agent;
use crate::daemon::context::Daemon;
use crate::dispatch::control::{find, kill as kill_dispatch, send as send_prompt};
use crate::dispatch::error::unappended;
use crate::dispatch::prompt_files::Further;
use crate::ledger::{entry, try_append};
use jiff::Timestamp;
use muleteer_model::conversation::event::{Author, AuthorKind, MessageRecorded};
use muleteer_model::dispatch::{Dispatch, PromptState};
use muleteer_model::event::mcp::{McpCalled, Tool};
use muleteer_model::event::{Entry, Event};
use muleteer_process::fault::point;
use muleteer_protocol::v1::Reply;
use serde_json::json;
use std::sync::Arc;

/// Writes a note or a report of progress into the journal.
pub(super) async fn note(call: &Call<'_>, tool: Tool) -> Result<Done, Refusal> {
    let text = call.arguments.text("text")?.unwrap_or_default();
    let percent = match call.arguments.number("percent")? {
        Some(percent) if percent > 100.0 => return refused("`percent` must be at most 100"),
        percent => percent.map(|percent| percent as u8),
    };
    check_pace(call, text)?;
    let percent = percent.filter(|_| tool == Tool::ReportProgress);
    let called = McpCalled { percent, ..McpCalled::text(tool, text.trim()) };
    let daemon = &call.client.daemon;
    record(daemon, &call.dispatch, &call.call.key, called).await?;
    Ok(json!({"state": "recorded"}).into())
}

/// Checks the number and the length of an agent's notes, messages and questions.
pub(super) fn check_pace(call: &Call<'_>, text: &str) -> Result<(), Refusal> {
    let daemon = &call.client.daemon;
    let now = daemon.snapshot();
    let dispatch = now.get(&call.dispatch.id).unwrap_or(&call.dispatch);
    match dispatch.mcp.may_note(text, Timestamp::now()) {
        Ok(()) => Ok(()),
        Err(error) => refused(format!(
            "{error}: write one text for several steps, of at most {} bytes",
            muleteer_model::event::mcp::TEXT_LIMIT
        )),
    }
}

/// Finds a child of the agent. Another agent's dispatch is refused.
fn own_child(call: &Call<'_>) -> Result<Arc<Dispatch>, Refusal> {
    let id = call.arguments.needed("dispatch_id")?;
    let found = find(&call.client.daemon, id)?;
    match found.created.parent.as_ref() == Some(&call.dispatch.id) {
        true => Ok(found),
        false => refused(format!(
            "dispatch {id} was not started by this agent. It may act only on agents that it \
             drafted; `list_agents` shows them"
        )),
    }
}

/// Ends a child.
pub(super) async fn kill(call: &Call<'_>) -> Result<Done, Refusal> {
    let child = own_child(call)?;
    let reason = call.arguments.text("reason")?.map(String::from);
    let by = format!("agent/{}", call.dispatch.id);
    let daemon = &call.client.daemon;
    let reply = kill_dispatch(daemon, child.id.as_str(), reason, &by).await?;
    let note = match reply {
        Reply::Done { note, .. } => note,
        _ => None,
    };
    let state = daemon.snapshot().get(&child.id).map_or("killed", |child| child.state());
    Ok(json!({"dispatch_id": child.id.as_str(), "state": state, "note": note}).into())
}

/// Refuses a repeated message that its agent will not get: the agent was killed meanwhile.
pub(super) fn check_withdrawn(
    daemon: &Daemon,
    dispatch: &Dispatch,
    key: &str,
) -> Result<(), Refusal> {
    let fleet = daemon.snapshot();
    let prompt = fleet.get(&dispatch.id).and_then(|dispatch| dispatch.prompt(key));
    match prompt.map(|prompt| prompt.state) {
        Some(PromptState::Withdrawn | PromptState::Returned) => refused(format!(
            "dispatch {} ended before it received the message: draft another agent",
            dispatch.id
        )),
        _ => Ok(()),
    }
}

/// Sends a message to a child.
pub(super) async fn message(call: &Call<'_>) -> Result<Done, Refusal> {
    let child = own_child(call)?;
    let text = call.arguments.needed("text")?;
    let key = format!("mcp-{}", call.call.key);
    let further = Further { key: &key, text, cli_command: false };
    let by = format!("agent/{}", call.dispatch.id);
    let daemon = &call.client.daemon;
    check_withdrawn(daemon, &child, &key)?;
    let reply = send_prompt(daemon, child.id.as_str(), further, &by, call.trace.clone()).await?;
    let queued = matches!(reply, Reply::Sent { queued: true, .. });
    let state = if queued { "queued" } else { "accepted" };
    Ok(json!({"message_id": key, "state": state, "dispatch_id": child.id.as_str()}).into())
}

/// Writes a message into the agent's own thread.
pub(super) async fn send(call: &Call<'_>) -> Result<Done, Refusal> {
    let Some(thread) = call.dispatch.created.thread() else {
        return refused("this agent belongs to no thread: write a note, or ask with ask_human");
    };
    let (named, files) = (call.arguments.texts("files")?, &call.call.files);
    if named.len() != files.len() {
        return refused(
            "this agent's `muleteer mcp` is of an older version and sends no files: name their \
             paths in the text",
        );
    }
    let text = call.arguments.needed("text")?;
    let daemon = &call.client.daemon;
    // The id follows from the key: a call that is repeated after a crash returns the recorded one.
    let key = format!("{}/mcp/{}", call.dispatch.id, call.call.key);
    let message = id_of(&format!("{key}/message")).to_string();
    let sent = json!({"message_id": message, "state": "recorded"});
    let fleet = daemon.snapshot();
    let known = fleet.conversations.find(thread).ok();
    if known.is_some_and(|known| known.message(&message).is_some()) {
        return Ok(sent.into());
    }
    check_pace(call, text)?;
    // Before the message is durable, which names them.
    let files = attach_for_agent(&daemon.paths, thread, files.clone()).await?;
    point("tool.files_written");
    let recorded = MessageRecorded {
        thread: thread.into(),
        message,
        author: Author {
            kind: AuthorKind::Agent,
            id: call.dispatch.id.to_string(),
            name: call.dispatch.created.role.clone(),
        },
        text: text.into(),
        answers: vec![],
        dispatch: Some(call.dispatch.id.clone()),
        turn: None,
        files,
        reports_through: None,
    };
    let called = McpCalled::text(Tool::SendMessage, muleteer_model::agent::event::cut(text, 300));
    let message_event = Event::MessageRecorded(Box::new(recorded));
    // A repeated call finds the ids of both entries, and appends neither.
    let entries = vec![
        Entry {
            id: format!("{key}/message"),
            dispatch_id: None,
            at: None,
            more: true,
            event: message_event,
        },
        Entry { id: key, ..entry(&call.dispatch.id, None, Event::McpCalled(Box::new(called))) },
    ];
    try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    point("tool.message_recorded");
    Ok(sent.into())
}
