//! The messages of the ledger.

use muleteer_model::event::{Entry, Record};
use ractor::RpcReplyPort;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Nothing was appended, and the append may be retried. This is a state, not a crash.
    #[error("the disk is full: the daemon starts nothing new until there is free space")]
    Full,
    /// This daemon appends nothing any more; whether this batch was appended is unknown.
    #[error("the daemon is stopping")]
    Ending,
    #[error("failed to write event `{id}`: {why}")]
    Refused { id: String, why: String },
    /// Another caller's entry was rejected with the whole group: append again.
    #[error("append again")]
    Again,
}

#[derive(Debug)]
pub enum LedgerMsg {
    /// Appends a batch, all or nothing, and answers with its records. Entries with an id that is
    /// already in the log are not repeated, and not in the answer.
    Append(Vec<Entry>, RpcReplyPort<Result<Vec<Record>, LedgerError>>),
    /// Writes the waiting events of supervisors.
    Drain,
}
