//! `why`: explains the state of a dispatch by what the monitors, the pool and the restart rules saw
//! and decided.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::live_fleet::LiveFleet;
use crate::client::offline::{say_so, stored};
use crate::render::event::Lines;
use crate::render::why::{Why, text};
use crate::verbs::inspect::status::fetch;
use jiff::Timestamp;
use muleteer_model::admission::queue::Queue;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::{Event, Record};
use muleteer_protocol::v1::DispatchStatus;
use muleteer_store::events::tail::{Reader, Start};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  muleteer why k3f9
  muleteer why k3f9 --json | jq '.decisions[].event'

Shows why a dispatch is queued, waits, restarts, stalled or ended: the findings
of the monitors, limits, waits for the model API, exits and restarts, each with
its evidence and its local time. -v adds every retry of the model API.";

/// Explain the state of a dispatch: what the monitors and the pool decided
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The dispatch: its id, or the beginning of it
    id: String,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let fleet = LiveFleet::open(context)?;
    let dispatch = fleet.find(&args.id)?;
    let report = fetch(context, Some(dispatch.id.as_str())).await?;
    let Some(status) = report.dispatches.first() else {
        return Err(Failure::new(muleteer_protocol::ErrorCode::NotFound, "the dispatch is gone")
            .dispatch(dispatch.id.as_str()));
    };
    let decisions = decisions(context, &dispatch)?;
    let queue = Queue::of(fleet.fleet());
    let wait = queue.wait_of(&dispatch);
    if context.out.json {
        let wait = wait.map(|wait| {
            let held_by: Vec<_> = wait.holders.iter().map(ToString::to_string).collect();
            json!({ "slots": wait.slots, "held_by": held_by, "ahead": wait.ahead })
        });
        let lines: Vec<&Value> = decisions.iter().map(|decision| &decision.line).collect();
        context.out.document(&document(status, report.daemon.running, wait, &lines))?;
        return Ok(Exit::Done);
    }
    if !report.daemon.running {
        say_so(context);
    }
    let lines = Lines::default();
    let is_shown = |decision: &&Decision| {
        context.out.verbose > 0 || !matches!(decision.record.entry.event, Event::ApiRetried { .. })
    };
    let decided = decisions
        .iter()
        .filter(is_shown)
        .filter_map(|decision| Some((decision.record.ts, lines.describe(&decision.record.entry)?)));
    let why = Why {
        status,
        holders: wait.map(|wait| wait.holders.to_vec()).unwrap_or_default(),
        is_carried_on: report.daemon.running,
        decided: decided.collect(),
    };
    context.out.text(text(&why, Timestamp::now()))?;
    Ok(Exit::Done)
}

fn document(
    status: &DispatchStatus,
    is_running: bool,
    wait: Option<Value>,
    decisions: &[&Value],
) -> Value {
    json!({
        "running": is_running,
        "dispatch_id": status.id,
        "state": status.state,
        "since": status.since,
        "reason": status.reason,
        "last_activity": status.last_activity,
        "waiting_for": status.waiting_for,
        "queue": wait,
        "decisions": decisions,
    })
}

struct Decision {
    record: Record,
    /// The event as it is recorded.
    line: Value,
}

/// Reads the events of a dispatch that decided its state.
fn decisions(context: &Context, dispatch: &Dispatch) -> Result<Vec<Decision>, Failure> {
    let start = Start::Seq(dispatch.created_seq);
    let mut reader = Reader::open(&context.paths.events(), start).map_err(stored)?;
    let last = if dispatch.is_finished() { dispatch.last_seq } else { u64::MAX };
    let mut found = vec![];
    while reader.cursor().seq < last
        && let Some(read) = reader.next_line().map_err(stored)?
    {
        let is_ours = read.record.entry.dispatch_id.as_ref() == Some(&dispatch.id);
        if is_ours && decides(&read.record.entry.event) {
            let line = serde_json::from_str(&read.raw).unwrap_or_default();
            found.push(Decision { record: read.record, line });
        }
    }
    Ok(found)
}

/// Whether an event explains a state.
fn decides(event: &Event) -> bool {
    matches!(
        event,
        Event::DispatchCreated(_)
            | Event::AttemptStarted { .. }
            | Event::StartFailed { .. }
            | Event::AgentExited { .. }
            | Event::SweepFinished { clean: false, .. }
            | Event::AttemptFinished { .. }
            | Event::RestartScheduled { .. }
            | Event::SessionLost { .. }
            | Event::PromptProbed { .. }
            | Event::PermissionRequested { answered: false, .. }
            | Event::PermissionAnswered { .. }
            | Event::PolicyBroken { .. }
            | Event::ResultInvalid { .. }
            | Event::ApiRetried { .. }
            | Event::RateLimited { .. }
            | Event::ApiWaiting { .. }
            | Event::ApiGivenUp { .. }
            | Event::BlockedByUs { .. }
            | Event::InterruptRequested { .. }
            | Event::KillRequested { .. }
            | Event::LimitReached { .. }
            | Event::StallDetected { .. }
            | Event::MonitorSpoke { .. }
            | Event::HealingBegun(_)
            | Event::HealingChosen(_)
            | Event::HealingDone(_)
            | Event::DispatchFinished { .. }
    )
}
