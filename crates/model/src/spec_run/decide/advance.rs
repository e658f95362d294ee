//! The events that follow from the state without an input.

use crate::event::Event;
use crate::spec_run::event::*;
use crate::spec_run::state::{Decomposition, JudgeStage, PhaseState, Run, Stage};
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;

/// Returns the events that follow from the state without an input. Called until it returns none.
pub fn advance(run: &Run, now: Timestamp) -> Vec<Event> {
    if !run.is_live() {
        return vec![];
    }
    if let Some(stop) = run.stopping() {
        if !run.jobs.is_empty() {
            return vec![];
        }
        if stop.code.is_empty() {
            return vec![Event::RunRested {
                status: RunStatus::Pending,
                reason: stop.message.clone(),
                question: None,
            }];
        }
        let status = if stop.code == ErrorCode::MaxIterations {
            RunStatus::Partial
        } else {
            RunStatus::Failed
        };
        return vec![Event::RunFailed {
            code: stop.code.clone(),
            message: stop.message.clone(),
            status,
        }];
    }
    let stopping =
        |code: ErrorCode, message: String| vec![Event::RunStopping { code: code.into(), message }];
    if let Some(limit) = run.settings.max_runtime_s
        && run.ran_for_ms(now) >= limit as i64 * 1000
    {
        return stopping(ErrorCode::MaxRuntime, format!("it has been running for {limit} s"));
    }
    if let Some(budget) = run.settings.budget_usd
        && run.cost_usd >= budget
        && run.phase != PhaseState::Finish
    {
        return vec![crate::spec_run::decide::broke(run.cost_usd, budget)];
    }
    match &run.phase {
        PhaseState::Freeze => freeze(run, now),
        PhaseState::Decompose(progress) => decompose(run, *progress, now),
        PhaseState::Implement => implement(run, now),
        PhaseState::Judge(stage) => judge(run, stage, now),
        PhaseState::Finish if run.awaits_merge() => vec![Event::RunRested {
            status: RunStatus::AwaitingApproval,
            reason: "waiting for approval of its result".into(),
            question: None,
        }],
        PhaseState::Finish | PhaseState::Unknown => vec![],
    }
}

fn freeze(run: &Run, now: Timestamp) -> Vec<Event> {
    if run.awaits_review() {
        return review(run, now);
    }
    if run.is_unfrozen() {
        return vec![];
    }
    if let Some(sealed) = &run.sealed {
        if run.settings.preview_acceptance && !sealed.path.is_empty() {
            let reason =
                format!("waiting for approval of its acceptance criteria in {}", sealed.path);
            return vec![Event::RunRested {
                status: RunStatus::AwaitingApproval,
                reason,
                question: None,
            }];
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

fn review(run: &Run, now: Timestamp) -> Vec<Event> {
    let Some(findings) = &run.review else { return start_needed(run, Purpose::Review, now) };
    let count = match findings.len() {
        1 => "1 finding".to_string(),
        many => format!("{many} findings"),
    };
    let reason = format!("waiting for approval of its spec, whose review has {count}");
    vec![Event::RunRested { status: RunStatus::AwaitingApproval, reason, question: None }]
}

fn decompose(run: &Run, progress: Decomposition, now: Timestamp) -> Vec<Event> {
    match progress {
        Decomposition::Pending { decomposed } => {
            let by_agent = run.plans_beads() && !decomposed;
            return if by_agent { start_needed(run, Purpose::Decompose, now) } else { vec![] };
        }
        Decomposition::Planned | Decomposition::Accepted { reread: true } => return vec![],
        Decomposition::Accepted { reread: false } => {}
    }
    if run.settings.dry_run {
        return vec![Event::RunRested {
            status: RunStatus::Pending,
            reason: "stopped after planning, as --dry-run asks".into(),
            question: None,
        }];
    }
    if run.settings.human_review && !run.approved {
        return vec![Event::RunRested {
            status: RunStatus::AwaitingApproval,
            reason: "waiting for approval of its beads".into(),
            question: None,
        }];
    }
    vec![Event::PhaseChanged { phase: Phase::Implement }]
}

fn implement(run: &Run, now: Timestamp) -> Vec<Event> {
    let maintaining = run.job_of(Purpose::Maintain).is_some();
    let every = run.settings.maintain_every;
    let completed = run.completed_now();
    if repeats(run) || run.maintenance.is_due(completed, every) {
        if maintaining {
            return vec![Event::MaintenanceCoalesced { completed_count: completed }];
        }
        if !run.settings.maintain_parallel && run.coding() > 0 {
            return vec![];
        }
        return start_maintenance(run);
    }
    if maintaining && !run.settings.maintain_parallel {
        return vec![];
    }
    let waiting = run.not_before().is_some_and(|until| now < until);
    let places = if run.canaries_left() > 0 { 1 } else { run.settings.max_concurrency as usize };
    if run.coding() < places
        && let Some(bead) = run.schedule.next()
    {
        return if waiting { vec![] } else { assign(run, bead) };
    }
    if !run.jobs.is_empty() {
        return vec![];
    }
    let open = run.count(Stage::Open);
    if open > 0 {
        // The effect `LookOutside` first checks the blockers outside the run.
        if run.beads.values().any(|task| task.stage == Stage::Open && !task.outside.is_empty()) {
            return vec![];
        }
        let chains: Vec<_> =
            run.stuck().into_iter().map(|blocked| run.chain(&blocked.chain)).take(20).collect();
        let blocked = run.beads.values().find(|task| task.stage == Stage::Blocked);
        let message = format!(
            "all remaining beads depend on blocked beads: {}; reopen one with `muleteer bead \
             reopen {}`, then resume the run with `{}`",
            chains.join("; "),
            blocked.map_or("ID", |task| task.planned.id.as_str()),
            run.resume_command()
        );
        return vec![Event::RunStopping { code: ErrorCode::Deadlock.into(), message }];
    }
    if run.settings.maintain_after_all && completed > run.maintenance.triggered_at {
        return start_maintenance(run);
    }
    let next = if run.settings.judge { Phase::Judge } else { Phase::Finish };
    vec![Event::PhaseChanged { phase: next }]
}

/// Returns whether attempts fail again and again for one reason that maintenance can repair, and
/// others are to come. A run without maintenance has none for this reason either.
fn repeats(run: &Run) -> bool {
    let maintains = run.settings.maintain_every > 0 || run.settings.maintain_after_all;
    let others = run.coding() > 0 || run.schedule.next().is_some();
    maintains && others && run.maintenance.repeats()
}

fn judge(run: &Run, stage: &JudgeStage, now: Timestamp) -> Vec<Event> {
    match stage {
        JudgeStage::Reason { round } => {
            let mut events = start_needed(run, Purpose::Judge, now);
            if !events.is_empty() {
                let (iteration, round) = (run.iteration, *round);
                let observations = run.observations.pending.iter().cloned().collect();
                events.insert(0, Event::JudgeStarted { iteration, round, observations });
            }
            events
        }
        JudgeStage::Structure { .. } => start_needed(run, Purpose::Structure, now),
        JudgeStage::Apply(_) => vec![],
    }
}

fn agent(
    run: &Run,
    purpose: Purpose,
    bead_id: Option<String>,
    workdir: String,
    attempt: u32,
    reuse: bool,
) -> Event {
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
    if run.job_of(purpose).is_some() || run.not_before().is_some_and(|until| now < until) {
        return vec![];
    }
    let attempt = run.trials.get(&purpose).map_or(0, |trials| trials.failures);
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

pub(super) fn start_maintenance(run: &Run) -> Vec<Event> {
    let number = run.maintenance.runs.len() + 1;
    let maintenance = format!("maint-{number}");
    let bead_id = format!("{}m{number}", run.hash());
    vec![
        Event::MaintenanceStarted {
            maintenance: maintenance.clone(),
            bead_id: bead_id.clone(),
            trigger_completed_count: run.completed_now(),
        },
        agent(run, Purpose::Maintain, Some(bead_id), maintenance, 0, false),
    ]
}
