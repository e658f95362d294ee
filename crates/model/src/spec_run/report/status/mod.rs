//! The status of a run at one moment: how old the information is, what the run waits for, and why
//! it ended.
//!
//! A run's events contain decisions. They do not show whether a daemon still hosts the run, and a
//! waiting run writes none. A status from the events alone would therefore report a dead run as
//! live, and could not say until when a run waits.

use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase};
use crate::event::id::DispatchId;
use crate::spec_run::checkpoint::{DocumentError, shortfall};
use crate::spec_run::decide::Gate;
use crate::spec_run::event::{RunStatus, Verdict};
use crate::spec_run::state::{Job, Run, Stage};
use jiff::Timestamp;
use serde::Serialize;

/// The most beads whose failures are listed.
const NAMED: usize = 3;
/// The most bytes of a failure that are shown.
const CUT: usize = 300;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// The time of the information: now if a daemon hosts the run, otherwise the newest event.
    #[serde(serialize_with = "to_the_millisecond")]
    pub as_of: Timestamp,
    /// The run neither ended nor rests, and no daemon hosts it.
    pub abandoned: bool,
    /// Why the running daemon does not host the run; `None` if no daemon runs.
    #[serde(skip)]
    pub obstacle: Option<String>,
    /// Why the question of a resting run takes no answer; `None` if it is open or not known.
    #[serde(skip)]
    pub closed: Option<String>,
    /// Agents that ran at the newest event, if it is unknown whether they still run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_agents: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<Wait>,
    /// The earliest `until` of these waits.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "maybe_to_the_millisecond")]
    pub until: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// A daemon that hosts the run.
    Daemon,
    /// A person's approval.
    Approval,
    /// The model API.
    ModelApi,
    /// The time of the next retry after a failure.
    Backoff,
    /// A person's answer to an agent's question.
    Answer,
    /// A free slot of the pool.
    Pool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Wait {
    pub kind: WaitKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<String>,
    /// For people; one line.
    pub reason: String,
    #[serde(serialize_with = "to_the_millisecond")]
    pub since: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "maybe_to_the_millisecond")]
    pub until: Option<Timestamp>,
}

fn to_the_millisecond<S: serde::Serializer>(
    at: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.3}"))
}

fn maybe_to_the_millisecond<S: serde::Serializer>(
    at: &Option<Timestamp>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    at.map(|at| format!("{at:.3}")).serialize(serializer)
}

impl Standing {
    /// Computes the standing. `fleet` has the known dispatches of the run's agents; `hosted` means
    /// that a daemon hosts the run.
    pub fn of(run: &Run, fleet: Option<&Fleet>, hosted: bool, now: Timestamp) -> Self {
        let dispatches: Vec<(&Job, &Dispatch)> = run
            .jobs
            .values()
            .filter_map(|job| {
                let id = DispatchId::try_from(job.start.dispatch.clone()).ok()?;
                Some((job, &**fleet?.get(&id)?))
            })
            .collect();
        let abandoned = run.is_live() && !hosted;
        let newest =
            dispatches.iter().flat_map(|(_, d)| [Some(d.since), d.last_activity]).flatten();
        let recorded = newest.fold(run.updated_at, Timestamp::max);
        let as_of = if run.is_live() && hosted { now } else { recorded };
        let mut waiting_for = vec![];
        if abandoned {
            waiting_for.push(Wait {
                kind: WaitKind::Daemon,
                dispatch_id: None,
                reason: format!("a daemon: start one with `muleteer run --resume {}`", run.id()),
                since: recorded,
                until: None,
            });
        }
        let closed = closed(run, fleet);
        waiting_for.extend(of_the_run(run, closed.as_deref(), now));
        waiting_for
            .extend(dispatches.iter().filter_map(|(_, dispatch)| of_an_agent(dispatch, now)));
        let until = waiting_for.iter().filter_map(|wait| wait.until).min();
        let last_agents = abandoned.then_some(run.jobs.len() as u32);
        Self { as_of, abandoned, obstacle: None, closed, last_agents, waiting_for, until }
    }

    /// Adds why the running daemon does not host an abandoned run.
    #[must_use]
    pub fn with_obstacle(mut self, run: &Run, why: Option<String>) -> Self {
        let Some(why) = why.filter(|_| self.abandoned) else { return self };
        for wait in self.waiting_for.iter_mut().filter(|wait| wait.kind == WaitKind::Daemon) {
            wait.reason = format!(
                "a daemon that continues it ({why}): retry with `muleteer run --resume {}`",
                run.id()
            );
        }
        self.obstacle = Some(why);
        self
    }

    /// Returns the waits as one sentence, or `None` if the run waits for nothing.
    pub fn reason(&self) -> Option<String> {
        let reasons: Vec<_> = self.waiting_for.iter().map(|wait| wait.reason.as_str()).collect();
        (!reasons.is_empty()).then(|| format!("it is waiting for {}", reasons.join("; for ")))
    }
}

/// Returns why the question of a resting run takes no answer.
fn closed(run: &Run, fleet: Option<&Fleet>) -> Option<String> {
    let question = fleet?.questions.get(run.question()?).filter(|question| !question.is_open())?;
    Some(match question.reason.as_str() {
        "" => format!("its question is {}", question.state.as_str()),
        reason => format!("its question is {}: {reason}", question.state.as_str()),
    })
}

fn of_the_run(run: &Run, closed: Option<&str>, now: Timestamp) -> Option<Wait> {
    let wait = |kind, reason: String, until| Wait {
        kind,
        dispatch_id: None,
        reason,
        since: run.updated_at,
        until,
    };
    if run.status() == RunStatus::AwaitingApproval {
        let what = run.gate().map_or("the beads", Gate::describe);
        let how = run.question().map(|id| match closed {
            Some(why) => format!(" ({why}): muleteer run --resume {} --yes", run.id()),
            None => format!(": muleteer answer {id} approve"),
        });
        let reason = format!("a person's approval of {what}{}", how.unwrap_or_default());
        return Some(wait(WaitKind::Approval, reason, None));
    }
    let pause = run.slowdown.pause.as_ref().filter(|pause| run.is_live() && pause.until > now)?;
    let (until, why) = (pause.until, &pause.reason);
    Some(wait(
        WaitKind::Backoff,
        format!("{until:.0}, when the run starts agents again: {why}"),
        Some(until),
    ))
}

fn of_an_agent(d: &Dispatch, now: Timestamp) -> Option<Wait> {
    let wait = |kind, reason: String, since, until| {
        Some(Wait { kind, dispatch_id: Some(d.id.to_string()), reason, since, until })
    };
    if let Some(outage) = d.outage.as_ref().filter(|_| d.waits_for_api()) {
        let until = Some(outage.until).filter(|until| *until > now);
        let said = outage.waiting(now);
        let reason = said.strip_prefix("waiting for ").unwrap_or(&said).to_string();
        return wait(WaitKind::ModelApi, reason, d.since, until);
    }
    match &d.phase {
        Phase::Backoff { until, .. } => {
            let why = d.reason.as_deref().unwrap_or_default();
            wait(
                WaitKind::Backoff,
                format!("a restart at {until:.0}: {why}"),
                d.since,
                Some(*until),
            )
        }
        Phase::Queued => {
            wait(WaitKind::Pool, "a free slot in the pool of agents".into(), d.since, None)
        }
        _ if d.waits_for_an_answer() => {
            let first = d.asks.open().next()?;
            let reason =
                format!("an answer: {} (`muleteer answer {}`)", first.ask.describe(), d.id);
            wait(WaitKind::Answer, reason, first.since, None)
        }
        _ => None,
    }
}

/// Returns why a run ended or rests without being done: its error, the last failures of its beads,
/// and the judge's findings.
pub fn why(run: &Run) -> Option<String> {
    let DocumentError { message, .. } = shortfall(run)?;
    let mut parts = vec![message];
    let undone = run
        .order
        .iter()
        .filter_map(|id| run.beads.get(id))
        .filter(|task| task.stage != Stage::Done);
    let failed: Vec<_> = undone.filter(|task| !task.failure.is_empty()).collect();
    for task in failed.iter().take(NAMED) {
        parts.push(format!(
            "bead {} ({}): {}",
            task.planned.id,
            cut(&task.planned.title),
            cut(&task.failure)
        ));
    }
    if failed.len() > NAMED {
        parts.push(format!("{} more beads failed", failed.len() - NAMED));
    }
    for (purpose, complaint) in run.complaints() {
        parts.push(format!("{}: {}", purpose.as_str(), cut(complaint)));
    }
    if let Some(last) = run.verdicts.last().filter(|last| last.verdict != Verdict::Pass) {
        let beads: Vec<_> = last
            .result
            .iter()
            .flat_map(|result| result.remedies())
            .map(|bead| bead.title)
            .collect();
        let issues = last
            .result
            .iter()
            .flat_map(|result| result.issues())
            .map(|issue| issue.description.as_str());
        let failing = last
            .result
            .iter()
            .flat_map(|result| result.criteria())
            .filter(|criterion| !criterion.passed);
        let found = issues.chain(failing.map(|criterion| criterion.criterion.as_str()));
        let mut found: Vec<_> = [last.reason.as_str()]
            .into_iter()
            .chain(found)
            .filter(|text| !text.is_empty())
            .collect();
        // A failure without findings still has beads to be worked on.
        if found.is_empty() {
            found.extend(beads.iter().map(String::as_str));
        }
        found.truncate(NAMED);
        let found: Vec<_> = found.into_iter().map(cut).collect();
        parts.push(format!("the judge, iteration {}: {}", last.iteration, found.join(", ")));
    }
    let mut told: Vec<String> = vec![];
    for part in parts {
        // The error of a run often repeats the failure that ended it, which is listed only once.
        let text = part.split_once(": ").map_or(part.as_str(), |(_, text)| text);
        if !told.iter().any(|before| before.contains(text)) {
            told.push(part);
        }
    }
    Some(told.join("; "))
}

fn cut(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    crate::agent::event::cut(line, CUT)
}

#[cfg(test)]
mod tests;
