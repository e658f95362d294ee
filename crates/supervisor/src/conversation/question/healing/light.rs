//! The light agent of a healing: an ordinary dispatch that changes nothing, has no MCP tools, and
//! is healed by nobody.

use crate::conversation::adapter::scenario;
use crate::conversation::files::end_of;
use crate::daemon::context::Daemon;
use crate::dispatch::error::internal;
use crate::dispatch::launch::secrets::read_ended;
use crate::dispatch::request::{Asker, Care};
use crate::spec_run::output;
use muleteer_model::config::Config;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::Purse;
use muleteer_model::event::id::DispatchId;
use muleteer_model::monitor::healing::event::Trouble;
use muleteer_model::monitor::healing::prompt::{self, Answer, JOURNAL_LIMIT, Unreadable};
use muleteer_model::monitor::healing::step;
use muleteer_protocol::v1::{Spawn, WireError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Creates the light agent of a dispatch. May be repeated: its id is durable.
///
/// # Errors
/// The files of the dispatch are gone, or the request is refused.
pub(super) async fn create(
    daemon: &Arc<Daemon>,
    fleet: &Fleet,
    dispatch: &Dispatch,
    config: &Config,
    healer: &DispatchId,
) -> Result<(), WireError> {
    let (created, settings) = (&dispatch.created, &config.healing);
    let saved = read_ended(daemon, &dispatch.id).await;
    let saved = saved.map_err(|error| internal(&error.to_string()))?;
    let journal = PathBuf::from(&created.journal);
    let read = move || end_of(&journal, JOURNAL_LIMIT as u64);
    // A journal that is gone or unreadable is left out.
    let journal = tokio::task::spawn_blocking(read).await.ok().and_then(Result::ok);
    let trouble = dispatch.healing.begun.as_ref().map_or(Trouble::Newer, |begun| begun.trouble);
    // The id of the light agent is random, and no earlier text can have it.
    let prompt = prompt::write(
        dispatch,
        trouble,
        saved.prompt.as_deref().unwrap_or_default(),
        journal.as_deref().unwrap_or_default(),
        healer.as_str(),
    );
    let clone = Path::new(created.directory());
    let place = if clone.is_dir() { created.directory() } else { &created.project };
    let given = daemon.settings.config_file.as_ref().and_then(|path| path.to_str());
    let spawn = Spawn {
        id: healer.to_string(),
        role: settings.role.clone(),
        project: place.into(),
        prompt,
        title: Some(format!("decide what follows for {}", dispatch.id)),
        backend: settings.backend.clone(),
        model: settings.model.clone(),
        scenario: scenario(config, settings.backend.as_deref()),
        budget_usd: Some(step::budget_left(fleet, &dispatch.id, settings)),
        timeout_s: Some(settings.timeout.as_secs()),
        env: saved.env.into_iter().chain(saved.withheld).collect(),
        extra_env: saved.extra_env,
        config: given.map(String::from),
        sandbox: created.confined,
        ..Spawn::default()
    };
    let purse = Purse { of: step::purse(&dispatch.id), usd: settings.budget_usd };
    let care = Care { of: dispatch.id.clone(), light: Some(purse) };
    create_as(daemon, &spawn, care).await
}

/// Creates a dispatch for the healing of another one.
///
/// # Errors
/// Those of [`crate::dispatch::control::create`].
pub(super) async fn create_as(
    daemon: &Arc<Daemon>,
    spawn: &Spawn,
    care: Care,
) -> Result<(), WireError> {
    crate::dispatch::control::create(daemon, spawn, &Asker::Healing(Box::new(care)), None)
        .await
        .map(drop)
}

/// Reads the answer of a light agent that has ended.
///
/// # Errors
/// It gave none that can be read.
pub(super) async fn answer(
    daemon: &Arc<Daemon>,
    fleet: &Fleet,
    healer: &DispatchId,
) -> Result<Answer, Unreadable> {
    let backend = fleet.get(healer).map(|light| light.created.backend.clone()).unwrap_or_default();
    let spool = daemon.paths.spool(healer.as_str());
    let said = tokio::task::spawn_blocking(move || output::read(&spool, &backend)).await;
    let said = said.map_err(|_panicked| Unreadable::NoOutput)?;
    prompt::read(&said.document()).or_else(|_| prompt::read(&said.answer()))
}
