//! The error of starting an agent.

use crate::dispatch::error::chain;
use crate::dispatch::saved::FileError;
use crate::ports::ledger::LedgerError;
use muleteer_backends::BackendError;
use muleteer_model::dispatch::Stop;
use muleteer_store::StoreError;
use muleteer_vcs::error::RepoError;
use std::io;
use tokio::task::JoinError;

/// Why an agent was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("not started: {0:?}")]
    Stopped(Stop),
    #[error(transparent)]
    Saved(#[from] FileError),
    /// The agent's clone cannot be made, or an incomplete one not be removed.
    #[error(transparent)]
    Clone(#[from] RepoError),
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("{}", chain(.0))]
    Write(#[from] StoreError),
    #[error(transparent)]
    Task(#[from] JoinError),
    /// A temporary failure of the machine (no space, no more processes).
    #[error(transparent)]
    Machine(#[from] io::Error),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl StartError {
    /// Whether a retry cannot help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Saved(_) | Self::Clone(_) | Self::Backend(_) | Self::Write(_) | Self::Task(_) => {
                true
            }
            Self::Stopped(_) | Self::Machine(_) | Self::Ledger(_) => false,
        }
    }
}
