//! The state of git that a person has beside files and commits: an operation in progress (a merge,
//! a rebase, …), staged changes, and a sparse checkout.
//!
//! No task begins while an operation is in progress, because its agent could commit in the middle
//! of it. So an operation that is found afterwards is the agent's. A rollback ends it, and its
//! commits are in the saved ref. Staged changes are remembered with the start of a task, and a
//! rollback stages them again.

use crate::command::blocking::failed;
use crate::user_repo::snapshot_trees::{Index, start_ref};
use crate::user_repo::{Git, GitError};
use std::collections::HashSet;

/// Files in the git directory of a working directory, and the operation that each belongs to.
const OPERATIONS: [(&str, &str); 9] = [
    ("MERGE_HEAD", "a merge is in progress"),
    ("CHERRY_PICK_HEAD", "a cherry-pick is in progress"),
    ("REVERT_HEAD", "a revert is in progress"),
    ("rebase-merge", "a rebase is in progress"),
    ("rebase-apply/applying", "`git am` is in progress"),
    ("rebase-apply", "a rebase is in progress"),
    ("sequencer", "a cherry-pick or revert is in progress"),
    ("BISECT_LOG", "a bisect is in progress"),
    ("BISECT_START", "a bisect is in progress"),
];
/// Each ends one operation, and moves neither HEAD nor files.
const QUIT: [[&str; 2]; 5] = [
    ["merge", "--quit"],
    ["cherry-pick", "--quit"],
    ["revert", "--quit"],
    ["rebase", "--quit"],
    ["am", "--quit"],
];
/// Commits that an unfinished operation brings in.
const BROUGHT_IN: [&str; 3] = ["MERGE_HEAD", "CHERRY_PICK_HEAD", "REBASE_HEAD"];

impl Git {
    /// Returns the operation in progress; `None` if there is none.
    pub fn in_progress(&self) -> Result<Option<&'static str>, GitError> {
        let is_there = |name: &str| std::fs::symlink_metadata(self.git_dir.join(name)).is_ok();
        if let Some((_, what)) = OPERATIONS.iter().find(|(name, _)| is_there(name)) {
            return Ok(Some(what));
        }
        // As after a `git stash pop` with conflicts.
        let unmerged = self.unmerged()?;
        Ok((!unmerged.is_empty()).then_some("files have unresolved conflicts"))
    }

    /// Checks that no operation is in progress.
    ///
    /// # Errors
    /// [`GitError::InProgress`].
    pub fn check_no_operation(&self) -> Result<(), GitError> {
        match self.in_progress()? {
            Some(what) => Err(GitError::InProgress { dir: self.top.clone(), what }),
            None => Ok(()),
        }
    }

    /// Ends the operations that a task's agent has left. HEAD and the files stay as they are.
    pub fn end_operations(&self) -> Result<(), GitError> {
        if self.is_clone || self.in_progress()?.is_none() {
            return Ok(());
        }
        for command in QUIT {
            // Each fails where there is nothing to end.
            drop(self.git(&command));
        }
        if self.git_dir.join("BISECT_START").exists() || self.git_dir.join("BISECT_LOG").exists() {
            drop(self.git(&["bisect", "reset", "HEAD"]));
        }
        let unmerged = self.unmerged()?;
        if !unmerged.is_empty() {
            let args = ["reset", "-q", "--pathspec-from-file=-", "--pathspec-file-nul"];
            let literal: Vec<u8> = unmerged
                .iter()
                .flat_map(|name| [b":(top,literal)", name.as_slice(), b"\0"].concat())
                .collect();
            self.git_with(&args, &literal, None)?;
        }
        Ok(())
    }

    /// Returns the commits of an unfinished operation, which a rollback removes.
    pub(super) fn brought_in(&self) -> Vec<String> {
        let commit =
            |name| self.git(&["rev-parse", "--verify", "--quiet", &format!("{name}^{{commit}}")]);
        BROUGHT_IN.into_iter().filter_map(|name| commit(name).ok()).collect()
    }

    fn unmerged(&self) -> Result<HashSet<Vec<u8>>, GitError> {
        let args = ["ls-files", "-z", "--unmerged", "--full-name", "--", ":(top)"];
        let listed = self.bytes(&args, b"", None)?;
        let entries = listed.split(|byte| *byte == 0);
        let name = |entry: &[u8]| entry.splitn(2, |byte| *byte == b'\t').nth(1).map(<[u8]>::to_vec);
        Ok(entries.filter_map(name).collect())
    }

    /// Returns the tree of the index without the harness's files; `None` if there is no index, or
    /// it has conflicts.
    pub(super) fn index_tree(&self) -> Result<Option<String>, GitError> {
        let index = self.index();
        self.copy_index(&index).map_err(|error| failed("copy of the index", &error.to_string()))?;
        if !index.0.exists() {
            return Ok(None);
        }
        self.forget_own(&index)?;
        match self.with(&index, &["write-tree".into()], b"") {
            Err(error @ GitError::Unheard { .. }) => Err(error),
            tree => Ok(tree.ok()),
        }
    }

    /// Returns a commit of what is staged beyond `base`, whose tree without the harness's files is
    /// `of_base`; `None` if nothing is.
    pub(super) fn staged_commit(
        &self,
        task: &str,
        base: &str,
        of_base: &str,
    ) -> Result<Option<String>, GitError> {
        let Some(tree) = self.index_tree()?.filter(|tree| tree != of_base) else {
            return Ok(None);
        };
        let message = format!("muleteer: what was staged before {task}");
        self.commit_tree(&tree, &[base], &message).map(Some)
    }

    /// Returns the tree of the index at the start of a task; `None` if nothing was staged, or that
    /// is not known.
    pub(super) fn staged_at_start(&self, task: &str, base: &str) -> Option<String> {
        let start = start_ref(task);
        let of = |what: &str| {
            let name = format!("{start}{what}");
            self.git(&["rev-parse", "--verify", "--quiet", &name]).ok()
        };
        // The start may be the base itself, which may be a merge.
        (of("^1")? == base).then(|| of("^2^{tree}")).flatten()
    }

    /// Stages on `end`, which the index has, what a person had staged on `base`.
    pub(super) fn stage_again(
        &self,
        staged: Option<&str>,
        base: &str,
        end: &str,
    ) -> Result<(), GitError> {
        let Some(staged) = staged else { return Ok(()) };
        let info = self.carry(end, &self.tree_of(base)?, staged)?;
        if !info.is_empty() {
            let args = ["update-index", "--replace", "-z", "--index-info"];
            self.git_with(&args, &info, None)?;
        }
        drop(self.git(&["update-index", "-q", "--refresh"]));
        Ok(())
    }

    /// Puts the index to `end` with what a person had staged, where only the index differs.
    pub(super) fn restore_index(
        &self,
        staged: Option<&str>,
        base: &str,
        end: &str,
    ) -> Result<(), GitError> {
        let of_end = self.tree_of(end)?;
        let wanted = match staged {
            Some(staged) => {
                let info = self.carry(&of_end, &self.tree_of(base)?, staged)?;
                self.tree_with(&of_end, &info)?
            }
            None => of_end,
        };
        if self.index_tree()?.as_ref() == Some(&wanted) {
            return Ok(());
        }
        self.git(&["reset", "-q", "--mixed", end])?;
        self.stage_again(staged, base, end)
    }

    /// Whether the person has narrowed the checkout. git then refuses to add files outside of it,
    /// unless it is told to.
    pub(super) fn is_sparse(&self) -> bool {
        self.git_dir.join("info/sparse-checkout").exists()
    }

    /// Marks files outside of a sparse checkout as such again, after a move of files has removed
    /// them: git would take them for deleted. `index` is the one by which they were moved.
    pub(super) fn hide_sparse(&self, index: &Index) -> Result<(), GitError> {
        if !self.is_sparse() {
            return Ok(());
        }
        let deleted = ["ls-files", "-z", "--deleted", "--full-name", "--", ":(top)"];
        let deleted = self.bytes(&deleted, b"", None)?;
        if deleted.is_empty() {
            return Ok(());
        }
        let tagged = ["ls-files", "-z", "-t", "--full-name", "--", ":(top)"];
        let tagged = self.bytes(&tagged, b"", Some(&index.0))?;
        let outside: HashSet<&[u8]> =
            tagged.split(|byte| *byte == 0).filter_map(|line| line.strip_prefix(b"S ")).collect();
        let hidden: Vec<u8> = deleted
            .split(|byte| *byte == 0)
            .filter(|name| outside.contains(name))
            .flat_map(|name| [name, b"\0"].concat())
            .collect();
        if !hidden.is_empty() {
            let args = ["update-index", "-z", "--skip-worktree", "--stdin"];
            self.git_with(&args, &hidden, None)?;
        }
        Ok(())
    }
}
