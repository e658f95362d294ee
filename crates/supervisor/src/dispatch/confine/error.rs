//! The errors of confining an agent.

use crate::dispatch::error::chain;
use muleteer_store::StoreError;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use tokio::task::JoinError;

/// Why agents cannot be confined here, or the plan of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error("{}", chain(.0))]
    Write(#[source] StoreError),
    #[error(transparent)]
    Task(#[from] JoinError),
    #[error(transparent)]
    Run(#[from] io::Error),
    /// The program that makes the sandbox says which step failed, and why.
    #[error("{}", refusal(*.status, .stderr))]
    Refused { status: ExitStatus, stderr: String },
    #[error("{}: {source}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{}: {source}", .file.display())]
    Parse { file: PathBuf, source: serde_json::Error },
}

/// Never empty: an empty reason would say that agents are confined.
fn refusal(status: ExitStatus, stderr: &str) -> String {
    match stderr.trim().trim_start_matches("muleteer: sandbox:").trim_start() {
        "" => format!("the program that makes the sandbox ended without a message ({status})"),
        reason => reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn refused_sandbox_always_has_a_reason() {
        let shown = |stderr: &str| {
            let status = ExitStatus::from_raw(9);
            ConfineError::Refused { status, stderr: stderr.into() }.to_string()
        };
        assert_eq!(
            shown("muleteer: sandbox: cannot mount /proc: EPERM\n"),
            "cannot mount /proc: EPERM"
        );
        for silent in ["", "\n", "muleteer: sandbox: "] {
            assert!(shown(silent).contains("signal: 9"), "{silent:?}: {}", shown(silent));
        }
    }
}
