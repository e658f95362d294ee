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
mod effect_key;
mod looking;
mod probe;
mod refusal;
#[cfg(test)]
mod tests;
mod turns;
mod unasked;

use crate::admission::api_error::{self, Trouble, Whose};
use crate::agent::acp_handshake::{Call, Opening};
use crate::agent::ask::Answer;
use crate::agent::event::AgentEvent;
use crate::agent::transcript::Reading;
use crate::config::Span;
use crate::dispatch::work::WorkHome;
use crate::dispatch::{Dispatch, Exit, Phase, PromptState, Stop, Ticket, Turn};
use crate::event::id::DispatchId;
use crate::event::{
    Entry, Event, ExitCause, FinalState, Limit, Outcome, Position, PromptKind, Record, VERSION,
};
use crate::monitor::Finding;
use jiff::Timestamp;
use std::borrow::Cow;

pub use acp_handshake::awaited;
pub use effect_key::EffectKey;

/// The number of times in a row that a shim may die before it released its agent.
pub const MAX_START_FAILURES: u32 = 5;

/// Something that happened to a dispatch, as the actors report it.
#[derive(Debug, Clone)]
pub enum Input {
    /// The pool gave it a slot.
    Admitted(Ticket),
    /// All events of one line of output. `at` is the position after the line; a line that is read
    /// again is ignored.
    Line {
        at: Position,
        events: Vec<AgentEvent>,
    },
    Spawned {
        at: Position,
        pid: u32,
        shim_pid: u32,
        containment: String,
        /// The shim's clock of awake time.
        awake_ms: u64,
    },
    StartFailed {
        at: Option<Position>,
        epoch: u32,
        error: String,
        permanent: bool,
    },
    Blocked {
        at: Position,
        on: bool,
    },
    Exited {
        at: Position,
        epoch: u32,
        exit: Exit,
        /// The shim's clock of awake time.
        awake_ms: u64,
    },
    /// The shim's lock is free, and its spool ends without `exited`.
    ShimLost {
        epoch: u32,
        spawned: bool,
        killed: u32,
        clean: bool,
        /// The shim's clock in the last record of its spool.
        awake_ms: u64,
        /// The shim's own error message, if it left one. It is reported together with the exit.
        said: String,
    },
    Adopted {
        shim_pid: u32,
        epoch: u32,
    },
    /// The transcript was searched for a prompt whose process is gone.
    Probed {
        epoch: u32,
        key: String,
        reading: Reading,
    },
    /// Its clone exists, and nobody has worked in it. With `again`, it replaces an earlier clone.
    WorktreeMade {
        path: String,
        base: String,
        again: bool,
    },
    WorkFetched(WorkHome),
    Limit {
        limit: Limit,
        detail: String,
    },
    /// The agent of `epoch` gave no sign of life for too long.
    Stalled {
        epoch: u32,
        silent_s: u64,
        evidence: String,
    },
    /// A monitor found a problem in the behaviour of the working agent of `epoch`.
    Sick {
        epoch: u32,
        finding: Finding,
    },
    /// The model API has only made this trouble for so long, while the process of `epoch` tried.
    ApiDown {
        epoch: u32,
        trouble: Trouble,
        for_s: u64,
    },
    /// A call of ours, other than a prompt, has been unanswered for so long.
    CallOverdue {
        epoch: u32,
        call: String,
        waited_s: u64,
    },
    /// The shim has written this prompt to the agent's stdin. `at` is the position of its record,
    /// if that was read.
    Written {
        at: Option<Position>,
        epoch: u32,
        key: String,
    },
    /// The agent of `epoch` is producing a message; the message is reported when it is complete.
    Speaks {
        epoch: u32,
    },
    /// A stretch of output was read that holds no event worth recording.
    Read {
        at: Position,
    },
    Send {
        key: String,
        by: String,
    },
    /// Somebody with the right to do so answered a request of the agent.
    Answer {
        id: String,
        answer: Answer,
        by: String,
        /// The key of the client's request; empty if the client gave none.
        key: String,
    },
    Interrupt {
        key: String,
        by: String,
    },
    Kill {
        reason: String,
        by: String,
    },
}

/// An action for the actors to carry out, derived from the state alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the pool for a slot.
    Admit,
    /// Make sure that the shim of `epoch` runs: probe its lock, adopt it, or start it.
    EnsureShim {
        epoch: u32,
        resume: Option<String>,
    },
    /// Make the call that the opening of a session has reached.
    Call(Call),
    /// Send the prompt to the agent; with `close`, its stdin is closed after it.
    Prompt {
        key: String,
        close: bool,
    },
    /// Search the CLI's transcript for the prompt.
    Probe {
        key: String,
    },
    CloseStdin,
    /// Send the agent the answer to its request.
    Answer {
        id: String,
    },
    /// Ask the CLI to change to another model.
    SetModel {
        key: String,
        model: String,
    },
    Interrupt {
        key: String,
    },
    Terminate,
    FetchWork,
    WakeAt(Timestamp),
}

/// An event with the position in the spool up to which it accounts for the output.
pub type Decided = (Option<Position>, Event);

/// Decides the events that follow from an input. An input that the state has no use for gives none.
pub fn decide(d: &Dispatch, input: Input) -> Vec<Decided> {
    match input {
        // A dispatch that has used up its limits ends without a start.
        Input::Admitted(ticket)
            if d.phase == Phase::Queued
                && d.stop.is_none()
                && ticket == d.ticket()
                && used_up(d).is_none() =>
        {
            plain(start_attempt(d, d.attempts + 1))
        }
        Input::Line { at, events } if is_working(d, at.epoch) && at > d.position => {
            line(d, at, &events)
        }
        Input::Spawned { at, pid, shim_pid, containment, awake_ms } => match d.phase {
            Phase::Starting { epoch, .. } if epoch == at.epoch => {
                stamp(at, vec![Event::AgentSpawned { pid, shim_pid, containment, awake_ms }])
            }
            _ => vec![],
        },
        // The shim reports a failed exec after `spawned`: the process existed, its program never
        // ran.
        Input::StartFailed { at, epoch, error, permanent } => match d.phase {
            Phase::Starting { epoch: current, .. } | Phase::Working { epoch: current, .. }
                if current == epoch =>
            {
                vec![(at, Event::StartFailed { epoch, error, permanent })]
            }
            _ => vec![],
        },
        Input::Blocked { at, on } if is_working(d, at.epoch) && d.blocked_by_us != on => {
            stamp(at, vec![Event::BlockedByUs { on }])
        }
        Input::Exited { at, epoch, exit, awake_ms } if current_epoch(d) == Some(epoch) => {
            stamp(at, vec![exited(d, epoch, exit, awake_ms)])
        }
        Input::ShimLost { epoch, spawned, killed, clean, awake_ms, said } => {
            plain(shim_lost(d, epoch, spawned, (awake_ms, said), (killed, clean)))
        }
        Input::Adopted { shim_pid, epoch } if current_epoch(d) == Some(epoch) => {
            plain(vec![Event::AgentAdopted { shim_pid, epoch }])
        }
        Input::Probed { epoch, key, reading } => plain(probe::probed(d, epoch, key, &reading)),
        Input::WorktreeMade { path, base, again } if again || !d.cloned => {
            plain(vec![Event::WorktreeCreated { path, base }])
        }
        Input::WorkFetched(work)
            if matches!(d.phase, Phase::Closing { .. }) && d.fetched.is_none() =>
        {
            plain(vec![Event::WorkFetched(work)])
        }
        Input::Send { key, by } if hears(d) && d.prompt(&key).is_none() => {
            plain(vec![Event::PromptQueued { key, kind: PromptKind::Send, by, trace: None }])
        }
        Input::Answer { id, answer, by, key } => plain(asks::answered(d, id, answer, by, key)),
        Input::Interrupt { key, by }
            if matches!(d.phase, Phase::Working { turn: Turn::Running { .. }, .. })
                && d.interrupt.as_ref() != Some(&key) =>
        {
            // The interrupt also answers the agent's open requests: nobody will answer them any
            // more.
            let mut events = if d.created.calls.is_some() { asks::cancelled(d) } else { vec![] };
            events.push(Event::InterruptRequested { key, by });
            plain(events)
        }
        Input::Kill { reason, by }
            if !d.is_finished() && !matches!(d.stop, Some(Stop::Kill { .. })) =>
        {
            plain(vec![Event::KillRequested { reason, by }])
        }
        Input::Limit { limit, detail } if d.is_active() && d.stop.is_none() => {
            plain(vec![Event::LimitReached { limit, detail }])
        }
        Input::Stalled { epoch, silent_s, evidence } if d.owes_an_answer() == Some(epoch) => {
            plain(vec![Event::StallDetected { silent_s, evidence }])
        }
        Input::Sick { epoch, finding: Finding { monitor, action, reason } }
            if d.owes_an_answer() == Some(epoch) && d.stop.is_none() =>
        {
            plain(vec![Event::MonitorSpoke { monitor, action, reason }])
        }
        Input::ApiDown { epoch, trouble, for_s } if d.owes_an_answer() == Some(epoch) => {
            let status = d.outage.as_ref().and_then(|outage| outage.status);
            let what = format!("{} for {}", trouble.describe(status), Span::from_secs(for_s));
            let reason = api_error::given_up(trouble, whose(d), &what);
            plain(vec![Event::ApiGivenUp { trouble, status, reason }])
        }
        Input::CallOverdue { epoch, call, waited_s } => {
            plain(acp_handshake::overdue(d, epoch, &call, waited_s))
        }
        Input::Written { at, epoch, key }
            if is_working(d, epoch) && d.unwritten().is_some_and(|prompt| prompt.key == key) =>
        {
            vec![(at, Event::PromptWritten { key })]
        }
        Input::Speaks { epoch } if is_working(d, epoch) && d.opening == Opening::Ready => {
            plain(turns::taken_unseen(d))
        }
        Input::Read { at } if is_working(d, at.epoch) && at > d.position => {
            stamp(at, vec![Event::OutputRead {}])
        }
        _ => vec![],
    }
}

/// Returns the limit that earlier attempts used up, if any: such a dispatch begins no further
/// attempt.
fn used_up(d: &Dispatch) -> Option<Event> {
    let time = d
        .created
        .limits
        .timeout_s
        .filter(|timeout_s| d.used_ms / 1000 >= *timeout_s)
        .map(|timeout_s| (Limit::Timeout, time_limit(timeout_s)));
    let (limit, detail) = time.or_else(|| budget_spent(d)).or_else(|| turns_taken(d))?;
    Some(Event::LimitReached { limit, detail })
}

fn budget_spent(d: &Dispatch) -> Option<(Limit, String)> {
    let budget = d.created.limits.budget_usd.filter(|budget| d.spend.cost_usd >= *budget)?;
    Some((Limit::Budget, budget_limit(d, budget)))
}

/// Describes a time limit for [`Limit::describe`].
fn time_limit(timeout_s: u64) -> String {
    format!("its time limit of {}", Span::from_secs(timeout_s))
}

/// Describes a budget for [`Limit::describe`], with the money that the dispatch has spent.
fn budget_limit(d: &Dispatch, budget: f64) -> String {
    format!("its budget of {} ({} spent)", dollars(budget), dollars(d.spend.cost_usd))
}

/// Describes a limit of model turns for [`Limit::describe`].
fn turn_limit(most: u32) -> String {
    format!("its limit of {most} turn{}", if most == 1 { "" } else { "s" })
}

/// Formats an amount of money. Less than a cent keeps four digits, as it would read `$0.00`.
pub(super) fn dollars(amount: f64) -> String {
    if amount > 0.0 && amount < 0.01 { format!("${amount:.4}") } else { format!("${amount:.2}") }
}

/// Returns the limit of model turns if it is reached: no further model turn may begin.
fn turns_taken(d: &Dispatch) -> Option<(Limit, String)> {
    let most = d
        .created
        .limits
        .max_turns
        .filter(|most| d.created.has_turns() && d.model_turns >= *most)?;
    Some((Limit::Turns, turn_limit(most)))
}

/// The limit that a working dispatch has exceeded, if any. After its turn there is nothing left to
/// stop.
pub fn limit_reached(d: &Dispatch) -> Option<(Limit, String)> {
    if !can_be_stopped(d) {
        return None;
    }
    let runs = has_a_turn(d);
    // The last allowed turn may finish what it began; nothing new may begin.
    let may_finish = |most: u32| d.model_turns <= most || !counts_turns(d);
    budget_spent(d).or_else(|| {
        turns_taken(d).filter(|_| !(runs && d.created.limits.max_turns.is_some_and(may_finish)))
    })
}

fn has_a_turn(d: &Dispatch) -> bool {
    matches!(&d.phase, Phase::Working { turn: Turn::Running { .. }, .. })
}

/// Whether a limit has something to stop that is not being stopped already.
pub fn can_be_stopped(d: &Dispatch) -> bool {
    matches!(d.phase, Phase::Working { .. })
        && d.stop.is_none()
        && (has_a_turn(d) || d.next_prompt().is_some())
}

/// Whether Muleteer counts the model turns. A CLI that enforces its limit itself counts better.
fn counts_turns(d: &Dispatch) -> bool {
    d.created.has_turns() && !d.traits.limits_turns
}

/// Returns the events that follow from the state by itself. Called after each fold until it returns
/// nothing.
pub fn advance(d: &Dispatch, now: Timestamp) -> Vec<Event> {
    match &d.phase {
        Phase::Queued => match &d.stop {
            Some(stop) => conclude::unstarted(stop),
            None => used_up(d).into_iter().collect(),
        },
        Phase::Starting { .. } => vec![],
        Phase::Working { turn, .. } => {
            let denied = asks::overdue(d, now);
            if denied.is_empty() { advance_working(d, turn) } else { denied }
        }
        // The next step depends on the fate of its prompts.
        Phase::Gone { .. } if d.to_probe().is_some() => vec![],
        Phase::Gone { attempt, exit, turn, .. } => conclude::conclude(d, *attempt, exit, turn, now),
        Phase::Backoff { until, delay_ms, .. } => match &d.stop {
            Some(stop) => conclude::unstarted(stop),
            None => match used_up(d) {
                Some(limit) => vec![limit],
                None if waited(*until, *delay_ms, now) => start_attempt(d, d.attempts + 1),
                None => vec![],
            },
        },
        Phase::Closing { state, reason, .. }
            if d.created.worktree.is_none() || d.fetched.is_some() =>
        {
            let (state, reason) = conclude::with_work(d, *state, reason);
            let result = conclude::final_result(d, state, &reason);
            vec![Event::DispatchFinished { state, reason, result }]
        }
        Phase::Closing { .. } | Phase::Finished { .. } => vec![],
    }
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

/// Returns the effects that are due in this state. Each may be carried out twice without harm.
pub fn effects(d: &Dispatch) -> Vec<Effect> {
    match &d.phase {
        Phase::Queued => vec![Effect::Admit],
        Phase::Starting { epoch, .. } => {
            vec![Effect::EnsureShim { epoch: *epoch, resume: resume_session(d) }]
        }
        Phase::Working { epoch, turn, .. } => {
            let mut effects = vec![Effect::EnsureShim { epoch: *epoch, resume: None }];
            if d.stop.is_some() || d.call_failed.is_some() {
                effects.push(Effect::Terminate);
                return effects;
            }
            effects.extend(acp_handshake::restores(d));
            if let Some(call) = acp_handshake::effect(d) {
                effects.push(call);
                return effects;
            }
            // The turn of a one-shot agent begins as its prompt is sent, so `Taken` is still on its
            // way.
            let on_its_way = |state: PromptState| {
                state == PromptState::Sent
                    || (state == PromptState::Taken && !d.created.has_turns())
            };
            if matches!(turn, Turn::Done { leaving: true, .. }) {
                effects.push(Effect::CloseStdin);
            } else if let Some(prompt) = d.prompts.iter().find(|p| on_its_way(p.state)) {
                effects
                    .push(Effect::Prompt { key: prompt.key.clone(), close: !d.created.multi_turn });
            }
            effects.extend(asks::effects(d));
            effects.extend(asks::wakes(d));
            if let (Some((key, _)), Some(model)) = (&d.model_change, &d.model_wanted) {
                effects.push(Effect::SetModel { key: key.clone(), model: model.clone() });
            }
            if let Some(key) = &d.interrupt {
                effects.push(Effect::Interrupt { key: key.clone() });
            }
            effects
        }
        Phase::Backoff { until, .. } => vec![Effect::WakeAt(*until)],
        Phase::Closing { .. } => vec![Effect::FetchWork],
        Phase::Gone { .. } => {
            d.to_probe().map(|p| Effect::Probe { key: p.key.clone() }).into_iter().collect()
        }
        Phase::Finished { .. } => vec![],
    }
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
    key_of(&format!("{}/{}/session/{}", d.id, d.created_at, d.sessions_spoiled))
}

fn key_of(name: &str) -> String {
    let mut high = 0xcbf2_9ce4_8422_2325_u64;
    let mut low = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in name.bytes() {
        high = (high ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        low = (low.rotate_left(5) ^ high).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let hex = format!("{high:016x}{low:016x}");
    format!("{}-{}-8{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
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

fn plain(events: Vec<Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (None, event)).collect()
}

/// All events of one line of output carry the position after it.
fn stamp(at: Position, events: Vec<Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (Some(at), event)).collect()
}

/// The epoch of the process that runs now, or may run.
pub fn current_epoch(d: &Dispatch) -> Option<u32> {
    match d.phase {
        Phase::Starting { epoch, .. } | Phase::Working { epoch, .. } => Some(epoch),
        _ => None,
    }
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
    (killed, clean): (u32, bool),
) -> Vec<Event> {
    let (attempt, spawned) = match d.phase {
        Phase::Starting { attempt, epoch: current } if current == epoch => {
            (attempt, spawned || d.rebooted)
        }
        Phase::Working { attempt, epoch: current, .. } if current == epoch => (attempt, true),
        _ => return vec![],
    };
    let mut events = vec![Event::SweepFinished { killed, clean }];
    if clean {
        let cause = if spawned { ExitCause::ShimLost } else { ExitCause::NeverRan };
        let exit = Exit { code: None, signal: None, cause, stderr_tail: said };
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
    let Exit { code, signal, cause, stderr_tail } = exit;
    let ran = matches!(d.phase, Phase::Working { .. });
    let used_ms = if ran { awake_ms.saturating_sub(d.began_ms) } else { 0 };
    Event::AgentExited { epoch, code, signal, cause, stderr_tail, used_ms }
}

fn resume_session(d: &Dispatch) -> Option<String> {
    d.session_id.clone().filter(|_| d.created.resumable)
}

fn start_attempt(d: &Dispatch, attempt: u32) -> Vec<Event> {
    let mut events = Vec::new();
    let resume = resume_session(d);
    if resume.is_some() && d.is_cut_short() {
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

fn advance_working(d: &Dispatch, turn: &Turn) -> Vec<Event> {
    // No further prompt beyond a limit, even before the monitor reports the limit.
    if d.stop.is_some() || limit_reached(d).is_some() {
        return vec![];
    }
    if d.opening != Opening::Ready || d.call_failed.is_some() {
        return vec![];
    }
    let in_flight = d.prompts.iter().any(|p| p.state == PromptState::Sent);
    let takes_prompt = match turn {
        Turn::None => true,
        // A message to a busy agent becomes part of the turn; a turn that is to stop takes no more.
        Turn::Running { .. } => d.created.folds && d.interrupt.is_none(),
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
