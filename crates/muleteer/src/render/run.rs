//! Text about a run, for people.

use crate::render::event::{bad, text, warn};
use crate::render::{BOLD, GREEN, RESET, clip, safe, span, usd};
use jiff::Timestamp;
use muleteer_model::event::Event;
use muleteer_model::spec_run::event::{RunStatus, SpecFinding, Verdict};
use muleteer_model::spec_run::price::Price;
use muleteer_model::spec_run::report::status::{Standing, WaitKind, why};
use muleteer_model::spec_run::spec::amendment;
use muleteer_model::spec_run::{Run, Stage};
use muleteer_model::{
    bead_events, conversation_events, daemon_events, dispatch_events, judge_events,
    maintenance_events, planning_events, publishing_events, run_progress_events, task_list_events,
};
use std::fmt::Write;
use std::time::Duration;

/// Describes the current state of a run in a few lines.
pub fn status(run: &Run, standing: &Standing, now: Timestamp) -> String {
    let mut text = head_at(run, Some((standing, now)));
    for wait in &standing.waiting_for {
        let of =
            wait.dispatch_id.as_ref().map(|id| format!(" (dispatch {id})")).unwrap_or_default();
        let time = if wait.kind == WaitKind::Daemon {
            String::new()
        } else {
            format!(", for {}", ago(wait.since, now))
        };
        let _ = writeln!(text, "  waiting for {}{time}{of}", safe(&wait.reason));
    }
    if standing.abandoned && !run.jobs.is_empty() {
        let _ = writeln!(text, "  running when this was recorded; they may have ended since:");
    }
    for job in run.jobs.values() {
        let part = match &job.start.bead_id {
            Some(id) => format!(" {}", safe(&run.named(id))),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "  agent {} {}{part}: attempt {} (dispatch {})",
            job.start.agent,
            job.start.purpose.as_str(),
            job.start.attempt + 1,
            job.start.dispatch
        );
    }
    let ready: Vec<_> = run.schedule.ready().take(8).collect();
    if run.is_live() && !standing.abandoned && !ready.is_empty() {
        let ready: Vec<_> = ready.iter().map(|id| safe(&run.named(id))).collect();
        let _ = writeln!(text, "  next      {}", ready.join("\n            "));
    }
    text.push_str(&ending(run, standing));
    text
}

fn ago(at: Timestamp, now: Timestamp) -> String {
    span(Duration::try_from(at.duration_until(now)).unwrap_or_default())
}

fn head(run: &Run) -> String {
    head_at(run, None)
}

/// `seen` is the run's standing and the time at which it was determined.
fn head_at(run: &Run, seen: Option<(&Standing, Timestamp)>) -> String {
    let count = |stage| run.count(stage);
    let abandoned = seen.filter(|(standing, _)| standing.abandoned);
    let mut text = format!("{BOLD}{}{RESET} {}\n", run.id(), safe(&clip(&run.started.title, 80)));
    let _ = writeln!(
        text,
        "  status    {}{} (phase {}, iteration {})",
        if abandoned.is_some() { "abandoned, last recorded as " } else { "" },
        run.status().as_str(),
        run.phase().as_str(),
        run.iteration
    );
    if let Some((standing, now)) = abandoned {
        let (at, ago) = (standing.as_of, ago(standing.as_of, now));
        let why = match &standing.obstacle {
            Some(why) => format!("a daemon is running but does not continue it: {}", safe(why)),
            None => "no daemon is running".into(),
        };
        let _ = writeln!(text, "  as of     {at:.0}, {ago} ago: {why}");
    }
    let _ = writeln!(
        text,
        "  beads     {} of {} done, {} in progress, {} open, {} blocked",
        count(Stage::Done),
        run.total(),
        count(Stage::Taken),
        count(Stage::Open) + run.left_open,
        count(Stage::Blocked)
    );
    if run.is_live() && run.canaries_left() > 0 {
        let left = run.canaries_left();
        let _ = writeln!(text, "  canary    {left} must pass alone before the others start");
    }
    let _ = writeln!(text, "  target    {}", run.target());
    let until = seen.map_or(run.updated_at, |(standing, _)| standing.as_of);
    let took = Duration::from_millis(run.ran_for_ms(until).max(0) as u64);
    let _ =
        writeln!(text, "  so far    {}, {} agents, {}", span(took), run.spawns, usd(run.cost_usd));
    text
}

fn ending(run: &Run, standing: &Standing) -> String {
    let mut text = findings(run);
    if let Some(reason) = run.rest_reason() {
        let _ = writeln!(text, "  {}", resting(run, reason, standing.closed.as_deref()));
    } else if let Some(why) = why(run) {
        let _ = writeln!(text, "  reason    {}", safe(&why));
    }
    text.push_str(&crate::render::work::lines(run));
    if let Some(branch) = run.publication.final_branch() {
        let base =
            run.frozen.as_ref().map(|frozen| frozen.base_branch.as_str()).unwrap_or_default();
        if branch == base {
            let _ = writeln!(text, "  result    on {base}");
        } else {
            let _ = writeln!(
                text,
                "  result    branch {branch}: git checkout {base} && git merge {branch}"
            );
        }
    }
    if let Some(why) = &run.publication.unpushed {
        let _ = writeln!(text, "  not pushed: {}", safe(why));
    }
    if let Some(url) = &run.publication.pr_url {
        let _ = writeln!(text, "  pull request {url}");
    }
    text
}

/// Describes the work of a run and its outcome.
pub fn report(run: &Run, standing: &Standing) -> String {
    let mut text = head_at(run, Some((standing, Timestamp::now())));
    for (one, number) in run.iterations.iter().zip(1..) {
        let _ = writeln!(
            text,
            "  iteration {number}: {} beads, {} done, {} failed attempts, {} agents, {} \
             maintenance runs",
            one.beads, one.completed, one.failed, one.spawns, one.maintenance
        );
        for verdict in run.verdicts.iter().filter(|verdict| verdict.iteration == number) {
            let _ = writeln!(
                text,
                "    judge: {} ({} new beads) {}",
                verdict.verdict.as_str(),
                verdict.new_beads,
                safe(&verdict.reason)
            );
            let Some(result) = verdict.result.as_ref().filter(|_| verdict.verdict == Verdict::Fail)
            else {
                continue;
            };
            for issue in result.issues() {
                let _ = writeln!(
                    text,
                    "      {} {}: {}",
                    issue.severity,
                    safe(&clip(&issue.section, 40)),
                    safe(&clip(&issue.description, 120))
                );
            }
            for criterion in result.criteria().iter().filter(|criterion| !criterion.passed) {
                let _ = writeln!(
                    text,
                    "      not accepted: {}",
                    safe(&clip(&criterion.criterion, 120))
                );
            }
        }
    }
    for task in run.order.iter().filter_map(|id| run.beads.get(id)) {
        let mark = match task.stage {
            Stage::Done => "✓",
            Stage::Taken => "▸",
            Stage::Blocked => "✗",
            Stage::Open => "·",
        };
        let title = safe(&clip(&task.planned.title, 80));
        let attempts = attempts(task.failures, task.stage);
        let _ = writeln!(text, "  {mark} implement \"{title}\" ({}){attempts}", task.planned.id);
    }
    if let Some(reason) = run.enforced().reason {
        let _ = writeln!(
            text,
            "  the judge's read-only view and the criteria's secrecy were checked, not enforced: \
             {}",
            safe(&reason)
        );
    }
    text.push_str(&ending(run, standing));
    text
}

/// Describes a finding about the spec in one line.
fn finding(finding: &SpecFinding) -> String {
    let place = match finding.section.trim() {
        "" => String::new(),
        section => format!(" {}:", safe(&clip(section, 60))),
    };
    let description = safe(&clip(finding.description.trim(), 300));
    format!("{}{place} {description}", finding.severity.as_str())
}

/// Lists the findings about the spec that a person has to approve.
fn findings(run: &Run) -> String {
    let mut text = String::new();
    for one in run.review.iter().flatten().filter(|_| run.awaits_review()) {
        let _ = writeln!(text, "  finding   {}", finding(one));
    }
    text
}

/// Describes why a run waits, and the command that continues it. `closed` says why its question
/// takes no answer.
fn resting(run: &Run, reason: &str, closed: Option<&str>) -> String {
    let reason = safe(reason);
    match (run.status(), closed) {
        (RunStatus::AwaitingApproval, Some(why)) => {
            format!("{reason} ({}): {}", safe(why), approve(run.id(), None))
        }
        (RunStatus::AwaitingApproval, None) => {
            format!("{reason}: {}", approve(run.id(), run.question()))
        }
        _ => format!("{reason}: resume with `{}`", run.resume_command()),
    }
}

/// Names the commands that give the approval for which a run waits.
pub fn approve(run_id: &str, question: Option<&str>) -> String {
    let answer = question
        .map(|id| format!("answer with `muleteer answer {} approve` (or reject), or ", safe(id)));
    format!("{}approve with `muleteer run --resume {run_id} --yes`", answer.unwrap_or_default())
}

/// Describes the attempts at a bead: `: attempt 1 failed, attempt 2 succeeded`.
fn attempts(failures: u32, stage: Stage) -> String {
    let failed = match failures {
        0 => None,
        1 => Some("attempt 1 failed".to_string()),
        many => Some(format!("attempts 1 to {many} failed")),
    };
    let next = failures + 1;
    let last = match stage {
        Stage::Done if failures > 0 => Some(format!("attempt {next} succeeded")),
        Stage::Taken => Some(format!("attempt {next} runs")),
        Stage::Done | Stage::Open | Stage::Blocked => None,
    };
    let parts: Vec<_> = failed.into_iter().chain(last).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

/// Describes the cost that is expected of a run.
pub fn expected(price: Option<&Price>) -> String {
    let Some(price) = price else {
        return "unknown (no earlier run here with this backend and model has a cost)".into();
    };
    let Price { low_usd, high_usd, beads, runs } = *price;
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!(
        "{} to {} for {beads} bead{}, by {runs} earlier run{} here",
        usd(low_usd),
        usd(high_usd),
        plural(beads),
        plural(runs)
    )
}

/// Describes a dry run: the graph, the order, and the estimated effort.
pub fn plan(run: &Run, price: Option<&Price>) -> String {
    let mut text = head(run);
    let _ = writeln!(text, "  spec      .muleteer/runs/{}/frozen-spec.md", run.id());
    let _ = writeln!(text, "  backend   {}", run.settings.backend);
    let slots = run.schedule.widest().min(run.settings.max_concurrency as usize);
    let _ = writeln!(
        text,
        "  agents    {slots} at once at most ({} may be)",
        run.settings.max_concurrency
    );
    let _ = writeln!(text, "  cost      {}", expected(price));
    let _ = writeln!(text, "\nbeads and their dependencies:");
    for task in run.order.iter().filter_map(|id| run.beads.get(id)) {
        let waits = if task.planned.depends_on.is_empty() {
            String::new()
        } else {
            let on: Vec<_> =
                task.planned.depends_on.iter().map(|id| safe(&run.named(id))).collect();
            format!(" ← {}", on.join(", "))
        };
        let _ = writeln!(
            text,
            "  {} P{} {}{waits}",
            task.planned.id,
            task.planned.priority,
            safe(&clip(&task.planned.title, 70))
        );
    }
    let _ = writeln!(text, "\nin scheduling order:");
    for (id, at) in run.schedule.order().iter().zip(1..) {
        let _ = writeln!(text, "  {at}. {}", safe(&run.named(id)));
    }
    let command = run.resume_command();
    let what = if command.ends_with(" --yes") { "Approve and continue" } else { "Continue" };
    let _ = writeln!(text, "\n{what} with `{command}`.");
    text
}

/// Describes one event of a run in one line; `None` for events of little interest.
/// `run_id` is the id of the run or empty, and `bead` names a bead by its title and id.
pub fn describe(event: &Event, run_id: &str, bead: &dyn Fn(&str) -> String) -> Option<String> {
    Some(match event {
        planning_events!() | bead_events!() | maintenance_events!() => {
            return describe_work(event, bead);
        }
        Event::RunStarted(started) => {
            format!("run of {} ({})", text(&started.title), started.settings.backend)
        }
        Event::RunResumed { by, .. } => format!("resumed by {by}"),
        Event::PhaseChanged { phase } => format!("{BOLD}phase {}{RESET}", phase.as_str()),
        Event::RunApproved { by } => format!("approved by {by}"),
        // The stream of events describes these, because it knows titles and attempts.
        Event::AgentStarted(_) | Event::AgentFinished(_) => return None,
        Event::AgentRetried { purpose, reason, .. } => {
            warn(format!("{} is retried: {}", purpose.as_str(), text(reason)))
        }
        Event::PoolSlowed { reason, .. } => warn(format!("slowing down: {}", text(reason))),
        Event::JudgeStarted { iteration, observations, .. } => {
            format!("the judge begins (iteration {iteration}, {} observations)", observations.len())
        }
        Event::JudgeReasoned { .. } => "the judge has reported its findings".into(),
        Event::JudgeFinished(end) => {
            let line = format!(
                "the judge: {} ({} new beads) {}",
                end.verdict.as_str(),
                end.new_beads,
                text(&end.reason)
            );
            if end.verdict == Verdict::Pass { format!("{GREEN}{line}{RESET}") } else { warn(line) }
        }
        Event::VerdictApplied { triage, .. } => {
            let all = |ids: &[String]| match ids.len() {
                0 => String::new(),
                _ => format!(": {}", ids.iter().map(|id| bead(id)).collect::<Vec<_>>().join(", ")),
            };
            let (promoted, dismissed) = (&triage.promoted, &triage.dismissed);
            format!(
                "{} promoted{}; {} dismissed{}",
                promoted.len(),
                all(promoted),
                dismissed.len(),
                all(dismissed)
            )
        }
        Event::IterationStarted { iteration, beads } => {
            format!("{BOLD}iteration {iteration}{RESET}: {} beads", beads.len())
        }
        Event::BranchPublished { branch, merge, unpushed, .. } => {
            let not = unpushed
                .iter()
                .map(|why| format!("; it is not pushed: {}", text(why)))
                .collect::<String>();
            format!("the result is on {branch}: {}{not}", text(merge))
        }
        Event::PrCreated { url } => format!("pull request {url}"),
        Event::BranchPushed { branch, page, trouble } => {
            let done = crate::render::work::pushed(branch, page.as_deref());
            match trouble {
                Some(why) => warn(format!("{done}; {}", text(why))),
                None => done,
            }
        }
        Event::RunWorkKept(kept) => crate::render::work::kept(kept),
        Event::RunStopping { code, message } if code.is_empty() => {
            warn(format!("stopping: {}", text(message)))
        }
        Event::RunStopping { code, message } => bad(format!("stopping: {code} {}", text(message))),
        Event::RunRested { status: RunStatus::AwaitingApproval, reason, question }
            if !run_id.is_empty() =>
        {
            warn(format!("paused: {}: {}", text(reason), approve(run_id, question.as_deref())))
        }
        Event::RunRested { reason, .. } => warn(format!("paused: {}", text(reason))),
        Event::RunCompleted { status, total_beads } => {
            format!("{GREEN}{}{RESET}: {total_beads} beads", status.as_str())
        }
        Event::RunFailed { code, message, .. } => bad(format!("failed: {code} {}", text(message))),
        Event::QuestionAsked(asked) => warn(format!("BLOCKED: {}", first_line(&asked.text))),
        Event::QuestionAnswered(answered) => {
            let answer = first_line(&answered.answer.describe());
            format!("Answer received: {answer} (by {})", text(&answered.by.to_string()))
        }
        daemon_events!()
        | dispatch_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => event.name().replace('_', " "),
    })
}

fn first_line(words: &str) -> String {
    clip(&text(words.trim().lines().next().unwrap_or_default()), 300)
}

/// Describes an event of the plan, a bead or maintenance.
fn describe_work(event: &Event, bead: &dyn Fn(&str) -> String) -> Option<String> {
    Some(match event {
        Event::SpecAmended(amended) => text(&amendment::describe(amended)),
        Event::PlanChangeRequested { by, text: words } => {
            warn(format!("{by} asks for another plan: {}", text(words)))
        }
        Event::SpecReviewed { findings } if findings.is_empty() => {
            "the review of the spec found nothing".into()
        }
        Event::SpecReviewed { findings } => {
            let all: Vec<_> = findings.iter().map(finding).collect();
            warn(format!("the review of the spec: {}", all.join("; ")))
        }
        Event::SpecFrozen { target_branch, base_commit, .. } => {
            format!("frozen; agents push to {target_branch}, from {}", clip(base_commit, 12))
        }
        Event::AcceptanceSealed { path, .. } if path.is_empty() => "no acceptance criteria".into(),
        Event::AcceptanceSealed { .. } => "the acceptance criteria are sealed".into(),
        Event::BeadsCreated { count, dependency_edges, .. } => {
            format!("{count} beads, {dependency_edges} dependencies")
        }
        Event::BeadAssigned { .. }
        | Event::BeadsAccepted {}
        | Event::BeadsReplanned { .. }
        | Event::Decomposed {} => return None,
        Event::BeadCompleted { bead_id, .. } => {
            format!("{GREEN}bead {} is done{RESET}", bead(bead_id))
        }
        Event::BeadRetried { bead_id, reason, .. } => {
            warn(format!("bead {} is retried: {}", bead(bead_id), text(reason)))
        }
        Event::BeadReopened { bead_id, by } => {
            format!("bead {} was reopened by {}", bead(bead_id), text(by))
        }
        Event::BeadBlocked { bead_id, reason, dependants, .. } => bad(format!(
            "bead {} is blocked: {} ({} beads depend on it)",
            bead(bead_id),
            text(reason),
            dependants.len()
        )),
        Event::OutsideClosed { bead_id, on } => {
            format!("{} is closed: bead {} no longer depends on it", bead(on), bead(bead_id))
        }
        Event::ObservationCreated { bead_id, created_by, .. } => {
            format!("{created_by} noted {} for the judge", bead(bead_id))
        }
        Event::MaintenanceStarted { maintenance, trigger_completed_count, .. } => {
            format!("{maintenance} after {trigger_completed_count} beads")
        }
        Event::PushUndone { agent, reason } => format!("agent {agent}: {reason}"),
        Event::MaintenanceCoalesced { completed_count } => {
            format!("maintenance after {completed_count} beads is already running")
        }
        Event::MaintenanceFinished { maintenance, status } => format!("{maintenance}: {status}"),
        run_progress_events!()
        | judge_events!()
        | publishing_events!()
        | daemon_events!()
        | dispatch_events!()
        | conversation_events!()
        | task_list_events!()
        | Event::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_a_bead_are_listed_in_order() {
        for (failures, stage, wanted) in [
            (0, Stage::Open, ""),
            (0, Stage::Done, ""),
            (0, Stage::Taken, ": attempt 1 runs"),
            (1, Stage::Done, ": attempt 1 failed, attempt 2 succeeded"),
            (3, Stage::Blocked, ": attempts 1 to 3 failed"),
        ] {
            assert_eq!(attempts(failures, stage), wanted);
        }
    }
}
