//! The names that earlier events of a stream gave to beads, agents and clones.

use crate::render::safe;
use muleteer_model::beads::named;
use muleteer_model::event::{Entry, Event};
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::report::names::MAINTENANCE;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Default)]
pub(super) struct Names {
    /// Bead ids with their titles.
    pub titles: HashMap<String, String>,
    /// The attempt of each agent of a run, counted from 1.
    pub attempts: HashMap<u32, u32>,
    /// The dispatches that have a clone of their own.
    pub clones: HashSet<String>,
    /// The id of the run whose events these are.
    pub run: String,
}

impl Names {
    pub fn take(&mut self, entry: &Entry) {
        match &entry.event {
            Event::BeadsCreated { beads, .. } | Event::IterationStarted { beads, .. } => {
                for bead in beads {
                    self.titles.insert(bead.id.clone(), bead.title.clone());
                }
            }
            Event::RunStarted(started) => self.run.clone_from(&started.run_id),
            Event::RunResumed { run_id, .. } => self.run.clone_from(run_id),
            Event::ObservationCreated { bead_id, title, .. } if !title.is_empty() => {
                self.titles.insert(bead_id.clone(), title.clone());
            }
            Event::MaintenanceStarted { bead_id, .. } => {
                self.titles.insert(bead_id.clone(), MAINTENANCE.into());
            }
            Event::VerdictApplied { triage, .. } => {
                let beads = triage.beads.iter();
                self.titles.extend(beads.map(|bead| (bead.id.clone(), bead.title.clone())));
            }
            Event::AgentStarted(start) => {
                self.attempts.insert(start.agent, start.attempt + 1);
            }
            Event::WorktreeCreated { .. } => {
                self.clones.extend(entry.dispatch_id.as_ref().map(ToString::to_string));
            }
            _ => {}
        }
    }

    /// Describes the part of an agent in a run: `implement "Parse dates" (xk9e8v2e)`.
    pub fn job(&self, purpose: Purpose, bead: Option<&str>) -> String {
        match bead {
            Some(id) => format!("{} {}", purpose.as_str(), self.bead(id)),
            None => purpose.as_str().into(),
        }
    }

    /// Describes a bead: `"Parse dates" (xk9e8v2e)`.
    pub fn bead(&self, id: &str) -> String {
        safe(&named(id, self.titles.get(id).map(String::as_str)))
    }
}
