//! Where the work of a run is once it has ended or rests, and the user's next step.

use crate::spec_run::event::{KeptWork, RunStatus};
use crate::spec_run::state::Run;
use serde::Serialize;

/// The branch of a run, and the next step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct Whereabouts {
    /// In the user's repository; null if the run made no commit.
    pub branch: Option<String>,
    /// The branch from which the run began.
    pub base: Option<String>,
    /// The number of the run's commits, if it did not pass.
    pub commits: Option<u32>,
    /// The name of the branch at the remote.
    pub pushed: Option<String>,
    /// The web page for a pull request.
    pub page: Option<String>,
    pub pr_url: Option<String>,
    /// Why `gh` made no pull request, if it was asked to.
    pub pr_trouble: Option<String>,
    /// The directory of clones of unfinished agents.
    pub clones: Option<String>,
    /// Why the branch could not be fetched into the repository.
    pub trouble: Option<String>,
    /// A command, or an instruction in words.
    pub next: Option<String>,
}

impl Whereabouts {
    /// Returns `None` while the run runs.
    pub fn of(run: &Run) -> Option<Self> {
        if run.is_live() {
            return None;
        }
        let publication = &run.publication;
        let of_kept = publication.preserved.is_some();
        let kept = publication.preserved.clone().unwrap_or_default();
        let KeptWork { branch, commits, clones, trouble, .. } = kept;
        let pushed = publication.pushed.as_ref();
        let mut found = Self {
            branch: if of_kept { branch } else { publication.branch.clone() },
            base: run.frozen.as_ref().map(|frozen| frozen.base_branch.clone()),
            commits: of_kept.then_some(commits),
            pushed: pushed.map(|pushed| pushed.branch.clone()),
            page: pushed.and_then(|pushed| pushed.page.clone()),
            pr_url: publication.pr_url.clone(),
            pr_trouble: pushed.and_then(|pushed| pushed.trouble.clone()),
            clones,
            trouble,
            next: None,
        };
        found.next = found.next_step(run);
        Some(found)
    }

    fn next_step(&self, run: &Run) -> Option<String> {
        let resume = run.resume_command();
        let passed = run.error().is_none() && run.outcome().is_some();
        match run.status() {
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
