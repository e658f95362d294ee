//! Uncommitted changes that a person had when a task began, and their fate during it. An agent may
//! remove them, as `git reset --hard` or `git clean` does, or overwrite them, and pass its
//! validation. Then our copy is the only one.

use crate::user_repo::merge::{Change, Name};
use crate::user_repo::snapshot_trees::{ref_part, start_ref};
use crate::user_repo::{Git, GitError, Saved};
use std::collections::HashMap;

/// The most lost paths that a message names.
const NAMED: usize = 5;

/// Changes of a person that the working directory no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The ref with the changes.
    pub saved: Saved,
    /// The paths, for a message.
    pub paths: String,
    /// The paths whose present content is committed, with the rest of the person's changes in it.
    /// Empty if there are none.
    pub committed: String,
}

impl Git {
    /// Saves a person's uncommitted changes from the beginning of a task at `base` that were
    /// removed or overwritten since. An undo restores them. The task's work is committed before
    /// this call. A repetition returns the same ref.
    pub fn keep_lost(&self, task: &str, base: &str, start: &str) -> Result<Option<Lost>, GitError> {
        let base = self.tree_of(base)?;
        if base == start {
            return Ok(None);
        }
        let now = self.snapshot()?;
        let lost = self.lost(&base, start, &now)?;
        if lost.is_empty() {
            return Ok(None);
        }
        let info: Vec<u8> =
            lost.iter().flat_map(|(change, _)| change.to.line(&change.path)).collect();
        let tree = self.tree_with(&now, &info)?;
        let whole: Vec<Name> = lost
            .iter()
            .filter(|(_, whole)| *whole)
            .map(|(change, _)| change.path.clone())
            .collect();
        let paths: Vec<Name> = lost.into_iter().map(|(change, _)| change.path).collect();
        let (paths, committed) = (named(&paths), named(&whole));
        for saved in self.saved(Some(task))?.into_iter().filter(|saved| saved.files_only) {
            let trees =
                [format!("{}^{{tree}}", saved.commit), format!("{}^1^{{tree}}", saved.commit)];
            if self.git(&["rev-parse", &trees[0]])? == tree
                && self.git(&["rev-parse", &trees[1]])? == now
            {
                return Ok(Some(Lost { saved, paths, committed }));
            }
        }
        let head = self.head()?;
        let beside = self.commit_tree(
            &now,
            &[&head],
            &format!("muleteer: the working directory after {task}"),
        )?;
        let message = format!(
            "muleteer: what lay about before {task} and is gone since\n\n\
             Task: {task}\nBase: {head}\nHead: {head}\nStart: {now}\nFiles: only\n{}",
            self.lines_of(&start_ref(task))?
        );
        let commit = self.commit_tree(&tree, &[&beside], &message)?;
        let name =
            self.name_anew(&format!("refs/muleteer/rollback/{}", ref_part(task)), &commit)?;
        let saved = Saved { name, commit, base: head.clone(), head, start: now, files_only: true };
        Ok(Some(Lost { saved, paths, committed }))
    }

    /// Returns a person's changes from `base` to `start` that neither the tree `now` nor a commit
    /// has, each with whether the present content was committed since.
    fn lost(&self, base: &str, start: &str, now: &str) -> Result<Vec<(Change, bool)>, GitError> {
        let since: HashMap<Name, _> = self
            .differences(start, now)?
            .into_iter()
            .map(|change| (change.path, change.to))
            .collect();
        let committed: HashMap<Name, _> = self
            .differences(base, &self.tree_of("HEAD")?)?
            .into_iter()
            .map(|change| (change.path, change.to))
            .collect();
        let mut lost = vec![];
        // A deletion is no work that could be lost.
        for theirs in
            self.differences(base, start)?.into_iter().filter(|change| change.to.is_there())
        {
            let Some(found) = since.get(&theirs.path) else { continue };
            let done = committed.get(&theirs.path).unwrap_or(&theirs.from);
            // If the file is the merge of the task's change and theirs, nothing of theirs is lost.
            let is_in = *done == theirs.to
                || self.merged(done, &theirs.from, &theirs.to)?.as_ref() == Some(found);
            if !is_in {
                let is_committed = found.is_there() && committed.get(&theirs.path) == Some(found);
                lost.push((theirs, is_committed));
            }
        }
        Ok(lost)
    }

    /// Restores files and does not move HEAD. Later changes stay if they do not conflict.
    pub(super) fn undo_files(
        &self,
        saved: &Saved,
        ignored: &[String],
    ) -> Result<Option<String>, GitError> {
        let index = self.index();
        let (now, _) = self.snapshot_into(&index)?;
        let brought = self.carry(&now, &format!("{}^1", saved.commit), &saved.commit)?;
        let wanted = self.tree_with(&now, &brought)?;
        if wanted == now {
            return Ok(None);
        }
        let kept = self.save("undo", "undo", &self.head()?, &now, ignored, &[])?.name;
        self.move_files(&index, &now, &wanted)?;
        self.put_raw(&saved.commit, &saved.commit, &wanted)?;
        Ok(Some(kept))
    }
}

/// Formats the first of these paths on one line, for a message.
pub(super) fn named(paths: &[Name]) -> String {
    let text = |path: &Name| String::from_utf8_lossy(path).replace(char::is_control, "?");
    let some: Vec<_> = paths.iter().take(NAMED).map(text).collect();
    match paths.len() - some.len() {
        0 => some.join(", "),
        more => format!("{} and {more} more", some.join(", ")),
    }
}
