//! Ends a task once it is judged. Its work lands on the branch or is rolled back, and the outcome
//! is written.

use crate::task_list::run::Driven;
use crate::task_list::steps::{Place, Recorded, StepError, Verdict, describe};
use crate::task_list::worker::attempt::read;
use crate::task_list::worker::outcome::{End, Ended, Outcome};
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::{Finished, Verdict as Judged, Work};
use muleteer_model::task_list::{Category, Task};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_vcs::user_repo::{Git, GitError};

/// If the tip has moved on, the work is validated again, without the landing lock for this many
/// attempts. Then other workers have to wait.
const LANDINGS: u32 = 3;

/// Carries out a verdict. Returns another verdict if the work has passed and cannot land.
pub(super) async fn conclude(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    verdict: Judged,
) -> Result<Outcome, StepError> {
    let list = read(driven, worker, place).await?;
    let Some(task) = list.get(&work.task).cloned() else {
        return Ok(Outcome::released("it is no longer in the list"));
    };
    if verdict.passed && driven.has_clones() {
        match land(driven, worker, place, &task).await? {
            Landing::Landed => {}
            Landing::CalledOff => return interrupted(driven, worker, place, work).await,
            Landing::Barred(reason) => {
                let code = Some(ErrorCode::TasksGit.into());
                let why = reason.clone();
                let end = End::Finished(Finished { status: "error".into(), reason, code });
                return leave(driven, worker, place, work, &why, Ok(end)).await;
            }
            Landing::Failed(category, message) => {
                let category = Some(category.as_str().into());
                return Ok(Outcome::Judged(Judged { passed: false, category, message }));
            }
        }
    }
    if verdict.passed && !driven.has_clones() {
        let (at, base) = (place.clone(), task.started_at_commit.clone().unwrap_or_default());
        if let Some(message) = driven.step(worker, move || at.astray(&base)).await?? {
            let category = Some(Category::TaskExec.as_str().into());
            return Ok(Outcome::Judged(Judged { passed: false, category, message }));
        }
    }
    let (at, judged, of) = (place.clone(), verdict.clone(), task.clone());
    let has_clones = driven.has_clones();
    let done = driven.step(worker, move || -> Result<Option<Recorded>, StepError> {
        let base = of.started_at_commit.clone().unwrap_or_default();
        match judged.passed {
            true if has_clones => at.record_success(&of.id, vec![]).map(Some),
            true => at.succeed(&of.id, &of.title, &base).map(Some),
            false => Ok(None),
        }
    });
    let recorded = match done.await? {
        Ok(Some(recorded)) => recorded,
        Ok(None) => {
            match failed(driven, worker, place, task, verdict.category(), verdict.message.clone())
                .await?
            {
                Some(recorded) => recorded,
                None => return Ok(Outcome::Ended(Ok(End::DaemonStops))),
            }
        }
        // The commit would differ from what has passed.
        Err(StepError::Git(error @ GitError::Filter { .. })) => {
            match failed(driven, worker, place, task, Category::TaskExec, error.to_string()).await?
            {
                Some(recorded) => recorded,
                None => return Ok(Outcome::Ended(Ok(End::DaemonStops))),
            }
        }
        Err(error) => return Err(error),
    };
    for text in &recorded.warnings {
        driven.tell(&format!("{}: {text}", work.task));
    }
    let status = if recorded.completed { "completed" } else { "failed" };
    Ok(Outcome::closed(status, &recorded.message, true))
}

/// Rolls an attempt back, cleans up and records the failure. `None` means that the daemon stops;
/// the next one starts with the clean-up again. A run that is stopped at once interrupts the
/// clean-up.
async fn failed(
    driven: &Driven,
    worker: u32,
    place: &Place,
    task: Task,
    category: Category,
    message: String,
) -> Result<Option<Recorded>, StepError> {
    let (at, off, stop) =
        (place.clone(), driven.called_off(), driven.daemon.lifecycle.stop.clone());
    let recorded = driven.step(worker, move || -> Result<Option<Recorded>, StepError> {
        at.take_back(&task)?;
        if !at.clean_up(&task, &off) && stop.is_cancelled() {
            return Ok(None);
        }
        at.record_failure(&task, category, &message).map(Some)
    });
    recorded.await?
}

enum Landing {
    Landed,
    CalledOff,
    /// A person's own changes are in the way, which is no failure of the task. Has the reason and
    /// the remedy.
    Barred(String),
    Failed(Category, String),
}

fn barred(place: &Place, task: &str, said: &str) -> String {
    let clone =
        place.git.top().strip_prefix(place.project.top()).unwrap_or(place.git.top()).display();
    format!(
        "{task} has passed, but merging it into the project failed: {said}; commit, stash or move \
         these files, then run `muleteer tasks run` (its commits are in {clone})"
    )
}

/// Brings a clone's work onto the start branch: rebased, validated again there, fast-forwarded.
async fn land(
    driven: &Driven,
    worker: u32,
    place: &Place,
    task: &Task,
) -> Result<Landing, StepError> {
    for attempt in 0.. {
        // After [`LANDINGS`] attempts the other workers have to wait, so that they cannot be faster
        // again.
        let _alone =
            if attempt >= LANDINGS { Some(driven.shared.landing.lock().await) } else { None };
        let (at, of, off, project) =
            (place.clone(), task.clone(), driven.called_off(), driven.project.clone());
        let prepared = driven.step(worker, move || rebased(&at, &project, &of, &off)).await??;
        let tip = match prepared {
            Ok(tip) => tip,
            Err(landing) => return Ok(landing),
        };
        let _turn =
            if attempt < LANDINGS { Some(driven.shared.landing.lock().await) } else { None };
        let (at, project) = (place.clone(), driven.project.clone());
        let landed = driven.step(worker, move || {
            let branch = at.branch.clone().unwrap_or_default();
            project.land(&at.git, &branch, &tip)
        });
        match landed.await? {
            Ok(true) => {
                fault::point("tasks.landed");
                return Ok(Landing::Landed);
            }
            Ok(false) => {}
            Err(GitError::InTheWay { said }) => {
                return Ok(Landing::Barred(barred(place, &task.id, &said)));
            }
            Err(error) => {
                return Ok(Landing::Failed(
                    Category::TaskExec,
                    format!("cannot be merged into the project: {error}"),
                ));
            }
        }
    }
    unreachable!("the loop does not end")
}

/// Commits the remaining changes, rebases, and validates again if that changed anything. Returns
/// the tip of the branch below the work.
fn rebased(
    place: &Place,
    project: &Git,
    task: &Task,
    off: &dyn Fn() -> bool,
) -> Result<Result<String, Landing>, StepError> {
    let branch = place.branch.clone().unwrap_or_default();
    let base = task.started_at_commit.clone().unwrap_or_default();
    place.disown(&task.id, &base);
    let start = place.git.start(&task.id, &base)?;
    if place.git.commits_since(&base)?.is_empty() || place.git.uncommitted_since(&start)?.is_some()
    {
        match place.git.commit(&start, &format!("{}: {}", task.id, task.title)) {
            Err(error @ GitError::Filter { .. }) => {
                return Ok(Err(Landing::Failed(Category::TaskExec, error.to_string())));
            }
            committed => drop(committed?),
        }
    }
    fault::point("tasks.committed");
    let before = place.git.head()?;
    let tip = match place.git.rebase(project, &branch) {
        Ok(tip) => tip,
        Err(error) => {
            let message = format!("conflict with tasks that were completed meanwhile: {error}");
            return Ok(Err(Landing::Failed(Category::TaskExec, message)));
        }
    };
    if place.git.head()? == before {
        return Ok(Ok(tip));
    }
    let verdict = place.validate(task, off)?;
    match &verdict {
        Verdict::Passed { .. } => Ok(Ok(tip)),
        Verdict::Stopped => Ok(Err(Landing::CalledOff)),
        other => {
            place.remember(task, other);
            let (category, message) = describe(other, None);
            Ok(Err(Landing::Failed(category, format!("after the rebase onto {branch}: {message}"))))
        }
    }
}

/// Lands work that an earlier run left in a clone. It runs at a session's start, when there are no
/// workers yet.
pub fn land_blocking(
    driven: &Driven,
    place: &Place,
    task: &Task,
    off: &dyn Fn() -> bool,
) -> Result<(), StepError> {
    for _ in 0..=LANDINGS {
        match rebased(place, &driven.project, task, off)? {
            Err(Landing::Failed(category, message)) => {
                return place.fail(task, category, &message, off).map(drop);
            }
            Err(_) => return Err(StepError::Other("it was cancelled".into())),
            Ok(tip) => {
                let branch = place.branch.clone().unwrap_or_default();
                let landed =
                    driven.project.land(&place.git, &branch, &tip).map_err(|error| match error {
                        GitError::InTheWay { said } => {
                            GitError::InTheWay { said: barred(place, &task.id, &said) }
                        }
                        error => error,
                    });
                if landed? {
                    return place.record_success(&task.id, vec![]).map(drop);
                }
            }
        }
    }
    place
        .fail(
            task,
            Category::TaskExec,
            "cannot be merged into the project: the branch keeps changing",
            off,
        )
        .map(drop)
}

/// Ends a task because the run was stopped at once. The task stays in progress for the next session
/// to recover, but its claim ends.
pub(super) async fn interrupted(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
) -> Result<Outcome, StepError> {
    let why = "interrupted; the next session recovers it";
    leave(driven, worker, place, work, why, Ok(End::Nothing)).await
}

/// Ends the claim on a task that stays in progress, and the worker.
async fn leave(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    why: &str,
    end: Ended,
) -> Result<Outcome, StepError> {
    let (at, id, text) = (place.clone(), work.task.clone(), why.to_string());
    let let_go = driven.step(worker, move || -> Result<(), StepError> {
        let mut tx = at.begin()?;
        let now = tx.now();
        if let Ok(task) = claim::owned(&mut tx.list, &id, &at.worker) {
            task.lease_expires_at = Some(now);
        }
        tx.log(Entry::warn(Some(&id), &text));
        tx.commit()?;
        Ok(())
    });
    let_go.await??;
    let message = why.split_once(';').map_or(why, |(what, _)| what);
    Ok(Outcome::released_at_the_end(message, end))
}
