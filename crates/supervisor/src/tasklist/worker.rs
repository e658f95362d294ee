//! One worker of a run: takes a task, has it done by a dispatch, judges it by its validation, records the
//! outcome, and takes the next.
//!
//! ```text
//!   take ──▶ TaskBegun ──▶ claim ──▶ dispatch ──▶ validate ──▶ TaskJudged ──▶ commit, land │ roll back
//!            (durable)     (file)    (by its id)               (durable)          ──▶ outcome (file) ──▶ TaskEnded
//! ```
//!
//! A daemon killed anywhere comes back to `go_on`, which finds how far it came: each step is a probe.

use super::git::Git;
use super::run::{Driven, ended, record};
use super::steps::{Place, Recovered, StepError, Verdict, describe};
use crate::context::random_key;
use crate::gate::handlers;
use crate::request::Asker;
use muleteer_model::dispatch::{Dispatch, Stop as Stopped};
use muleteer_model::event::{Event, Limit};
use muleteer_model::id::DispatchId;
use muleteer_model::tasklist::claim;
use muleteer_model::tasklist::log::Entry;
use muleteer_model::tasklist::prompt::{Brief, prompt};
use muleteer_model::tasklist::session::{Finished, Verdict as Judged, Work};
use muleteer_model::tasklist::stats::{self, Stop};
use muleteer_model::tasklist::{Category, Mode, Status, Task, select};
use muleteer_process::fault;
use muleteer_protocol::v1::{Spawn, WireError};
use muleteer_store::tasklist::Tx;
use std::time::Duration;

/// A lease of fifteen minutes, renewed in time for two of these to fail.
const RENEWAL: Duration = Duration::from_secs(4 * 60);
/// Other workers of the list tell us nothing: then it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// What was validated on a tip that has moved on is validated again, so often before others have to wait.
const LANDINGS: u32 = 3;
/// Of the log, and of the commits, in a prompt.
const LOG_LINES: usize = 200;
const LOG_BYTES: usize = 16 * 1024;
const COMMITS: usize = 20;

/// Why a worker has ended.
#[derive(Debug)]
pub enum End {
    /// There is nothing for it to do, or the run was asked to stop.
    Nothing,
    DaemonStops,
    /// The whole run is over.
    Finished(Finished),
}

enum Taken {
    Task(Box<Task>, String, bool),
    /// Others have in hand what everything else depends on.
    Wait,
    End(End),
}

pub async fn work(driven: Driven, worker: u32) -> End {
    match Box::pin(work_on(&driven, worker)).await {
        Ok(end) => end,
        Err(_) if driven.daemon.stop.is_cancelled() => End::DaemonStops,
        Err(_) if driven.stopping() == Some(true) => End::Nothing,
        Err(StepError::List(error)) => {
            let reason = error.to_string();
            End::Finished(Finished { status: "invalid".into(), reason, code: Some(error.code().into()) })
        }
        Err(StepError::Dispatch(code, reason)) => {
            End::Finished(Finished { status: "error".into(), reason, code: Some(code) })
        }
        Err(error) => {
            let code = if matches!(error, StepError::Git(_)) { "E_TASKS_GIT" } else { "E_IO" };
            End::Finished(Finished { status: "error".into(), reason: error.to_string(), code: Some(code.into()) })
        }
    }
}

async fn work_on(driven: &Driven, worker: u32) -> Result<End, StepError> {
    let git = if driven.has_clones() {
        let (project, dir) = (driven.project.clone(), driven.clone_dir(worker));
        let branch = start_branch(driven)?;
        driven.step(worker, move || project.prepare_clone(&dir, &branch)).await??
    } else {
        driven.project.clone()
    };
    let place = driven.place(worker, &git);
    let swept = place.clone();
    driven.step(worker, move || swept.sweep()).await?;
    // What had passed was in the clone that is gone.
    let mut lost = driven.has_clones() && git.is_made_anew();
    loop {
        if driven.daemon.stop.is_cancelled() {
            return Ok(End::DaemonStops);
        }
        let Some(run) = driven.run() else { return Ok(End::Nothing) };
        if let Some(work) = run.workers.get(&worker) {
            let lost = std::mem::take(&mut lost) && work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
            let work = Work { doubted: work.doubted || lost, ..work.clone() };
            if let Some(end) = go_on(driven, worker, &place, &work).await? {
                return Ok(end);
            }
            driven.shared.changed.notify_waiters();
            continue;
        }
        if run.stopping.is_some() {
            return Ok(End::Nothing);
        }
        // Enabled before looking, or an end in between would be missed.
        let changed = driven.shared.changed.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        match take(driven, worker, &place).await? {
            Taken::Task(task, base, resumed) => begin(driven, worker, &task.id, &base, resumed).await?,
            Taken::End(end) => return Ok(end),
            Taken::Wait => {
                tokio::select! {
                    () = &mut changed => {}
                    () = driven.daemon.stop.cancelled() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
        }
    }
}

fn start_branch(driven: &Driven) -> Result<String, StepError> {
    let branch = driven.run().and_then(|run| run.started.branch.clone());
    branch.ok_or_else(|| StepError::Other("concurrent workers need a branch to come back to: HEAD is detached".into()))
}

async fn begin(driven: &Driven, worker: u32, task: &str, base: &str, resumed: bool) -> Result<(), StepError> {
    let bytes = random_key();
    let dispatch = DispatchId::try_from(bytes[..8].to_string()).map_err(|error| StepError::Other(error.to_string()))?;
    let event =
        Event::TaskBegun { list: driven.list.clone(), worker, task: task.into(), dispatch, base: base.into(), resumed };
    record(&driven.daemon, event, &random_key()).await.map_err(StepError::Other)?;
    fault::point("tasks.intent_durable");
    Ok(())
}

/// Begins a change of the list. That it was damaged is told to whoever follows the run.
fn open(driven: &Driven, place: &Place) -> Result<Tx, StepError> {
    let tx = place.begin()?;
    if let Some(message) = &tx.restored {
        driven.tell(message);
    }
    Ok(tx)
}

/// Picks the next task. The claim itself comes after the intent is durable.
async fn take(driven: &Driven, worker: u32, place: &Place) -> Result<Taken, StepError> {
    let _taking = driven.shared.taking.lock().await;
    let Some(run) = driven.run() else { return Ok(Taken::End(End::Nothing)) };
    let in_hand: Vec<_> = run.workers.values().map(|work| work.task.clone()).collect();
    let done = run.done + in_hand.len() as u64;
    let (place, limit) = (place.clone(), driven.asked.max_tasks);
    let (off, has_clones, project) = (driven.called_off(), driven.has_clones(), driven.project.clone());
    let branch = place.branch.clone();
    let (name, telling) = (driven.worker_name(worker), driven.clone());
    driven
        .step(worker, move || -> Result<Taken, StepError> {
            let mut tx = open(&telling, &place)?;
            let now = tx.now();
            let expired = claim::expire(&mut tx.list, &name, now, &in_hand);
            for id in &expired {
                tx.log(Entry::error(Some(id), Category::SessionTimeout, "the lease of its worker is over"));
            }
            let marked = select::validate_dependencies(&mut tx.list, now);
            for marked in &marked {
                tx.log(Entry::error(Some(&marked.task), Category::Dependency, &marked.message));
            }
            let is_same = marked.is_empty() && expired.is_empty();
            let list = if is_same { tx.list.clone() } else { tx.commit()? };
            let own = list.tasks.iter().find(|task| {
                task.status == Status::InProgress
                    && task.claimed_by.as_deref() == Some(&name)
                    && !in_hand.contains(&task.id)
            });
            if let Some(task) = own {
                let base = task.started_at_commit.clone().unwrap_or_default();
                return Ok(Taken::Task(Box::new(task.clone()), base, true));
            }
            match stats::stop(&list, done, limit) {
                // Others still work; the run ends when they have.
                Some(Stop::MaxTasks) if !in_hand.is_empty() => return Ok(Taken::End(End::Nothing)),
                Some(stop) => return Ok(Taken::End(End::Finished(ended(stop)))),
                None => {}
            }
            let failures = place.root.failure_times(&list);
            let mut eligible = select::eligible(&list, &failures).into_iter();
            let Some(at) = eligible.find(|at| !in_hand.contains(&list.tasks[*at].id)) else { return Ok(Taken::Wait) };
            let task = list.tasks[at].clone();
            if let Some(end) = check(&place, &task, &off)? {
                return Ok(Taken::End(end));
            }
            let base = match &branch {
                Some(branch) if has_clones => reset(&place, &project, branch)?,
                _ => place.git.head()?,
            };
            if !has_clones && let Some(end) = moved_on(&place)? {
                return Ok(Taken::End(end));
            }
            Ok(Taken::Task(Box::new(task), base, false))
        })
        .await?
}

/// Throws away what is in a clone, which somebody may have broken since its last task.
fn reset(place: &Place, project: &Git, branch: &str) -> Result<String, StepError> {
    let error = match place.git.reset_clone(project, branch) {
        Ok(tip) => return Ok(tip),
        Err(error) => error,
    };
    let Some(message) = project.renew_clone(place.git.top(), branch, &project.tip(branch)?)? else {
        return Err(error.into());
    };
    place.note(vec![Entry::warn(None, &message)]);
    Ok(place.git.reset_clone(project, branch)?)
}

/// A person has checked something else out since the run began: what comes now belongs there no more than here.
fn moved_on(place: &Place) -> Result<Option<End>, StepError> {
    let found = place.git.stands_on()?;
    if place.stand.is_at(found.as_deref()) {
        return Ok(None);
    }
    let name = |branch: Option<&str>| branch.map_or_else(|| "detached".into(), |branch| format!("on `{branch}`"));
    let (found, began) = (name(found.as_deref()), name(place.branch.as_deref()));
    let reason = format!("HEAD is {found} now, and was {began} when the run began: go back, or begin another run here");
    Ok(Some(End::Finished(Finished { status: "error".into(), reason, code: Some("E_TASKS_GIT".into()) })))
}

/// Whether the task can be validated at all, before an agent is spent on it.
fn check(place: &Place, task: &Task, off: &dyn Fn() -> bool) -> Result<Option<End>, StepError> {
    let Some(command) = &task.command else {
        let message = "Missing validation.command";
        place.note(vec![Entry::error(Some(&task.id), Category::Config, message)]);
        let reason = format!("{}: {message}; `muleteer tasks edit {0} --validate CMD` gives it one", task.id);
        let finished = Finished { status: "invalid".into(), reason, code: Some("E_TASKS_INVALID".into()) };
        return Ok(Some(End::Finished(finished)));
    };
    let Some(program) = place.missing_program(command)? else { return Ok(None) };
    // The environment may come from the init script: once more, then stop.
    let healthy = place.health_check(off);
    if healthy.is_ok() && place.missing_program(command)?.is_none() {
        return Ok(None);
    }
    let (category, mut message) = describe(&Verdict::NoProgram(program), None);
    if let Err(error) = healthy {
        message = format!("{message}; {error}");
    }
    place.note(vec![Entry::error(Some(&task.id), category, &message)]);
    let reason = format!("{}: {message}", task.id);
    Ok(Some(End::Finished(Finished { status: "environment".into(), reason, code: Some("E_TASKS_ENV".into()) })))
}

/// Takes a task that was begun to its end, from wherever it stands. `Some`: the worker ends.
async fn go_on(driven: &Driven, worker: u32, place: &Place, work: &Work) -> Result<Option<End>, StepError> {
    let list = place.root.read()?.list;
    let Some(task) = list.get(&work.task).cloned() else {
        return close(driven, worker, work, "released", "it is no longer in the list", false).await;
    };
    let task = if is_forged(driven, work, &task) {
        let mut begun = task;
        begun.status = Status::InProgress;
        begun.claimed_by = Some(place.worker.clone());
        begun.started_at_commit = Some(work.base.clone());
        begun.completed_at = None;
        let again = claimed_again(driven, worker, place, begun).await?;
        again.ok_or_else(|| StepError::Other(format!("{} is no longer in the list", work.task)))?
    } else {
        task
    };
    let ours = task.status == Status::InProgress && task.claimed_by.as_deref() == Some(&place.worker);
    let verdict = match (&work.verdict, ours) {
        // The outcome was written, and the daemon died before it said so.
        (Some(verdict), false) => {
            return close(driven, worker, work, task.status.as_str(), &verdict.message, true).await;
        }
        (Some(verdict), true) if !work.doubted => verdict.clone(),
        _ => {
            let task = match claimed(driven, worker, place, work, task, ours).await? {
                Some(task) => task,
                None => return close(driven, worker, work, "released", "somebody else has it", false).await,
            };
            let Some(dispatch) = dispatched(driven, worker, place, work, &task).await? else {
                return Ok(Some(End::DaemonStops));
            };
            if driven.stopping() == Some(true) {
                return interrupted(driven, worker, place, work).await;
            }
            let Some(task) = claimed_again(driven, worker, place, task).await? else {
                let why = "it is no longer in the list, or somebody else has it";
                return close(driven, worker, work, "released", why, false).await;
            };
            let (at, project, base) = (place.clone(), driven.project.clone(), work.base.clone());
            let broken = driven.step(worker, move || match &at.branch {
                Some(branch) if at.is_in_clone() => project.renew_clone(at.git.top(), branch, &base),
                _ => Ok(None),
            });
            if let Some(message) = broken.await?? {
                Judged { passed: false, category: Some(Category::TaskExec.as_str().into()), message }
            } else if was_stopped_with_daemon(&dispatch) {
                // The agent did not fail; what it left is looked at.
                let (place, off) = (place.clone(), driven.called_off());
                let recovered = driven.step(worker, move || place.recover(&task, &off).map(|done| (place, task, done)));
                let (place, task, recovered) = recovered.await??;
                match recovered {
                    Recovered::Failed(_) => {
                        return close(driven, worker, work, "failed", "stopped with the daemon", true).await;
                    }
                    Recovered::Resume => {
                        place.hand_over(&task.id, Some(place.worker.clone()))?;
                        return close(driven, worker, work, "released", "to be resumed", false).await;
                    }
                    Recovered::Passed => Judged { passed: true, category: None, message: String::new() },
                }
            } else {
                let (at, task) = (place.clone(), task.clone());
                let off = driven.called_off();
                let judged = driven.step(worker, move || judge(&at, &task, &dispatch, &off)).await??;
                let Some(judged) = judged else {
                    if driven.daemon.stop.is_cancelled() {
                        return Ok(Some(End::DaemonStops));
                    }
                    return interrupted(driven, worker, place, work).await;
                };
                judged
            }
        }
    };
    if work.verdict.is_none() || work.doubted {
        fault::point("tasks.validated");
        note_verdict(driven, worker, work, &verdict).await?;
    }
    conclude(driven, worker, place, work, verdict).await
}

/// Whether the list calls a task completed that was never judged to be, by a predecessor of this daemon: its agent can write
/// that there. Of a concurrent list somebody else may have completed it by rights.
fn is_forged(driven: &Driven, work: &Work, task: &Task) -> bool {
    let passed = work.verdict.as_ref().is_some_and(|verdict| verdict.passed);
    let has_begun = driven.daemon.snapshot().get(&work.dispatch).is_some();
    task.status == Status::Completed && !passed && has_begun && driven.mode == Mode::Exclusive
}

async fn note_verdict(driven: &Driven, worker: u32, work: &Work, verdict: &Judged) -> Result<(), StepError> {
    let event =
        Event::TaskJudged { list: driven.list.clone(), worker, task: work.task.clone(), verdict: verdict.clone() };
    record(&driven.daemon, event, &random_key()).await.map_err(StepError::Other)
}

/// The task, in our hands; `None` if somebody else was quicker.
async fn claimed(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    task: Task,
    ours: bool,
) -> Result<Option<Task>, StepError> {
    if ours {
        return Ok(Some(task));
    }
    let (place, work, has_clones) = (place.clone(), work.clone(), driven.has_clones());
    let claimed = driven
        .step(worker, move || -> Result<Option<Task>, StepError> {
            if !has_clones {
                place.git.remember_start(&work.task, &work.base)?;
            }
            place.git.settle()?;
            let mut tx = place.begin()?;
            let now = tx.now();
            match claim::claim(&mut tx.list, &work.task, &place.worker, &work.base, now, claim::LEASE) {
                Ok(()) => {}
                Err(refused) => {
                    tracing::info!(task = %work.task, %refused, "not claimed");
                    return Ok(None);
                }
            }
            let Some(task) = tx.list.get(&work.task).cloned() else { return Ok(None) };
            tx.log(Entry::starting(&task, &work.base));
            tx.commit()?;
            fault::point("tasks.claimed");
            Ok(Some(task))
        })
        .await??;
    Ok(claimed)
}

/// The task after its agent had it: whatever that has written over in the list is put back. `None` if somebody else has it
/// by rights, or it is gone.
async fn claimed_again(driven: &Driven, worker: u32, place: &Place, begun: Task) -> Result<Option<Task>, StepError> {
    let (place, telling) = (place.clone(), driven.clone());
    let again = driven.step(worker, move || -> Result<Option<Task>, StepError> {
        let read = place.root.read()?;
        if !read.from_backup && claim::is_kept(&read.list, &begun, &place.worker) {
            return Ok(read.list.get(&begun.id).cloned());
        }
        let mut tx = open(&telling, &place)?;
        let now = tx.now();
        let said = match claim::put_back(&mut tx.list, &begun, &place.worker, now) {
            Ok(said) => said,
            Err(refused) => {
                tracing::info!(task = %begun.id, %refused, "not ours any more");
                return Ok(None);
            }
        };
        for text in said {
            telling.tell(&format!("{}: {text}", begun.id));
            tx.log(Entry::warn(Some(&begun.id), &text));
        }
        let list = tx.commit()?;
        let mut task = list.get(&begun.id).cloned();
        if let Some(task) = &mut task {
            // It is judged by what it was begun with.
            task.command.clone_from(&begun.command);
            task.timeout_seconds = begun.timeout_seconds;
        }
        Ok(task)
    });
    again.await?
}

/// Has the task done: makes its dispatch unless it is there, and waits until that has ended. `None` when the
/// daemon stops.
async fn dispatched(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    task: &Task,
) -> Result<Option<Dispatch>, StepError> {
    let daemon = &driven.daemon;
    if daemon.snapshot().get(&work.dispatch).is_none() {
        if driven.stopping() == Some(true) {
            return Err(StepError::Other("it was called off".into()));
        }
        let (at, of, resumed) = (place.clone(), task.clone(), work.resumed);
        let off = driven.called_off();
        let prompt = driven.step(worker, move || brief(&at, &of, resumed, &off)).await??;
        let Some(prompt) = prompt else { return Ok(None) };
        let spawn = spawn(driven, place, work, prompt);
        let trace = daemon
            .snapshot()
            .task_lists
            .get(&driven.list)
            .and_then(|run| run.place_of(&work.dispatch));
        let asker = Asker::Tasks(driven.project.top().to_path_buf());
        if let Err(error) = handlers::create(daemon, &spawn, &asker, trace).await {
            return Err(refused(driven, worker, place, work, &error).await?);
        }
    } else {
        handlers::bring_up(daemon, &work.dispatch).await;
    }
    let ids = [work.dispatch.clone()];
    let ended = handlers::finished(daemon, &ids);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => break,
            () = daemon.stop.cancelled() => return Ok(None),
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
                    tracing::warn!(task = %work.task, %error, "a lease was not renewed");
                }
            }
        }
    }
    let ended = daemon.snapshot().get(&work.dispatch).cloned();
    ended
        .map(|dispatch| Some((*dispatch).clone()))
        .ok_or_else(|| StepError::Other("its dispatch has vanished".into()))
}

/// A dispatch that cannot be made is a fault of what was asked for, not of the task.
async fn refused(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    error: &WireError,
) -> Result<StepError, StepError> {
    let (at, id) = (place.clone(), work.task.clone());
    let text = format!("{} ({})", error.message, error.code);
    let line = Entry::error(Some(&work.task), Category::EnvSetup, &format!("no agent can be dispatched: {text}"));
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
    drop(close(driven, worker, work, "released", &text, false).await?);
    Ok(StepError::Dispatch(error.code.clone(), error.message.clone()))
}

/// What the agent is told. Before the first attempt the validation is run once: to tell what failed before,
/// and to warn of one that proves nothing. `None` if that was called off.
fn brief(place: &Place, task: &Task, resumed: bool, off: &dyn Fn() -> bool) -> Result<Option<String>, StepError> {
    if !resumed && (task.attempts == 0 || place.kept_output(&task.id, "before").is_none()) {
        let before = match place.validate(task, off)? {
            Verdict::Stopped => return Ok(None),
            Verdict::Passed { output } => {
                let warning = "validation passes already, before any work on the task: it proves little";
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
    Ok(Some(prompt(&Brief { task, resumed, before, last: last.as_deref(), log: &log, commits: &commits })))
}

/// The first line of a kept output that came with exit 0.
const PASSED: &str = "(exit 0)\n";

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
        ("MULETEER_TASKS_RUN", driven.list.clone()),
        ("MULETEER_TASK_ID", work.task.clone()),
    ];
    spawn.extra_env.extend(own.map(|(name, value)| (name.to_string(), value)));
    spawn
}

fn was_stopped_with_daemon(dispatch: &Dispatch) -> bool {
    matches!(&dispatch.stop, Some(Stopped::Kill { reason }) if reason.starts_with("the daemon was stopped"))
}

/// What came of it: first whether the agent worked at all, then the validation. `None`: called off.
fn judge(place: &Place, task: &Task, dispatch: &Dispatch, off: &dyn Fn() -> bool) -> Result<Option<Judged>, StepError> {
    let failed = |category: Category, message: String| {
        Ok(Some(Judged { passed: false, category: Some(category.as_str().into()), message }))
    };
    if let Some((category, message)) = agent_failed(dispatch) {
        return failed(category, message);
    }
    place.git.settle()?;
    let verdict = place.validate(task, off)?;
    match &verdict {
        Verdict::Stopped => Ok(None),
        Verdict::Passed { .. } => Ok(Some(Judged { passed: true, category: None, message: String::new() })),
        other => {
            place.remember(task, other);
            let before = place.kept_output(&task.id, "before");
            let (category, message) = describe(other, before.as_deref().filter(|text| !text.starts_with(PASSED)));
            failed(category, message)
        }
    }
}

/// An agent that ended well, or that just did not report, is judged by the validation alone.
fn agent_failed(dispatch: &Dispatch) -> Option<(Category, String)> {
    let state = dispatch.state();
    if matches!(state, "success" | "partial") {
        return None;
    }
    let category = match &dispatch.stop {
        Some(Stopped::Limit { limit: Limit::Timeout, .. } | Stopped::Stall { .. }) => Category::Timeout,
        _ => Category::TaskExec,
    };
    let said = dispatch
        .result
        .as_ref()
        .map(|result| result.summary.clone())
        .filter(|text| !text.is_empty());
    let why = said.or_else(|| dispatch.reason.clone()).unwrap_or_default();
    Some((category, format!("agent {} {state}: {why}", dispatch.id)))
}

/// Carries a verdict out.
async fn conclude(
    driven: &Driven,
    worker: u32,
    place: &Place,
    work: &Work,
    mut verdict: Judged,
) -> Result<Option<End>, StepError> {
    let read = place.root.read()?.list;
    let Some(task) = read.get(&work.task).cloned() else {
        return close(driven, worker, work, "released", "it is no longer in the list", false).await;
    };
    if verdict.passed && driven.has_clones() {
        match land(driven, worker, place, &task).await? {
            Landing::Landed => {}
            Landing::CalledOff => return interrupted(driven, worker, place, work).await,
            Landing::Failed(category, message) => {
                verdict = Judged { passed: false, category: Some(category.as_str().into()), message };
                note_verdict(driven, worker, work, &verdict).await?;
            }
        }
    }
    if verdict.passed && !driven.has_clones() {
        let (at, base) = (place.clone(), task.started_at_commit.clone().unwrap_or_default());
        if let Some(message) = driven.step(worker, move || at.astray(&base)).await?? {
            verdict = Judged { passed: false, category: Some(Category::TaskExec.as_str().into()), message };
            note_verdict(driven, worker, work, &verdict).await?;
        }
    }
    let (at, judged) = (place.clone(), verdict.clone());
    let has_clones = driven.has_clones();
    let recorded = driven
        .step(worker, move || {
            let base = task.started_at_commit.clone().unwrap_or_default();
            match judged.passed {
                true if has_clones => at.record_success(&task.id),
                true => at.succeed(&task.id, &task.title, &base),
                false => at.fail(&task, judged.category(), &judged.message),
            }
        })
        .await??;
    let status = if recorded.completed { "completed" } else { "failed" };
    close(driven, worker, work, status, &recorded.message, true).await
}

enum Landing {
    Landed,
    CalledOff,
    Failed(Category, String),
}

/// Brings a clone's work onto the start branch: rebased, validated again there, fast-forwarded.
async fn land(driven: &Driven, worker: u32, place: &Place, task: &Task) -> Result<Landing, StepError> {
    for attempt in 0.. {
        // Others that keep being quicker are made to wait.
        let _alone = if attempt >= LANDINGS { Some(driven.shared.landing.lock().await) } else { None };
        let (at, of, off, project) = (place.clone(), task.clone(), driven.called_off(), driven.project.clone());
        let prepared = driven.step(worker, move || rebased(&at, &project, &of, &off)).await??;
        let tip = match prepared {
            Ok(tip) => tip,
            Err(landing) => return Ok(landing),
        };
        let _turn = if attempt < LANDINGS { Some(driven.shared.landing.lock().await) } else { None };
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
            Err(error) => return Ok(Landing::Failed(Category::TaskExec, format!("cannot be brought home: {error}"))),
        }
    }
    unreachable!("the loop has no end")
}

/// Commits what is left, rebases, and validates again if that changed anything. The tip it stands on.
fn rebased(
    place: &Place,
    project: &Git,
    task: &Task,
    off: &dyn Fn() -> bool,
) -> Result<Result<String, Landing>, StepError> {
    let branch = place.branch.clone().unwrap_or_default();
    let base = task.started_at_commit.clone().unwrap_or_default();
    let start = place.git.start(&task.id, &base)?;
    if place.git.commits_since(&base)?.is_empty() || place.git.uncommitted_since(&start)?.is_some() {
        place.git.commit(&start, &format!("{}: {}", task.id, task.title))?;
    }
    fault::point("tasks.committed");
    let before = place.git.head()?;
    let tip = match place.git.rebase(project, &branch) {
        Ok(tip) => tip,
        Err(error) => {
            let message = format!("conflict with what others completed meanwhile: {error}");
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

/// Lands what an earlier run left in a clone, at a session's start: nobody else is there yet.
pub fn land_blocking(driven: &Driven, place: &Place, task: &Task, off: &dyn Fn() -> bool) -> Result<(), StepError> {
    for _ in 0..=LANDINGS {
        match rebased(place, &driven.project, task, off)? {
            Err(Landing::Failed(category, message)) => return place.fail(task, category, &message).map(drop),
            Err(_) => return Err(StepError::Other("it was called off".into())),
            Ok(tip) => {
                let branch = place.branch.clone().unwrap_or_default();
                if driven.project.land(&place.git, &branch, &tip)? {
                    return place.record_success(&task.id).map(drop);
                }
            }
        }
    }
    place
        .fail(task, Category::TaskExec, "cannot be brought home: the branch keeps moving")
        .map(drop)
}

/// The run was stopped at once: the task stays as it is, for the next session to recover, but nobody holds it.
async fn interrupted(driven: &Driven, worker: u32, place: &Place, work: &Work) -> Result<Option<End>, StepError> {
    let (at, id) = (place.clone(), work.task.clone());
    let let_go = driven.step(worker, move || -> Result<(), StepError> {
        let mut tx = at.begin()?;
        let now = tx.now();
        if let Ok(task) = claim::owned(&mut tx.list, &id, &at.worker) {
            task.lease_expires_at = Some(now);
        }
        tx.log(Entry::warn(Some(&id), "interrupted; the next session recovers it"));
        tx.commit()?;
        Ok(())
    });
    let_go.await??;
    close(driven, worker, work, "released", "interrupted", false).await?;
    Ok(Some(End::Nothing))
}

async fn close(
    driven: &Driven,
    worker: u32,
    work: &Work,
    status: &str,
    message: &str,
    counted: bool,
) -> Result<Option<End>, StepError> {
    let event = Event::TaskEnded {
        list: driven.list.clone(),
        worker,
        task: work.task.clone(),
        status: status.into(),
        message: message.into(),
        counted,
    };
    record(&driven.daemon, event, &format!("{}/{}/ended", driven.list, work.dispatch))
        .await
        .map_err(StepError::Other)?;
    Ok(None)
}
