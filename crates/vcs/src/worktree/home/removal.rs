//! The last homecoming of a clone, before the clone is removed.

use crate::command::{CommandError, git, run};
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
        let Some(commit) = self.deleted().await else { return self.bring().await };
        let before = self.list("refs/heads/").await?;
        let work = self.bring().await?;
        let name = format!("refs/heads/{}", work.branch);
        let is_new = !before.iter().any(|(_, known)| *known == name);
        if is_new && work.commit.as_deref() == Some(&commit) {
            self.delete(&name, &commit).await?;
        }
        Ok(work)
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
