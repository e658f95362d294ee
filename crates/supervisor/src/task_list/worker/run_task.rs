//! Makes, briefs and awaits the dispatch that does a task.

use crate::daemon::context::{Daemon, random_key};
use crate::dispatch::control;
use crate::dispatch::request::Asker;
use crate::task_list::run::Driven;
use crate::task_list::steps::{Place, StepError, Verdict};
use crate::task_list::worker::attempt::open;
use crate::task_list::worker::outcome::{End, Outcome};
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::life::Input;
use muleteer_model::dispatch::{Dispatch, Stop as Stopped};
use muleteer_model::event::id::DispatchId;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::prompt::{Brief, prompt};
use muleteer_model::task_list::session::claim;
use muleteer_model::task_list::session::{Run, Work};
use muleteer_model::task_list::{Category, Task};
use muleteer_model::text::data_block::DataBlocks;
use muleteer_protocol::v1::{Spawn, WireError};
use muleteer_store::task_list::{RUN_VARIABLE, TaskListError};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// The renewal interval of the lease of fifteen minutes, so that two renewals may fail.
const RENEWAL: Duration = Duration::from_secs(4 * 60);
/// How often a session checks that its lock is still its own. Nothing reports the loss.
const LOCK_CHECK: Duration = Duration::from_secs(2);
/// The limits of the log and of the commits in a prompt.
const LOG_LINES: usize = 200;
const LOG_BYTES: usize = 16 * 1024;
const COMMITS: usize = 20;

/// Makes the task's dispatch unless it exists, and waits for its end. The inner error is the
/// worker's outcome: the daemon stops, or the dispatch cannot be made.
pub(super) async fn dispatched(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    task: &Task,
) -> Result<Result<Dispatch, Outcome>, StepError> {
    let stops = || Ok(Err(Outcome::Ended(Ok(End::DaemonStops))));
    let daemon = &driven.daemon;
    if daemon.snapshot().get(&work.dispatch).is_none() {
        if driven.stopping() == Some(true) {
            return Err(StepError::Other("it was cancelled".into()));
        }
        let (at, of, resumed) = (place.clone(), task.clone(), work.resumed);
        let off = driven.called_off();
        let prompt = driven.step(worker, move || brief(&at, &of, resumed, &off)).await??;
        let Some(prompt) = prompt else { return stops() };
        let spawn = Spawn { title: Some(task.title.clone()), ..spawn(driven, place, work, prompt) };
        let trace = daemon
            .snapshot()
            .task_lists
            .get(&driven.list)
            .and_then(|run| run.place_of(&work.dispatch));
        let asker = Asker::Tasks(driven.project.top().to_path_buf());
        if let Err(error) = control::create(daemon, &spawn, &asker, trace).await {
            return refused(driven, worker, place, work, &error).await.map(Err);
        }
    } else {
        control::bring_up(daemon, &work.dispatch).await;
    }
    let ids = [work.dispatch.clone()];
    let ended = control::finished(daemon, &ids);
    let killer = kill_when_called_off(driven, work);
    tokio::pin!(ended, killer);
    loop {
        tokio::select! {
            () = &mut ended => break,
            never = &mut killer => match never {},
            // The run ends by this, and its end kills the agent.
            error = lock_lost(place) => return Err(StepError::List(error)),
            () = daemon.lifecycle.stop.cancelled() => return stops(),
            () = tokio::time::sleep(RENEWAL) => {
                let (place, id, telling) = (place.clone(), work.task.clone(), driven.clone());
                let renewed = driven.step(worker, move || -> Result<(), StepError> {
                    let mut tx = open(&telling, &place)?;
                    let now = tx.now();
                    claim::renew(&mut tx.list, &id, &place.worker, now, claim::LEASE)?;
                    tx.commit()?;
                    Ok(())
                });
                if let Err(error) = renewed.await? {
                    tracing::warn!(task = %work.task, %error, "failed to renew a claim");
                }
            }
        }
    }
    let ended = daemon.snapshot().get(&work.dispatch).cloned();
    ended
        .map(|dispatch| Ok((*dispatch).clone()))
        .ok_or_else(|| StepError::Other("its dispatch no longer exists".into()))
}

/// Kills the task's dispatch once the run is stopped at once. The worker does this, not the request
/// to stop: at that time the dispatch may be half created, or the daemon may die before the kill.
async fn kill_when_called_off(driven: &Driven, work: &Work) -> Infallible {
    let mut changes = driven.daemon.fleet.subscribe();
    let stopped_by = |fleet: &Fleet| {
        let run = fleet.task_lists.get(&driven.list)?;
        (run.stopping == Some(true)).then(|| run.stopped_by.clone())
    };
    let called_off = changes.wait_for(|fleet| stopped_by(fleet).is_some()).await;
    let Some(by) = called_off.ok().and_then(|fleet| stopped_by(&fleet)) else {
        return std::future::pending().await;
    };
    let reason = "its run of the task list was stopped".to_string();
    kill(&driven.daemon, &work.dispatch, &reason, &by).await;
    std::future::pending().await
}

/// Kills a dispatch, and retries until the kill is accepted.
async fn kill(daemon: &Arc<Daemon>, dispatch: &DispatchId, reason: &str, by: &str) {
    // Each refusal has waited for the dispatch, so the loop does not spin.
    while let Err(error) =
        control::command(daemon, dispatch, Input::Kill { reason: reason.into(), by: by.into() })
            .await
    {
        tracing::warn!(%dispatch, %error.message, "retrying a kill");
    }
}

/// Returns when another process has taken the session's lock from a living run.
async fn lock_lost(place: &Place) -> TaskListError {
    loop {
        tokio::time::sleep(LOCK_CHECK).await;
        let at = place.clone();
        let lost = tokio::task::spawn_blocking(move || at.lost_lock()).await;
        if let Ok(Some(error)) = lost {
            return error;
        }
    }
}

/// Ends the agents that a run has left: its driver failed, or could not continue after a restart.
/// Otherwise they would work beside the next session. Returns false if the daemon stops meanwhile.
pub(in crate::task_list) async fn end_agents(daemon: &Arc<Daemon>, run: &Run) -> bool {
    for work in run.workers.values() {
        let dispatch = &work.dispatch;
        if daemon.snapshot().get(dispatch).is_none_or(|dispatch| dispatch.is_finished()) {
            continue;
        }
        control::bring_up(daemon, dispatch).await;
        let ids = [dispatch.clone()];
        let killing = async {
            kill(daemon, dispatch, "its run of the task list has ended", "harness").await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = control::finished(daemon, &ids) => {}
            () = killing => {}
            () = daemon.lifecycle.stop.cancelled() => return false,
        }
    }
    true
}

/// Ends the run because its dispatch cannot be made: that is a fault of the request, not of the
/// task.
async fn refused(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    error: &WireError,
) -> Result<Outcome, StepError> {
    let (at, id) = (place.clone(), work.task.clone());
    let text = format!("{} ({})", error.message, error.code);
    let line = Entry::error(
        Some(&work.task),
        Category::EnvSetup,
        &format!("failed to dispatch an agent: {text}"),
    );
    let released = driven.step(worker, move || -> Result<(), StepError> {
        let mut tx = at.begin()?;
        if let Ok(task) = claim::owned(&mut tx.list, &id, &at.worker) {
            claim::release(task);
        }
        tx.log(line);
        tx.commit()?;
        Ok(())
    });
    released.await??;
    let error = StepError::Dispatch(error.code.clone(), error.message.clone());
    Ok(Outcome::released_at_the_end(&text, Err(error)))
}

/// Writes the agent's prompt. Before the first attempt it runs the validation once, to report the
/// failures and to warn of a validation that proves nothing. `None` if that was stopped.
fn brief(
    place: &Place,
    task: &Task,
    resumed: bool,
    off: &dyn Fn() -> bool,
) -> Result<Option<String>, StepError> {
    if !resumed && (task.attempts == 0 || place.kept_output(&task.id, "before").is_none()) {
        let before = match place.validate(task, off)? {
            Verdict::Stopped => return Ok(None),
            Verdict::Passed { output } => {
                let warning =
                    "the validation passes before any work on the task, so it proves little";
                place.note(vec![Entry::warn(Some(&task.id), warning)]);
                format!("{PASSED}{output}")
            }
            Verdict::Failed { output, .. } | Verdict::TimedOut { output, .. } => output,
            Verdict::NoCommand | Verdict::NoProgram(_) => String::new(),
        };
        place.keep_output(&task.id, "before", &before);
    }
    let before = place.kept_output(&task.id, "before");
    let before = before.as_deref().map(|text| match text.strip_prefix(PASSED) {
        Some(rest) => (rest, true),
        None => (text, false),
    });
    let last = if task.attempts > 0 { place.kept_output(&task.id, "last") } else { None };
    let log = place.root.log_tail_within(LOG_LINES, LOG_BYTES).join("\n");
    let commits = place.git.recent(COMMITS);
    Ok(Some(prompt(&Brief {
        task,
        resumed,
        before,
        last: last.as_deref(),
        log: &log,
        commits: &commits,
        data: &DataBlocks::new(&random_key()),
    })))
}

/// The first line of a saved output with exit code 0.
pub(super) const PASSED: &str = "(exit 0)\n";

fn spawn(driven: &Driven, place: &Place, work: &Work, prompt: String) -> Spawn {
    let mut spawn = driven.asked.dispatch.clone();
    spawn.id = work.dispatch.to_string();
    spawn.project = place.dir.display().to_string();
    spawn.prompt = prompt;
    spawn.worktree = false;
    let feature: String = work
        .task
        .chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' })
        .collect();
    spawn.feature = Some(spawn.feature.unwrap_or(feature));
    let own = [
        ("HARNESS_STATE_ROOT", place.root.path().display().to_string()),
        ("HARNESS_WORKER_ID", place.worker.clone()),
        (RUN_VARIABLE, driven.list.clone()),
        ("MULETEER_TASK_ID", work.task.clone()),
    ];
    spawn.extra_env.extend(own.map(|(name, value)| (name.to_string(), value)));
    spawn
}

pub(super) fn was_stopped_with_daemon(dispatch: &Dispatch) -> bool {
    dispatch.stop.as_ref().is_some_and(Stopped::is_with_daemon)
}
