//! The last homecoming of a clone, before the clone is removed.

use crate::command::{CommandError, git, run};
use crate::error::RepoError;
use crate::lfs::{self, Store};
use crate::worktree::home::{BringError, Homecoming};
use crate::worktree::tip;
use muleteer_model::dispatch::work::WorkHome;

impl Homecoming<'_> {
    /// Brings home the work that is still only in the clone, which is about to be removed. A branch
    /// that the person deleted after another branch had its commits stays deleted.
    ///
    /// # Errors
    /// The commits could not be brought, so the clone must stay.
    pub async fn bring_last(&self) -> Result<WorkHome, BringError> {
        let deleted = self.deleted().await;
        let before = match deleted {
            Some(_) => self.list("refs/heads/").await?,
            None => vec![],
        };
        let mut work = self.bring().await?;
        if let Some(commit) = deleted {
            let name = format!("refs/heads/{}", work.branch);
            let is_new = !before.iter().any(|(_, known)| *known == name);
            if is_new && work.commit.as_deref() == Some(&commit) {
                self.delete(&name, &commit).await?;
            }
        }
        match self.bring_objects().await {
            Ok(rest) => work.skipped.extend(rest),
            Err(why) => work.skipped.push(format!("objects of git-lfs ({why})")),
        }
        Ok(work)
    }

    /// Brings the objects of git-lfs that no commit of the agent needs: a person may have fetched a
    /// commit from the clone by hand. Returns what stays.
    async fn bring_objects(&self) -> Result<Option<String>, RepoError> {
        if std::fs::symlink_metadata(self.git_dir().join("lfs")).is_err() {
            return Ok(None);
        }
        let common = crate::worktree::git_dir(self.project).await;
        let common = common.ok_or(CommandError::NoObjectFolder)?;
        let store = Store::of_person(self.project, &common).await;
        lfs::take_rest(store, self.git_dir(), self.stop.clone()).await
    }

    /// Returns the commit of the branch that came home earlier, if the branch is gone and another
    /// ref of the person's has the commit.
    async fn deleted(&self) -> Option<String> {
        let before = self.before?;
        let commit = before.commit.clone()?;
        let is_gone = tip(self.project, &before.branch).await.is_none();
        (is_gone && self.is_elsewhere(&commit).await).then_some(commit)
    }

    /// Deletes a ref if it still has this commit.
    async fn delete(&self, name: &str, commit: &str) -> Result<(), CommandError> {
        let mut delete = git(self.project);
        delete.args(["update-ref", "-d", name, commit]);
        run(&mut delete, "cannot delete the branch").await.map(drop)
    }
}
