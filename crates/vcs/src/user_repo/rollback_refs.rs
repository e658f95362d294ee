//! Refs with the work that rollbacks remove, and its restoration.

use crate::command::blocking::failed;
use crate::user_repo::snapshot_trees::ref_part;
use crate::user_repo::{Git, GitError, raw};

/// The old value of a ref that must not exist, for names of any length.
const ABSENT: &str = "";

/// The work that one rollback removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub name: String,
    pub commit: String,
    /// The commit that the rollback went back to.
    pub base: String,
    /// Where HEAD was before.
    pub head: String,
    pub start: String,
    /// The commit holds a person's changes that a task removed. Only files are restored, wherever
    /// HEAD is.
    pub files_only: bool,
}

impl Saved {
    /// Returns the task from the name of the ref.
    pub fn task(&self) -> Option<String> {
        self.name.rsplit('/').nth(1).map(String::from)
    }
}

impl Git {
    /// Saves the working directory and HEAD as a new ref. `others` are further commits to save,
    /// which HEAD's history does not have.
    pub(super) fn save(
        &self,
        kind: &str,
        task: &str,
        base: &str,
        start: &str,
        ignored: &[String],
        others: &[String],
    ) -> Result<Saved, GitError> {
        let index = self.index();
        let (mut tree, mut raw) = self.snapshot_into(&index)?;
        // Listed files are saved although they are ignored: an agent may have overwritten them.
        let there: Vec<_> = ignored.iter().filter(|path| self.top.join(path).exists()).collect();
        if !there.is_empty() {
            let mut args: Vec<String> = ["add", "-A", "-f"].map(String::from).into();
            args.extend(self.is_sparse().then(|| "--sparse".into()));
            args.push("--".into());
            args.extend(there.iter().map(|path| format!(":(top,literal){path}")));
            if let Err(why @ GitError::Failed { .. }) = self.with(&index, &args, b"") {
                tracing::warn!(%why, "taken in byte for byte");
                self.without_attributes()?.with(&index, &args, b"")?;
                raw.extend(there.iter().flat_map(|path| path.bytes().chain([0])));
            }
            self.forget_own(&index)?;
            tree = self.with(&index, &["write-tree".into()], b"")?;
        }
        let head = self.head_or(base)?;
        let message = format!(
            "muleteer: saved before a {kind} of {task}\n\n\
             Task: {task}\nBase: {base}\nHead: {head}\nStart: {start}\n{}",
            raw::listed(&raw)
        );
        let parents: Vec<&str> =
            [head.as_str()].into_iter().chain(others.iter().map(String::as_str)).collect();
        let commit = self.commit_tree(&tree, &parents, &message)?;
        let name = self.name_anew(&format!("refs/muleteer/{kind}/{}", ref_part(task)), &commit)?;
        Ok(Saved { name, commit, base: base.into(), head, start: start.into(), files_only: false })
    }

    /// Makes a ref for a commit with the next free name in a folder.
    pub(super) fn name_anew(&self, folder: &str, commit: &str) -> Result<String, GitError> {
        for number in 1..10_000 {
            let name = format!("{folder}/{number}");
            // Git fails if the ref exists.
            match self.git(&["update-ref", &name, commit, ABSENT]) {
                Ok(_) => return Ok(name),
                Err(error) if !self.is_ref(&name) => return Err(error),
                Err(_) => {}
            }
        }
        Err(failed("update-ref", &format!("{folder} is full")))
    }

    fn is_ref(&self, name: &str) -> bool {
        self.git(&["rev-parse", "--verify", "--quiet", name]).is_ok()
    }

    /// Returns the work saved before rollbacks of a task, or under a full name, newest first.
    pub fn saved(&self, of: Option<&str>) -> Result<Vec<Saved>, GitError> {
        let pattern = match of {
            Some(name) if name.starts_with("refs/muleteer/") => name.to_string(),
            Some(task) => format!("refs/muleteer/rollback/{}/", ref_part(task)),
            None => "refs/muleteer/rollback/".into(),
        };
        let format = "--format=%(refname)%00%(objectname)%00%(contents:body)%01";
        let text = self.git(&[
            "for-each-ref",
            "--sort=-committerdate",
            "--sort=-refname",
            format,
            &pattern,
        ])?;
        let read = |record: &str| {
            let mut fields = record.trim_start().split('\0');
            let (name, commit, body) = (fields.next()?, fields.next()?, fields.next()?);
            let field = |key: &str| {
                body.lines().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().into())
            };
            Some(Saved {
                name: name.into(),
                commit: commit.into(),
                base: field("Base:")?,
                head: field("Head:")?,
                start: field("Start:")?,
                files_only: field("Files:").is_some_and(|which: String| which == "only"),
            })
        };
        let mut all: Vec<Saved> = text.split('\u{1}').filter_map(read).collect();
        // Of two refs from the same second, the one with the higher number is newer.
        all.sort_by(|a, b| muleteer_model::task_list::select::by_id(&b.name, &a.name));
        Ok(all)
    }

    /// Returns the newest of these.
    pub fn newest(&self, saved: &[Saved]) -> Option<Saved> {
        let when = |one: &Saved| {
            self.git(&["show", "-s", "--format=%ct", &one.commit])
                .ok()
                .and_then(|text| text.parse::<u64>().ok())
        };
        // The refs of a task are sorted, the newest first, so the first of equal times wins.
        let mut best: Option<(Option<u64>, &Saved)> = None;
        for one in saved {
            let at = when(one);
            if best.as_ref().is_none_or(|(known, _)| at > *known) {
                best = Some((at, one));
            }
        }
        best.map(|(_, one)| one.clone())
    }

    /// Restores the work that a rollback removed. It saves the present state first, and returns the
    /// name of that.
    ///
    /// # Errors
    /// HEAD is no longer where the rollback put it, so commits would be lost.
    pub fn undo(&self, saved: &Saved, ignored: &[String]) -> Result<Option<String>, GitError> {
        if saved.files_only {
            return self.undo_files(saved, ignored);
        }
        self.check_no_operation()?;
        let head = self.head()?;
        if head != saved.base {
            let said = format!(
                "HEAD is no longer at {}; `git branch NAME {}` keeps the saved work beside it",
                &saved.base[..saved.base.len().min(12)],
                saved.name
            );
            return Err(failed("undo", &said));
        }
        let index = self.index();
        let (now, _) = self.snapshot_into(&index)?;
        let kept = if now == saved.start {
            None
        } else {
            Some(self.save("undo", "undo", &head, &now, ignored, &[])?.name)
        };
        let staged = self.index_tree()?;
        self.git(&["reset", "-q", "--mixed", &saved.head])?;
        self.stage_again(staged.as_deref(), &head, &saved.head)?;
        let wanted = self.git(&["rev-parse", &format!("{}^{{tree}}", saved.commit)])?;
        self.move_files(&index, &now, &wanted)?;
        self.put_raw(&saved.commit, &wanted, &wanted)?;
        Ok(kept)
    }

    /// Fetches the saved work of a clone into the project, under the same name or the next free
    /// one.
    pub fn adopt(&self, clone: &Self, saved: &Saved) -> Result<String, GitError> {
        let from = clone.top.to_string_lossy();
        self.fetch_objects(&from, &saved.name)?;
        let folder = saved.name.rsplit_once('/').map_or(saved.name.as_str(), |(folder, _)| folder);
        for number in 1..10_000 {
            let name = format!("{folder}/{number}");
            let there = self.git(&["rev-parse", "--verify", "--quiet", &name]);
            if there.as_ref() == Ok(&saved.commit) {
                return Ok(name);
            }
            if there.is_ok() {
                continue;
            }
            match self.git(&["update-ref", &name, &saved.commit, ABSENT]) {
                Ok(_) => return Ok(name),
                Err(error) if !self.is_ref(&name) => return Err(error),
                Err(_) => {}
            }
        }
        Err(failed("update-ref", &format!("{folder} is full")))
    }
}
