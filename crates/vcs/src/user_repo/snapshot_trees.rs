//! Trees of the working directory, which are made with a separate index, and changes of the files
//! from one tree to another.

use crate::command::blocking::failed;
use crate::partial_clone;
use crate::user_repo::large_files::{self, Listed};
use crate::user_repo::{Git, GitError, Saved, raw};
use muleteer_model::task_list::Stand;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// This has no excluding pathspecs, because git fails if such a path is ignored too.
const ADD_ALL: [&str; 4] = ["add", "-A", "--", ":(top)"];
/// The same in a sparse checkout, for files outside of it.
const ADD_ALL_SPARSE: [&str; 5] = ["add", "-A", "--sparse", "--", ":(top)"];

impl Git {
    /// Makes a tree of all files in the working directory that are not ignored.
    pub fn snapshot(&self) -> Result<String, GitError> {
        self.snapshot_into(&self.index()).map(|(tree, _)| tree)
    }

    /// Does the same as [`Self::snapshot`], with this index. Returns the unconverted files as
    /// [`Self::add_raw`] does.
    pub(super) fn snapshot_into(&self, index: &Index) -> Result<(String, Vec<u8>), GitError> {
        self.add_files(index, false)
    }

    /// Adds all files to the index and makes a tree of it. Returns the tree and the unconverted
    /// files. `is_committed` says whether the tree is for a commit of the task.
    fn add_files(&self, index: &Index, is_committed: bool) -> Result<(String, Vec<u8>), GitError> {
        self.copy_index(index).map_err(|error| failed("copy of the index", &error.to_string()))?;
        let left_out = self.leave_out_large(index)?;
        let raw = match self.git_with(self.adding(), b"", Some(&index.0)) {
            Err(why @ GitError::Failed { .. }) => self.add_raw(index, is_committed, why)?,
            added => added.map(|_| vec![])?,
        };
        if !left_out.is_empty() {
            self.with(
                index,
                &["update-index", "-z", "--force-remove", "--stdin"].map(String::from),
                &left_out,
            )?;
        }
        self.forget_own(index)?;
        let tree = self.with(index, &["write-tree".into()], b"")?;
        Ok((tree, raw))
    }

    /// Copies the person's index. It has the time stamps of files, so git reads only changed files.
    /// git also reads files that changed after the index was written, or in the same second, so the
    /// copy gets the modification time of the index.
    pub(super) fn copy_index(&self, index: &Index) -> std::io::Result<()> {
        let real = self.git_dir.join("index");
        let Some(meta) = std::fs::metadata(&real).ok().filter(|meta| meta.len() > 0) else {
            return Ok(());
        };
        std::fs::copy(&real, &index.0)?;
        std::fs::File::options().append(true).open(&index.0)?.set_modified(meta.modified()?)
    }

    /// Returns the arguments that add all files.
    fn adding(&self) -> &'static [&'static str] {
        if self.is_sparse() { &ADD_ALL_SPARSE } else { &ADD_ALL }
    }

    /// Adds all files to the index, except those that cannot be read.
    pub(super) fn add_all(&self, index: &Index) -> Result<(), GitError> {
        match self.git_with(self.adding(), b"", Some(&index.0)) {
            // The file stays in the working directory, because only files in a tree are moved.
            Err(error) if error.is_of_a_file() => {
                tracing::warn!(%error, "not taken in");
                let args = [&["add", "--ignore-errors"][..], &self.adding()[1..]].concat();
                drop(self.git_with(&args, b"", Some(&index.0)));
                Ok(())
            }
            added => added.map(drop),
        }
    }

    /// Keeps `git add` from reading files that are too large. A tracked one stays as it was. The
    /// new ones are returned, each with a NUL after it; the caller removes them from the index.
    fn leave_out_large(&self, index: &Index) -> Result<Vec<u8>, GitError> {
        // git might fail on attributes. Without them, a file may only count as changed.
        let plain = self.without_attributes()?;
        let list = |args: &[&str]| plain.bytes(args, b"", Some(&index.0));
        let new = list(&[
            "ls-files",
            "-z",
            "--others",
            "--exclude-standard",
            "--full-name",
            "--",
            ":(top)",
        ])?;
        let changed = list(&["ls-files", "-z", "--modified", "--full-name", "--", ":(top)"])?;
        let listed = Listed { new: &new, tracked: &changed, checked_out: None };
        let (new, changed) = large_files::too_large(&self.top, listed);
        if new.is_empty() && changed.is_empty() {
            return Ok(vec![]);
        }
        let all: Vec<_> = new.iter().chain(&changed).cloned().collect();
        tracing::warn!(
            dir = %self.top.display(),
            files = %large_files::names(&all),
            "files are too large for a snapshot"
        );
        let blob = large_files::empty_blob(&self.head_or("")?);
        let entries: Vec<u8> =
            new.iter().flat_map(|one| large_files::as_empty(one, blob)).collect();
        self.with(index, &["update-index", "-z", "--index-info"].map(String::from), &entries)?;
        let unread = ["update-index", "-z", "--assume-unchanged", "--stdin"].map(String::from);
        self.with(index, &unread, &large_files::paths(&all))?;
        Ok(large_files::paths(&new))
    }

    /// Returns a commit's tree without the harness's files.
    pub fn tree_of(&self, commit: &str) -> Result<String, GitError> {
        let index = self.index();
        self.with(&index, &["read-tree".into(), commit.into()], b"")?;
        self.forget_own(&index)?;
        self.with(&index, &["write-tree".into()], b"")
    }

    pub(super) fn with(
        &self,
        index: &Index,
        args: &[String],
        stdin: &[u8],
    ) -> Result<String, GitError> {
        let mut args: Vec<_> = args.iter().map(String::as_str).collect();
        if args == ["write-tree"] && partial_clone::is_partial(&self.common_dir) {
            // Else git would fetch what a partial clone lacks, and nothing of it is needed.
            args.push("--missing-ok");
        }
        self.git_with(&args, stdin, Some(&index.0))
    }

    pub(super) fn index(&self) -> Index {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Index(self.git_dir.join(format!("muleteer-index-{}-{count}", std::process::id())))
    }

    /// Saves the state of the working directory when a task begins. Uncommitted changes are a
    /// person's; the task's commits and rollbacks leave them out. Staged changes
    /// are in the second parent of the saved commit.
    ///
    /// # Errors
    /// Also while an operation of git is in progress: see [`GitError::InProgress`].
    pub fn remember_start(&self, task: &str, base: &str) -> Result<(), GitError> {
        let name = start_ref(task);
        self.check_no_operation()?;
        self.check_filters(false)?;
        self.remember_refs(task)?;
        let of_base = self.tree_of(base)?;
        let staged = self.staged_commit(task, base, &of_base)?;
        let (tree, raw) = self.snapshot_into(&self.index())?;
        let commit = if staged.is_none() && tree == of_base {
            // The ref keeps the base until the task has ended, whatever happens to the branches.
            base.into()
        } else {
            let parents: Vec<&str> = [base].into_iter().chain(staged.as_deref()).collect();
            self.commit_tree(
                &tree,
                &parents,
                &format!("muleteer: the working directory before {task}\n\n{}", raw::listed(&raw)),
            )?
        };
        self.git(&["update-ref", &name, &commit]).map(drop)
    }

    /// Returns the tree of the working directory when the task began at `base`. If it was not
    /// saved, it is the tree of the base.
    pub fn start(&self, task: &str, base: &str) -> Result<String, GitError> {
        let name = start_ref(task);
        let parent = self.git(&["rev-parse", "--verify", "--quiet", &format!("{name}^")]);
        let full = self.git(&["rev-parse", "--verify", &format!("{base}^{{commit}}")])?;
        match parent {
            Ok(parent) if parent == full => self.git(&["rev-parse", &format!("{name}^{{tree}}")]),
            _ => self.tree_of(base),
        }
    }

    pub fn forget_start(&self, task: &str) {
        drop(self.git(&["update-ref", "-d", &start_ref(task)]));
        self.forget_refs(task);
    }

    pub(super) fn commit_tree(
        &self,
        tree: &str,
        parents: &[&str],
        message: &str,
    ) -> Result<String, GitError> {
        let parents = parents.iter().flat_map(|parent| ["-p", parent]);
        let args: Vec<&str> = ["commit-tree", tree].into_iter().chain(parents).collect();
        self.git_with(&args, message.as_bytes(), None)
    }

    /// Returns the uncommitted changes since `start` as a tree upon HEAD's, or `None` if there are
    /// none.
    pub fn uncommitted_since(&self, start: &str) -> Result<Option<String>, GitError> {
        self.pending(start).map(|pending| pending.map(|(tree, _)| tree))
    }

    /// Returns the tree to commit, and the index entries that lead to it from HEAD's. It leaves out
    /// a person's changes in files that the task changed too. If both changed the same lines, it
    /// has the whole file.
    pub(super) fn pending(&self, start: &str) -> Result<Option<(String, Vec<u8>)>, GitError> {
        let (now, _) = self.add_files(&self.index(), true)?;
        let info = self.carry("HEAD", start, &now)?;
        if info.is_empty() {
            return Ok(None);
        }
        let tree = self.tree_with("HEAD", &info)?;
        let head = self.git(&["rev-parse", "HEAD^{tree}"])?;
        Ok((tree != head).then_some((tree, info)))
    }

    /// Returns the differences of two trees, as `update-index --index-info` reads them.
    pub(super) fn changes(&self, from: &str, to: &str) -> Result<Vec<u8>, GitError> {
        let differences = self.differences(from, to)?;
        Ok(differences.iter().flat_map(|change| change.to.line(&change.path)).collect())
    }

    /// Commits the task's uncommitted changes. No hook runs, because the validation is the check.
    pub fn commit(&self, start: &str, message: &str) -> Result<Option<String>, GitError> {
        let Some((tree, changes)) = self.pending(start)? else { return Ok(None) };
        self.check_filters_of(&paths(&changes))?;
        let head = self.head()?;
        let commit = self.commit_tree(&tree, &[&head], message)?;
        // The index comes first. If it is ahead of HEAD, its changes are staged; if it were behind,
        // they would look reverted.
        self.git_with(&["update-index", "-z", "--index-info"], &changes, None)?;
        self.git(&["update-ref", "-m", "muleteer: task completed", "HEAD", &commit, &head])?;
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(Some(commit))
    }

    /// Resets HEAD to `base` and the files to their state when the task began. Everything is saved
    /// as a ref first, and `on_saved` is called before anything changes. Changes of the commit
    /// `kept`, which is newer than the base, stay. `stand` says where HEAD belongs: a branch that
    /// the agent checked out does not move. Returns `None` if nothing had changed.
    pub fn roll_back(
        &self,
        task: &str,
        base: &str,
        kept: Option<&str>,
        stand: &Stand,
        ignored: &[String],
        on_saved: &mut dyn FnMut(&Saved),
    ) -> Result<Option<Saved>, GitError> {
        let start = self.start(task, base)?;
        let base = self.git(&["rev-parse", "--verify", &format!("{base}^{{commit}}")])?;
        let staged = self.staged_at_start(task, &base);
        let head = self.head_or(&base)?;
        let index = self.index();
        let (now, _) = self.snapshot_into(&index)?;
        let elsewhere = !stand.is_at(self.stands_on()?.as_deref());
        let (end, files) = match kept {
            Some(kept) => (kept, self.with_changes(&start, &base, kept)?),
            None => (base.as_str(), start.clone()),
        };
        if now == files && head == end && !elsewhere {
            self.end_operations()?;
            self.restore_index(staged.as_deref(), &base, end)?;
            return Ok(None);
        }
        let others = self.left_behind(&head, &base, stand)?;
        let saved = self.save("rollback", task, &base, &start, ignored, &others)?;
        on_saved(&saved);
        muleteer_process::fault::point("tasks.saved");
        self.move_to(end, stand)?;
        self.end_operations()?;
        self.stage_again(staged.as_deref(), &base, end)?;
        self.move_files(&index, &now, &files)?;
        self.put_raw(&start_ref(task), &start, &files)?;
        Ok(Some(saved))
    }

    /// Applies the changes between two commits to a tree. A person's changes in the same files
    /// stay.
    pub(super) fn with_changes(
        &self,
        tree: &str,
        from: &str,
        to: &str,
    ) -> Result<String, GitError> {
        let changes = self.carry(tree, from, to)?;
        let index = self.index();
        self.with(&index, &["read-tree".into(), tree.into()], b"")?;
        self.with(&index, &["update-index".into(), "-z".into(), "--index-info".into()], &changes)?;
        self.forget_own(&index)?;
        self.with(&index, &["write-tree".into()], b"")
    }

    /// Returns the commits that no branch has after a rollback and that HEAD's history does not
    /// have: the base, if an agent rewrote history, and the commits on the task's branch while HEAD
    /// was on another one. An undo restores them.
    fn left_behind(&self, head: &str, base: &str, stand: &Stand) -> Result<Vec<String>, GitError> {
        let mut left = vec![base.to_string()];
        if let Stand::On(branch) = stand {
            left.extend(self.tip(branch));
        }
        left.extend(self.brought_in());
        left.dedup();
        let mut lost = vec![];
        for commit in left {
            if !self.contains(head, &commit)? {
                lost.push(commit);
            }
        }
        Ok(lost)
    }

    pub(super) fn move_to(&self, commit: &str, stand: &Stand) -> Result<(), GitError> {
        // The agent may have checked out another branch, which is not ours to move.
        match stand {
            Stand::Anywhere => {}
            Stand::On(_) if stand.is_at(self.stands_on()?.as_deref()) => {}
            Stand::On(branch) => {
                self.git(&["symbolic-ref", "HEAD", &format!("refs/heads/{branch}")])?;
                // Otherwise an unfinished rebase of the agent would continue on this branch.
                drop(self.git(&["rebase", "--quit"]));
            }
            Stand::Detached => drop(self.git(&["update-ref", "--no-deref", "HEAD", commit])?),
        }
        self.git(&["reset", "-q", "--mixed", commit]).map(drop)
    }

    /// Moves the files in the working directory from one tree to another. The index must be the
    /// first one's.
    pub(super) fn move_files(&self, index: &Index, from: &str, to: &str) -> Result<(), GitError> {
        if from == to {
            return Ok(());
        }
        let two_way = ["read-tree", "-m", "-u", from, to].map(String::from);
        if self.with(index, &two_way, b"").is_err() {
            // An ignored file is in the way of one that was tracked before.
            let reset = ["read-tree", "--reset", "-u", to].map(String::from);
            match self.with(index, &reset, b"") {
                // git fails on some attributes. Then the files are written unconverted.
                Err(GitError::Failed { .. }) => {
                    drop(self.without_attributes()?.with(index, &reset, b"")?)
                }
                done => drop(done?),
            }
        }
        drop(self.git(&["update-index", "-q", "--refresh"]));
        self.hide_sparse(index)
    }
}

/// Converts the input of `update-index -z --index-info` to that of `check-attr -z --stdin`.
fn paths(info: &[u8]) -> Vec<u8> {
    let path = |line: &[u8]| line.splitn(2, |byte| *byte == b'\t').nth(1).map(<[u8]>::to_vec);
    info.split_inclusive(|byte| *byte == 0).filter_map(path).flatten().collect()
}

/// A temporary index file. It is removed on drop.
#[derive(Debug)]
pub(super) struct Index(pub(super) PathBuf);

impl Drop for Index {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
        drop(std::fs::remove_file(self.0.with_extension("lock")));
    }
}

/// Escapes a path as a pattern that matches only this path.
pub(super) fn escaped(path: &str) -> String {
    path.chars()
        .flat_map(|c| matches!(c, '*' | '?' | '[' | '\\').then_some('\\').into_iter().chain([c]))
        .collect()
}

pub(super) fn start_ref(task: &str) -> String {
    format!("refs/muleteer/start/{}", ref_part(task))
}

/// Converts an id to a part of a ref's name.
pub(super) fn ref_part(id: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let plain: String = id.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if plain == id { plain } else { format!("{plain}-{:08x}", hash(id)) }
}

/// Computes the FNV-1a hash, by which two ids with the same plain form differ.
pub(super) fn hash(text: &str) -> u32 {
    text.bytes()
        .fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
