//! The position up to which each log has been exported.

use crate::daemon::context::Daemon;
use crate::spec_run::host::Places;
use crate::telemetry::error::ExportError;
use muleteer_model::event::Event;
use muleteer_telemetry::run::metrics::RunSums;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The position up to which a log has been exported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    pub v: u16,
    pub seq: u64,
    /// The number of spans that were dropped since the log began.
    pub dropped: u64,
    /// Distinguishes the metrics of this state directory from another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// For a run's log: no more records will come, unless the run is resumed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
    /// For a run's log that is done: the metrics of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<RunSums>,
}

impl Mark {
    pub const FILE: &'static str = "telemetry.json";

    pub fn at(seq: u64) -> Self {
        Self { v: 1, seq, dropped: 0, instance: None, done: false, sums: None }
    }

    pub fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }

    pub fn write(&self, file: &Path) -> Result<(), ExportError> {
        let bytes = serde_json::to_vec(self)?;
        Ok(muleteer_store::atomic::write_atomic(file, &bytes, 0o600)?)
    }
}

/// Records durably that this run's log must be exported. The caller calls it before the run starts
/// or resumes: otherwise the run could end, and the daemon die, before the export reads the log. A
/// failure is recorded as a fault and stops no run. Blocks briefly.
pub fn expect(daemon: &Daemon, run_id: &str, places: &Places) {
    if daemon.settings.telemetry.is_none() {
        return;
    }
    // The export holds this lock too when it checks, before it marks a run as done, whether the run
    // has resumed.
    let _begun = daemon.runs.begun();
    let file = places.private.join(Mark::FILE);
    let before = Mark::read(&file);
    if before.as_ref().is_some_and(|mark| !mark.done) {
        return;
    }
    let mark = Mark { done: false, ..before.unwrap_or_else(|| Mark::at(0)) };
    if let Err(error) = mark.write(&file) {
        let (what, message) = (format!("telemetry of {run_id}"), error.to_string());
        daemon.note(Event::Fault { what, message });
    }
}
