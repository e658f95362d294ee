//! Where the work of a run is when it has ended or rests, and what a person does next.

use crate::spec_run::event::{KeptWork, RunStatus};
use crate::spec_run::state::Run;
use serde::Serialize;

/// The branch of a run, and the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Whereabouts {
    /// In the person's repository; null where the run made no commit.
    pub branch: Option<String>,
    /// The branch that it began from.
    pub base: Option<String>,
    /// How many commits the run made, where it did not pass.
    pub commits: Option<u32>,
    /// Its name at the remote.
    pub pushed: Option<String>,
    /// Where a pull request can be made by hand.
    pub page: Option<String>,
    pub pr_url: Option<String>,
    /// Why `gh` made no pull request, where it was asked to.
    pub pr_trouble: Option<String>,
    /// Where clones of its agents are that were not finished with.
    pub clones: Option<String>,
    /// Why the branch could not be brought into the repository.
    pub trouble: Option<String>,
    /// A command, or what to do in words.
    pub next: Option<String>,
}

impl Whereabouts {
    /// `None` while the run is under way.
    pub fn of(run: &Run) -> Option<Self> {
        if run.is_live() {
            return None;
        }
        let kept = run.kept.clone().unwrap_or_default();
        let KeptWork { branch, commits, clones, trouble, .. } = kept;
        let of_kept = run.kept.is_some();
        let mut found = Self {
            branch: if of_kept { branch } else { run.published.clone() },
            base: run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()),
            commits: of_kept.then_some(commits),
            pushed: run.pushed.as_ref().map(|pushed| pushed.branch.clone()),
            page: run.pushed.as_ref().and_then(|pushed| pushed.page.clone()),
            pr_url: run.pr_url.clone(),
            pr_trouble: run.pushed.as_ref().and_then(|pushed| pushed.trouble.clone()),
            clones,
            trouble,
            next: None,
        };
        found.next = found.next_step(run);
        Some(found)
    }

    fn next_step(&self, run: &Run) -> Option<String> {
        let resume = format!("muleteer run --resume {}", run.id());
        let approve = format!("{resume} --yes");
        let passed = run.error.is_none() && run.outcome.is_some();
        match run.status() {
            RunStatus::AwaitingApproval => return Some(approve),
            RunStatus::Completed | RunStatus::Partial if passed => {}
            _ => return Some(resume),
        }
        if let Some(url) = &self.pr_url {
            return Some(format!("review and merge {url}"));
        }
        if let Some(page) = &self.page {
            return Some(format!("make a pull request: {page}"));
        }
        if let Some(pushed) = &self.pushed {
            return Some(format!("make a pull request of the branch {pushed} at the remote"));
        }
        let (branch, base) = (self.branch.as_ref()?, self.base.as_ref()?);
        (branch != base).then(|| format!("git checkout {base} && git merge {branch}"))
    }
}
