//! Keeps the SQLite projection up to date with the events. It reads the log itself, so it can be
//! slow, fail and restart without blocking any other actor.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{Panicked, own, survive};
use crate::dispatch::error::fault;
use muleteer_protocol::v1::WireError;
use muleteer_store::StoreError;
use muleteer_store::db::Projection as Database;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

/// The pause between two transactions, so that a burst of events becomes one.
const PAUSE: Duration = Duration::from_millis(200);
/// The pause after a failure.
const RETRY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub enum ProjectionMsg {
    Failed(ProjectionError),
}

/// Why the projection must be restarted.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    #[error(transparent)]
    Panicked(#[from] Panicked),
    #[error(transparent)]
    Task(#[from] JoinError),
}

pub struct Projection;

pub struct State {
    _task: AbortOnDropHandle<()>,
}

impl Actor for Projection {
    type Msg = ProjectionMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<ProjectionMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        let task = own(async move {
            let outcome = survive(keep_up(daemon)).await;
            if let Err(error) = outcome.unwrap_or_else(|panicked| Err(panicked.into())) {
                let _ = myself.cast(ProjectionMsg::Failed(error));
            }
        });
        Ok(State { _task: task })
    }

    async fn handle(
        &self,
        _: ActorRef<ProjectionMsg>,
        message: ProjectionMsg,
        _: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ProjectionMsg::Failed(error) => Err(error.into()),
        }
    }
}

async fn keep_up(daemon: Arc<Daemon>) -> Result<(), ProjectionError> {
    let mut changes = daemon.fleet.subscribe();
    changes.mark_changed();
    let mut database: Option<Database> = None;
    // The fault that is recorded already.
    let mut known: Option<String> = None;
    while changes.changed().await.is_ok() {
        let fleet = changes.borrow_and_update().clone();
        let (path, events) = (daemon.paths.database(), daemon.paths.events());
        let mut open = database.take();
        let caught_up = tokio::task::spawn_blocking(move || {
            let mut open = match open.take() {
                Some(open) => open,
                None => Database::open(&path)?.0,
            };
            open.catch_up(&events, &fleet)?;
            Ok::<_, StoreError>(open)
        });
        match caught_up.await? {
            Ok(open) => {
                known = None;
                daemon.unprojected.send_replace(None);
                daemon.projected.send_replace(open.applied_seq());
                database = Some(open);
            }
            // The events are the truth: a projection that lags is a fault to record, not a reason
            // to stop.
            Err(error) => {
                daemon.unprojected.send_replace(Some(named(&error)));
                let message = error.to_string();
                if known.as_ref() != Some(&message) {
                    daemon.note(muleteer_model::event::Event::Fault {
                        what: "projection".into(),
                        message: message.clone(),
                    });
                    known = Some(message);
                }
                tokio::time::sleep(RETRY).await;
                // The cause may be gone although nothing else happens.
                changes.mark_changed();
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Returns the error of the commands that need records which the database lacks.
fn named(error: &StoreError) -> WireError {
    let why = format!("the database cannot follow the events: {error}");
    let file = Some(error.file().display().to_string());
    WireError { file, line: error.line(), ..fault(error.code(), &why, &error.hint()) }
}
