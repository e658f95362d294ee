//! Why a git command, or another program, gave no result.

use crate::command::{complaint, is_distrust, no_room};
use std::ffi::OsStr;
use std::io;
use std::time::Duration;

/// The failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The program could not be started, or its output could not be read.
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("cannot run {program}: it prints more than {limit} bytes")]
    TooMuchOutput { program: String, limit: u64 },
    #[error("{program} has not ended in {} s and was killed", .limit.as_secs())]
    TimedOut { program: String, limit: Duration },
    /// It used no CPU time for this long.
    #[error("{program} has done nothing for {} s and was killed", .idle.as_secs())]
    Hung { program: String, idle: Duration },
    /// It ended with a failure. `complaint` is its stderr on one line.
    #[error("{}{complaint}", prefix(.purpose))]
    Failed { purpose: String, args: Vec<String>, complaint: String, meaning: Meaning },
    #[error("{purpose}: the stop of the run killed git")]
    RunStopped { purpose: String },
    #[error("{purpose}: git had not ended when the dispatch was killed")]
    DispatchKilled { purpose: String },
    #[error("git does not say where the objects are")]
    NoObjectFolder,
    #[error("git counts `{0}` commits")]
    NotACount(String),
}

/// The meaning of a complaint of git, where callers decide by it. git has no exit codes for these,
/// so its text (in English, by `LC_ALL=C`) is compared here and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The disk or a quota is full.
    DiskFull,
    /// There is no repository.
    NotARepository,
    /// The repository belongs to another user, and nobody has said that it is to be trusted.
    Distrusted,
    /// A branch cannot move to the commit, so a retry would fail too.
    BranchTaken,
    Other,
}

impl Meaning {
    fn of(complaint: &str) -> Self {
        const TAKEN: [&str; 4] = [
            "non-fast-forward",
            "refusing to fetch into",
            "cannot create '",
            "exists; cannot create",
        ];
        if no_room(complaint) {
            Self::DiskFull
        } else if is_distrust(complaint.as_bytes()) {
            Self::Distrusted
        } else if complaint.contains("not a git repository") {
            Self::NotARepository
        } else if TAKEN.iter().any(|part| complaint.contains(part)) {
            Self::BranchTaken
        } else {
            Self::Other
        }
    }
}

impl CommandError {
    /// Returns the error of a command that ended with a failure.
    pub fn failed(
        purpose: &str,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        stderr: &[u8],
    ) -> Self {
        let args = args.into_iter().map(|arg| arg.as_ref().to_string_lossy().into_owned());
        let complaint = complaint(stderr);
        let meaning = Meaning::of(&complaint);
        Self::Failed { purpose: purpose.into(), args: args.collect(), complaint, meaning }
    }

    /// Returns what git's complaint means, if it ended with a failure.
    pub(crate) fn meaning(&self) -> Option<Meaning> {
        match self {
            Self::Failed { meaning, .. } => Some(*meaning),
            _ => None,
        }
    }

    /// Whether it was killed because it took too long. A retry would take as long.
    pub(crate) fn was_killed(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Hung { .. })
    }

    /// Whether the disk or a quota was full.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Run { source, .. } => is_full(source),
            _ => self.meaning() == Some(Meaning::DiskFull),
        }
    }
}

/// Whether an operation failed because the disk or a quota is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Some callers name the purpose themselves.
fn prefix(purpose: &str) -> String {
    if purpose.is_empty() { String::new() } else { format!("{purpose}: ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn failed_command_reports_its_purpose_and_complaint() {
        let args = ["fetch", "--quiet"];
        let error = CommandError::failed("cannot fetch", args, b"fatal: no\nhint: look\n");
        assert_eq!(error.to_string(), "cannot fetch: fatal: no");
        assert!(
            matches!(&error, CommandError::Failed { args: known, .. } if *known == args),
            "{error:?}"
        );
        assert_eq!(CommandError::failed("", args, b"fatal: no\n").to_string(), "fatal: no");
    }

    #[test]
    fn complaints_of_git_have_their_meaning() {
        for (complaint, meaning) in [
            ("error: file write error: No space left on device", Meaning::DiskFull),
            (
                "fatal: not a git repository (or any of the parent directories)",
                Meaning::NotARepository,
            ),
            ("fatal: detected dubious ownership in repository at '/x'", Meaning::Distrusted),
            (" ! [rejected] a -> b (non-fast-forward)", Meaning::BranchTaken),
            ("error: cannot lock ref 'a/b': 'a' exists; cannot create 'a/b'", Meaning::BranchTaken),
            ("fatal: refusing to fetch into branch 'a' checked out at '/x'", Meaning::BranchTaken),
            ("fatal: bad object HEAD", Meaning::Other),
        ] {
            let error = CommandError::failed("it", [""], complaint.as_bytes());
            assert_eq!(error.meaning(), Some(meaning), "{complaint}");
            assert_eq!(error.is_disk_full(), meaning == Meaning::DiskFull, "{complaint}");
        }
    }

    #[test]
    fn full_disk_of_a_command_that_did_not_run_is_detected() {
        for errno in [rustix::io::Errno::NOSPC, rustix::io::Errno::DQUOT] {
            let error = CommandError::Run { program: "git".into(), source: errno.into() };
            assert!(error.is_disk_full() && error.source().is_some(), "{error}");
        }
        let limit = Duration::from_secs(20);
        let error = CommandError::Hung { program: "git".into(), idle: limit };
        assert!(!error.is_disk_full() && error.was_killed());
        assert_eq!(error.to_string(), "git has done nothing for 20 s and was killed");
    }
}
