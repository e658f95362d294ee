//! Git in a person's working directory, for task lists and spec runs.
//!
//! It never runs `reset --hard` or `clean -fd`, which would lose files. It records the working
//! directory as a tree, and then changes the files from that tree to the wanted one. Ignored files,
//! Muleteer's own files, and changes that a person made before the task stay as they are.
//!
//! Trees are made with an index of their own, so a person's staged changes stay staged.

mod clones;
mod forward;
mod git_state;
mod harness_files;
pub(crate) mod large_files;
mod merge;
mod missing_in_clones;
pub(crate) mod raw;
mod rollback_refs;
mod snapshot_trees;
#[cfg(test)]
mod tests;
mod user_changes;
mod user_config;

pub use crate::error::GitError;
pub use missing_in_clones::{LfsContent, MissingInClones};
pub use rollback_refs::Saved;
use snapshot_trees::Index;
pub use user_changes::Lost;

use crate::command::blocking::{self, failed, run, words};
use crate::command::{GLOBAL, Purpose, only_files};
use crate::git_repair;
use crate::partial_clone;
use muleteer_model::task_list::{DAMAGED, OWN_FILES};
use muleteer_process::group::may_be_at_work;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use user_config::Person;

/// The variable that names the directory above which git does not search for a repository.
const CEILING: &str = "GIT_CEILING_DIRECTORIES";
/// The same as [`DURABLE`](crate::command::DURABLE), for commands that may write the person's own
/// index. git cannot work with an index that a power cut emptied.
const DURABLE_INDEX: &str = "core.fsync=committed,index";

/// The number of retries and the pause between them if a lock exists. Other gits hold one for a
/// moment.
const LOCK_LOOKS: u32 = if cfg!(test) { 2 } else { 60 };
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The file in a clone's git directory that exists until a task begins there.
const ANEW: &str = "muleteer-anew";

/// A git working directory, with the paths in it that belong to the harness.
#[derive(Debug, Clone)]
pub struct Git {
    top: PathBuf,
    git_dir: PathBuf,
    common_dir: PathBuf,
    /// The harness's files, as paths from the top. No tree of ours has them.
    own: Vec<String>,
    identity: (String, String),
    person: Person,
    /// It is a clone in which an agent works alone.
    is_clone: bool,
    /// It is a worker's clone that Muleteer made, so git gets its directories from us.
    is_worker: bool,
    /// The tree from which git takes attributes instead of the working directory.
    attributes_from: Option<&'static str>,
}

impl Git {
    /// Opens the repository that `dir` is in.
    ///
    /// # Errors
    /// There is none, or it has no commit.
    pub fn open(dir: &Path) -> Result<Self, GitError> {
        // The harmless part of the person's own configuration is obeyed.
        Self::open_below(dir, None, Person::read(dir, &[])?)
    }

    /// Does the same with a copy of the person's global configuration, if it exists.
    pub(crate) fn open_obeying(dir: &Path, global: &Path) -> Result<Self, GitError> {
        let global = global.is_file().then_some((GLOBAL, global.as_os_str()));
        Self::open_below(dir, None, Person::read(dir, global.as_slice())?)
    }

    /// Opens a repository below `ceiling`, if that is given.
    fn open_below(dir: &Path, ceiling: Option<&Path>, person: Person) -> Result<Self, GitError> {
        let ask = |what: &str| {
            let purpose = if ceiling.is_some() { Purpose::Agent } else { Purpose::Person };
            let mut command = blocking::git(dir, purpose);
            person.tell(&mut command, &[]);
            command.envs(ceiling.map(|ceiling| (CEILING, ceiling)));
            command.args(["rev-parse", "--path-format=absolute", what]);
            run(command, b"", "rev-parse")
                .map_err(|error| error.meaning(GitError::NoRepository(dir.into())))
        };
        let (top, git_dir) = (ask("--show-toplevel")?, ask("--git-dir")?);
        let prefix = ask("--show-prefix")?;
        let named = |said: &Option<String>, otherwise: &str| {
            said.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| otherwise.into())
        };
        let git = Self {
            top: top.into(),
            git_dir: git_dir.into(),
            common_dir: ask("--git-common-dir")?.into(),
            own: own(&prefix),
            identity: (named(&person.name, "Muleteer"), named(&person.email, "muleteer@localhost")),
            person,
            is_clone: ceiling.is_some(),
            is_worker: false,
            attributes_from: None,
        };
        git.head().map_err(|error| error.meaning(GitError::NoCommit(dir.into())))?;
        Ok(git)
    }

    /// Opens another working directory of the repository `of`: a clone, or a worktree that the
    /// person made. git does not search above `dir`, because a clone may be inside of the person's
    /// repository.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn open_copy(dir: &Path, of: &Self) -> Result<Self, GitError> {
        let mut git = Self::open_below(dir, dir.parent(), of.person.clone())?;
        git.own.extend(of.own.clone());
        // A worktree that the person made shares the configuration of the person's repository.
        git.is_clone = git.common_dir != of.common_dir;
        git.identity = of.identity.clone();
        Ok(git)
    }

    /// Opens the clone of a worker. Its agent can write `core.worktree` and `.git`, and git would
    /// reset and clean the directory that they name.
    ///
    /// # Errors
    /// Those of [`Self::open`], or the clone leads to another directory.
    pub fn open_clone(dir: &Path, of: &Self) -> Result<Self, GitError> {
        let git = Self { is_worker: true, ..Self::open_copy(dir, of)? };
        let real = |path: &Path| path.canonicalize().ok();
        let is_own = git.is_clone
            && git.is_whole_clone()
            && real(&git.git_dir) == real(&dir.join(".git"))
            && real(&git.top) == real(dir);
        if is_own { Ok(git) } else { Err(leads_away(dir)) }
    }

    /// Whether the git directory of a clone is a directory, with everything in it. git follows a
    /// `.git` file and a `commondir` file to another repository.
    fn is_whole_clone(&self) -> bool {
        std::fs::symlink_metadata(&self.git_dir).is_ok_and(|meta| meta.is_dir())
            && std::fs::symlink_metadata(self.git_dir.join("commondir")).is_err()
    }

    /// Builds a git command for this repository. In a worker's clone, git gets its directories from
    /// us and not from the clone's configuration, which the agent can change at any time.
    fn command(&self) -> Result<Command, GitError> {
        let mut command = blocking::git(&self.top, self.purpose());
        if self.is_worker {
            if !self.is_whole_clone() {
                return Err(leads_away(&self.top));
            }
            command.env("GIT_DIR", &self.git_dir).env("GIT_WORK_TREE", &self.top);
        }
        Ok(command)
    }

    /// Removes the locks of gits that a power cut ended, and rebuilds the index if it is empty.
    /// Nothing can be lost by that. Returns whether the index was empty.
    pub fn mend_index(&self) -> Result<bool, GitError> {
        git_repair::forget_stale_locks(&self.git_dir);
        let real = self.git_dir.join("index");
        if !std::fs::metadata(&real).is_ok_and(|meta| meta.len() == 0) {
            return Ok(false);
        }
        std::fs::remove_file(&real).map_err(|error| failed("index", &error.to_string()))?;
        self.git(&["read-tree", "HEAD"])?;
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(true)
    }

    /// Syncs the file system of the working directory. A file that a power cut emptied would look
    /// like one that the task has emptied, and be committed.
    pub fn settle(&self) -> Result<(), GitError> {
        let fail =
            |error: std::io::Error| failed("sync", &format!("{}: {error}", self.top.display()));
        let top = std::fs::File::open(&self.top).map_err(fail)?;
        #[cfg(target_os = "linux")]
        rustix::fs::syncfs(&top).map_err(|errno| fail(errno.into()))?;
        #[cfg(not(target_os = "linux"))]
        {
            drop(top);
            rustix::fs::sync();
        }
        Ok(())
    }

    /// Returns the git directory that all worktrees of the repository share.
    pub fn common_dir(&self) -> &Path {
        &self.common_dir
    }

    pub fn top(&self) -> &Path {
        &self.top
    }

    fn purpose(&self) -> Purpose {
        if self.is_clone { Purpose::Agent } else { Purpose::Person }
    }

    fn git(&self, args: &[&str]) -> Result<String, GitError> {
        self.git_with(args, b"", None)
    }

    fn git_with(
        &self,
        args: &[&str],
        stdin: &[u8],
        index: Option<&Path>,
    ) -> Result<String, GitError> {
        self.bytes(args, stdin, index).map(words)
    }

    /// Runs git. A git that writes an index may read files and fail on their attributes; then it
    /// runs again without attributes.
    fn bytes(
        &self,
        args: &[&str],
        stdin: &[u8],
        index: Option<&Path>,
    ) -> Result<Vec<u8>, GitError> {
        match self.unlocked(args, stdin, index) {
            Err(error @ GitError::Failed { .. })
                if self.attributes_from.is_none()
                    && error.lock().is_none()
                    && raw::writes_index_alone(args) =>
            {
                self.without_attributes()?.unlocked(args, stdin, index)
            }
            said => said,
        }
    }

    /// Runs git, and retries if another git holds a lock. The lock of a killed git is removed.
    fn unlocked(
        &self,
        args: &[&str],
        stdin: &[u8],
        index: Option<&Path>,
    ) -> Result<Vec<u8>, GitError> {
        let mut patience = LOCK_LOOKS;
        loop {
            let error = match self.once(args, stdin, index) {
                Ok(said) => return Ok(said),
                Err(error) => error,
            };
            let Some(lock) = error.lock() else { return Err(error) };
            if patience > 0 {
                patience -= 1;
                std::thread::sleep(LOCK_PAUSE);
            } else if !self.forget_dead_lock(&lock) {
                return Err(error);
            }
        }
    }

    /// Removes a lock if no git can be using it. Returns whether it was removed. No other git can
    /// make the lock while it exists, so no running git loses one.
    fn forget_dead_lock(&self, lock: &Path) -> bool {
        let is_ours = [&self.git_dir, &self.common_dir].iter().any(|dir| lock.starts_with(dir));
        if !is_ours || may_be_at_work("git", &[&self.top, &self.git_dir, &self.common_dir]) {
            return false;
        }
        tracing::warn!(lock = %lock.display(), "left by a git that was killed, and taken away");
        std::fs::remove_file(lock).is_ok()
    }

    fn once(&self, args: &[&str], stdin: &[u8], index: Option<&Path>) -> Result<Vec<u8>, GitError> {
        let mut command = self.command()?;
        self.person.tell(&mut command, &self.filters(args)?);
        if let Some(tree) = self.attributes_from {
            command.env(raw::ATTRIBUTES_FROM, tree).env("GIT_ATTR_NOSYSTEM", "1");
        }
        if args.first() == Some(&"fetch") {
            // The source is a clone on this machine, even if the configuration rewrites its path.
            only_files(&mut command);
        }
        // A repository that breaks meanwhile must not make git use the one around it.
        command.envs(self.top.parent().map(|above| (CEILING, above)));
        if index.is_none() {
            command.args(["-c", DURABLE_INDEX]);
        }
        command.args(args);
        let (name, email) = &self.identity;
        command.env("GIT_AUTHOR_NAME", name).env("GIT_AUTHOR_EMAIL", email);
        command.env("GIT_COMMITTER_NAME", name).env("GIT_COMMITTER_EMAIL", email);
        if let Some(index) = index {
            command.env("GIT_INDEX_FILE", index);
        }
        // In a person's partial clone, git fetches what it lacks.
        let may_fetch = !self.is_clone && partial_clone::is_partial(&self.common_dir);
        let limits = if may_fetch { blocking::FETCHING } else { blocking::LOCAL };
        blocking::run_within(command, stdin, args.first().unwrap_or(&"git"), limits)
    }

    pub fn head(&self) -> Result<String, GitError> {
        self.git(&["rev-parse", "--verify", "HEAD^{commit}"])
    }

    /// Returns the commit of HEAD, or `otherwise` if its branch has no commit.
    fn head_or(&self, otherwise: &str) -> Result<String, GitError> {
        match self.head() {
            Err(error @ GitError::Unheard { .. }) => Err(error),
            head => Ok(head.unwrap_or_else(|_| otherwise.into())),
        }
    }

    /// Returns the branch that is checked out; `None` if HEAD is detached, or git cannot tell.
    pub fn branch(&self) -> Option<String> {
        self.stands_on().ok().flatten()
    }

    /// Returns the branch that is checked out; `None` if HEAD is detached.
    pub fn stands_on(&self) -> Result<Option<String>, GitError> {
        // The short name has a prefix if a tag has the same name.
        if let Ok(name) = self.git(&["symbolic-ref", "--quiet", "HEAD"]) {
            return Ok(Some(name.strip_prefix("refs/heads/").unwrap_or(&name).into()));
        }
        // HEAD is detached, unless the repository is gone.
        self.git(&["rev-parse", "--git-dir"]).map(|_| None)
    }

    /// Whether the commit `part` is `whole`, or in its history.
    pub fn contains(&self, whole: &str, part: &str) -> Result<bool, GitError> {
        match self.git(&["merge-base", "--is-ancestor", part, whole]) {
            Err(error @ GitError::Unheard { .. }) => Err(error),
            said => Ok(said.is_ok()),
        }
    }

    pub fn tip(&self, branch: &str) -> Result<String, GitError> {
        self.git(&["rev-parse", "--verify", &format!("refs/heads/{branch}^{{commit}}")])
    }

    /// Whether the repository has the commit.
    pub fn exists(&self, commit: &str) -> bool {
        !commit.starts_with('-')
            && self.git(&["cat-file", "-t", commit]).is_ok_and(|kind| kind == "commit")
    }

    /// Returns the output of `git log --oneline`, the newest first.
    pub fn recent(&self, count: usize) -> String {
        self.git(&["log", "--oneline", &format!("-{count}")]).unwrap_or_default()
    }

    /// Returns the output of `git diff --stat`, with the untracked files.
    pub fn uncommitted(&self) -> String {
        let stat = self
            .git(&["diff", "--no-ext-diff", "--no-textconv", "--stat", "HEAD"])
            .unwrap_or_default();
        let untracked =
            self.git(&["ls-files", "--others", "--exclude-standard"]).unwrap_or_default();
        let untracked: Vec<_> = untracked
            .lines()
            .filter(|path| !self.own.iter().any(|own| is_below(own, path)))
            .take(20)
            .map(|path| format!(" {path} (untracked)"))
            .collect();
        [stat, untracked.join("\n")]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("\n")
    }

    pub fn stashes(&self) -> String {
        self.git(&["stash", "list"]).unwrap_or_default()
    }

    /// Returns the commits since `base` with their messages, the newest first.
    pub fn commits_since(&self, base: &str) -> Result<Vec<(String, String)>, GitError> {
        let text = self.git(&["log", "--format=%H %B%x00", &format!("{base}..HEAD")])?;
        let commits = text.split('\0').filter_map(|commit| commit.trim().split_once(' '));
        Ok(commits.map(|(hash, message)| (hash.into(), message.into())).collect())
    }
}

fn leads_away(dir: &Path) -> GitError {
    let said =
        format!("{}: its .git or core.worktree leads to another place, or is gone", dir.display());
    failed("rev-parse", &said)
}

/// Whether a path is the path `own` of the harness, or below it. There may be several damaged
/// lists.
fn is_below(own: &str, path: &str) -> bool {
    let more = if own.ends_with(DAMAGED) { ['/', '.'].as_slice() } else { &['/'] };
    path.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with(more))
}

/// Returns the paths of the harness's own files in a repository that holds them below `prefix`.
fn own(prefix: &str) -> Vec<String> {
    let files = OWN_FILES.iter().chain(&[
        ".muleteer/tasks",
        ".muleteer/tasks.lock",
        ".muleteer/worktrees",
        ".muleteer/runs",
    ]);
    let mut own: Vec<_> = files.map(|name| format!("{prefix}{name}")).collect();
    own.push(".agents/journals".into());
    if !prefix.is_empty() {
        own.extend([".muleteer/worktrees".into(), ".muleteer/runs".into()]);
    }
    own
}
