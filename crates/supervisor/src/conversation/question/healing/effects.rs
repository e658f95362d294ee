//! Carries the choice of a healing out. Each effect has a key that follows from the choice, so a
//! repeated one changes nothing.

use crate::conversation::serve as threads;
use crate::daemon::context::Daemon;
use crate::dispatch::control::{close, send};
use crate::dispatch::error::{fault, internal};
use crate::dispatch::launch::secrets::read_ended;
use crate::dispatch::prompt_files::Further;
use crate::dispatch::request::Care;
use crate::question::healing::light::create_as;
use muleteer_backends::Command;
use muleteer_model::agent::permission::Mode;
use muleteer_model::conversation::event::Author;
use muleteer_model::conversation::route::OWN_KEY;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_model::monitor::healing::event::{Choice, HealingChosen};
use muleteer_model::monitor::healing::{CONTINUE, step};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, Spawn, ThreadSend, WireError};
use std::sync::Arc;

/// Carries a choice out. May be repeated.
///
/// # Errors
/// It cannot be carried out.
pub(super) async fn carry_out(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    chosen: &HealingChosen,
) -> Result<(), WireError> {
    match (chosen.choice, &chosen.dispatch, dispatch.created.thread()) {
        // The question about a stall, or the notification, follows from the end of the healing.
        (Choice::Escalate, ..) => Ok(()),
        (Choice::Newer, ..) => {
            let message = "a newer version of Muleteer made this choice";
            Err(fault(ErrorCode::Unsupported, message, ""))
        }
        (_, Some(other), _) => again(daemon, dispatch, chosen, other).await,
        (_, None, Some(thread)) => in_thread(daemon, dispatch, chosen, thread).await,
        (_, None, None) => {
            let key = step::key(&dispatch.id, chosen.number);
            let text = chosen.message.as_deref().unwrap_or(CONTINUE);
            let further = Further { key: &key, text, cli_command: false };
            send(daemon, dispatch.id.as_str(), further, &chosen.by, None).await.map(drop)
        }
    }
}

/// Writes the message that continues the conversation of a thread: in the session of the agent, or
/// with another one.
async fn in_thread(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    chosen: &HealingChosen,
    thread: &str,
) -> Result<(), WireError> {
    // A respawn gives the dispatch up first, so that the message begins another agent.
    if chosen.choice == Choice::Respawn && !dispatch.was_killed_for_good() {
        close(daemon, dispatch.id.as_str(), &chosen.by).await?;
    }
    let respawned = "The agent was ended. Continue its work from here.";
    let sent = ThreadSend {
        thread: thread.into(),
        key: format!("{OWN_KEY}{}", step::key(&dispatch.id, chosen.number)),
        text: chosen.message.clone().unwrap_or_else(|| respawned.into()),
        ..ThreadSend::default()
    };
    threads::send_as(daemon, &sent, Author::muleteer()).await.map(drop)
}

/// Creates the dispatch that does the same task again.
async fn again(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    chosen: &HealingChosen,
    other: &DispatchId,
) -> Result<(), WireError> {
    let created = &dispatch.created;
    let saved = read_ended(daemon, &dispatch.id).await;
    let saved = saved.map_err(|error| internal(&error.to_string()))?;
    let Some(task) = saved.prompt else {
        let message = "the prompt of the dispatch is not known any more";
        return Err(fault(ErrorCode::Unsupported, message, "spawn a new dispatch"));
    };
    let prompt = match &chosen.message {
        Some(message) => format!("{task}\n\nAn earlier agent ended without success. {message}"),
        None => task,
    };
    let given = daemon.settings.config_file.as_ref().and_then(|path| path.to_str());
    let own_feature = created.feature == dispatch.id.as_str();
    let spawn = Spawn {
        id: other.to_string(),
        role: created.role.clone(),
        project: created.project.clone(),
        prompt,
        feature: (!own_feature).then(|| created.feature.clone()),
        title: created.title.clone(),
        spec: created.spec.clone(),
        backend: Some(match &saved.agent {
            Some(agent) => format!("{}:{agent}", created.backend),
            None => created.backend.clone(),
        }),
        model: chosen.model.clone().or_else(|| created.model.clone()),
        command: saved.command.map(|command| match command {
            Command::Shell(text) => v1::Command::Shell(text),
            Command::Argv(words) => v1::Command::Argv(words),
        }),
        scenario: saved.scenario,
        budget_usd: created.limits.budget_usd,
        max_turns: created.limits.max_turns.filter(|_| created.has_turns()),
        timeout_s: created.limits.timeout_s,
        worktree: created.worktree.is_some(),
        env: saved.env.into_iter().chain(saved.withheld).collect(),
        extra_env: saved.extra_env,
        config: given.map(String::from),
        permissions: stricter(created.permissions.mode),
        sandbox: created.confined,
    };
    create_as(daemon, &spawn, Care { of: dispatch.id.clone(), light: None }).await
}

/// Returns the mode that the other dispatch must have, whatever the configuration says now.
fn stricter(mode: Mode) -> Option<String> {
    match mode {
        Mode::Allow => None,
        Mode::Ask => Some("ask".into()),
        Mode::Deny => Some("deny".into()),
    }
}
