//! Heals dispatches: creates light agents, makes their choices durable, and carries them out. It
//! reads the folded fleet, so a new daemon goes on where the last one was killed. The rules are in
//! `model::monitor::healing`.
//!
//! - `light`: the light agent and its answer;
//! - `effects`: what a choice does.

mod effects;
mod light;

use crate::conversation::new_id;
use crate::conversation::rights::own_config;
use crate::daemon::context::Daemon;
use crate::dispatch::error::{is_passing, unappended};
use crate::ledger::try_append;
use crate::ports::agent::JournalMsg;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use muleteer_model::config::Config;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event};
use muleteer_model::monitor::healing::step::{self, Step};
use muleteer_process::fault::point;
use muleteer_protocol::v1::WireError;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep until the next look, because a configuration that could not be read may be
/// mended.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The pause before a step that could not be made is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// The most steps at the same time.
const MOST_STEPS: usize = 16;

/// Follows all dispatches in trouble until the daemon ends. Cancel-safe: what is durable is resumed
/// by the next call.
pub async fn watch(daemon: Arc<Daemon>) {
    let mut changes = daemon.fleet.subscribe();
    loop {
        let seen = daemon.snapshot().troubles();
        let pause = if pass(&daemon).await { PAUSE } else { LONGEST_SLEEP };
        let sleep = tokio::time::sleep(pause);
        tokio::pin!(sleep);
        while changes.borrow_and_update().troubles() == seen {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = &mut sleep => break,
            }
        }
    }
}

/// Whether the question about the stall of a dispatch waits for its healing.
pub(super) fn defers(daemon: &Daemon, fleet: &Fleet, dispatch: &Dispatch) -> bool {
    match own_config(daemon) {
        Ok(config) => step::defers(fleet, dispatch, &config.healing, Timestamp::now()),
        Err(_) => dispatch.healing.is_under_way(),
    }
}

/// Makes one step for each dispatch that needs one. Returns whether one has to be tried again.
async fn pass(daemon: &Arc<Daemon>) -> bool {
    let (fleet, now) = (daemon.snapshot(), Timestamp::now());
    let needs = fleet.troubled().filter(|dispatch| step::may_need_step(dispatch, now));
    let all: Vec<DispatchId> = needs.map(|dispatch| dispatch.id.clone()).collect();
    if all.is_empty() {
        return false;
    }
    let config = own_config(daemon).ok();
    let step = |id| {
        let (daemon, config) = (daemon.clone(), config.clone());
        async move { heal(&daemon, config.as_deref(), &id).await.is_err() }
    };
    let steps: Vec<bool> = stream::iter(all).map(step).buffer_unordered(MOST_STEPS).collect().await;
    steps.contains(&true)
}

/// Makes the next step of one dispatch.
///
/// # Errors
/// It cannot be made now, and is tried again.
async fn heal(
    daemon: &Arc<Daemon>,
    config: Option<&Config>,
    id: &DispatchId,
) -> Result<(), WireError> {
    let fleet = daemon.snapshot();
    let Some(dispatch) = fleet.get(id) else { return Ok(()) };
    let settings = config.map(|config| &config.healing);
    match step::next(&fleet, dispatch, settings, Timestamp::now(), &mut new_id) {
        None => Ok(()),
        Some(Step::Record(events)) => record(daemon, dispatch, events).await,
        Some(Step::Ask { healer }) => {
            point("healing.begun");
            let Some(config) = config else { return Ok(()) };
            match light::create(daemon, &fleet, dispatch, config, &healer).await {
                Ok(()) => {
                    point("healing.asked");
                    Ok(())
                }
                Err(error) if is_passing(&error) => Err(error),
                Err(WireError { code, message, .. }) => {
                    let reason = format!("the light agent cannot be started: {code}: {message}");
                    let event = step::escalated(dispatch.healing.number(), &reason);
                    record(daemon, dispatch, vec![event]).await
                }
            }
        }
        Some(Step::Read { healer }) => {
            let answer = light::answer(daemon, &fleet, &healer).await;
            point("healing.read");
            let event = step::chosen(dispatch, &healer, answer, &mut new_id);
            record(daemon, dispatch, vec![event]).await
        }
        Some(Step::CarryOut(chosen)) => {
            point("healing.chosen");
            let reason = match effects::carry_out(daemon, dispatch, &chosen).await {
                Ok(()) => String::new(),
                Err(error) if is_passing(&error) => return Err(error),
                Err(WireError { code, message, .. }) => format!("{code}: {message}"),
            };
            point("healing.carried_out");
            record(daemon, dispatch, vec![step::done(dispatch, &reason)]).await
        }
    }
}

/// Makes events of a healing durable, and shows them in the journal of its dispatch. The ledger
/// knows a repeated event by its id.
async fn record(
    daemon: &Arc<Daemon>,
    dispatch: &Dispatch,
    events: Vec<Event>,
) -> Result<(), WireError> {
    let entry = |event: Event| {
        let (number, what) = match &event {
            Event::HealingBegun(begun) => (begun.number, "begun"),
            Event::HealingChosen(chosen) => (chosen.number, "chosen"),
            Event::HealingDone(done) => (done.number, "done"),
            _ => (0, "other"),
        };
        Entry {
            id: format!("{}/healing/{number}/{what}", dispatch.id),
            dispatch_id: Some(dispatch.id.clone()),
            at: None,
            more: false,
            event,
        }
    };
    let entries = events.into_iter().map(entry).collect();
    let records = try_append(daemon, entries).await.map_err(|error| unappended(&error))?;
    daemon.agent(&dispatch.id).journal.cast(JournalMsg::Records(records));
    Ok(())
}
