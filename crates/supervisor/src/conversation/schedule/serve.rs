//! Handles the gate's requests about schedules.

use crate::conversation::adapter::directory;
use crate::conversation::deliver::entries;
use crate::conversation::rights::own_config;
use crate::conversation::schedule::delays::Delay;
use crate::conversation::schedule::driver::LOCK;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, unappended};
use crate::ledger::try_append;
use crate::ports::ledger::LedgerError;
use jiff::Timestamp;
use muleteer_model::conversation::KEY_LIMIT;
use muleteer_model::conversation::fold::Conversations;
use muleteer_model::event::Event;
use muleteer_model::schedule::event::ScheduleDue;
use muleteer_model::schedule::fold::{Outcome, Start};
use muleteer_model::schedule::{PREFIX, Schedule, step};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, ScheduleDoc, ScheduleStartDoc, WireError};
use std::sync::Arc;

/// Lists the configured schedules.
///
/// # Errors
/// `E_CONFIG_INVALID`.
pub fn list(daemon: &Daemon) -> Result<Reply, WireError> {
    let config = own_config(daemon)?;
    let (fleet, now) = (daemon.snapshot(), Timestamp::now());
    let all = config.schedules.iter();
    let document = |(name, schedule): (&String, &Schedule)| {
        document(daemon, name, schedule, &fleet.conversations, now)
    };
    Ok(Reply::Schedules { schedules: all.map(document).collect() })
}

/// Starts a schedule now, also a disabled one. Returns once its message is accepted, or cannot be
/// written. The same key in a repeated request is the same start.
///
/// # Errors
/// `E_NOT_FOUND`, `E_BUSY` while another start is under way, or `E_CONFIG_INVALID`. The reason why
/// the message cannot be written now; then the daemon tries again by itself.
pub async fn run(
    daemon: &Arc<Daemon>,
    name: &str,
    key: &str,
    by: &str,
) -> Result<Reply, WireError> {
    let config = own_config(daemon)?;
    let Some(schedule) = config.schedules.get(name) else {
        let message = format!("no schedule `{name}` is configured");
        let hint = "run `muleteer schedule list` to list the schedules";
        return Err(fault(ErrorCode::NotFound, &message, hint));
    };
    let key = format!("{PREFIX}{name}/run/{key}");
    if key.len() > KEY_LIMIT {
        return Err(fault(ErrorCode::BadInput, "the key is too long", ""));
    }
    let (mut changes, mut delays) = (daemon.fleet.subscribe(), daemon.delays.subscribe());
    begin(daemon, name, schedule, &key, by, &config).await?;
    loop {
        let fleet = changes.borrow_and_update().clone();
        let followed = fleet.conversations.schedules().get(name);
        // The start is over, and perhaps another one after it.
        if followed.is_none_or(|it| it.pending.as_ref().is_none_or(|due| due.key != key)) {
            let now = Timestamp::now();
            let document = document(daemon, name, schedule, &fleet.conversations, now);
            return Ok(Reply::Schedules { schedules: vec![document] });
        }
        let delay = delays.borrow_and_update().get(name).filter(|delay| delay.key == key).cloned();
        if let Some(delay) = delay {
            return Err(delayed(name, delay));
        }
        let changed = tokio::select! {
            changed = changes.changed() => changed,
            changed = delays.changed() => changed,
        };
        if changed.is_err() {
            return Err(unappended(&LedgerError::Ending));
        }
    }
}

/// Returns the error of a start that cannot be carried out now.
fn delayed(name: &str, delay: Delay) -> WireError {
    let Delay { error, retry_at, .. } = delay;
    let message = format!("the schedule `{name}` cannot be started now: {}", error.message);
    let hint = format!(
        "the daemon tries again by itself, next at {retry_at}; run `muleteer schedule list` to see \
         whether it has started"
    );
    WireError { message, hint: Some(hint), ..error }
}

/// Makes a start durable, unless it is.
async fn begin(
    daemon: &Arc<Daemon>,
    name: &str,
    schedule: &Schedule,
    key: &str,
    by: &str,
    config: &muleteer_model::config::Config,
) -> Result<(), WireError> {
    let _alone = daemon.creating(LOCK).await;
    let fleet = daemon.snapshot();
    let known = fleet.conversations.schedules().get(name);
    let is_last = |last: &Start| last.key == key;
    if known.and_then(|it| it.last.as_ref()).is_some_and(is_last) {
        return Ok(());
    }
    match known.and_then(|it| it.pending.as_ref()) {
        Some(pending) if pending.key == key => return Ok(()),
        Some(_) => {
            let reason = daemon.delays.get(name).map(|delay| delay.error.message);
            let reason = reason.map(|reason| format!(", and waits: {reason}")).unwrap_or_default();
            let message = format!("another start of the schedule `{name}` is under way{reason}");
            return Err(fault(ErrorCode::Busy, &message, "try again in a moment"));
        }
        None => {}
    }
    let start = step::start(name, schedule, key.into(), Timestamp::now());
    let project = start.project.as_ref().and_then(|word| directory(config, word).ok());
    let project = project.or_else(|| start.project.clone());
    let due = ScheduleDue { by: Some(by.into()), project, ..start };
    let event = Event::ScheduleDue(Box::new(due));
    try_append(daemon, entries(vec![event])).await.map_err(|error| unappended(&error))?;
    Ok(())
}

fn document(
    daemon: &Daemon,
    name: &str,
    schedule: &Schedule,
    state: &Conversations,
    now: Timestamp,
) -> ScheduleDoc {
    let followed = state.schedules().get(name);
    let pending = followed.and_then(|it| it.pending.as_ref());
    let delay = daemon.delays.get(name).filter(|it| pending.is_some_and(|due| due.key == it.key));
    let next = schedule.enabled.then(|| step::next_due(name, schedule, state, now)).flatten();
    ScheduleDoc {
        name: name.into(),
        cron: schedule.cron.clone(),
        time_zone: schedule.time_zone.clone(),
        role: schedule.role.clone(),
        project: schedule.project.clone(),
        enabled: schedule.enabled,
        next: next.map(|at| at.to_string()),
        running: pending.is_some(),
        retry_at: delay.as_ref().map(|delay| delay.retry_at.to_string()),
        reason: delay.map(|Delay { error, .. }| format!("{}: {}", error.code, error.message)),
        last: followed.and_then(|it| it.last.as_ref()).map(|last| last_of(last, state)),
    }
}

fn last_of(last: &Start, state: &Conversations) -> ScheduleStartDoc {
    let thread = last.thread.as_deref().and_then(|id| state.get(id));
    let (outcome, reason, message) = match &last.outcome {
        Outcome::Started(message) => ("started", None, Some(message)),
        Outcome::Skipped(reason) => ("skipped", Some(reason), None),
        Outcome::Failed(reason) => ("failed", Some(reason), None),
    };
    let of = message.and_then(|id| thread?.message(id));
    ScheduleStartDoc {
        due: last.due.to_string(),
        state: outcome.into(),
        reason: reason.cloned(),
        thread_id: last.thread.clone(),
        message_id: message.cloned(),
        message_state: of.map(|message| message.state.as_str().into()),
    }
}
