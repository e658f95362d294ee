//! The `conversations` leaf of the tree: an owned task for each thread in which something follows.
//! The threads are in the folded fleet, so a restarted actor resumes all of them.

use crate::conversation::{deliver, schedule, serve};
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::survive;
use crate::ports::conversation::ConversationsMsg;
use crate::question::{driver, healing, run_end};
use muleteer_model::event::Event;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// The pause before a driver that failed is started again.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Conversations;

pub struct State {
    daemon: Arc<Daemon>,
    driven: HashSet<String>,
    tasks: JoinSet<()>,
}

impl Actor for Conversations {
    type Msg = ConversationsMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<ConversationsMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.conversations.set(myself.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(daemon.clone(), myself));
        tasks.spawn(serve::put_away_left_secrets(daemon.clone()));
        tasks.spawn(questions(daemon.clone()));
        tasks.spawn(schedules(daemon.clone()));
        tasks.spawn(run_ends(daemon.clone()));
        tasks.spawn(healings(daemon.clone()));
        Ok(State { daemon, driven: HashSet::new(), tasks })
    }

    async fn handle(
        &self,
        myself: ActorRef<ConversationsMsg>,
        message: ConversationsMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            ConversationsMsg::Look => {
                let fleet = state.daemon.snapshot();
                for id in fleet.conversations.busy() {
                    drive(state, &myself, id);
                }
            }
            ConversationsMsg::Ended(id, None) => {
                state.driven.remove(&id);
                // It may have become busy again after its driver looked last.
                if state.daemon.snapshot().conversations.is_busy(&id) {
                    drive(state, &myself, &id);
                }
            }
            ConversationsMsg::Ended(id, Some(message)) => {
                state.driven.remove(&id);
                state.daemon.note(Event::Fault { what: format!("thread {id}"), message });
                myself.send_after(PAUSE, || ConversationsMsg::Look);
            }
        }
        Ok(())
    }
}

/// Starts a driver for a thread unless it has one.
fn drive(state: &mut State, myself: &ActorRef<ConversationsMsg>, id: &str) {
    if !state.driven.insert(id.into()) {
        return;
    }
    let (daemon, myself, id) = (state.daemon.clone(), myself.clone(), id.to_string());
    state.tasks.spawn(async move {
        let failed = match survive(deliver::drive(&daemon, &id)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panicked) => Some(panicked.to_string()),
        };
        let _ = myself.cast(ConversationsMsg::Ended(id, failed));
    });
}

/// Follows the questions, also after a panic.
async fn questions(daemon: Arc<Daemon>) {
    while let Err(panicked) = survive(driver::watch(daemon.clone())).await {
        daemon.note(Event::Fault { what: "questions".into(), message: panicked.to_string() });
        tokio::time::sleep(PAUSE).await;
    }
}

/// Follows the schedules, also after a panic.
async fn schedules(daemon: Arc<Daemon>) {
    while let Err(panicked) = survive(schedule::driver::watch(daemon.clone())).await {
        daemon.note(Event::Fault { what: "schedules".into(), message: panicked.to_string() });
        tokio::time::sleep(PAUSE).await;
    }
}

/// Heals dispatches, also after a panic.
async fn healings(daemon: Arc<Daemon>) {
    while let Err(panicked) = survive(healing::watch(daemon.clone())).await {
        daemon.note(Event::Fault { what: "self-healing".into(), message: panicked.to_string() });
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tells the ends of runs, also after a panic.
async fn run_ends(daemon: Arc<Daemon>) {
    while let Err(panicked) = survive(run_end::watch(daemon.clone())).await {
        daemon.note(Event::Fault { what: "ends of runs".into(), message: panicked.to_string() });
        tokio::time::sleep(PAUSE).await;
    }
}

/// Asks for drivers whenever a record has changed a busy thread.
async fn watch(daemon: Arc<Daemon>, actor: ActorRef<ConversationsMsg>) {
    let mut changes = daemon.fleet.subscribe();
    // A daemon's first look is for the threads that an earlier daemon left.
    let mut seen = None;
    loop {
        let stirred = changes.borrow_and_update().conversations.stirred();
        if seen.replace(stirred) != Some(stirred) && actor.cast(ConversationsMsg::Look).is_err() {
            return;
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}
