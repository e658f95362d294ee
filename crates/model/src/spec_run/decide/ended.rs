//! Records the end of a job and decides whether to retry it.

use crate::agent::event::cut;
use crate::event::{Event, Outcome};
use crate::spec_run::decide::{JobEnd, failure};
use crate::spec_run::event::*;
use crate::spec_run::judge::{Asked, JudgeResult, VerdictError};
use crate::spec_run::state::{self, Job, JudgeStage, Run, Sealed};
use jiff::{SignedDuration, Timestamp};
use muleteer_protocol::ErrorCode;

/// This many failures do not count if they are caused by rate limits: of one bead, or in a row of
/// an agent that the run needs.
const UNCOUNTED: u32 = 20;
/// The first pause after a rate limit. It doubles up to `SLOW_LAST_S`.
const SLOW_FIRST_S: i64 = 15;
const SLOW_LAST_S: i64 = 600;
/// The most judging rounds, and the most attempts to parse a verdict, in one iteration.
const ROUNDS: u32 = 2;
/// Bytes of an agent's last output that go into the prompt of the next attempt.
const NOTE_LIMIT: usize = 4000;

fn finished(job: &Job, end: &JobEnd, status: Outcome) -> Event {
    Event::AgentFinished(Box::new(AgentFinished {
        agent: job.start.agent,
        purpose: job.start.purpose,
        bead_id: job.start.bead_id.clone(),
        status,
        duration_ms: end.duration_ms,
        reason: cut(&end.reason, 500),
        cost_usd: end.cost_usd,
        cli_changed: end.cli_changed,
    }))
}

pub(super) fn job_ended(run: &Run, job: &Job, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let mut events = match (job.start.purpose, &job.start.bead_id) {
        (Purpose::Implement, Some(bead)) => bead_ended(run, job, bead, end, now),
        (Purpose::Maintain, _) => {
            // The agent was terminated with the run, so maintenance itself did not fail.
            let stopped = is_stopped(run, end) && end.outcome != Outcome::Success;
            let state =
                if stopped { state::STOPPED } else { state::status_of(end.outcome) }.to_string();
            let id = run.maintenance.runs.last().map(|last| last.id.clone()).unwrap_or_default();
            vec![
                finished(job, end, end.outcome),
                Event::MaintenanceFinished { maintenance: id, status: state },
            ]
        }
        _ => needed_ended(run, job, end, now),
    };
    if let Some(reason) = &end.undone {
        events.insert(0, Event::PushUndone { agent: job.start.agent, reason: cut(reason, 300) });
    }
    if let Some(message) = end.trespassed.as_ref().filter(|_| run.stopping().is_none()) {
        events.push(Event::RunStopping {
            code: ErrorCode::RemoteChanged.into(),
            message: cut(message, 500),
        });
    }
    if let (Some(usd), None) = (end.penniless, run.stopping()) {
        events
            .push(crate::spec_run::decide::broke(usd, run.settings.budget_usd.unwrap_or_default()));
    }
    let created_by = format!("agent-{}", job.start.agent);
    let fresh = end.observations.iter().filter(|id| {
        let known = &run.observations;
        !known.pending.contains(*id)
            && !known.promoted.contains(*id)
            && !known.dismissed.contains(*id)
    });
    events.extend(fresh.map(|id| Event::ObservationCreated {
        bead_id: id.clone(),
        created_by: created_by.clone(),
        title: end.titles.get(id).map(|title| cut(title, 200)).unwrap_or_default(),
    }));
    events
}

/// Returns whether the agent was terminated because the run stops.
fn is_stopped(run: &Run, end: &JobEnd) -> bool {
    run.stopping().is_some() || end.penniless.is_some()
}

/// Records the end of an agent without which the run cannot continue.
fn needed_ended(run: &Run, job: &Job, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let purpose = job.start.purpose;
    let mut events = vec![finished(job, end, end.outcome)];
    if purpose == Purpose::Judge && end.wrote {
        let Some(JudgeStage::Reason { round }) = run.judge() else { return events };
        let reason = "the judge changed files that it judged".to_string();
        events.push(judged(run, Verdict::Discarded, &reason, None));
        if *round >= ROUNDS {
            events.push(Event::RunStopping {
                code: ErrorCode::JudgeWrote.into(),
                message: format!("{reason}, twice"),
            });
        }
        return events;
    }
    if is_stopped(run, end) {
        return events;
    }
    if end.outcome != Outcome::Success {
        let before = run.trials.get(&purpose);
        let uncounted = before.map_or(0, |trials| trials.uncounted);
        let counted = !end.rate_limited || uncounted >= UNCOUNTED;
        let failures = before.map_or(0, |trials| trials.failures) + u32::from(counted);
        events.push(Event::AgentRetried { purpose, reason: cut(&end.reason, 500), counted });
        if !counted {
            events.push(slow(run, &end.reason, now));
        }
        if failures > run.settings.max_retries {
            let code = match end.outcome {
                _ if end.empty => ErrorCode::GraphEmpty,
                Outcome::Timeout => ErrorCode::AgentTimeout,
                _ => ErrorCode::AgentFailed,
            };
            let message =
                format!("the {} agent failed {failures} times: {}", purpose.as_str(), end.reason);
            events.push(Event::RunStopping { code: code.into(), message });
        }
        return events;
    }
    match (purpose, run.judge()) {
        (Purpose::Review, _) => {
            events.push(Event::SpecReviewed { findings: end.findings.clone() });
        }
        (Purpose::Acceptance, _) => {
            let Sealed { path, sha256 } =
                end.sealed.clone().unwrap_or(Sealed { path: String::new(), sha256: String::new() });
            events.push(Event::AcceptanceSealed { path, sha256 });
        }
        (Purpose::Decompose, _) => events.push(Event::Decomposed {}),
        (Purpose::Judge, Some(JudgeStage::Reason { round })) => {
            events.push(Event::JudgeReasoned { round: *round })
        }
        (Purpose::Structure, Some(JudgeStage::Structure { tries, .. })) => {
            match readable(run, end, tries + 1 >= ROUNDS) {
                Ok((result, left_out)) => {
                    let verdict = if result.passed() { Verdict::Pass } else { Verdict::Fail };
                    events.push(judged(run, verdict, &left_out, Some(result.clone())));
                }
                Err(error) => {
                    let why = error.to_string();
                    events.push(Event::AgentRetried {
                        purpose,
                        reason: why.clone(),
                        counted: false,
                    });
                    events.push(judged(run, Verdict::Unreadable, &why, None));
                    if tries + 1 >= ROUNDS {
                        let message = format!("the judge's verdict could not be parsed: {why}");
                        events.push(Event::RunStopping {
                            code: ErrorCode::JudgeParseFailed.into(),
                            message,
                        });
                    }
                }
            }
        }
        _ => {}
    }
    events
}

/// Returns the verdict if it is usable, and what it leaves out. A pass that leaves
/// observations undecided is usable; they stay pending. A pass that names new work is rejected
/// once, and accepted if this is the `last` attempt.
fn readable<'a>(
    run: &Run,
    end: &'a JobEnd,
    last: bool,
) -> Result<(&'a JudgeResult, String), VerdictError> {
    let verdict = end.verdict.as_ref().ok_or(VerdictError::NothingPrinted)?;
    let result = verdict.as_ref().map_err(Clone::clone)?;
    let criteria = run.sealed.as_ref().is_some_and(|sealed| !sealed.path.is_empty());
    let asked = Asked {
        spec_drift: run.settings.spec_drift,
        acceptance: run.settings.acceptance && criteria,
        observations: &run.observations.pending,
    };
    result.settled(asked)?;
    let spare = result.spare_work();
    if let Some(work) = spare.as_ref().filter(|_| !last) {
        return Err(VerdictError::SpareWork(work.clone()));
    }
    let undecided = result.decides(asked).err().map(|error| error.to_string());
    let left_out: Vec<String> = undecided.into_iter().chain(spare).collect();
    Ok((result, left_out.join("; ")))
}

fn judged(run: &Run, verdict: Verdict, reason: &str, result: Option<JudgeResult>) -> Event {
    let new_beads = result.as_ref().map_or(0, |result| {
        let promoted =
            run.triaged(result).into_iter().filter(|one| one.action == "promote").count();
        result.remedies().len() + promoted
    }) as u32;
    Event::JudgeFinished(Box::new(JudgeFinished {
        iteration: run.iteration,
        verdict,
        new_beads,
        reason: reason.into(),
        result,
    }))
}

fn slow(run: &Run, reason: &str, now: Timestamp) -> Event {
    let pause = (SLOW_FIRST_S << run.slowdown.count.min(16)).min(SLOW_LAST_S);
    let until = now.checked_add(SignedDuration::from_secs(pause)).unwrap_or(now);
    Event::PoolSlowed { until, reason: cut(reason, 200) }
}

/// Records the end of a bead's agent. A bead is done if it is closed and its commits are on the
/// target, or if it is closed as needing no change.
fn bead_ended(run: &Run, job: &Job, bead: &str, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let Some(task) = run.beads.get(bead) else { return vec![finished(job, end, end.outcome)] };
    let complete = end.closed && (end.has_pushed() || (end.no_change && end.commits == 0));
    // An agent that was cut off after it pushed everything has done the bead. An agent that
    // reported a failure has not.
    let cut_off = end.whole && !end.closed && (end.outcome == Outcome::Success || end.unknown);
    if complete || cut_off {
        let by = if end.closed { "agent" } else { "harness" };
        let done = Event::BeadCompleted {
            bead_id: bead.into(),
            by: by.into(),
            no_change: end.no_change,
            commits: end.commits,
        };
        return vec![finished(job, end, Outcome::Success), done];
    }
    let incomplete = end.outcome == Outcome::Success;
    let what = match (end.closed, end.commits, end.on_target) {
        (true, 0, _) => "it closed the bead without a commit and without --no-change",
        (true, _, false) => "it closed the bead, but its commits are not on the target branch",
        (false, 0, _) => "it ended without closing the bead and without a commit",
        (false, _, false) => {
            "it ended without closing the bead, and its commits are not on the target branch"
        }
        (false, _, true) if !end.whole => {
            "it ended without closing the bead, and the target branch does not have exactly its \
             commits"
        }
        _ => "it ended without closing the bead",
    };
    let reason = if incomplete { format!("incomplete: {what}") } else { end.reason.clone() };
    let mut events =
        vec![finished(job, end, if incomplete { Outcome::Failure } else { end.outcome })];
    if is_stopped(run, end) {
        // The agent was terminated with the run, so the failure does not count.
        let again = Again { reuse: true, note: &task.note, kind: None };
        events.push(retried(bead, task.attempts, &reason, again));
        return events;
    }
    let uncounted =
        end.rate_limited && task.attempts - task.failures.min(task.attempts) <= UNCOUNTED;
    if uncounted {
        let again = Again { reuse: false, note: &task.note, kind: None };
        events.push(retried(bead, task.attempts, &reason, again));
        events.push(slow(run, &end.reason, now));
        return events;
    }
    let kind = match end.undone {
        Some(_) => FailureKind::Conflict,
        // The last lines of an agent that vanished do not say why it ended.
        None if end.unknown => FailureKind::Other,
        None => failure::kind(end.outcome, &end.reason, &end.last_lines),
    };
    if task.failures >= run.settings.max_retries {
        let mut dependants = run.dependants(bead);
        dependants.truncate(100);
        events.push(Event::BeadBlocked {
            bead_id: bead.into(),
            reason: cut(&reason, 500),
            dependants,
            kind: Some(kind),
        });
        if run.canaries_left() > 0 && run.stopping().is_none() {
            events.push(canary_failed(run, bead, &reason));
        }
        return events;
    }
    let tail = last(&end.last_lines);
    let note = if tail.is_empty() {
        reason.clone()
    } else {
        format!("{reason}\n\nIts last lines:\n\n{tail}")
    };
    let again = Again { reuse: incomplete, note: &note, kind: Some(kind) };
    events.push(retried(bead, task.attempts, &reason, again));
    events
}

/// Stops the run before more agents fail for the same reason.
fn canary_failed(run: &Run, bead: &str, reason: &str) -> Event {
    let message = format!(
        "the canary bead {} failed, so the others were not started: {}; fix the cause, reopen the \
         bead with `muleteer bead reopen {bead}`, then resume the run with `{}`",
        run.named(bead),
        cut(reason, 300),
        run.resume_command()
    );
    Event::RunStopping { code: ErrorCode::AgentFailed.into(), message }
}

/// Returns whether this end leaves the agent's bead blocked.
pub fn blocks(run: &Run, dispatch: &str, end: &JobEnd) -> bool {
    let Some(job) = run.job_by_dispatch(dispatch) else { return false };
    let Some(bead) = job.start.bead_id.as_ref().filter(|_| job.start.purpose == Purpose::Implement)
    else {
        return false;
    };
    let events = bead_ended(run, job, bead, end, run.updated_at);
    events.iter().any(|event| matches!(event, Event::BeadBlocked { .. }))
}

/// The next attempt of a bead.
struct Again<'a> {
    reuse: bool,
    note: &'a str,
    /// The kind of the failure; `None` if the failure does not count.
    kind: Option<FailureKind>,
}

fn retried(bead: &str, attempt: u32, reason: &str, again: Again<'_>) -> Event {
    Event::BeadRetried {
        bead_id: bead.into(),
        attempt,
        reason: cut(reason, 500),
        reuse: again.reuse,
        counted: again.kind.is_some(),
        note: again.note.into(),
        kind: again.kind,
    }
}

fn last(text: &str) -> String {
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(NOTE_LIMIT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_string()
}
