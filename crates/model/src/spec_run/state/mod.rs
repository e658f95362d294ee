//! The state of a run, folded from its events.

mod fold;
mod phase;
mod records;

pub use phase::{Decomposition, JudgeStage, PhaseState, RunStanding, Stopping};
pub use records::{
    Blocked, Frozen, Iteration, Job, Maintenance, MaintenanceRun, Observations, Pause, Publication,
    Pushed, Runtime, Sealed, Slowdown, Stage, TaskState, Trials, Versions,
};
pub(super) use records::{STOPPED, status_of};

use crate::beads::schedule::Schedule;
use crate::event::trace_context::Context;
use crate::event::trace_ids;
use crate::spec_run::event::{
    JudgeFinished, Phase, Purpose, RunSettings, RunStarted, RunStatus, SpecFinding,
};
use crate::spec_run::judge::enforced::{CLI_CHANGED, Enforced};
use crate::spec_run::judge::{JudgeResult, Observation};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub started: RunStarted,
    pub settings: RunSettings,
    /// How many times the run has been resumed.
    pub sitting: u32,
    /// The trace context of the last start or resume.
    pub trace: Option<String>,
    pub started_at: Timestamp,
    pub updated_at: Timestamp,
    pub seq: u64,
    /// The record by which the run last ended or came to rest; 0 before.
    pub end_seq: u64,
    pub runtime: Runtime,
    pub phase: PhaseState,
    pub standing: RunStanding,
    pub versions: Versions,
    /// The findings of the agent that reviewed the spec; `None` before.
    pub review: Option<Vec<SpecFinding>>,
    pub frozen: Option<Frozen>,
    pub sealed: Option<Sealed>,
    /// A person has approved the beads, possibly before they existed.
    pub approved: bool,
    /// A person has approved the publication of the result.
    pub merge_approved: bool,
    pub iteration: u32,
    pub iterations: Vec<Iteration>,
    /// The beads of the run, of all iterations.
    pub beads: BTreeMap<String, TaskState>,
    /// The ids in order of appearance; the schedule is built from it.
    pub order: Vec<String>,
    pub schedule: Schedule,
    /// Beads that the last verdict created and no iteration has planned. No iteration may be left.
    pub left_open: usize,
    /// Agents that were started and have not ended, by their number.
    pub jobs: BTreeMap<u32, Job>,
    /// Agents started so far; part of the ids of their dispatches.
    pub spawns: u32,
    pub trials: BTreeMap<Purpose, Trials>,
    pub maintenance: Maintenance,
    pub observations: Observations,
    /// How many times judging has begun.
    pub judgings: u32,
    pub verdicts: Vec<JudgeFinished>,
    /// The program of a judge's CLI was changed after the run began.
    pub judge_cli_changed: bool,
    pub slowdown: Slowdown,
    pub cost_usd: f64,
    pub publication: Publication,
}

impl Run {
    pub fn id(&self) -> &str {
        &self.started.run_id
    }

    /// Returns the random part of the run's id.
    pub fn hash(&self) -> &str {
        self.started.run_id.rsplit('-').next().unwrap_or_default()
    }

    /// Returns what the kernel enforces about the judge.
    pub fn enforced(&self) -> Enforced {
        let mut settings = self.settings.clone();
        if self.judge_cli_changed {
            let known = std::mem::take(&mut settings.exposed);
            let reasons = [known.as_str(), CLI_CHANGED].into_iter().filter(|one| !one.is_empty());
            settings.exposed = reasons.collect::<Vec<_>>().join("; ");
        }
        Enforced::of(&settings)
    }

    pub fn status(&self) -> RunStatus {
        match &self.standing {
            RunStanding::Running | RunStanding::Stopping(_) => RunStatus::InProgress,
            RunStanding::Resting { status, .. } => *status,
            RunStanding::Ended { outcome, .. } => *outcome,
        }
    }

    /// Returns whether the run has neither ended nor rests.
    pub fn is_live(&self) -> bool {
        matches!(self.standing, RunStanding::Running | RunStanding::Stopping(_))
    }

    /// Returns the decision to end or rest that waits for the last agent.
    pub fn stopping(&self) -> Option<&Stopping> {
        match &self.standing {
            RunStanding::Stopping(stopping) => Some(stopping),
            RunStanding::Running | RunStanding::Resting { .. } | RunStanding::Ended { .. } => None,
        }
    }

    /// Returns why the run rests; `None` if it does not rest.
    pub fn rest_reason(&self) -> Option<&str> {
        match &self.standing {
            RunStanding::Resting { reason, .. } => Some(reason),
            RunStanding::Running | RunStanding::Stopping(_) | RunStanding::Ended { .. } => None,
        }
    }

    /// Returns the question whose answer continues the resting run; `None` if there is none.
    pub fn question(&self) -> Option<&str> {
        match &self.standing {
            RunStanding::Resting { question, .. } => question.as_deref(),
            RunStanding::Running | RunStanding::Stopping(_) | RunStanding::Ended { .. } => None,
        }
    }

    /// Returns whether a person has to approve the publication of the result.
    pub fn awaits_merge(&self) -> bool {
        self.phase == PhaseState::Finish && self.settings.review_merge && !self.merge_approved
    }

    /// Returns how the run ended; `None` if it has not ended.
    pub fn outcome(&self) -> Option<RunStatus> {
        match &self.standing {
            RunStanding::Ended { outcome, .. } => Some(*outcome),
            RunStanding::Running | RunStanding::Stopping(_) | RunStanding::Resting { .. } => None,
        }
    }

    /// Returns the error that ended the run.
    pub fn error(&self) -> Option<&Stopping> {
        match &self.standing {
            RunStanding::Ended { error, .. } => error.as_ref(),
            RunStanding::Running | RunStanding::Stopping(_) | RunStanding::Resting { .. } => None,
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase.name()
    }

    /// Returns the progress of the judge; `None` outside its phase.
    pub fn judge(&self) -> Option<&JudgeStage> {
        match &self.phase {
            PhaseState::Judge(stage) => Some(stage),
            PhaseState::Freeze
            | PhaseState::Decompose(_)
            | PhaseState::Implement
            | PhaseState::Finish
            | PhaseState::Unknown => None,
        }
    }

    /// Returns whether the spec is not frozen because a review of it is still to come, or because a
    /// person has to approve its findings.
    pub fn awaits_review(&self) -> bool {
        let open = match &self.review {
            None => true,
            Some(findings) => !findings.is_empty() && !self.settings.review_approved,
        };
        self.is_unfrozen() && self.settings.review_spec && open
    }

    /// Returns whether the current version of the spec is still to be frozen.
    pub fn is_unfrozen(&self) -> bool {
        self.frozen.is_none() || self.versions.unfrozen
    }

    /// Returns whether the beads of an earlier version of the spec are accepted, and those of the
    /// current one are not.
    pub fn is_amending(&self) -> bool {
        self.versions.planned.is_some_and(|planned| planned < self.versions.current)
    }

    /// Returns whether an agent plans the beads. Otherwise a label selects existing ones.
    pub fn plans_beads(&self) -> bool {
        self.started.bead_label.is_none() || self.is_amending()
    }

    /// Returns whether the beads are the run's. Until then they may be staged.
    pub fn has_accepted_beads(&self) -> bool {
        match &self.phase {
            PhaseState::Freeze => false,
            PhaseState::Decompose(progress) => {
                matches!(progress, Decomposition::Accepted { .. })
            }
            PhaseState::Implement | PhaseState::Judge(_) | PhaseState::Finish => true,
            PhaseState::Unknown => !self.beads.is_empty(),
        }
    }

    /// Returns whether the run has still to read its beads, or reads them again.
    pub fn awaits_beads(&self) -> bool {
        match &self.phase {
            PhaseState::Decompose(Decomposition::Pending { .. }) => true,
            PhaseState::Decompose(Decomposition::Accepted { reread }) => *reread,
            PhaseState::Decompose(Decomposition::Planned)
            | PhaseState::Freeze
            | PhaseState::Implement
            | PhaseState::Judge(_)
            | PhaseState::Finish
            | PhaseState::Unknown => false,
        }
    }

    /// Returns whether the run was resumed before any bead was begun, so that the beads are read
    /// again.
    pub fn rereads_beads(&self) -> bool {
        self.phase == PhaseState::Decompose(Decomposition::Accepted { reread: true })
    }

    /// Returns the trace context of the last start or resume; `None` if there was none.
    pub fn trace_context(&self) -> Option<Context> {
        Context::parse(self.trace.as_deref()?)
    }

    /// Returns the trace context of a dispatch for this bead, or for no bead (see
    /// `muleteer_telemetry::run`).
    pub fn context(&self, bead: Option<&str>) -> Option<Context> {
        let (run, sitting, iteration) = (self.id(), self.sitting, self.iteration);
        let span = match bead {
            Some(bead) => trace_ids::bead(run, sitting, iteration, bead),
            None => trace_ids::iteration(run, sitting, iteration),
        };
        Some(self.trace_context()?.below(span))
    }

    pub fn target(&self) -> String {
        match &self.frozen {
            Some(frozen) => frozen.target_branch.clone(),
            None if self.started.target == "auto" => format!("muleteer/{}", self.id()),
            None => self.started.target.clone(),
        }
    }

    /// Returns the number of beads of the run, including the unplanned ones of the last verdict.
    pub fn total(&self) -> usize {
        self.beads.len() + self.left_open
    }

    pub fn count(&self, stage: Stage) -> usize {
        self.beads.values().filter(|task| task.stage == stage).count()
    }

    /// Returns the number of beads that were completed in this iteration.
    pub fn completed_now(&self) -> u32 {
        self.iterations.last().map_or(0, |iteration| iteration.completed)
    }

    /// Returns the number of beads that were completed in all iterations.
    pub fn completed(&self) -> u32 {
        self.iterations.iter().map(|iteration| iteration.completed).sum()
    }

    /// Returns the number of coding agents, which `max_concurrency` limits.
    pub fn coding(&self) -> usize {
        self.jobs.values().filter(|job| job.start.purpose == Purpose::Implement).count()
    }

    /// Returns how many canary beads must still pass, one at a time, before several agents start.
    /// Only the first iteration has them: later ones follow work that passed.
    pub fn canaries_left(&self) -> u32 {
        if self.iteration > 1 {
            return 0;
        }
        self.settings.canary.saturating_sub(self.completed_now())
    }

    pub fn job_of(&self, purpose: Purpose) -> Option<&Job> {
        self.jobs.values().find(|job| job.start.purpose == purpose)
    }

    pub fn job_by_dispatch(&self, dispatch: &str) -> Option<&Job> {
        self.jobs.values().find(|job| job.start.dispatch == dispatch)
    }

    /// Returns why the last agent of each purpose failed, in the order of the pipeline.
    pub fn complaints(&self) -> impl Iterator<Item = (Purpose, &str)> {
        let all = self.trials.iter().map(|(purpose, trials)| (*purpose, &*trials.complaint));
        all.filter(|(_, complaint)| !complaint.is_empty())
    }

    /// Returns why the last agent of this purpose failed; empty if it did not.
    pub fn complaint(&self, purpose: Purpose) -> &str {
        self.trials.get(&purpose).map_or("", |trials| &trials.complaint)
    }

    /// Returns the time before which no agent starts, because of a rate limit.
    pub fn not_before(&self) -> Option<Timestamp> {
        self.slowdown.pause.as_ref().map(|pause| pause.until)
    }

    /// Returns how long the run has run, without its rests.
    pub fn ran_for_ms(&self, now: Timestamp) -> i64 {
        let now = if self.is_live() {
            (now.as_millisecond() - self.runtime.since.as_millisecond()).max(0)
        } else {
            0
        };
        self.runtime.before_ms + now
    }

    /// Returns the lowest agent number that is free.
    pub fn next_agent(&self) -> u32 {
        (1..).find(|number| !self.jobs.contains_key(number)).unwrap_or(1)
    }

    /// Returns the open beads with their chains of blockers.
    pub fn stuck(&self) -> Vec<Blocked> {
        let mut found = vec![];
        for task in self.beads.values().filter(|task| task.stage == Stage::Open) {
            let mut chain = vec![task.planned.id.clone()];
            let mut at = task;
            // Follow the first open blocker. The graph has no cycle, but the fold does not rely on
            // it.
            while chain.len() <= self.beads.len() {
                if let Some(outside) = at.outside.iter().next() {
                    chain.push(outside.clone());
                    break;
                }
                let next = at
                    .planned
                    .depends_on
                    .iter()
                    .filter_map(|on| self.beads.get(on))
                    .find(|on| on.stage != Stage::Done);
                let Some(next) = next else { break };
                chain.push(next.planned.id.clone());
                at = next;
            }
            found.push(Blocked { bead: task.planned.id.clone(), chain });
        }
        found
    }

    /// Returns all unfinished beads that depend on a bead, directly or not.
    pub fn dependants(&self, id: &str) -> Vec<String> {
        let graph = self.schedule.graph();
        let below = graph.index(id).map(|at| graph.downstream(at)).unwrap_or_default();
        let ids = below.into_iter().map(|at| graph.id(at).to_string());
        ids.filter(|id| self.beads.get(id).is_some_and(|task| task.stage != Stage::Done))
            .collect()
    }

    /// Returns the observations on which a verdict decides, the first decision for each. Only
    /// pending observations and repeated decisions count, never a bead that is worked on.
    pub fn triaged<'a>(&self, result: &'a JudgeResult) -> Vec<&'a Observation> {
        let mut said = BTreeSet::new();
        let own = |one: &Observation| {
            let id = &one.bead_id;
            let again = match one.action.as_str() {
                "promote" => self.observations.promoted.contains(id),
                _ => self.observations.dismissed.contains(id),
            };
            !self.beads.contains_key(id) && (self.observations.pending.contains(id) || again)
        };
        result.observations.iter().filter(|one| said.insert(&one.bead_id) && own(one)).collect()
    }
}
