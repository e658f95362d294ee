//! Decides whether a repository's settings for an agent CLI count for an agent.

use crate::daemon::context::Daemon;
use crate::daemon::trust::claude;
use crate::dispatch::launch::command_line::working_directory;
use crate::dispatch::launch::start_error::StartError;
use crate::dispatch::saved::Saved;
use crate::ledger::{append, entry};
use crate::ports::agent::JournalMsg;
use muleteer_backends::ProjectSettings;
use muleteer_backends::RepositorySettings;
use muleteer_model::agent::acp_handshake::Call;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use std::path::Path;

/// Whether the repository's settings for the CLI count for this agent; records once in each attempt
/// that they do not. Each start checks again, because an agent may have changed them in its clone.
pub(super) async fn project_settings(
    daemon: &Daemon,
    dispatch: &Dispatch,
    saved: &Saved,
) -> Result<ProjectSettings, StartError> {
    if saved.home.is_some() {
        return Ok(ProjectSettings::Nothing);
    }
    let Some(loaded) = claude::loaded_by(&dispatch.created.backend, saved) else {
        return Ok(ProjectSettings::Count);
    };
    let (paths, dir) = (daemon.paths.clone(), working_directory(&dispatch.created));
    let looking =
        tokio::task::spawn_blocking(move || claude::note(&paths, Path::new(&dir), loaded));
    let Some(text) = looking.await? else {
        return Ok(ProjectSettings::Count);
    };
    let is_recorded = daemon
        .snapshot()
        .get(&dispatch.id)
        .is_some_and(|now| now.warnings.notices.contains(&text));
    if !is_recorded {
        let records =
            append(daemon, vec![entry(&dispatch.id, None, Event::AgentNotice { text })]).await?;
        daemon.agent(&dispatch.id).journal.cast(JournalMsg::Records(records));
    }
    Ok(ProjectSettings::Ignored)
}

/// Returns whether the settings count in the directory that a session is opened in.
pub async fn settings_for(daemon: &Daemon, id: &DispatchId, call: &Call) -> ProjectSettings {
    let Call::Open { cwd, .. } = call else { return ProjectSettings::Count };
    let (paths, cwd, dir) = (daemon.paths.clone(), cwd.clone(), daemon.paths.agent(id.as_str()));
    let looking = tokio::task::spawn_blocking(move || {
        // Without its file nothing is known about the agent, so nothing is loaded.
        if Saved::read(&dir).map_or(true, |saved| saved.home.is_some()) {
            return ProjectSettings::Nothing;
        }
        claude::settings_in(&paths, Path::new(&cwd), RepositorySettings::All)
    });
    looking.await.unwrap_or(ProjectSettings::Ignored)
}
