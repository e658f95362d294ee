//! The errors that end the link to a shim; its supervisor restarts it.

use crate::daemon::owned_task::Panicked;
use crate::dispatch::error::chain;
use crate::dispatch::shim::error::ShimError;
use crate::ports::ledger::LedgerError;
use muleteer_backends::BackendError;
use muleteer_shim::spool::ReadError;

/// Why a link cannot serve its shim.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error(transparent)]
    Panicked(#[from] Panicked),
    #[error("the ledger no longer has the dispatch")]
    NoDispatch,
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error(transparent)]
    Shim(#[from] ShimError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("{}", chain(.0))]
    Spool(#[from] ReadError),
    #[error("the life actor is missing")]
    NoLife,
    #[error("the life actor rejected the output: {answer}")]
    OutputRejected { answer: String },
}
