//! The outcome of an attempt, and the next step.

use crate::admission::api_error::{self, Ended, Next, Trouble, unknown_model};
use crate::agent::acp_handshake::{self, CallFailure};
use crate::agent::event::{TurnError, cut};
use crate::agent::result::{AgentResult, ResultStatus};
use crate::agent::session_age::again_at;
use crate::config::Span;
use crate::dispatch::life::limits::{budget_limit, time_limit, turn_limit};
use crate::dispatch::life::{MAX_START_FAILURES, refusal, start_attempt, start_or_rest, whose};
use crate::dispatch::work::WorkHome;
use crate::dispatch::{Dispatch, Exit, Phase, Stop, Turn, TurnFailure};
use crate::event::{Event, ExitCause, FinalState, Limit, Outcome};
use jiff::{SignedDuration, Timestamp};

/// The most bytes of an agent's own text in a reason.
const REASON_LIMIT: usize = 280;
const INTERRUPTED: &str = "interrupted, then its process ended";
const HELD: &str = "its process ended while it waits for an answer";
const LEASE_EXPIRED: &str = "ended because no daemon renewed its lease";

/// Decides the outcome of an attempt and the next step. The rules are in
/// docs/design/dispatch-lifecycle.md. A dispatch that was killed on purpose is never restarted.
pub(super) fn conclude(
    d: &Dispatch,
    attempt: u32,
    exit: &Exit,
    turn: &Turn,
    now: Timestamp,
) -> Vec<Event> {
    if let Some(stop) = &d.stop {
        let (state, reason) = stopped_state(stop);
        let timeout =
            matches!(stop, Stop::Limit { limit: Limit::Timeout, .. } | Stop::Stall { .. });
        let outcome = if timeout { Outcome::Timeout } else { Outcome::Failure };
        return close(attempt, outcome, state, &reason);
    }
    if let Some(events) = conclude_doubt(d, attempt) {
        return events;
    }
    if d.asks.held && !turn.ended_well() {
        return after_hold(d, attempt, now);
    }
    // A turn that ended before the process did is complete, whatever ended the process.
    if d.created.has_turns()
        && let Some(events) = conclude_turn(d, attempt, turn, now)
    {
        return events;
    }
    // A process that had to be terminated because it did not leave had done its work.
    if let Some(failure) = &d.process().call_failed
        && failure.call != acp_handshake::EXIT
    {
        return conclude_call(d, attempt, failure, now);
    }
    match exit.cause {
        ExitCause::NeverRan if d.retries.start_failures < MAX_START_FAILURES => {
            // Nothing ran, so nothing is repeated: the same attempt starts under a new epoch,
            // uncounted.
            let mut events =
                vec![attempt_finished(attempt, Outcome::Failure, "the agent never ran", false)];
            events.extend(start_attempt(d, attempt));
            events
        }
        ExitCause::NeverRan => {
            let reason =
                format!("the shim died {MAX_START_FAILURES} times before it started the agent");
            close(attempt, Outcome::Failure, FinalState::Failed, &with_last_line(reason, exit))
        }
        ExitCause::CannotStart => close(
            attempt,
            Outcome::Failure,
            FinalState::Failed,
            &format!("cannot start: {}", exit.stderr_tail),
        ),
        ExitCause::ShimPolicy => {
            let reason = match d.created.limits.timeout_s {
                Some(timeout_s) => time_limit(timeout_s),
                None => "a limit of its shim".to_string(),
            };
            let reason = Limit::Timeout.describe(&with_last_line(reason, exit));
            close(attempt, Outcome::Timeout, FinalState::Failed, &reason)
        }
        ExitCause::ShimLost if !d.created.resumable => {
            let reason = "outcome unknown: its shim died while it ran";
            close(attempt, Outcome::Failure, FinalState::Failed, reason)
        }
        _ if !d.created.has_turns() => conclude_one_shot(d, attempt, exit, now),
        _ => conclude_failure(d, attempt, exit, turn, now),
    }
}

/// Decides after a process that was ended because nobody answered it: the dispatch waits without a
/// process, or goes on if somebody answered meanwhile.
fn after_hold(d: &Dispatch, attempt: u32, now: Timestamp) -> Vec<Event> {
    let mut events = vec![attempt_finished(attempt, Outcome::Success, HELD, false)];
    match d.has_held_question() && !d.has_unheard() {
        true => events.push(Event::AnswerAwaited {}),
        false => events.extend(start_or_rest(d, attempt + 1, now)),
    }
    events
}

/// Ends a dispatch whose doubt only a person can resolve.
fn conclude_doubt(d: &Dispatch, attempt: u32) -> Option<Vec<Event>> {
    let reason = if let Phase::Gone { doubt: Some(doubt), .. } = &d.phase {
        format!(
            "it is not known whether the agent received its prompt ({doubt}): check its work, then \
             continue with `muleteer send {} …`",
            d.id
        )
    } else if let Some(session) = d.process().lost_session.as_ref().filter(|_| d.has_history()) {
        format!(
            "{} no longer has the session {session}: `muleteer send {} …` starts a new session \
             without its history",
            d.created.backend, d.id
        )
    } else if d.created.transcripts
        && d.is_cut_short()
        && crate::dispatch::life::resume_session(d).is_none()
    {
        format!(
            "its turn was interrupted, and its session is unknown: `muleteer send {} …` starts a \
             new session",
            d.id
        )
    } else {
        return None;
    };
    Some(close(attempt, Outcome::Failure, FinalState::Blocked, &reason))
}

/// Decides after a process whose last turn ended well, or was interrupted.
fn conclude_turn(d: &Dispatch, attempt: u32, turn: &Turn, now: Timestamp) -> Option<Vec<Event>> {
    if matches!(turn, Turn::Running { .. }) && d.process().interrupt.is_some() {
        // The interrupted turn has stopped. To continue it in a new process would be the opposite.
        let (error, text) = (Some(TurnError::Interrupted), String::new());
        return Some(vec![Event::TurnFinished {
            turn: d.turns,
            ok: false,
            error,
            status: None,
            text,
        }]);
    }
    if !turn.ended_well() {
        return None;
    }
    if (d.has_unheard() || d.is_cut_short()) && d.created.resumable {
        // A message arrived while the process was leaving or dying: the next process continues the
        // session.
        let mut events = vec![attempt_finished(attempt, Outcome::Success, "", false)];
        events.extend(start_or_rest(d, attempt + 1, now));
        return Some(events);
    }
    if turn.was_interrupted() {
        return Some(close(attempt, Outcome::Failure, FinalState::Partial, INTERRUPTED));
    }
    Some(conclude_by_result(d, attempt))
}

/// Decides after a process that was terminated because a call of ours failed.
fn conclude_call(d: &Dispatch, attempt: u32, failure: &CallFailure, now: Timestamp) -> Vec<Event> {
    let reason = format!("{}: {}", failure.call, failure.reason);
    let young = d.session.made_at.filter(|_| failure.call == acp_handshake::LOAD);
    if let Some(until) = young.filter(|_| !failure.for_good).and_then(|made| again_at(made, now)) {
        let delay_ms = u64::try_from(until.duration_since(now).as_millis()).unwrap_or(0);
        return vec![
            attempt_finished(attempt, Outcome::Failure, &reason, false),
            Event::RestartScheduled { until, delay_ms },
        ];
    }
    if !failure.for_good && !failure.missing {
        return restart(d, attempt, &reason, true, now);
    }
    // Only a person can find out the fate of a lost session.
    let state =
        if failure.call == acp_handshake::LOAD { FinalState::Blocked } else { FinalState::Failed };
    close(attempt, Outcome::Failure, state, &reason)
}

fn conclude_failure(
    d: &Dispatch,
    attempt: u32,
    exit: &Exit,
    turn: &Turn,
    now: Timestamp,
) -> Vec<Event> {
    if let Some(events) = conclude_trial(d, attempt, exit, turn, now) {
        return events;
    }
    match turn {
        Turn::Done {
            error: Some(error @ (TurnError::MaxTurns | TurnError::Budget)), text, ..
        } => {
            let limits = &d.created.limits;
            let (limit, detail) = if *error == TurnError::Budget {
                (Limit::Budget, limits.budget_usd.map(|budget| budget_limit(d, budget)))
            } else {
                (Limit::Turns, limits.max_turns.map(turn_limit))
            };
            let cli = || format!("a limit of its CLI: {}", cut(text, REASON_LIMIT));
            let reason = limit.describe(&detail.unwrap_or_else(cli));
            close(attempt, Outcome::Failure, FinalState::Partial, &reason)
        }
        // A message that waits may help, and a restarted agent gets it.
        Turn::Done { error: Some(TurnError::Mistakes), text, .. }
            if !(d.has_unheard() && d.created.resumable) =>
        {
            let reason = format!("stopped at a limit of its CLI: {}", cut(text, REASON_LIMIT));
            close(attempt, Outcome::Failure, FinalState::Partial, &reason)
        }
        Turn::Done { error: Some(TurnError::Context), text, .. } => {
            let reason = format!("the context is full: {}", cut(text, REASON_LIMIT));
            close(attempt, Outcome::Failure, FinalState::Failed, &reason)
        }
        Turn::Done { error, status, text, .. } => match Trouble::of_turn(*error, *status) {
            Some(trouble) => conclude_trouble(d, attempt, trouble, *status, text, now),
            None => restart(
                d,
                attempt,
                &format!("the turn failed: {}", cut(text, REASON_LIMIT)),
                true,
                now,
            ),
        },
        Turn::None | Turn::Running { .. } if exit.cause == ExitCause::LeaseExpired => {
            restart(d, attempt, LEASE_EXPIRED, false, now)
        }
        Turn::None | Turn::Running { .. } => match refusal::of(d, exit) {
            Some(reason) => close(attempt, Outcome::Failure, FinalState::Failed, reason),
            None => restart(d, attempt, &describe_exit(exit), true, now),
        },
    }
}

/// Gives up a model that somebody requested and that cannot be used: the session continues with the
/// old one. Otherwise each restart, and each further message, would fail like this one.
fn conclude_trial(
    d: &Dispatch,
    attempt: u32,
    exit: &Exit,
    turn: &Turn,
    now: Timestamp,
) -> Option<Vec<Event>> {
    // If another model was requested meanwhile, the next process tries that one.
    let trial = d.model.on_trial.as_ref().filter(|_| d.model.change.is_none())?;
    let model = d.model.wanted.as_ref()?;
    let (error, status, said) = match turn {
        Turn::Done { ok: false, error, status, text, .. } => (*error, *status, text.as_str()),
        Turn::Done { .. } => return None,
        Turn::None | Turn::Running { .. } if exit.code.is_some_and(|code| code != 0) => {
            (None, None, exit.stderr_tail.as_str())
        }
        Turn::None | Turn::Running { .. } => return None,
    };
    if !unknown_model::is_reported(model, error, status, said) {
        return None;
    }
    let last = said.trim().lines().next_back().unwrap_or_default();
    let said = if error.is_some() { said } else { last };
    let reason = match said.trim() {
        "" => format!("{model}: the model API does not have it"),
        said => format!("{model}: {}", cut(said, REASON_LIMIT)),
    };
    let mut events = restart(d, attempt, &format!("the model was refused: {reason}"), false, now);
    events.insert(1, Event::ModelRefused { key: trial.key.clone(), reason });
    Some(events)
}

/// The model API is to blame: see the table in [`crate::admission::api_error`].
fn conclude_trouble(
    d: &Dispatch,
    attempt: u32,
    trouble: Trouble,
    status: Option<u16>,
    text: &str,
    now: Timestamp,
) -> Vec<Event> {
    let used_ms = match d.phase {
        Phase::Gone { lived_ms, .. } => lived_ms,
        _ => 0,
    };
    let ended = Ended { trouble, status, said: &cut(text, REASON_LIMIT), used_ms };
    match api_error::next(ended, whose(d), d.outage.as_ref(), now) {
        Next::Stop { reason } => close(attempt, Outcome::Failure, FinalState::Failed, &reason),
        Next::Restart { reason } => restart(d, attempt, &reason, true, now),
        Next::Wait { until, told, waits, spent_ms, reason } => vec![
            attempt_finished(attempt, Outcome::Failure, &reason, false),
            Event::ApiWaiting { trouble, status, until, told, waits, spent_ms },
        ],
    }
}

/// Ends a dispatch that was stopped while it had no process.
pub(super) fn unstarted(stop: &Stop) -> Vec<Event> {
    let (state, reason) = stopped_state(stop);
    vec![Event::DispatchClosing { state, reason }]
}

fn attempt_finished(attempt: u32, outcome: Outcome, reason: &str, counted: bool) -> Event {
    Event::AttemptFinished { attempt, outcome, reason: reason.into(), counted }
}

pub(super) fn close(attempt: u32, outcome: Outcome, state: FinalState, reason: &str) -> Vec<Event> {
    vec![
        attempt_finished(attempt, outcome, reason, false),
        Event::DispatchClosing { state, reason: reason.into() },
    ]
}

fn stopped_state(stop: &Stop) -> (FinalState, String) {
    match stop {
        Stop::Kill { reason } => (FinalState::Killed, reason.clone()),
        Stop::Api { reason, .. } | Stop::Policy { reason } => (FinalState::Failed, reason.clone()),
        Stop::Stall { silent_s, evidence, .. } => (
            FinalState::Stalled,
            format!("no sign of life for {}: {evidence}", Span::from_secs(*silent_s)),
        ),
        // The agent was active without progress; a person's message may get it going.
        Stop::Monitor { monitor, reason, .. } => {
            (FinalState::Stalled, format!("{monitor}: {reason}"))
        }
        Stop::Limit { limit: Limit::Timeout, detail } => {
            (FinalState::Failed, Limit::Timeout.describe(detail))
        }
        Stop::Limit { limit, detail } => (FinalState::Partial, limit.describe(detail)),
    }
}

fn conclude_one_shot(d: &Dispatch, attempt: u32, exit: &Exit, now: Timestamp) -> Vec<Event> {
    let is_done = exit.code == Some(0) && d.result.value.is_some();
    if d.process().interrupt.is_some() && !is_done {
        // The exit code and the last line show only how the command took the signal.
        return close(attempt, Outcome::Failure, FinalState::Partial, INTERRUPTED);
    }
    if let Some(failure) = &d.result.failure {
        let reason = reported_failure(d, failure, now);
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    if exit.code != Some(0) {
        let reason = match exit.cause {
            ExitCause::LeaseExpired => format!("outcome unknown: {LEASE_EXPIRED}"),
            _ => describe_exit(exit),
        };
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    if !d.result.faults.is_empty() {
        let reason = format!("its result is invalid: {}", d.result.faults.join("; "));
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    match &d.result.value {
        Some(_) => conclude_by_result(d, attempt),
        None => close(attempt, Outcome::Success, FinalState::Success, ""),
    }
}

/// Describes the failure that a one-shot agent reported. Muleteer does not run it again, because it
/// would begin its task anew.
fn reported_failure(d: &Dispatch, failure: &TurnFailure, now: Timestamp) -> String {
    let TurnFailure { error, status, text } = failure;
    let said = cut(text, REASON_LIMIT);
    let Some(trouble) = Trouble::of_turn(*error, *status) else {
        return format!("the turn failed: {said}");
    };
    let ended = Ended { trouble, status: *status, said: &said, used_ms: 0 };
    match api_error::next(ended, whose(d), None, now) {
        Next::Stop { reason } | Next::Restart { reason } => reason,
        Next::Wait { reason, .. } => format!("the model API: {reason}"),
    }
}

fn conclude_by_result(d: &Dispatch, attempt: u32) -> Vec<Event> {
    match &d.result.value {
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
            let reason = format!("no valid result: {}", d.result.faults.join("; "));
            close(attempt, Outcome::Success, FinalState::Partial, &reason)
        }
    }
}

fn restart(d: &Dispatch, attempt: u32, reason: &str, counted: bool, now: Timestamp) -> Vec<Event> {
    if counted && d.created.ask_on_crash {
        let reason = format!("{reason}; continue its session with `muleteer send {} …`", d.id);
        return close(attempt, Outcome::Failure, FinalState::Blocked, &reason);
    }
    if counted && d.retries.restarts >= d.created.limits.max_restarts {
        let reason = format!("{reason} (after {} restarts)", d.retries.restarts);
        return close(attempt, Outcome::Failure, FinalState::Failed, &reason);
    }
    let delay_ms = if counted {
        crate::restart::agent_backoff_ms(d.id.as_str(), d.retries.restarts + 1)
    } else {
        0
    };
    let until = now.checked_add(SignedDuration::from_millis(delay_ms as i64)).unwrap_or(now);
    vec![
        attempt_finished(attempt, Outcome::Failure, reason, counted),
        Event::RestartScheduled { until, delay_ms },
    ]
}

fn describe_exit(exit: &Exit) -> String {
    let how = match (exit.code, exit.signal, exit.cause) {
        (_, _, ExitCause::ShimLost) => "its shim died while it ran".to_string(),
        (Some(code), _, _) => format!("exit code {code}"),
        (_, Some(signal), _) => format!("killed by signal {signal}"),
        _ => "ended in an unknown way".into(),
    };
    with_last_line(how, exit)
}

/// A line that the sandbox adds after the agent's own last line.
const SANDBOX: &str = "muleteer: sandbox: exit code ";

fn with_last_line(how: String, exit: &Exit) -> String {
    let mut lines = exit.stderr_tail.trim().lines().rev();
    let last = lines.next().unwrap_or_default();
    if let (Some(sandbox), Some(own)) = (last.strip_prefix(SANDBOX), lines.next()) {
        let sandbox = sandbox.split_once(". ").map_or(sandbox, |(_, why)| why);
        return format!("{how}: {} ({})", cut(own, REASON_LIMIT), cut(sandbox, REASON_LIMIT));
    }
    if last.is_empty() { how } else { format!("{how}: {}", cut(last, REASON_LIMIT)) }
}

/// Returns the final state, with the work that was fetched. Success becomes partial if commits
/// could not be fetched.
pub(super) fn with_work(
    d: &Dispatch,
    work: Option<&WorkHome>,
    state: FinalState,
    reason: &str,
) -> (FinalState, String) {
    match work.filter(|work| work.trouble.is_some()) {
        Some(work) if state == FinalState::Success => {
            (FinalState::Partial, work.describe(d.created.worktree.as_deref()))
        }
        _ => (state, reason.to_string()),
    }
}

/// Returns the result that a dispatch ends with: the agent's own, else one made from the reason. A
/// kill gets no result of ours. If the agent reported success and the dispatch did not end so (it
/// crashed after the report), the result gets the dispatch's status, and the reason as an issue.
pub(super) fn final_result(d: &Dispatch, state: FinalState, reason: &str) -> Option<AgentResult> {
    let status = match state {
        FinalState::Killed => return d.result.value.clone(),
        FinalState::Success => ResultStatus::Success,
        FinalState::Partial => ResultStatus::Partial,
        FinalState::Blocked => ResultStatus::Blocked,
        FinalState::Failed | FinalState::Stalled => ResultStatus::Failed,
    };
    let Some(mut result) = d.result.value.clone() else {
        return Some(AgentResult::new(status, reason));
    };
    if result.status == ResultStatus::Success && status != ResultStatus::Success {
        result.status = status;
        result.issues.extend(Some(reason.to_string()).filter(|reason| !reason.is_empty()));
    }
    Some(result)
}
