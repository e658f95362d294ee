//! Spans of a spec run, above those of its dispatches.
//!
//! ```text
//! muleteer run               the CLI command
//! └─ run                     from a start or a resume until the run rests or ends
//!    └─ iteration
//!       ├─ dispatch …        agents without a bead: criteria, plan, judge
//!       ├─ bead              from its first agent to its end; retries are its events
//!       │  └─ dispatch …
//!       └─ maintenance
//!          └─ dispatch …
//! ```
//!
//! [`Run::context`] returns the trace context of a dispatch, which its agent receives before any of
//! these spans has ended.

pub mod metrics;

use crate::trace::{Span, Status};
use jiff::Timestamp;
use muleteer_model::event::trace_context::Context;
use muleteer_model::event::trace_ids;
use muleteer_model::event::{Event, Record};
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::RunStatus;
use muleteer_model::{daemon_log_events, planning_events};
use serde_json::json;
use std::collections::BTreeMap;

/// Folds the records of one run's log into spans. Each span is returned once, when it has ended.
#[derive(Debug, Default)]
pub struct RunTracer {
    run: Option<Run>,
    sitting: Option<Span>,
    iteration: Option<Span>,
    /// By bead, including those of maintenance.
    beads: BTreeMap<String, Span>,
}

impl RunTracer {
    /// Returns the spans that this record ends. A run without a trace context makes none.
    pub fn apply(&mut self, record: &Record) -> Vec<Span> {
        let at = record.ts;
        let Some(run) = &mut self.run else {
            self.run = Run::begin(record);
            self.sit_down(at);
            return vec![];
        };
        run.apply(record);
        let mut done = vec![];
        match &record.entry.event {
            Event::RunResumed { .. } => {
                self.get_up(at, Status::Unset, &mut done);
                self.sit_down(at);
            }
            Event::PhaseChanged { phase } => {
                self.note("phase", at, vec![("muleteer.phase", json!(phase.as_str()))])
            }
            Event::RunApproved { by } => {
                self.note("approved", at, vec![("muleteer.by", json!(by))])
            }
            Event::PlanChangeRequested { by, .. } => {
                self.note("plan_change_requested", at, vec![("muleteer.by", json!(by))])
            }
            Event::PoolSlowed { .. } => self.note("slowed", at, vec![]),
            Event::PrCreated { .. } => self.note("pr_created", at, vec![]),
            Event::IterationStarted { .. } => {
                self.end_iteration(at, Status::Ok, &mut done);
                self.begin_iteration(at);
            }
            Event::BeadAssigned { bead_id, .. } => self.begin_bead("bead", bead_id, at),
            Event::BeadRetried { bead_id, attempt, counted, .. } => {
                if let Some(bead) = self.beads.get_mut(bead_id) {
                    let counted = json!(counted);
                    bead.note(
                        "retry",
                        at,
                        vec![("muleteer.attempt", json!(attempt)), ("muleteer.counted", counted)],
                    );
                }
            }
            Event::BeadCompleted { bead_id, by, no_change, commits } => {
                if let Some(bead) = self.beads.remove(bead_id) {
                    let bead = bead.with([
                        ("muleteer.by", json!(by)),
                        ("muleteer.no_change", json!(no_change)),
                        ("muleteer.commits", json!(commits)),
                    ]);
                    done.push(bead.ended(at, Status::Ok));
                }
            }
            Event::BeadBlocked { bead_id, .. } => {
                done.extend(self.end_bead(bead_id, at, Status::Error("blocked".into())));
            }
            Event::MaintenanceStarted { bead_id, .. } => {
                self.begin_bead("maintenance", bead_id, at)
            }
            Event::MaintenanceFinished { maintenance, status } => {
                done.extend(self.end_maintenance(maintenance, at, status));
            }
            Event::JudgeFinished(judged) => {
                let verdict = json!(judged.verdict.as_str());
                let beads = json!(judged.new_beads);
                if let Some(iteration) = &mut self.iteration {
                    let attributes =
                        vec![("muleteer.verdict", verdict), ("muleteer.new_beads", beads)];
                    iteration.note("judged", at, attributes);
                }
            }
            Event::RunRested { .. } => self.get_up(at, Status::Unset, &mut done),
            Event::RunCompleted { status, .. } => {
                let outcome = match status {
                    RunStatus::Completed => Status::Ok,
                    other => Status::Error(other.as_str().into()),
                };
                self.get_up(at, outcome, &mut done);
            }
            Event::RunFailed { code, .. } => {
                self.get_up(at, Status::Error(code.clone()), &mut done)
            }
            Event::RunStarted { .. }
            | Event::RunStopping { .. }
            | Event::AgentStarted { .. }
            | Event::AgentFinished { .. }
            | Event::AgentRetried { .. }
            | Event::BeadReopened { .. }
            | Event::OutsideClosed { .. }
            | Event::ObservationCreated { .. }
            | Event::PushUndone { .. }
            | Event::MaintenanceCoalesced { .. }
            | Event::JudgeStarted { .. }
            | Event::JudgeReasoned { .. }
            | Event::VerdictApplied { .. }
            | Event::BranchPublished { .. }
            | Event::BranchPushed { .. }
            | Event::RunWorkKept { .. } => {}
            planning_events!() | daemon_log_events!() | Event::Unknown => {}
        }
        done
    }

    /// Returns the number of unfinished spans.
    pub fn open(&self) -> usize {
        [&self.sitting, &self.iteration].into_iter().flatten().count() + self.beads.len()
    }

    fn sit_down(&mut self, at: Timestamp) {
        let Some((run, context)) =
            self.run.as_ref().and_then(|run| Some((run, run.trace_context()?)))
        else {
            return;
        };
        if !context.sampled {
            return;
        }
        let span = Span::new(context, trace_ids::run(run.id(), run.sitting), "run".into(), at)
            .with([
                ("muleteer.run.id", json!(run.id())),
                ("muleteer.project", json!(run.started.repo)),
                ("muleteer.spec", json!(run.started.spec)),
                ("muleteer.backend", json!(run.settings.backend)),
                ("muleteer.sitting", json!(run.sitting)),
            ]);
        self.sitting = Some(span);
        self.begin_iteration(at);
    }

    fn begin_iteration(&mut self, at: Timestamp) {
        let (Some(run), Some(sitting)) = (&self.run, &self.sitting) else { return };
        let id = trace_ids::iteration(run.id(), run.sitting, run.iteration);
        let span = Span::new(within(sitting), id, "iteration".into(), at).with([
            ("muleteer.run.id", json!(run.id())),
            ("muleteer.iteration", json!(run.iteration)),
        ]);
        self.iteration = Some(span);
    }

    /// Begins the span of a bead. A retry continues the existing span.
    fn begin_bead(&mut self, what: &str, bead: &str, at: Timestamp) {
        let (Some(run), Some(iteration)) = (&self.run, &self.iteration) else { return };
        let id = trace_ids::bead(run.id(), run.sitting, run.iteration, bead);
        self.beads.entry(bead.to_string()).or_insert_with(|| {
            Span::new(within(iteration), id, what.into(), at)
                .with([("muleteer.run.id", json!(run.id())), ("muleteer.bead.id", json!(bead))])
        });
    }

    /// Ends the span of a bead. Returns `None` if it has none.
    fn end_bead(&mut self, bead: &str, at: Timestamp, status: Status) -> Option<Span> {
        Some(self.beads.remove(bead)?.ended(at, status))
    }

    /// Ends the span of maintenance by its id.
    fn end_maintenance(&mut self, id: &str, at: Timestamp, status: &str) -> Option<Span> {
        let run = self.run.as_ref()?;
        let bead = run.maintenance.runs.iter().find(|one| one.id == id)?.bead_id.clone();
        let outcome =
            if status == "success" { Status::Ok } else { Status::Error(status.to_string()) };
        self.end_bead(&bead, at, outcome)
    }

    fn end_iteration(&mut self, at: Timestamp, status: Status, done: &mut Vec<Span>) {
        done.extend(std::mem::take(&mut self.beads).into_values().map(|bead| bead.cut_short(at)));
        done.extend(self.iteration.take().map(|span| span.ended(at, status)));
    }

    fn get_up(&mut self, at: Timestamp, status: Status, done: &mut Vec<Span>) {
        // The iteration gets the status of the run.
        self.end_iteration(at, status.clone(), done);
        let (Some(run), Some(sitting)) = (&self.run, self.sitting.take()) else { return };
        let span = sitting.with([
            ("muleteer.state", json!(run.status().as_str())),
            ("muleteer.iterations", json!(run.iteration)),
            ("muleteer.beads", json!(run.beads.len())),
            ("muleteer.cost_usd", json!(run.cost_usd)),
        ]);
        done.push(span.ended(at, status));
    }

    fn note(
        &mut self,
        name: &'static str,
        at: Timestamp,
        attributes: Vec<(&'static str, serde_json::Value)>,
    ) {
        if let Some(sitting) = &mut self.sitting {
            sitting.note(name, at, attributes);
        }
    }
}

fn within(span: &Span) -> Context {
    Context { trace: span.trace, span: span.id, sampled: true }
}

#[cfg(test)]
mod tests;
