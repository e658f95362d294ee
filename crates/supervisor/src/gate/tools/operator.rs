//! The tools by which a client outside of Muleteer acts, such as the operator's own Claude Code.
//! The operator consents by `mcp.clients: act` in the user's configuration.
//!
//! The id of a dispatch and the key of a message follow from the key of the call. So a call that a
//! relay repeats after the daemon was killed has no second effect.

use super::act::check_withdrawn;
use super::arguments::Arguments;
use super::draft::id_of;
use super::{Client, Done, Refusal, refused};
use crate::conversation::rights::own_config;
use crate::daemon::context::Daemon;
use crate::dispatch::control::{create, find, kill, send};
use crate::dispatch::prompt_files::Further;
use crate::dispatch::request::Asker;
use crate::gate::peer::Identity;
use muleteer_model::config::McpClients;
use muleteer_model::event::mcp::Tool;
use muleteer_process::fault::point;
use muleteer_protocol::v1::{Reply, Spawn, ToolCall};
use serde_json::json;
use std::path::{Path, PathBuf};

/// The tools that act and need no agent that calls them.
pub(super) const ACTING: [Tool; 3] = [Tool::DraftAgent, Tool::KillAgent, Tool::MessageAgent];

/// The origin of what such a client does, in events.
const BY: &str = "operator/mcp";

/// Whether the operator lets clients outside of Muleteer act.
pub(super) fn may_act(daemon: &Daemon) -> Result<bool, Refusal> {
    Ok(own_config(daemon)?.mcp.clients == McpClients::Act)
}

/// Returns what lets this client use the tool, if something does.
pub(super) fn hint(client: &Client, tool: &str) -> &'static str {
    let acts = Tool::named(tool).is_some_and(|tool| ACTING.contains(&tool));
    match acts && client.identity == Identity::Operator {
        true => {
            ". To let your own MCP clients act for you, add `mcp: {clients: act}` to your \
             configuration (`muleteer config path` names the file)"
        }
        false => "",
    }
}

/// Carries out one of the tools of [`ACTING`].
pub(super) async fn act(
    client: &Client,
    tool: Tool,
    call: &ToolCall,
    arguments: &Arguments,
    trace: Option<String>,
) -> Result<Done, Refusal> {
    let daemon = &client.daemon;
    if tool == Tool::DraftAgent {
        return draft(client, call, arguments, trace).await;
    }
    let dispatch = find(daemon, arguments.needed("dispatch_id")?)?;
    let id = dispatch.id.as_str();
    if tool == Tool::KillAgent {
        let reason = arguments.text("reason")?.map(String::from);
        let note = match kill(daemon, id, reason, BY).await? {
            Reply::Done { note, .. } => note,
            _ => None,
        };
        let state = daemon.snapshot().get(&dispatch.id).map_or("killed", |found| found.state());
        return Ok(json!({"dispatch_id": id, "state": state, "note": note}).into());
    }
    let key = format!("mcp-{}", call.key);
    let further = Further { key: &key, text: arguments.needed("text")?, cli_command: false };
    check_withdrawn(daemon, &dispatch, &key)?;
    let reply = send(daemon, id, further, BY, trace).await?;
    let queued = matches!(reply, Reply::Sent { queued: true, .. });
    let state = if queued { "queued" } else { "accepted" };
    Ok(json!({"message_id": key, "state": state, "dispatch_id": id}).into())
}

/// Starts an agent, or finds the one that this call has started.
async fn draft(
    client: &Client,
    call: &ToolCall,
    arguments: &Arguments,
    trace: Option<String>,
) -> Result<Done, Refusal> {
    let daemon = &client.daemon;
    let text = |name| arguments.text(name).map(|text| text.map(String::from));
    let budget_usd = arguments.number("budget_usd")?;
    if budget_usd.is_some_and(|usd| usd == 0.0 || !usd.is_finite()) {
        return refused("`budget_usd` must be more than 0");
    }
    let spawn = Spawn {
        id: id_of(&format!("{BY}\n{}", call.key)).to_string(),
        role: arguments.needed("role")?.to_string(),
        project: project(daemon, call, arguments)?.display().to_string(),
        prompt: arguments.needed("prompt")?.to_string(),
        title: text("title")?,
        model: text("model")?,
        feature: text("feature")?,
        budget_usd,
        worktree: arguments.flag("worktree")?,
        env: call.env.clone(),
        ..Spawn::default()
    };
    create(daemon, &spawn, &Asker::Operator, trace).await?;
    point("tool.drafted");
    let fleet = daemon.snapshot();
    let created = fleet.iter().find(|dispatch| dispatch.id.as_str() == spawn.id);
    let state = created.map_or("queued", |dispatch| dispatch.state());
    Ok(json!({"dispatch_id": spawn.id, "state": state}).into())
}

/// Returns the directory for the agent: a configured project, or a path from the client's
/// directory.
fn project(daemon: &Daemon, call: &ToolCall, arguments: &Arguments) -> Result<PathBuf, Refusal> {
    let home = call.env.iter().rev().find(|(name, _)| name == "HOME");
    let home = home.map(|(_, home)| PathBuf::from(home));
    let word = arguments.text("project")?.filter(|word| !word.is_empty());
    let here = call.directory.as_deref().map(Path::new);
    let named = match word {
        Some(word) => own_config(daemon)?.project_path(word, home.as_deref()),
        None => here.map(Path::to_path_buf),
    };
    let named = named.or_else(|| Some(here.unwrap_or(Path::new("/")).join(word?)));
    let found = named.and_then(|path| path.canonicalize().ok()).filter(|path| path.is_dir());
    match found {
        Some(path) => Ok(path),
        None => refused(format!(
            "the project `{}` is not a directory: give its absolute path",
            word.unwrap_or_default()
        )),
    }
}
