//! The errors of the telemetry export.

use crate::daemon::owned_task::Panicked;
use muleteer_store::StoreError;
use opentelemetry_otlp::ExporterBuildError;
use std::io;

/// Why the export cannot continue, or a log cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Panicked(#[from] Panicked),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the export thread died")]
    ThreadDied,
    #[error("it is not a file")]
    NoFile,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Mark(#[from] serde_json::Error),
    #[error(transparent)]
    Exporter(#[from] ExporterBuildError),
}
