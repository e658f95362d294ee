//! The life of a dispatch: the decisions about an input, and the effects that follow from a state.
//!
//! Three pure functions define it. An actor runs them in a loop:
//!
//! ```text
//!   input ──▶ decide(&dispatch, input) ─▶ events ─▶ durable ─▶ fold ─┐
//!               ▲                                                     │
//!               │        advance(&dispatch, now) ◀────────────────────┤ until nothing follows
//!               │                                                     ▼
//!             world ◀── carried out by the actor ◀── effects(&dispatch)
//! ```
//!
//! Effects are level-triggered: they follow from the state alone. So after a crash the same state
//! asks for the same effects again, and each is idempotent (a probe or an idempotency key).
//!
//! The figure shows one process of a multi-turn agent, and what follows when it is gone
//! (`conclude`). [`crate::dispatch`] draws the phases around it; `turns` reads the agent's lines.
//! If an agent's process ends with its turn but its session does not (`!multi_turn`, `resumable`),
//! the figure holds too, except that every further prompt goes to the next process.
//!
//! ```text
//!            prompt sent            turn ended well, a prompt is queued
//!   None ────────────────▶ Running ────────────────────────────────▶ (next prompt) ─▶ Running
//!    │                     │  │ │
//!    │ gone                │  │ └─ interrupted ─▶ waiting ─ a send ─▶ Running
//!    │           gone ─────┘  │                     └─ gone ─▶ partial
//!    │             │          └─ ended, none queued ─▶ leaving (stdin closed)
//!    ▼             ▼                                         │ gone
//!   same prompt   continued in the resumed session           ├─ well, none queued ─▶ by its result
//!   again         (none known: the same prompt again)        ├─ well, one queued ─▶ next attempt
//!                                                            └─ an error ─▶ restart, or the end
//! ```

mod acp_handshake;
mod asks;
mod conclude;
mod effects;
mod hold;
mod input;
mod limits;
mod looking;
mod probe;
mod refusal;
#[cfg(test)]
mod tests;
mod turns;
mod unasked;
mod usage;

use crate::admission::api_error::{self, Trouble, Whose};
use crate::agent::acp_handshake::Opening;
use crate::agent::event::AgentEvent;
use crate::agent::session_age;
use crate::config::Span;
use crate::dispatch::{Dispatch, Exit, Phase, Process, PromptState, Ticket, Turn};
use crate::event::id::{DispatchId, key_of};
use crate::event::{
    Entry, Event, ExitCause, FinalState, Outcome, Position, PromptKind, Record, VERSION,
};
use crate::monitor::Finding;
use jiff::Timestamp;
use std::borrow::Cow;

pub use acp_handshake::awaited;
pub use asks::can_be_held;
pub use effects::{Effect, EffectKey, effects};
pub use input::Input;
pub use limits::{can_be_stopped, limit_reached};

pub(super) use limits::dollars;

use limits::used_up;

/// The number of times in a row that a shim may die before it released its agent.
pub const MAX_START_FAILURES: u32 = 5;

/// An event with the position in the spool up to which it accounts for the output.
pub type Decided = (Option<Position>, Event);

/// Decides the events that follow from an input. An input that the state has no use for gives none.
pub fn decide(d: &Dispatch, input: Input) -> Vec<Decided> {
    match input {
        Input::Admitted(ticket) => plain(admitted(d, ticket)),
        Input::Line { at, events } => line(d, at, &events),
        Input::Spawned { at, pid, shim_pid, containment, awake_ms } => {
            let starts = matches!(d.phase, Phase::Starting { epoch, .. } if epoch == at.epoch);
            let event = Event::AgentSpawned { pid, shim_pid, containment, awake_ms };
            stamp(at, starts.then_some(event))
        }
        // The shim reports a failed exec after `spawned`: the process existed, its program never
        // ran.
        Input::StartFailed { at, epoch, error, permanent } => {
            let event = Event::StartFailed { epoch, error, permanent };
            may_run(d, epoch).then_some((at, event)).into_iter().collect()
        }
        Input::Blocked { at, on } => {
            let is_news = is_working(d, at.epoch) && d.process().blocked_by_us != on;
            stamp(at, is_news.then_some(Event::BlockedByUs { on }))
        }
        Input::Exited { at, epoch, exit, awake_ms } => {
            stamp(at, may_run(d, epoch).then(|| exited(d, epoch, exit, awake_ms)))
        }
        Input::ShimLost { epoch, spawned, killed, clean, awake_ms, said, left } => {
            let swept = Event::SweepFinished { killed, clean, left };
            plain(shim_lost(d, epoch, spawned, (awake_ms, said), (swept, clean)))
        }
        Input::Adopted { shim_pid, epoch } => {
            plain(may_run(d, epoch).then_some(Event::AgentAdopted { shim_pid, epoch }))
        }
        Input::Probed { epoch, key, reading } => plain(probe::probed(d, epoch, key, &reading)),
        Input::WorktreeMade { path, base, again } => {
            let is_news = again || !d.files.cloned;
            plain(is_news.then_some(Event::WorktreeCreated { path, base }))
        }
        Input::WorkFetched(work) => {
            let is_news = matches!(d.phase, Phase::Closing { fetched: false, .. });
            plain(is_news.then_some(Event::WorkFetched(work)))
        }
        Input::Limit { limit, detail } => {
            let counts = d.is_active() && d.stop.is_none();
            plain(counts.then_some(Event::LimitReached { limit, detail }))
        }
        Input::Stalled { epoch, silent_s, evidence } => {
            let counts = d.owes_an_answer() == Some(epoch);
            plain(counts.then_some(Event::StallDetected { silent_s, evidence }))
        }
        Input::Sick { epoch, finding: Finding { monitor, action, reason } } => {
            let counts = d.owes_an_answer() == Some(epoch);
            plain(counts.then_some(Event::MonitorSpoke { monitor, action, reason }))
        }
        Input::ApiDown { epoch, trouble, for_s } => plain(api_down(d, epoch, trouble, for_s)),
        Input::CallOverdue { epoch, call, waited_s } => {
            plain(acp_handshake::overdue(d, epoch, &call, waited_s))
        }
        Input::Written { at, epoch, key } => {
            let awaited = d.unwritten().is_some_and(|prompt| prompt.key == key);
            let event = (at, Event::PromptWritten { key });
            (is_working(d, epoch) && awaited).then_some(event).into_iter().collect()
        }
        Input::AnswerWritten { at, epoch, id } => {
            stamp(at, asks::delivered(d, &id).filter(|_| is_working(d, epoch)))
        }
        Input::HoldOver { epoch } => {
            let idle = d.holds_idle();
            let is_held = is_working(d, epoch) && (idle || asks::can_be_held(d));
            plain(is_held.then_some(Event::HoldExpired { idle }))
        }
        Input::Speaks { epoch } => plain(speaks(d, epoch)),
        Input::Read { at } => {
            let is_news = is_working(d, at.epoch) && at > d.position;
            stamp(at, is_news.then_some(Event::OutputRead {}))
        }
        Input::Send { key, by } => {
            let is_news = hears(d) && d.prompt(&key).is_none();
            let kind = PromptKind::Send;
            plain(is_news.then_some(Event::PromptQueued { key, kind, by, trace: None }))
        }
        Input::Answer { id, answer, by, key } => plain(asks::answered(d, id, answer, by, key)),
        Input::Interrupt { key, by } => plain(interrupt(d, key, by)),
        Input::Kill { reason, by } => {
            let counts = !d.is_finished() && !d.is_being_killed();
            plain(counts.then_some(Event::KillRequested { reason, by }))
        }
    }
}

/// A dispatch that has used up its limits ends without a start.
fn admitted(d: &Dispatch, ticket: Ticket) -> Vec<Event> {
    let starts = d.phase == Phase::Queued && d.stop.is_none() && ticket == d.ticket();
    match starts && used_up(d).is_none() {
        // It was queued at `since`, so the session is at least as old as then.
        true => start_or_rest(d, d.attempts + 1, d.since),
        false => vec![],
    }
}

fn speaks(d: &Dispatch, epoch: u32) -> Vec<Event> {
    if is_working(d, epoch) && d.process().opening == Opening::Ready {
        turns::taken_unseen(d)
    } else {
        vec![]
    }
}

/// Interrupts the running turn, once under each key. The interrupt also answers the agent's open
/// requests: nobody will answer them any more.
fn interrupt(d: &Dispatch, key: String, by: String) -> Vec<Event> {
    let has_a_turn = matches!(d.phase, Phase::Working { turn: Turn::Running { .. }, .. });
    if !has_a_turn || d.interrupts.contains(&key) {
        return vec![];
    }
    let mut events = if d.created.calls.is_some() { asks::cancelled(d) } else { vec![] };
    events.push(Event::InterruptRequested { key, by });
    events
}

fn api_down(d: &Dispatch, epoch: u32, trouble: Trouble, for_s: u64) -> Option<Event> {
    if d.owes_an_answer() != Some(epoch) {
        return None;
    }
    let status = d.outage.as_ref().and_then(|outage| outage.status);
    let what = format!("{} for {}", trouble.describe(status), Span::from_secs(for_s));
    let reason = api_error::given_up(trouble, whose(d), &what);
    Some(Event::ApiGivenUp { trouble, status, reason })
}

/// Returns the events that follow from the state by itself. Called after each fold until it returns
/// nothing.
pub fn advance(d: &Dispatch, now: Timestamp) -> Vec<Event> {
    match &d.phase {
        Phase::Queued => match &d.stop {
            Some(stop) => conclude::unstarted(stop),
            None => {
                let denied = asks::overdue(d, now);
                if denied.is_empty() { used_up(d).into_iter().collect() } else { denied }
            }
        },
        Phase::Starting { .. } => vec![],
        Phase::Working { turn, process, .. } => {
            let denied = asks::overdue(d, now);
            if denied.is_empty() { advance_working(d, turn, process) } else { denied }
        }
        // The next step depends on the fate of its prompts.
        Phase::Gone { .. } if d.to_probe().is_some() => vec![],
        Phase::Gone { attempt, exit, turn, .. } => conclude::conclude(d, *attempt, exit, turn, now),
        Phase::Backoff { until, delay_ms, .. } => match &d.stop {
            Some(stop) => conclude::unstarted(stop),
            None => match used_up(d) {
                Some(limit) => vec![limit],
                None if waited(*until, *delay_ms, now) => start_or_rest(d, d.attempts + 1, now),
                None => vec![],
            },
        },
        Phase::Closing { state, reason, fetched, .. }
            if d.created.worktree.is_none() || *fetched =>
        {
            let work = d.files.work.as_ref().filter(|_| *fetched);
            let (state, reason) = conclude::with_work(d, work, *state, reason);
            let result = conclude::final_result(d, state, &reason);
            vec![Event::DispatchFinished { state, reason, result }]
        }
        Phase::Closing { .. } | Phase::Finished { .. } => vec![],
    }
}

/// Whether an event of its agent is the past of a session that the agent loads. Monitors have seen
/// it before: a second look would take a repetition for a loop, and a past call for an open one.
pub fn is_past(d: &Dispatch, event: &AgentEvent) -> bool {
    turns::is_past(d, event)
}

/// Applies `advance` until nothing more follows, and returns all events. They are made durable with
/// one append, so that the end of a dispatch waits for the disk once. `d` becomes the resulting
/// state.
pub fn follow(d: &mut Cow<'_, Dispatch>, now: Timestamp) -> Vec<Event> {
    let mut all = Vec::new();
    loop {
        let events = advance(d, now);
        if events.is_empty() {
            return all;
        }
        for event in &events {
            let entry = Entry {
                id: String::new(),
                dispatch_id: Some(d.id.clone()),
                at: None,
                more: false,
                event: event.clone(),
            };
            d.to_mut().apply(&Record { v: VERSION, seq: 0, ts: now, entry });
        }
        all.extend(events);
    }
}

/// Whether a wait of `delay_ms` that was to end at `until` is over. If the clock was set back, the
/// wait would last for hours. So a wait with more than its whole length left counts as over.
fn waited(until: Timestamp, delay_ms: u64, now: Timestamp) -> bool {
    let left = until.duration_since(now);
    left.is_zero() || left.is_negative() || left.as_millis() > i128::from(delay_ms)
}

/// Returns the key of a prompt that Muleteer makes. The same state gives the same key, so a
/// decision that is repeated after a crash is deduplicated. The key has the form of a UUID, because
/// Claude requires one.
pub fn prompt_key(id: &DispatchId, kind: PromptKind, n: u32) -> String {
    key_of(&format!("{id}/{kind:?}/{n}"))
}

/// Returns the id for a new session, if the CLI lets us choose it. The id stays the same until the
/// session exists. So a process whose session was never reported is not followed by a second
/// session.
pub fn new_session_id(d: &Dispatch) -> String {
    key_of(&format!("{}/{}/session/{}", d.id, d.created_at, d.session.spoiled))
}

fn whose(d: &Dispatch) -> Whose<'_> {
    Whose { id: d.id.as_str(), category: &d.created.category, terms: &d.created.api }
}

/// Stamps trouble with the model API with the shim's clock of awake time.
pub fn timed(mut decided: Vec<Decided>, now_ms: u64) -> Vec<Decided> {
    for (_, event) in &mut decided {
        if let Event::ApiRetried { awake_ms, .. } | Event::RateLimited { awake_ms, .. } = event {
            *awake_ms = Some(now_ms);
        }
    }
    decided
}

fn plain(events: impl IntoIterator<Item = Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (None, event)).collect()
}

/// All events of one line of output carry the position after it.
fn stamp(at: Position, events: impl IntoIterator<Item = Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (Some(at), event)).collect()
}

/// The epoch of the process that runs now, or may run.
pub fn current_epoch(d: &Dispatch) -> Option<u32> {
    match d.phase {
        Phase::Starting { epoch, .. } | Phase::Working { epoch, .. } => Some(epoch),
        _ => None,
    }
}

fn may_run(d: &Dispatch, epoch: u32) -> bool {
    current_epoch(d) == Some(epoch)
}

fn is_working(d: &Dispatch, epoch: u32) -> bool {
    matches!(d.phase, Phase::Working { epoch: current, .. } if current == epoch)
}

/// Whether there is, or can be, a session that takes a further prompt.
fn hears(d: &Dispatch) -> bool {
    d.created.resumable || (d.created.multi_turn && !d.is_finished())
}

/// Decides each event of a line on the state that the events before it have made.
fn line(d: &Dispatch, at: Position, events: &[AgentEvent]) -> Vec<Decided> {
    if !is_working(d, at.epoch) || at <= d.position {
        return vec![];
    }
    let [first, rest @ ..] = events else { return vec![] };
    let mut decided = stamp(at, turns::agent_event(d, first));
    if rest.is_empty() {
        return decided;
    }
    let mut state = d.clone();
    let mut folded = 0;
    for event in rest {
        for (at, event) in &decided[folded..] {
            let entry = Entry {
                id: String::new(),
                dispatch_id: None,
                at: *at,
                more: true,
                event: event.clone(),
            };
            state.apply(&Record { v: VERSION, seq: 0, ts: d.since, entry });
        }
        folded = decided.len();
        decided.extend(stamp(at, turns::agent_event(&state, event)));
    }
    decided
}

fn shim_lost(
    d: &Dispatch,
    epoch: u32,
    spawned: bool,
    (awake_ms, said): (u64, String),
    (swept, clean): (Event, bool),
) -> Vec<Event> {
    let (attempt, spawned) = match d.phase {
        Phase::Starting { attempt, epoch: current, rebooted } if current == epoch => {
            (attempt, spawned || rebooted)
        }
        Phase::Working { attempt, epoch: current, .. } if current == epoch => (attempt, true),
        _ => return vec![],
    };
    let mut events = vec![swept];
    if clean {
        let cause = if spawned { ExitCause::ShimLost } else { ExitCause::NeverRan };
        let exit = Exit { code: None, signal: None, cause, stderr_tail: said, left: vec![] };
        events.push(exited(d, epoch, exit, awake_ms));
    } else {
        let reason = "its shim died, and the processes it left could not be killed";
        events.extend(conclude::close(attempt, Outcome::Failure, FinalState::Blocked, reason));
    }
    events
}

/// `awake_ms` is a reading of the clock that `began_ms` was read from. A process that never ran
/// used no time.
fn exited(d: &Dispatch, epoch: u32, exit: Exit, awake_ms: u64) -> Event {
    let Exit { code, signal, cause, stderr_tail, left } = exit;
    let ran = matches!(d.phase, Phase::Working { .. });
    let used_ms = if ran { awake_ms.saturating_sub(d.process().began_ms) } else { 0 };
    Event::AgentExited { epoch, code, signal, cause, stderr_tail, used_ms, left }
}

fn resume_session(d: &Dispatch) -> Option<String> {
    d.session.id.clone().filter(|_| d.created.resumable)
}

/// Starts an attempt, or waits until its agent can load the session.
fn start_or_rest(d: &Dispatch, attempt: u32, now: Timestamp) -> Vec<Event> {
    match session_rests_until(d, now) {
        Some(until) => {
            let left = until.duration_since(now).as_millis();
            vec![Event::RestartScheduled { until, delay_ms: u64::try_from(left).unwrap_or(0) }]
        }
        None => start_attempt(d, attempt),
    }
}

/// Returns the time before which the session of a dispatch must not be loaded, if it is too young.
pub fn session_rests_until(d: &Dispatch, now: Timestamp) -> Option<Timestamp> {
    resume_session(d).filter(|_| d.created.calls.is_some())?;
    let (agent, made) = (d.agent()?, d.session.made_at?);
    let until = session_age::rests_until(agent.loads, made, now)?;
    // It has waited so long already, whatever the clock shows now.
    let has_waited = matches!(d.phase, Phase::Backoff { until: waited, .. } if waited >= until);
    (!has_waited).then_some(until)
}

fn start_attempt(d: &Dispatch, attempt: u32) -> Vec<Event> {
    let mut events = Vec::new();
    let resume = resume_session(d);
    // The prompt also tells the answers that the process before did not get.
    if resume.is_some() && d.is_cut_short() && !d.continues_with_answer() {
        let key = prompt_key(&d.id, PromptKind::Continue, d.epoch + 1);
        events.push(Event::PromptQueued {
            key,
            kind: PromptKind::Continue,
            by: "muleteer".into(),
            trace: None,
        });
    }
    events.push(Event::AttemptStarted { attempt, epoch: d.epoch + 1, resume });
    events
}

fn advance_working(d: &Dispatch, turn: &Turn, process: &Process) -> Vec<Event> {
    // No further prompt beyond a limit, even before the monitor reports the limit.
    if d.stop.is_some() || limit_reached(d).is_some() {
        return vec![];
    }
    if process.opening != Opening::Ready || process.call_failed.is_some() || d.asks.held {
        return vec![];
    }
    let in_flight = d.prompts.iter().any(|p| p.state == PromptState::Sent);
    let takes_prompt = match turn {
        Turn::None => true,
        // A message to a busy agent becomes part of the turn; a turn that is to stop takes no more.
        Turn::Running { .. } => d.created.folds && process.interrupt.is_none(),
        // After a failed turn only an interrupted session is known to be usable: others leave.
        Turn::Done { leaving, .. } => !leaving,
    };
    let Some(prompt) = d.next_prompt().filter(|_| takes_prompt && !in_flight) else {
        return vec![];
    };
    let in_a_turn = matches!(turn, Turn::Running { .. });
    if in_a_turn && prompt.kind != PromptKind::Send {
        return vec![];
    }
    let mut events = vec![Event::PromptSent { key: prompt.key.clone() }];
    if !d.created.has_turns() {
        // A one-shot agent gives no receipt: its turn lasts as long as its process.
        events.push(Event::TurnStarted { turn: d.turns + 1, key: prompt.key.clone() });
    }
    events
}
