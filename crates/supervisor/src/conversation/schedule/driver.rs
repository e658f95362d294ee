//! Makes the due moments of schedules durable, and starts them. It reads the folded fleet, so a new
//! daemon goes on where the last one was killed.

use crate::conversation::adapter::directory;
use crate::conversation::deliver::entries;
use crate::conversation::rights::own_config;
use crate::conversation::schedule::write::write;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{is_passing, unappended};
use crate::ledger::try_append;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use muleteer_model::event::Event;
use muleteer_model::schedule::event::{ScheduleDone, ScheduleDue};
use muleteer_model::schedule::step;
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep until the next due moment, because the clock may be set, the machine may be
/// suspended, and the watcher of the configuration may be missing.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The most starts at the same time.
const MOST_STARTS: usize = 16;
/// The lock of all decisions about starts. Two of them would each find that nothing is under way.
pub(super) const LOCK: &str = "all schedules";

/// The time after which a schedule that the configuration lacks is looked for again. Editors and
/// shells save a file by emptying or moving it first.
const SAVED: Duration = Duration::from_secs(1);

/// Follows all schedules until the daemon ends. Cancel-safe: what is durable is resumed by the next
/// call.
pub async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    // The decisions in a row that could not be made durable.
    let mut failures = 0;
    loop {
        let changed = |daemon: &Daemon| daemon.snapshot().conversations.schedules().changes();
        let seen = changed(&daemon);
        let sleep = tokio::time::sleep(pass(&daemon, &mut failures).await);
        tokio::pin!(sleep);
        loop {
            // A pass that made something durable is followed by another one.
            changes.borrow_and_update();
            if changed(&daemon) != seen {
                break;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = daemon.configured.notified() => break,
                () = &mut sleep => break,
            }
        }
    }
}

/// Carries out what is due now. Returns the time until the next pass.
async fn pass(daemon: &Arc<Daemon>, failures: &mut u32) -> Duration {
    let pending: Vec<_> = daemon.snapshot().conversations.schedules().pending().cloned().collect();
    let starts = stream::iter(pending).map(|due| async move { attempt(daemon, &due).await });
    let starts: Vec<_> = starts.buffer_unordered(MOST_STARTS).collect().await;
    let until = match decide(daemon).await {
        Ok(until) => {
            *failures = 0;
            until
        }
        Err(error) => {
            *failures = failures.saturating_add(1);
            if *failures == 1 {
                tell(daemon, "schedules", &error);
            }
            step::pause(*failures)
        }
    };
    starts.into_iter().flatten().fold(until, Duration::min)
}

/// Starts a schedule if its next try is due. Returns the time until the next try if the start is
/// not over.
async fn attempt(daemon: &Arc<Daemon>, due: &ScheduleDue) -> Option<Duration> {
    if let Some(left) = daemon.delays.left(due) {
        return Some(left);
    }
    let Err(error) = start(daemon, due).await else {
        daemon.delays.ended(&due.schedule);
        return None;
    };
    let (pause, is_news) = daemon.delays.failed(due, error.clone());
    // A reason is told once, and not with each try.
    if is_news {
        tell(daemon, &format!("schedule {}", due.schedule), &error);
    }
    Some(pause)
}

/// Tells that something cannot be carried out now, and is tried again.
fn tell(daemon: &Daemon, what: &str, error: &WireError) {
    if error.code == ErrorCode::DaemonEnding.as_str() {
        return;
    }
    let WireError { code, message, .. } = error;
    let message = format!("cannot be started now, and is tried again: {code}: {message}");
    daemon.note(Event::Fault { what: what.into(), message });
}

/// Makes the next events durable. Returns the time until the next due moment.
///
/// # Errors
/// The configuration is invalid, or the ledger cannot write now.
async fn decide(daemon: &Arc<Daemon>) -> Result<Duration, WireError> {
    // Without a valid configuration nobody knows what is followed, so nothing changes.
    let Ok(mut config) = own_config(daemon) else { return Ok(LONGEST_SLEEP) };
    if step::lacks(&config.schedules, &daemon.snapshot().conversations) {
        tokio::time::sleep(SAVED).await;
        let Ok(saved) = own_config(daemon) else { return Ok(LONGEST_SLEEP) };
        config = saved;
    }
    let _alone = daemon.creating(LOCK).await;
    let now = Timestamp::now();
    let mut events = step::next(&config.schedules, &daemon.snapshot().conversations, now);
    for event in &mut events {
        // The directory is decided with the moment: an edited configuration must not lead a
        // repeated start to another thread.
        if let Event::ScheduleDue(due) = event
            && let Some(found) = due.project.as_ref().map(|word| directory(&config, word))
        {
            due.project = found.ok().or_else(|| due.project.take());
        }
    }
    if !events.is_empty() {
        try_append(daemon, entries(events)).await.map_err(|error| unappended(&error))?;
    }
    let fleet = daemon.snapshot();
    let wake = step::wake(&config.schedules, &fleet.conversations, now);
    let left = wake.map(|at| Duration::try_from(at.duration_since(Timestamp::now())));
    Ok(left.map_or(LONGEST_SLEEP, Result::unwrap_or_default).min(LONGEST_SLEEP))
}

/// Writes the message of a start, and makes its outcome durable. The message has a key, so a start
/// that is repeated after a kill writes no second one.
///
/// # Errors
/// It cannot be carried out now, and is tried again.
async fn start(daemon: &Arc<Daemon>, due: &ScheduleDue) -> Result<(), WireError> {
    point("schedule.due");
    let done = match write(daemon, due).await {
        Ok(written) => ScheduleDone {
            schedule: due.schedule.clone(),
            key: due.key.clone(),
            thread: Some(written.thread),
            message: Some(written.message),
            reason: String::new(),
        },
        Err(error) if is_passing(&error) => return Err(error),
        Err(error) => ScheduleDone {
            schedule: due.schedule.clone(),
            key: due.key.clone(),
            thread: None,
            message: None,
            reason: format!("{}: {}", error.code, error.message),
        },
    };
    point("schedule.accepted");
    let event = Event::ScheduleDone(Box::new(done));
    try_append(daemon, entries(vec![event])).await.map_err(|error| unappended(&error))?;
    point("schedule.done");
    Ok(())
}
