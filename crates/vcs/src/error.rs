//! Why git could not do what it should.

use crate::command::is_distrust;
use std::path::PathBuf;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitError {
    #[error("{} is not in a git repository", .0.display())]
    NoRepository(PathBuf),
    #[error("{} has no commit", .0.display())]
    NoCommit(PathBuf),
    /// It is somebody else's, and the person has not said that it is to be trusted.
    #[error("git does not trust {}: {said}", dir.display())]
    Distrusted { dir: PathBuf, said: String },
    /// A file goes through a filter that is not run.
    #[error("{path} goes through the filter `{name}`, {}", not_run(*in_clone))]
    Filter { name: String, path: String, in_clone: bool },
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
            Self::Filter { .. }
            | Self::InTheWay { .. }
            | Self::Failed { .. }
            | Self::Unheard { .. } => None,
        }
    }

    /// The lock that was in its way.
    pub(crate) fn lock(&self) -> Option<PathBuf> {
        let Self::Failed { said, .. } = self else { return None };
        let (_, rest) = said.split_once("Unable to create '")?;
        let (path, _) = rest.split_once("': File exists")?;
        Some(PathBuf::from(path)).filter(|path| path.extension().is_some_and(|kind| kind == "lock"))
    }

    /// There is something in the working directory that git cannot take in: a repository without a
    /// commit, or a file that nobody may read.
    pub(crate) fn is_of_a_file(&self) -> bool {
        let tells = |said: &str| {
            said.contains("does not have a commit checked out")
                || said.contains("unable to index file")
        };
        matches!(self, Self::Failed { said, .. } if tells(said))
    }

    /// Returns `meant` in place of a complaint of git.
    pub(crate) fn meaning(self, meant: Self) -> Self {
        if let (Self::Failed { said, .. }, Self::NoRepository(dir)) = (&self, &meant)
            && is_distrust(said.as_bytes())
        {
            return Self::Distrusted { dir: dir.clone(), said: said.clone() };
        }
        if matches!(self, Self::Unheard { .. }) { self } else { meant }
    }
}

/// Why, and what to do.
fn not_run(in_clone: bool) -> &'static str {
    if in_clone {
        "which is not run in the clones that workers have: let one worker do the list, in the project's own directory"
    } else {
        "which only the repository's own configuration defines, where an agent can write: it is not run. Define it in yours \
         (`git config --global`), or take it out"
    }
}

/// Formats an error with all its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
