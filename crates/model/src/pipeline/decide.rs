//! What to record about something that happened, and what follows by itself.

use super::event::*;
use super::judge::{Asked, JudgeResult};
use super::state::{Job, JudgeStage, Run, Sealed, Stage};
use crate::agent_event::cut;
use crate::bead::Bead;
use crate::event::{Event, Outcome};
use crate::graph::Graph;
use jiff::{SignedDuration, Timestamp};

/// Failures of one bead, or in a row of an agent the run needs, that do not count (rate limits), before they do.
const UNCOUNTED: u32 = 20;
/// The first pause after a rate limit; it doubles up to the last.
const SLOW_FIRST_S: i64 = 15;
const SLOW_LAST_S: i64 = 600;
/// Rounds of judging, and readings of a verdict, in one iteration.
const ROUNDS: u32 = 2;
/// Of an agent's last words, so much goes into the next one's prompt.
const NOTE_LIMIT: usize = 4000;

/// Something that happened outside.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Frozen {
        sha256: String,
        base_branch: String,
        base_commit: String,
        target_branch: String,
    },
    Sealed(Sealed),
    /// The beads of the run as the store has them.
    Gathered {
        beads: Vec<Bead>,
        closed_outside: Vec<String>,
    },
    BeadsAccepted,
    JobEnded {
        dispatch: String,
        end: Box<JobEnd>,
    },
    /// Of the ids that beads wait for, these are closed.
    Outside {
        closed: Vec<String>,
    },
    Applied {
        iteration: u32,
        triage: Triage,
    },
    Published {
        branch: String,
        commit: String,
        merge: String,
        pr: Option<Result<String, String>>,
    },
    Resume {
        settings: Box<RunSettings>,
        by: String,
        approve: bool,
        from: Option<GoOn>,
        /// What a person did meanwhile about beads that are not done.
        settled: Vec<Settled>,
        /// The place in a trace of whoever asks.
        trace: Option<String>,
    },
    Stop {
        reason: String,
    },
    /// It cannot go on: an `E_…` code and why.
    Fatal {
        code: String,
        message: String,
    },
}

/// Where a run is told to go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoOn {
    Implement,
    /// A maintenance run at once, whatever its trigger says.
    Maintain,
    Judge,
}

/// A bead of the run that was closed or reopened while nobody of the run was at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    pub bead: String,
    pub closed: bool,
    pub no_change: bool,
}

/// Why a run cannot go on from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Barred {
    pub code: &'static str,
    pub message: String,
}

/// How an agent ended, with everything about it that was looked up then.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEnd {
    pub outcome: Outcome,
    pub reason: String,
    /// The end of what it said.
    pub last_lines: String,
    pub duration_ms: u64,
    pub cost_usd: f64,
    /// The model's provider had no room: not the bead's failure.
    pub rate_limited: bool,
    /// It is not known whether it had finished.
    pub unknown: bool,
    /// Of a bead: whether it is closed, whether as needing no change.
    pub closed: bool,
    pub no_change: bool,
    /// Its commits since its base, and whether the target has them all.
    pub commits: u32,
    pub on_target: bool,
    /// Some of these are its own, and it left nothing that is not on the target, such as a rebase in the middle.
    pub whole: bool,
    /// It has none, but an earlier attempt's are on the target.
    pub pushed_before: bool,
    /// Of a push that was no fast-forward, and was undone.
    pub undone: Option<String>,
    /// Its commits are on the base branch of the real remote, where it had no business.
    pub trespassed: Option<String>,
    /// Observation beads that are open in the run.
    pub observations: Vec<String>,
    pub sealed: Option<Sealed>,
    /// It changed files it was only to read.
    pub wrote: bool,
    pub verdict: Option<Result<JudgeResult, String>>,
}

impl JobEnd {
    pub fn new(outcome: Outcome, reason: impl Into<String>) -> Self {
        Self {
            outcome,
            reason: reason.into(),
            last_lines: String::new(),
            duration_ms: 0,
            cost_usd: 0.0,
            rate_limited: false,
            unknown: false,
            closed: false,
            no_change: false,
            commits: 0,
            on_target: false,
            whole: false,
            pushed_before: false,
            undone: None,
            trespassed: None,
            observations: vec![],
            sealed: None,
            wrote: false,
            verdict: None,
        }
    }

    /// The bead's work is on the target, whichever attempt brought it there. Who ended by itself may have left what
    /// it did not want; of who was cut off it must be all.
    pub fn has_pushed(&self) -> bool {
        let all = self.whole || self.outcome == Outcome::Success;
        (self.commits > 0 && self.on_target && all) || (self.commits == 0 && self.pushed_before)
    }
}

/// The events that record `input`; none where it means nothing (any more).
pub fn decide(run: &Run, input: Input, now: Timestamp) -> Vec<Event> {
    if let Input::Resume { settings, by, approve, from, settled, trace } = input {
        return resume(run, (settings, trace), &by, approve, from, &settled);
    }
    if !run.is_live() {
        return vec![];
    }
    match input {
        Input::Frozen { sha256, base_branch, base_commit, target_branch } if run.frozen.is_none() => {
            vec![Event::SpecFrozen { sha256, base_branch, base_commit, target_branch }]
        }
        Input::Sealed(sealed) if run.sealed.is_none() => {
            vec![Event::AcceptanceSealed { path: sealed.path, sha256: sealed.sha256 }]
        }
        Input::Gathered { beads, closed_outside } if run.phase == Phase::Decompose && run.beads.is_empty() => {
            gathered(run, &beads, &closed_outside)
        }
        Input::BeadsAccepted if !run.accepted => vec![Event::BeadsAccepted {}],
        Input::JobEnded { dispatch, end } => match run.job_by_dispatch(&dispatch) {
            Some(job) => job_ended(run, job, &end, now),
            None => vec![],
        },
        Input::Outside { closed } => outside(run, &closed),
        Input::Applied { iteration, triage } if iteration == run.iteration => applied(run, triage),
        Input::Published { branch, commit, merge, pr } if run.phase == Phase::Finish => {
            published(run, branch, commit, merge, pr)
        }
        Input::Stop { reason } if run.stopping.is_none() => {
            vec![Event::RunStopping { code: String::new(), message: reason }]
        }
        Input::Fatal { code, message } if run.stopping.as_ref().is_none_or(|stop| stop.code.is_empty()) => {
            vec![Event::RunStopping { code, message }]
        }
        _ => vec![],
    }
}

/// Whether a run can go on from there: nobody jumps a barrier or an approval.
///
/// # Errors
/// What has to come first.
pub fn may_go_on(run: &Run, from: GoOn, approve: bool, settled: &[Settled]) -> Result<(), Barred> {
    let bad = |message: String| Err(Barred { code: "E_BAD_INPUT", message });
    if !run.jobs.is_empty() {
        let message = format!("{} of its agents are at work", run.jobs.len());
        return Err(Barred { code: "E_RUN_LOCKED", message });
    }
    if !run.accepted {
        return bad(format!("its beads are not decided on yet (it is in phase {})", run.phase.as_str()));
    }
    if run.settings.human_review && !run.approved && !approve {
        return bad("its beads wait for approval: --yes approves them".into());
    }
    let left: Vec<&str> = run
        .beads
        .values()
        .filter(|task| match settled.iter().find(|one| one.bead == task.planned.id) {
            Some(one) => task.stage != Stage::Done && !one.closed,
            None => matches!(task.stage, Stage::Open | Stage::Taken),
        })
        .map(|task| task.planned.id.as_str())
        .collect();
    if from == GoOn::Judge && !left.is_empty() {
        let shown = left[..left.len().min(10)].join(", ");
        return bad(format!("{} beads are not done ({shown}), and the judge comes after them", left.len()));
    }
    Ok(())
}

fn resume(
    run: &Run,
    (settings, trace): (Box<RunSettings>, Option<String>),
    by: &str,
    approve: bool,
    from: Option<GoOn>,
    settled: &[Settled],
) -> Vec<Event> {
    if from.is_some_and(|from| may_go_on(run, from, approve, settled).is_err()) {
        return vec![];
    }
    let mut events = vec![Event::RunResumed { run_id: run.id().into(), settings, by: by.into(), trace }];
    // Who approves the criteria has not seen the beads.
    let criteria = run.phase == Phase::Freeze && run.settings.preview_acceptance;
    if approve && !run.approved && !criteria {
        events.push(Event::RunApproved { by: by.into() });
    }
    // What an agent planned and the graph refused is planned anew, by one that is told why.
    let refused = ["E_GRAPH_CYCLE", "E_GRAPH_EMPTY", "E_GRAPH_DANGLING"];
    if let Some(error) = run.error.as_ref().filter(|error| refused.contains(&error.code.as_str()))
        && run.beads.is_empty()
        && run.decomposed
    {
        let reason = cut(&error.message, 500);
        events.push(Event::AgentRetried { purpose: Purpose::Decompose, reason, counted: false });
    }
    let mut reopened = false;
    for one in settled {
        let Some(task) = run.beads.get(&one.bead) else { continue };
        match task.stage {
            Stage::Open | Stage::Blocked if one.closed => events.push(Event::BeadCompleted {
                bead_id: one.bead.clone(),
                by: by.into(),
                no_change: one.no_change,
                commits: 0,
            }),
            // Not beside a judge at work.
            Stage::Blocked if run.phase == Phase::Implement || run.jobs.is_empty() => {
                events.push(Event::BeadReopened { bead_id: one.bead.clone(), by: by.into() });
                reopened = true;
            }
            _ => {}
        }
    }
    if reopened && from.is_none() && run.phase != Phase::Implement {
        events.push(Event::PhaseChanged { phase: Phase::Implement });
    }
    match from {
        Some(GoOn::Implement) => events.push(Event::PhaseChanged { phase: Phase::Implement }),
        Some(GoOn::Maintain) => {
            events.push(Event::PhaseChanged { phase: Phase::Implement });
            events.extend(start_maintenance(run));
        }
        Some(GoOn::Judge) => events.push(Event::PhaseChanged { phase: Phase::Judge }),
        None => {}
    }
    events
}

fn gathered(run: &Run, beads: &[Bead], closed_outside: &[String]) -> Vec<Event> {
    let fatal = |code: &str, message: String| vec![Event::RunStopping { code: code.into(), message }];
    let work: Vec<&Bead> = beads.iter().filter(|bead| !bead.is_observation()).collect();
    if work.is_empty() {
        return fatal("E_GRAPH_EMPTY", "the decomposition has no beads".into());
    }
    let graph = Graph::of_beads(work.iter().copied());
    if let Some(chain) = graph.cycles().first() {
        let titles: Vec<String> = chain
            .iter()
            .map(|id| {
                let title = work.iter().find(|bead| bead.id == *id).map_or("", |bead| bead.title.as_str());
                format!("{id} ({})", cut(title, 60))
            })
            .collect();
        return fatal("E_GRAPH_CYCLE", format!("beads wait for each other: {}", titles.join(" → ")));
    }
    let mut planned = Vec::with_capacity(work.len());
    for bead in &work {
        let (inside, outside): (Vec<&str>, Vec<&str>) = bead.blockers().partition(|on| graph.index(on).is_some());
        planned.push(Planned {
            id: bead.id.clone(),
            title: cut(&bead.title, 200),
            priority: bead.priority,
            created_at: bead.created_at.clone(),
            depends_on: inside.into_iter().map(Into::into).collect(),
            outside: outside
                .into_iter()
                .filter(|on| !closed_outside.iter().any(|id| id == on))
                .map(Into::into)
                .collect(),
            closed: bead.status == crate::bead::Status::Closed,
        });
    }
    let created =
        Event::BeadsCreated { count: planned.len() as u32, dependency_edges: graph.edges() as u32, beads: planned };
    let _ = run;
    vec![created]
}

fn finished(job: &Job, end: &JobEnd, status: Outcome) -> Event {
    Event::AgentFinished(Box::new(AgentFinished {
        agent: job.start.agent,
        purpose: job.start.purpose,
        bead_id: job.start.bead_id.clone(),
        status,
        duration_ms: end.duration_ms,
        reason: cut(&end.reason, 500),
        cost_usd: end.cost_usd,
    }))
}

fn job_ended(run: &Run, job: &Job, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let mut events = match (job.start.purpose, &job.start.bead_id) {
        (Purpose::Implement, Some(bead)) => bead_ended(run, job, bead, end, now),
        (Purpose::Maintain, _) => {
            let state = super::state::status_of(end.outcome).to_string();
            let id = run.maintenance.last().map(|last| last.id.clone()).unwrap_or_default();
            vec![finished(job, end, end.outcome), Event::MaintenanceFinished { maintenance: id, status: state }]
        }
        _ => needed_ended(run, job, end, now),
    };
    if let Some(reason) = &end.undone {
        events.insert(0, Event::PushUndone { agent: job.start.agent, reason: cut(reason, 300) });
    }
    if let Some(message) = end.trespassed.as_ref().filter(|_| run.stopping.is_none()) {
        events.push(Event::RunStopping { code: "E_REMOTE_CHANGED".into(), message: cut(message, 500) });
    }
    let created_by = format!("agent-{}", job.start.agent);
    let fresh = end
        .observations
        .iter()
        .filter(|id| !run.observations.contains(*id) && !run.promoted.contains(*id) && !run.dismissed.contains(*id));
    events.extend(fresh.map(|id| Event::ObservationCreated { bead_id: id.clone(), created_by: created_by.clone() }));
    events
}

/// The end of an agent the run cannot do without.
fn needed_ended(run: &Run, job: &Job, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let purpose = job.start.purpose;
    let mut events = vec![finished(job, end, end.outcome)];
    if purpose == Purpose::Judge && end.wrote {
        let JudgeStage::Reason { round } = run.judge else { return events };
        let reason = "the judge changed what it was to judge".to_string();
        events.push(judged(run, Verdict::Discarded, &reason, None));
        if round >= ROUNDS {
            events.push(Event::RunStopping { code: "E_JUDGE_WROTE".into(), message: format!("{reason}, twice") });
        }
        return events;
    }
    if run.stopping.is_some() {
        return events;
    }
    if end.outcome != Outcome::Success {
        let uncounted = run.uncounted.get(&purpose).copied().unwrap_or_default();
        let counted = !end.rate_limited || uncounted >= UNCOUNTED;
        let failures = run.failures.get(&purpose).copied().unwrap_or_default() + u32::from(counted);
        events.push(Event::AgentRetried { purpose, reason: cut(&end.reason, 500), counted });
        if !counted {
            events.push(slow(run, &end.reason, now));
        }
        if failures > run.settings.max_retries {
            let code = if end.outcome == Outcome::Timeout { "E_AGENT_TIMEOUT" } else { "E_AGENT_FAILED" };
            let message = format!("the {} agent failed {failures} times: {}", purpose.as_str(), end.reason);
            events.push(Event::RunStopping { code: code.into(), message });
        }
        return events;
    }
    match (purpose, &run.judge) {
        (Purpose::Acceptance, _) => {
            let Sealed { path, sha256 } =
                end.sealed.clone().unwrap_or(Sealed { path: String::new(), sha256: String::new() });
            events.push(Event::AcceptanceSealed { path, sha256 });
        }
        (Purpose::Decompose, _) => events.push(Event::Decomposed {}),
        (Purpose::Judge, JudgeStage::Reason { round }) => events.push(Event::JudgeReasoned { round: *round }),
        (Purpose::Structure, JudgeStage::Structure { tries, .. }) => match readable(run, end) {
            Ok(result) => {
                let verdict = if result.passed() { Verdict::Pass } else { Verdict::Fail };
                events.push(judged(run, verdict, "", Some(result.clone())));
            }
            Err(why) => {
                events.push(Event::AgentRetried { purpose, reason: why.clone(), counted: false });
                events.push(judged(run, Verdict::Unreadable, &why, None));
                if tries + 1 >= ROUNDS {
                    let message = format!("the judge's verdict could not be read: {why}");
                    events.push(Event::RunStopping { code: "E_JUDGE_PARSE_FAILED".into(), message });
                }
            }
        },
        _ => {}
    }
    events
}

/// The verdict, if it can be acted on.
fn readable<'a>(run: &Run, end: &'a JobEnd) -> Result<&'a JudgeResult, String> {
    let result = end.verdict.as_ref().ok_or("it printed no verdict")?.as_ref().map_err(Clone::clone)?;
    let criteria = run.sealed.as_ref().is_some_and(|sealed| !sealed.path.is_empty());
    let asked = Asked { spec_drift: run.settings.spec_drift, acceptance: run.settings.acceptance && criteria };
    result.settled(asked).map(|()| result)
}

fn judged(run: &Run, verdict: Verdict, reason: &str, result: Option<JudgeResult>) -> Event {
    let new_beads = result.as_ref().map_or(0, |result| {
        let promoted = result.observations.iter().filter(|one| one.action == "promote").count();
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
    let pause = (SLOW_FIRST_S << run.slowdowns.min(16)).min(SLOW_LAST_S);
    let until = now.checked_add(SignedDuration::from_secs(pause)).unwrap_or(now);
    Event::PoolSlowed { until, reason: cut(reason, 200) }
}

/// Done is: closed, and its commits are on the target (or explicitly nothing was to be changed).
fn bead_ended(run: &Run, job: &Job, bead: &str, end: &JobEnd, now: Timestamp) -> Vec<Event> {
    let Some(task) = run.beads.get(bead) else { return vec![finished(job, end, end.outcome)] };
    let complete = end.closed && (end.has_pushed() || (end.no_change && end.commits == 0));
    // Who pushed everything and was cut off before saying so has done it; who said it failed has not.
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
        (true, 0, _) => "it closed the bead without a commit, and not as needing no change",
        (true, _, false) => "it closed the bead, but its commits are not on the target branch",
        (false, 0, _) => "it ended without closing the bead and without a commit",
        (false, _, false) => "it ended without closing the bead, and its commits are not on the target branch",
        (false, _, true) if !end.whole => {
            "it ended without closing the bead, and what is on the target branch is not its own or not all of it"
        }
        _ => "it ended without closing the bead",
    };
    let reason = if incomplete { format!("incomplete: {what}") } else { end.reason.clone() };
    let mut events = vec![finished(job, end, if incomplete { Outcome::Failure } else { end.outcome })];
    if run.stopping.is_some() {
        // Ended because the run is: its next attempt is not a second one.
        events.push(retried(bead, task.attempts, &reason, true, false, &task.note));
        return events;
    }
    let uncounted = end.rate_limited && task.attempts - task.failures.min(task.attempts) <= UNCOUNTED;
    if uncounted {
        events.push(retried(bead, task.attempts, &reason, false, false, &task.note));
        events.push(slow(run, &end.reason, now));
        return events;
    }
    if task.failures >= run.settings.max_retries {
        let mut dependants = run.dependants(bead);
        dependants.truncate(100);
        events.push(Event::BeadBlocked { bead_id: bead.into(), reason: cut(&reason, 500), dependants });
        return events;
    }
    let tail = last(&end.last_lines);
    let note = if tail.is_empty() { reason.clone() } else { format!("{reason}\n\nIts last lines:\n\n{tail}") };
    events.push(retried(bead, task.attempts, &reason, incomplete, true, &note));
    events
}

/// Whether this end leaves the agent's bead blocked.
pub fn blocks(run: &Run, dispatch: &str, end: &JobEnd) -> bool {
    let Some(job) = run.job_by_dispatch(dispatch) else { return false };
    let Some(bead) = job.start.bead_id.as_ref().filter(|_| job.start.purpose == Purpose::Implement) else {
        return false;
    };
    let events = bead_ended(run, job, bead, end, run.updated_at);
    events.iter().any(|event| matches!(event, Event::BeadBlocked { .. }))
}

fn retried(bead: &str, attempt: u32, reason: &str, reuse: bool, counted: bool, note: &str) -> Event {
    Event::BeadRetried { bead_id: bead.into(), attempt, reason: cut(reason, 500), reuse, counted, note: note.into() }
}

fn last(text: &str) -> String {
    let text = text.trim_end();
    let mut from = text.len().saturating_sub(NOTE_LIMIT);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    text[from..].to_string()
}

fn outside(run: &Run, closed: &[String]) -> Vec<Event> {
    let mut events = Vec::new();
    for task in run.beads.values() {
        for on in task.outside.iter().filter(|on| closed.contains(on)) {
            events.push(Event::OutsideClosed { bead_id: task.planned.id.clone(), on: on.clone() });
        }
    }
    if events.is_empty() && run.jobs.is_empty() && run.schedule.next().is_none() {
        let stuck: Vec<_> = run.stuck().into_iter().map(|blocked| blocked.chain.join(" → ")).take(20).collect();
        if !stuck.is_empty() {
            let message = format!("every bead left waits for one outside the run: {}", stuck.join("; "));
            events.push(Event::RunStopping { code: "E_EXTERNAL_BLOCKED".into(), message });
        }
    }
    events
}

fn applied(run: &Run, triage: Triage) -> Vec<Event> {
    let JudgeStage::Apply(result) = &run.judge else { return vec![] };
    let mut events = vec![Event::VerdictApplied { iteration: run.iteration, triage: Box::new(triage.clone()) }];
    if result.passed() {
        events.push(Event::PhaseChanged { phase: Phase::Finish });
    } else if run.settings.judge_only {
        let message = format!(
            "the judge found something, and nobody but the judge was asked; {} beads are left open",
            triage.beads.len()
        );
        events.push(Event::RunStopping { code: "E_MAX_ITERATIONS".into(), message });
    } else if run.iteration >= run.settings.max_iterations {
        let message = format!(
            "the judge found something in each of {} iterations; {} beads are left open: raise \
             run.phases.judge.max_iterations, and the run works on them when it is resumed",
            run.iteration,
            triage.beads.len()
        );
        events.push(Event::RunStopping { code: "E_MAX_ITERATIONS".into(), message });
    } else {
        events.push(Event::IterationStarted { iteration: run.iteration + 1, beads: triage.beads });
        events.push(Event::PhaseChanged { phase: Phase::Implement });
    }
    events
}

fn published(
    run: &Run,
    branch: String,
    commit: String,
    merge: String,
    pr: Option<Result<String, String>>,
) -> Vec<Event> {
    let mut events = vec![Event::BranchPublished { branch, commit, merge }];
    match pr {
        Some(Ok(url)) if run.pr_url.is_none() => events.push(Event::PrCreated { url }),
        Some(Err(message)) => {
            events.push(Event::RunStopping { code: "E_PR_CREATE_FAILED".into(), message });
            return events;
        }
        _ => {}
    }
    let all = run.count(Stage::Done) == run.beads.len();
    let status = if all { RunStatus::Completed } else { RunStatus::Partial };
    events.push(Event::RunCompleted { status, total_beads: run.beads.len() as u32 });
    events
}

/// What follows from the state by itself; called until nothing does.
pub fn advance(run: &Run, now: Timestamp) -> Vec<Event> {
    if !run.is_live() {
        return vec![];
    }
    if let Some(stop) = &run.stopping {
        if !run.jobs.is_empty() {
            return vec![];
        }
        if stop.code.is_empty() {
            return vec![Event::RunRested { status: RunStatus::Pending, reason: stop.message.clone() }];
        }
        let status = if stop.code == "E_MAX_ITERATIONS" { RunStatus::Partial } else { RunStatus::Failed };
        return vec![Event::RunFailed { code: stop.code.clone(), message: stop.message.clone(), status }];
    }
    let stopping = |code: &str, message: String| vec![Event::RunStopping { code: code.into(), message }];
    if let Some(limit) = run.settings.max_runtime_s
        && run.ran_for_ms(now) >= limit as i64 * 1000
    {
        return stopping("E_MAX_RUNTIME", format!("it has been under way for {limit} s"));
    }
    if let Some(budget) = run.settings.budget_usd
        && run.cost_usd >= budget
        && run.phase != Phase::Finish
    {
        return stopping("E_BUDGET", format!("{:.2} USD of {budget:.2} are spent", run.cost_usd));
    }
    match run.phase {
        Phase::Freeze => freeze(run, now),
        Phase::Decompose => decompose(run, now),
        Phase::Implement => implement(run, now),
        Phase::Judge => judge(run, now),
        Phase::Finish | Phase::Unknown => vec![],
    }
}

fn freeze(run: &Run, now: Timestamp) -> Vec<Event> {
    if run.frozen.is_none() {
        return vec![];
    }
    if let Some(sealed) = &run.sealed {
        if run.settings.preview_acceptance && !sealed.path.is_empty() {
            let reason = format!("its acceptance criteria wait for approval: {}", sealed.path);
            return vec![Event::RunRested { status: RunStatus::AwaitingApproval, reason }];
        }
        return vec![Event::PhaseChanged { phase: Phase::Decompose }];
    }
    if !(run.settings.acceptance && run.settings.judge) {
        return vec![Event::AcceptanceSealed { path: String::new(), sha256: String::new() }];
    }
    if run.settings.acceptance_path.is_some() {
        return vec![];
    }
    start_needed(run, Purpose::Acceptance, now)
}

fn decompose(run: &Run, now: Timestamp) -> Vec<Event> {
    if run.beads.is_empty() {
        let by_agent = run.started.bead_label.is_none() && !run.decomposed;
        return if by_agent { start_needed(run, Purpose::Decompose, now) } else { vec![] };
    }
    if !run.accepted {
        return vec![];
    }
    if run.settings.dry_run {
        return vec![Event::RunRested { status: RunStatus::Pending, reason: "it was a dry run".into() }];
    }
    if run.settings.human_review && !run.approved {
        return vec![Event::RunRested {
            status: RunStatus::AwaitingApproval,
            reason: "its beads wait for approval".into(),
        }];
    }
    vec![Event::PhaseChanged { phase: Phase::Implement }]
}

fn implement(run: &Run, now: Timestamp) -> Vec<Event> {
    let maintaining = run.job_of(Purpose::Maintain).is_some();
    let every = run.settings.maintain_every;
    if every > 0 && run.done_now / every > run.maintained_at / every {
        if maintaining {
            return vec![Event::MaintenanceCoalesced { completed_count: run.done_now }];
        }
        if !run.settings.maintain_parallel && run.coding() > 0 {
            return vec![];
        }
        return start_maintenance(run);
    }
    if maintaining && !run.settings.maintain_parallel {
        return vec![];
    }
    let waiting = run.not_before.is_some_and(|until| now < until);
    if run.coding() < run.settings.max_concurrency as usize
        && let Some(bead) = run.schedule.next()
    {
        return if waiting { vec![] } else { assign(run, bead) };
    }
    if !run.jobs.is_empty() {
        return vec![];
    }
    let open = run.count(Stage::Open);
    if open > 0 {
        // Somebody outside is looked after first, by an effect.
        if run.beads.values().any(|task| task.stage == Stage::Open && !task.outside.is_empty()) {
            return vec![];
        }
        let chains: Vec<_> = run.stuck().into_iter().map(|blocked| blocked.chain.join(" → ")).take(20).collect();
        let message = format!(
            "every bead left waits for one that is blocked: {}; `muleteer bead reopen` has one tried again when the run is resumed",
            chains.join("; ")
        );
        return vec![Event::RunStopping { code: "E_DEADLOCK".into(), message }];
    }
    if run.settings.maintain_after_all && run.done_now > run.maintained_at {
        return start_maintenance(run);
    }
    let next = if run.settings.judge { Phase::Judge } else { Phase::Finish };
    vec![Event::PhaseChanged { phase: next }]
}

fn judge(run: &Run, now: Timestamp) -> Vec<Event> {
    match run.judge {
        JudgeStage::Reason { round } if run.job_of(Purpose::Judge).is_none() => {
            let mut events = start_needed(run, Purpose::Judge, now);
            if !events.is_empty() {
                let observations = run.observations.iter().cloned().collect();
                events.insert(0, Event::JudgeStarted { iteration: run.iteration, round, observations });
            }
            events
        }
        JudgeStage::Structure { .. } if run.job_of(Purpose::Structure).is_none() => {
            start_needed(run, Purpose::Structure, now)
        }
        _ => vec![],
    }
}

fn agent(run: &Run, purpose: Purpose, bead_id: Option<String>, workdir: String, attempt: u32, reuse: bool) -> Event {
    Event::AgentStarted(Box::new(AgentStarted {
        agent: run.next_agent(),
        purpose,
        bead_id,
        workdir: format!(".muleteer/worktrees/{}/{workdir}", run.id()),
        dispatch: format!("{}x{}", run.hash(), run.spawns + 1),
        attempt,
        reuse,
    }))
}

fn start_needed(run: &Run, purpose: Purpose, now: Timestamp) -> Vec<Event> {
    if run.job_of(purpose).is_some() || run.not_before.is_some_and(|until| now < until) {
        return vec![];
    }
    let attempt = run.failures.get(&purpose).copied().unwrap_or_default();
    let workdir = format!("{}-{}", purpose.as_str(), run.spawns + 1);
    vec![agent(run, purpose, None, workdir, attempt, false)]
}

fn assign(run: &Run, bead: &str) -> Vec<Event> {
    let Some(task) = run.beads.get(bead) else { return vec![] };
    let worktree = if task.reuse { task.worktrees } else { task.worktrees + 1 };
    let workdir = format!("bead-{bead}-{}", worktree.max(1));
    let reuse = task.reuse && task.worktrees > 0;
    let claim = format!("{}:{}:{}", run.id(), run.iteration, task.attempts);
    vec![
        Event::BeadAssigned { bead_id: bead.into(), agent: run.next_agent(), claim },
        agent(run, Purpose::Implement, Some(bead.into()), workdir, task.attempts, reuse),
    ]
}

fn start_maintenance(run: &Run) -> Vec<Event> {
    let maintenance = format!("maint-{}", run.maintenance.len() + 1);
    let bead_id = format!("{}m{}", run.hash(), run.maintenance.len() + 1);
    vec![
        Event::MaintenanceStarted {
            maintenance: maintenance.clone(),
            bead_id: bead_id.clone(),
            trigger_completed_count: run.done_now,
        },
        agent(run, Purpose::Maintain, Some(bead_id), maintenance, 0, false),
    ]
}
