//! Recovers an interrupted task, and rolls an attempt back.

use crate::task_list::steps::{Place, Recorded, StepError, Verdict, describe};
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Task;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::head_check::Stand;
use muleteer_model::task_list::session::recover::{self, Evidence, Plan};

/// The result of recovering an interrupted task.
#[derive(Debug)]
pub enum Recovered {
    /// The task will be resumed.
    Resume,
    /// The validation passed, so only the record is missing.
    Passed,
    Failed(Box<Recorded>),
}

impl Place {
    pub(super) fn roll_back(&self, task: &Task, base: &str) -> Result<(), StepError> {
        let ignored = self.read().map(|list| list.save_ignored).unwrap_or_default();
        let in_clone = self.is_in_clone();
        let stand = if in_clone { &Stand::Anywhere } else { &self.stand };
        // Others may work in the project itself. A clone is its worker's alone, and rewritten
        // commits belong to nobody.
        let alone = in_clone || self.astray(base)?.is_some() || !self.git.contains("HEAD", base)?;
        let commits = if alone { vec![] } else { self.git.commits_since(base)? };
        let kept = match commits.is_empty() {
            true => None,
            false => recover::kept(&commits, &self.read()?, &task.id, &self.root.completions()),
        };
        let end = kept.unwrap_or(base);
        let mut adopted = Ok(());
        let mut on_saved = |saved: &muleteer_vcs::user_repo::Saved| {
            let name = if in_clone {
                self.project.adopt(&self.git, saved)
            } else {
                Ok(saved.name.clone())
            };
            match name {
                Ok(name) => self.note(vec![Entry::rollback(&task.id, end, Some(&name))]),
                Err(error) => adopted = Err(error),
            }
        };
        let saved = self.git.roll_back(&task.id, base, kept, stand, &ignored, &mut on_saved)?;
        adopted?;
        if saved.is_none() {
            self.note(vec![Entry::rollback(&task.id, end, None)]);
        }
        Ok(())
    }

    /// Returns the evidence of an interrupted task.
    pub fn evidence(&self, task: &Task) -> Result<Evidence, StepError> {
        let base = task.started_at_commit.as_deref().unwrap_or_default();
        let checkpoints = !task.checkpoints.is_empty();
        if !self.git.exists(base) {
            let nothing = Evidence {
                uncommitted: false,
                commits: false,
                checkpoints,
                checkpoint_holds: false,
                base_exists: false,
            };
            return Ok(nothing);
        }
        let start = self.git.start(&task.id, base)?;
        let uncommitted = self.git.uncommitted_since(&start)?.is_some();
        let commits = self.git.commits_since(base)?;
        let last = task.checkpoints.last().and_then(|last| last.tree.as_deref());
        let checkpoint_holds = match last {
            Some(tree) => self.git.snapshot()? == tree,
            None => false,
        };
        // In a worker's clone nobody else commits.
        let is_its = |message: &str| {
            (self.is_in_clone() && !self.is_everybody_s) || recover::names(message, task)
        };
        let commits = commits.iter().any(|(_, message)| is_its(message));
        Ok(Evidence { uncommitted, commits, checkpoints, checkpoint_holds, base_exists: true })
    }

    /// Carries out the action of the recovery matrix for an interrupted task.
    pub fn recover(&self, task: &Task, stop: &dyn Fn() -> bool) -> Result<Recovered, StepError> {
        self.sweep();
        self.disown(&task.id, task.started_at_commit.as_deref().unwrap_or_default());
        let found = self.evidence(task)?;
        let plan = recover::decide(found);
        let (action, reason) = plan.words(found);
        self.take_over(task)?;
        self.note(vec![Entry::recovery(&task.id, action, &reason)]);
        // The task has nothing to roll back, because the commits since then are somebody else's.
        let left_alone = |message: &str| {
            self.clean_up(task, stop);
            self.record_failure(task, Category::SessionTimeout, message)
                .map(|done| Recovered::Failed(Box::new(done)))
        };
        let lost = |message: &str| {
            if self.is_everybody_s {
                return left_alone(message);
            }
            self.fail(task, Category::SessionTimeout, message, stop)
                .map(|done| Recovered::Failed(Box::new(done)))
        };
        match plan {
            Plan::NoBase | Plan::NoProgress => left_alone("No progress detected"),
            Plan::WorkLost => left_alone("The files do not match the checkpoints: work was lost"),
            Plan::Resume => Ok(Recovered::Resume),
            Plan::Validate { commit_first } => {
                let base = task.started_at_commit.as_deref().unwrap_or_default();
                if commit_first {
                    let start = self.git.start(&task.id, base)?;
                    self.git
                        .commit(&start, &format!("{}: {} (interrupted)", task.id, task.title))?;
                }
                match self.validate(task, stop)? {
                    Verdict::Passed { .. } => Ok(Recovered::Passed),
                    Verdict::Stopped => Err(StepError::Other("it was cancelled".into())),
                    verdict => {
                        self.remember(task, &verdict);
                        let (_, message) = describe(&verdict, None);
                        lost(&format!("interrupted, and the existing work did not pass: {message}"))
                    }
                }
            }
        }
    }

    /// Hands an interrupted task to a worker, which finds it in progress and resumes it. With
    /// `None` it starts from the beginning.
    pub fn hand_over(&self, id: &str, to: Option<String>) -> Result<(), StepError> {
        let mut tx = self.begin()?;
        if let Some(task) = tx.list.get_mut(id) {
            match to {
                Some(to) => task.claimed_by = Some(to),
                None => claim::release(task),
            }
        }
        tx.commit()?;
        Ok(())
    }

    /// Takes over the claim, so that the later steps may change the task.
    fn take_over(&self, task: &Task) -> Result<(), StepError> {
        let mut tx = self.begin()?;
        let now = tx.now();
        if let Some(found) = tx.list.get_mut(&task.id) {
            if self.is_everybody_s {
                // Another worker may have renewed or recovered it since the check.
                claim::is_stale(found, task, &self.worker, now)?;
            }
            found.claimed_by = Some(self.worker.clone());
        }
        claim::renew(&mut tx.list, &task.id, &self.worker, now, claim::LEASE)?;
        tx.commit()?;
        Ok(())
    }
}
