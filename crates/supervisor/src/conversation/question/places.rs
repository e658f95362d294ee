//! The threads in which the question of a run is shown.
//!
//! A run that was started from a thread asks there. Any other run has a thread of its own for the
//! command line and `chat`, and each adapter with `adapters.<name>.questions` shows the question in
//! that conversation. The threads are durable before the question, and a daemon that is killed in
//! between finds them again by their ids.

use crate::conversation::adapter::place;
use crate::conversation::deliver::new_id;
use crate::conversation::rights::own_config;
use crate::conversation::serve::{self, Origin};
use crate::daemon::context::Daemon;
use muleteer_model::conversation::DEFAULT_ROLE;
use muleteer_model::conversation::adapter::settings::{AdapterSettings, CommandMark};
use muleteer_model::conversation::thread::limits::OURSELVES;
use muleteer_model::question::QuestionAsked;
use muleteer_protocol::v1::{self, Spawn, ThreadNew, WireError};
use std::sync::Arc;

/// The run that asks.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub run_id: &'a str,
    /// The title of its spec.
    pub title: &'a str,
    /// The id of the run's own thread.
    pub thread: &'a str,
    pub request: &'a v1::Run,
}

/// Names the threads in which the question of a run is shown, and opens those that are missing. A
/// thread that cannot be opened is left out: `muleteer questions` has the question all the same.
pub async fn choose(daemon: &Arc<Daemon>, run: Asking<'_>, asked: &mut QuestionAsked) {
    let is_known = |id: &String| daemon.snapshot().conversations.get(id).is_some();
    asked.thread = asked.thread.take().filter(is_known);
    if asked.thread.is_some() {
        return;
    }
    match own(daemon, run).await {
        Ok(id) => asked.thread = Some(id),
        Err(error) => skipped(run.run_id, "the run", &error),
    }
    for (name, live) in daemon.adapters.all() {
        let Some(external) = live.settings.questions.clone() else { continue };
        if !live.settings.is_enabled() {
            continue;
        }
        match of_adapter(daemon, &name, &live.settings, &external).await {
            Ok(id) => asked.shown_in.push(id),
            Err(error) => skipped(run.run_id, &name, &error),
        }
    }
}

fn skipped(run: &str, of: &str, error: &WireError) {
    tracing::warn!(%run, %of, error = %error.message, "failed to open the thread for a question");
}

/// Opens the run's own thread. Its agents get the environment of the daemon: that of the run has
/// keys, which stay on the disk only while agents of the run may start.
async fn own(daemon: &Arc<Daemon>, run: Asking<'_>) -> Result<String, WireError> {
    let request = run.request;
    let dispatch = Spawn {
        role: DEFAULT_ROLE.into(),
        project: request.repo.clone(),
        backend: request.backend.clone(),
        command: request.command.clone(),
        scenario: request.scenario.clone(),
        config: request.config.clone(),
        ..Spawn::default()
    };
    let title = Some(format!("{}: {}", run.run_id, run.title));
    let new = ThreadNew { id: run.thread.into(), title, dispatch, ..ThreadNew::default() };
    serve::open(daemon, &new, OURSELVES).await?;
    Ok(new.id)
}

/// Returns the thread of an adapter's conversation for questions.
async fn of_adapter(
    daemon: &Arc<Daemon>,
    name: &str,
    settings: &AdapterSettings,
    external: &str,
) -> Result<String, WireError> {
    // A person may write there at this moment, which opens it too.
    let _alone = daemon.creating(&format!("{name}/{external}")).await;
    if let Some(known) = daemon.snapshot().conversations.by_external(name, external) {
        return Ok(known.id().into());
    }
    let dispatch = place::unchecked(daemon, &*own_config(daemon)?, name, settings, None)?;
    let title = Some("Questions of runs".into());
    let new = ThreadNew { id: new_id().to_string(), title, dispatch, ..ThreadNew::default() };
    let bang = settings.commands.map(|commands| commands == CommandMark::Bang);
    let origin = Origin { adapter: name, external: Some(external), bang };
    serve::open_from(daemon, &new, origin, OURSELVES).await?;
    Ok(new.id)
}
