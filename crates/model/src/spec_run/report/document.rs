//! The document of `run report --json`.

use crate::spec_run::checkpoint::{Document, LogIteration, document_at, run_log};
use crate::spec_run::report::status::Standing;
use crate::spec_run::state::{Run, Stage};
use serde::Serialize;

/// The document of `run report --json`: the history of a run and its status.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    #[serde(flatten)]
    pub document: Document,
    pub iterations: Vec<LogIteration>,
    pub bead_list: Vec<ReportBead>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportBead {
    pub id: String,
    pub title: String,
    pub status: &'static str,
    pub iteration: u32,
    pub failed_attempts: u32,
}

pub fn report(run: &Run, standing: &Standing) -> Report {
    let beads = run.order.iter().filter_map(|id| run.beads.get(id)).map(|task| ReportBead {
        id: task.planned.id.clone(),
        title: task.planned.title.clone(),
        status: match task.stage {
            Stage::Open => "open",
            Stage::Taken => "in_progress",
            Stage::Done => "closed",
            Stage::Blocked => "blocked",
        },
        iteration: task.iteration,
        failed_attempts: task.failures,
    });
    Report {
        document: document_at(run, standing),
        iterations: run_log(run).iterations,
        bead_list: beads.collect(),
    }
}
