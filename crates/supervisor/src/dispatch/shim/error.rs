//! The errors of finding a shim and of talking to it.

use crate::ports::ledger::LedgerError;
use muleteer_shim::attach::AttachError;
use muleteer_shim::meta::MetaError;
use std::io;
use std::path::PathBuf;
use tokio::task::JoinError;

/// Why the state of a shim cannot be found out, or why it cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("failed to probe the agent's lock: {0}")]
    Probe(#[source] io::Error),
    #[error(transparent)]
    Meta(#[from] MetaError),
    #[error("the shim of an earlier attempt still holds {}", .lock.display())]
    Held { lock: PathBuf },
    /// The decision about a stuck shim could not be recorded.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    Spool(io::Error),
    #[error(transparent)]
    Task(#[from] JoinError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Port(io::Error),
    #[error("the shim does not answer")]
    Silent,
}
