//! The life of a dispatch: what to decide when something happens, and what to do about a state.
//!
//! Three pure functions carry it, in a loop that an actor turns:
//!
//! ```text
//!   input ──▶ decide(&dispatch, input) ─▶ events ─▶ durable ─▶ fold ─┐
//!               ▲                                                     │
//!               │        advance(&dispatch, now) ◀────────────────────┤ until it has nothing to add
//!               │                                                     ▼
//!             world ◀── carried out by the actor ◀── effects(&dispatch)
//! ```
//!
//! Effects are level-triggered: they follow from the state alone, so after a crash the same state
//! asks for the same effects again, and each is idempotent (a probe or an idempotency key).

use crate::agent_event::{AgentEvent, TurnError, TurnResult, cut, target};
use crate::dispatch::{Dispatch, Exit, Phase, PromptState, Stop, Turn};
use crate::event::{Event, ExitCause, FinalState, Limit, Outcome, Position, PromptKind};
use crate::id::DispatchId;
use crate::result::{self, AgentResult, ResultStatus};
use jiff::{SignedDuration, Timestamp};

/// How often in a row a shim may die before it released its agent.
pub const MAX_START_FAILURES: u32 = 5;
const SAID_LIMIT: usize = 280;

/// Something that happened to a dispatch, as the actors report it.
#[derive(Debug, Clone)]
pub enum Input {
    /// The pool gave it a place.
    Admitted,
    Agent { at: Position, event: AgentEvent },
    Spawned { at: Position, pid: u32, shim_pid: u32, containment: String },
    StartFailed { at: Option<Position>, epoch: u32, error: String, permanent: bool },
    Blocked { at: Position, on: bool },
    Exited { at: Position, epoch: u32, exit: Exit },
    /// The shim's lock is free and its spool ends without `exited`.
    ShimLost { epoch: u32, spawned: bool, killed: u32, clean: bool },
    Adopted { shim_pid: u32, epoch: u32 },
    WorktreeMade { path: String, base: String },
    WorkFetched { branch: String, commit: Option<String> },
    Limit { limit: Limit, detail: String },
    /// So much output was read without an event worth recording.
    Read { at: Position },
    Send { key: String, by: String },
    Interrupt { key: String, by: String },
    Kill { reason: String, by: String },
}

/// What the world should be made to do, given the state alone.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the pool for a place.
    Admit,
    /// See to it that the shim of `epoch` runs: probe its lock, adopt it, or start it.
    EnsureShim { epoch: u32, resume: Option<String> },
    /// Hand the prompt to the agent; `close` ends its stdin after it.
    Prompt { key: String, close: bool },
    CloseStdin,
    Interrupt { key: String },
    Terminate,
    FetchWork,
    WakeAt(Timestamp),
}

/// An event with the place in the spool up to which it accounts for the output.
pub type Decided = (Option<Position>, Event);

/// Decides what an input means. Inputs that a state has no use for decide nothing.
pub fn decide(d: &Dispatch, input: Input) -> Vec<Decided> {
    match input {
        Input::Admitted if d.phase == Phase::Queued => plain(start_attempt(d, d.attempts + 1)),
        Input::Agent { at, event } => stamp(at, agent_event(d, &event)),
        Input::Spawned { at, pid, shim_pid, containment } => match d.phase {
            Phase::Starting { .. } => stamp(at, vec![Event::AgentSpawned { pid, shim_pid, containment }]),
            _ => vec![],
        },
        Input::StartFailed { at, epoch, error, permanent } => match d.phase {
            Phase::Starting { epoch: current, .. } if current == epoch => {
                vec![(at, Event::StartFailed { epoch, error, permanent })]
            }
            _ => vec![],
        },
        Input::Blocked { at, on } if d.blocked_by_us != on => stamp(at, vec![Event::BlockedByUs { on }]),
        Input::Exited { at, epoch, exit } if current_epoch(d) == Some(epoch) => {
            stamp(at, vec![exited(epoch, exit)])
        }
        Input::ShimLost { epoch, spawned, killed, clean } if current_epoch(d) == Some(epoch) => {
            let mut events = vec![Event::SweepFinished { killed, clean }];
            if clean {
                let cause = if spawned { ExitCause::ShimLost } else { ExitCause::NeverRan };
                let exit = Exit { code: None, signal: None, cause, stderr_tail: String::new() };
                events.push(exited(epoch, exit));
            } else {
                let reason = "its shim died and what it left could not be ended".to_string();
                events.push(Event::DispatchClosing { state: FinalState::Blocked, reason });
            }
            plain(events)
        }
        Input::Adopted { shim_pid, epoch } if current_epoch(d) == Some(epoch) => {
            plain(vec![Event::AgentAdopted { shim_pid, epoch }])
        }
        Input::WorktreeMade { path, base } => plain(vec![Event::WorktreeCreated { path, base }]),
        Input::WorkFetched { branch, commit } if matches!(d.phase, Phase::Closing { .. }) => {
            plain(vec![Event::WorkFetched { branch, commit }])
        }
        Input::Send { key, by } if d.prompt(&key).is_none() => {
            plain(vec![Event::PromptQueued { key, kind: PromptKind::Send, by }])
        }
        Input::Interrupt { key, by } if matches!(d.phase, Phase::Working { turn: Turn::Running { .. }, .. }) => {
            plain(vec![Event::InterruptRequested { key, by }])
        }
        Input::Kill { reason, by } if !d.is_finished() && !matches!(d.stop, Some(Stop::Kill { .. })) => {
            plain(vec![Event::KillRequested { reason, by }])
        }
        Input::Limit { limit, detail } if d.is_active() && d.stop.is_none() => {
            plain(vec![Event::LimitReached { limit, detail }])
        }
        Input::Read { at } if at > d.position => stamp(at, vec![Event::OutputRead {}]),
        _ => vec![],
    }
}

/// The limit a working dispatch has gone beyond, if any. A turn that is over has nothing left to stop.
pub fn limit_reached(d: &Dispatch) -> Option<(Limit, String)> {
    let Phase::Working { turn, .. } = &d.phase else { return None };
    let has_work = matches!(turn, Turn::Running { .. }) || d.next_prompt().is_some();
    let budget = d.created.limits.budget_usd?;
    (has_work && d.stop.is_none() && d.spend.cost_usd >= budget)
        .then(|| (Limit::Budget, format!("${:.4} of ${budget:.2} spent", d.spend.cost_usd)))
}

/// What follows from the state by itself. Called after each fold until it returns nothing.
pub fn advance(d: &Dispatch, now: Timestamp) -> Vec<Event> {
    match &d.phase {
        Phase::Queued => match &d.stop {
            Some(stop) => finish_unstarted(d, stop),
            None => vec![],
        },
        Phase::Starting { .. } => vec![],
        Phase::Working { turn, .. } => advance_working(d, turn),
        Phase::Gone { attempt, exit, turn, .. } => conclude(d, *attempt, exit, turn, now),
        Phase::Backoff { until, .. } => match &d.stop {
            Some(stop) => finish_unstarted(d, stop),
            None if now >= *until => start_attempt(d, d.attempts + 1),
            None => vec![],
        },
        Phase::Closing { state, reason } if d.created.worktree.is_none() || d.fetched.is_some() => {
            vec![Event::DispatchFinished { state: *state, reason: reason.clone(), result: final_result(d, *state) }]
        }
        Phase::Closing { .. } | Phase::Finished { .. } => vec![],
    }
}

/// What the world should do now. Every one of them may be carried out twice without harm.
pub fn effects(d: &Dispatch) -> Vec<Effect> {
    match &d.phase {
        Phase::Queued => vec![Effect::Admit],
        Phase::Starting { epoch, .. } => {
            vec![Effect::EnsureShim { epoch: *epoch, resume: resume_session(d) }]
        }
        Phase::Working { epoch, turn, .. } => {
            let mut effects = vec![Effect::EnsureShim { epoch: *epoch, resume: None }];
            if d.stop.is_some() {
                effects.push(Effect::Terminate);
                return effects;
            }
            // A one-shot agent's turn begins as its prompt is sent, so `Taken` is still on its way.
            let on_its_way = |state: PromptState| {
                state == PromptState::Sent || (state == PromptState::Taken && !d.created.multi_turn)
            };
            if let Some(prompt) = d.prompts.iter().find(|p| on_its_way(p.state)) {
                effects.push(Effect::Prompt { key: prompt.key.clone(), close: !d.created.multi_turn });
            } else if let Some(key) = &d.interrupt {
                effects.push(Effect::Interrupt { key: key.clone() });
            } else if may_leave(d, turn) {
                effects.push(Effect::CloseStdin);
            }
            if let (Some(key), false) = (&d.interrupt, d.created.multi_turn) {
                effects.push(Effect::Interrupt { key: key.clone() });
            }
            effects
        }
        Phase::Backoff { until, .. } => vec![Effect::WakeAt(*until)],
        Phase::Closing { .. } => vec![Effect::FetchWork],
        Phase::Gone { .. } | Phase::Finished { .. } => vec![],
    }
}

/// A key for a prompt of our own making: the same state makes the same key, so a decision taken
/// again after a crash is recognised. In the form of a UUID, because Claude wants one.
pub fn prompt_key(id: &DispatchId, kind: PromptKind, n: u32) -> String {
    let mut high = 0xcbf2_9ce4_8422_2325_u64;
    let mut low = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in format!("{id}/{kind:?}/{n}").bytes() {
        high = (high ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        low = (low.rotate_left(5) ^ high).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let bits = (u128::from(high) << 64) | u128::from(low);
    let hex = format!("{bits:032x}");
    format!("{}-{}-8{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

fn plain(events: Vec<Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (None, event)).collect()
}

/// All events of one line of output carry the position after it.
fn stamp(at: Position, events: Vec<Event>) -> Vec<Decided> {
    events.into_iter().map(|event| (Some(at), event)).collect()
}

fn current_epoch(d: &Dispatch) -> Option<u32> {
    match d.phase {
        Phase::Starting { epoch, .. } | Phase::Working { epoch, .. } => Some(epoch),
        _ => None,
    }
}

fn exited(epoch: u32, exit: Exit) -> Event {
    let Exit { code, signal, cause, stderr_tail } = exit;
    Event::AgentExited { epoch, code, signal, cause, stderr_tail }
}

fn resume_session(d: &Dispatch) -> Option<String> {
    d.session_id.clone().filter(|_| d.created.resumable)
}

fn start_attempt(d: &Dispatch, attempt: u32) -> Vec<Event> {
    let mut events = Vec::new();
    let resume = resume_session(d);
    let cut_short = d.prompts.iter().any(|p| p.state == PromptState::Taken);
    if resume.is_some() && cut_short {
        let key = prompt_key(&d.id, PromptKind::Continue, d.epoch + 1);
        events.push(Event::PromptQueued { key, kind: PromptKind::Continue, by: "muleteer".into() });
    }
    events.push(Event::AttemptStarted { attempt, epoch: d.epoch + 1, resume });
    events
}

fn advance_working(d: &Dispatch, turn: &Turn) -> Vec<Event> {
    // No further prompt beyond a limit, even before the monitor has said so.
    if d.stop.is_some() || limit_reached(d).is_some() {
        return vec![];
    }
    let in_flight = d.prompts.iter().any(|p| p.state == PromptState::Sent);
    let takes_prompt = match turn {
        Turn::None => true,
        Turn::Running { .. } => false,
        // After a failed turn only an interrupted session is known to be usable.
        Turn::Done { ok, error, .. } => {
            d.created.multi_turn && (*ok || *error == Some(TurnError::Interrupted))
        }
    };
    let Some(prompt) = d.next_prompt().filter(|_| takes_prompt && !in_flight) else {
        return vec![];
    };
    let mut events = vec![Event::PromptSent { key: prompt.key.clone() }];
    if !d.created.multi_turn {
        // A one-shot agent gives no receipt: its turn is its life.
        events.push(Event::TurnStarted { turn: d.turns + 1, key: prompt.key.clone() });
    }
    events
}

/// The turn is over and nothing is left to say: the session may end.
fn may_leave(d: &Dispatch, turn: &Turn) -> bool {
    let done = matches!(turn, Turn::Done { error, .. } if *error != Some(TurnError::Interrupted));
    let failed = matches!(turn, Turn::Done { ok: false, .. });
    d.created.multi_turn && done && (failed || d.next_prompt().is_none())
}

fn agent_event(d: &Dispatch, event: &AgentEvent) -> Vec<Event> {
    let mut events = Vec::new();
    let speaks = matches!(event, AgentEvent::Text { .. } | AgentEvent::ToolCall { .. } | AgentEvent::Thinking { .. });
    let waiting_for_receipt = d.prompts.iter().find(|p| p.state == PromptState::Sent);
    if let (true, Some(prompt)) = (speaks, waiting_for_receipt) {
        // It works, so it has the prompt, whatever became of the receipt.
        events.push(Event::TurnStarted { turn: d.turns + 1, key: prompt.key.clone() });
    }
    match event {
        AgentEvent::Session { session_id: Some(session_id), model, .. }
            if d.session_id.as_ref() != Some(session_id) || (model.is_some() && d.session_model != *model) =>
        {
            events.push(Event::SessionStarted { session_id: session_id.clone(), model: model.clone() });
        }
        AgentEvent::Prompt { key: Some(key), .. } => {
            let fresh = |p: &crate::dispatch::Prompt| matches!(p.state, PromptState::Sent | PromptState::Queued);
            if d.prompt(key).is_some_and(fresh) {
                events.push(Event::TurnStarted { turn: d.turns + 1, key: key.clone() });
            }
        }
        AgentEvent::Text { text, .. } if !text.trim().is_empty() => {
            events.push(Event::AgentSaid { text: cut(text, SAID_LIMIT) });
        }
        AgentEvent::ToolCall { id, name, input } => {
            let (call_id, tool) = (cut(id, 200), cut(name, 200));
            events.push(Event::ToolCalled { call_id, tool, target: target(name, input) });
        }
        AgentEvent::ToolResult { id, ok: false, text, .. } => {
            events.push(Event::ToolFailed { call_id: cut(id, 200), text: cut(text, SAID_LIMIT) });
        }
        AgentEvent::Usage { input, output, cost_usd, cache_read, cache_write, model, call: None } => {
            events.push(Event::UsageRecorded {
                model: model.clone().or_else(|| d.created.model.clone()).unwrap_or_else(|| "unknown".into()),
                input: *input,
                output: *output,
                cache_read: *cache_read,
                cache_write: *cache_write,
                cost_usd: money(*cost_usd),
                cumulative: false,
            });
        }
        AgentEvent::ApiRetry { attempt, max, status, delay_s } => {
            events.push(Event::ApiRetried { attempt: *attempt, max: *max, status: *status, delay_s: *delay_s });
        }
        AgentEvent::Compaction { before, after } => {
            events.push(Event::Compacted { before: *before, after: *after });
        }
        AgentEvent::Result(result) => events.extend(turn_result(d, result)),
        _ => {}
    }
    events
}

fn turn_result(d: &Dispatch, result: &TurnResult) -> Vec<Event> {
    let mut events = usage_of(d, result);
    let text = result.text.clone().unwrap_or_default();
    if !d.created.multi_turn {
        // A one-shot agent's result line counts when its process has ended well.
        if let Some(doc) = &result.structured {
            events.push(match result::validate(doc) {
                Ok(result) => Event::ResultReceived { result },
                Err(faults) => Event::ResultInvalid { faults, repair: false },
            });
        }
        return events;
    }
    let took_unseen = d.prompts.iter().find(|p| p.state == PromptState::Sent);
    let turn = d.turns + u32::from(took_unseen.is_some());
    if let Some(prompt) = took_unseen {
        events.push(Event::TurnStarted { turn, key: prompt.key.clone() });
    }
    events.push(Event::TurnFinished {
        turn,
        ok: result.ok,
        error: result.error,
        status: result.status,
        text: cut(&text, crate::agent_event::TEXT_LIMIT),
    });
    if !result.ok || d.next_prompt().is_some() {
        return events;
    }
    let doc = result.structured.clone().or_else(|| result::find_in_text(&text));
    match (doc, d.created.wants_result) {
        (Some(doc), wanted) => match result::validate(&doc) {
            Ok(result) => events.push(Event::ResultReceived { result }),
            Err(faults) if wanted => events.extend(invalid(d, faults)),
            Err(_) => events.push(spoken(&text)),
        },
        (None, false) => events.push(spoken(&text)),
        (None, true) => events.extend(invalid(d, vec!["the answer holds no result document".into()])),
    }
    events
}

fn spoken(text: &str) -> Event {
    Event::ResultReceived { result: AgentResult::new(ResultStatus::Success, cut(text, crate::agent_event::TEXT_LIMIT)) }
}

fn invalid(d: &Dispatch, faults: Vec<String>) -> Vec<Event> {
    let repair = !d.repair_used;
    let mut events = vec![Event::ResultInvalid { faults, repair }];
    if repair {
        let key = prompt_key(&d.id, PromptKind::Repair, d.turns);
        events.push(Event::PromptQueued { key, kind: PromptKind::Repair, by: "muleteer".into() });
    }
    events
}

/// The CLI reports what its process has used in all; what is new since its last report is counted.
fn usage_of(d: &Dispatch, result: &TurnResult) -> Vec<Event> {
    let counted = &d.spend.process;
    let mut events: Vec<Event> = result
        .per_model
        .iter()
        .filter_map(|now| {
            let before = counted.get(&now.model).cloned().unwrap_or_default();
            let event = Event::UsageRecorded {
                model: now.model.clone(),
                input: now.input.saturating_sub(before.input),
                output: now.output.saturating_sub(before.output),
                cache_read: now.cache_read.saturating_sub(before.cache_read),
                cache_write: now.cache_write.saturating_sub(before.cache_write),
                cost_usd: money(now.cost_usd - before.cost_usd),
                cumulative: true,
            };
            (now.cost_usd > before.cost_usd || now.output > before.output || now.input > before.input).then_some(event)
        })
        .collect();
    if let (true, Some(total)) = (result.per_model.is_empty(), result.cost_usd) {
        let before: f64 = counted.values().map(|usage| usage.cost_usd).sum();
        if total > before {
            events.push(Event::UsageRecorded {
                model: d.session_model.clone().or_else(|| d.created.model.clone()).unwrap_or_else(|| "unknown".into()),
                input: 0,
                output: 0,
                cache_read: 0,
                cache_write: 0,
                cost_usd: money(total - before),
                cumulative: true,
            });
        }
    }
    events
}

/// What an agent claims to have cost, kept to what can be added up: a claim beyond all sense must not
/// make the books unreadable.
fn money(usd: f64) -> f64 {
    if usd.is_finite() { usd.clamp(0.0, 1e6) } else { 0.0 }
}

fn attempt_finished(attempt: u32, outcome: Outcome, reason: &str, counted: bool) -> Event {
    Event::AttemptFinished { attempt, outcome, reason: reason.into(), counted }
}

fn close(attempt: u32, outcome: Outcome, state: FinalState, reason: &str) -> Vec<Event> {
    vec![
        attempt_finished(attempt, outcome, reason, false),
        Event::DispatchClosing { state, reason: reason.into() },
    ]
}

fn finish_unstarted(d: &Dispatch, stop: &Stop) -> Vec<Event> {
    let (state, reason) = stopped_state(stop);
    let _ = d;
    vec![Event::DispatchClosing { state, reason }]
}

fn stopped_state(stop: &Stop) -> (FinalState, String) {
    match stop {
        Stop::Kill { reason } => (FinalState::Killed, reason.clone()),
        Stop::Limit { limit: Limit::Timeout, detail } => (FinalState::Failed, format!("timeout: {detail}")),
        Stop::Limit { limit, detail } => {
            (FinalState::Partial, format!("{} limit reached: {detail}", format!("{limit:?}").to_lowercase()))
        }
    }
}

/// How the attempt ended, and what comes next. Rules: design.md, "The shim" and "Prompts"; an
/// intentional kill is never resurrected.
fn conclude(d: &Dispatch, attempt: u32, exit: &Exit, turn: &Turn, now: Timestamp) -> Vec<Event> {
    if let Some(stop) = &d.stop {
        let (state, reason) = stopped_state(stop);
        let timeout = matches!(stop, Stop::Limit { limit: Limit::Timeout, .. });
        let outcome = if timeout { Outcome::Timeout } else { Outcome::Failure };
        return close(attempt, outcome, state, &reason);
    }
    match exit.cause {
        ExitCause::NeverRan if d.start_failures < MAX_START_FAILURES => {
            // Nothing ran, so nothing is repeated: the same attempt, a new epoch, not counted.
            let mut events = vec![attempt_finished(attempt, Outcome::Failure, "the agent was never released", false)];
            events.extend(start_attempt(d, attempt));
            return events;
        }
        ExitCause::NeverRan => {
            let reason = format!("the shim died {MAX_START_FAILURES} times before it started the agent {}", exit.stderr_tail);
            return close(attempt, Outcome::Failure, FinalState::Failed, reason.trim_end());
        }
        ExitCause::CannotStart => {
            return close(attempt, Outcome::Failure, FinalState::Failed, &format!("cannot start: {}", exit.stderr_tail));
        }
        ExitCause::ShimPolicy => {
            let reason = format!("timeout: ended by its limits {}", exit.stderr_tail);
            return close(attempt, Outcome::Timeout, FinalState::Failed, reason.trim_end());
        }
        ExitCause::ShimLost if !d.created.resumable => {
            let reason = "outcome unknown: its shim died while it worked";
            return close(attempt, Outcome::Failure, FinalState::Failed, reason);
        }
        _ => {}
    }
    if !d.created.multi_turn {
        return conclude_one_shot(d, attempt, exit);
    }
    match turn {
        Turn::Done { ok: true, .. } if d.next_prompt().is_some() => {
            // Somebody spoke while it was leaving: go on in the same session.
            let mut events = vec![attempt_finished(attempt, Outcome::Success, "", false)];
            events.extend(start_attempt(d, attempt + 1));
            events
        }
        Turn::Done { ok: true, .. } => conclude_by_result(d, attempt),
        Turn::Done { error: Some(TurnError::Interrupted), .. } => {
            close(attempt, Outcome::Failure, FinalState::Partial, "interrupted, then its process ended")
        }
        Turn::Done { error: Some(error @ (TurnError::MaxTurns | TurnError::Budget)), text, .. } => {
            let what = if *error == TurnError::Budget { "budget" } else { "turns" };
            let reason = format!("{what} limit reached {text}");
            close(attempt, Outcome::Failure, FinalState::Partial, reason.trim_end())
        }
        Turn::Done { error: Some(error @ (TurnError::Auth | TurnError::Context)), text, .. } => {
            let what = if *error == TurnError::Auth { "the model API refused the key" } else { "the context is full" };
            close(attempt, Outcome::Failure, FinalState::Failed, &format!("{what}: {}", cut(text, SAID_LIMIT)))
        }
        Turn::Done { error, text, .. } => {
            let what = match error {
                Some(TurnError::ApiError) => "model API error",
                Some(TurnError::RateLimit) => "rate limited",
                _ => "the turn failed",
            };
            restart(d, attempt, &format!("{what}: {}", cut(text, SAID_LIMIT)), true, now)
        }
        Turn::None | Turn::Running { .. } if exit.cause == ExitCause::LeaseExpired => {
            restart(d, attempt, "ended because no daemon renewed its lease", false, now)
        }
        Turn::None | Turn::Running { .. } => restart(d, attempt, &describe_exit(exit), true, now),
    }
}

fn conclude_one_shot(d: &Dispatch, attempt: u32, exit: &Exit) -> Vec<Event> {
    if exit.code != Some(0) {
        return close(attempt, Outcome::Failure, FinalState::Failed, &describe_exit(exit));
    }
    if !d.result_faults.is_empty() {
        let reason = format!("its result is invalid: {}", d.result_faults.join("; "));
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    match &d.result {
        Some(_) => conclude_by_result(d, attempt),
        None => close(attempt, Outcome::Success, FinalState::Success, ""),
    }
}

fn conclude_by_result(d: &Dispatch, attempt: u32) -> Vec<Event> {
    match &d.result {
        Some(result) => {
            let state = match result.status {
                ResultStatus::Success => FinalState::Success,
                ResultStatus::Partial => FinalState::Partial,
                ResultStatus::Failed => FinalState::Failed,
                ResultStatus::Blocked => FinalState::Blocked,
            };
            close(attempt, Outcome::Success, state, "")
        }
        None => {
            let reason = format!("no valid result: {}", d.result_faults.join("; "));
            close(attempt, Outcome::Success, FinalState::Partial, &reason)
        }
    }
}

fn restart(d: &Dispatch, attempt: u32, reason: &str, counted: bool, now: Timestamp) -> Vec<Event> {
    if counted && d.restarts >= d.created.limits.max_restarts {
        let reason = format!("{reason} (after {} restarts)", d.restarts);
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    let delay_ms = if counted { crate::restart::agent_backoff_ms(d.id.as_str(), d.restarts + 1) } else { 0 };
    let until = now.checked_add(SignedDuration::from_millis(delay_ms as i64)).unwrap_or(now);
    vec![
        attempt_finished(attempt, Outcome::Failure, reason, counted),
        Event::RestartScheduled { until, delay_ms },
    ]
}

fn describe_exit(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal, exit.cause) {
        (_, _, ExitCause::ShimLost) => "its shim died while it worked".to_string(),
        (Some(code), _, _) => format!("exit code {code}"),
        (_, Some(signal), _) => format!("killed by signal {signal}"),
        _ => "ended in an unknown way".into(),
    };
    let tail = exit.stderr_tail.trim();
    let last = tail.lines().next_back().unwrap_or_default();
    if last.is_empty() { how } else { format!("{how}: {}", cut(last, SAID_LIMIT)) }
}

fn final_result(d: &Dispatch, state: FinalState) -> Option<AgentResult> {
    if let Some(result) = &d.result {
        return Some(result.clone());
    }
    let text = match (state, &d.phase) {
        (FinalState::Killed, _) => return None,
        (_, Phase::Closing { reason, .. }) => reason.clone(),
        _ => String::new(),
    };
    let status = match state {
        FinalState::Success => ResultStatus::Success,
        FinalState::Partial => ResultStatus::Partial,
        FinalState::Blocked => ResultStatus::Blocked,
        _ => ResultStatus::Failed,
    };
    Some(AgentResult::new(status, text))
}
