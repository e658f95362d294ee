//! The `notifier` leaf of the tree: tells a person that something waits for them.
//!
//! A notification is in `notify.json` of the state directory before it is sent, and each try is
//! there before it is made. So a daemon that is killed at any moment repeats no notification: a try
//! whose outcome is unknown is not made again.

pub mod channel;
mod desktop;
mod mail;
pub mod memory;

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{Panicked, own, survive};
use crate::notify::channel::{ChannelError, Message};
use crate::notify::memory::{Memory, Outcome};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::config::notify::Notify;
use muleteer_model::event::Event;
use muleteer_model::notify::{Decision, decide, matters};
use muleteer_process::fault::point;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::task::AbortOnDropHandle;

/// The longest time without a look at the clock: it may be set.
const LONGEST: Duration = Duration::from_secs(600);
/// The least time between two looks. A busy fleet changes many times in a second.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub enum NotifierMsg {
    /// The task has died.
    Failed(Panicked),
}

pub struct Notifier;

pub struct State {
    _task: AbortOnDropHandle<()>,
}

impl Actor for Notifier {
    type Msg = NotifierMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<NotifierMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        let task = own(async move {
            if daemon.settings.notify.channels().is_empty() {
                return;
            }
            if let Err(error) = survive(run(&daemon)).await {
                let _ = myself.cast(NotifierMsg::Failed(error));
            }
        });
        Ok(State { _task: task })
    }

    async fn handle(
        &self,
        _: ActorRef<NotifierMsg>,
        message: NotifierMsg,
        _: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NotifierMsg::Failed(error) => Err(error.into()),
        }
    }
}

async fn run(daemon: &Daemon) {
    let notify = &daemon.settings.notify;
    let policy = notify.policy(TimeZone::system());
    let path = daemon.paths.notifications();
    let mut memory = Memory::read(&path, now()).unwrap_or_else(|error| {
        let message = format!("what people were told is lost, and is told again: {error}");
        daemon.note(Event::Fault { what: "notifications".into(), message });
        Memory::begin(now())
    });
    // The file says since when matters are news.
    save(daemon, &memory);
    let mut changes = daemon.fleet.subscribe();
    loop {
        let fleet = changes.borrow_and_update().clone();
        let at = now();
        let mut all = matters(&fleet);
        // A matter that ended before notifications were switched on is no news.
        all.retain(|matter| matter.since >= memory.since);
        let Decision { notice, look_at } = decide(&all, &memory.told, &policy, at);
        if let Some(notice) = notice {
            let message = Message::of(&notice, &fleet);
            memory.add(message, &notice, &notify.channels(), at);
            if save(daemon, &memory) {
                point("notify.recorded");
            }
        }
        let next = deliver(daemon, notify, &mut memory).await;
        let due = [look_at, next].into_iter().flatten().min();
        let wait = due.map_or(LONGEST, |due| until(due).clamp(PAUSE, LONGEST));
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// Makes the tries that are due. Returns when the next one is.
async fn deliver(daemon: &Daemon, notify: &Notify, memory: &mut Memory) -> Option<Timestamp> {
    while let Some((id, channel)) = memory.due(now()) {
        memory.tried(&id, &channel);
        // Without the record a killed daemon would repeat it.
        if !save(daemon, memory) {
            memory.not_tried(&id, &channel, now());
            break;
        }
        point("notify.tried");
        let Some(message) = memory.message(&id) else { continue };
        let outcome = channel::send(notify, &channel, &message).await;
        point("notify.sent");
        // A channel that fails for the same reason is reported once, until it works again.
        let known = |error: &ChannelError| memory.failing.get(&channel) == Some(&error.to_string());
        if let Some(error) = outcome.as_ref().err().filter(|error| !known(error)) {
            let message = format!("failed to notify by {channel}: {error}");
            daemon.note(Event::Fault { what: "notifications".into(), message });
        }
        memory.ended(&id, &channel, outcome_of(outcome), now());
        save(daemon, memory);
    }
    memory.next()
}

fn outcome_of(sent: Result<(), ChannelError>) -> Outcome {
    match sent {
        Ok(()) => Outcome::Sent,
        Err(error) if error.is_uncertain() => Outcome::Uncertain(error.to_string()),
        Err(error) if error.is_lasting() => Outcome::Refused(error.to_string()),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn save(daemon: &Daemon, memory: &Memory) -> bool {
    let written = tokio::task::block_in_place(|| memory.write(&daemon.paths.notifications()));
    if let Err(error) = &written {
        let message = format!("failed to record what people are told: {error}");
        daemon.note(Event::Fault { what: "notifications".into(), message });
    }
    written.is_ok()
}

fn until(at: Timestamp) -> Duration {
    Duration::try_from(now().duration_until(at)).unwrap_or_default()
}

fn now() -> Timestamp {
    Timestamp::now()
}
