//! How far each log has been exported.

use crate::daemon::context::Daemon;
use crate::spec_run::host::Places;
use muleteer_model::event::Event;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// How far a log has been exported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mark {
    pub v: u16,
    pub seq: u64,
    /// Spans dropped since the log began.
    pub dropped: u64,
    /// Tells this state directory's figures from another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Of a run's log: nothing more is to come, unless it is gone on with.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
}

impl Mark {
    pub const FILE: &'static str = "telemetry.json";

    pub fn at(seq: u64) -> Self {
        Self { v: 1, seq, dropped: 0, instance: None, done: false }
    }

    pub fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }

    pub fn write(&self, file: &Path) -> Result<(), String> {
        let bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        muleteer_store::atomic::write_atomic(file, &bytes, 0o600).map_err(|error| error.to_string())
    }
}

/// Says durably that this run's log is to be exported. Before the run begins or is gone on with: it
/// may be over, and this daemon dead, before the export comes to look. Trouble with it is noted,
/// and stops no run. Blocking, briefly.
pub fn expect(daemon: &Daemon, run_id: &str, places: &Places) {
    if daemon.telemetry.is_none() {
        return;
    }
    // Whoever says that it is done looks, with this held, whether it is gone on with.
    let _begun = daemon.runs.begun();
    let file = places.private.join(Mark::FILE);
    let before = Mark::read(&file);
    if before.as_ref().is_some_and(|mark| !mark.done) {
        return;
    }
    let mark = Mark { done: false, ..before.unwrap_or_else(|| Mark::at(0)) };
    if let Err(message) = mark.write(&file) {
        daemon.note(Event::Fault { what: format!("telemetry of {run_id}"), message });
    }
}
