//! The errors of this crate.
//!
//! [`GitError`] is for a person's working directory, where task lists work. [`RepoError`] is for
//! the repositories of dispatches and runs: a command failed ([`CommandError`]), a file operation
//! failed ([`FileError`]), a repository is in a state that the harness does not work with
//! ([`Refusal`]), or something is damaged ([`Damage`]).

use crate::command::{CommandError, is_distrust, is_full};
pub(crate) use muleteer_model::text::error_chain::chain;
use muleteer_store::StoreError;
use std::io;
use std::path::{Path, PathBuf};

/// Why git failed in a person's working directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitError {
    #[error("{} is not in a git repository", .0.display())]
    NoRepository(PathBuf),
    #[error("{} has no commit", .0.display())]
    NoCommit(PathBuf),
    /// It belongs to another user, and the person's configuration does not trust it.
    #[error("git does not trust {}: {said}", dir.display())]
    Distrusted { dir: PathBuf, said: String },
    /// A file goes through a filter that is not run.
    #[error("{path} goes through the filter `{name}`, {}", not_run(*in_clone))]
    Filter { name: String, path: String, in_clone: bool },
    /// A person is in the middle of an operation of git.
    #[error("{what} in {}", dir.display())]
    InProgress { dir: PathBuf, what: &'static str },
    /// A person's changes in the working directory would be overwritten.
    #[error("{said}")]
    InTheWay { said: String },
    #[error("{what}: {said}")]
    Failed { what: String, said: String },
    /// git gave no usable answer: the system lacks a resource, or the answer was too long.
    #[error("{what}: {said}")]
    Unheard { what: String, said: String },
}

impl GitError {
    /// Returns the next step for a person with a task list, if the error itself names none.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NoRepository(_) | Self::NoCommit(_) => {
                Some("a task list needs git: run `git init` there, and commit once".into())
            }
            Self::Distrusted { dir, .. } => Some(format!(
                "if you trust it: git config --global --add safe.directory {}",
                dir.display()
            )),
            Self::InProgress { .. } => {
                Some("finish or abort it, as `git status` says there, then try again".into())
            }
            Self::Filter { .. }
            | Self::InTheWay { .. }
            | Self::Failed { .. }
            | Self::Unheard { .. } => None,
        }
    }

    /// Returns the lock file that kept git from writing.
    pub(crate) fn lock(&self) -> Option<PathBuf> {
        let Self::Failed { said, .. } = self else { return None };
        let (_, rest) = said.split_once("Unable to create '")?;
        let (path, _) = rest.split_once("': File exists")?;
        Some(PathBuf::from(path)).filter(|path| path.extension().is_some_and(|kind| kind == "lock"))
    }

    /// Whether git cannot add something in the working directory: a repository without a commit, or
    /// a file that is not readable.
    pub(crate) fn is_of_a_file(&self) -> bool {
        let tells = |said: &str| {
            said.contains("does not have a commit checked out")
                || said.contains("unable to index file")
        };
        matches!(self, Self::Failed { said, .. } if tells(said))
    }

    /// Replaces a complaint of git by `meant`, unless the cause is another one.
    pub(crate) fn meaning(self, meant: Self) -> Self {
        if let (Self::Failed { said, .. }, Self::NoRepository(dir)) = (&self, &meant)
            && is_distrust(said.as_bytes())
        {
            return Self::Distrusted { dir: dir.clone(), said: said.clone() };
        }
        if matches!(self, Self::Unheard { .. }) { self } else { meant }
    }
}

/// Returns the reason why a filter does not run, and what to do.
fn not_run(in_clone: bool) -> &'static str {
    if in_clone {
        "which is not run in the clones that workers have: let one worker do the list, in the \
         project's own directory"
    } else {
        "which only the repository's own configuration defines, where an agent can write: it is \
         not run. Define it in yours (`git config --global`), or take it out"
    }
}

/// Why work on a repository of a dispatch or of a run failed.
#[derive(Debug, thiserror::Error)]
pub enum RepoError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A blocking part of the work panicked, or the runtime is shutting down.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
    /// A step failed whose cause does not name its purpose.
    #[error("{purpose}: {source}")]
    Step { purpose: String, source: Box<RepoError> },
    /// The dispatch was killed while its uncommitted files were read.
    #[error("they were still looked at when the dispatch was killed")]
    GivenUp,
}

impl RepoError {
    /// Adds the purpose of the step that failed.
    pub fn step<E: Into<Self>>(purpose: &str) -> impl Fn(E) -> Self {
        move |error| Self::Step { purpose: purpose.into(), source: Box::new(error.into()) }
    }

    /// Whether the disk or a quota was full. That is no fault of an agent, and passes.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Command(error) => error.is_disk_full(),
            Self::File(error) => error.is_disk_full(),
            Self::Step { source, .. } => source.is_disk_full(),
            Self::Refused(_) | Self::Damaged(_) | Self::Task(_) | Self::GivenUp => false,
        }
    }

    /// Whether git printed more than is read.
    pub(crate) fn exceeds_output(&self) -> bool {
        match self {
            Self::Command(error) => matches!(error, CommandError::TooMuchOutput { .. }),
            Self::Step { source, .. } => source.exceeds_output(),
            Self::File(_) | Self::Refused(_) | Self::Damaged(_) | Self::Task(_) | Self::GivenUp => {
                false
            }
        }
    }
}

/// Why a file or a folder could not be read, written, moved or removed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot move the damaged hub aside: {source}")]
    HubNotMoved { path: PathBuf, source: io::Error },
    #[error("cannot remove {}, which may be a clone in part: {source}", .path.display())]
    CloneNotRemoved { path: PathBuf, source: io::Error },
    #[error("{}", chain(.0))]
    Store(#[from] StoreError),
}

impl FileError {
    /// Returns the error of an operation on `path`.
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. }
            | Self::HubNotMoved { source, .. }
            | Self::CloneNotRemoved { source, .. } => is_full(source),
            Self::Store(StoreError::Io { source, .. }) => is_full(source),
            Self::Store(StoreError::DbFull { .. }) => true,
            Self::Store(_) => false,
        }
    }
}

impl From<StoreError> for RepoError {
    fn from(error: StoreError) -> Self {
        Self::File(error.into())
    }
}

/// A state of a repository that the harness does not work with, or does not change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the run's repository is missing")]
    NoPrivateRepository,
    #[error("the integration branch is missing")]
    NoIntegrationBranch,
    #[error("the branch {0} is missing")]
    NoBranch(String),
    /// The integration branch, when it is to be pushed.
    #[error("the branch is missing")]
    NoResult,
    #[error("the base branch was not fetched")]
    NoRemoteBase,
    #[error("the rebase left nothing")]
    EmptyRebase,
    /// An agent may have written it, and it would run with the person's tokens.
    #[error(
        "the pre-push hook {} changed while the run's agents worked, so it was not run and \
         nothing was pushed: read it, and push the branch",
        .0.display()
    )]
    ChangedHook(PathBuf),
    /// With the words of the hook.
    #[error("the pre-push hook of the repository refused the push: {0}")]
    HookRefused(String),
    /// A branch of the remote.
    #[error("{0} already exists and does not belong to this run")]
    ForeignBranch(String),
    #[error("the branch {0} has commits of somebody else")]
    MovedOn(String),
    #[error("a branch {other} leaves git no room for {name}")]
    NameConflict { name: String, other: String },
    #[error("no name is left for the branch")]
    NoName,
    #[error("the {0} has no parent directory")]
    NoParent(&'static str),
    #[error("git can make no clone that shares the objects of {0:?}: its path has a line break")]
    LineBreak(PathBuf),
    #[error("it is dirty, and has too many untracked files to list or save")]
    TooManyFiles,
    /// The other uncommitted files were saved as this ref, if there were any.
    #[error("it has files that are too large to save: {names}{}", rest(.saved.as_deref()))]
    TooLarge { names: String, saved: Option<String> },
}

fn rest(saved: Option<&str>) -> String {
    saved
        .map(|saved| format!("; the other uncommitted changes are {saved}"))
        .unwrap_or_default()
}

/// Something in a repository that an agent or a power cut has damaged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("{0} in its git directory is not a regular file: git could block on it")]
    SpecialFile(String),
    #[error("it has no commit checked out")]
    NoHead,
    #[error("it has {count} branches; only {limit} are inspected")]
    TooManyBranches { count: usize, limit: usize },
    /// The clone cannot be read, for this reason.
    #[error("{0}")]
    Unreadable(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn full() -> io::Error {
        rustix::io::Errno::NOSPC.into()
    }

    #[test]
    fn full_disk_is_detected_in_every_kind_of_error() {
        let path = Path::new("/run/it");
        let stored = StoreError::Io { file: path.into(), doing: "write", source: full() };
        let complaint = b"error: file write error: No space left on device";
        let git = CommandError::failed("cannot fetch", ["fetch"], complaint);
        for error in [
            RepoError::from(FileError::at(path)(full())),
            RepoError::from(stored),
            RepoError::from(git),
            RepoError::step("cannot save it")(FileError::at(path)(full())),
        ] {
            assert!(error.is_disk_full(), "{error}");
        }
        for error in [
            RepoError::from(FileError::at(path)(io::ErrorKind::NotFound.into())),
            RepoError::from(Damage::Unreadable("x: No space left on device".into())),
            RepoError::from(Refusal::NoBranch("No space left on device".into())),
        ] {
            assert!(!error.is_disk_full(), "{error}");
        }
    }

    #[test]
    fn error_of_a_step_names_its_purpose_and_keeps_the_cause() {
        let error = RepoError::step("cannot list the files")(Damage::SpecialFile("HEAD".into()));
        assert_eq!(
            error.to_string(),
            "cannot list the files: HEAD in its git directory is not a regular file: git could \
             block on it"
        );
        let cause = error.source().expect("a cause");
        assert!(cause.to_string().starts_with("HEAD in"), "{cause}");
        let stored = StoreError::Io { file: "/x".into(), doing: "write", source: full() };
        let error = FileError::from(stored);
        assert_eq!(error.to_string(), "cannot write /x: No space left on device (os error 28)");
        assert!(error.source().is_some());
    }

    #[test]
    fn too_large_files_are_reported_with_the_ref_of_the_others() {
        let (names, saved) = ("big (16 MiB)".to_string(), Some("refs/x".to_string()));
        let error = Refusal::TooLarge { names: names.clone(), saved: None };
        assert_eq!(error.to_string(), "it has files that are too large to save: big (16 MiB)");
        let error = Refusal::TooLarge { names, saved };
        assert!(
            error.to_string().ends_with("; the other uncommitted changes are refs/x"),
            "{error}"
        );
    }
}
