//! The start of a session: recovers interrupted tasks, checks the environment, and counts it.

use crate::task_list::run::{Driven, MOST_WORKERS, broken, ended};
use crate::task_list::steps::{Hold, Place, Recovered, StepError, Unhealthy};
use crate::task_list::worker;
use jiff::Timestamp;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Mode;
use muleteer_model::task_list::Task;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::outcome;
use muleteer_model::task_list::session::Finished;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::stats::{self, Stop};
use muleteer_protocol::ErrorCode;
use muleteer_vcs::user_repo::Git;

/// The worker number for recovering tasks of foreign workers. A run's own workers start at 1.
const LOOKS_AFTER: u32 = 0;

impl Driven {
    /// Carries out the protocol's session start, up to counting the session. `Err` ends the run.
    pub(super) fn begin_session(&self) -> Result<u64, Finished> {
        self.try_begin_session().map_err(|error| broken(&error)).and_then(|begun| begun)
    }

    fn try_begin_session(&self) -> Result<Result<u64, Finished>, StepError> {
        let mut place = self.place(0, &self.project);
        let list = place.read()?;
        let session = list.session_count + 1;
        place.session = Some(session);
        if matches!(place.hold, Hold::Session(_)) {
            place.note(vec![Entry::lock_acquired(std::process::id())]);
        }
        let off = self.called_off();
        self.recover_interrupted(session, &place, &list, &off)?;
        if self.mode == Mode::Concurrent {
            self.look_after(session, &off)?;
        }
        match self.project.untrack() {
            Ok(None) => {}
            Ok(Some(text)) => place.note(vec![Entry::warn(None, &text)]),
            Err(error) => tracing::warn!(%error, "failed to stop tracking the harness's files"),
        }
        if let Err(why) = place.health_check(&off) {
            let Unhealthy::Broken(message) = why else { return Ok(Err(ended(Stop::Interrupted))) };
            place.note(vec![Entry::error(None, Category::EnvSetup, &message)]);
            return Ok(Err(Finished {
                status: "environment".into(),
                reason: message,
                code: Some(ErrorCode::TasksEnv.into()),
            }));
        }
        let mut tx = place.begin()?;
        if !stats::may_begin(&tx.list) {
            return Ok(Err(ended(Stop::MaxSessions)));
        }
        tx.list.session_count += 1;
        tx.mark_active(true)?;
        tx.commit()?;
        Ok(Ok(session))
    }

    /// Recovers interrupted tasks: in the project, or in the clone of the worker that had them.
    fn recover_interrupted(
        &self,
        session: u64,
        place: &Place,
        list: &TaskList,
        off: &dyn Fn() -> bool,
    ) -> Result<(), StepError> {
        let now = Timestamp::now();
        let is_ours = |task: &Task| {
            self.mode == Mode::Exclusive
                || (1..=MOST_WORKERS)
                    .any(|worker| task.claimed_by.as_deref() == Some(&self.clone_worker(worker)))
        };
        let mut mine = claim::interrupted(list, &self.worker_name(0), now, &[]);
        mine.extend(
            (1..=MOST_WORKERS)
                .flat_map(|worker| claim::interrupted(list, &self.clone_worker(worker), now, &[])),
        );
        mine.sort_unstable();
        mine.dedup();
        mine.retain(|at| is_ours(&list.tasks[*at]));
        for at in mine {
            let task = &list.tasks[at];
            let clone = (1..=MOST_WORKERS)
                .find(|worker| task.claimed_by.as_deref() == Some(&self.clone_worker(*worker)));
            if clone.is_some_and(|worker| !self.clone_dir(worker).exists()) {
                fail_without_clone(place, task)?;
                continue;
            }
            self.recover_task(session, task, clone, off)?;
        }
        Ok(())
    }

    /// Recovers one task. `clone` is the worker in whose clone its work is.
    fn recover_task(
        &self,
        session: u64,
        task: &Task,
        clone: Option<u32>,
        off: &dyn Fn() -> bool,
    ) -> Result<(), StepError> {
        let git = match clone {
            Some(worker) => Git::open_clone(&self.clone_dir(worker), &self.project)?,
            None => self.project.clone(),
        };
        let mut place = self.place(clone.unwrap_or(0), &git);
        place.session = Some(session);
        if let Some(claimed) = &task.claimed_by {
            place.worker.clone_from(claimed);
        }
        match place.recover(task, off)? {
            Recovered::Failed(_) => {}
            Recovered::Passed if clone.is_some() => {
                worker::land_blocking(self, &place, task, off)?;
            }
            Recovered::Passed => {
                let base = task.started_at_commit.as_deref().unwrap_or_default();
                let recorded = match place.astray(base)? {
                    Some(message) => place.fail(task, Category::TaskExec, &message, off)?,
                    None => place.succeed(&task.id, &task.title, base)?,
                };
                for text in &recorded.warnings {
                    self.tell(&format!("{}: {text}", task.id));
                }
            }
            Recovered::Resume => {
                let taker = match clone {
                    Some(worker) if self.has_clones() && worker <= self.asked.concurrency => {
                        Some(worker)
                    }
                    None if !self.has_clones() => Some(1),
                    _ => None,
                };
                place.hand_over(&task.id, taker.map(|worker| self.worker_name(worker)))?;
            }
        }
        Ok(())
    }

    /// Recovers the tasks of foreign workers of a concurrent list whose leases have expired. It
    /// judges the start branch, in a clone of its own. Their clones are not ours, and nothing may
    /// be rolled back in a person's own directory.
    fn look_after(&self, session: u64, off: &dyn Fn() -> bool) -> Result<(), StepError> {
        let Some(branch) = self.run().and_then(|run| run.started.branch.clone()) else {
            return Ok(());
        };
        // After an earlier daemon was killed during this, the claim is already ours.
        let ours = self.clone_worker(LOOKS_AFTER);
        let list = self.root.read()?.list;
        let is_worker_s = |task: &Task| {
            (1..=MOST_WORKERS)
                .any(|worker| task.claimed_by.as_deref() == Some(&self.clone_worker(worker)))
        };
        let stale = claim::interrupted(&list, &ours, Timestamp::now(), &[]).into_iter();
        for task in stale.map(|at| &list.tasks[at]).filter(|task| !is_worker_s(task)) {
            let git = self.project.prepare_clone(&self.clone_dir(LOOKS_AFTER), &branch)?;
            git.reset_clone(&self.project, &branch)?;
            let mut place = self.place(LOOKS_AFTER, &git);
            (place.session, place.worker, place.is_everybody_s) =
                (Some(session), ours.clone(), true);
            match place.recover(task, off) {
                Ok(Recovered::Failed(_)) => {}
                Ok(Recovered::Passed) => drop(place.record_success(&task.id, vec![])?),
                // Nobody can resume work that is not on the branch.
                Ok(Recovered::Resume) => place.hand_over(&task.id, None)?,
                Err(StepError::Refused(refused)) => {
                    tracing::info!(task = %task.id, %refused, "failed to recover a task")
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Records the failure of a task whose work was in a directory that is gone.
fn fail_without_clone(place: &Place, task: &Task) -> Result<(), StepError> {
    let mut tx = place.begin()?;
    let (message, now) = ("its worker's directory is missing", tx.now());
    if let Some(task) = tx.list.get_mut(&task.id) {
        outcome::fail(task, Category::SessionTimeout, message, now);
    }
    tx.log(Entry::error(Some(&task.id), Category::SessionTimeout, message));
    tx.commit()?;
    Ok(())
}
