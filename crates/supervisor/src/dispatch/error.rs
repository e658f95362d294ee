//! The errors that reject a request.

use crate::ports::ledger::LedgerError;
use muleteer_model::config::ConfigError;
pub use muleteer_model::text::error_chain::chain;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;

pub(crate) fn located(error: ConfigError) -> WireError {
    WireError {
        code: error.code.into(),
        message: error.message,
        hint: error.hint,
        snippet: error.snippet,
        file: error.file,
        line: error.line.map(u64::from),
        column: error.column.map(u64::from),
        ..WireError::default()
    }
}

pub fn fault(code: impl Into<String>, message: &str, hint: &str) -> WireError {
    let hint = (!hint.is_empty()).then(|| hint.to_string());
    WireError { code: code.into(), message: message.into(), hint, ..WireError::default() }
}

/// Returns the error for a file that could not be written. A full disk is a state with its own
/// code. Other refusals of the system (permissions, descriptors, a read-only file system) are no
/// internal errors either.
pub fn unwritten(error: &muleteer_store::StoreError) -> WireError {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<std::io::Error>().is_some_and(muleteer_store::is_full) {
            return disk_full();
        }
        cause = error.source();
    }
    let file = Some(error.file().display().to_string());
    WireError { file, ..fault(error.code(), &chain(error), &error.hint()) }
}

/// Returns the error for a place of a repository to which nothing is written, because a link leads
/// elsewhere.
pub(crate) fn linked_away(error: &std::io::Error) -> WireError {
    fault(
        ErrorCode::Io,
        &error.to_string(),
        "the link came with the repository: look where it leads",
    )
}

pub fn disk_full() -> WireError {
    fault(
        ErrorCode::DiskFull,
        "the disk of the state directory is full: the daemon starts nothing new",
        "free disk space, then try again",
    )
}

pub fn internal(message: &str) -> WireError {
    fault(ErrorCode::Internal, message, "read the daemon's log")
}

/// Returns the error for a request whose events could not be appended.
pub(crate) fn unappended(error: &LedgerError) -> WireError {
    match error {
        LedgerError::Full => disk_full(),
        LedgerError::Ending => ending("the daemon ended before it could answer"),
        LedgerError::Refused { .. } | LedgerError::Again => internal(&error.to_string()),
    }
}

/// Returns the error for a request that the next daemon can carry out.
pub(crate) fn ending(message: &str) -> WireError {
    let hint = "try again: the next daemon answers, and repeats no action";
    fault(ErrorCode::DaemonEnding, message, hint)
}

/// Whether an error is a state that passes.
pub fn is_passing(error: &WireError) -> bool {
    [ErrorCode::DiskFull, ErrorCode::DaemonEnding, ErrorCode::Busy]
        .into_iter()
        .any(|code| error.code == code.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_store::StoreError;
    use std::io::{self, ErrorKind};

    #[test]
    fn a_quota_that_is_used_up_is_a_full_disk_too() {
        let codes = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::PermissionDenied]
            .map(|kind| {
                let source = io::Error::from(kind);
                unwritten(&StoreError::Io {
                    file: "/state/request.json".into(),
                    doing: "write",
                    source,
                })
                .code
            });
        assert_eq!(codes, ["E_DISK_FULL", "E_DISK_FULL", "E_STORE_IO"]);
    }
}
