//! An index of the harness's own, with which a clone is read as a plain directory of files.

use crate::command::{git, run, run_bytes, run_within};
use crate::error::{FileError, RepoError};
use crate::spec_run::large_files as kept;
use crate::spec_run::{RunRepos, name_of};
use crate::user_repo::large_files::{self, Large, Listed};
use crate::user_repo::raw::{self, ATTRIBUTES_FROM};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// At most this many large files are read, each for at most [`READING`], to compare them with their
/// commit. Files beyond either limit count as changed.
const READ_LIMIT: usize = 8;
const READING: Duration = Duration::from_secs(60);

/// The files of a clone that are too large to read.
pub(super) struct LeftOut {
    /// Untracked files.
    pub new: Vec<Large>,
    /// Untracked files, and tracked files that have changed.
    pub all: Vec<Large>,
}

/// A temporary index that is deleted on drop.
pub(super) struct Index(PathBuf);

impl Index {
    pub fn new(repos: &RunRepos, dir: &Path) -> Self {
        Self(repos.paths.private.join(format!("index-{}-{}", name_of(dir), random_name())))
    }

    pub fn git(&self, repos: &RunRepos, dir: &Path) -> tokio::process::Command {
        let own = repos.paths.keep();
        let mut command = git(&own);
        command
            .arg("-c")
            .arg("core.bare=false")
            .arg("--git-dir")
            .arg(&own)
            .arg("--work-tree")
            .arg(dir)
            .env("GIT_INDEX_FILE", &self.0);
        command
    }

    /// Does the same as [`Self::git`], but ignores attribute files in the clone: git fails on some
    /// of them.
    pub fn plain(&self, repos: &RunRepos, dir: &Path, base: &str) -> tokio::process::Command {
        let mut command = self.git(repos, dir);
        command.env(ATTRIBUTES_FROM, large_files::empty_tree(base));
        command
    }

    /// Adds every file in the clone. A file that git cannot convert as its attributes demand is
    /// added unconverted.
    pub async fn add_all(
        &self,
        repos: &RunRepos,
        dir: &Path,
        base: &str,
        (patience, what): (Duration, &str),
    ) -> Result<(), RepoError> {
        let mut add = self.git(repos, dir);
        if run_within(add.args(["add", "--all"]), patience, what).await.is_ok() {
            return Ok(());
        }
        let mut paths = vec![];
        for which in [&["--others", "--exclude-standard"][..], &["--modified"]] {
            let mut list = self.plain(repos, dir, base);
            paths.extend(run_bytes(list.args(["ls-files", "-z"]).args(which), what).await?);
        }
        let git = || self.git(repos, dir);
        let raw = raw::find(&git, dir, &paths, &self.list()).await?;
        // git also reads a file that may have changed when it writes the index, and may fail over
        // its attributes then. So these commands have no attributes.
        let plain = || self.plain(repos, dir, base);
        self.update(plain(), (&["--index-info"], &raw.entries), what).await?;
        // This form is preferred, because git keeps the line ends that the index has.
        if self.update(git(), (&raw::ADD, &raw.fine), what).await.is_err() {
            self.update(plain(), (&["--index-info"], &raw.converted), what).await?;
        }
        let known = [raw.odd, raw.fine].concat();
        self.update(plain(), (&["--assume-unchanged", "--stdin"], &known), what).await?;
        // The rest (links, deleted files) is never converted.
        run_within(plain().args(["add", "--all"]), patience, what).await?;
        Ok(())
    }

    /// Keeps every git that uses this index from reading files that are too large. Tracked ones are
    /// marked as unchanged, untracked ones are marked as tracked. A file that git-lfs keeps is
    /// marked as unchanged if it has the content of its pointer.
    pub async fn leave_out_large(
        &self,
        repos: &RunRepos,
        dir: &Path,
        base: &str,
    ) -> Result<LeftOut, RepoError> {
        const WHAT: &str = "cannot list the files";
        let kept = kept::unchanged(repos, dir, base).await?;
        let paths = kept.iter().flat_map(|path| [path.as_slice(), b"\0"].concat());
        let paths: Vec<u8> = paths.collect();
        let plain = || self.plain(repos, dir, base);
        self.update(plain(), (&["--assume-unchanged", "--stdin"], &paths), WHAT).await?;
        let mut tracked = run_bytes(self.git(repos, dir).args(["ls-files", "-z"]), WHAT).await?;
        if !kept.is_empty() {
            let others = tracked.split(|byte| *byte == 0);
            let others = others.filter(|path| !path.is_empty() && !kept.contains(*path));
            tracked = others.flat_map(|path| [path, b"\0"].concat()).collect();
        }
        let new = ["ls-files", "-z", "--others", "--exclude-standard"];
        let new = run_bytes(self.git(repos, dir).args(new), WHAT).await?;
        let (top, checked_out) = (dir.to_owned(), repos.paths.made_at(dir));
        let measuring = tokio::task::spawn_blocking(move || {
            let listed = Listed { new: &new, tracked: &tracked, checked_out };
            large_files::too_large(&top, listed)
        });
        let (new, tracked) = measuring.await?;
        let mut all = new.clone();
        if new.is_empty() && tracked.is_empty() {
            return Ok(LeftOut { new, all });
        }
        let blob = large_files::empty_blob(base);
        let entries: Vec<u8> =
            new.iter().flat_map(|one| large_files::as_empty(one, blob)).collect();
        self.update(plain(), (&["--index-info"], &entries), WHAT).await?;
        let mut read = 0;
        for one in tracked.iter().filter(|one| !one.is_untouched) {
            // A file with its committed content is not lost with the clone.
            let may_be = read < READ_LIMIT && is_as_long(repos, base, one).await;
            read += usize::from(may_be);
            if !(may_be && is_as_committed(repos, dir, base, one).await) {
                all.push(one.clone());
            }
        }
        let unread = large_files::paths(new.iter().chain(&tracked));
        self.update(plain(), (&["--assume-unchanged", "--stdin"], &unread), WHAT).await?;
        Ok(LeftOut { new, all })
    }

    /// Removes the files from the index that were only marked as tracked.
    pub async fn forget(
        &self,
        repos: &RunRepos,
        dir: &Path,
        base: &str,
        files: &[Large],
    ) -> Result<(), RepoError> {
        let paths = large_files::paths(files);
        let args = ["--force-remove", "--stdin"];
        let plain = self.plain(repos, dir, base);
        self.update(plain, (&args, &paths), "cannot read the tree").await
    }

    /// Runs `git update-index -z` with these arguments and this input.
    async fn update(
        &self,
        mut update: tokio::process::Command,
        (args, input): (&[&str], &[u8]),
        what: &str,
    ) -> Result<(), RepoError> {
        if input.is_empty() {
            return Ok(());
        }
        let list = self.list();
        let failed = |error| RepoError::step(what)(FileError::at(&list)(error));
        std::fs::write(&list, input).map_err(failed)?;
        update.args(["update-index", "-z"]).args(args).stdin(File::open(&list).map_err(failed)?);
        run(&mut update, what).await?;
        Ok(())
    }

    /// The file that git reads its input from.
    fn list(&self) -> PathBuf {
        self.0.with_extension("list")
    }

    /// Removes submodules from the index. For a known submodule, `git add` runs a git inside it
    /// that obeys the submodule's configuration. For an unknown one it only reads the commit.
    pub async fn forget_submodules(
        &self,
        repos: &RunRepos,
        dir: &Path,
        base: &str,
    ) -> Result<(), RepoError> {
        let mut list = self.plain(repos, dir, base);
        let listed =
            run_bytes(list.args(["ls-files", "--stage", "-z"]), "cannot read the tree").await?;
        let paths: Vec<u8> = listed
            .split_inclusive(|byte| *byte == 0)
            .filter(|entry| entry.starts_with(b"160000 "))
            .filter_map(|entry| entry.splitn(2, |byte| *byte == b'\t').nth(1))
            .flatten()
            .copied()
            .collect();
        let args = ["--force-remove", "--stdin"];
        let plain = self.plain(repos, dir, base);
        self.update(plain, (&args, &paths), "cannot read the tree").await
    }
}

/// Returns the name of a tracked file in the commit, as git expects it.
fn committed(base: &str, one: &Large) -> OsString {
    [OsStr::new(base), OsStr::new(":"), one.path.as_os_str()].into_iter().collect()
}

async fn is_as_long(repos: &RunRepos, base: &str, one: &Large) -> bool {
    let mut ask = git(&repos.paths.keep());
    let size = run(ask.args(["cat-file", "-s"]).arg(committed(base, one)), "").await;
    size.is_ok_and(|size| size == one.bytes.to_string())
}

/// Whether a file that is as long as the committed one has the same content. It is hashed as it is:
/// git converts no byte of it, and runs no filter.
async fn is_as_committed(repos: &RunRepos, dir: &Path, base: &str, one: &Large) -> bool {
    let keep = repos.paths.keep();
    let mut ask = git(&keep);
    let known = run(ask.args(["rev-parse", "--verify"]).arg(committed(base, one)), "").await;
    let mut hash = git(&keep);
    hash.args(["hash-object", "--no-filters", "--"]).arg(dir.join(&one.path));
    let found = run_within(&mut hash, READING, "").await;
    known.is_ok_and(|known| found.is_ok_and(|found| found == known))
}

/// Returns a name that no other index has, of this daemon or of one before.
fn random_name() -> String {
    use std::hash::BuildHasher;
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // The standard library seeds the first state of each thread from the kernel's random numbers
    // and counts up for the further ones. The hashed numbers differ too.
    let random = std::hash::RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed));
    format!("{random:016x}")
}

impl Drop for Index {
    fn drop(&mut self) {
        for path in [&self.0, &self.list()] {
            let _ = std::fs::remove_file(path);
        }
    }
}
