//! The clones of concurrent workers: they are made, repaired after a crash, brought up to date, and
//! their commits are landed.

use crate::command::blocking::{self, failed, run};
use crate::command::{Purpose, UPLOAD_PACK_BELOW};
use crate::git_repair;
use crate::partial_clone;
use crate::user_repo::{ANEW, Git, GitError};
use muleteer_store::removal;
use std::path::{Path, PathBuf};

/// The branch that a worker's clone has checked out.
const WORK: &str = "muleteer/work";

impl Git {
    /// Whether this is a clone or worktree of the same repository.
    pub fn shares(&self, other: &Self) -> bool {
        self.common_dir == other.common_dir
            || std::fs::read_to_string(self.common_dir.join("objects/info/alternates")).is_ok_and(
                |text| text.lines().any(|line| Path::new(line).starts_with(&other.common_dir)),
            )
    }

    /// Repairs the damage of a power cut in a worker's clone. A clone in which git no longer works
    /// is moved aside; then the new path and the error are returned. The clone's agent may be
    /// running.
    pub fn mend_clone(
        &self,
        dir: &Path,
        branch: &str,
    ) -> Result<Option<(PathBuf, GitError)>, GitError> {
        if !dir.exists() {
            return Ok(None);
        }
        git_repair::forget_stale_locks(&dir.join(".git"));
        git_repair::forget_empty_objects(&dir.join(".git/objects"));
        let tip = self.tip(branch)?;
        let usable = Self::open_clone(dir, self).and_then(|clone| {
            clone.mend_index()?;
            clone.check_objects(&tip)?;
            clone.end_stale_rebase()?;
            clone.fill_emptied();
            Ok(())
        });
        let error = match usable {
            Ok(()) => return Ok(None),
            // This proves nothing against the clone.
            Err(error @ GitError::Unheard { .. }) => return Err(error),
            Err(error) => error,
        };
        let fail = |error: std::io::Error| failed("clone", &format!("{}: {error}", dir.display()));
        let aside = crate::worktree::free_name(dir, "broken");
        std::fs::rename(dir, &aside).map_err(fail)?;
        Ok(Some((aside, error)))
    }

    /// Makes a worker's clone again, with `base` checked out, if its agent has left none in which
    /// git works. Returns the reason then. The old clone is moved aside.
    pub fn renew_clone(
        &self,
        dir: &Path,
        branch: &str,
        base: &str,
    ) -> Result<Option<String>, GitError> {
        let why = if dir.exists() {
            let Some((aside, error)) = self.mend_clone(dir, branch)? else { return Ok(None) };
            let aside = aside.strip_prefix(&self.top).unwrap_or(&aside).display();
            format!(
                "git cannot work in its clone any more ({error}); what is left of it is put aside \
                 as {aside}"
            )
        } else {
            "its clone is gone".into()
        };
        let clone = self.prepare_clone(dir, branch)?;
        clone.git(&["checkout", "--quiet", "--force", "-B", WORK, base])?;
        Ok(Some(why))
    }

    /// Aborts a rebase that a power cut interrupted.
    pub(super) fn end_stale_rebase(&self) -> Result<(), GitError> {
        let is_left = || {
            ["rebase-merge", "rebase-apply"]
                .iter()
                .any(|name| git_repair::is_stale_folder(&self.git_dir.join(name)))
        };
        if is_left() {
            drop(self.git(&["rebase", "--abort"]));
        }
        if is_left() {
            Err(failed("rebase", "what was left of one cannot be undone"))
        } else {
            Ok(())
        }
    }

    /// Restores the files of a clone that a power cut has emptied. git does not sync the files that
    /// it checks out, and they would look like files that a task has emptied. The validation finds
    /// files that cannot be restored.
    pub(super) fn fill_emptied(&self) {
        let modified =
            self.git(&["ls-files", "-z", "--modified", "--deduplicate"]).unwrap_or_default();
        let emptied = modified.split('\0').filter(|path| !path.is_empty());
        let emptied = emptied.filter(|path| git_repair::is_stale_and_empty(&self.top.join(path)));
        let emptied: Vec<String> = emptied.map(|path| format!(":(top,literal){path}")).collect();
        for some in emptied.chunks(200) {
            let paths = some.iter().map(String::as_str);
            drop(
                self.git(
                    &["checkout", "--quiet", "--"].into_iter().chain(paths).collect::<Vec<_>>(),
                ),
            );
        }
    }

    /// Checks that the objects of all commits since `tip` exist.
    pub(super) fn check_objects(&self, tip: &str) -> Result<(), GitError> {
        let list = self.git(&["rev-list", "--objects", "HEAD", "--not", tip])?;
        let names: String = list
            .lines()
            .filter_map(|line| line.split(' ').next())
            .map(|name| format!("{name}\n"))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let types =
            self.git_with(&["cat-file", "--batch-check=%(objecttype)"], names.as_bytes(), None)?;
        match types.lines().find(|line| line.ends_with(" missing")) {
            Some(missing) => Err(failed("cat-file", missing)),
            None => Ok(()),
        }
    }

    /// Makes a worker's clone unless it exists, and fetches `branch` into it.
    pub fn prepare_clone(&self, dir: &Path, branch: &str) -> Result<Self, GitError> {
        self.check_filters(true)?;
        if !dir.join(".git").exists() {
            let fail =
                |error: std::io::Error| failed("clone", &format!("{}: {error}", dir.display()));
            if let Some(parent) = dir.parent() {
                std::fs::create_dir_all(parent).map_err(fail)?;
            }
            let partial = dir.with_extension("partial");
            if partial.exists() {
                removal::remove_tree(&partial, removal::PATIENCE).map_err(fail)?;
            }
            self.complete(&self.head()?)?;
            let mut command = blocking::git(&self.top, Purpose::Agent);
            self.person.tell(&mut command, &[]);
            command.args(["clone", "--quiet", "--shared", "--no-hardlinks"]);
            command.args(["--upload-pack", UPLOAD_PACK_BELOW, "."]).arg(&partial);
            run(command, b"", "clone")?;
            crate::worktree::exclude(&partial.join(".git")).map_err(fail)?;
            std::fs::write(partial.join(".git").join(ANEW), "").map_err(fail)?;
            std::fs::rename(&partial, dir).map_err(fail)?;
        }
        let clone = Self::open_clone(dir, self)?;
        let (name, email) = &self.identity;
        clone.git(&["config", "user.name", name])?;
        clone.git(&["config", "user.email", email])?;
        clone.fetch(&self.top, branch)?;
        Ok(clone)
    }

    pub(super) fn fetch(&self, from: &Path, branch: &str) -> Result<String, GitError> {
        let from = from.to_string_lossy();
        let name = format!("refs/heads/{branch}");
        let fetch = ["fetch", "--quiet", "--no-tags", "--upload-pack", UPLOAD_PACK_BELOW];
        self.git(&[&fetch[..], &[&from, &name]].concat())?;
        self.git(&["rev-parse", "FETCH_HEAD"])
    }

    /// Fetches what a partial clone lacks of a commit, for clones that borrow its objects.
    fn complete(&self, commit: &str) -> Result<(), GitError> {
        if self.is_clone || !partial_clone::is_partial(&self.common_dir) {
            return Ok(());
        }
        let empty = self.git(&partial_clone::EMPTY_TREE)?;
        self.git(&partial_clone::reading_all(&empty, commit)).map(drop)
    }

    /// Fetches a commit from a clone, without a name for it.
    pub(super) fn fetch_objects(&self, from: &str, name: &str) -> Result<(), GitError> {
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--upload-pack"];
        self.git(&[&fetch[..], &[UPLOAD_PACK_BELOW, from, name]].concat()).map(drop)
    }

    /// Whether no task has begun in the clone since it was made. The files with which an earlier
    /// task passed were in another clone.
    pub fn is_made_anew(&self) -> bool {
        self.git_dir.join(ANEW).exists()
    }

    /// Discards everything in a clone and checks out the tip of the project's branch, before a task
    /// begins.
    pub fn reset_clone(&self, project: &Self, branch: &str) -> Result<String, GitError> {
        project.complete(&project.tip(branch)?)?;
        let tip = self.fetch(&project.top, branch)?;
        drop(self.git(&["rebase", "--abort"]));
        self.git(&["checkout", "--quiet", "--force", "-B", WORK, &tip])?;
        self.git(&["reset", "--quiet", "--hard", &tip])?;
        self.git(&["clean", "-fdq"])?;
        match std::fs::remove_file(self.git_dir.join(ANEW)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(failed("clone", &error.to_string()))
            }
            _ => Ok(tip),
        }
    }

    /// Rebases onto the project's branch and returns its tip. All work must be committed: git may
    /// convert the files anew. After a conflict everything is as it was.
    pub fn rebase(&self, project: &Self, branch: &str) -> Result<String, GitError> {
        project.complete(&project.tip(branch)?)?;
        let tip = self.fetch(&project.top, branch)?;
        if self.git(&["merge-base", "--is-ancestor", &tip, "HEAD"]).is_ok() {
            return Ok(tip);
        }
        if let Err(error) = self.git(&["rebase", "--quiet", &tip]) {
            drop(self.git(&["rebase", "--abort"]));
            if self.git(&["diff-index", "--quiet", "HEAD"]).is_ok() {
                return Err(error);
            }
            self.rebase_unconverted(&tip)?;
        }
        Ok(tip)
    }

    /// Rebases without attributes. git takes a committed file for changed if it cannot convert it
    /// as its attributes demand, and refuses to rebase. The clone's own index is empty meanwhile,
    /// so that the next checkout writes every file again, even after a crash.
    fn rebase_unconverted(&self, tip: &str) -> Result<(), GitError> {
        let plain = self.without_attributes()?;
        let index = self.index();
        let with_index = |args: &[&str]| plain.git_with(args, b"", Some(&index.0));
        self.git(&["read-tree", "--empty"])?;
        with_index(&["reset", "--quiet", "--hard"])?;
        let rebased = with_index(&["rebase", "--quiet", tip]);
        if rebased.is_err() {
            drop(with_index(&["rebase", "--abort"]));
        }
        self.git(&["reset", "--quiet", "--hard"])?;
        rebased.map(drop)
    }

    /// Fast-forwards the project's branch to a clone's commits. Returns false if the branch is no
    /// longer at `tip`.
    pub fn land(&self, clone: &Self, branch: &str, tip: &str) -> Result<bool, GitError> {
        if self.tip(branch)? != tip {
            return Ok(false);
        }
        let commit = clone.head()?;
        let from = clone.top.to_string_lossy();
        self.fetch_objects(&from, "HEAD")?;
        if self.branch().as_deref() == Some(branch) {
            self.forward(tip, &commit)?;
        } else {
            self.git(&["update-ref", &format!("refs/heads/{branch}"), &commit, tip])?;
        }
        self.settle()?;
        self.forwarded()?;
        Ok(true)
    }
}
