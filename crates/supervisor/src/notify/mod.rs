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
use crate::notify::memory::{Dropped, MOST_OPEN, Memory, Outcome};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::config::notify::Notify;
use muleteer_model::event::Event;
use muleteer_model::notify::{Decision, decide, matters};
use muleteer_process::fault::point;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeSet;
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
    // At most one for each channel, so a server that hangs delays only its own channel.
    let mut tries = FuturesUnordered::new();
    let mut busy = BTreeSet::new();
    loop {
        let fleet = changes.borrow_and_update().clone();
        let at = now();
        let mut all = matters(&fleet);
        // A matter that ended before notifications were switched on is no news.
        all.retain(|matter| matter.since >= memory.since);
        let Decision { notice, look_at } = decide(&all, &memory.told, &policy, at);
        if let Some(notice) = notice {
            let message = Message::of(&notice, &fleet);
            let dropped = memory.add(message, &notice, &notify.channels(), at);
            dropped.iter().for_each(|one| tell_dropped(daemon, one));
            if save(daemon, &memory) {
                point("notify.recorded");
            }
        }
        while let Some(due) = begin(daemon, &mut memory, &busy) {
            busy.insert(due.channel.clone());
            tries.push(due.send(notify));
        }
        let next = memory.next(&busy);
        let due = [look_at, next].into_iter().flatten().min();
        let wait = due.map_or(LONGEST, |due| until(due).clamp(PAUSE, LONGEST));
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            Some((due, outcome)) = tries.next() => {
                busy.remove(&due.channel);
                ended(daemon, &mut memory, &due, outcome);
            }
            () = tokio::time::sleep(wait) => {}
            changed = changes.changed() => if changed.is_err() { return },
        }
    }
}

/// A try that is recorded and not over.
struct Due {
    id: u64,
    channel: String,
    message: Message,
}

impl Due {
    async fn send(self, notify: &Notify) -> (Self, Result<(), ChannelError>) {
        point("notify.tried");
        let outcome = channel::send(notify, &self.channel, &self.message).await;
        point("notify.sent");
        (self, outcome)
    }
}

/// Records the next try that is due on a channel that is not busy.
fn begin(daemon: &Daemon, memory: &mut Memory, busy: &BTreeSet<String>) -> Option<Due> {
    let (id, channel) = memory.due(now(), busy)?;
    let message = memory.message(&id)?;
    memory.tried(&id, &channel);
    // Without the record a killed daemon would repeat it.
    if !save(daemon, memory) {
        memory.not_tried(&id, &channel, now());
        return None;
    }
    Some(Due { id, channel, message })
}

/// Records the outcome of a try.
fn ended(daemon: &Daemon, memory: &mut Memory, due: &Due, outcome: Result<(), ChannelError>) {
    let channel = &due.channel;
    // A channel that fails for the same reason is reported once, until it works again.
    let known = |error: &ChannelError| memory.failing.get(channel) == Some(&error.to_string());
    if let Some(error) = outcome.as_ref().err().filter(|error| !known(error)) {
        let message = format!("failed to notify by {channel}: {error}");
        daemon.note(Event::Fault { what: "notifications".into(), message });
    }
    memory.ended(&due.id, channel, outcome_of(outcome), now());
    save(daemon, memory);
}

/// Tells of a notification that is given up. It comes before the record of that: after a kill in
/// between it is told again, and not lost.
fn tell_dropped(daemon: &Daemon, dropped: &Dropped) {
    let Dropped { title, channels } = dropped;
    let channels = channels.join(", ");
    let message = format!(
        "gave up the notification \"{title}\", which was not sent by {channels}: at most \
         {MOST_OPEN} notifications wait for their channels; run `muleteer notify` to see which \
         channel fails"
    );
    daemon.note(Event::Fault { what: "notifications".into(), message });
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
